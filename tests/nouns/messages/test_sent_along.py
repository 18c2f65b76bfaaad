"""Messages that an engine sends with their changes: nothing is read, and nothing is overlooked."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock.core import keys
from interlock.nouns.messages.inbox_reader import sent_along
from interlock.store import Change, Item
from interlock.stores.sqlite import SQLiteStore

MARK, BODY = keys.unread("bob", "msg_1"), keys.message("msg_1")


def item(key: str) -> Item:
    return Item(key, b"{}", 7, 0)


@pytest.mark.parametrize("kind", ["share", "alert"])
def test_a_receiver_that_waits_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    url, found, reads = f"sqlite:///{tmp_path}/store.db", list[Any](), list[Any]()
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        bob.messages.subscribe("build")
        store = bob.store
        assert isinstance(store, SQLiteStore)
        receiver = bob.messages.recv(timeout=60)
        thread = threading.Thread(target=lambda: found.extend(receiver.take()), daemon=True)
        thread.start()
        until(lambda: any(each.asked < math.inf for each in store._feed._index.watches))
        until(lambda: store._feed._listener is not None)
        read = store.read

        def reading(*refs: Any, **how: Any) -> Any:
            if threading.current_thread() is thread:
                reads.append(refs)
            return read(*refs, **how)

        monkeypatch.setattr(store, "read", reading)
        if kind == "share":
            ada.messages.share("bob", "build", 1)
        else:
            ada.messages.alert("build", 1)
        thread.join(30)
        assert [each.data for each in found] == [1]
        assert reads == []


def test_only_what_is_complete_is_used() -> None:
    told = Change(7, MARK, written=(item(MARK), item(BODY)))
    assert sent_along([told]) == {key: Item(key, b"{}", 7, 7) for key in (MARK, BODY)}
    assert sent_along([told, Change(8, keys.unread("bob", "msg_2"))]) is None
    assert sent_along([Change(7, MARK, written=(item(MARK),))]) is None


def test_a_question_is_read() -> None:
    """How long it may be answered is not sent along."""
    mark, query = keys.unread("bob", "qry_1"), keys.message("qry_1")
    assert sent_along([Change(7, mark, written=(item(mark), item(query)))]) is None
