"""Claims several tasks with one commit, and completes others with it.

A worker with many tasks in flight pays for commits, not for tasks: the disk or the round trip, one
entry of the record and its hash.  So the tasks that end together are completed together, and the
same commit claims as many from the queue.  Each claim is a claim of its own: it has its own id,
its own lease, and the token of its task, which is the revision of that commit for all of them.

Only what concerns no other task goes together: the commit leaves out an end that has dependents,
evidence or gates, and takes the queue up to the first task that is not simply ready
(``end_rules.complete_several``, ``claim_rules.claim_several``).  The caller carries out the rest
one by one.  So this decides as ends and claims one after the other would, which
``test_several_claims.py`` compares.

A crash after the commit leaves claims as any other: they live by their session or by their ttl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.tasks import claim_rules, end_rules
from interlock.nouns.tasks.ready_index import Abilities, ReadyWindow
from interlock.nouns.tasks.task import CLAIMED_AT_ONCE, ClaimRequest, Spec, TaskEnd
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.reads import KEYS_AT_ONCE, OWN_OPERATIONS, outside
from interlock.runtime.runner import Decided
from interlock.steps import Op
from interlock.store import Capabilities, Item

if TYPE_CHECKING:
    from interlock.nouns.tasks.claim_attempt import ClaimAttempt
    from interlock.nouns.tasks.claim_service import ClaimService


PAIR_SIZE = 16
"""The most operations of an end and a claim that go together: what is checked and read, too."""


def at_once(limits: Capabilities) -> int:
    """How many tasks one commit claims at most, and how many others it completes."""
    return min(CLAIMED_AT_ONCE, (limits.max_operations - OWN_OPERATIONS) // PAIR_SIZE)


class SeveralClaimed(Struct, frozen=True, kw_only=True, tag="claimed"):
    """What one commit did: the tasks that it claimed, best first."""

    claims: tuple[Claimed, ...] = ()


class SeveralEnded(SeveralClaimed, frozen=True, kw_only=True, tag="completed"):
    """What one commit did: the tasks that it completed, and those that it claimed."""

    ended: frozenset[str]


class SeveralClaims:
    """Claims that are made together; good for one call.

    ``limit`` counts the places of the tasks that end with the same commit: for each of them that
    cannot end with the others, there is one claim less.  With ``apart`` each claim has a caller
    name of its own, since another caller than this one may work on it.  ``ahead`` as in
    ``claim_rules.claim_several``.
    """

    def __init__(
        self,
        claims: ClaimService,
        attempt: ClaimAttempt,
        can: Abilities,
        limit: int,
        *,
        apart: bool = False,
        ahead: bool = False,
    ) -> None:
        self.sent = attempt.began
        self._at_once = at_once(claims.runner.capabilities)
        self.limit = min(limit, self._at_once)
        self._claims = claims
        self._attempt = attempt
        self._can = can
        self._apart = apart
        self._ahead = ahead
        self._base = 0
        self._places: tuple[Item, ...] = ()
        """Across a network: entries of the best ready tasks, as far as a read showed."""
        self._blind = False
        self._raced = False
        """Whether another worker was faster at one of the tasks."""
        self.callers: dict[str, str] = {}
        """The ids of the claims to make, each with its caller name; empty unless ``apart``."""

    def guarded(self, op: Op[SeveralClaimed]) -> Op[SeveralClaimed]:
        """The call that makes the claims; if it raises, they are released."""
        return self._claims.guarded(self._attempt, op, lambda outcome: outcome.claims)

    def claim(self) -> Op[SeveralClaimed]:
        """Claim up to ``limit`` tasks, and end none."""
        guess = yield from self.prepare()
        actor = self._attempt.identity.actor
        done: Decided[SeveralClaimed] = yield from self._claims.runner.change(
            lambda: self.deciding(()), actor, guess
        )
        return (yield from self.filled(done))

    def prepare(self) -> Op[Mapping[str, Item | None]]:
        """What the commit may take for granted of the tasks to claim, as a guess."""
        claims, attempt = self._claims, self._attempt
        self._base = yield from claims.runner.base()
        new_id, apart = claims.runner.new_id, self._apart
        self.callers = {
            new_id("clm"): callers.new_name() if apart else "" for _ in range(self.limit)
        }
        if claims.runner.capabilities.transacts or not self.limit:
            return {}
        window = yield from outside(claims.ready.read(self._can, self.limit + claims.spread - 1))
        places = [] if window.due else list(window.places)
        picked = [claims.pick(places) for _ in range(min(self.limit, len(places)))]
        picked.sort(key=lambda place: keys.ready_order(place.key))
        self._places = tuple(claims.plain_ones(picked))
        guess: dict[str, Item | None] = {}
        if self._ahead:  # the rules have to see what each task is
            return guess
        for place in self._places:
            guess |= claims.blind_guess(attempt, keys.task_in_index(place.key), place)
        self._blind = bool(guess)
        return guess

    def deciding(self, ends: Sequence[TaskEnd]) -> DecideOp[SeveralClaimed]:
        """Decide to complete what can be completed together, and to claim what can be claimed."""
        claims, attempt = self._claims, self._attempt
        attempt.unsettled = ()
        ends = ends[: self._at_once]
        reader = TaskReader(claims.runner, self._base)
        yield from self._read_ends(reader, ends)
        blind, self._blind = self._blind, False
        wanted = yield from self._read_places(reader, blind=blind)
        attempt.unsettled = tuple([request for request, _, _ in wanted])
        decision: Decision[SeveralClaimed] = yield from reader.change(
            lambda changes: self._decided(changes, ends, wanted)
        )
        if not decision.outcome.claims:
            return decision
        data = [keys.data(each.task) for each in decision.outcome.claims] if blind else ()
        return claims.timed(attempt, decision, tuple(data))

    def _decided(
        self,
        changes: TaskChanges,
        ends: Sequence[TaskEnd],
        wanted: Sequence[tuple[ClaimRequest, Spec | None, str]],
    ) -> Decision[SeveralClaimed]:
        ended = end_rules.complete_several(changes, ends)
        free = max(0, self.limit - len(ends) + len(ended))
        claims = tuple(claim_rules.claim_several(changes, wanted[:free], ahead=self._ahead))
        outcome = SeveralClaimed(claims=claims)
        if ended:
            outcome = SeveralEnded(ended=frozenset(ended), claims=claims)
            return changes.decision(outcome, "task.complete", f"task/{ended[0]}")
        if not claims:
            return Decision(outcome=outcome)
        return changes.decision(outcome, "task.claim", f"task/{claims[0].task}")

    def filled(self, done: Decided[SeveralClaimed]) -> Op[SeveralClaimed]:
        """The outcome, with the tokens and the data of the claims."""
        filled: list[Claimed] = []
        (self._claims.widen if self._raced else self._claims.narrow)()
        for claimed in done.outcome.claims:
            whole = yield from self._claims.with_token(claimed, done, self._base)
            filled.append(whole)
        if len(filled) < len(self._attempt.unsettled):
            made = {each.grant for each in filled}
            left = [each for each in self._attempt.unsettled if each.claim in made]
            self._attempt.unsettled = tuple(left)
        return replace(done.outcome, claims=tuple(filled))

    def _read_ends(self, reader: TaskReader, ends: Sequence[TaskEnd]) -> ReadOp[None]:
        """Read the tasks that are to end, and the liveness of their claims."""
        tasks, claims = [end.claimant.task for end in ends], self._claims
        own = keys.live(self._attempt.identity.actor.session)
        local = claims.runner.capabilities.transacts
        pairs = [key for task in tasks for key in (keys.status(task), keys.owner(task))]
        yield from _learn(reader, [*pairs, own] if local and ends else pairs)
        held = [reader.facts.claims[task] for task in tasks]
        lives = dict.fromkeys(key for each in held if each is not None for key in each.live)
        yield from _learn(reader, [key for key in lives if key not in reader.facts.exists])
        for task in tasks:
            if (spec := claims.specs.get(task)) is not None:
                reader.facts.specs[task] = spec

    def _read_places(
        self, reader: TaskReader, *, blind: bool
    ) -> ReadOp[list[tuple[ClaimRequest, Spec | None, str]]]:
        """Read the tasks to claim; each with its request."""
        claims, identity = self._claims, self._attempt.identity
        places, remote = self._places, not claims.runner.capabilities.transacts
        if not remote and self.limit:
            window: ReadyWindow = yield from claims.ready.read(self._can, self.limit)
            places = () if window.due else window.places[: self.limit]
        if not places:
            return []
        own = keys.live(identity.actor.session) if identity.joined else ""
        if own:
            yield from _learn(reader, [own])
            if not reader.facts.exists[own]:
                return []
        tasks = [keys.task_in_index(place.key) for place in places]
        read = (keys.status, keys.owner) if blind else (keys.status, keys.owner, keys.data)
        entries = [place.key for place in places] if remote else []
        yield from _learn(reader, [*entries, *[key(task) for task in tasks for key in read]])
        if remote:
            there = [reader.facts.exists[entry] for entry in entries]
            self._raced |= not all(there)
            tasks = [task for task, found in zip(tasks, there, strict=True) if found]
            entries = [entry for entry, found in zip(entries, there, strict=True) if found]
        specs, request_for, attempt = reader.facts.specs, claims.request_for, self._attempt
        return [
            (request_for(attempt, task, claim, caller), None if blind else specs[task], entry)
            for (claim, caller), task, entry in zip(
                self.callers.items(), tasks, entries or [""] * len(tasks), strict=False
            )
        ]


def _learn(reader: TaskReader, wanted: Sequence[str]) -> ReadOp[None]:
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        reader.learn((yield tuple(wanted[start : start + KEYS_AT_ONCE])).items)
