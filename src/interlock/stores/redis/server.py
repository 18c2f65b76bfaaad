"""What a server is, whether it is suitable, and what ``doctor`` and ``store info`` say of it.

A server may come back from a restart as something else: a replica, or one that evicts.  So each
new connection asks in its first exchange, and one to an unsuitable server is not used.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError
from msgspec import Struct

from interlock.errors import StoreReadOnly, StoreUnsuitable
from interlock.steps import Op
from interlock.store import FAILOVER, Durability, Finding, finding
from interlock.stores.address import Address
from interlock.stores.marks import mark_facts
from interlock.stores.network import Unsent
from interlock.stores.redis.errors import meaning, newer, no_redis
from interlock.stores.redis.scripts import Argument, pack

if TYPE_CHECKING:
    from interlock.stores.redis.store import RedisStore


OLDEST = (6, 2)
FORMAT = 2
NAME = "interlock"
_MEANING = {
    "": "nothing survives a restart of the server (appendonly no)",
    "everysec": "the last seconds may be lost with the server (appendfsync everysec)",
    "no": "what the system has not written is lost with the machine (appendfsync no)",
    "always": "an acknowledged commit is on disk (appendfsync always)",
}
_LOSS = "may lose the last acknowledged commits, in every grade of durability"
_FULL = 0.8
_CLOCK = 5.0
_SLOW = 0.05


class ServerFacts(Struct, frozen=True, kw_only=True):
    """One server at the moment of the greeting; ``promoted`` if it took over from another.

    ``mark`` is that of the store, if it accepts no commits; ``made`` if something was written.
    """

    product: str
    version: str
    life: str
    durability: Durability
    fsync: str
    promoted: bool
    replicas: int
    now: int
    mark: str = ""
    made: bool = True

    @property
    def loses_data(self) -> bool:
        """Whether a life before this one may have acknowledged what is not there."""
        return self.promoted or self.durability != "power loss"


def greeting(address: Address, meta: bytes) -> list[tuple[Argument, ...]]:
    """The commands of the first exchange, all sent at once."""
    commands: list[tuple[Argument, ...]] = []
    if address.password:
        user = (address.user,) if address.user else ()
        commands.append(("AUTH", *user, address.password))
    if address.db:
        commands.append(("SELECT", str(address.db)))
    commands += [
        ("CLIENT", "SETNAME", NAME),
        ("TIME",),
        ("CONFIG", "GET", "appendfsync"),
        ("INFO",),
        ("HGET", meta, "format"),
    ]
    return commands


def server_facts(replies: Sequence[Any], address: Address) -> ServerFacts:
    """What the replies to a greeting say; an unsuitable server is refused in one line."""
    where = address.shown
    *before, time, config, raw, number = replies
    for reply in (*before, time, raw):
        if isinstance(reply, ReplyError):
            raise meaning(str(reply), address)
    info = facts(raw)
    product, version = _version(info, where)
    _role(info, where)
    if info.get("loading", "0") != "0":
        raise Unsent("it is loading its data")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreUnsuitable(
            f"{where} throws data away when memory is short (maxmemory-policy {policy});"
            " set: maxmemory-policy noeviction"
        )
    if isinstance(number, ReplyError):
        raise meaning(str(number), address)
    marked = number is not None and number[:1] == b"{"
    if number is not None and not marked and number not in (b"1", b"%d" % FORMAT):
        raise newer(number.decode(errors="replace"), where)
    # Hosted servers forbid CONFIG; then the usual setting is assumed.
    fsync = "everysec" if isinstance(config, ReplyError) or not config else config[1].decode()
    return ServerFacts(
        product=product,
        version=version,
        life=info.get("run_id", ""),
        durability=_durability(info, fsync),
        fsync=fsync if info.get("aof_enabled") == "1" else "",
        promoted=info.get("second_repl_offset", "-1") != "-1",
        replicas=int(info.get("connected_slaves", "0")),
        now=int(time[0]) * 1_000_000 + int(time[1]),
        mark=number.decode() if marked else "",
        made=number is not None,
    )


def facts(raw: bytes) -> dict[str, str]:
    """What INFO says, by name."""
    lines = raw.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _version(info: dict[str, str], where: str) -> tuple[str, str]:
    if "redis_version" not in info:
        raise no_redis(where)
    if "valkey_version" in info:
        return "valkey", info["valkey_version"]  # all of them are new enough
    version = info["redis_version"]
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise StoreUnsuitable(
            f"{where} is Redis {version}; {oldest} or later is needed: upgrade it"
        )
    return "redis", version


def _role(info: dict[str, str], where: str) -> None:
    role = info.get("role", "master")
    if role == "slave":
        master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        raise StoreReadOnly(f"{where} is a replica; name its master {master} in the URL")
    if role != "master" or info.get("redis_mode") == "sentinel":
        raise StoreUnsuitable(f"{where} is a sentinel; name the master that it watches in the URL")


def _durability(info: dict[str, str], fsync: str) -> Durability:
    """Redis answers before it writes while a background fsync runs, which only everysec does."""
    if info.get("aof_enabled") != "1":
        return "none"
    grades: dict[str, Durability] = {"always": "power loss", "no": "process"}
    return grades.get(fsync, "none")


def info(store: RedisStore) -> Op[dict[str, object]]:
    """Facts: address, size, versions."""
    stats = facts((yield from store.request_with_retries(pack(("INFO",)))))
    sizes = yield from _sizes(store)
    server = _server(store)
    most = int(stats.get("maxmemory", "0"))
    replicas = int(stats.get("connected_slaves", "0"))
    return {
        "engine": "redis",
        "server": f"{server.product} {server.version}",
        "where": store.where,
        "namespace": store.namespace,
        "durability": server.durability,
        "means": _MEANING[server.fsync],
        **({"failover": _LOSS} if replicas else {}),
        "format": FORMAT,
        **sizes,
        "memory_bytes": int(stats.get("used_memory", "0")),
        "memory_max_bytes": most or None,
        "replicas": replicas,
        **mark_facts((yield from store.read_mark())),
    }


def findings(store: RedisStore) -> Op[list[Finding]]:
    """What is well and what is not with the server."""
    sent = time.monotonic()
    yield from store.request_with_retries(pack(("PING",)))
    took = time.monotonic() - sent
    stats = facts((yield from store.request_with_retries(pack(("INFO",)))))
    clock = yield from store.request_with_retries(pack(("TIME",)))
    ahead = int(clock[0]) + int(clock[1]) / 1_000_000 - time.time()
    sizes = yield from _sizes(store)
    server = _server(store)
    return [
        finding("version", f"{server.product} {server.version}"),
        finding(
            "reachable",
            f"answers in {took * 1000:.1f} ms",
            "" if took < _SLOW else "bring the server closer, or see what keeps it busy",
        ),
        finding(
            "durability",
            _MEANING[server.fsync],
            "" if server.durability == "power loss" else "set: appendonly yes, appendfsync always",
        ),
        _eviction(stats),
        _memory(stats),
        _disk(stats),
        _replicas(stats),
        *([finding(FAILOVER, "this server took over from another one")] if server.promoted else []),
        finding(
            "log", f"{sizes['entries']} entries; trimmed above {store.bound} (?log= in the URL)"
        ),
        finding(
            "server clock",
            f"the server is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}",
            ""
            if abs(ahead) < _CLOCK
            else "synchronise the clocks: times in the record come from clients",
        ),
    ]


def _server(store: RedisStore) -> ServerFacts:
    assert store.server is not None, "it has just answered"  # noqa: S101
    return store.server


def _sizes(store: RedisStore) -> Op[dict[str, object]]:
    keys = store.keys
    marks: Any = yield from store.request_with_retries(
        pack(("HMGET", keys["meta"], "rev", "trimmed"))
    )
    revision, trimmed = (int(each or 0) for each in marks)
    items: Any = yield from store.request_with_retries(pack(("HLEN", keys["items"])))
    entries: Any = yield from store.request_with_retries(pack(("XLEN", keys["log"])))
    sizes = {"revision": revision, "items": items, "entries": entries}
    return sizes | {"trimmed": trimmed or None}


def _eviction(stats: dict[str, str]) -> Finding:
    policy = stats.get("maxmemory_policy", "noeviction")
    remedy = "" if policy == "noeviction" else "set: maxmemory-policy noeviction"
    return finding("eviction", f"maxmemory-policy {policy}", remedy, wrong="bad")


def _memory(stats: dict[str, str]) -> Finding:
    used, most = int(stats.get("used_memory", "0")), int(stats.get("maxmemory", "0"))
    if not most:
        return finding("memory", f"{used >> 20} MiB used, no limit")
    tight = used > most * _FULL
    remedy = "raise maxmemory: a full server begins nothing new" if tight else ""
    return finding("memory", f"{used >> 20} of {most >> 20} MiB used", remedy)


def _disk(stats: dict[str, str]) -> Finding:
    names = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")
    failed = [name for name in names if stats.get(name, "ok") != "ok"]
    if not failed:
        return finding("disk", "the last writes went well")
    remedy = "make room on the server's disk, and see its log"
    return finding("disk", f"failed: {', '.join(failed)}", remedy, wrong="bad")


def _replicas(stats: dict[str, str]) -> Finding:
    count = int(stats.get("connected_slaves", "0"))
    if not count:
        return finding("replicas", "none: no failover")
    remedy = "set min-replicas-to-write, and keep their clocks together: tokens follow them"
    return finding("replicas", f"{count}: a failover {_LOSS}", remedy)


def caution(server: ServerFacts, where: str) -> str:
    """What to know of replicas before agents rely on the durability; empty without any."""
    if not server.replicas:
        return ""
    return (
        f"{where} has replicas ({server.replicas}): a failover to one {_LOSS};"
        " set min-replicas-to-write"
    )
