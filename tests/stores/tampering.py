"""The hand of somebody who can write to an engine, and knows how Interlock keeps its log there."""

from __future__ import annotations

from typing import Any, Protocol

import apsw
import msgspec
from msgspec import Struct

from interlock.core import codec
from interlock.steps import drive
from interlock.store import LOG, Item, Log, Store
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import TXN
from interlock.stores.etcd.encoding import wrapped
from interlock.stores.redis import RedisStore
from interlock.stores.redis.scripts import Argument, pack
from interlock.stores.sqlite import SQLiteStore


class Row(Struct):
    """One entry, as it stands in the log of an engine."""

    revision: int
    id: str
    value: bytes
    hash: str

    def edit(self) -> None:
        """Say that somebody else did it, and mend the hash."""
        entry = msgspec.json.decode(self.value)
        self.value = codec.encode(entry | {"agent": "mallory"})
        self.hash = codec.digest(self.value)


def rewritten(log: list[Row]) -> list[Row]:
    """The log with another name in its first entry, and with every hash and link mended."""
    hashes: dict[str, str] = {}
    for number, row in enumerate(log):
        before = row.hash
        text = row.value.decode()
        for old, new in hashes.items():
            text = text.replace(old, new)
        row.value = text.encode()
        row.hash = codec.digest(row.value)
        if not number:
            row.edit()
        hashes[before] = row.hash
    return log


class Hand(Protocol):
    """Writes what it likes."""

    def save(self, log: list[Row]) -> None:
        """Let the log be this."""

    def put(self, item: Item) -> None:
        """Let an item be this, with the same stamp."""


def rows(store: Store) -> list[Row]:
    ref = Log(limit=1000)
    found = store.read(ref).ranges[ref]
    return [Row(i.revision, i.key.removeprefix(LOG), i.value, i.hash) for i in found]


def hand(store: Store) -> Hand:
    match store:
        case SQLiteStore():
            return SQLiteHand(store)
        case RedisStore():
            return RedisHand(store)
        case EtcdStore():
            return EtcdHand(store)
        case _:
            raise AssertionError(store)


class SQLiteHand:
    def __init__(self, store: SQLiteStore) -> None:
        self._path = store.path

    def save(self, log: list[Row]) -> None:
        with apsw.Connection(self._path) as db:
            db.execute("DELETE FROM log")
            for row in log:
                values = (row.revision, row.id, row.value, row.hash)
                db.execute("INSERT INTO log VALUES (?, ?, ?, ?, '')", values)

    def put(self, item: Item) -> None:
        with apsw.Connection(self._path) as db:
            db.execute("UPDATE item SET value=? WHERE key=?", (item.value, item.key))


class RedisHand:
    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def save(self, log: list[Row]) -> None:
        stream, ids = self._store.keys["log"], self._store.keys["ids"]
        self._ask("DEL", stream, ids)
        for row in log:
            fields = ("i", row.id, "e", row.value, "h", row.hash, "t", "")
            self._ask("XADD", stream, f"{row.revision}-0", *fields)
            self._ask("HSET", ids, row.id, str(row.revision))

    def put(self, item: Item) -> None:
        stamp = f"{item.revision} {item.created} 0 {item.entry} {item.hash} ".encode()
        self._ask("HSET", self._store.keys["items"], item.key, stamp + item.value)

    def _ask(self, *words: Argument) -> Any:
        return self._store.transport.call(pack(words))


class EtcdHand:
    """etcd numbers what is written by itself: an entry that is put anew has another revision."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store

    def save(self, log: list[Row]) -> None:
        before = {row.id: row for row in rows(self._store)}
        for id_ in before.keys() - {row.id for row in log}:
            key = self._store.namespace.key(LOG + id_)
            self._do(rpc.RequestOp(delete_range=rpc.DeleteRangeRequest(key=key)))
        for row in log:
            if row.id not in before or before[row.id].value != row.value:
                self._put(LOG + row.id, row.value, row.id, row.hash)

    def put(self, item: Item) -> None:
        self._put(item.key, item.value, item.entry, item.hash)

    def _put(self, key: str, value: bytes, entry: str, hash_: str) -> None:
        kept = wrapped(value, entry, hash_, quiet=False)
        self._do(rpc.RequestOp(put=rpc.PutRequest(key=self._store.namespace.key(key), value=kept)))

    def _do(self, operation: rpc.RequestOp) -> None:
        drive(
            self._store.request_with_retries((TXN, rpc.TxnRequest(success=[operation]))),
            self._store.transport,
        )
