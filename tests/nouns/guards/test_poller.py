"""Looks at the outside for gates that wait for it: who looks, how often, and what follows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.pipelines.pipelines import Mover, phases
from tests.processes.helpers import until

import interlock
from interlock import aio, guard
from interlock.core import codec, keys
from interlock.errors import BadInput, NotAllowed, StoreAway
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.allowed import allow, deny
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.guards.gates import observed_fact
from interlock.nouns.guards.hosts import who_looks
from interlock.nouns.guards.observations import allowed_roots, look, observation_key, share
from interlock.nouns.guards.poller import (
    FIRST,
    LIVES,
    NAP,
    LookPace,
    OutsidePoller,
    first_pace,
    next_pace,
)
from interlock.nouns.pipelines.definition import PipelineDefinition
from interlock.runtime.gates import GatedEntry
from interlock.runtime.identity import host_name
from interlock.steps import Pause
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.faults import FaultyStore
from interlock.testing.testbed import Client, Stepper, Testbed

FILE = 'pre = [{file_exists = "READY"}]'


def waits_for(body: str, name: str = "p") -> PipelineDefinition:
    """A pipeline whose second phase waits for this guard."""
    return phases("", body, name=name)


def guard_of(definition: PipelineDefinition) -> g.Guard:
    found = definition.phases[1].pre
    assert found is not None
    return found


READY = waits_for(FILE)


class Stage:
    """A store with a clock, a host with a list, and a folder that it may look at."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.bed = Testbed()
        self.clock = self.bed.clock
        self.store = self.bed.store
        self.mover = Mover(self.bed.client("ada"))

    def allow(self, definition: PipelineDefinition = READY) -> None:
        allow(g.digest(guard_of(definition)), self.root)

    def block(self, id_: str = "r1", definition: PipelineDefinition = READY) -> None:
        """Start a pipeline, and let it wait for the guard of its second phase."""
        self.mover.define(definition)
        self.mover.start(definition.name, id_)
        assert not self.mover.advance(id_)

    def phase(self, id_: str = "r1") -> str:
        return str(self.mover.show(id_).phase)

    def round(self, client: Client | None = None) -> Any:
        own = client or self.mover.client
        return own.run(OutsidePoller(own.context).round())

    def put(self, fact: str, thing: str, entry: GatedEntry) -> None:
        """Write an entry of a gate, as any client of the store can."""
        put = Put(keys.gated(fact, thing), codec.encode(entry))
        self.store.commit(Txn(id=f"x{thing}", entry=b"{}", puts=(put,)))

    def verbs(self) -> list[str]:
        return [line.verb for line in self.mover.client.run(self.mover.client.record.log())]


