"""A process dies at any commit, at home or on the bus: another one of the home finishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.nouns.swarms.swarm_homes import (
    CrashScene,
    Swarms,
    floor_of,
    made_key,
    own_of,
    paused_at_every_step,
    peer_of,
    struck_at_every_commit,
)

from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmSynced
from interlock.steps import Op
from interlock.testing.faults import Fault

FAULTS: list[Fault] = ["crash before", "crash after", "lost reply", "late arrival"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path))


def register(scene: CrashScene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.register("bank", bus="memory:bus", key="bank"))


def another_key(scene: CrashScene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.register("bank", bus="memory:bus", key=made_key("bank2")))


def allow(scene: CrashScene) -> None:
    struck = scene.struck
    struck.run(struck.swarms.allow("shop", key=own_of(scene.shop).fingerprint))


def rotate(scene: CrashScene) -> None:
    scene.struck.run(scene.struck.keys.rotate("bank"))


def revoke(scene: CrashScene) -> None:
    rotated = scene.bank.keys.rotate("bank")
    scene.shop.swarms.sync(force=True)
    scene.struck.run(scene.struck.keys.revoke(rotated.old_fingerprint))


def sync(scene: CrashScene) -> None:
    scene.shop.swarms.sync(force=True)
    scene.struck.sync()


Act: TypeAlias = Callable[[CrashScene], None]
ACTS: list[Act] = [register, another_key, allow, rotate, revoke, sync]


@pytest.mark.parametrize("place", ["home", "bus"])
@pytest.mark.parametrize("act", ACTS)
def test_another_process_finishes_what_was_struck(act: Act, place: str) -> None:
    commits = struck_at_every_commit(
        CrashScene, place, FAULTS, act, lambda scene, _crashed: finish(scene)
    )
    assert commits >= 1 or (act is allow and place == "bus")


def finish(scene: CrashScene) -> None:
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
    scene.audited()


def test_two_processes_that_publish_in_turns_sign_different_versions() -> None:
    with Swarms() as swarms:
        scene = CrashScene(swarms)
        both = (scene.struck, scene.process("heir"))
        versions = [process.sync().version for _ in range(3) for process in both]
        assert versions == sorted(set(versions))


def test_an_entry_of_a_slow_process_never_replaces_a_newer_one() -> None:
    """Another process publishes after each step of the slow one."""

    def begin(scene: CrashScene) -> Op[object]:
        return scene.struck.swarms.sync(force=True)

    for scene, slow in paused_at_every_step(CrashScene, begin):
        newest = scene.process("heir").sync().version
        slow.run()
        done = slow.result()
        assert isinstance(done, SwarmSynced)
        finish(scene)
        assert floor_of(scene.shop, "bank").version > max(newest, done.version)


def test_a_rotation_while_another_process_publishes_leaves_an_entry_of_the_new_key() -> None:
    """Another process rotates after each step of the slow one, and no third one repairs it."""

    def begin(scene: CrashScene) -> Op[object]:
        return scene.struck.swarms.sync(force=True)

    for scene, slow in paused_at_every_step(CrashScene, begin):
        heir = scene.process("heir")
        rotated = heir.run(heir.keys.rotate("bank"))
        slow.run().result()
        seen = scene.shop.swarms.sync(force=True)
        assert isinstance(seen, SwarmSynced)
        assert seen.refused == ()
        assert peer_of(scene.shop, "bank").keys[0].fingerprint == rotated.fingerprint
