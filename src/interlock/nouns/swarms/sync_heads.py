"""The heads of state sync: the snapshot of a swarm, and a shared value.

**A snapshot** is about a short time and expires, as a registry entry does.  All of its numbers were
measured (``state_service.py`` says how); averages are decimals with three digits at most.

**A shared value** does not expire, and no reader compares its time with a clock: ``timestamp`` is
what the writer's clock said, and ``bus_time`` what the bus's clock said when the writer stored it,
both for people.  The value itself stands beside the envelope, bound by its hash and size.  Three
revisions of the bus say where it belongs:

    base       the revision that its writer saw; 0 if it saw none
    replaces   the revision that stood there when it was stored, which the commit checked
    same_as    for a value that only was signed again with another key: its revision before that

``replaces`` protects from replays: a head that is put back later replaces a revision that its
readers have passed (``shared.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, ClassVar

from msgspec import Meta

from interlock.core import validate
from interlock.errors import BadName
from interlock.nouns.swarms.head import (
    AGENTS_LIMIT,
    ENTRY_EXPIRES,
    REGISTRY_LIMIT,
    BusHead,
    Counted,
    Head,
    Id,
    Name,
    Sha256,
    Whole,
    milliseconds,
)

VALUE_LIMIT = 64 * 1024
"""Bytes of a shared value, as JSON."""
STATE_EXPIRES = ENTRY_EXPIRES
_TYPE = "application/vnd.interlock.{}.v1+json"

Average = Annotated[float, Meta(ge=0.0, le=1e12)]


class StateHead(BusHead, frozen=True, kw_only=True):
    """The state of a swarm as it publishes it; ``memory`` is in bytes."""

    payload_type: ClassVar[str] = _TYPE.format("state")
    limit: ClassVar[int] = REGISTRY_LIMIT

    version: Counted
    agents: Annotated[tuple[Name, ...], Meta(max_length=AGENTS_LIMIT)]
    completed_tasks: Whole
    pending_tasks: Whole
    avg_execution_time_ms: Average
    memory: Whole
    avg_latency_ms: Average
    message_throughput_per_sec: Average

    def fault(self) -> str:
        """What is wrong with it by itself."""
        if self.expires - self.timestamp > milliseconds(STATE_EXPIRES):
            return f"it is valid for longer than {STATE_EXPIRES:.0f} s"
        return _wrong_names("agent", self.agents) or super().fault()


class SharedHead(Head, frozen=True, kw_only=True):
    """A shared value: its key, which write it is, where it belongs, and the hash of the value."""

    payload_type: ClassVar[str] = _TYPE.format("shared")

    bus: Name
    shared_key: Name
    write_id: Id
    agent: Name
    base: Whole
    replaces: Whole
    same_as: Whole = 0
    bus_time: Whole
    spooled: bool = False
    source_hash: Sha256
    source_size: Annotated[int, Meta(ge=1, le=VALUE_LIMIT)]

    def fault(self) -> str:
        """What is wrong with it by itself."""
        if self.same_as > self.replaces or self.base > self.replaces:
            return "it names a revision above the one that it replaced"
        names = _wrong_names("shared_key", (self.shared_key,)) or _wrong_names(
            "agent", (self.agent,)
        )
        return names or super().fault()

    def has_value(self, value: bytes) -> bool:
        """Whether this is the value that was signed for."""
        return len(value) == self.source_size and sha256(value).hexdigest() == self.source_hash


def _wrong_names(field: str, found: Sequence[str]) -> str:
    """What is wrong with names, which may end up in keys and on terminals."""
    try:
        changed = [each for each in found if validate.name(each, field) != each]
    except BadName as error:
        return str(error)
    if changed:
        return f"the {field} is not in NFC"
    return "" if len(set(found)) == len(found) else f"it names the same {field} twice"
