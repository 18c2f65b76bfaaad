"""A process dies at any commit of state sync, at home or on the bus: another one finishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.nouns.swarms.swarm_homes import (
    CrashScene,
    Process,
    floor_of,
    paused_at_every_step,
    struck_at_every_commit,
)

from interlock.core import keys
from interlock.nouns.messages.decision import DecisionView
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.shared import decode_copy
from interlock.nouns.swarms.sync_results import SharedView, ShareUndecided, ValueShared
from interlock.nouns.swarms.sync_rules import DECIDE_IN
from interlock.steps import Op
from interlock.store import Range
from interlock.testing.faults import Fault

FAULTS: list[Fault] = ["crash after", "lost reply", "late arrival"]
"""A crash before a commit is one after the commit before it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path))


class Scene(CrashScene):
    """Shop and bank share a value."""

    def prepare(self) -> None:
        self.shop.swarms.share("k", "old")
        self.bank.swarms.shared("k")
        copied = decode_copy(self.bank.store.read(keys.copy("k"))[keys.copy("k")])
        assert copied is not None
        self.base = copied.revision
        self.swarms.clock.advance(60)
        bus = self.swarms.bus
        self.watch = bus.watch(keys.shared("k"), bus.read(keys.BUS).revision)

    def stored(self) -> int:
        """How often the value was stored since the scene was set."""
        return len(self.watch.take(0))

    def value(self) -> object:
        found = self.shop.swarms.shared("k")
        assert isinstance(found, SharedView)
        return found.value

    def spooled(self) -> int:
        page = Range(keys.SHARED_WRITES)
        return len(self.bank.store.read(page).ranges[page])

    def has_undecided(self) -> list[str]:
        page = Range(keys.UNDECIDED)
        return [keys.id_of(item.key) for item in self.bank.store.read(page).ranges[page]]

    def finish(self) -> None:
        """Another process of the bank does what is left."""
        self.swarms.clock.advance(60)
        heir = self.process("heir")
        assert heir.sync().trouble == ""
        assert self.spooled() == 0


def share(scene: Scene) -> None:
    scene.struck.run(scene.struck.swarms.share("k", "new"))


def check_share(scene: Scene, *, crashed: bool) -> None:
    """The write is on the bus once; not at all only if it was never stored at home."""
    times = scene.stored()
    assert times == (scene.value() == "new")
    assert times == 1 or crashed
    assert not scene.bank.swarms.conflicts()


def win(scene: Scene) -> None:
    scene.shop.swarms.share("k", "first")
    scene.swarms.clock.advance(0.02)
    share(scene)


def check_win(scene: Scene, *, crashed: bool) -> None:
    """The later write wins and the loser is kept; a write that waited is a decision."""
    times = scene.stored()
    conflicts = list(scene.bank.swarms.conflicts())
    if scene.value() == "new":
        assert times == 2
        (found,) = conflicts
        assert (found.resolution, found.loser_value) == ("last_write_wins", "first")
        return
    assert times == 1
    assert crashed
    for found in conflicts:
        assert (found.resolution, found.loser_value) == ("stale_base", "new")
        assert found.decision in scene.has_undecided()


def lose(scene: Scene) -> None:
    conflict(scene, scene.struck)


def conflict(scene: Scene, process: Process) -> None:
    scene.shop.swarms.share("k", "first")
    scene.swarms.clock.advance(60)
    process.run(process.swarms.share("k", "new"))


def check_lose(scene: Scene, *, crashed: bool) -> None:
    assert (scene.stored(), scene.value()) == (1, "first")
    conflicts = list(scene.bank.swarms.conflicts())
    assert [(each.winner_value, each.loser_value) for each in conflicts] == [("first", "new")] or (
        crashed and not conflicts
    )
    assert [each.decision for each in conflicts] == scene.has_undecided()


def drain(scene: Scene) -> None:
    scene.struck.bus.cut = True
    for value in ("a", "b", "new"):
        scene.struck.run(scene.struck.swarms.share("k", value))
    scene.struck.bus.cut = False
    scene.swarms.clock.advance(60)
    scene.struck.sync()


