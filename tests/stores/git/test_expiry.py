"""What a host says of the life of another host's keys: what it knows, and no more."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack

import pytest
from tests.stores.git.conftest import Opens
from tests.stores.git.test_host import commands

import interlock
from interlock.outcomes import LockBusy, Nothing
from interlock.store import Put
from interlock.testing.conformance.place import at_once, write

__all__ = ["commands"]


def test_a_host_that_saw_nothing_before_knows_that_a_key_lives_and_not_for_how_long(
    host: Opens,
) -> None:
    write(host("a"), Put("live/x", b"", ttl=60.0))
    item = host("b").read("live/x")["live/x"]
    assert item is not None
    assert item.life is None
    assert item.expires_in


def test_an_expiry_that_is_not_known_is_not_shown(host: Opens) -> None:
    with interlock.connect(store=host("a"), agent="ada", ttl=60.0) as ada, ExitStack() as late:
        assert ada.locks.acquire("deploy")
        assert ada.tasks.publish("build")
        assert ada.tasks.claim("build")
        bob = late.enter_context(interlock.connect(store=host("b"), agent="bob"))
        refused = bob.locks.acquire("deploy")
        assert isinstance(refused, LockBusy)
        assert refused.expires_in is None
        assert bob.locks.list()[0].expires_in is None
        build = bob.tasks.show("build")
        assert build
        assert build.expires_in is None
        assert bob.agents.list()[0].expires_in is None
        for thing in ("lock/deploy", "task/build"):
            why = bob.why(thing)
            assert why.expires_in is None
            assert " 0 s" not in why.clear


def test_a_waiter_looks_rarely_though_it_does_not_know_how_long_the_holder_lives(
    host: Opens, commands: Counter[str]
) -> None:
    with interlock.connect(store=host("a"), agent="ada", ttl=60.0) as ada, ExitStack() as late:
        at_once(lambda: ada.locks.acquire("deploy"))  # this thread does not wait for itself
        assert ada.tasks.publish("build")
        assert ada.tasks.claim("build")
        bob = late.enter_context(interlock.connect(store=host("b"), agent="bob"))
        commands.clear()
        assert isinstance(bob.locks.acquire("deploy", wait=2.0), LockBusy)
        assert commands["ls-remote"] <= 20
        commands.clear()
        assert isinstance(bob.tasks.next(wait=2.0), Nothing)
        assert commands["ls-remote"] <= 20


def test_the_expiry_of_a_lock_of_another_host_is_true_though_the_wall_clocks_differ(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    with (
        interlock.connect(store=host("b"), agent="bob") as bob,
        interlock.connect(store=host("a"), agent="ada", ttl=60.0) as ada,
    ):
        assert not bob.locks.list()
        before = time.monotonic()
        monkeypatch.setattr(time, "time", lambda: wall() + 3600)
        assert ada.locks.acquire("deploy")
        monkeypatch.setattr(time, "time", wall)
        (lock,) = bob.locks.list()
        took = time.monotonic() - before
        assert lock.expires_in is not None
        assert 60.0 - 2 * took - 1.0 <= lock.expires_in <= 60.0
