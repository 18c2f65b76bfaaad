"""All kept messages of a fleet, newest first: for operators, who read what agents write.

The keys show when a message was written, so the bodies are read for the newest ones alone.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.messages import inbox_reader
from interlock.nouns.messages.inbox_reader import InboxEntry
from interlock.nouns.messages.message import ABLE, MessageList, Received
from interlock.nouns.messages.views import PORTION, InboxFilter, with_states
from interlock.runtime.reads import MOST_PAGE, Pages, looked_up
from interlock.steps import Op


class FeedFilter(Struct, frozen=True, kw_only=True):
    """Which messages of a fleet are listed."""

    wanted: InboxFilter
    to: str = ""
    open: bool = False
    before: int | None = None

    def fits(self, message: Received) -> bool:
        """Whether a message passes the filter."""
        return (
            self.wanted.fits(message)
            and (not self.to or self.to in message.to)
            and (not self.open or message.state == "open")
        )


def feed(asked: FeedFilter) -> Op[MessageList]:
    """The newest messages that fit, read in portions."""
    entries = sorted((yield from _entries(asked.before)), key=lambda each: -each.seq)
    end = asked.wanted.limit
    found: list[Received] = []
    portion = min(PORTION, end + 1)
    for start in range(0, len(entries), portion):
        page = entries[start : start + portion]
        found += [each for each in (yield from _messages(page)) if asked.fits(each)]
        while end < len(found) and found[end].seq == found[end - 1].seq:
            end += 1  # messages of one commit share their number, and stay together
        if len(found) > end:
            break
    more = found[end - 1].seq if len(found) > end else None
    return MessageList(messages=tuple(found[:end]), more=more)


def _entries(before: int | None) -> Op[list[InboxEntry]]:
    """The places of all messages, without their bodies."""
    found: list[InboxEntry] = []
    for prefix in (keys.MESSAGES, keys.QUERIES, keys.TOPICS):
        pages = Pages(prefix, limit=MOST_PAGE, longest=0)
        while not pages.finished:
            for item in (yield from pages.read()):
                topic = keys.topic_of(item.key) if prefix == keys.TOPICS else ""
                if topic.startswith(ABLE):  # the mark of a question, which has its own key
                    continue
                if before is None or item.created < before:
                    entry = InboxEntry(
                        id=keys.id_of(item.key), seq=item.created, key=item.key, topic=topic
                    )
                    found.append(entry)
    return found


def _messages(page: list[InboxEntry]) -> Op[list[Received]]:
    """The messages of these entries; a question that can be answered is ``open``."""
    items = yield from looked_up([each.key for each in page])
    lives = yield from inbox_reader.question_lives(page)
    decoded = [message for _, message in inbox_reader.decoded_entries(page, items, lives)]
    known = yield from with_states(decoded)
    return [
        replace(each, state="open")
        if each.kind == "query" and each.expires_in is not None
        else each
        for each in known
    ]
