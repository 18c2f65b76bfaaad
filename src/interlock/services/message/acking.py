"""Acknowledging: many at once, with one commit for as many as the store takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from interlock.core import inbox, keys
from interlock.core.inbox import Acks, Cursor, Known, Seen
from interlock.core.message import Acknowledged, NotYours
from interlock.driving import Op
from interlock.services.gather import looked_up
from interlock.services.message import journal, reading, states
from interlock.services.message.reading import Topic
from interlock.services.runner import Deciding, Done, Runner, Who
from interlock.services.states import readable

_FOR_ONE = 5
"""Operations that one message may take: two checks, a mark taken away, one put, and some room."""


class Acking:
    """Acknowledges messages, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._portion = max(1, (runner.capabilities.max_operations - 16) // _FOR_ONE)

    def ack(
        self, who: Who, ids: Sequence[str], can: Iterable[str] = ()
    ) -> Op[Acknowledged | NotYours]:
        """Acknowledge messages by their ids alone: whoever they are to, they are looked up."""
        wanted = tuple(dict.fromkeys(ids))
        seen, begins = yield from self.seen(who.agent, wanted, can)
        return (yield from self.acknowledge(who, wanted, seen, begins))

    def seen(
        self, agent: str, ids: Sequence[str], can: Iterable[str]
    ) -> Op[tuple[tuple[Seen, ...], dict[str, Cursor]]]:
        """Which of these are messages of topics, and where the cursors of those begin."""
        heard = yield from reading.topics(agent, can)
        places = yield from self._places(ids, heard)
        found: list[Seen] = []
        for name, messages in places.items():
            unread, upto = yield from reading.unheard(heard[name])
            pending = [each.seq for each in unread]
            told = reading.told_of(messages)
            found.append(Seen(topic=name, messages=messages, pending=pending, upto=upto, told=told))
        return tuple(found), {name: topic.cursor for name, topic in heard.items()}

    def acknowledge(
        self,
        who: Who,
        ids: Sequence[str],
        seen: tuple[Seen, ...] = (),
        begins: Mapping[str, Cursor] = {},
    ) -> Op[Acknowledged | NotYours]:
        """Acknowledge messages of which we know where they are; ``begins`` are their cursors."""
        of_topics = {id_ for each in seen for id_ in each.messages}
        direct = [id_ for id_ in ids if id_ not in of_topics]
        done: list[Acknowledged | NotYours] = []
        for start in range(0, len(direct) + len(seen), self._portion):
            ends = start + self._portion
            some = tuple(direct[start:ends])
            topics = seen[max(start - len(direct), 0) : max(ends - len(direct), 0)]
            asked = (*some, *[id_ for each in topics for id_ in each.messages])
            acks = Acks(ids=some, topics=topics)
            done.append((yield from self._commit(who, asked, acks, begins)))
        return together(ids, done)

    def _commit(
        self, who: Who, asked: tuple[str, ...], acks: Acks, begins: Mapping[str, Cursor]
    ) -> Op[Acknowledged | NotYours]:
        agent = who.agent

        def deciding() -> Deciding[Acknowledged | NotYours]:
            marks = {keys.unread(agent, id_): id_ for id_ in acks.ids}
            cursors = {keys.cursor(agent, each.topic): each.topic for each in acks.topics}
            items = (yield (*marks, *cursors)).items
            waiting = frozenset(id_ for key, id_ in marks.items() if items[key] is not None)
            read: frozenset[str] = frozenset()
            if gone := [id_ for id_ in acks.ids if id_ not in waiting]:
                before = (yield tuple(keys.read(agent, id_) for id_ in gone)).items
                read = frozenset(keys.last(key) for key, item in before.items() if item is not None)
            known = Known(
                waiting=waiting,
                read=read,
                cursors={
                    topic: readable(states.cursor, items[key]) or begins[topic]
                    for key, topic in cursors.items()
                },
            )
            return inbox.acknowledge(agent, asked, acks, known, self._runner.clock.wall())

        done: Done[Acknowledged | NotYours] = yield from self._runner.change(deciding, who)
        journal.received(agent, done.outcome.messages)
        return done.outcome

    def _places(
        self, ids: Sequence[str], heard: Mapping[str, Topic]
    ) -> Op[dict[str, dict[str, int]]]:
        """Which of these are messages of a topic that is heard, and their revisions."""
        items = yield from looked_up(keys.topic(name, id_) for name in heard for id_ in ids)
        found: dict[str, dict[str, int]] = {}
        for id_ in ids:
            if (told := reading.missed_of(id_)) is not None and told[0] in heard:
                trimmed = heard[told[0]].trimmed
                if trimmed is not None and told[1] <= trimmed.upto:
                    found.setdefault(told[0], {})[id_] = told[1]
        for key, item in items.items():
            if item is not None:
                found.setdefault(keys.topic_of(key), {})[keys.last(key)] = item.created
        return found


def together(
    ids: Sequence[str], parts: Sequence[Acknowledged | NotYours]
) -> Acknowledged | NotYours:
    """The outcome of all portions, in the order of asking."""
    new = {id_ for each in parts for id_ in each.messages}
    already = {id_ for each in parts for id_ in each.already}
    unknown = tuple([id_ for id_ in ids if id_ not in new and id_ not in already])
    kept = tuple([id_ for id_ in ids if id_ in new])
    before = tuple([id_ for id_ in ids if id_ in already])
    if unknown:
        return NotYours(unknown=unknown, messages=kept, already=before)
    return Acknowledged(messages=kept, already=before)
