"""The log entry that is the commit.

One entry stands for one commit.  It is the record for auditors, the feed for watchers, the marker
that settles an unknown outcome, and the parent that later entries hash; nothing else is written
about a change, so nothing can be lost beside it.

Two chains run through the entries, and no writer ever waits for another:
  after   the hashes of this writer's entries that it knows committed and has not linked yet
          (one, as a rule; several when commits were under way together)
  saw     for each key it checked, the hash of the entry that wrote what it saw; null if the key
          was absent
  put     for each key it wrote, the digest of the payload

The hash of an entry is the SHA-256 of its stored bytes.  The items that it wrote carry its id and
hash beside their payload, so nothing is circular.  Liveness keys and signals stay out: they are
not state.  Entries hold digests, not values, and stay small.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from interlock.core.decision import Event


class Signature(Struct, frozen=True, kw_only=True):
    """A writer's signature over its entries named in ``after``."""

    key: str
    signature: str


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One commit, as it is recorded."""

    id: str = ""
    at: float = 0.0
    writer: str = ""
    agent: str = ""
    session: str = ""
    verb: str = ""
    outcome: str = ""
    thing: str = ""
    trace: str = ""
    cost: float | None = None
    after: tuple[str, ...] = ()
    saw: dict[str, str | None] = {}
    put: dict[str, str] = {}
    deleted: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    signed: Signature | None = None


decode = msgspec.json.Decoder(Entry).decode


class Line(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry as ``record log`` shows it: with its place in the order and its own hash."""

    revision: int
    hash: str
