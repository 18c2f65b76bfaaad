"""A new message wakes its only receiver while both wait for the disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from tests.stores.sqlite.test_notices import changes_of, in_a_moment, wrote
from tests.stores.sqlite.test_notify import PATIENCE, names

from interlock.errors import InterlockError, OutcomeUnknown, StoreAway
from interlock.store import Change, Resync
from interlock.stores.sqlite import SQLiteStore, connection
from interlock.stores.sqlite import watch as watch_module
from interlock.stores.sqlite.watch import SQLiteWatch

SENDER = "sender"


class Disk:
    """The calls that make the log durable, by thread; those of the sender do as they are told."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.act: Callable[[], None] = lambda: None
        self.refuses = False
        self._sync = connection._sync

    def sync(self, fd: int) -> None:
        thread = threading.current_thread().name
        if thread == SENDER:
            self.act()
        elif self.refuses:
            raise OSError(5, "Input/output error")
        self.synced.append(thread)
        self._sync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(connection, "_sync", disk.sync)
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)
    return disk


@pytest.fixture
def other(store: SQLiteStore) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(store.path)) as another:
        yield another


@pytest.fixture
def watch(store: SQLiteStore, other: SQLiteStore, disk: Disk) -> SQLiteWatch:
    """A watch that has asked for early notices, and a sender that knows it."""
    watch = store.watch(("unread/", "k/"), store.read().revision)
    in_a_moment(lambda: wrote(other, "unread/first"), watch)
    assert keys(watch.take(PATIENCE)) == ["unread/first"]
    disk.synced.clear()
    return watch


def keys(found: list[Change | Resync]) -> list[str]:
    return [each.key for each in changes_of(found)]


class Sending:
    """An act in the thread of a sender, when a ``take`` waits; an error is its own."""

    def __init__(self, act: Callable[[], object], watch: SQLiteWatch) -> None:
        self._act = act
        self._thread = threading.Thread(target=self._run, name=SENDER)
        in_a_moment(self._thread.start, watch)

    def _run(self) -> None:
        with suppress(InterlockError, KeyboardInterrupt):
            self._act()

    def end(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE)


def test_a_receiver_wakes_before_the_disk_of_the_sender_and_waits_for_its_own(
    watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    goes_on = threading.Event()

    def wait() -> None:
        goes_on.wait(PATIENCE)

    disk.act = wait
    sending = Sending(lambda: wrote(other, "unread/a", "messages/a"), watch)
    (change,) = changes_of(watch.take(PATIENCE))
    assert disk.synced == ["MainThread"], "durable, although the sender still waits"
    assert [item.key for item in change.written] == ["unread/a", "messages/a"]
    goes_on.set()
    sending.end()
    assert disk.synced == ["MainThread", SENDER]
    assert watch.take(0.0) == [], "it is not notified again"


def test_a_sender_that_is_interrupted_before_the_disk_has_sent(
    watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    def interrupt() -> None:
        disk.act = lambda: None
        raise KeyboardInterrupt

    disk.act = interrupt
    sending = Sending(lambda: wrote(other, "unread/a"), watch)
    assert keys(watch.take(PATIENCE)) == ["unread/a"]
    assert disk.synced == ["MainThread"]
    sending.end()
    in_a_moment(lambda: wrote(other, "unread/b"), watch)
    assert keys(watch.take(PATIENCE)) == ["unread/b"], "and no message comes twice"


def test_a_sender_whose_disk_refuses_does_not_know_and_the_receiver_gets_it_once(
    watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    outcomes: list[type[Exception]] = []

    def refuse() -> None:
        raise OSError(5, "Input/output error")

    def send() -> None:
        try:
            wrote(other, "unread/a")
        except InterlockError as error:
            outcomes.append(type(error))

    disk.act = refuse
    sending = Sending(send, watch)
    assert keys(watch.take(PATIENCE)) == ["unread/a"]
    sending.end()
    assert outcomes == [OutcomeUnknown]
    assert watch.take(0.0) == []


def test_a_receiver_whose_disk_refuses_reads_and_commits_no_more(
    store: SQLiteStore, watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    disk.refuses = True
    sending = Sending(lambda: wrote(other, "unread/a"), watch)
    (change,) = changes_of(watch.take(PATIENCE))
    sending.end()
    assert change.written == ()
    with pytest.raises(StoreAway, match="could not be made durable"):
        wrote(store, "k/a")


def test_several_receivers_are_notified_after_the_disk(
    watch: SQLiteWatch, store: SQLiteStore, other: SQLiteStore, disk: Disk
) -> None:
    with closing(SQLiteStore(store.path)) as third:
        beside = third.watch("unread/", third.read().revision)
        disk.act = lambda: time.sleep(0.1)
        sending = Sending(lambda: wrote(other, "unread/a"), watch)
        assert keys(watch.take(PATIENCE)) == ["unread/a"]
        assert disk.synced == [SENDER]
        assert keys(beside.take(PATIENCE)) == ["unread/a"]
        sending.end()
    assert disk.synced == [SENDER]


def test_other_changes_are_notified_after_the_disk(
    watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    sending = Sending(lambda: wrote(other, "k/a"), watch)
    assert keys(watch.take(PATIENCE)) == ["k/a"]
    sending.end()
    assert disk.synced == [SENDER]


def test_many_datagrams_at_once_are_read_after_the_disk(
    watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    for number in range(6):
        wrote(other, f"unread/{number}")
    disk.synced.clear()
    assert len(watch.take(PATIENCE)) == 6
    assert disk.synced == ["MainThread"]


def test_an_event_loop_does_not_ask_for_early_notices(
    store: SQLiteStore, watch: SQLiteWatch, other: SQLiteStore, disk: Disk
) -> None:
    def asks() -> bool:
        return any(name.endswith("=early\\") for name in names(store.path))

    async def take() -> list[str]:
        asyncio.get_running_loop().call_later(0.1, wrote, other, "unread/b")
        return keys(await watch.take_async(PATIENCE))

    assert asks()
    assert asyncio.run(take()) == ["unread/b"]
    assert not asks()
    assert disk.synced == ["MainThread"], "of the sender, which is this thread, too"


def test_the_mark_goes_with_its_process(store: SQLiteStore, watch: SQLiteWatch) -> None:
    watch.close()
    store.close()
    assert names(store.path) == set()
