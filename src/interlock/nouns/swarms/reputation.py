"""The reputation of a peer: how its last requests and syncs went, by our own record alone.

Kept are the last ``KEPT`` outcomes, one character each, the oldest first:

    .   an answer, also with the status ``error``: the swarm did what we asked for
    t   no answer in time
    c   a conflict: two different results of one request, or a write that became a decision

**The measure.**  A plain share punishes bad luck: among swarms with 2 % timeouts, nearly a quarter
exceeds 5 % at some time in 1,000 requests.  So a rate exceeds its limit only if the lower bound of
its Wilson interval does (90 %: one in twenty is above by chance), with ``SAMPLES`` outcomes or
more.  That blocks fewer than one in a hundred of them, and every swarm with 10 % timeouts;
``tests/nouns/swarms/test_reputation.py`` measures it.

**What counts.**  A timeout counts while the circuit breaker is closed.  An outage lets every
request in flight time out, and the probes of the breaker after that; these belong to one outage,
which counts as the three timeouts that opened the breaker.  A swarm that is away for a night keeps
its reputation; a swarm that drops every tenth request does not.

**The way out.**  Nothing is sent to a blocked peer, so nothing could improve its reputation.  So
one request goes through in each ``PROBE_EVERY`` seconds, and ``GOOD_PROBES`` answers in a row clear
the record; so does an operator (``forgive``).  The commit that sends the probe also writes when, so
there is one probe over all processes.  A bad swarm comes back for a few dozen requests each time.

A process may add many outcomes at once: answers need not be written one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

PeerOutcome: TypeAlias = Literal["answered", "timeout", "conflict"]
_LETTERS: dict[PeerOutcome, str] = {"answered": ".", "timeout": "t", "conflict": "c"}

KEPT = 200
SAMPLES = 20
CONFLICT_LIMIT = 0.10
TIMEOUT_LIMIT = 0.05
PROBE_EVERY = 600.0
GOOD_PROBES = 10
_Z = 1.6448536269514722
"""The quantile of the normal distribution for a two-sided interval of 90 %."""


class Reputation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reputation as it is stored.

    ``probed`` is when the last probe was sent, and ``good`` how many probes in a row were answered.
    """

    outcomes: str = ""
    probed: float = 0.0
    good: int = 0


UNKNOWN = Reputation()


class Standing(Struct, frozen=True, kw_only=True):
    """The numbers of a reputation, and whether they block the peer.

    A ``bound`` is the rate that the outcomes prove; it is compared with the limit.
    """

    samples: int
    conflicts: int
    timeouts: int
    conflict_rate: float
    timeout_rate: float
    conflict_bound: float
    timeout_bound: float
    blocked: tuple[Literal["conflicts", "timeouts"], ...]
    good_probes: int
    next_probe_in: float


class ReputationPass(Struct, frozen=True, kw_only=True):
    """A request may be sent; for a ``probe``, the same commit writes ``probe_sent``."""

    probe: bool


class ReputationBlocked(Struct, frozen=True, kw_only=True):
    """The peer is blocked until its probes succeed; ``standing`` says why, ``retry_in`` when."""

    standing: Standing
    retry_in: float


def lower_bound(bad: int, samples: int) -> float:
    """The lower end of the Wilson interval of a rate."""
    if not bad:
        return 0.0
    rate, z2 = bad / samples, _Z * _Z
    middle = rate + z2 / (2 * samples)
    spread = _Z * sqrt(rate * (1 - rate) / samples + z2 / (4 * samples * samples))
    return max(0.0, (middle - spread) / (1 + z2 / samples))


def standing(reputation: Reputation, now: float) -> Standing:
    """The numbers now."""
    samples = len(reputation.outcomes)
    conflicts = reputation.outcomes.count(_LETTERS["conflict"])
    timeouts = reputation.outcomes.count(_LETTERS["timeout"])
    conflict_bound, timeout_bound = lower_bound(conflicts, samples), lower_bound(timeouts, samples)
    blocked: list[Literal["conflicts", "timeouts"]] = []
    if samples >= SAMPLES and conflict_bound > CONFLICT_LIMIT:
        blocked.append("conflicts")
    if samples >= SAMPLES and timeout_bound > TIMEOUT_LIMIT:
        blocked.append("timeouts")
    return Standing(
        samples=samples,
        conflicts=conflicts,
        timeouts=timeouts,
        conflict_rate=round(conflicts / max(samples, 1), 4),
        timeout_rate=round(timeouts / max(samples, 1), 4),
        conflict_bound=round(conflict_bound, 4),
        timeout_bound=round(timeout_bound, 4),
        blocked=tuple(blocked),
        good_probes=reputation.good if blocked else 0,
        next_probe_in=_next_probe_in(reputation, now) if blocked else 0.0,
    )


def check(reputation: Reputation, now: float) -> ReputationPass | ReputationBlocked:
    """Whether a request to this peer, or of it, goes through."""
    found = standing(reputation, now)
    if not found.blocked:
        return ReputationPass(probe=False)
    if found.next_probe_in > 0:
        return ReputationBlocked(standing=found, retry_in=found.next_probe_in)
    return ReputationPass(probe=True)


def probe_sent(reputation: Reputation, now: float) -> Reputation:
    """A probe is sent now."""
    return replace(reputation, probed=now)


def record(reputation: Reputation, outcomes: Iterable[PeerOutcome]) -> Reputation:
    """Add outcomes of ordinary requests and syncs, in their order."""
    added = "".join([_LETTERS[each] for each in outcomes])
    return replace(reputation, outcomes=(reputation.outcomes + added)[-KEPT:])


def record_probe(reputation: Reputation, outcome: PeerOutcome) -> Reputation:
    """Add the outcome of a probe; enough answers in a row clear the record.

    Ordinary requests that were in flight when the peer was blocked are no probes: a dozen of them
    may be answered at once.
    """
    after = record(reputation, [outcome])
    good = reputation.good + 1 if outcome == "answered" else 0
    if good >= GOOD_PROBES:
        return Reputation(outcomes=after.outcomes[-GOOD_PROBES:])
    return replace(after, good=good)


def probe_failed(reputation: Reputation) -> Reputation:
    """A probe timed out while the circuit breaker was open: the answers in a row start again."""
    return replace(reputation, good=0)


def forgive(reputation: Reputation) -> Reputation:
    """An operator clears the record."""
    del reputation
    return UNKNOWN


def _next_probe_in(reputation: Reputation, now: float) -> float:
    """Seconds until the next probe; a probe of the future was sent before a clock was set back."""
    left = reputation.probed + PROBE_EVERY - now
    return round(left, 3) if 0 < left <= PROBE_EVERY else 0.0
