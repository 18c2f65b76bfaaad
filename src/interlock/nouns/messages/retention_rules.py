"""Retention: which messages are deleted, and when; unread direct messages never are.

    read/, sent/   a mark is deleted when it is older than ``age``, or when its agent has ``count``
                   newer ones; the last mark of a message takes the message with it
    ids/           an id that a sender chose is deleted when it is older than ``age``
    topics/        a message is deleted by age or count.  A topic cannot wait for subscribers that
                   never return: the same commit writes ``trimmed/{topic}``, and a subscriber that
                   has not read so far gets a notice
    queries/       an ended query is deleted by age or count, with its answer and its cache entry
    ?ability       a question is deleted when it has ended
    rates/, serving/, decisions/   unused for ``age``

A message has a mark for each recipient, unread or read, and one for the sender of mail. A mark is
created with the message or in place of another mark, so a deleted mark never returns. Two processes
that delete two marks of one message might each leave the message to the other, so the commit that
deletes a mark checks all marks of the message.

Times come from many clocks, and the order is that of the commits: a message counts as at least as
new as those before it, unless their times lie in the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.nouns.messages.inbox_rules import TopicTrim
from interlock.nouns.messages.message import StoredMessage
from interlock.nouns.messages.query import CachedAnswer, Query
from interlock.runtime.retention import Forgotten, RetentionLimits, deletion


class RetentionItem(Struct, frozen=True, gc=False):
    """Something that may be deleted: its key, its revision, and when it ended.

    ``at`` is None for an item that has not ended or cannot be read; it is kept. ``sender`` is set
    for messages of topics.
    """

    key: str
    created: int
    at: float | None
    sender: str = ""


class MarkDeletion(Struct, frozen=True, kw_only=True):
    """A mark to delete, and the message that goes with its last mark."""

    mark: str
    message: str = ""
    others: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many operations it may need."""
        return 3 + len(self.others)


def expired_items(
    marks: Sequence[RetentionItem], limits: RetentionLimits, now: float
) -> list[RetentionItem]:
    """The items to delete, oldest first."""
    known = sorted([each for each in marks if each.at is not None], key=lambda each: each.created)
    beyond = len(known) - limits.count
    moments = _moments(known, now)
    found = zip(range(len(known)), known, moments, strict=True)
    return [mark for number, mark, at in found if number < beyond or at + limits.age < now]


def _moments(marks: Sequence[RetentionItem], now: float) -> Iterator[float]:
    latest = 0.0
    for mark in marks:
        own = mark.at or 0.0
        if own <= now:
            latest = max(latest, own)
        yield max(latest, own)


def mark_deletion(mark: str, message: StoredMessage | None) -> MarkDeletion:
    """What to delete with a mark, if its message has marks."""
    if message is None:
        return MarkDeletion(mark=mark)
    marks = {
        **{keys.unread(each, message.id): None for each in message.to},
        **{keys.read(each, message.id): None for each in message.to},
        **({keys.sent(message.sender, message.id): None} if message.kind == "mail" else {}),
    }
    if mark.startswith(keys.READ):  # a recipient has one or the other
        marks.pop(keys.unread(keys.agent_of(mark), message.id), None)
    marks.pop(mark, None)
    return MarkDeletion(mark=mark, message=keys.message(message.id), others=tuple(marks))


def batches(deletions: Sequence[MarkDeletion], space: int) -> Iterator[list[MarkDeletion]]:
    """Group deletions so that each batch fits into a commit."""
    some: list[MarkDeletion] = []
    for each in deletions:
        if some and sum(one.size for one in some) + each.size > space:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def delete_marks(
    deletions: Sequence[MarkDeletion], standing: AbstractSet[str]
) -> Decision[Forgotten]:
    """Delete these marks, and the messages that have no other mark."""
    found = [each for each in deletions if each.mark in standing]
    last = [each for each in found if each.message and standing.isdisjoint(each.others)]
    gone = (*[each.mark for each in found], *[each.message for each in last])
    return deletion("message.forget", gone, len(found))


def trim(
    topic: str, going: Sequence[RetentionItem], before: TopicTrim | None
) -> Decision[Forgotten]:
    """Delete messages of a topic, and record that for subscribers that have not read them."""
    return Decision(
        outcome=Forgotten(count=len(going)),
        verb="alert.forget",
        thing=f"alert/{topic}",
        puts=(Write(keys.trimmed(topic), _trimmed(going, before)),),
        deletes=tuple([each.key for each in going]),
    )


def _trimmed(going: Sequence[RetentionItem], before: TopicTrim | None) -> TopicTrim:
    """How far a topic is deleted, in all and without the sender of the last deleted message.

    A reader does not receive its own messages; these two numbers say whether it missed any, for any
    number of senders.
    """
    known = before or TopicTrim(upto=0, count=0)
    ends = [(known.others, ""), (known.upto, known.by)]
    ends += [(each.created, each.sender) for each in going]
    upto, by = max(ends)
    others = max([revision for revision, sender in ends if sender != by], default=0)
    return TopicTrim(upto=upto, count=known.count + len(going), by=by, others=others)


def ended_at(query: Query) -> float | None:
    """When a question ended; the latest possible time if that was not recorded.

    Not before it was asked, since the answerer's clock may be slow.
    """
    if query.state in ("open", "handed"):
        return None
    return max(query.replied, query.at) if query.replied else query.at + query.timeout


def delete_queries(
    queries: Sequence[Query], answers: Mapping[str, CachedAnswer | None]
) -> Decision[Forgotten]:
    """Delete ended questions, with their answers and cache entries."""
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
    """The key of the cache entry that names the last query with this question."""
    return keys.last_answer(query.to, bytes(query.question))
