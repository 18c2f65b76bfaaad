"""A process dies at any commit, at home or on the bus: another one of the home finishes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.nouns.swarms.swarm_homes import (
    Process,
    Swarms,
    floor_of,
    made_key,
    own_of,
    peer_of,
)

from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmSynced
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Stepper

FAULTS: list[Fault] = ["crash before", "crash after", "lost reply", "late arrival"]


class Scene:
    """Shop and bank know each other; ``struck`` is a process of the bank that will fail."""

    def __init__(self, swarms: Swarms) -> None:
        self.swarms = swarms
        self.shop, self.bank = swarms.pair()
        self.struck = self.process("struck")

    def process(self, agent: str) -> Process:
        return Process(self.swarms, self.bank.store, agent)


def register(scene: Scene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.register("bank", bus="memory:bus", key="bank"))


def another_key(scene: Scene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.register("bank", bus="memory:bus", key=made_key("bank2")))


def allow(scene: Scene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.allow("shop", key=own_of(scene.shop).fingerprint))


def rotate(scene: Scene) -> None:
    scene.struck.run(scene.struck.keys.rotate("bank"))


def revoke(scene: Scene) -> None:
    rotated = scene.bank.keys.rotate("bank")
    scene.shop.swarms.sync(force=True)
    scene.struck.run(scene.struck.keys.revoke(rotated.old_fingerprint))


def sync(scene: Scene) -> None:
    scene.shop.swarms.sync(force=True)
    scene.struck.sync()


Act: TypeAlias = Callable[[Scene], None]
ACTS: list[Act] = [register, another_key, allow, rotate, revoke, sync]


@pytest.mark.parametrize("place", ["home", "bus"])
@pytest.mark.parametrize("act", ACTS)
def test_another_process_finishes_what_was_struck(
    act: Act, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in FAULTS:
        for commit in count():
            monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / f"{fault}{commit}"))
            with Swarms() as swarms:
                scene = Scene(swarms)
                struck = scene.struck.home if place == "home" else scene.struck.bus
                struck.script([None] * commit + [fault])
                crashed = False
                try:
                    act(scene)
                except Crash:
                    crashed = True
                drawn = bool(struck.drawn)
                finish(scene)
            if not crashed and not drawn:
                assert commit >= 1 or (act is allow and place == "bus")
                break


def finish(scene: Scene) -> None:
    """A process of the bank syncs, and the shop accepts its newest entry without an alarm."""
    heir = scene.process("heir")
    done = heir.sync()
    assert done.trouble == ""
    seen = scene.shop.swarms.sync(force=True)
    assert isinstance(seen, SwarmSynced)
    assert (seen.trouble, seen.refused) == ("", ())
    assert floor_of(scene.shop, "bank").version == done.version
    assert floor_of(scene.shop, "bank").refused == {}
    own = own_of(scene.bank)
    trusted = [key.fingerprint for key in peer_of(scene.shop, "bank").keys]
    assert trusted == [key.fingerprint for key in own.keys]
    assert trusted[0] == key_files.signer(own.key).fingerprint
    assert peer_of(scene.bank, "shop").keys[0].fingerprint == own_of(scene.shop).fingerprint
    for store in (scene.bank.store, scene.shop.store, scene.swarms.bus):
        assert audit(store) == []


def test_two_processes_that_publish_in_turns_sign_different_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path))
    with Swarms() as swarms:
        scene = Scene(swarms)
        both = (scene.struck, scene.process("heir"))
        versions = [process.sync().version for _ in range(3) for process in both]
        assert versions == sorted(set(versions))


def test_an_entry_of_a_slow_process_never_replaces_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process publishes after each step of the slow one."""
    for before in count():
        monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / f"{before}"))
        with Swarms() as swarms:
            scene = Scene(swarms)
            struck = scene.struck
            slow = Stepper(struck.swarms.sync(force=True), struck.home, swarms.clock)
            for _ in range(before):
                slow.go()
            over = slow.done
            newest = scene.process("heir").sync().version
            slow.run()
            done = slow.result()
            assert isinstance(done, SwarmSynced)
            finish(scene)
            assert floor_of(scene.shop, "bank").version > max(newest, done.version)
        if over:
            assert before > 5
            return


def test_a_rotation_while_another_process_publishes_leaves_an_entry_of_the_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process rotates after each step of the slow one, and no third one repairs it."""
    for before in count():
        monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / f"{before}"))
        with Swarms() as swarms:
            scene = Scene(swarms)
            struck = scene.struck
            slow = Stepper(struck.swarms.sync(force=True), struck.home, swarms.clock)
            for _ in range(before):
                slow.go()
            over = slow.done
            heir = scene.process("heir")
            rotated = heir.run(heir.keys.rotate("bank"))
            slow.run().result()
            seen = scene.shop.swarms.sync(force=True)
            assert isinstance(seen, SwarmSynced)
            assert seen.refused == ()
            assert peer_of(scene.shop, "bank").keys[0].fingerprint == rotated.fingerprint
        if over:
            assert before > 5
            return