def check_drain(scene: Scene, *, crashed: bool) -> None:
    """Each of the writes that were stored at home is on the bus once, in order."""
    values = ["old", "a", "b", "new"]
    assert scene.value() == values[scene.stored()]
    assert scene.value() == "new" or crashed
    assert not scene.bank.swarms.conflicts()


def take(scene: Scene) -> None:
    conflict(scene, scene.process("writer"))
    (decision,) = scene.has_undecided()
    scene.struck.run(scene.struck.messages.resolve(decision, "take_other"))


def check_take(scene: Scene, *, crashed: bool) -> None:
    """The chosen value is written once, if the decision was made."""
    left = scene.has_undecided()
    (conflict,) = scene.bank.swarms.conflicts()
    decision = scene.bank.messages.decision(conflict.decision)
    assert isinstance(decision, DecisionView)
    made = decision.state == "resolved"
    assert (scene.stored(), scene.value()) == ((2, "new") if made else (1, "first"))
    assert made or crashed
    assert bool(left) != made


def expire(scene: Scene) -> None:
    conflict(scene, scene.process("writer"))
    scene.swarms.clock.advance(DECIDE_IN)
    scene.struck.sync()


def check_expire(scene: Scene, *, crashed: bool) -> None:
    del crashed
    assert (scene.stored(), scene.value(), scene.has_undecided()) == (1, "first", [])
    (conflict,) = scene.bank.swarms.conflicts()
    decision = scene.bank.messages.decision(conflict.decision)
    assert isinstance(decision, DecisionView)
    assert decision.state == "expired"


def sign_again(scene: Scene) -> None:
    share(scene)
    scene.struck.run(scene.struck.keys.rotate("bank"))
    scene.struck.sync()


def check_sign_again(scene: Scene, *, crashed: bool) -> None:
    """The value has the signature of the current key, and was not written again for that."""
    times = scene.stored()
    assert (scene.value() == "new", times in (1, 2)) == (times > 0, times > 0)
    assert times == 2 or crashed
    copy = decode_copy(scene.bank.store.read(keys.copy("k"))[keys.copy("k")])
    assert copy is not None
    assert not times or copy.signed_by == key_files.load("bank").fingerprint
    assert not scene.bank.swarms.conflicts()


def read(scene: Scene) -> None:
    scene.shop.swarms.share("k", "first")
    scene.struck.run(scene.struck.swarms.shared("k"))


def check_read(scene: Scene, *, crashed: bool) -> None:
    del crashed
    assert scene.stored() == 1
    copy = decode_copy(scene.bank.store.read(keys.copy("k"))[keys.copy("k")])
    assert copy is not None
    assert bytes(copy.value) == b'"first"'


Act: TypeAlias = Callable[[Scene], None]
ACTS: dict[str, tuple[Act, Callable[..., None]]] = {
    "share": (share, check_share),
    "win": (win, check_win),
    "lose": (lose, check_lose),
    "drain": (drain, check_drain),
    "take": (take, check_take),
    "expire": (expire, check_expire),
    "sign again": (sign_again, check_sign_again),
    "read": (read, check_read),
}


@pytest.mark.parametrize("place", ["home", "bus"])
@pytest.mark.parametrize("name", ACTS)
def test_another_process_finishes_what_was_struck(name: str, place: str) -> None:
    act, check = ACTS[name]

    def finish(scene: Scene, crashed: bool) -> None:
        scene.finish()
        check(scene, crashed=crashed)
        scene.audited()

    commits = struck_at_every_commit(Scene, place, FAULTS, act, finish)
    assert commits >= 1 or (name in ("lose", "read") and place == "bus")


