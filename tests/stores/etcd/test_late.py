"""A request that arrives when the void that kept it out is long forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stores.etcd.etcds import opened

from interlock.store import LOG, Log, Put, Txn, void
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import TXN
from interlock.testing.conformance.place import committed, txn, write
from interlock.testing.servers import EtcdServer

_numbers = itertools.count(1)


@pytest.fixture
def url(etcd_server: EtcdServer) -> str:
    """The server that all tests share: only the log of a namespace is trimmed here."""
    return etcd_server.url(f"late{next(_numbers)}")


@pytest.fixture
def second(url: str) -> Iterator[EtcdStore]:
    """Another client, opened after the first."""
    second = opened(url)
    yield second
    second.close()


def _request(store: EtcdStore, late: Txn) -> rpc.TxnRequest:
    """What this store sends for it now."""
    commits = store._commits
    return commits._requests.request(late, late.puts, {}, 0, None, known=commits.trimmed)


def test_a_request_that_is_older_than_the_last_trimming_has_no_effect(store: EtcdStore) -> None:
    late = txn(Put("a", b"1"))
    request = _request(store, late)
    last = committed(store.commit(void(late.id))).revision
    assert store.trim(last) == 1
    assert store.read(LOG + late.id)[LOG + late.id] is None, "trimmed by now"
    assert not store.transport.call((TXN, request)).succeeded
    assert store.read("a")["a"] is None


def test_who_knows_of_no_trimming_learns_of_it_and_commits(
    store: EtcdStore, second: EtcdStore
) -> None:
    store.trim(write(store, Put("a", b"1")))
    write(second, Put("a", b"2"))
    write(store, Put("a", b"3"))
    item = second.read("a")["a"]
    assert item is not None
    assert item.value == b"3"
    log = Log()
    assert len(store.read(log).ranges[log]) == 2


def test_a_trimming_that_another_thread_learns_of_first_is_no_conflict(
    store: EtcdStore, second: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.trim(write(second, Put("a", b"1")))
    write(second, Put("a", b"2"))
    commits, made = store._commits, store._commits._requests.request

    def overtaken(*words: Any, **more: Any) -> rpc.TxnRequest:
        request = made(*words, **more)
        commits.trimmed = second._commits.trimmed
        return request

    monkeypatch.setattr(commits._requests, "request", overtaken)
    assert commits.trimmed < second._commits.trimmed
    committed(store.commit(void("txn_1")))