class Loop:
    """A poller that runs; its looks are real threads, and the clock is that of the stage."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self.poller = OutsidePoller(client.context)
        self._stage = stage
        self._stepper: Stepper[None] = client.start(self.poller.run())
        self.settle()

    def settle(self) -> None:
        """Wait for the looks that were started, and let the poller take their results."""
        poller = self.poller
        while any(each.looking for each in poller._guards.values()):
            until(lambda: not poller._ended.empty())
            self.step(NAP)

    def step(self, seconds: float) -> None:
        self._stage.clock.advance(seconds)
        self._stepper.run()

    def go(self, seconds: float) -> int:
        """Let time pass in naps; returns how many looks there were."""
        before = self.poller.looks
        ends = self._stage.clock.monotonic() + seconds
        while (left := ends - self._stage.clock.monotonic()) > 1e-9:
            self.step(min(NAP, left))
            self.settle()
        return self.poller.looks - before

    def end(self) -> None:
        self.poller.stop()
        self.step(NAP)
        assert self._stepper.done
        self._stepper.result()


class AwayStore(FaultyStore):
    """A store that does not answer while it is ``away``."""

    away = False

    def _operate(self) -> None:
        if self.away:
            raise StoreAway("the store does not answer; wait until it is back")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "list"))
    return Stage(tmp_path)


@pytest.fixture
def loop(stage: Stage) -> Iterator[Loop]:
    stage.allow()
    stage.block()
    started = Loop(stage, stage.bed.client("looker"))
    yield started
    started.end()


# The pace.


def test_the_pause_doubles_from_one_second_to_half_of_the_maximum_age() -> None:
    pace, pauses = first_pace(100.0), []
    for _ in range(8):
        now = pace.due
        pace = next_pace(pace, 60.0, now)
        pauses.append(pace.due - now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_change_brings_the_pace_back_to_one_second() -> None:
    slow = LookPace(seconds=30.0, due=5.0)
    assert next_pace(slow, 60.0, 5.0, changed=True) == LookPace(seconds=FIRST, due=6.0)


def test_a_long_look_is_followed_by_a_pause_as_long() -> None:
    assert next_pace(first_pace(0.0), 600.0, 100.0, took=40.0).due == 140.0


def test_no_guard_is_looked_at_more_often_than_once_in_a_second() -> None:
    assert next_pace(first_pace(0.0), 0.001, 0.0).due == FIRST


# One round.


def test_a_round_moves_on_what_the_outside_allows_now(stage: Stage) -> None:
    stage.allow()
    stage.block()
    assert stage.round().changed == ()  # the caller who was refused had looked, and stored it
    assert stage.phase() == "one"
    (stage.root / "READY").touch()
    done = stage.round()
    assert (done.looks, done.guards, done.changed) == (1, ("p/two/pre",), ("p/two/pre",))
    assert stage.phase() == "two"
    assert stage.verbs()[-2:] == ["pipeline.advance", "guard.observe"]
    assert audit(stage.store) == []
    assert stage.round().looks == 0, "nothing waits any more"


def test_an_explicit_step_is_not_overtaken_by_what_its_own_look_sees(stage: Stage) -> None:
    stage.allow()
    stage.block()
    (stage.root / "READY").touch()
    assert stage.mover.advance("r1", "one").phase == "two"


def test_an_observation_that_says_the_same_checks_no_gate(stage: Stage) -> None:
    stage.allow()
    stage.block()
    own = guard_of(READY)
    asked = {g.digest(own): own}
    client = stage.mover.client
    seen = look(asked, allowed_roots(asked), stage.clock)
    before = stage.verbs()
    assert not client.run(share(client.runner, asked, seen))
    assert stage.verbs() == before
    stage.clock.advance(61)
    assert client.run(share(client.runner, asked, seen)), "what was stored had become too old"
    assert stage.verbs() == [*before, "guard.observe"]


def test_a_gate_that_missed_an_observation_is_checked_at_the_first_look(stage: Stage) -> None:
    """On a network engine, it may begin to wait while another client stores the observation."""
    stage.allow()
    stage.block()
    (stage.root / "READY").touch()
    own = guard_of(READY)
    asked = {g.digest(own): own}
    seen = look(asked, allowed_roots(asked), stage.clock)[g.digest(own)]
    puts = []
    for need, fact in seen.items():
        key = observation_key(g.digest(own), need)  # type: ignore[arg-type]
        puts += [Put(key, codec.encode(fact)), Put(keys.observed_live(key), b"{}", 60.0)]
    stage.store.commit(Txn(id="late", puts=tuple(puts), quiet=True))
    done = stage.round()
    assert (done.looks, done.changed) == (1, ())
    assert stage.phase() == "two"


def test_a_guard_that_this_host_does_not_allow_is_named_and_not_looked_at(stage: Stage) -> None:
    stage.block()
    (stage.root / "READY").touch()
    done = stage.round()
    assert (done.looks, done.not_allowed) == (0, ("p/two/pre",))
    assert stage.phase() == "one"


def test_a_denied_guard_is_not_looked_at(stage: Stage) -> None:
    stage.allow()
    stage.block()
    deny(g.digest(guard_of(READY)))
    (stage.root / "READY").touch()
    assert stage.round().looks == 0


def test_an_entry_whose_guard_has_another_digest_is_not_looked_at(stage: Stage) -> None:
    """The digest of the key is allowed, and the guard of the entry would run a command."""
    stage.allow()
    evil = waits_for('pre = [{command = ["touch", "EVIL"]}]')
    allowed_fact = observed_fact(guard_of(READY)).fact
    stage.put(allowed_fact, "pipeline/evil", observed_fact(guard_of(evil)).entry)
    stage.put(
        observed_fact(guard_of(evil)).fact, "pipeline/evil2", observed_fact(guard_of(evil)).entry
    )
    assert stage.round().looks == 0
    assert not (stage.root / "EVIL").exists()


def test_odd_entries_do_not_hide_the_right_one(stage: Stage) -> None:
    stage.allow()
    fact = observed_fact(guard_of(READY)).fact
    for number in range(25):
        stage.put(fact, f"a/{number:02}", GatedEntry())
    for number, raw in enumerate((b"[", b'{"guard":{}}', b'{"guard":[1]}', b"\xff")):
        put = Put(keys.gated(fact, f"b/{number}"), raw)
        stage.store.commit(Txn(id=f"odd{number}", entry=b"{}", puts=(put,)))
    stage.block()
    assert stage.round().guards == ("p/two/pre",)


def test_the_calls_of_both_clients_look(stage: Stage, tmp_path: Path) -> None:
    stage.allow()
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada") as fleet:
        fleet.pipelines.define(READY)
        for id_ in ("r1", "r2"):
            fleet.pipelines.start("p", id=id_)
            assert not fleet.pipelines.advance(id_)
        (stage.root / "READY").touch()
        assert fleet.guards.look().changed == ("p/two/pre",)
        shown: Any = [fleet.pipelines.show(id_) for id_ in ("r1", "r2")]
        assert [each.phase for each in shown] == ["two", "two"], "both waited for the same guard"
        assert not fleet.pipelines.advance("r1", phase="one")
        fleet.pipelines.start("p", id="r3")
        assert fleet.pipelines.advance("r3")
        assert fleet.record.verify(), "also where an observation was only renewed"
        assert audit(fleet.store) == []

    async def main() -> None:
        async with await aio.connect(url, agent="ada") as fleet:
            assert (await fleet.guards.look()).looks == 0

    asyncio.run(main())


def test_a_round_on_each_engine(url: str, stage: Stage) -> None:
    stage.allow()
    with interlock.connect(url, agent="ada") as fleet:
        fleet.pipelines.define(READY)
        fleet.pipelines.start("p", id="r1")
        assert not fleet.pipelines.advance("r1")
        (stage.root / "READY").touch()
        slow = fleet.store.capabilities.engine == "git"  # so a round may take a second
        done = fleet.maintain(guards=True, timeout="5s" if slow else "1s")
        assert (done.changed, done.not_allowed) == (("p/two/pre",), ())
        shown: Any = fleet.pipelines.show("r1")
        assert shown.phase == "two"
        marks = Range(keys.RECHECK)
        assert not fleet.store.read(marks).ranges[marks]
        assert audit(fleet.store) == []


# The loop.


def test_a_poller_looks_at_the_pace_of_the_guard_and_sees_a_change(
    loop: Loop, stage: Stage
) -> None:
    assert loop.poller.looks == 1
    assert [loop.go(seconds) for seconds in (1.5, 2.5, 4.5, 8.5)] == [1, 1, 1, 1]
    (stage.root / "READY").touch()
    loop.go(16.5)
    assert stage.phase() == "two"
    assert loop.go(60) == 0, "nothing waits any more"


def test_looks_that_see_the_same_write_no_entry(loop: Loop, stage: Stage) -> None:
    before = stage.verbs()
    assert loop.go(120) > 5
    assert stage.verbs() == before


def test_a_new_gate_brings_the_pace_back_to_one_second(loop: Loop, stage: Stage) -> None:
    loop.go(95)
    assert loop.go(10) == 0
    stage.block("r2")
    assert loop.go(5) == 3


def test_a_change_that_opens_nothing_is_followed_closely(stage: Stage) -> None:
    both = waits_for('pre = [{file_exists = "A"}, {file_exists = "B"}]')
    stage.allow(both)
    stage.block(definition=both)
    loop = Loop(stage, stage.bed.client("looker"))
    loop.go(90)
    (stage.root / "A").touch()
    while not loop.go(NAP):
        pass
    assert loop.go(7.5) == 3
    (stage.root / "B").touch()
    loop.go(31)
    assert stage.phase() == "two"
    loop.end()


def test_of_the_pollers_of_a_host_one_looks_and_another_follows_it(
    loop: Loop, stage: Stage
) -> None:
    other = Loop(stage, stage.bed.client("other"))
    assert (loop.go(5) > 0, other.go(5)) == (True, 0)
    loop.end()
    assert other.go(LIVES / 3 + 1) > 0
    other.end()


def test_another_poller_follows_one_that_was_killed(loop: Loop, stage: Stage) -> None:
    other = Loop(stage, stage.bed.client("other"))
    assert other.go(LIVES + LIVES / 3 + 1) > 0, "the first one did not renew its claim"
    other.end()


def test_pollers_of_two_hosts_or_two_roots_look_both(
    loop: Loop, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may see different files: one of them sees the file that the gate waits for."""
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "other list"))
    stage.root = tmp_path / "other"
    stage.root.mkdir()
    stage.allow()
    other = Loop(stage, stage.bed.client("other"))
    assert other.poller.looks == 1
    (stage.root / "READY").touch()
    other.go(5)
    assert stage.phase() == "two"
    other.end()


