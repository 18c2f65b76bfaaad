"""What an error of the server means.

An error either means that nothing happened and a retry is right (Unsent), or it becomes one line
about what is wrong.  Redis wraps errors that occur inside a script, differently in each version,
so the code searches for the word that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from interlock.errors import (
    StoreDamaged,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.stores.address import Address
from interlock.stores.marks import decode_mark, refusal
from interlock.stores.network import Unsent

_INSIDE = re.compile(r"-([A-Z]{3,}) ")
_COMMAND = re.compile(r"run the '([^']+)' command")
_DENIED = ("executing the script can't", "ACL failure in script")
_NAMES = {"~": "its keys", "&": "its channels"}
_AGAIN = {
    "ASK": "its slot is moving",
    "BUSY": "it is busy with a script",
    "CLUSTERDOWN": "its cluster is down",
    "LOADING": "it is loading its data",
    "MASTERDOWN": "its master is down",
    "TRYAGAIN": "its slot is moving",
}


class NoScript(Exception):
    """The server does not have this script; nothing ran."""


class MovedToNode(Unsent):
    """Another node of the cluster has our slot; nothing ran."""

    def __init__(self, message: str, host: str, port: int) -> None:
        super().__init__(message)
        self.endpoint = (host, port)


class RequestTooLate(Exception):
    """The request came later than it allowed by the server's clock, which it names; nothing ran."""

    def __init__(self, now: int) -> None:
        super().__init__(f"it is {now / 1_000_000:.0f} there")
        self.now = now


COMMANDS = (
    *("client|setname", "eval", "evalsha", "info", "ping", "select", "time"),
    *("hdel", "hexists", "hget", "hlen", "hmget", "hset"),
    *("zadd", "zrangebylex", "zrangebyscore", "zrem"),
    *("xadd", "xlen", "xrange", "xrevrange", "xtrim"),
    *("publish", "subscribe", "unsubscribe"),
)
"""What a user must be allowed to call; ``config|get`` shows the durability, and may be denied."""
KEYS, CHANNELS = "~", "&"
"""How a right that is no command is named here: by its sign in an access list."""
ALL = (KEYS, CHANNELS, *COMMANDS)

_WRONG: dict[str, tuple[type[StoreTrouble], str]] = {
    "DENIED": (StoreRefused, "is in protected mode; give it a password, or ask from its machine"),
    "MISCONF": (StoreFull, "cannot write to its disk; see its log and make room there"),
    "NOAUTH": (StoreRefused, "wants a password; put it into the URL, like redis://:password@host"),
    "NOREPLICAS": (StoreTrouble, "has too few replicas to take writes; see to them"),
    "OOM": (StoreFull, "has no memory left; raise maxmemory or delete something"),
    "READONLY": (StoreReadOnly, "is a read-only replica; name its master in the URL"),
    "UNKILLABLE": (StoreTrouble, "is busy with a script that cannot be ended; restart it"),
    "WRONGPASS": (StoreRefused, "does not know this user and password; correct the URL"),
    "WRONGTYPE": (StoreDamaged, "has something else under our keys; take another ?ns="),
}
_TEXTS = {
    "without any password": (StoreRefused, "has no password, and the URL has one; leave it out"),
    "DB index": (StoreUnsuitable, "has no database of this number; see the end of the URL"),
    "SELECT is not allowed": (StoreUnsuitable, "is a cluster and has only database 0; say /0"),
    "unknown command": (StoreUnsuitable, "lacks a command that is needed; use Redis 6.2 or later"),
}


def meaning(text: str, address: Address) -> Exception:  # noqa: PLR0911 - one for each
    """The exception that says it."""
    where = address.shown
    word, _, rest = text.partition(" ")
    if word == "ERR" and (inside := _INSIDE.search(text)) is not None:
        word, rest = inside[1], text[inside.end() :]
    if word == "NOPERM" or any(part in text for part in _DENIED):
        return denied(_lacking(text), address, ALL)
    if word in _AGAIN:
        return Unsent(_AGAIN[word])
    if word in _WRONG:
        kind, wrong = _WRONG[word]
        return kind(f"{where} {wrong}")
    match word:
        case "NOSCRIPT":
            return NoScript()
        case "MOVED":
            host, _, port = rest.rpartition(" ")[2].rpartition(":")
            return MovedToNode(f"its slot is at {host}:{port}", host, int(port))
        case "LATE":
            return RequestTooLate(int(rest.split()[0]))
        case "MARKED":
            return refusal(decode_mark(rest), where)
        case "NEWER":
            return newer(rest.split()[0], where)
        case _:
            return _other(text, where)


def _other(text: str, where: str) -> Exception:
    if "max number of clients" in text:
        return Unsent("it has as many clients as it takes")
    for part, (kind, wrong) in _TEXTS.items():
        if part in text:
            return kind(f"{where} {wrong}")
    return StoreTrouble(f"{where} answered {text!r}; run 'interlock doctor'")


def denied(lacking: Iterable[str], address: Address, given: Iterable[str] = ()) -> StoreRefused:
    """The error of a user who lacks rights, with the command that gives them.

    ``lacking`` are commands, KEYS and CHANNELS; ``given`` is what the command gives, all that is
    needed where more may be lacking than the server said.
    """
    rights = tuple(lacking)
    named = [_NAMES.get(right, right) for right in rights] or ["a command that is needed"]
    line = [_right(right, address) for right in tuple(given) or rights or ALL]
    return StoreRefused(
        f"{address.shown} forbids this user {', '.join(named)}; run:"
        f" redis-cli ACL SETUSER {address.user or 'default'} {' '.join(line)}"
    )


def _right(right: str, address: Address) -> str:
    """A right as an access list has it, for a shell."""
    prefix = f"{{{address.namespace}}}:"
    if right == KEYS:
        return f"'~{prefix}*'"
    if right == CHANNELS:
        return f"'&{prefix}bell:*'"
    return f"'+{right}'" if "|" in right else f"+{right}"


def _lacking(text: str) -> tuple[str, ...]:
    """Which right is meant, as far as the server says."""
    command = _COMMAND.search(text)
    if command is not None:
        return (command[1].lower(),)
    if "channel" in text:
        return (CHANNELS,)
    return (KEYS,) if "key" in text else ()


def no_redis(where: str) -> StoreUnsuitable:
    """The error of a server whose answers are not those of Redis."""
    return StoreUnsuitable(f"{where} is not a Redis server; see the host and the port")


def newer(number: str, where: str) -> StoreNewer:
    """The error of a store that a later version wrote."""
    return StoreNewer(
        f"{where} has format {number}, and this version knows up to 2; upgrade Interlock"
    )
