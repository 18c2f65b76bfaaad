"""The health of messages: problems that an operator should look at.

Most concern absent agents: unread mail, or questions without an answer. A person at a shell without
a session is never present for long, so only mail that is unread for too long counts. Unreadable
items are left to doctor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from interlock.core import keys
from interlock.core.safe_text import foreign, one_line
from interlock.core.validate import command, quote, span
from interlock.nouns.messages import decode
from interlock.nouns.messages.limits import message_limits
from interlock.nouns.messages.presence import liveness_key, receiver_note
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import MOST_PAGE, Pages, looked_up, readable
from interlock.runtime.why import NAMED
from interlock.steps import Op
from interlock.store import Item

MARKS = 100_000
"""Unread marks that a check reads, of all inboxes together."""
FULL = 0.9
"""An inbox filled to this fraction of its limit is reported."""
A_WHILE = 60.0
"""An asker ends its own question; one that expired longer ago is reported."""


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Messages that need attention."""
    waiting = yield from _unread_marks(checkup)
    here, dead = yield from _present(checkup)
    absent = {agent: marks for agent, marks in waiting.items() if agent not in here}
    return [
        *(yield from _unread(checkup, absent)),
        *_deep(waiting, message_limits(checkup.settings).depth),
        *(yield from _paused(checkup)),
        *(yield from _undecided(checkup)),
        *(yield from _unanswered(checkup)),
        *_stale(dead),
    ]


def _unread_marks(checkup: HealthCheck) -> Op[dict[str, list[Item]]]:
    """The unread marks of each agent that has some."""
    found: dict[str, list[Item]] = {}
    pages = Pages(keys.UNREAD, limit=MOST_PAGE)
    while not pages.finished and pages.items < MARKS:
        for item in (yield from pages.read()):
            found.setdefault(keys.agent_of(item.key), []).append(item)
    checkup.partial |= not pages.finished
    return found


def _present(checkup: HealthCheck) -> Op[tuple[AbstractSet[str], list[str]]]:
    """Agents with a live session or receiver, and agents with a dead receiver."""
    items = [*(yield from checkup.read(keys.AGENTS)), *(yield from checkup.read(keys.SERVING))]
    lives = {item.key: readable(liveness_key, item) for item in items}
    live = yield from looked_up(filter(None, lives.values()))
    there = {item.key for item in items if live.get(lives[item.key] or "") is not None}
    dead = {
        keys.agent_of(item.key)
        for item in items
        if item.key.startswith(keys.SERVING) and item.key not in there and lives[item.key]
        if not receiver_note(item).over
    }
    return frozenset(map(keys.agent_of, there)), sorted(dead)


def _unread(checkup: HealthCheck, waiting: Mapping[str, Sequence[Item]]) -> Op[list[Problem]]:
    """Mail that has been unread for long, of an agent that is absent."""
    now = checkup.runner.clock.wall()
    first = {
        agent: keys.message(keys.id_of(_oldest(marks).key)) for agent, marks in waiting.items()
    }
    items = yield from looked_up(first.values())
    joined = yield from looked_up(map(keys.joined, waiting))
    since = {agent: _sent(items[key]) for agent, key in first.items()}
    return [
        Problem(
            kind="unread",
            says=f"agent/{foreign(agent)}: {_messages(len(marks))} for {foreign(agent)}, the first"
            f" for {span(now - at)}, and {_absent(joined[keys.joined(agent)])}",
            remedy=f"start it, or read them for it: interlock inbox --agent {quote(agent)}",
            thing=f"agent/{agent}",
            agent=agent,
            since=at,
        )
        for agent, marks in waiting.items()
        if (at := since[agent]) is not None and now - at > checkup.patience.waiting
    ]


def _deep(waiting: Mapping[str, Sequence[Item]], depth: int) -> Iterator[Problem]:
    for agent, marks in waiting.items():
        if len(marks) >= depth * FULL:
            yield Problem(
                kind="full",
                says=f"agent/{foreign(agent)}: {_messages(len(marks))} for {foreign(agent)}, and no"
                " more than"
                f" {depth} are taken",
                remedy="let it acknowledge what it has read",
                thing=f"agent/{agent}",
                agent=agent,
            )


def _paused(checkup: HealthCheck) -> Op[list[Problem]]:
    items = yield from checkup.read(keys.PAUSED)
    found = [readable(decode.paused, item) for item in items]
    return [
        Problem(
            kind="paused",
            says=f"agent/{foreign(each.agent)}: {foreign(each.by)} does not let it send"
            + (f": {foreign(one_line(each.reason))}" if each.reason else ""),
            remedy="when the cause is fixed:"
            f" interlock agent resume {quote(each.agent)} --agent NAME",
            thing=f"agent/{each.agent}",
            agent=each.agent,
            since=each.since,
        )
        for each in filter(None, found)
    ]


def _undecided(checkup: HealthCheck) -> Op[list[Problem]]:
    items = yield from checkup.read(keys.DECISIONS)
    found = [each for item in items if (each := readable(decode.decision, item)) is not None]
    open_ = sorted([each for each in found if each.state == "open"], key=lambda each: each.at)
    if not open_:
        return []
    first = open_[0]
    more = f" and {len(open_) - NAMED} more" if len(open_) > NAMED else ""
    named = ", ".join(f"{foreign(each.id)} (from {foreign(each.agent)})" for each in open_[:NAMED])
    count = "1 decision waits" if len(open_) == 1 else f"{len(open_)} decisions wait"
    return [
        Problem(
            kind="undecided",
            says=f"{count} for a person: {named}{more}",
            remedy=f"see {command(f'interlock decision show {quote(first.id)}')}",
            thing=f"decision/{first.id}",
            agent=first.agent,
            since=first.at,
        )
    ]


def _unanswered(checkup: HealthCheck) -> Op[list[Problem]]:
    """Expired questions that were not ended."""
    now = checkup.runner.clock.wall()
    ids = [keys.id_of(item.key) for item in (yield from checkup.read(keys.OPEN))]
    live = yield from looked_up(map(keys.live, ids))
    over = [id_ for id_ in ids if live[keys.live(id_)] is None]
    items = yield from looked_up(map(keys.query, over))
    known = {id_: readable(decode.query, items[keys.query(id_)]) for id_ in over}
    late = {
        id_: each.at + each.timeout
        for id_, each in known.items()
        if each is not None and each.state == "open"
    }
    return [
        Problem(
            kind="leftover",
            says=f"query/{foreign(id_)}: it expired {span(now - ended)} ago and was not ended",
            remedy="run 'interlock maintain'",
            thing=f"query/{id_}",
            since=ended,
        )
        for id_, ended in late.items()
        if now - ended > A_WHILE
    ]


def _stale(dead: Sequence[str]) -> Iterator[Problem]:
    for agent in dead:
        yield Problem(
            kind="stale",
            says=f"agent/{foreign(agent)}: a receiver of its messages is lost",
            remedy="run 'interlock maintain'",
            thing=f"agent/{agent}",
            agent=agent,
        )


def _oldest(marks: Sequence[Item]) -> Item:
    return min(marks, key=lambda item: item.created)


def _sent(item: Item | None) -> float | None:
    message = None if item is None else readable(decode.message, item)
    return None if message is None else message.at


def _absent(joined: Item | None) -> str:
    return "no agent of that name has a session" if joined is None else "it is not here"


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"
