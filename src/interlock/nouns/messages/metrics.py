"""Messages, questions and decisions as numbers for monitors."""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.runtime.metrics import Metric, gauge
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import looked_up, readable
from interlock.steps import Op


def message_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """What waits for a reader, an answer or a person."""
    unread = yield from scrape.read(keys.UNREAD)
    items = yield from scrape.read(keys.OPEN)
    live = yield from looked_up(keys.live(keys.id_of(item.key)) for item in items)
    open_ = sum(each is not None for each in live.values())
    decisions = [
        readable(decode.decision, item) for item in (yield from scrape.read(keys.DECISIONS))
    ]
    undecided = sum(each is not None and each.state == "open" for each in decisions)
    paused = yield from scrape.read(keys.PAUSED)
    return [
        gauge("interlock_messages_unread", "Messages to agents that wait.", len(unread)),
        gauge("interlock_queries_open", "Questions that can still be answered.", open_),
        gauge("interlock_decisions_open", "Decisions that wait for a person.", undecided),
        gauge("interlock_agents_paused", "Agents that may not send.", len(paused)),
    ]
