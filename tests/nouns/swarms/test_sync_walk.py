"""Swarms that share a value over networks that fail: no value is lost, and none is stored twice."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.hypothesis_settings import budget
from tests.nouns.swarms.swarm_homes import Process, Swarms, own_of

from interlock.client import Fleet
from interlock.core import keys
from interlock.core.signing import from_base64
from interlock.errors import InterlockError
from interlock.nouns.messages.decision import DecisionView
from interlock.nouns.swarms.shared import decode_copy
from interlock.nouns.swarms.sync_heads import SharedHead
from interlock.nouns.swarms.sync_results import SharedView
from interlock.store import Answer, Committed, Range, Txn
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash

NAMES = ("shop", "bank", "post")
CHANCES = Chances(
    conflict=0.03, lost_reply=0.05, late_arrival=0.03, crash_before=0.01, crash_after=0.02
)


class WatchedStore(MemoryStore):
    """A bus that notes every value that was stored under the shared key."""

    def commit(self, txn: Txn) -> Answer:
        answer = super().commit(txn)
        if isinstance(answer, Committed):
            for put in txn.puts:
                if put.key == keys.shared("k"):
                    self.values.append((answer.revision, put.value))
        return answer

    @cached_property
    def values(self) -> list[tuple[int, bytes]]:
        return []


class Walk:
    """Three swarms, each with one process that is replaced when it dies."""

    def __init__(self, swarms: Swarms, seed: int) -> None:
        self.swarms = swarms
        self.random = Random(seed)
        self.bus = swarms.bus = WatchedStore(swarms.clock)
        prints = {name: swarms.register(name).fingerprint for name in NAMES}
        for name in NAMES:
            for other in NAMES:
                if other != name:
                    swarms.homes[name].swarms.allow(other, key=prints[other])
        self.number = 0
        self.processes: dict[str, Process] = {}
        for name in NAMES:
            self.start(name)

    def home(self, name: str) -> Fleet:
        return self.swarms.homes[name]

    def start(self, name: str) -> None:
        self.number += 1
        process = Process(self.swarms, self.home(name).store, f"{name}-{self.number}")
        for store in (process.home, process.bus):
            store.chances = CHANCES
            store._random = Random(self.random.getrandbits(32))
        self.processes[name] = process

    def step(self) -> None:
        name = self.random.choice(NAMES)
        process = self.processes[name]
        self.swarms.clock.advance(self.random.choice([0.0, 0.004, 0.02, 1.0, 40.0, 4000.0]))
        act = self.random.choice(
            [self.share, self.share, self.share, self.read, self.sync, self.cut, self.decide]
        )
        try:
            act(name, process)
        except Crash:
            self.start(name)
        except InterlockError:
            pass  # a caller sees that it did not succeed

    def share(self, name: str, process: Process) -> None:
        self.number += 1
        base = self.random.choice([None, None, None, 0, self.random.randrange(40)])
        process.run(process.swarms.share("k", f"{name} {self.number}", base=base))

    def read(self, name: str, process: Process) -> None:
        process.run(process.swarms.shared("k"))

    def sync(self, name: str, process: Process) -> None:
        process.run(process.swarms.sync())

    def cut(self, name: str, process: Process) -> None:
        process.bus.cut = not process.bus.cut

    def decide(self, name: str, process: Process) -> None:
        asked = [each for each in self.home(name).messages.decisions() if each.state == "open"]
        if asked:
            self.start(name)  # another agent
            option = self.random.choice(["keep_current", "take_other"])
            self.processes[name].run(
                self.processes[name].messages.resolve(asked[0].decision, option)
            )

    def finish(self) -> None:
        """All networks heal, and no process dies any more."""
        for name in NAMES:
            self.start(name)
            for store in (self.processes[name].home, self.processes[name].bus):
                store.chances = Chances()
        for _ in range(2):
            self.swarms.clock.advance(60)
            for name in NAMES:
                assert self.processes[name].sync().trouble == ""


def heads(bus: WatchedStore) -> list[tuple[int, SharedHead, object]]:
    found = []
    for revision, data in bus.values:
        stands = msgspec.json.decode(data)
        payload = from_base64(stands["envelope"]["payload"]) or b""
        found.append((revision, msgspec.json.decode(payload, type=SharedHead), stands["value"]))
    return found


def check(walk: Walk) -> None:
    stored = heads(walk.bus)
    ids = [head.write_id for _, head, _ in stored if not head.same_as]
    assert len(ids) == len(set(ids)), "a write was stored twice"
    for (before, _, _), (_, after, _) in pairwise(stored):
        assert after.replaces == before
    kept = {
        value
        for name in NAMES
        for each in walk.home(name).swarms.conflicts()
        for value in (each.winner_value, each.loser_value)
    }
    for (revision, _, value), (_, after, _) in pairwise(stored):
        assert after.base == revision or value in kept, f"{value} was lost"
    for name in NAMES:
        home = walk.home(name)
        for prefix in (keys.SHARED_WRITES,):
            page = Range(prefix)
            assert not home.store.read(page).ranges[page]
        found = home.swarms.shared("k")
        if stored:
            assert isinstance(found, SharedView)
            assert (found.value, found.refused) == (stored[-1][2], "")
        for asked in home.messages.decisions():
            assert isinstance(asked, DecisionView)
            undecided = keys.undecided(asked.decision)
            is_open = asked.state == "open"
            assert (home.store.read(undecided)[undecided] is not None) == is_open
            assert all(each.value in kept or each.value is None for each in asked.options)
        assert (
            decode_copy(home.store.read(keys.copy("k"))[keys.copy("k")]) is not None or not stored
        )
        assert audit(home.store) == []
    assert audit(walk.bus) == []


@pytest.mark.parametrize("seed", range(budget(4)))
def test_no_value_is_lost_and_none_is_stored_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    with Swarms() as swarms:
        walk = Walk(swarms, seed)
        for _ in range(60):
            walk.step()
        walk.finish()
        check(walk)
        assert own_of(walk.home("shop")).name == "shop"
