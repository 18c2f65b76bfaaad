"""Decisions and their outcomes, in words; the question and the options are text of other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.safe_text import printable
from interlock.core.validate import command, quote
from interlock.nouns.messages.text import body
from interlock.runtime.text import ago, joined, listed, short_json, table

if TYPE_CHECKING:
    from interlock.nouns.messages import decision as decisions
    from interlock.nouns.messages.decision_noun import DecisionList
    from interlock.runtime.text import Paint, Text

_SHORT = 60


def _decision_list(outcome: DecisionList, paint: Paint) -> str:
    lost = f"\n{outcome.unreadable} cannot be read; run 'interlock doctor'"
    more = lost if outcome.unreadable else ""
    if not outcome.decisions:
        none = (
            "there is nothing to decide; 'interlock decision list --all' also lists past decisions"
        )
        return none + more
    titles = ("DECISION", "STATE", "ASKED BY", "ASKED", "QUESTION")
    return table(titles, [_row(each, paint) for each in outcome.decisions], paint) + more


def _row(each: decisions.DecisionView, paint: Paint) -> tuple[str, ...]:
    state = paint("yellow" if each.state == "open" else "dim", each.state)
    return each.decision, state, each.agent, ago(each.at), short_json(each.question, _SHORT)


def _decision(outcome: decisions.DecisionView, paint: Paint) -> str:
    facts = [
        ("decision", outcome.decision),
        ("state", paint("yellow" if outcome.state == "open" else "green", outcome.state)),
        ("about", outcome.about),
        ("asked by", f"{outcome.agent}, {ago(outcome.at)}"),
    ]
    if outcome.deadline is not None and outcome.state == "open":
        facts.append(("deadline", f"{ago(outcome.deadline)}; {_then(outcome)}"))
    lines = [listed(facts), *body(outcome.question, paint)]
    for each in outcome.options:
        lines += [f"option {printable(each.option)}: {printable(each.text)}".rstrip(": ")]
        lines += body(each.value, paint) if each.value is not None else []
    if outcome.state == "open":
        answer = outcome.options[0].option if outcome.options else "TEXT"
        how = f"interlock decision resolve {quote(outcome.decision)} {quote(answer)} --agent NAME"
        return "\n".join([*lines, f"to decide, as another agent than {outcome.agent}: {how}"])
    decided = f"decided by {outcome.by}" if outcome.by else "the deadline passed; the default is"
    return "\n".join([*lines, f"{decided}, {ago(outcome.resolved)}", *body(outcome.answer, paint)])


def _then(outcome: decisions.DecisionView) -> str:
    return f"then {outcome.default}" if outcome.default else "it stays open after that"


def _resolved(outcome: decisions.Resolved, paint: Paint) -> str:
    word = paint("green", "resolved")
    if outcome.about.startswith("query/"):
        return f"{word} {outcome.decision}; the asker has it in its inbox"
    return f"{word} {outcome.decision}, about {outcome.about}"


def _already(outcome: decisions.AlreadyResolved, paint: Paint) -> str:
    hint = f"see {command(f'interlock decision show {quote(outcome.decision)}')}"
    word = paint("yellow", "already resolved")
    if not outcome.by:
        return f"{word} {outcome.decision}: its deadline passed; {hint}"
    return f"{word} {outcome.decision}: {outcome.by} decided it; {hint}"


def _no_option(outcome: decisions.NoSuchOption, paint: Paint) -> str:
    named = joined(map(quote, outcome.options))
    return f"{paint('yellow', 'no such option')} of {outcome.decision}: give one of {named}"


def _own(outcome: decisions.OwnDecision, paint: Paint) -> str:
    word = paint("yellow", "own decision")
    then = "another agent must decide it: add --agent NAME with your own name"
    return f"{word} {outcome.decision}: {outcome.agent} asked for it, so {then}"


def _no_decision(outcome: decisions.UnknownDecision, paint: Paint) -> str:
    hint = "there is nothing of this id to decide; see 'interlock decision list'"
    return f"{paint('yellow', 'unknown')} {outcome.decision}: {hint}"


TEXTS: dict[str, Text] = {
    "DecisionView": _decision,
    "Resolved": _resolved,
    "AlreadyResolved": _already,
    "NoSuchOption": _no_option,
    "OwnDecision": _own,
    "UnknownDecision": _no_decision,
    "DecisionList": _decision_list,
}
"""The text of each outcome, by the name of its class."""
