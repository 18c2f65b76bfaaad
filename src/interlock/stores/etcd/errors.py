"""What can happen to a call on its way to etcd, in the words of a network store.

gRPC has a code and a text for everything, etcd puts its own meaning into the text.  What matters
is one question: can the call have had an effect?  Only what is listed here as certain counts as
certain; the rest is Unanswered.
"""

from __future__ import annotations

from interlock.errors import (
    InterlockError,
    StoreDamaged,
    StoreFull,
    StoreRefused,
    StoreUnsuitable,
    TooLarge,
)
from interlock.stores.network import REPLY, Unanswered, Unsent

SILENT = f"silent for {REPLY:g} s"
_SHOWN = 160


class TokenExpired(Exception):
    """The token of the login is no longer valid; nothing happened."""


class Compacted(Exception):
    """That revision is gone."""


class NoLease(Exception):
    """There is no such lease; nothing happened."""


class LeaseExists(Exception):
    """There is such a lease already."""


class AuthDisabled(Exception):
    """The server has no users and needs no login."""


_NOTHING_HAPPENED: dict[str, type[Exception]] = {
    # Refused at the door: no connection came about, or the server says so before it does anything.
    "failed to connect to all addresses": Unsent,
    "DNS resolution failed": Unsent,
    "too many requests": Unsent,
    "no leader": Unsent,
    "not leader": Unsent,
    "invalid auth token": TokenExpired,
    "revision of auth store is old": TokenExpired,
    "has been compacted": Compacted,
    "lease not found": NoLease,
    "lease already exists": LeaseExists,
    "authentication is not enabled": AuthDisabled,
}
_TOO_LARGE = (TooLarge, "takes no request of this size; write less at once")
_DAMAGED = (StoreDamaged, "has damaged data ({short}); restore a snapshot of etcd")
_DENIED = (
    StoreRefused,
    "does not allow this user to use the namespace ({short}); grant read and write on it",
)
_WRONG: dict[str, tuple[type[InterlockError], str]] = {
    "request is too large": _TOO_LARGE,
    "message larger than max": _TOO_LARGE,
    "too many operations in txn request": (
        TooLarge,
        "takes fewer operations at once; set etcd's --max-txn-ops to 128",
    ),
    "authentication failed": (StoreRefused, "refuses this user and password; check them"),
    "user name is empty": (StoreRefused, "wants a user; write etcd://USER:PASSWORD@host"),
    "corrupt": _DAMAGED,
}
_CODES: dict[str, tuple[type[InterlockError], str]] = {
    "PERMISSION_DENIED": _DENIED,
    "UNAUTHENTICATED": _DENIED,
    "UNIMPLEMENTED": (
        StoreUnsuitable,
        "is not an etcd server of version 3.4 or newer ({short}); check host and port",
    ),
    "DATA_LOSS": _DAMAGED,
}


def translated(where: str, code: str, details: str) -> Exception:
    """The exception for an answer of gRPC: its status code by name, and its details."""
    short = _short(details) or code
    for part, kind in _NOTHING_HAPPENED.items():
        if part in details:
            return kind(short)
    if "Received message larger than max" in details:  # by this client: it may have had an effect
        return Unanswered(short)
    if "database space exceeded" in details:
        return full(where, "its database is at the quota")
    wrong = next((wrong for part, wrong in _WRONG.items() if part in details), _CODES.get(code))
    if wrong is not None:
        return wrong[0](f"{where} {wrong[1].format(short=short)}")
    return Unanswered(SILENT if code == "DEADLINE_EXCEEDED" else short)


def full(where: str, how: str) -> StoreFull:
    """No room: what an operator does about it."""
    return StoreFull(
        f"{where} is full ({how}); compact it, run 'etcdctl defrag' and 'etcdctl alarm disarm',"
        " or raise its --quota-backend-bytes"
    )


def _short(details: str) -> str:
    """One line of a message that gRPC may have made long, without its chain of causes."""
    line = " ".join(details.split())
    if "last error: " in line:
        line = line.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
        line = line.removeprefix("UNAVAILABLE: ")
    return line.removeprefix("etcdserver: ")[:_SHOWN]
