"""Refuses new data when the database is nearly full.

An etcd that has reached its quota refuses every write, releases too.  So creations stop at 80 %,
while a commit that changes, ends or deletes something is accepted (``Txn.ends``), even if it writes
a result, a task that became ready or an entry: a fleet that cannot begin can still end.
The operator frees space: Interlock neither compacts nor defragments a shared etcd.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from interlock.drivers import Op
from interlock.errors import BadInput, StoreFull
from interlock.store import LIVE, Txn
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.errors import full
from interlock.stores.etcd.probe import DirectRequest, quota
from interlock.stores.etcd.transport import STATUS

if TYPE_CHECKING:
    from interlock.stores.network import NetworkStore

MOST = 0.8
WARN = 0.6
_OFTEN = 5.0
_SMALL = 8 << 20
"""Below this no quota that makes sense is near, and it need not be known."""
_DEFAULT = 2 << 30
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


class Quota:
    """How full the database is, looked at now and then."""

    def __init__(self, store: NetworkStore, address: Address) -> None:
        self._store = store
        self._quota = size(address.options["quota"], address) if "quota" in address.options else 0
        self._looked = float("-inf")
        self._full: StoreFull | None = None

    def check(self, txn: Txn, number: int) -> Op[None]:
        """Raise StoreFull if the transaction creates something and there is hardly any room."""
        if not creates(txn):
            return
        if time.monotonic() - self._looked > _OFTEN:
            self._looked = time.monotonic()  # others need not look at the same time
            yield from self._look(number)
        if self._full is not None:
            raise self._full

    def quota(self, number: int) -> Op[int]:
        """How large the database may become."""
        if not self._quota:
            self._quota = (yield from self._store.asked(DirectRequest(quota, number))) or _DEFAULT
        return self._quota

    def saw(self, status: rpc.StatusResponse) -> None:
        """A status was read: if all is well, it counts for a while."""
        if status.db_size <= _SMALL and not status.errors:
            self._looked = time.monotonic()

    def _look(self, number: int) -> Op[None]:
        status = yield from self._store.asked((STATUS, rpc.StatusRequest()))
        where, self._full = self._store.where, None
        if any("NOSPACE" in error for error in status.errors):
            self._full = full(where, "it has raised a NOSPACE alarm")
        elif status.db_size > _SMALL:
            most = yield from self.quota(number)
            if status.db_size >= MOST * most:
                self._full = full(where, filled(status.db_size, most))


def creates(txn: Txn) -> bool:
    """Whether it puts something that may not be there yet, and ends nothing by that.

    Liveness keys go by themselves.
    """
    if txn.ends:
        return False
    there = {check.key for check in txn.checks if check.kind != "absent"}
    return any(put.key not in there and not put.key.startswith(LIVE) for put in txn.puts)


def filled(used: int, most: int) -> str:
    """How full, for a person."""
    return f"{used / (1 << 20):.0f} of {most / (1 << 20):.0f} MiB, {used / most:.0%}"


def size(text: str, address: Address) -> int:
    """Bytes, as in 8589934592, 8GiB or 512MB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise BadInput(f"{address.shown} has quota={text!r}; write bytes, or a size like 8GiB")
    return int(match[1]) * _UNITS[match[2].lower()]
