"""Datagrams that say what a commit changed and wrote; the mark of a session that stays."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from tests.processes.helpers import until
from tests.stores.sqlite.test_notify import PATIENCE, names
from tests.system_faults import as_system_call

from interlock.errors import OutcomeUnknown, StoreAway
from interlock.store import Change, Committed, Item, Put, Resync, Txn
from interlock.stores.sqlite import SQLiteStore, notify
from interlock.stores.sqlite import watch as watch_module
from interlock.stores.sqlite.notify import Notifier
from interlock.stores.sqlite.watch import SQLiteWatch

ONE, TWO = "wake/session/ses_a/grt_1", "wake/session/ses_a/grt_2"


def txn(*signals: str, value: bytes = b"new") -> Txn:
    id_ = f"txn_{os.urandom(8).hex()}"
    puts = (Put("k/a", value), Put("live/a", b"", ttl=60.0))
    return Txn(id=id_, entry=b"{}", hash="0", puts=puts, signals=signals)


def signal(store: SQLiteStore, *signals: str, value: bytes = b"new") -> int:
    done = store.commit(txn(*signals, value=value))
    assert isinstance(done, Committed)
    return done.revision


def told(revision: int, key: str, value: bytes = b"new") -> Change:
    return Change(revision, key, written=(Item("k/a", value, revision, 0),))


@pytest.fixture
def other(store: SQLiteStore) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(store.path)) as another:
        yield another


@pytest.fixture
def waited(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> SQLiteStore:
    """A store with the mark of an earlier wait; from now on it reads no log, without a backstop."""
    watch = store.watch(ONE, store.read().revision)
    store.read()
    watch.close()
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)
    monkeypatch.setattr(store._feed, "_later", None)
    return store


def marks(store: SQLiteStore) -> list[str]:
    return sorted(name.partition("=")[2] for name in names(store.path) if "=" in name)


def test_the_mark_of_a_session_stays_for_the_next_wait(
    waited: SQLiteStore, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert marks(waited) == ["wake\\session\\ses_a\\"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", None)
        watch = waited.watch(TWO, waited._engine.seen)
    assert waited._feed.behind == ()
    revision = signal(other, TWO)
    assert watch.take(PATIENCE) == [told(revision, TWO)]
    watch.close()
    waited.close()
    assert marks(waited) == []


def test_a_signal_before_the_watch_is_found_in_the_socket(
    waited: SQLiteStore, other: SQLiteStore
) -> None:
    queued = signal(waited)
    revision = signal(other, TWO)
    watch = waited.watch(TWO, queued)
    assert watch.take(PATIENCE) == [told(revision, TWO)]


@pytest.mark.parametrize("plain", [False, True])
def test_a_signal_that_another_watch_received_is_found_in_the_log(
    store: SQLiteStore, other: SQLiteStore, plain: bool
) -> None:
    """It came after the commit that queues and before the watch: another thread had the socket."""
    first = store.watch(ONE, store.read().revision)
    store.read()
    queued = signal(store)
    scopes = ("k/", "wake/session/ses_a/") if plain else "other/"  # plain: with other changes
    beside = store.watch(scopes, queued)
    revision = signal(other, TWO)
    store._feed._listen(store._feed._socket, PATIENCE)
    second = store.watch(TWO, queued)
    assert [(each.revision, each.key) for each in changes(second)] == [(revision, TWO)]
    first.close()
    beside.close()


def changes(watch: SQLiteWatch) -> list[Change]:
    return changes_of(watch.take(0.0))


def changes_of(found: list[Change | Resync]) -> list[Change]:
    return [each for each in found if isinstance(each, Change)]


def test_a_mark_does_not_speak_for_a_commit_before_it(
    store: SQLiteStore, other: SQLiteStore
) -> None:
    """A commit queued, and was signalled, before another thread of its session made the mark."""
    queued = signal(store)
    revision = signal(other, TWO)
    first = store.watch(ONE, store.read().revision)
    store.read()
    second = store.watch(TWO, queued)
    assert [(each.revision, each.key) for each in changes(second)] == [(revision, TWO)]
    first.close()


def test_removed_marks_are_made_again(
    waited: SQLiteStore, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(watch_module, "BACKSTOP", 0.05)
    for name in names(waited.path):
        if "=" in name:
            os.unlink(f"{waited.path}-bells/{name}")
    watch = waited.watch(TWO, waited._engine.seen)
    revision = signal(other, TWO)
    assert watch.take(PATIENCE) == [Change(revision, TWO)], "without a datagram"
    assert marks(waited) == ["wake\\session\\ses_a\\"]
    assert watch.take(0.0) == []


def test_beyond_a_limit_no_mark_stays(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_KEPT", 2)
    for number in range(4):
        store.watch(f"wake/session/ses_{number}/grt", store.read().revision).close()
    assert len(marks(store)) == 2


def test_an_old_datagram_brings_no_items(
    waited: SQLiteStore, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was suspended finds it when its grant may be over."""
    monkeypatch.setattr(watch_module, "FRESH", 0)
    watch = waited.watch(TWO, waited._engine.seen)
    revision = signal(other, TWO)
    assert watch.take(PATIENCE) == [Change(revision, TWO)]


