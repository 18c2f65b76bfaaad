"""Where cursors stand, for a decision that moves them: what it reads, and what it knows then.

What somebody leaves out because of the terms of a subscription is unread as soon as these change.
So the subscription is read with its cursor, and checked by the commit: under other terms a cursor
passes nothing but what is acknowledged, and whoever reads the topic anew moves it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interlock.core import keys
from interlock.nouns.messages import decode, inbox_rules
from interlock.nouns.messages.inbox_rules import Cursor, Seen
from interlock.runtime.decode import readable
from interlock.store import Item


def refs(agent: str, seen: Iterable[Seen]) -> tuple[str, ...]:
    """What is to be read before these are acknowledged."""
    topics = [each.topic for each in seen]
    cursors = [keys.cursor(agent, topic) for topic in topics]
    return (*cursors, *[keys.subscription(agent, topic) for topic in topics])


def standing(
    agent: str,
    seen: Iterable[Seen],
    begins: Mapping[str, Cursor],
    items: Mapping[str, Item | None],
) -> tuple[tuple[Seen, ...], dict[str, Cursor]]:
    """What still holds of what somebody saw, and the cursors; ``begins`` if nothing says more."""
    found: dict[str, Cursor] = {}
    for topic in [each.topic for each in seen]:
        item = items[keys.subscription(agent, topic)]
        asked = readable(decode.subscription, item)
        begin = (
            begins[topic]
            if item is None or asked is None
            else inbox_rules.begin(asked, item.created)
        )
        found[topic] = inbox_rules.standing(
            readable(decode.cursor, items[keys.cursor(agent, topic)]), begin
        )
    return tuple(
        inbox_rules.under(each, terms(items[keys.subscription(agent, each.topic)])) for each in seen
    ), found


def terms(item: Item | None) -> int:
    """Which terms a subscription has: the revision that wrote them; 0 for what all hear."""
    return 0 if item is None else item.revision