def test_a_call_on_a_host_that_may_not_look_is_served_by_one_that_looks(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = guard.named("ready", guard.file_exists("READY"))
    client, bob = stage.mover.client, stage.bed.client("bob")
    client.run(GuardCalls(client.context).define(named))
    waits = bob.start(bob.locks.acquire("merge", guard="ready", wait=600))
    assert waits.asleep
    assert stage.round().not_allowed == ("ready",)
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "other list"))
    allow(g.digest(named), stage.root)
    loop = Loop(stage, stage.bed.client("looker"))
    assert loop.poller.looks == 1
    (stage.root / "READY").touch()
    loop.go(2)
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "list"))
    assert waits.run().done
    assert waits.result()
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "other list"))
    loop.go(LIVES / 3 + 1)
    assert loop.go(60) == 0, "the call has ended"
    loop.end()


def test_a_permission_and_a_denial_count_while_a_poller_runs(stage: Stage) -> None:
    stage.block()
    names: list[str] = []
    client = stage.bed.client("looker")
    loop = Loop(stage, client)
    loop.poller.on_not_allowed = names.append
    assert loop.poller.not_allowed == {"p/two/pre": None}
    stage.allow()
    assert loop.go(LIVES + 1) > 0
    deny(g.digest(guard_of(READY)))
    (stage.root / "READY").touch()
    loop.go(LIVES)
    assert stage.phase() == "one"
    other = waits_for('pre = [{file_exists = "OTHER"}]', name="q")
    stage.block("q1", other)
    loop.go(FIRST + NAP)
    assert names == ["q/two/pre"]
    loop.end()


