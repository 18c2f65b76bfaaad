"""A story as a person reads it: when, who, and what became of it, one line for each happening."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.faces.render import ago, columns, lasting

if TYPE_CHECKING:
    from interlock.core.story import Happening, Story
    from interlock.faces.render import Paint

_COLOURS = {
    "acquired": "green",
    "waiting": "yellow",
    "withdrew": "yellow",
    "reclaimed": "red",
    "refused": "red",
    "lapsed": "red",
}
_WORDS = {"reclaimed": "lost", "status": "reported"}
_REASONS = {
    "fenced": "its token was an older one",
    "not_owner": "it did not hold it",
    "left": "it left",
    "deadlock": "to wait would have been a deadlock",
}
_SHORT = 10.0
_DAY = 86400.0


def told(story: Story, paint: Paint) -> str:
    """All of it, in columns; the name of the thing only where there are several."""
    several = story.thing.startswith("agent/")
    rows = [
        (
            _clock(each.at),
            paint("dim", f"{ago(each.at):>10}"),
            each.agent,
            _sentence(each, paint, name=several),
            paint("dim", each.trace),
        )
        for each in story.happenings
    ]
    more = [paint("dim", "... there is more before; a greater --limit shows it")]
    return "\n".join([*(more if story.earlier else ()), *columns(rows)])


def _sentence(each: Happening, paint: Paint, *, name: bool) -> str:
    word = paint(_COLOURS.get(each.what, "dim"), _WORDS.get(each.what, each.what))
    if each.what in ("joined", "status", "left", "lapsed"):
        return f"{word}, session {each.session}"
    what = f"{word} {each.thing}" if name and each.thing else word
    return ", ".join([what, *_particulars(each)])


def _particulars(each: Happening) -> Iterator[str]:
    """How it was, and how it ended."""
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
    if each.went_to and each.went_to != (each.by,):
        yield f"handed to {_names(each.went_to)}"
    if each.reason:
        yield _REASONS.get(each.reason, each.reason)


def _names(agents: tuple[str, ...]) -> str:
    return ", ".join(agents)


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _SHORT else lasting(seconds)


def _clock(at: float) -> str:
    """The local time, with the day where it was another one."""
    form = "%H:%M:%S" if abs(time.time() - at) < _DAY / 2 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))