def test_a_write_is_stored_once_though_two_processes_post_it_at_the_same_time() -> None:
    """After each step of a slow writer another process of its home posts all that waits."""

    def begin(scene: Scene) -> Op[object]:
        return scene.struck.swarms.share("k", "new")

    for scene, slow in paused_at_every_step(Scene, begin):
        scene.process("heir").sync()
        slow.run()
        done = slow.result()
        assert isinstance(done, ValueShared)
        assert (scene.stored(), scene.value(), scene.spooled()) == (1, "new", 0)
        assert not scene.bank.swarms.conflicts()
        scene.audited()


def test_a_caller_learns_of_a_decision_that_another_process_has_opened() -> None:
    """After each step of a slow writer another process posts its write, which is stale."""

    def begin(scene: Scene) -> Op[object]:
        scene.shop.swarms.share("k", "first")
        scene.swarms.clock.advance(60)
        return scene.struck.swarms.share("k", "new")

    for scene, slow in paused_at_every_step(Scene, begin):
        scene.process("heir").sync()
        slow.run()
        done = slow.result()
        assert isinstance(done, ShareUndecided)
        assert [done.decision] == scene.has_undecided()


def test_a_process_that_slept_posts_nothing_that_another_one_has_settled() -> None:
    """After each step of a slow writer, another process posts it, and the shop overwrites it."""

    def begin(scene: Scene) -> Op[object]:
        return scene.struck.swarms.share("k", "new")

    for scene, slow in paused_at_every_step(Scene, begin):
        over = slow.done
        waits = scene.spooled()
        scene.process("heir").sync()
        scene.shop.swarms.shared("k")
        scene.shop.swarms.share("k", "last")
        scene.swarms.clock.advance(3600)
        slow.run()
        done = slow.result()
        assert isinstance(done, ValueShared | ShareUndecided)
        if waits or over:  # it was stored at home before the other process came
            assert scene.value() == "last"
            assert not scene.bank.swarms.conflicts()
        else:  # the write was made after all of that
            assert scene.has_undecided() or scene.value() == "last"
        scene.audited()


def test_a_write_that_was_posted_and_has_lost_is_not_posted_again_by_a_slow_process() -> None:
    """After each step of a slow writer another process posts its write, and wins against it."""

    def begin(scene: Scene) -> Op[object]:
        return scene.struck.swarms.share("k", "new", base=scene.base)

    for scene, slow in paused_at_every_step(Scene, begin):
        over = slow.done
        waits = scene.spooled()
        heir = scene.process("heir")
        heir.sync()
        scene.swarms.clock.advance(0.02)
        other = heir.run(heir.swarms.share("k", "later", base=scene.base))
        assert isinstance(other, ValueShared)
        scene.swarms.clock.advance(0.02)
        slow.run()
        if waits or over:
            assert (scene.stored(), scene.value()) == (2, "later")


def test_a_process_that_slept_before_its_commit_does_not_win_as_if_it_was_in_time() -> None:
    """An hour passes after each step of a write that is about to win against a concurrent one."""

    def begin(scene: Scene) -> Op[object]:
        scene.shop.swarms.share("k", "first")
        scene.swarms.clock.advance(0.02)
        return scene.struck.swarms.share("k", "new")

    for scene, slow in paused_at_every_step(Scene, begin):
        won = scene.stored() == 2
        scene.swarms.clock.advance(3600)
        slow.run()
        scene.finish()
        assert scene.value() == ("new" if won else "first")
        (found,) = scene.bank.swarms.conflicts()
        assert found.resolution == ("last_write_wins" if won else "stale_base")


def test_two_processes_that_write_snapshots_sign_different_versions() -> None:
    """Another process publishes after each step of the slow one: no reader sees a divergence."""

    def begin(scene: Scene) -> Op[object]:
        return scene.struck.swarms.sync(force=True)

    for scene, slow in paused_at_every_step(Scene, begin):
        scene.shop.swarms.sync(force=True)
        newest = scene.process("heir").sync().state
        slow.run()
        scene.shop.swarms.sync(force=True)
        floor = floor_of(scene.shop, "bank")
        assert floor.refused == {}
        assert floor.state is not None
        assert floor.state.version >= newest