def test_a_poller_goes_on_through_an_outage(stage: Stage) -> None:
    stage.allow()
    network = AwayStore(stage.store)
    loop = Loop(stage, stage.bed.client("looker", store=network))
    stepper = loop._stepper
    network.away = True
    stage.clock.advance(LIVES)
    before = len(stepper.steps)
    while not any(isinstance(step, Pause) for step in stepper.steps[before:]):
        assert stepper.go()
    stage.block()
    (stage.root / "READY").touch()
    network.away = False
    loop.go(1)
    assert stage.phase() == "two"
    loop.end()


def test_a_list_that_others_could_write_ends_a_poller_with_an_error_unless_it_is_patient(
    stage: Stage, tmp_path: Path
) -> None:
    stage.allow()
    (tmp_path / "list").chmod(0o777)
    client = stage.mover.client
    with pytest.raises(NotAllowed, match="chmod go-w"):
        client.run(OutsidePoller(client.context).run())
    (tmp_path / "list").chmod(0o700)
    stage.block()
    (tmp_path / "list").chmod(0o777)
    poller = OutsidePoller(client.context)
    patient = Stepper(poller.run(patient=True), stage.store, stage.clock)
    while not any(isinstance(step, Pause) for step in patient.steps):
        assert patient.go()
    (tmp_path / "list").chmod(0o700)
    patient.run()
    assert list(poller._guards)
    poller.stop()
    stage.clock.advance(NAP)
    assert patient.run().done


