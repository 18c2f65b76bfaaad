"""Rules of guards: which facts a condition needs, and what they say about it.

**Three values.**  A leaf is true, false or unknown.  It is unknown if its fact is missing, if it
cannot be had (``NoFact``, with the reason), or if it belongs to another need.  Combinations follow
Kleene: they are unknown only where the unknown parts decide.

    all   false if one is false, else unknown if one is unknown, else true
    any   true if one is true, else unknown if one is unknown, else false
    not   true if it is false, false if it is true; unknown stays unknown

An unknown condition never passes.  So that no mistake passes either: an ``all`` or ``any`` of
nothing, and what is nested deeper than ``DEPTH``, is refused where a condition comes in
(``leaf_kinds.validated``), and unknown if it is evaluated all the same.

**The leaves.**  F is a filter of tasks.

    lock_free L               true if no agent holds L, also if L was never acquired
    lock_held L by A          true if an agent holds L; with A, if that agent does
    semaphore_available S n   true if n slots of S are free; unknown while S has no capacity
    tasks_complete F          false if a task of F is not complete; a failed task is not complete.
                              If F selects none: false, but true with none_ok.
                              Unknown if all that were read are complete, and not all were read.
                              F may name a state: with ``running`` and none_ok it is true if no
                              task of F is running.
    no_blocked_tasks F        false if a task of F is blocked, dead or failed; true if F selects
                              none.  Unknown if none of those that were read is, and not all were
                              read.
    pipeline_in_phase P X     true if P is running and in phase X; false if there is no P
    pipeline_complete P       true if P has left its last phase; false if there is no P
    branch_exists B           true if the repository has the local branch B
    branch_clean B            true if no worktree has B checked out, or that one has no changes
    branch_merged B into C    true if each commit of B is in C; a squash merge is not seen
    file_exists X             true if there is a file or a folder X below the root
    file_contains X T         true if file X has the text T, or text that matches the pattern
    command W                 true if W ends with the expected status: 0, another one, or (for
                              ``failure``) any but 0.  Unknown if it could not be started, was
                              stopped at its time limit, or was killed.

A host that looked and cannot say (an ``Observation`` without a value) leaves the last six unknown.

**Clearing.**  ``failing`` has the leaves that keep a condition from being true: under ``all`` the
parts that are not true, under ``any`` each alternative, under ``not`` the same with true and false
exchanged.  ``acts`` has the fewest acts that clear it, found bottom up: ``all`` needs the acts of
all its parts, ``any`` those of the part with the fewest.  A leaf that stands twice counts twice,
though one act may clear both: to find the least set of facts would take exponential time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_rules import RULES, act, judge
from interlock.nouns.guards.shell import group_text, leaf_text

Facts: TypeAlias = Mapping[c.FactNeed, c.Fact]
Part: TypeAlias = Literal["leaf", "all", "any", "not"]

_WORDS: dict[bool | None, c.Verdict] = {True: "true", False: "false", None: "unknown"}
_VALUES: dict[str, bool | None] = {word: value for value, word in _WORDS.items()}
OPPOSITE: dict[str, c.Verdict] = {"true": "false", "false": "true", "unknown": "unknown"}


class Evaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What facts say about a condition, and about each of its parts.

    ``text`` is the condition (``shell.py``).  A leaf has its condition, the need and the fact that
    it used (none if there is none).  ``wanted`` is the value of the part that helps the whole to be
    true: false under a ``not``.
    """

    text: str
    verdict: c.Verdict
    reason: str
    part: Part = "leaf"
    children: tuple[Evaluation, ...] = ()
    condition: c.Condition | None = None
    need: c.FactNeed | None = None
    fact: c.Fact | None = None
    wanted: bool = True

    def __bool__(self) -> bool:
        """Whether it is true; unknown is not."""
        return self.verdict == "true"

    @property
    def act(self) -> str:
        """The act that would give a leaf the wanted value; empty if it has that value."""
        if self.condition is None or _VALUES[self.verdict] is self.wanted:
            return ""
        return act(self.condition, self.fact, wanted=self.wanted)


def needs(condition: c.Condition) -> tuple[c.FactNeed, ...]:
    """The facts that a condition needs, each once, in the order of its leaves."""
    return tuple(dict.fromkeys(RULES[type(leaf)].need(leaf) for leaf in leaves_of(condition)))


def leaves_of(condition: c.Condition) -> Iterator[c.BaseCondition]:
    """The leaves of a condition, in their order; those that are nested too deeply are left out."""
    stack: list[tuple[c.Condition, int]] = [(condition, 1)]
    while stack:
        part, depth = stack.pop()
        if isinstance(part, c.AllOf | c.AnyOf):
            below = part.of
        elif isinstance(part, c.Not):
            below = (part.of,)
        else:
            yield part
            continue
        if depth < c.DEPTH:
            stack += [(each, depth + 1) for each in reversed(below)]


