"""Facts and findings for people: ``interlock doctor`` and ``interlock store info``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from interlock.drivers import Op
from interlock.store import Finding
from interlock.stores.redis.scripts import pack
from interlock.stores.redis.server import FORMAT, ServerFacts, facts

if TYPE_CHECKING:
    from interlock.stores.redis.store import RedisStore

_MEANING = {
    "": "nothing survives a restart of the server (appendonly no)",
    "everysec": "the last seconds may be lost with the server (appendfsync everysec)",
    "no": "what the system has not written is lost with the machine (appendfsync no)",
    "always": "an acknowledged commit is on disk (appendfsync always)",
}
_FULL = 0.8
_CLOCK = 5.0
_SLOW = 0.05


def info(store: RedisStore) -> Op[dict[str, object]]:
    """Facts: place, size, versions."""
    told = facts((yield from store.asked(pack(("INFO",)))))
    sizes = yield from _sizes(store)
    grade = _grade(store)
    most = int(told.get("maxmemory", "0"))
    return {
        "engine": "redis",
        "server": f"{grade.product} {grade.version}",
        "where": store.where,
        "namespace": store.namespace,
        "durability": grade.durability,
        "means": _MEANING[grade.fsync],
        "format": FORMAT,
        **sizes,
        "memory_bytes": int(told.get("used_memory", "0")),
        "memory_max_bytes": most or None,
        "replicas": int(told.get("connected_slaves", "0")),
    }


def findings(store: RedisStore) -> Op[list[Finding]]:
    """What is well and what is not with the server."""
    sent = time.monotonic()
    yield from store.asked(pack(("PING",)))
    took = time.monotonic() - sent
    told = facts((yield from store.asked(pack(("INFO",)))))
    clock = yield from store.asked(pack(("TIME",)))
    ahead = int(clock[0]) + int(clock[1]) / 1_000_000 - time.time()
    sizes = yield from _sizes(store)
    grade = _grade(store)
    return [
        Finding(verdict="ok", name="version", fact=f"{grade.product} {grade.version}"),
        _reach(took),
        _durable(grade),
        _eviction(told),
        _memory(told),
        _disk(told),
        _replicas(told),
        _log(int(str(sizes["entries"])), store.bound),
        _ahead(ahead),
    ]


def _grade(store: RedisStore) -> ServerFacts:
    assert store.grade is not None, "it has just answered"  # noqa: S101
    return store.grade


def _sizes(store: RedisStore) -> Op[dict[str, object]]:
    keys = store.keys
    told: Any = yield from store.asked(pack(("HMGET", keys["meta"], "rev", "trimmed")))
    revision, trimmed = (int(each or 0) for each in told)
    items: Any = yield from store.asked(pack(("HLEN", keys["items"])))
    entries: Any = yield from store.asked(pack(("XLEN", keys["log"])))
    sizes = {"revision": revision, "items": items, "entries": entries}
    return sizes | {"trimmed": trimmed or None}


def _reach(took: float) -> Finding:
    return Finding(
        verdict="ok" if took < _SLOW else "warn",
        name="reachable",
        fact=f"answers in {took * 1000:.1f} ms",
        remedy="" if took < _SLOW else "bring the server closer, or see what keeps it busy",
    )


def _durable(grade: ServerFacts) -> Finding:
    good = grade.durability == "power loss"
    return Finding(
        verdict="ok" if good else "warn",
        name="durability",
        fact=_MEANING[grade.fsync],
        remedy="" if good else "set: appendonly yes, appendfsync always",
    )


def _eviction(told: dict[str, str]) -> Finding:
    policy = told.get("maxmemory_policy", "noeviction")
    good = policy == "noeviction"
    return Finding(
        verdict="ok" if good else "bad",
        name="eviction",
        fact=f"maxmemory-policy {policy}",
        remedy="" if good else "set: maxmemory-policy noeviction",
    )


def _memory(told: dict[str, str]) -> Finding:
    used, most = int(told.get("used_memory", "0")), int(told.get("maxmemory", "0"))
    if not most:
        return Finding(verdict="ok", name="memory", fact=f"{used >> 20} MiB used, no limit")
    tight = used > most * _FULL
    return Finding(
        verdict="warn" if tight else "ok",
        name="memory",
        fact=f"{used >> 20} of {most >> 20} MiB used",
        remedy="raise maxmemory: a full server begins nothing new" if tight else "",
    )


def _disk(told: dict[str, str]) -> Finding:
    names = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")
    bad = [name for name in names if told.get(name, "ok") != "ok"]
    return Finding(
        verdict="bad" if bad else "ok",
        name="disk",
        fact=f"failed: {', '.join(bad)}" if bad else "the last writes went well",
        remedy="make room on the server's disk, and see its log" if bad else "",
    )


def _replicas(told: dict[str, str]) -> Finding:
    count = int(told.get("connected_slaves", "0"))
    if not count:
        return Finding(verdict="ok", name="replicas", fact="none: no failover")
    return Finding(
        verdict="warn",
        name="replicas",
        fact=f"{count}: a failover may forget what was acknowledged last",
        remedy="set min-replicas-to-write, and keep their clocks together: tokens follow them",
    )


def _log(entries: int, bound: int) -> Finding:
    return Finding(
        verdict="ok",
        name="log",
        fact=f"{entries} entries; trimmed above {bound} (?log= in the URL)",
    )


def _ahead(seconds: float) -> Finding:
    good = abs(seconds) < _CLOCK
    return Finding(
        verdict="ok" if good else "warn",
        name="server clock",
        fact=f"the server is {abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'}",
        remedy="" if good else "synchronise the clocks: times in the record come from clients",
    )
