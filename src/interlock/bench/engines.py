"""Which engine is measured; its client is imported only then."""

from __future__ import annotations

from interlock.bench.engine import Engine, NetworkEngine
from interlock.stores import file_of
from interlock.stores.address import parse


def local(url: str | None) -> Engine:
    """SQLite, on the disk of the file or folder that is named."""
    from interlock.bench.sqlite import SQLiteEngine

    return SQLiteEngine(None if url is None else file_of(url))


def network(url: str, purpose: str = "bench") -> NetworkEngine:
    """The engine across a network that a URL names; what it makes there says for what."""
    if parse(url).engine == "redis":
        from interlock.bench.redis import RedisEngine

        return RedisEngine(url, purpose)
    from interlock.bench.etcd import EtcdEngine

    return EtcdEngine(url, purpose)
