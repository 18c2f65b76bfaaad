"""Acknowledging: many at once, with one commit for as many as the store takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Write
from interlock.drivers import Op
from interlock.nouns.messages import cursors, inbox_rules, logging, reading
from interlock.nouns.messages.inbox_rules import Acks, Cursor, Known, Seen
from interlock.nouns.messages.message import Acknowledged, UnknownMessages
from interlock.nouns.messages.reading import Topic
from interlock.runtime.gather import looked_up, paged
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, Runner
from interlock.store import Item

_FOR_ONE = 5
"""Operations that one message may take: two checks, a mark taken away, one put, and some room."""
_FEW, _LOOKUPS = 10, 1000
"""So many are looked for by their names; for more, all that is there is looked at."""
_BYTES = 500_000
_ALSO = 100
"""A topic of more bytes is read to the end only for a cursor that is longer than this."""


class Acking:
    """Acknowledges messages, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._portion = max(1, (runner.capabilities.max_operations - 16) // _FOR_ONE)

    def ack(
        self, actor: Actor, ids: Sequence[str], can: Iterable[str] = ()
    ) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages by their ids alone: whoever they are to, they are looked up."""
        wanted = tuple(dict.fromkeys(ids))
        seen, begins = yield from self.seen(actor.agent, wanted, can)
        return (yield from self.acknowledge(actor, wanted, seen, begins))

    def seen(
        self, agent: str, ids: Sequence[str], can: Iterable[str]
    ) -> Op[tuple[tuple[Seen, ...], dict[str, Cursor]]]:
        """Which of these are messages of topics, and where the cursors of those begin."""
        marks = yield from looked_up([keys.unread(agent, id_) for id_ in ids])
        others = [id_ for id_ in ids if marks[keys.unread(agent, id_)] is None]
        if not others:
            return (), {}
        heard = yield from reading.topics(agent, can)
        found: list[Seen] = []
        for name, places in (yield from _places(others, heard)).items():
            found.append((yield from _view(heard[name], places)))
        return tuple(found), {name: topic.cursor for name, topic in heard.items()}

    def acknowledge(
        self,
        actor: Actor,
        ids: Sequence[str],
        seen: tuple[Seen, ...] = (),
        begins: Mapping[str, Cursor] = {},
        notes: tuple[Write, ...] = (),
    ) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages of which we know where they are; ``begins`` are their cursors.

        The ``notes`` are written with each commit that this takes.
        """
        of_topics = {id_ for each in seen for id_ in each.messages}
        direct = [id_ for id_ in ids if id_ not in of_topics]
        done: list[Acknowledged | UnknownMessages] = []
        for start in range(0, len(direct) + len(seen), self._portion):
            ends = start + self._portion
            some = tuple(direct[start:ends])
            topics = seen[max(start - len(direct), 0) : max(ends - len(direct), 0)]
            asked = (*some, *[id_ for each in topics for id_ in each.messages])
            acks = Acks(ids=some, topics=topics)
            done.append((yield from self._commit(actor, asked, acks, begins, notes)))
        return together(ids, done)

    def _commit(
        self,
        actor: Actor,
        asked: tuple[str, ...],
        acks: Acks,
        begins: Mapping[str, Cursor],
        notes: tuple[Write, ...] = (),
    ) -> Op[Acknowledged | UnknownMessages]:
        agent = actor.agent

        def deciding() -> DecideOp[Acknowledged | UnknownMessages]:
            marks = {keys.unread(agent, id_): id_ for id_ in acks.ids}
            items = (yield (*marks, *cursors.refs(agent, acks.topics))).items
            waiting = {
                id_: reading.mark(item).trace
                for key, id_ in marks.items()
                if (item := items[key]) is not None
            }
            read: frozenset[str] = frozenset()
            if gone := [id_ for id_ in acks.ids if id_ not in waiting]:
                before = (yield tuple(keys.read(agent, id_) for id_ in gone)).items
                read = frozenset(keys.last(key) for key, item in before.items() if item is not None)
            seen, stand = cursors.standing(agent, acks.topics, begins, items)
            known = Known(waiting=waiting, read=read, cursors=stand)
            now = self._runner.clock.wall()
            decision = inbox_rules.acknowledge(
                agent, asked, Acks(ids=acks.ids, topics=seen), known, now
            )
            return (
                replace(decision, puts=(*decision.puts, *notes)) if decision.changes else decision
            )

        done: Decided[Acknowledged | UnknownMessages] = yield from self._runner.change(
            deciding, actor
        )
        logging.received(agent, done.outcome.messages)
        return done.outcome


def _view(topic: Topic, places: Mapping[str, tuple[int, str]]) -> Op[Seen]:
    """What is unread beside these, unless that is much to read, and the cursor is still short."""
    messages = {id_: revision for id_, (revision, _) in places.items()}
    long = len(topic.cursor.also) + len(messages) > _ALSO
    pending, upto = yield from reading.pending(topic, None if long else _BYTES)
    return Seen(
        topic=topic.name,
        messages=messages,
        pending=pending,
        upto=upto,
        told=reading.told_of(messages),
        terms=topic.terms,
        traces={id_: trace for id_, (_, trace) in places.items()},
    )


def _places(
    ids: Sequence[str], heard: Mapping[str, Topic]
) -> Op[dict[str, dict[str, tuple[int, str]]]]:
    """Which of these are messages of a topic that is heard, their revisions and their traces."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for id_ in ids:
        if (told := reading.missed_of(id_)) is not None and told[0] in heard:
            trimmed = heard[told[0]].trimmed
            if trimmed is not None and told[1] <= trimmed.upto:
                found.setdefault(told[0], {})[id_] = told[1], ""
    wanted = set(ids) - reading.told_of(ids)

    def look(items: Iterable[Item | None]) -> None:
        for item in items:
            if item is not None and (id_ := keys.last(item.key)) in wanted:
                place = found.setdefault(keys.topic_of(item.key), {})
                place[id_] = item.created, reading.trace(item)

    if len(wanted) <= _FEW and len(wanted) * len(heard) <= _LOOKUPS:
        some = yield from looked_up(keys.topic(name, id_) for name in heard for id_ in wanted)
        look(some.values())
    else:
        for name in heard:
            yield from paged(keys.topic(name), look)
    return found


def together(
    ids: Sequence[str], parts: Sequence[Acknowledged | UnknownMessages]
) -> Acknowledged | UnknownMessages:
    """The outcome of all portions, in the order of asking."""
    new = {id_ for each in parts for id_ in each.messages}
    already = {id_ for each in parts for id_ in each.already}
    unknown = tuple([id_ for id_ in ids if id_ not in new and id_ not in already])
    kept = tuple([id_ for id_ in ids if id_ in new])
    before = tuple([id_ for id_ in ids if id_ in already])
    if unknown:
        return UnknownMessages(unknown=unknown, messages=kept, already=before)
    return Acknowledged(messages=kept, already=before)
