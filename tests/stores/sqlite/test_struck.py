"""An exception that strikes in the midst of a call (Ctrl-C) leaves a store object that works."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.stores.sqlite.store_programs import increase, put

from interlock.store import Committed
from interlock.stores.sqlite import SQLiteStore
from interlock.stores.sqlite.writer import WriteQueue

PACKAGE = "interlock/stores/sqlite/"


class Struck(BaseException):
    """As KeyboardInterrupt."""


def strike(call: Callable[[], object], moment: int) -> bool:
    """Have an exception strike as the given call of a function returns; False if there are fewer.

    That is when Python looks for signals: as calls return, and as functions begin.
    """
    left = [moment]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event not in {"call", "c_return"} or PACKAGE not in frame.f_code.co_filename:
            return
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            raise Struck

    sys.setprofile(watch)
    try:
        call()
    except Struck:
        return True
    finally:
        sys.setprofile(None)
    return False


def works(store: SQLiteStore) -> bool:
    """Whether it reads and writes, and keeps nobody else out."""
    before = store.read("k/after")["k/after"]
    answer = store.transact(lambda _: put("k/after"))
    found = store.read("k/after")["k/after"]
    other = WriteQueue(store.path + "-bells")
    free = other.try_enter()
    other.close()
    return isinstance(answer, Committed) and found is not None and found != before and free


def moments(store: SQLiteStore, call: Callable[[], object]) -> int:
    """Strike at one moment after the other until the call comes to its end; how many there were."""
    for moment in range(1, 2000):
        struck = strike(call, moment)
        other = WriteQueue(store.path + "-bells")
        assert other.try_enter(), f"struck at {moment}, it keeps the turn"
        other.close()
        assert works(store), f"struck at {moment}"
        if not struck:
            return moment
    raise AssertionError("it has no end")


@pytest.fixture
def quick(path: str) -> SQLiteStore:
    return SQLiteStore(path, patience=2.0)


def test_a_commit_may_be_struck_at_any_moment(quick: SQLiteStore) -> None:
    assert moments(quick, lambda: quick.transact(increase)) > 20
    quick.close()


def test_a_read_may_be_struck_at_any_moment(quick: SQLiteStore) -> None:
    quick.transact(increase)
    assert moments(quick, lambda: quick.read("counter")) > 5
    quick.close()


def test_a_wait_for_changes_may_be_struck_at_any_moment(quick: SQLiteStore) -> None:
    watch = quick.watch("never/", 0)

    def look() -> None:
        watch.take(0.001)

    def another() -> None:
        done = threading.Event()

        def look_too() -> None:
            look()
            done.set()

        threading.Thread(target=look_too).start()
        assert done.wait(60)

    for moment in range(1, 2000):
        struck = strike(look, moment)
        another()
        assert quick._feed._listener is None
        if not struck:
            break
    assert moment > 5
    watch.close()
    quick.close()


def test_a_close_from_within_a_commit_leaves_the_connection_to_it(path: str) -> None:
    """As a handler of a signal does."""
    store = SQLiteStore(path)

    def work(_: object) -> None:
        store.close()

    store.transact(work)
    assert SQLiteStore(path).transact(increase) is not None