def evaluate(condition: c.Condition, facts: Facts, now: float | None = None) -> Evaluation:
    """What these facts say about a condition; ``guard.check`` leaves out those that are too old.

    Reasons say how long something has been so if they know the time (``now``), else since when.
    """
    return _Evaluator(facts, now).part(condition, 1, wanted=True)


class _Evaluator:
    """One evaluation.  ``wanted`` is the value that makes the whole condition true."""

    def __init__(self, facts: Facts, now: float | None) -> None:
        self._facts = facts
        self._now = now

    def part(self, condition: c.Condition, depth: int, *, wanted: bool) -> Evaluation:
        rule = RULES.get(type(condition))
        if rule is not None:
            need = rule.need(condition)
            fact = self._facts.get(need)
            value, reason = judge(rule, condition, fact, self._now)
            return Evaluation(
                text=leaf_text(condition),
                verdict=_WORDS[value],
                reason=reason,
                condition=condition,
                need=need,
                fact=fact,
                wanted=wanted,
            )
        if isinstance(condition, c.Not):
            return self._not(condition, depth, wanted=wanted)
        return self._group(condition, depth, wanted=wanted)  # type: ignore[arg-type]

    def _not(self, condition: c.Not, depth: int, *, wanted: bool) -> Evaluation:
        if depth >= c.DEPTH:
            return _too_deep("not", "!...", wanted=wanted)
        child = self.part(condition.of, depth + 1, wanted=not wanted)
        return Evaluation(
            part="not",
            text="!" + child.text,
            verdict=OPPOSITE[child.verdict],
            reason=child.reason,
            children=(child,),
            wanted=wanted,
        )

    def _group(self, group: c.AllOf | c.AnyOf, depth: int, *, wanted: bool) -> Evaluation:
        part: Literal["all", "any"] = "all" if isinstance(group, c.AllOf) else "any"
        if depth >= c.DEPTH:
            return _too_deep(part, f"{part}(...)", wanted=wanted)
        children = tuple([self.part(each, depth + 1, wanted=wanted) for each in group.of])
        verdict, reason = _combined(part, children)
        return Evaluation(
            part=part,
            text=group_text(group, [child.text for child in children]),
            verdict=verdict,
            reason=reason,
            children=children,
            wanted=wanted,
        )


def _combined(
    part: Literal["all", "any"], children: tuple[Evaluation, ...]
) -> tuple[c.Verdict, str]:
    """The verdict of a group, and its reason: that of the first child that decides it."""
    if not children:
        return "unknown", f"{part!r} of nothing says nothing"
    verdicts = [child.verdict for child in children]
    decisive: c.Verdict = "false" if part == "all" else "true"
    for verdict in (decisive, "unknown"):
        if verdict in verdicts:
            return verdict, _reason(children, verdict, verdicts.count(verdict))
    return OPPOSITE[decisive], _reason(children, OPPOSITE[decisive], len(children))


def _reason(children: tuple[Evaluation, ...], verdict: c.Verdict, count: int) -> str:
    first = next(child.reason for child in children if child.verdict == verdict)
    return first if count == 1 else f"{count} of {len(children)} are {verdict}; first: {first}"


def _too_deep(part: Part, text: str, *, wanted: bool) -> Evaluation:
    reason = f"it is nested deeper than {c.DEPTH} levels"
    return Evaluation(part=part, text=text, verdict="unknown", reason=reason, wanted=wanted)


# What an evaluation says


def leaves(evaluation: Evaluation) -> tuple[Evaluation, ...]:
    """All leaves, in their order."""
    if evaluation.part == "leaf":
        return (evaluation,)
    return tuple(leaf for child in evaluation.children for leaf in leaves(child))


def failing(evaluation: Evaluation) -> tuple[Evaluation, ...]:
    """The leaves that keep it from being true, in their order; none if it is true.

    A group that has no leaf to name (it is empty, or nested too deeply) stands for itself.
    """
    return tuple(_failing(evaluation))


def _failing(part: Evaluation) -> Iterator[Evaluation]:
    if _VALUES[part.verdict] is part.wanted:
        return
    if not part.children:
        yield part
    for child in part.children:
        yield from _failing(child)


def clearing(evaluation: Evaluation) -> tuple[Evaluation, ...]:
    """The fewest leaves that make it true if each gets the value that is wanted from it."""
    if _VALUES[evaluation.verdict] is evaluation.wanted:
        return ()
    if not evaluation.children:
        return (evaluation,)
    each = [clearing(child) for child in evaluation.children]
    if evaluation.part == "not" or (evaluation.part == "all") is evaluation.wanted:
        return tuple(leaf for some in each for leaf in some)
    return min(each, key=len)


def acts(evaluation: Evaluation) -> tuple[str, ...]:
    """The fewest acts that would clear it, each once; see ``clearing``.

    An act that makes an unknown leaf known may show that it is false.
    """
    return tuple(dict.fromkeys(leaf.act or leaf.reason for leaf in clearing(evaluation)))
