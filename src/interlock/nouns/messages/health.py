"""The health of messages: problems that an operator should look at.

Most concern absent agents: unread mail, or questions without an answer. A person at a shell without
a session is never present for long, so only mail that is unread for too long counts. Unreadable
items are left to doctor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import quote, span
from interlock.drivers import Op, Read
from interlock.nouns.messages import decode
from interlock.nouns.messages.limits import MessageLimits, message_limits
from interlock.nouns.messages.presence import liveness_key, receiver_note
from interlock.nouns.messages.query import HumanDecision
from interlock.runtime.health import HealthCheck, Patience, Problem
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED
from interlock.store import Item, Range

BOUND = 10_000
"""Items that a check reads of each folder."""
MARKS = 100_000
"""Unread marks that a check reads, of all inboxes together."""
FULL = 0.9
"""An inbox filled to this fraction of its limit is reported."""
A_WHILE = 60.0
"""An asker ends its own question; one that expired longer ago is reported."""


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Messages that need attention."""
    messages = MessageHealth(checkup.runner, message_limits(checkup.settings), checkup.patience)
    found = yield from messages.run()
    checkup.partial |= messages.partial
    return found


class UnreadCount(Struct, frozen=True, kw_only=True):
    """The number of unread messages of an agent, and the oldest."""

    agent: str
    count: int
    first: str


class MessageHealth:
    """The check; a generator for a driver."""

    def __init__(self, runner: Runner, limits: MessageLimits, patience: Patience) -> None:
        self._runner = runner
        self._limits = limits
        self._patience = patience
        self.partial = False
        """Whether there are more items than a check reads."""

    def run(self) -> Op[list[Problem]]:
        """Check everything once."""
        waiting = yield from self._waiting()
        here, dead = yield from self._here()
        now = self._runner.clock.wall()
        return [
            *(yield from self._unread([each for each in waiting if each.agent not in here], now)),
            *self._deep(waiting),
            *(yield from self._paused()),
            *(yield from self._undecided()),
            *(yield from self._unanswered(now)),
            *_stale(dead),
        ]

    def _read(self, prefix: str) -> Op[list[Item]]:
        items = yield from every(prefix, most=BOUND + 1)
        self.partial |= len(items) > BOUND
        return items[:BOUND]

    def _waiting(self) -> Op[list[UnreadCount]]:
        """The unread messages of each agent that has some."""
        found: dict[str, list[Item]] = {}
        after, seen = "", 0
        while seen < MARKS:
            page = Range(keys.UNREAD, after)
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            for item in items:
                found.setdefault(keys.agent_of(item.key), []).append(item)
            seen += len(items)
            if len(items) < page.limit:
                break
            after = items[-1].key
        else:
            self.partial = True
        return [
            UnreadCount(agent=agent, count=len(marks), first=keys.id_of(_oldest(marks).key))
            for agent, marks in found.items()
        ]

    def _here(self) -> Op[tuple[AbstractSet[str], list[str]]]:
        """Agents with a live session or receiver, and agents with a dead receiver."""
        items = [*(yield from self._read(keys.AGENTS)), *(yield from self._read(keys.SERVING))]
        lives = {item.key: readable(liveness_key, item) for item in items}
        live = yield from looked_up(filter(None, lives.values()))
        there = [item.key for item in items if live.get(lives[item.key] or "") is not None]
        dead = [
            keys.agent_of(item.key)
            for item in items
            if item.key.startswith(keys.SERVING) and item.key not in set(there) and lives[item.key]
            if not receiver_note(item).over
        ]
        return frozenset(map(keys.agent_of, there)), sorted(set(dead))

    def _unread(self, waiting: Sequence[UnreadCount], now: float) -> Op[list[Problem]]:
        """Mail that has been unread for long, of an agent that is absent."""
        items = yield from looked_up(keys.message(each.first) for each in waiting)
        joined = yield from looked_up(keys.joined(each.agent) for each in waiting)
        since = {each.agent: _sent(items[keys.message(each.first)]) for each in waiting}
        return [
            Problem(
                kind="unread",
                says=f"agent/{each.agent}: {_messages(each.count)} for {each.agent}, the first"
                f" for {span(now - at)}, and {_absent(joined[keys.joined(each.agent)])}",
                remedy=f"start it, or read them for it:"
                f" interlock inbox --agent {quote(each.agent)}",
                thing=f"agent/{each.agent}",
                agent=each.agent,
                since=at,
            )
            for each in waiting
            if (at := since[each.agent]) is not None and now - at > self._patience.waiting
        ]

    def _deep(self, waiting: Sequence[UnreadCount]) -> Iterator[Problem]:
        depth = self._limits.depth
        for each in waiting:
            if each.count >= depth * FULL:
                yield Problem(
                    kind="full",
                    says=f"agent/{each.agent}: {_messages(each.count)} for {each.agent}, and no"
                    f" more than {depth} are taken",
                    remedy="let it acknowledge what it has read",
                    thing=f"agent/{each.agent}",
                    agent=each.agent,
                )

    def _paused(self) -> Op[list[Problem]]:
        items = yield from self._read(keys.PAUSED)
        found = [readable(decode.paused, item) for item in items]
        return [
            Problem(
                kind="paused",
                says=f"agent/{each.agent}: {each.by} does not let it send"
                + (f" ({each.reason})" if each.reason else ""),
                remedy="when the cause is fixed:"
                f" interlock agent resume {quote(each.agent)} --agent NAME",
                thing=f"agent/{each.agent}",
                agent=each.agent,
                since=each.since,
            )
            for each in filter(None, found)
        ]

    def _undecided(self) -> Op[list[Problem]]:
        items = yield from self._read(keys.DECISIONS)
        found = [each for item in items if (each := readable(decode.decision, item)) is not None]
        open_ = sorted([each for each in found if each.state == "open"], key=lambda each: each.at)
        return [_decision(open_)] if open_ else []

    def _unanswered(self, now: float) -> Op[list[Problem]]:
        """Expired questions that were not ended."""
        ids = [keys.id_of(item.key) for item in (yield from self._read(keys.OPEN))]
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
                says=f"query/{id_}: it expired {span(now - ended)} ago and was not ended",
                remedy="run 'interlock maintain'",
                thing=f"query/{id_}",
                since=ended,
            )
            for id_, ended in late.items()
            if now - ended > A_WHILE
        ]


def _oldest(marks: Sequence[Item]) -> Item:
    return min(marks, key=lambda item: item.created)


def _sent(item: Item | None) -> float | None:
    message = None if item is None else readable(decode.message, item)
    return None if message is None else message.at


def _absent(joined: Item | None) -> str:
    return "no agent of that name has a session" if joined is None else "it is not here"


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"


def _decision(open_: Sequence[HumanDecision]) -> Problem:
    first = open_[0]
    more = f" and {len(open_) - NAMED} more" if len(open_) > NAMED else ""
    named = ", ".join(f"{each.id} (from {each.agent})" for each in open_[:NAMED])
    count = "1 decision waits" if len(open_) == 1 else f"{len(open_)} decisions wait"
    return Problem(
        kind="undecided",
        says=f"{count} for a person: {named}{more}",
        remedy=f"see 'interlock decision show {first.id}'",
        thing=f"decision/{first.id}",
        agent=first.agent,
        since=first.at,
    )


def _stale(dead: Sequence[str]) -> Iterator[Problem]:
    for agent in dead:
        yield Problem(
            kind="stale",
            says=f"agent/{agent}: a receiver of its messages is lost",
            remedy="run 'interlock maintain'",
            thing=f"agent/{agent}",
            agent=agent,
        )
