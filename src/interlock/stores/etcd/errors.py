"""What can happen to a call on its way to etcd, in the words of a network store.

gRPC has a code and a text for everything, etcd puts its own meaning into the text.  What matters
is one question: can the call have had an effect?  Only what is listed here as certain counts as
certain; the rest is Unanswered.
"""

from __future__ import annotations

from collections.abc import Callable

from interlock.errors import StoreDamaged, StoreFull, StoreRefused, StoreUnsuitable, TooLarge
from interlock.stores.network import REPLY, Unanswered, Unsent

SILENT = f"silent for {REPLY:g} s"
_SHOWN = 160


class TokenExpired(Exception):
    """The token of the login is no longer valid; nothing happened."""


class EtcdRefusal(Exception):
    """etcd's own no, to something that the store asks in a way that allows for it."""


class Compacted(EtcdRefusal):
    """That revision is gone."""


class NoLease(EtcdRefusal):
    """There is no such lease; nothing happened."""


class LeaseExists(EtcdRefusal):
    """There is such a lease already."""


class AuthDisabled(EtcdRefusal):
    """The server has no users and needs no login."""


def translated(where: str, code: str, details: str) -> Exception:
    """The exception for an answer of gRPC: its status code by name, and its details."""
    short = _short(details) or code
    for part, meaning in _MEANINGS:
        if part in details:
            return meaning(where, short)
    return _CODES.get(code, _unanswered)(where, short)


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


def _unsent(_where: str, short: str) -> Exception:
    return Unsent(short)


def _unanswered(_where: str, short: str) -> Exception:
    return Unanswered(short)


def _denied(where: str, short: str) -> Exception:
    return StoreRefused(
        f"{where} does not allow this user to use the namespace ({short});"
        " grant read and write on it"
    )


def _too_large(where: str, _short: str) -> Exception:
    return TooLarge(f"{where} takes no request of this size; write less at once")


def _too_many(where: str, _short: str) -> Exception:
    return TooLarge(f"{where} takes fewer operations at once; set etcd's --max-txn-ops to 128")


def _damaged(where: str, short: str) -> Exception:
    return StoreDamaged(f"{where} has damaged data ({short}); restore a snapshot of etcd")


_MEANINGS: tuple[tuple[str, Callable[[str, str], Exception]], ...] = (
    # Refused at the door: no connection came about, or the server says so before it does anything.
    ("failed to connect to all addresses", _unsent),
    ("DNS resolution failed", _unsent),
    ("too many requests", _unsent),
    ("no leader", _unsent),
    ("not leader", _unsent),
    ("invalid auth token", lambda _, short: TokenExpired(short)),
    ("revision of auth store is old", lambda _, short: TokenExpired(short)),
    ("database space exceeded", lambda where, _: full(where, "its database is at the quota")),
    ("request is too large", _too_large),
    ("message larger than max", _too_large),
    ("too many operations in txn request", _too_many),
    ("has been compacted", lambda _, short: Compacted(short)),
    ("lease not found", lambda _, short: NoLease(short)),
    ("lease already exists", lambda _, short: LeaseExists(short)),
    ("authentication is not enabled", lambda _, short: AuthDisabled(short)),
    (
        "authentication failed",
        lambda where, _: StoreRefused(f"{where} refuses this user and password; check them"),
    ),
    (
        "user name is empty",
        lambda where, _: StoreRefused(f"{where} wants a user; write etcd://USER:PASSWORD@host"),
    ),
    ("corrupt", _damaged),
)
_CODES: dict[str, Callable[[str, str], Exception]] = {
    "PERMISSION_DENIED": _denied,
    "UNAUTHENTICATED": _denied,
    "UNIMPLEMENTED": lambda where, short: StoreUnsuitable(
        f"{where} is not an etcd server of version 3.4 or newer ({short}); check host and port"
    ),
    "DATA_LOSS": _damaged,
    "DEADLINE_EXCEEDED": lambda _, __: Unanswered(SILENT),
}