def test_why_names_the_host_that_looks_or_says_what_to_do(stage: Stage) -> None:
    fact = observed_fact(guard_of(READY))
    client = stage.mover.client

    def said() -> str:
        return "".join(client.run(who_looks([fact])))

    assert said().startswith("no live host may look; a person has to allow it, then")
    stage.allow()
    stage.block()
    assert f"'interlock maintain --guards' on host {host_name()}, which may look" in said()
    loop = Loop(stage, stage.bed.client("looker"))
    assert said() == f"host {host_name()} looks at it again and again"
    loop.end()
    stage.clock.advance(1)
    assert "no host looks at it again" in said()


# In the background of a client.


def test_a_client_that_opted_in_looks_in_the_background(stage: Stage, tmp_path: Path) -> None:
    stage.allow()
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada") as ada:
        ada.pipelines.define(READY)
        for id_ in ("r1", "r2"):
            ada.pipelines.start("p", id=id_)
        assert not ada.pipelines.advance("r1")
        (stage.root / "READY").touch()

        def phase(id_: str) -> str:
            view: Any = ada.pipelines.show(id_)
            return str(view.phase)

        with interlock.connect(url, agent="bob", look=True):
            until(lambda: phase("r1") == "two")
        (stage.root / "READY").unlink()
        assert not ada.pipelines.advance("r2")
        (stage.root / "READY").touch()

        async def main() -> None:
            async with await aio.connect(url, agent="bob", look=True):
                await asyncio.to_thread(until, lambda: phase("r2") == "two")

        asyncio.run(asyncio.wait_for(main(), 60))
        claims = Range(keys.LOOKS)
        until(lambda: not ada.store.read(claims).ranges[claims])


def test_a_command_that_hangs_holds_up_no_other_guard_and_ends_with_the_client(
    stage: Stage, tmp_path: Path
) -> None:
    os.mkfifo(stage.root / "never")
    hanging = waits_for(
        'pre = {command = {run = ["sh", "-c", "echo $$ > pid; exec cat never"], timeout = "10m"}}',
        "h",
    )
    for each in (READY, hanging):
        stage.allow(each)
    url = str(tmp_path / "store.db")
    pid = stage.root / "pid"
    with interlock.connect(url, agent="ada") as ada:
        for each in (hanging, READY):
            deny(g.digest(guard_of(each)))  # so that ada does not look herself
            ada.pipelines.define(each)
            ada.pipelines.start(each.name, id=each.name)
            assert not ada.pipelines.advance(each.name)
            stage.allow(each)
        with interlock.connect(url, agent="bob", look=True):
            until(lambda: pid.exists() and pid.read_text())
            (stage.root / "READY").touch()
            view: Any = until(lambda: ada.pipelines.show("p"))
            until(lambda: getattr(ada.pipelines.show("p"), "phase", "") == "two")
            assert view
            assert _runs(int(pid.read_text()))
        until(lambda: not _runs(int(pid.read_text())))
        shown: Any = ada.pipelines.show("h")
        assert shown.phase == "one"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_client_that_did_not_opt_in_imports_no_poller(tmp_path: Path) -> None:
    code = """
import sys, interlock
for look in (None, False):
    with interlock.connect(sys.argv[1], agent="ada", look=look) as fleet:
        fleet.locks.acquire("merge")
assert not [name for name in sys.modules if name.startswith("interlock.nouns.guards")]
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store.db")], check=True)


def test_the_settings_opt_agents_in_and_an_argument_overrides_them(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(**options: Any) -> bool:
        with interlock.connect(str(tmp_path / "store.db"), **options) as fleet:
            return "interlock-looks" in fleet._threads

    assert not looks(agent="ada")
    monkeypatch.setenv("INTERLOCK_GUARD_LOOK", "1")
    assert looks(agent="ada")
    assert not looks(agent="ada", look=False)
    assert not looks(), "without a session, only an argument opts in"
    assert looks(look=True)
    monkeypatch.setenv("INTERLOCK_GUARD_LOOK", "maybe")
    with pytest.raises(BadInput, match="INTERLOCK_GUARD_LOOK is either true or false"):
        looks(agent="ada")
