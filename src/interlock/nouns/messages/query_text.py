"""Outcomes of questions, answers and decisions as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.validate import quote
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.text import body
from interlock.runtime.text import ago, as_json, lasting, listed, never_ends, table

if TYPE_CHECKING:
    from interlock.nouns.messages import human_decision
    from interlock.nouns.messages import query_rules as core
    from interlock.nouns.messages.decision_noun import DecisionList
    from interlock.runtime.text import Paint, Text

_SHORT = 60


def answered(outcome: core.Answered, paint: Paint) -> str:
    """The answer and its author."""
    before = f", {lasting(outcome.age)} ago" if outcome.age is not None else ""
    head = f"{paint('green', 'answered')} {outcome.query} by {outcome.by}{before}"
    return "\n".join([head, *body(outcome.answer, paint)])


def timed_out(outcome: core.TimedOut, paint: Paint) -> str:
    """No answer came, and what else to try."""
    who = _whoever(outcome.to, "{} did not answer", "no agent that can do {} answered")
    more = "ask again with a longer --timeout, or with --person"
    if outcome.over:
        more = "this question has ended: ask under another --id, or without one"
    word = paint("yellow", "timed out")
    within = f"within {lasting(outcome.timeout)}" if outcome.timeout else "at once"
    return f"{word} {outcome.query}: {who} {within}; {more}"


def cancelled(outcome: core.QueryCancelled, paint: Paint) -> str:
    """The question is cancelled."""
    return f"{paint('green', 'cancelled')} {outcome.query}"


def taken_back(outcome: core.TakenBack, paint: Paint) -> str:
    """The asker cancelled the question."""
    word = paint("yellow", "taken back")
    why = "its asker cancelled it"
    return f"{word} {outcome.query}: {why}; ask again if you still need the answer"


def away(outcome: core.NobodyToAsk, paint: Paint) -> str:
    """No agent can answer now, and what else to try."""
    why = _whoever(outcome.to, "{} has no session now", "no agent here can do {}")
    more = "--hold lets the question wait, --person asks a person"
    return f"{paint('yellow', 'away')} {outcome.to}: {why}; {more}"


def deadlock(outcome: core.QueryDeadlock, paint: Paint) -> str:
    """The cycle of waits, and how to break it."""
    you, last = outcome.cycle[0], outcome.cycle[-1]
    inbox = (
        f"answer {last} first"
        f" (interlock inbox --agent {quote(you)}), or give back what it waits for"
    )
    then = f"{inbox}; then ask again" if last != you else "only you could answer"
    return f"{paint('red', 'deadlock')} {outcome.query}: {never_ends(outcome.cycle, then)}"


def handed(outcome: core.Handed, paint: Paint) -> str:
    """A person is asked."""
    then = "the answer will be in your inbox"
    word = paint("yellow", "handed")
    return f"{word} {outcome.query} to a person, who decides {outcome.decision}; {then}"


def asked(outcome: core.Asked, paint: Paint) -> str:
    """The question is open."""
    return f"{paint('green', 'asked')} {outcome.query}, to {outcome.to}"


def too_many(outcome: core.TooMany, paint: Paint) -> str:
    """How many questions are open, and whose."""
    word = paint("yellow", "too many")
    soon = "" if outcome.retry_in is None else f"in {lasting(outcome.retry_in)}, or "
    again = f"retry {soon}when some are answered"
    if outcome.agent:
        count = f"{outcome.agent} has {outcome.open} questions open, and may have {outcome.limit}"
        return f"{word}: {count}; {again}, or 'interlock cancel' some"
    whose = ", ".join(f"{agent} has {number}" for agent, number in outcome.by.items())
    count = f"{outcome.open} questions are open, and no more are allowed"
    more = f" ({whose})" if whose else ""
    return f"{word}: {count}{more}; {again}"


def taken(outcome: core.QueryExists, paint: Paint) -> str:
    """The id is taken."""
    why = "that was another question" if outcome.ours else "another agent used this id"
    return f"{paint('yellow', 'exists')} {outcome.query}: {why}; choose another --id"


def replied(outcome: core.Replied, paint: Paint) -> str:
    """The answer is delivered."""
    return f"{paint('green', 'replied')} {outcome.query}; {outcome.to} has the answer"


def late(outcome: core.Late, paint: Paint) -> str:
    """How the question ended."""
    expired = "it has expired, and its asker no longer waits; mail may still help"
    how = {
        "answered": f"{outcome.by} has answered it already",
        "cancelled": "its asker cancelled it",
        "expired": "it has expired already" if outcome.mine else expired,
        "deadlock": "it was refused, since waiting for it would never have ended",
    }.get(outcome.state, f"it is {outcome.state}")
    return f"{paint('yellow', 'late')} {outcome.query}: {how}"


def not_asked(outcome: core.NotAsked, paint: Paint) -> str:
    """Whose question it is."""
    word = paint("red", "not owner")
    if outcome.agent.startswith(ABLE):
        able = outcome.agent[len(ABLE) :]
        whose = f"it is for others who can do {able}; if you can, say so: --can {able}"
        return f"{word} {outcome.query}: {whose}"
    whose = f"it is for {outcome.agent} to do, not for you; --agent says who you are"
    return f"{word} {outcome.query}: {whose}"


def no_query(outcome: core.UnknownQuery, paint: Paint) -> str:
    """The question is unknown."""
    theirs = "see 'interlock inbox --kind query'"
    own = "'interlock record log --verb query.ask' lists what was asked"
    hint = f"there is no such question, or none any more; {own if outcome.mine else theirs}"
    return f"{paint('yellow', 'unknown')} {outcome.query}: {hint}"


def _whoever(to: str, agent: str, able: str) -> str:
    return able.format(to[len(ABLE) :]) if to.startswith(ABLE) else agent.format(to)


def decision_list(outcome: DecisionList, paint: Paint) -> str:
    """A table of decisions."""
    lost = f"\n{outcome.unreadable} cannot be read; run 'interlock doctor'"
    more = lost if outcome.unreadable else ""
    if not outcome.decisions:
        none = (
            "there is nothing to decide; 'interlock decision list --all' also lists past decisions"
        )
        return none + more
    titles = ("DECISION", "STATE", "ASKED BY", "ASKED", "QUESTION")
    return table(titles, [_row(each, paint) for each in outcome.decisions], paint) + more


def _row(each: human_decision.DecisionView, paint: Paint) -> tuple[str, ...]:
    state = paint("yellow" if each.state == "open" else "dim", each.state)
    text = as_json(each.question)
    short = text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
    return each.decision, state, each.agent, ago(each.at), short


def decision(outcome: human_decision.DecisionView, paint: Paint) -> str:
    """One decision: the question, and the answer if it has one."""
    facts = [
        ("decision", outcome.decision),
        ("state", paint("yellow" if outcome.state == "open" else "green", outcome.state)),
        ("about", outcome.about),
        ("asked by", f"{outcome.agent}, {ago(outcome.at)}"),
    ]
    lines = [listed(facts), *body(outcome.question, paint)]
    if outcome.state == "open":
        return "\n".join([*lines, f"to decide: interlock decision resolve {outcome.decision} TEXT"])
    decided = f"decided by {outcome.by}, {ago(outcome.resolved)}"
    return "\n".join([*lines, decided, *body(outcome.answer, paint)])


def resolved(outcome: human_decision.Resolved, paint: Paint) -> str:
    """The decision is made."""
    word = paint("green", "resolved")
    return f"{word} {outcome.decision}; the asker has it in its inbox"


def already(outcome: human_decision.AlreadyResolved, paint: Paint) -> str:
    """The decision was made before."""
    hint = f"see 'interlock decision show {outcome.decision}'"
    word = paint("yellow", "already resolved")
    return f"{word} {outcome.decision}: {outcome.by} decided it; {hint}"


def no_decision(outcome: human_decision.UnknownDecision, paint: Paint) -> str:
    """The decision is unknown."""
    hint = "there is nothing of this id to decide; see 'interlock decision list'"
    return f"{paint('yellow', 'unknown')} {outcome.decision}: {hint}"


TEXTS: dict[str, Text] = {
    "TakenBack": taken_back,
    "Asked": asked,
    "Answered": answered,
    "TimedOut": timed_out,
    "QueryCancelled": cancelled,
    "NobodyToAsk": away,
    "QueryDeadlock": deadlock,
    "Handed": handed,
    "TooMany": too_many,
    "QueryExists": taken,
    "Replied": replied,
    "Late": late,
    "NotAsked": not_asked,
    "UnknownQuery": no_query,
    "DecisionView": decision,
    "Resolved": resolved,
    "AlreadyResolved": already,
    "UnknownDecision": no_decision,
    "DecisionList": decision_list,
}
"""The text of each outcome, by the name of its class."""
