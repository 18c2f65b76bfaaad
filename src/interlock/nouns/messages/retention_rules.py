"""What is forgotten of messages, and when: nothing that somebody has still to read.

    read/, sent/   a mark goes when it is older than ``age``, or when its agent has ``count`` newer
                   ones; with the last mark of a message, read or unread, the message goes
    ids/           one that a sender chose goes when it is older than ``age``, and only then
    topics/        a message goes likewise.  A topic cannot wait for those who never come back, so
                   in the same commit ``trimmed/{topic}`` says how far it was forgotten, and whoever
                   has not read so far is told
    queries/       one that has ended goes likewise, with its answer and the note of that
    ?ability       a question goes when it is over, which nobody need be told
    rates/, serving/, decisions/   whatever is over, and has been for ``age``

A message has a mark for each reader, unread or read, and one for the sender of mail.  A mark is
made with the message, or in place of another one, so what is gone never comes back.  But two who
forget two marks of one message might each leave the message to the other: so all of its marks are
checked by the commit that takes one away.

Moments are those of many clocks, and order is that of the commits: a message is not older than
those before it say, unless they say that they are from the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Success, Write
from interlock.nouns.messages.inbox_rules import TopicTrim
from interlock.nouns.messages.message import StoredMessage
from interlock.nouns.messages.query_rules import CachedAnswer, Query

THING = "record"


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """How long something is kept after it was read, and how many of its kind."""

    age: float
    count: int


class RetentionItem(Struct, frozen=True, gc=False):
    """Something that may be forgotten: where, its place in the order, and when it was over.

    ``at`` is None for what is not over, or cannot be read: it stays.  ``sender`` is known of
    messages to all.
    """

    key: str
    created: int
    at: float | None
    sender: str = ""


class Forgotten(Success, frozen=True, kw_only=True, tag="forgotten"):
    """So many are gone."""

    count: int = 0


class MarkDeletion(Struct, frozen=True, kw_only=True):
    """A mark to be forgotten, and the message that goes with the last of them."""

    mark: str
    message: str = ""
    others: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many operations it may take."""
        return 3 + len(self.others)


def expired_items(
    marks: Sequence[RetentionItem], keep: RetentionLimits, now: float
) -> list[RetentionItem]:
    """Those that go, oldest first."""
    known = sorted([each for each in marks if each.at is not None], key=lambda each: each.created)
    beyond = len(known) - keep.count
    moments = _moments(known, now)
    found = zip(range(len(known)), known, moments, strict=True)
    return [mark for number, mark, at in found if number < beyond or at + keep.age < now]


def _moments(marks: Sequence[RetentionItem], now: float) -> Iterator[float]:
    latest = 0.0
    for mark in marks:
        own = mark.at or 0.0
        if own <= now:
            latest = max(latest, own)
        yield max(latest, own)


def mark_deletion(mark: str, message: StoredMessage | None) -> MarkDeletion:
    """What goes with a mark, if its message is one that has marks."""
    if message is None:
        return MarkDeletion(mark=mark)
    marks = {
        **{keys.unread(each, message.id): None for each in message.to},
        **{keys.read(each, message.id): None for each in message.to},
        **({keys.sent(message.sender, message.id): None} if message.kind == "mail" else {}),
    }
    if mark.startswith(keys.READ):  # its reader has not both
        marks.pop(keys.unread(keys.owner_of(mark), message.id), None)
    marks.pop(mark, None)
    return MarkDeletion(mark=mark, message=keys.message(message.id), others=tuple(marks))


def delete_marks(aims: Sequence[MarkDeletion], standing: AbstractSet[str]) -> Decision[Forgotten]:
    """Take these marks away, and the messages of which no other mark stands."""
    found = [each for each in aims if each.mark in standing]
    last = [each for each in found if each.message and standing.isdisjoint(each.others)]
    gone = (*[each.mark for each in found], *[each.message for each in last])
    return deletion("message.forget", gone, len(found))


def trim(
    topic: str, going: Sequence[RetentionItem], before: TopicTrim | None
) -> Decision[Forgotten]:
    """Forget these messages of a topic, and say so to whoever has not read them."""
    return Decision(
        outcome=Forgotten(count=len(going)),
        verb="alert.forget",
        thing=f"alert/{topic}",
        puts=(Write(keys.trimmed(topic), _trimmed(going, before)),),
        deletes=tuple([each.key for each in going]),
    )


def _trimmed(going: Sequence[RetentionItem], before: TopicTrim | None) -> TopicTrim:
    """How far a topic is forgotten with these, and how far but for whoever sent the last of them.

    So whoever is not told of its own messages can tell whether it missed any: two numbers are
    enough, however many have sent some.
    """
    known = before or TopicTrim(upto=0, count=0)
    ends = [(known.others, ""), (known.upto, known.by)]
    ends += [(each.created, each.sender) for each in going]
    upto, by = max(ends)
    others = max([revision for revision, sender in ends if sender != by], default=0)
    return TopicTrim(upto=upto, count=known.count + len(going), by=by, others=others)


def ended_at(query: Query) -> float | None:
    """When a question was over; at the latest, where nobody wrote that down.

    No earlier than it was asked: the clock of whoever answered may be slow.
    """
    if query.state in ("open", "handed"):
        return None
    return max(query.replied, query.at) if query.replied else query.at + query.timeout


def delete_queries(
    queries: Sequence[Query], answers: Mapping[str, CachedAnswer | None]
) -> Decision[Forgotten]:
    """Forget these questions, as far as they are over, and that they were answered."""
    found = [each for each in queries if ended_at(each) is not None]
    notes = {
        key: None
        for each in found
        if (note := answers.get(key := answer_key(each))) is not None and note.query == each.id
    }
    apart = [keys.reply(each.id) for each in found if each.apart]
    gone = (*[keys.query(each.id) for each in found], *apart, *notes)
    return deletion("query.forget", gone, len(found))


def answer_key(query: Query) -> str:
    """Where it is written down which query answered this question last."""
    return keys.answer(query.to, bytes(query.question))


def deletion(verb: str, gone: Sequence[str], count: int) -> Decision[Forgotten]:
    """Forget what is over."""
    if not gone:
        return Decision(outcome=Forgotten())
    return Decision(outcome=Forgotten(count=count), verb=verb, thing=THING, deletes=tuple(gone))
