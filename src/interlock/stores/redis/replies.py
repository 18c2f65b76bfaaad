"""What an error of the server means.

It either says that nothing happened and asking again is right (Unsent), or what is wrong in one
line.  Redis wraps errors that occur inside a script, differently in each version, so the word
that counts is looked for.
"""

from __future__ import annotations

import re

from interlock.errors import (
    StoreDamaged,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.stores.network import Unsent

_INSIDE = re.compile(r"-([A-Z]{3,}) ")
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


class Moved(Unsent):
    """Another node of the cluster has our slot; nothing ran."""

    def __init__(self, message: str, host: str, port: int) -> None:
        super().__init__(message)
        self.place = (host, port)


class Late(Exception):
    """The request came later than it allowed by the server's clock, which is told; nothing ran."""

    def __init__(self, now: int) -> None:
        super().__init__(f"it is {now / 1_000_000:.0f} there")
        self.now = now


def meaning(text: str, where: str) -> Exception:  # noqa: PLR0911 - one line for each
    """The exception that says it."""
    word, _, rest = text.partition(" ")
    if word == "ERR" and (inside := _INSIDE.search(text)) is not None:
        word, rest = inside[1], text[inside.end() :]
    if word in _AGAIN:
        return Unsent(_AGAIN[word])
    match word:
        case "NOSCRIPT":
            return NoScript()
        case "MOVED":
            host, _, port = rest.rpartition(" ")[2].rpartition(":")
            return Moved(f"its slot is at {host}:{port}", host, int(port))
        case "LATE":
            return Late(int(rest.split()[0]))
        case "NEWER":
            return newer(rest.split()[0], where)
        case "NOAUTH" | "WRONGPASS":
            return StoreRefused(
                f"{where} wants another password ({word}); put it into the URL, like"
                " redis://:password@host"
            )
        case "NOPERM":
            return StoreRefused(f"{where} forbids this user what is needed ({rest}); allow it")
        case "OOM":
            return StoreFull(f"{where} has no memory left; raise maxmemory or delete something")
        case "MISCONF":
            return StoreFull(f"{where} cannot write to its disk; see its log and make room there")
        case "READONLY":
            return StoreReadOnly(f"{where} is a read-only replica; name its master in the URL")
        case "NOREPLICAS":
            return StoreTrouble(f"{where} has too few replicas to take writes; see to them")
        case "WRONGTYPE":
            return StoreDamaged(
                f"{where} has something else under our keys; take another namespace with ?ns="
            )
    if "without any password" in text or "invalid password" in text or "only AUTH" in text:
        return StoreRefused(f"{where} does not take this password ({text}); correct the URL")
    if "unknown command" in text:
        return StoreUnsuitable(f"{where} lacks what is needed ({text[:100]}); use Redis >= 6.2")
    return StoreTrouble(f"{where} answered: {text}; run 'interlock doctor'")


def newer(number: str, where: str) -> StoreNewer:
    """The error of a store that a later version wrote."""
    return StoreNewer(
        f"{where} has format {number}, and this version knows up to 1; upgrade Interlock"
    )
