"""Entries of the log: one entry for each recorded commit.

An entry is the record for auditors, the feed for watchers, the marker that settles an unknown
outcome, and the parent that later entries hash; nothing else is written about a change, so nothing
else can be lost.

Two chains run through the entries, and no writer waits for another:
  after   the hashes of this writer's entries that it knows committed and has not linked yet
          (usually one; several when commits were in flight together)
  saw     for each key it checked, the hash of the entry that wrote what it saw; null if the key
          was absent
  put     for each key it wrote, the digest of the payload

``reason`` is the operator's reason for ending a grant of an agent, or why a pipeline stays or ends.

``observed`` are the facts from outside of the store that a guard relied on: what a host saw, when,
how old it was allowed to be, and the digest of what it saw.

``on`` is the revision that the decision was made on, as far as it read: an entry stands above it,
and on a local engine right above it.

The hash of an entry is the SHA-256 of its stored bytes.  The items that it wrote carry its id and
hash beside their payload, so nothing is circular.  Liveness keys and signals stay out: they are
not state.  Entries hold digests, not values, and stay small.

``via`` and ``took`` are in the entries of claims: which component asked (``cli``, ``python``,
``python-async``; ``/worker`` if a loop of a worker did), and how many milliseconds went by from
asking to the commit, as its writer sent it; a wait for a task counts, and the commit itself does
not, since the entry is a part of it.  ``took`` is also in the entries that read the registry of a
bus.

A client with a key signs its entries.  ``signed`` is the last field of an entry, and the signature
is over the stored bytes without it (``signed_bytes`` of ``signing.py``).  The public key is in it,
so that an auditor needs nothing else; it says which key signed, and whose key that is, the auditor
has to know.  One client signs all of its entries with one key, or none.  A signed entry names its
``store`` by the id that a copy keeps: moved into another store, a chain of entries proves nothing.

``segment.py`` has the digest over all entries, which proves those that no other entry links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.core import codec
from interlock.core.decision import Event, ObservedFact

if TYPE_CHECKING:
    from interlock.core.signing import Signer


ENTRY_TYPE = "application/vnd.interlock.entry.v1+json"
"""What a signature under an entry is about."""


class Signature(Struct, frozen=True, kw_only=True):
    """A writer's signature over its entry: the public key and the signature, both in base64."""

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
    on: int = 0
    after: tuple[str, ...] = ()
    saw: dict[str, str | None] = {}
    put: dict[str, str] = {}
    deleted: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    via: str = ""
    took: float | None = None
    reason: str = ""
    observed: tuple[ObservedFact, ...] = ()
    store: str = ""
    signed: Signature | None = None


_ENTRY = codec.Decoder(Entry)


def decode(data: bytes) -> Entry:
    """The entry that these bytes are."""
    return _ENTRY.decode(data)


def sign(data: bytes, signer: Signer) -> bytes:
    """The bytes of an entry with the signature of its writer behind all other fields."""
    from interlock.core.signing import signed_bytes, to_base64

    made = Signature(
        key=to_base64(signer.public_key),
        signature=to_base64(signer.sign(signed_bytes(ENTRY_TYPE, data))),
    )
    return data[:-1] + b',"signed":' + codec.encode(made) + b"}"


class RecordLine(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry as ``record log`` shows it: with its revision and its own hash.

    ``took`` is in milliseconds, from asking until the commit began.
    """

    revision: int
    hash: str
