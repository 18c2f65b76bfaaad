"""A new message comes with what its commit wrote, if that is as good as a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from tests.processes.helpers import until_asleep
from tests.stores.redis.conftest import Take

import interlock
from interlock.store import Change, Put, Ref, Watch
from interlock.stores.redis import RedisStore, scripts, watch
from interlock.testing.conformance.place import write

MESSAGE = (Put("unread/ada/m", b"{}"), Put("messages/m", b'{"data":1}'), Put("live/x", b"", 9.0))
FOLDER = "unread/ada/"
SECONDS = 5.0
HOUR = 3600 * 1_000_000


@pytest.fixture
def other(redis_url: str, opened: Callable[[str], RedisStore]) -> RedisStore:
    """A store object as of another process."""
    return opened(redis_url)


@contextmanager
def waiting(store: RedisStore, taking: Callable[[Watch], Take]) -> Iterator[Take]:
    """A watch that has looked into the log, and listens."""
    watching = store.watch((FOLDER, "topics/"), store.read("").revision)
    take = taking(watching)
    assert take(0.01) == []
    try:
        yield take
    finally:
        take(0.0)
        watching.close()


def slept(take: Take, act: Callable[[], object]) -> Change:
    """The change of an act that comes while the watch sleeps."""
    sleeping = threading.current_thread()

    def later() -> None:
        until_asleep(sleeping)
        act()

    acting = threading.Thread(target=later)
    acting.start()
    (found,) = take(SECONDS)
    acting.join()
    assert isinstance(found, Change)
    return found


def test_a_watch_that_sleeps_gets_what_the_commit_wrote(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    with waiting(store, taking) as take:
        change = slept(take, lambda: write(other, *MESSAGE))
        assert change.key == "unread/ada/m"
        assert [(item.key, item.value) for item in change.written] == [
            ("unread/ada/m", b"{}"),
            ("messages/m", b'{"data":1}'),
        ]
        assert {item.revision for item in change.written} == {change.revision}
        topic = slept(take, lambda: write(other, Put("topics/a b/n", b"1\r\n2")))
        assert [(item.key, item.value) for item in topic.written] == [("topics/a b/n", b"1\r\n2")]


def test_a_watch_that_did_not_sleep_reads(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    with waiting(store, taking) as take:
        write(other, *MESSAGE)
        other.read("a")  # answered after that was published, so it is at hand
        (change,) = take(SECONDS)
        assert isinstance(change, Change)
        assert change.written == ()


def test_a_watch_whose_process_has_committed_since_reads(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    revision = write(store, Put("a", b""))
    assert store.committed == revision
    with waiting(store, taking) as take:
        store.committed += HOUR  # as if it had committed while the message was on its way
        assert slept(take, lambda: write(other, *MESSAGE)).written == ()


def test_a_message_from_before_the_sleep_is_read(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    """Another receiver may have acknowledged it before this one began to wait."""
    with waiting(store, taking) as take:
        later = int(time.time() * 1_000_000) + HOUR
        with mock.patch.object(store.transport, "earliest", return_value=later):
            assert slept(take, lambda: write(other, *MESSAGE)).written == ()


def test_a_watch_that_slept_for_too_long_reads(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    """As in a process that was suspended."""
    moments = iter([0.0, SECONDS + 1.0])
    with waiting(store, taking) as take:
        clock = mock.Mock(side_effect=lambda: next(moments, 0.0))
        with (
            mock.patch.object(watch, "boot_time", clock),
            mock.patch("interlock.stores.redis.async_connections.boot_time", clock),
        ):
            assert slept(take, lambda: write(other, *MESSAGE)).written == ()


def test_long_values_are_left_out(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    long = Put("messages/m", b"x" * 5000)
    with waiting(store, taking) as take:
        assert slept(take, lambda: write(other, MESSAGE[0], long)).written == ()


def test_other_folders_are_told_no_values(
    store: RedisStore, other: RedisStore, taking: Callable[[Watch], Take]
) -> None:
    watching = store.watch("messages/", store.read("").revision)
    take = taking(watching)
    assert take(0.01) == []
    assert slept(take, lambda: write(other, *MESSAGE)).written == ()
    watching.close()


def test_a_client_that_knows_no_values_skips_them() -> None:
    """As older versions parse a payload: the value follows no entry, so it is none of a scope."""
    payload = b'13:+unread/ada/m20:"12:unread/ada/m{}xy'
    assert scripts.changes((FOLDER,), 7, payload) == [Change(7, "unread/ada/m")]
    (change,) = scripts.changes((FOLDER,), 7, payload, written=True)
    assert [(item.key, item.value) for item in change.written] == [("unread/ada/m", b"{}xy")]


@pytest.mark.parametrize("kind", ["alert", "share"])
def test_a_receiver_that_waits_reads_nothing(redis_url: str, kind: str) -> None:
    reads, found = list[object](), list[object]()
    waits = threading.Event()
    with (
        interlock.connect(redis_url, agent="ada") as ada,
        interlock.connect(redis_url, agent="bob") as bob,
    ):
        ada.messages.subscribe("build")
        read = RedisStore._read

        def counted(self: RedisStore, refs: tuple[Ref, ...], **more: Any) -> Any:
            if self is ada.store and waits.is_set():
                reads.append(refs)
            return read(self, refs, **more)

        def receive() -> None:
            for message in ada.messages.recv():
                found.append((message.data, tuple(reads)))
                break

        with mock.patch.object(RedisStore, "_read", counted):
            receiving = threading.Thread(target=receive)
            receiving.start()
            until_asleep(receiving)
            waits.set()
            if kind == "alert":
                bob.messages.alert("build", {"ok": True})
            else:
                bob.messages.share("ada", "build", {"ok": True})
            receiving.join()
    assert found == [({"ok": True}, ())]