def test_a_replaced_store_brings_no_items(waited: SQLiteStore, other: SQLiteStore) -> None:
    watch = waited.watch(TWO, waited._engine.seen)
    revision = signal(other, TWO)
    os.rename(waited.path, waited.path + ".old")
    try:
        waited._feed._listen(waited._feed._socket, PATIENCE)
    finally:
        os.rename(waited.path + ".old", waited.path)
    assert watch.arrived == [Change(revision, TWO)]


def test_what_may_not_be_durable_is_not_passed_on(
    waited: SQLiteStore, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def refuse(_: int) -> None:
        raise StoreAway("Input/output error")

    def send(notifier: Notifier, name: str, datagram: bytes = notify.LOOK) -> bool:
        sent.append(datagram)
        return True

    watch = waited.watch(TWO, waited._engine.seen)
    monkeypatch.setattr(Notifier, "send", send)
    monkeypatch.setattr(other._engine.wal, "sync", as_system_call(refuse))
    with pytest.raises(OutcomeUnknown):
        other.transact(lambda _: txn(TWO))
    assert sent == [notify.LOOK]
    watch.close()


def test_long_values_are_read_by_the_waiter(waited: SQLiteStore, other: SQLiteStore) -> None:
    watch = waited.watch(TWO, waited._engine.seen)
    revision = signal(other, TWO, value=b"x" * notify.LONGEST_VALUES)
    assert watch.take(PATIENCE) == [Change(revision, TWO)]


def test_a_datagram_of_another_version_is_read_in_the_log(
    store: SQLiteStore, other: SQLiteStore
) -> None:
    watch = store.watch(TWO, store.read().revision)
    store.read()
    revision = signal(other, TWO)
    assert store._feed._socket is not None
    store._feed._socket.drain()
    with other._notifier.lock:
        other._notifier.send(store._feed._socket._name, f"{revision} {TWO}".encode())
    assert [(each.revision, each.key) for each in changes(watch)] == [(revision, TWO)]


def test_waits_of_many_threads_lose_no_signal(
    waited: SQLiteStore, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of one session queue, are signalled at any moment, and wait again."""
    monkeypatch.undo()
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)
    queue: list[str] = []
    failed: list[str] = []
    ready = threading.Semaphore(0)

    def late() -> int:
        failed.append("no datagram came, and no read was due")
        return -1

    monkeypatch.setattr(waited._feed, "_data_version", late)

    def wait(thread: int) -> None:
        for number in range(40):
            key = f"wake/session/ses_a/{thread}-{number}"
            queued = signal(waited)
            queue.append(key)
            ready.release()
            watch = waited.watch(key, queued)
            if not watch.take(PATIENCE):
                failed.append(key)
            watch.close()

    threads = [threading.Thread(target=wait, args=(each,), daemon=True) for each in range(4)]
    for thread in threads:
        thread.start()
    for number in range(160):
        assert ready.acquire(timeout=PATIENCE)
        if number % 3 == 0:
            time.sleep(0)  # another thread may open its watch before the signal
        signal(other, queue.pop(0))
    for thread in threads:
        thread.join(PATIENCE)
    assert failed == []


@pytest.fixture
def listening(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> SQLiteWatch:
    """A watch of a folder that is told what is written; from now on no log is read."""
    watch = store.watch(("unread/", "k/"), store.read().revision)
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)
    monkeypatch.setattr(store._feed, "_later", None)
    return watch


def wrote(store: SQLiteStore, *names: str) -> int:
    id_ = f"txn_{os.urandom(8).hex()}"
    puts = tuple([Put(name, b"new") for name in names])
    done = store.commit(Txn(id=id_, entry=b"{}", hash="0", puts=puts))
    assert isinstance(done, Committed)
    return done.revision


def in_a_moment(act: Callable[[], object], watch: SQLiteWatch) -> None:
    """Act when a ``take`` waits for this watch."""

    def later() -> None:
        until(lambda: watch.asked < math.inf and watch._feed._listener is not None)
        act()

    threading.Thread(target=later, daemon=True).start()


def test_a_take_that_waits_is_told_what_was_written(
    listening: SQLiteWatch, other: SQLiteStore
) -> None:
    in_a_moment(lambda: wrote(other, "unread/a", "messages/a"), listening)
    (change,) = listening.take(PATIENCE)
    assert isinstance(change, Change)
    assert [item.key for item in change.written] == ["unread/a", "messages/a"]
    in_a_moment(lambda: wrote(other, "k/a"), listening)
    (change,) = listening.take(PATIENCE)
    assert change == Change(change.revision, "k/a"), "its readers read by themselves"


def test_a_take_that_began_later_is_not_told(listening: SQLiteWatch, other: SQLiteStore) -> None:
    """What was done between the commit and the call must not be overlooked."""
    revision = wrote(other, "unread/a")
    assert listening.take(PATIENCE) == [Change(revision, "unread/a")]


def test_a_process_that_committed_since_is_not_told(
    store: SQLiteStore, listening: SQLiteWatch, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._feed, "_committed", lambda: 1000)
    in_a_moment(lambda: wrote(other, "unread/a"), listening)
    (change,) = listening.take(PATIENCE)
    assert change == Change(change.revision, "unread/a")


def test_own_commits_that_concern_no_watch_need_no_log(
    store: SQLiteStore, listening: SQLiteWatch, other: SQLiteStore
) -> None:
    for _ in range(3):
        wrote(store, "elsewhere/a")
        in_a_moment(lambda: wrote(other, "k/a"), listening)
        assert [each.key for each in changes_of(listening.take(PATIENCE))] == ["k/a"]


def test_a_commit_in_between_that_no_datagram_told_of_is_found_in_the_log(
    store: SQLiteStore, other: SQLiteStore
) -> None:
    watch = store.watch(("unread/", "k/"), store.read().revision)
    assert store._feed._socket is not None
    first = wrote(other, "k/a")
    store._feed._socket.drain()
    second = wrote(other, "k/b")
    found = watch.take(PATIENCE)
    assert found == [Change(first, "k/a"), Change(second, "k/b")]


def test_a_deletion_is_told_in_its_order(listening: SQLiteWatch, other: SQLiteStore) -> None:
    revision = wrote(other, "k/a")
    gone = other.commit(Txn(id="txn_gone", entry=b"{}", hash="0", deletes=("k/a", "k/none")))
    assert isinstance(gone, Committed)
    assert listening.take(PATIENCE) == [
        Change(revision, "k/a"),
        Change(gone.revision, "k/a", deleted=True),
    ]
