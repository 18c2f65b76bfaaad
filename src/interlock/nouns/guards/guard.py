"""Guards: a condition with a name, and what happens while it does not hold.

    block   the gated step waits
    warn    the step is allowed, and the failure is recorded
    retry   the step waits, and the guard is checked again after a delay, up to a limit of times
    fail    the gated thing fails, with a message

A guard that is unknown is neither: it neither passes nor fails, so ``retry`` does not count it and
``fail`` does not end anything by it.  Only ``warn`` allows the step then, since it would allow it
either way; the record says that the guard was unknown.

A host looks at the outside for a guard only if it has allowed the guard's digest.  The digest
covers the name, the whole condition, the action and the maximum age: who changes any of them
changes the digest.  It does not cover what a command calls: a script that an allowed command runs
can be changed by anyone who can write the script.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, validate
from interlock.core.validate import span
from interlock.errors import BadDuration, BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import fields_of, kind_of, too_deep, validated
from interlock.nouns.guards.rules import Evaluation, Facts, acts, evaluate, failing, leaves_of

MAX_AGE = 60.0
"""How old a fact from outside may be, unless a guard says otherwise."""
OLDEST = 24 * 3600.0
MOST_RETRIES = 1000
MESSAGE_LIMIT = 1024
_OUTSIDE = (
    c.BranchExists, c.BranchClean, c.BranchMerged, c.FileExists, c.FileContains, c.Command
)  # fmt: skip
_ROUND = 3


class BlockAction(Struct, frozen=True, kw_only=True, tag="block", tag_field="do"):
    """Wait."""


class WarnAction(Struct, frozen=True, kw_only=True, tag="warn", tag_field="do"):
    """Go on, and record it."""


class RetryAction(Struct, frozen=True, kw_only=True, tag="retry", tag_field="do"):
    """Check again after ``delay`` seconds, ``limit`` times at most; then fail."""

    delay: float
    limit: int


class FailAction(Struct, frozen=True, kw_only=True, tag="fail", tag_field="do"):
    """Fail, with this message."""

    message: str


FailureAction: TypeAlias = BlockAction | WarnAction | RetryAction | FailAction


class Guard(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A named condition; ``max_age`` is how old a fact from outside may be, in seconds."""

    name: str
    condition: c.Condition
    on_failure: FailureAction = BlockAction()
    max_age: float = MAX_AGE


class GuardResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check of a guard says.

    ``leaf`` is the leaf that decides it, and ``reason`` is its reason; ``acts`` would clear
    it.  ``evaluation`` has all leaves.
    """

    guard: str
    result: Literal["passed", "failed", "unknown"]
    action: FailureAction
    evaluation: Evaluation
    leaf: str = ""
    reason: str = ""
    acts: tuple[str, ...] = ()
    max_age: float = MAX_AGE

    @property
    def allowed(self) -> bool:
        """Whether the gated step may be taken."""
        return self.result == "passed" or isinstance(self.action, WarnAction)


def guard(
    name: str,
    condition: c.Condition,
    on_failure: FailureAction | None = None,
    max_age: float | str = MAX_AGE,
) -> Guard:
    """A guard of legal parts."""
    return Guard(
        name=validate.name(name, "guard name"),
        condition=validated(condition),
        on_failure=BlockAction() if on_failure is None else legal_action(on_failure),
        max_age=age(max_age),
    )


def retry(delay: float | str, limit: int) -> RetryAction:
    """Check again after a delay, a limited number of times."""
    seconds = round(validate.duration(delay, "delay of retry"), _ROUND)
    if not 0 < seconds <= OLDEST:
        raise BadDuration(f"the delay of retry {delay!s:.40} is out of bounds; give 1ms to 1d")
    count = validate.integer(limit, "limit of retry", 1, MOST_RETRIES)
    return RetryAction(delay=seconds, limit=count)


def fail(message: str) -> FailAction:
    """Fail, with a message."""
    said = validate.text(message, "message of fail", MESSAGE_LIMIT).strip()
    if not said:
        raise BadInput("the message of fail is empty; say what failed, for a person")
    return FailAction(message=said)


def legal_action(action: FailureAction) -> FailureAction:
    """The action, built again of legal parts."""
    match action:
        case BlockAction() | WarnAction():
            return action
        case RetryAction():
            return retry(action.delay, action.limit)
        case FailAction():
            return fail(action.message)
        case _:
            raise BadInput(f"on_failure is block, warn, retry or fail, not {action!r:.40}")


def age(value: float | str) -> float:
    """The maximum age of facts from outside."""
    seconds = round(validate.duration(value, "max_age"), _ROUND)
    if not 0 < seconds <= OLDEST:
        raise BadDuration(f"the max_age {value!s:.40} is out of bounds; give 1ms to 1d")
    return seconds


def decode(data: bytes) -> Guard:
    """A guard from its JSON, validated."""
    try:
        found = _DECODER.decode(data)
    except RecursionError:
        raise too_deep() from None
    except codec.UNREADABLE as error:
        raise BadInput(f"this is no guard ({error}); define it again") from None
    return guard(found.name, found.condition, found.on_failure, found.max_age)


def digest(guard: Guard) -> str:
    """What a host allows: the SHA-256 of the guard as canonical JSON."""
    return codec.digest(canonical(guard))


def canonical(guard: Guard) -> bytes:
    """A guard as JSON; equal guards have equal bytes.

    Fields of leaves that equal their defaults are left out, so that a later version can add fields.
    (``omit_defaults`` leaves out those that are the very object of the default, so the stored bytes
    of equal guards may differ.)
    """
    plain = {
        "name": guard.name,
        "condition": _plain(guard.condition),
        "on_failure": guard.on_failure,
        "max_age": float(guard.max_age),
    }
    return codec.canonical(codec.encode(plain))


def _plain(condition: c.Condition) -> dict[str, object]:
    match condition:
        case c.AllOf():
            return {"all": [_plain(each) for each in condition.of]}
        case c.AnyOf():
            return {"any": [_plain(each) for each in condition.of]}
        case c.Not():
            return {"not": _plain(condition.of)}
        case _:
            return {kind_of(condition).name: dict(fields_of(condition))}


def outside(condition: c.Condition) -> bool:
    """Whether a condition needs a host that looks at the outside."""
    return any(isinstance(leaf, _OUTSIDE) for leaf in leaves_of(condition))


def fresh(facts: Facts, now: float, max_age: float) -> Facts:
    """The facts, without observations that are too old by this clock, or too far in its future."""
    return {need: _fresh(fact, now, max_age) for need, fact in facts.items()}


def _fresh(fact: c.Fact, now: float, max_age: float) -> c.Fact:
    if not isinstance(fact, c.Observation) or abs(now - fact.at) <= max_age:
        return fact
    if fact.at > now:
        says = f"its clock is {span(fact.at - now)} ahead of this one"
    else:
        says = f"it looked {span(now - fact.at)} ago, {span(max_age)} are allowed"
    return replace(fact, value=None, says=says)


def check(guard: Guard, facts: Facts, now: float) -> GuardResult:
    """Whether a guard passes; observations that are older than it allows count as unknown."""
    found = evaluate(guard.condition, fresh(facts, now, guard.max_age), now)
    if found:
        return GuardResult(
            guard=guard.name,
            result="passed",
            action=guard.on_failure,
            evaluation=found,
            max_age=guard.max_age,
        )
    failed = failing(found)
    known = [leaf for leaf in failed if leaf.verdict != "unknown"]
    unknown = [leaf for leaf in failed if leaf.verdict == "unknown"]
    first = (known or failed) if found.verdict == "false" else (unknown or failed)
    return GuardResult(
        guard=guard.name,
        result="failed" if found.verdict == "false" else "unknown",
        action=guard.on_failure,
        evaluation=found,
        leaf=first[0].text,
        reason=first[0].reason,
        acts=acts(found),
        max_age=guard.max_age,
    )


_DECODER: codec.Decoder[Guard] = codec.Decoder(Guard)
