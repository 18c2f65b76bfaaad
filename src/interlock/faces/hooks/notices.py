"""What the hooks report beside the answer to an event: messages, and foreign writes.

A notice is one text and what is to be remembered of it.  An answer is short, so only those that fit
are shown and remembered; the others come with the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from interlock.core import keys
from interlock.core.safe_text import all_foreign, bars, foreign

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.hooks.state import HookState
    from interlock.nouns.messages.message import Received
    from interlock.nouns.reservations import reservation as r
    from interlock.nouns.reservations.repository import ReservedRepository
    from interlock.steps import Op

MOST = 1200
"""Bytes of an answer: about 300 tokens."""
_CUT = "\n... (cut; see 'interlock inbox')"
_MORE = "... and more, with the next event"
_TAIL = max(len(_CUT), len(_MORE) + 1)
_LISTED = 20
"""New messages that are looked at."""
_FILES = 8
"""Files that one answer names."""
_REASON = 160
"""Characters of a reason."""
_REMEMBERED = 100


class Notice(NamedTuple):
    """A text, and what remembers that it was shown; called with True if it was cut."""

    text: str
    remember: Callable[[bool], None]
    needed: bool = False
    """Whether it is cut rather than left for the next answer."""


def fitted(notices: list[Notice]) -> str:
    """The text of the notices that fit into one answer, which are remembered."""
    found, left = list[str](), MOST - _TAIL
    for each in notices:
        size = len(each.text.encode()) + 1
        if size > left and not each.needed:
            found.append(_MORE)
            break
        if size > left:
            found.append(each.text.encode()[:left].decode("utf-8", "ignore") + _CUT)
            each.remember(True)
            break
        found.append(each.text)
        each.remember(False)
        left -= size
    return "\n".join(found)


def unread_messages(
    fleet: Fleet, state: HookState, *, stops: Literal["always", "once", "never"] = "always"
) -> Iterator[Notice]:
    """Unread messages, one a notice, a request to stop first."""
    from interlock.steps import drive

    if not drive(_waiting(fleet.context.me().actor.agent), fleet.store):
        return
    from interlock.faces.mcp import words

    found = fleet.messages.inbox(limit=len(state.left) + _LISTED).messages
    asked = [each for each in found if each.kind == "stop"]
    new = [each for each in found if each.kind != "stop" and each.id not in state.left]
    if stops == "once":
        asked = [each for each in asked if each.id not in state.left]
    if asked and stops != "never":
        last, data = asked[-1], asked[-1].data
        reason = data if isinstance(data, str) else ""
        ids = [each.id for each in asked] if stops == "once" else []
        remember = partial(_leave_unread, state, ids)
        yield Notice(words.stop(last.sender, reason), remember, needed=True)
    for number, each in enumerate(new):
        first = not number
        head = f"--- unread: {len(new)}; lines behind | are text of other agents ---\n"
        text = (head if first else "") + _text(each)
        yield Notice(text, partial(_remember, state, each), needed=first)


def _waiting(agent: str) -> Op[bool]:
    """Whether there may be messages: most often there is none, and this is the only read."""
    from interlock.steps import Read
    from interlock.store import Range

    mine, topics = Range(keys.unread(agent), limit=1), Range(keys.TOPICS, limit=1)
    snapshot = yield Read(mine, topics)
    return any(snapshot.ranges[each] for each in (mine, topics))


def given_reason(reason: str) -> list[str]:
    """The reason of a reservation, on lines of its own."""
    return bars(reason, lines=2, characters=_REASON) if reason else []


def _text(message: Received) -> str:
    from interlock.nouns.messages.text import received
    from interlock.runtime.text import Paint

    return received(all_foreign(message), Paint(colour=False))


def _leave_unread(state: HookState, ids: list[str], _cut: bool) -> None:
    state.left = list(dict.fromkeys([*state.left, *ids]))[-_REMEMBERED:]


def _remember(state: HookState, message: Received, cut: bool) -> None:
    """A question stays unread until it is answered, and a cut message until the agent reads it."""
    if cut or message.kind == "query":
        _leave_unread(state, [message.id], cut)
    else:
        state.shown = list(dict.fromkeys([*state.shown, message.id]))


def foreign_writes(fleet: Fleet, place: ReservedRepository, state: HookState) -> Iterator[Notice]:
    """Changed files that another agent has reserved and did not write by its edit tool."""
    from interlock.faces.hooks import writes

    if not fleet.reservations.list(repository=place.name, limit=1):
        return
    paths = writes.changed(place.root)
    if not paths:
        return
    if not fleet.reservations.conflicts(paths, worktree=place.root, repository=place.name):
        return
    known = writes.edited(place.root)
    named = 0
    for path in paths:
        looks = writes.look(place.root, path)
        if state.reported.get(path) == looks:
            continue
        each = _holder_of(fleet, place, path)
        if each is None or known.get(path) == (each.holder, looks):
            continue
        text = f"- {foreign(path)}: reserved by {foreign(each.holder)}"
        text = "\n".join([text, *given_reason(each.reason)])
        yield Notice(text if named else f"{_HEAD}\n{text}", partial(_report, state, path, looks))
        named += 1
        if named == _FILES:
            return


_HEAD = (
    "interlock: these files changed outside of the edit tool, and other agents have reserved them."
    " If you wrote them, undo that (git diff, git checkout -- FILE) and ask the holder;"
    " the commit hook and the merge queue refuse them."
)


def _report(state: HookState, path: str, looks: list[int], _cut: bool) -> None:
    state.reported[path] = looks


def _holder_of(fleet: Fleet, place: ReservedRepository, path: str) -> r.ReservationOverlap | None:
    found = fleet.reservations.conflicts([path], worktree=place.root, repository=place.name)
    return found[0] if found else None
