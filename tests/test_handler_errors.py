"""What a signal handler raises leaves the call that it interrupts, and the client stays usable.

The handler runs where Python would run it: right after a system call of the interrupted call.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.for_each import for_each
from tests.processes.helpers import until

import interlock
from interlock import outcomes
from interlock.client import Fleet
from interlock.errors import StoreAway, StoreInUse
from interlock.stores.redis import RedisStore
from interlock.stores.sqlite import SQLiteStore, wal

Handling = Callable[[Fleet], object]


def _send(fleet: Fleet) -> object:
    return fleet.messages.send("bea", "I was asked to stop")


def _raise(error: type[Exception], *words: object) -> Handling:
    def handling(_: Fleet) -> object:
        raise error(*words)

    return handling


RAISED: dict[str, tuple[type[Exception], Handling]] = {
    "a call that is refused": (StoreInUse, _send),
    "trouble of another store": (StoreAway, _raise(StoreAway, "another one")),
    "an alarm": (TimeoutError, _raise(TimeoutError, "too long")),
    "an error of the system": (OSError, _raise(OSError, 28, "No space left on device")),
}


class Signals:
    """Runs a signal handler inside of a call, once."""

    def __init__(self, fleet: Fleet, handling: Handling) -> None:
        self.calls = 0
        self._before = signal.signal(signal.SIGUSR1, lambda *_: handling(fleet))

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A system call that a signal follows the first time."""
        main = threading.main_thread()

        def called(*values: Any) -> Any:
            found = call(*values)
            if threading.current_thread() is main:
                self.calls += 1
                if self.calls == 1:
                    signal.raise_signal(signal.SIGUSR1)
            return found

        return called

    def close(self) -> None:
        signal.signal(signal.SIGUSR1, self._before)


def counted(call: Callable[[int], None], asked: list[int]) -> Callable[[int], None]:
    """A system call that notes what it was asked for."""

    def called(fd: int) -> None:
        asked.append(fd)
        call(fd)

    return called


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as connected:
        connected.tasks.publish("first")
        yield connected


@for_each("moment", ["fdatasync", "pwrite", "stat"])
@for_each("raised", list(RAISED))
def test_it_leaves_a_commit_and_the_client_goes_on(
    raised: str, moment: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, handling = RAISED[raised]
    signals = Signals(fleet, handling)
    with monkeypatch.context() as patched:
        if moment == "fdatasync":
            patched.setattr(wal, "_sync", signals.after(wal._sync))
        else:
            patched.setattr(os, moment, signals.after(getattr(os, moment)))
        with pytest.raises(error) as caught:
            fleet.tasks.publish(f"{moment} {raised}")
    signals.close()
    assert type(caught.value) is error
    asked: list[int] = []
    sync = wal._sync
    monkeypatch.setattr(wal, "_sync", counted(sync, asked))
    done = fleet.tasks.publish(f"{moment} {raised} after")
    monkeypatch.undo()
    assert isinstance(done, outcomes.Published)
    assert asked
    assert isinstance(fleet.store, SQLiteStore)
    assert not fleet.store._engine.wal.trouble


def test_what_the_disk_did_not_confirm_is_asked_again_before_a_read_is_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = Signals(fleet, RAISED["an alarm"][1])
    sync, asked = wal._sync, list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(wal, "_sync", signals.after(lambda _: None))
        with pytest.raises(TimeoutError, match="too long"):
            fleet.tasks.publish("build")
    signals.close()
    monkeypatch.setattr(wal, "_sync", counted(sync, asked))
    assert fleet.tasks.show("build").state == "pending"
    assert asked


@for_each("how", ["release", "block"])
def test_a_release_that_is_interrupted_raises_and_is_carried_out(
    how: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = fleet.lock("merge")
    lock = held.__enter__()
    signals = Signals(fleet, _send)
    with monkeypatch.context() as patched:
        patched.setattr(wal, "_sync", signals.after(wal._sync))
        with pytest.raises(StoreInUse):
            lock.release() if how == "release" else held.__exit__(None, None, None)
    signals.close()
    until(lambda: fleet.locks.show("merge").state == "free")


@for_each("point", ["_send", "_recv"])
def test_it_leaves_a_call_of_redis_and_ends_the_connection(
    point: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interlock.connect(redis_url, agent="ada") as fleet:
        fleet.tasks.publish("first")
        assert isinstance(fleet.store, RedisStore)
        signals = Signals(fleet, RAISED["an alarm"][1])
        connection = fleet.store.transport._idle[-1]
        monkeypatch.setattr(connection, point, signals.after(getattr(connection, point)))
        with pytest.raises(TimeoutError, match="too long"):
            fleet.tasks.publish("build")
        signals.close()
        assert connection.sock.fileno() < 0, "its answer would be taken for that of another call"
        assert isinstance(fleet.tasks.publish(f"after {point}"), outcomes.Published)
        assert not fleet.trouble
