"""What a server is, asked in the first exchange of every connection, and whether it is suitable.

A server may come back from a restart as something else: a replica, or one that evicts.  So each
new connection asks, and a connection to an unsuitable server is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError
from msgspec import Struct

from interlock.errors import StoreReadOnly, StoreUnsuitable
from interlock.store import Durability
from interlock.stores.address import Address
from interlock.stores.network import Unsent
from interlock.stores.redis.errors import meaning, newer
from interlock.stores.redis.scripts import Argument

OLDEST = (6, 2)
FORMAT = 2
NAME = "interlock"


class ServerFacts(Struct, frozen=True, kw_only=True):
    """One server at the moment of the greeting; ``promoted`` if it took over from another."""

    product: str
    version: str
    life: str
    durability: Durability
    fsync: str
    promoted: bool
    now: int

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
    if number is not None and number not in (b"1", b"%d" % FORMAT):
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
        now=int(time[0]) * 1_000_000 + int(time[1]),
    )


def facts(raw: bytes) -> dict[str, str]:
    """What INFO says, by name."""
    lines = raw.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _version(info: dict[str, str], where: str) -> tuple[str, str]:
    if "redis_version" not in info:
        raise StoreUnsuitable(f"{where} is not a Redis server; see the host and the port")
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
