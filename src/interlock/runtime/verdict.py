"""The last verdict on the record: what a monitor learns without reading the record itself.

``record verify`` remembers it in its process, and a server keeps it in the store, for all others.
"""

from __future__ import annotations

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the record was judged, and whether it was intact.

    ``took`` is how many seconds that took, ``ends`` the last revision that was read, and ``says``
    the first finding.
    """

    at: float
    intact: bool
    took: float = 0.0
    ends: int = 0
    says: str = ""


_DECODER = codec.Decoder(Verdict)
_OWN: dict[str, Verdict] = {}
"""What this process found, by the id of the store."""


def remember_verdict(store: str, verdict: Verdict) -> None:
    """Keep what this process found when it judged the record of a store, if that has an id."""
    if store:
        _OWN[store] = verdict


def keep_verdict(runner: Runner, verdict: Verdict) -> Op[None]:
    """Keep a verdict in the store, for all processes; it leaves no entry in the record."""

    def deciding() -> DecideOp[None]:
        yield (keys.JUDGED,)
        return Decision(outcome=None, puts=(Write(keys.JUDGED, verdict),), quiet=True)

    yield from runner.change(deciding, Actor())


def kept_verdict() -> Op[Verdict | None]:
    """The verdict that a server has kept in the store."""
    return readable(_DECODER.read_if_present, (yield Read(keys.JUDGED))[keys.JUDGED])


def judged(store: str, *others: Verdict | None) -> Op[Verdict | None]:
    """The last verdict: of this process, of a server of the store, or one of the others."""
    found = [_OWN.get(store), (yield from kept_verdict()), *others]
    return max((each for each in found if each is not None), key=lambda each: each.at, default=None)
