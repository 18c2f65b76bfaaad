"""One scope of a watch, as the stream serves it.

Each scope is a watch of etcd's own, with a position of its own: so each goes on right behind what
it has seen, whatever becomes of the others, and what comes twice is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.store import WAKE, Change
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.shape import NUL, Shape, is_quiet

if TYPE_CHECKING:
    from interlock.stores.etcd.watch import EtcdWatch

SIGNALS_LAST = 10.0
"""Seconds for which a signal can be found for sure; its lease may not be new."""


class Part:
    """The changes in one scope; everything is called under the lock of the feed."""

    def __init__(self, reader: EtcdWatch, shape: Shape, scope: str, after: int) -> None:
        self.scope = scope
        self.after = after
        self.number = 0
        """Under which the stream serves it; 0 if it does not."""
        self.begun = 0
        """The revision of etcd when it began to serve it."""
        self.signal = scope.startswith(WAKE) and not scope.endswith("/")
        self.behind = False
        """Whether a signal may have come before it was served."""
        self.unserved = time.monotonic()
        """Since when nobody serves it."""
        self.reader = reader
        self._shape = shape

    def late(self, now: float) -> None:
        """It is served from now on; whether a signal came before is to be seen, if it can be."""
        if now - self.unserved > SIGNALS_LAST:
            self.resync(self.begun)
        else:
            self.behind = True
            self.reader.wake()

    def resync(self, revision: int) -> None:
        """Everything up to this revision is gone; go on behind it."""
        self.after = max(self.after, revision)
        self.reader.resync(self.after)

    def lay(self, events: Iterable[rpc.Event]) -> int:
        """Tell what is a change; returns how many of them came for the second time."""
        before, doubles = self.after, 0
        found: list[Change] = []
        for event in events:
            kv = event.kv
            if kv.mod_revision <= before:
                doubles += 1
                continue
            self.after = kv.mod_revision
            change = self._change(event, kv)
            if change is not None:
                found.append(change)
        if found:
            self.reader.tell(found)
        return doubles

    def caught_up(self, kvs: Iterable[rpc.KeyValue]) -> None:
        """What came before it was served; what is newer came by itself."""
        self.behind = False
        self.lay(rpc.Event(type=rpc.Event.PUT, kv=kv) for kv in kvs)

    def _change(self, event: rpc.Event, kv: rpc.KeyValue) -> Change | None:
        """What the event is to a reader; None for what is no change."""
        shape, signal = self._shape, kv.key.endswith(NUL)
        if event.type == rpc.Event.DELETE:
            if signal or shape.is_live(kv.key) or shape.is_log(kv.key):  # an entry was trimmed
                return None
            return Change(kv.mod_revision, shape.name(kv.key), deleted=True)
        if is_quiet(kv.value):
            return None
        value = shape.item(kv).value if shape.is_log(kv.key) and not signal else b""
        return Change(kv.mod_revision, shape.name(kv.key), value=value)
