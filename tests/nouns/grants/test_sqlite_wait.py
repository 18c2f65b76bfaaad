"""A wait on SQLite: its grant comes with the datagram, and nothing is read that is known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock import Fleet
from interlock.core import codec
from interlock.core.decision import Proof
from interlock.nouns.grants.lock import LockAcquired, LockFenced
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.grants.pool_wait import decode_grants
from interlock.store import Item
from interlock.stores.sqlite import SQLiteStore, notify
from interlock.stores.sqlite import watch as watch_module


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def ada(url: str) -> Iterator[Fleet]:
    with interlock.connect(url, agent="ada") as fleet:
        yield fleet


@pytest.fixture
def bob(url: str) -> Iterator[Fleet]:
    with interlock.connect(url, agent="bob") as fleet:
        yield fleet


def waits(fleet: Fleet, name: str = "merge", **terms: Any) -> tuple[threading.Thread, list[Any]]:
    """Queue in a thread; returns when the wait is committed."""
    found: list[Any] = []

    def acquire() -> None:
        found.append(fleet.locks.acquire(name, wait=60, **terms))

    before = len(fleet.locks.show(name).waiters)
    thread = threading.Thread(target=acquire, daemon=True)
    thread.start()
    until(lambda: len(fleet.locks.show(name).waiters) > before)
    return thread, found


def handed_over(ada: Fleet, bob: Fleet, **terms: Any) -> LockAcquired:
    """The lock goes from ada to bob, who waits for it."""
    held = ada.locks.acquire("merge")
    assert isinstance(held, LockAcquired)
    thread, found = waits(bob, **terms)
    ada.locks.release("merge", token=held.token)
    thread.join(30)
    (got,) = found
    assert isinstance(got, LockAcquired)
    assert got.token == ada.locks.show("merge").token
    assert bob.locks.release("merge", token=got.token)
    return got


def store_of(fleet: Fleet) -> SQLiteStore:
    store = fleet.store
    assert isinstance(store, SQLiteStore)
    return store


@pytest.fixture
def reads(bob: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the waiter reads in its own thread, of the store or of the log."""
    found: list[tuple[Any, ...]] = []
    store, main = store_of(bob), threading.current_thread()
    read, later = store.read, store._feed._later

    def reading(*refs: Any, **how: Any) -> Any:
        if threading.current_thread() not in (main, *_keepers()):
            found.append(refs)
        return read(*refs, **how)

    def later_rows(revision: int) -> Any:
        found.append((revision,))
        return later(revision)

    monkeypatch.setattr(store, "read", reading)
    monkeypatch.setattr(store._feed, "_later", later_rows)
    return found


def _keepers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("interlock")]


def test_a_waiter_that_waited_before_reads_nothing_beside_its_commit(
    ada: Fleet, bob: Fleet, reads: list[tuple[Any, ...]]
) -> None:
    handed_over(ada, bob)
    reads.clear()
    handed_over(ada, bob)
    assert reads == []


def test_a_waiter_whose_holder_waits_reads_on_from_there(
    ada: Fleet, bob: Fleet, reads: list[tuple[Any, ...]]
) -> None:
    handed_over(ada, bob)
    other = bob.locks.acquire("other")
    assert isinstance(other, LockAcquired)

    def hold_and_wait() -> None:
        with ada.lock("merge"), ada.lock("other"):
            pass

    holder = threading.Thread(target=hold_and_wait, daemon=True)
    holder.start()
    until(lambda: bool(ada.locks.show("other").waiters))
    reads.clear()
    thread, found = waits(bob)
    until(lambda: ("locks/other",) in reads)
    bob.locks.release("other", token=other.token)
    thread.join(30)
    assert isinstance(found[0], LockAcquired)


def test_an_old_datagram_makes_the_waiter_read(
    ada: Fleet, bob: Fleet, reads: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "FRESH", 0)
    handed_over(ada, bob)
    assert any("locks/merge" in refs for refs in reads)


def test_a_long_queue_makes_the_waiter_read(
    ada: Fleet, bob: Fleet, reads: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LONGEST_VALUES", 10)
    handed_over(ada, bob)
    assert any("locks/merge" in refs for refs in reads)


def test_a_grant_with_a_ttl_or_a_limit_is_handed_over(ada: Fleet, bob: Fleet) -> None:
    assert handed_over(ada, bob, ttl=60).expires_in == 60
    left = handed_over(ada, bob, max_hold=60).expires_in
    assert left is not None
    assert 0 < left <= 60


def test_a_grant_is_refused_if_a_given_one_is_over(ada: Fleet, bob: Fleet) -> None:
    other, held = bob.locks.acquire("other"), ada.locks.acquire("merge")
    assert isinstance(other, LockAcquired)
    assert isinstance(held, LockAcquired)
    proof = Proof(thing="lock/other", grant=other.grant, token=other.token or 0)
    thread, found = waits(bob, given=[proof])
    ada.locks.break_("other", "test")
    ada.locks.release("merge", token=held.token)
    thread.join(30)
    assert isinstance(found[0], LockFenced)
    assert ada.locks.show("merge").state == "free"


def test_a_pool_without_its_waiters_has_the_same_grants() -> None:
    def grant(name: str, token: int | None) -> Grant:
        return Grant(id=name, agent="ada", session="s", live=("live/s",), since=1.0, token=token)

    waiter = Waiter(id="grt_3", agent="eve", session="t", live="live/t", since=2.0)
    pool = Pool((grant("grt_1", 4), grant("grt_2", None)), (waiter,), 3)
    item = Item("semaphores/builds", codec.encode(pool), 7, 5)
    whole = decode_pool(item, 10)
    assert whole is not None
    assert decode_grants(item, 10) == Pool(whole.grants, (), whole.capacity)
