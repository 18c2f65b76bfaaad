"""The history of a thing as a person reads it: when, who and what, one line for each event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.runtime.text import ago, columns, lasting

if TYPE_CHECKING:
    from interlock.core.history import HistoryEvent, Story
    from interlock.runtime.text import Paint

_COLOURS = {
    "acquired": "green",
    "waiting": "yellow",
    "withdrew": "yellow",
    "reclaimed": "red",
    "broken": "red",
    "requeued": "red",
    "refused": "red",
    "lapsed": "red",
    "claimed": "green",
    "completed": "green",
    "blocked": "yellow",
    "failed": "red",
    "dead": "red",
    "cancelled": "red",
    "sent": "green",
    "received": "green",
    "replied": "green",
    "asked": "yellow",
    "handed": "yellow",
    "expired": "red",
    "deadlock": "red",
    "stop": "red",
}
_WORDS = {
    "reclaimed": "lost",
    "status": "reported",
    "stop": "asked to stop",
    "expired": "got no answer",
    "handed": "left it to a person",
    "parted": "waits for it no more",
    "deadlock": "refused: the wait would never have ended",
}
_OF_MESSAGES = ("message/", "query/", "alert/", "decision/")
_REASONS = {
    "fenced": "its token was an older one",
    "not_owner": "it did not hold it",
    "left": "it left",
    "deadlock": "to wait would have been a deadlock",
}
_OF_A_TASK = {
    "fenced": "its claim was over",
    "not_owner": "it was not the one at work on it",
    "attempts": "no attempt is left",
    "deadline": "no worker began it before its deadline",
    "final": "for good",
}
_BEGINS = ("published", "retried")
_SHORT = 10.0
_DAY = 86400.0


def history_text(story: Story, paint: Paint) -> str:
    """All of it, in columns; the name of the thing only where there are several."""
    several = story.thing.startswith("agent/")
    rows = [
        (
            _clock(each.at),
            paint("dim", f"{ago(each.at):>10}"),
            each.agent or "-",
            _sentence(each, paint, name=several),
            paint("dim", each.trace),
        )
        for each in story.happenings
    ]
    more = [paint("dim", "... there is more before; a greater --limit shows it")]
    return "\n".join([*(more if story.earlier else ()), *columns(rows)])


def _sentence(each: HistoryEvent, paint: Paint, *, name: bool) -> str:
    word = paint(_COLOURS.get(each.what, "dim"), _WORDS.get(each.what, each.what))
    if each.what in ("joined", "status", "left", "lapsed"):
        return f"{word}, session {each.session}"
    named = name and each.thing and each.what != "stop"
    what = f"{word} {each.thing}" if named else word
    return ", ".join([what, *_particulars(each)])


def _particulars(each: HistoryEvent) -> Iterator[str]:
    """How it was, and how it ended."""
    if each.thing.startswith("task/"):
        return _of_a_task(each)
    if each.thing.startswith(_OF_MESSAGES) or each.count is not None or each.what == "stop":
        return _of_a_message(each)
    return _of_a_pool(each)


def _of_a_pool(each: HistoryEvent) -> Iterator[str]:
    """What happened to a lock, or to slots."""
    if each.token is not None:
        yield f"token {each.token}"
    if each.behind:
        yield f"behind {_names(each.behind)}"
    if each.waited is not None:
        behind = f" behind {_names(each.came_from)}" if each.came_from else ""
        yield f"waited {_span(each.waited)}{behind}"
    elif each.came_from:
        yield f"taken over from {_names(each.came_from)}"
    if each.held is not None:
        yield f"held {_span(each.held)}"
    if each.what == "reclaimed":
        by = f" by {each.by}" if each.by else ""
        yield f"reclaimed{by} since its grant had lapsed"
    if each.what == "broken":
        yield f"ended by {each.by or each.agent}: {each.says}"
    if each.went_to and each.went_to != (each.by,):
        yield f"handed to {_names(each.went_to)}"
    if each.reason:
        yield _REASONS.get(each.reason, each.reason)


def _of_a_task(each: HistoryEvent) -> Iterator[str]:
    """What happened to a task."""
    if each.what == "claimed" and each.token is not None:
        yield f"token {each.token}"
    if each.attempt is not None:
        yield f"attempt {each.attempt}"
    if each.held is not None:
        yield f"worked {_span(each.held)}"
    yield from _went(each)
    if each.rests is not None:
        word = "not to begin for" if each.what in _BEGINS else "rests"
        yield f"{word} {_span(each.rests)}"
    if each.reason:
        yield _OF_A_TASK.get(each.reason, each.reason)
    if each.says:
        yield f"the reason: {each.says}"


def _of_a_message(each: HistoryEvent) -> Iterator[str]:
    """What happened to a message, a question, or a decision for a person."""
    if each.count is not None:
        yield f"{each.count} {each.on}"
        return
    if each.went_to:
        yield f"to {_names(each.went_to)}"
    if each.on and each.on != each.thing:
        yield each.on
    if each.waited is not None:
        yield f"after {_span(each.waited)}"
    if each.by:
        yield f"by {each.by}"


def _went(each: HistoryEvent) -> Iterator[str]:
    """What came of it, and which agent caused it."""
    match each.what:
        case "reclaimed":
            yield "its claim had lapsed" + (f", as {each.by} found" if each.by else "")
        case "unblocked":
            by = f"{each.by} completed {each.on}" if each.by else f"{each.on} is complete"
            yield f"since {by}"
        case "requeued":
            yield f"its claim was ended by {each.by or each.agent}"
        case "ready":
            yield "since its time has come"
        case "blocked":
            yield f"now on {each.on}"
        case _:
            yield from [f"blocked on {each.on}"] if each.on else []


def _names(agents: tuple[str, ...]) -> str:
    return ", ".join(agents)


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _SHORT else lasting(seconds)


def _clock(at: float) -> str:
    """The local time, with the day where it was another one."""
    form = "%H:%M:%S" if abs(time.time() - at) < _DAY / 2 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))
