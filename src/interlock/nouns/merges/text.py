"""The outcomes of merges in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote
from interlock.runtime.text import ago, joined, listed, reason_lines, table

if TYPE_CHECKING:
    from interlock.nouns.merges import merge as core
    from interlock.runtime.text import Paint, Text

_COLOURS = {
    "waiting": "yellow", "testing": "green", "landing": "green", "merged": "dim", "bounced": "red",
    "cancelled": "dim",
}  # fmt: skip
_SHORT = 12


def _queued(outcome: core.MergeSubmitted, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    place = f", number {outcome.place} in the queue" if outcome.place else ""
    instead = f" instead of {outcome.before[:_SHORT]}" if outcome.before else ""
    head = f"{paint('green', 'submitted')} {outcome.branch} for {outcome.into}{before}{place}"
    return f"{head}, at {outcome.commit[:_SHORT]}{instead}: {outcome.merge}"


def _unfinished(outcome: core.MergeUnfinished, paint: Paint) -> str:
    behind = f", behind {outcome.before} others" if outcome.before else ""
    head = f"{paint('yellow', 'waiting')} {outcome.branch} for {outcome.into}{behind}"
    return (
        f"{head}: it was not merged in time; see"
        f" {command('interlock why ' + quote(f'merge/{outcome.merge!s}'))}"
    )


def _busy(outcome: core.MergeBusy, paint: Paint) -> str:
    head = f"{paint('yellow', 'busy')} {outcome.branch}: it is {outcome.state}"
    return f"{head}; wait for its end: interlock merge show {quote(outcome.merge)}"


def _done(outcome: core.MergeDone, paint: Paint) -> str:
    as_ = f", which is {outcome.merged_as[:_SHORT]} now" if outcome.merged_as else ""
    return f"{paint('green', 'merged')} {outcome.branch} into {outcome.into}{as_}"


def _bounced(outcome: core.MergeBounced, paint: Paint) -> str:
    head = f"{paint('red', 'bounced')} {outcome.branch} from {outcome.into}:"
    return head + reason_lines(outcome.reason, paint)


def _cancelled(outcome: core.MergeCancelled, paint: Paint) -> str:
    before = f" before, by {outcome.by}" if outcome.already else ""
    head = f"{paint('green', 'cancelled')} {outcome.branch} for {outcome.into}{before}"
    return head + reason_lines(outcome.reason, paint)


def _over(outcome: core.MergeOver, paint: Paint) -> str:
    head = f"{paint('yellow', 'over')} {outcome.branch}: it was {outcome.state} before"
    return f"{head}; see {command(f'interlock merge show {quote(outcome.merge)}')}"


def _unknown(outcome: core.UnknownMerge, paint: Paint) -> str:
    name = joined(outcome.unknown)
    word = paint("yellow", "unknown")
    return f"{word} {name}: no such merge, and no such branch waits; see 'interlock merge list'"


def _served(outcome: core.MergesServed, paint: Paint) -> str:
    counts = f"{outcome.merged} merged, {outcome.bounced} bounced"
    return f"{paint('green', 'served')} {outcome.target}: {counts}"


def _held(outcome: core.MergesHeld, paint: Paint) -> str:
    counts = f"{outcome.merged} merged, {outcome.bounced} bounced"
    held = paint("yellow", "held")
    return f"{held} {outcome.target}: {counts}; the others wait: {outcome.reason}"


def _view(view: core.MergeView, paint: Paint) -> str:
    facts = [
        ("merge", view.merge),
        ("branch", view.branch),
        ("into", view.into),
        ("repository", view.repository),
        ("state", paint(_COLOURS[view.state], view.state)),
        ("place", str(view.place) if view.place else ""),
        ("commit", view.commit),
        ("merged as", view.merged_as),
        ("cause", view.cause),
        ("files", joined(view.files)),
        ("held", view.held),
        ("guard", view.guard),
        ("server", view.server or ("none" if view.state == "waiting" else "")),
        ("submitted", f"{ago(view.at)}, by {view.by}"),
        ("ended", ago(view.ended_at) + (f", by {view.ended_by}" if view.ended_by else "")),
    ]
    return listed(facts) + reason_lines(view.reason, paint)


def _list(outcome: core.MergeList, paint: Paint) -> str:
    lines = []
    names = {each.repository for each in outcome.merges}
    several = len(names | {each.repository for each in outcome.targets}) > 1
    if outcome.merges:
        titles = ("PLACE", "BRANCH", "INTO", "STATE", "BY", "SINCE", "NOTE")
        rows = [
            (
                str(each.place or "-"),
                each.branch,
                _in_repository(each.into, each.repository, several=several),
                paint(_COLOURS[each.state], each.state),
                each.by,
                ago(each.ended_at or each.at),
                _note(each),
            )
            for each in outcome.merges
        ]
        lines.append(table(titles, rows, paint))
    else:
        lines.append("no branch waits; submit one: interlock merge submit BRANCH")
    lines += [line for each in outcome.targets if (line := _target(each, paint, several=several))]
    return "\n".join(lines)


def _in_repository(target: str, repository: str, *, several: bool) -> str:
    """A target, with its repository if there are several."""
    return f"{repository}:{target}" if several and repository else target


def _target(view: core.MergeTargetView, paint: Paint, *, several: bool) -> str:
    name = _in_repository(view.target, view.repository, several=several)
    held = f"; {paint('red', 'held')}: {view.held}" if view.held else ""
    if not view.server:
        serve = f"interlock merge serve --target {quote(view.target)} -- make test"
        return f"{name}: no server{held}; start one: {serve}" if view.waiting else ""
    head = f"{name}: {view.server} serves it"
    return f"{head}, behind {view.guard}{held}" if view.guard else f"{head}, without a guard{held}"


def _note(each: core.ListedMerge) -> str:
    if each.state == "merged":
        return each.merged_as[:_SHORT]
    return foreign(each.reason.split("\n")[0]) if each.reason else ""


TEXTS: dict[str, Text] = {
    "MergeSubmitted": _queued,
    "MergeUnfinished": _unfinished,
    "MergeBusy": _busy,
    "MergeDone": _done,
    "MergeBounced": _bounced,
    "MergeCancelled": _cancelled,
    "MergeOver": _over,
    "UnknownMerge": _unknown,
    "MergesServed": _served,
    "MergesHeld": _held,
    "MergeView": _view,
    "MergeList": _list,
}
"""The text of each outcome, by the name of its class."""
