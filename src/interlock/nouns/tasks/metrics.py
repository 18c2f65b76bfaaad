"""Tasks as numbers for monitors, from the indexes: complete tasks cost nothing."""

from __future__ import annotations

from collections import Counter

from interlock.core import keys
from interlock.nouns.tasks.task import BATCH, UNSUCCESSFUL
from interlock.nouns.tasks.task_reader import decode_ended, decode_ready
from interlock.runtime.metrics import Metric, gauge, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import readable
from interlock.steps import Op

COUNTED = 20_000
"""Tasks of a state that are counted: the queue of a swarm is full far below."""
STATES = ("ready", "scheduled", "blocked", "running", *UNSUCCESSFUL)


def task_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Tasks by state, and how long the oldest ready one has waited."""
    states = Counter[str](dict.fromkeys(STATES, 0))
    now = scrape.runner.clock.wall()
    oldest = now
    for item in (yield from scrape.read(keys.READY, COUNTED)):
        states["ready"] += 1
        entry = readable(decode_ready, item)
        since = entry.since if entry is not None and entry.since else keys.ready_at(item.key)
        oldest = min(oldest, since or now)
    for item in (yield from scrape.read(keys.DUE, COUNTED)):
        states["scheduled"] += not keys.is_schedule_entry(item.key)
    states["blocked"] += len((yield from scrape.read(keys.HANGS, COUNTED)))
    for item in (yield from scrape.read(keys.CLAIMS, COUNTED)):
        states["running"] += not keys.task_in_index(item.key).startswith(BATCH)
    for item in (yield from scrape.read(keys.ENDED, COUNTED)):
        if (ended := readable(decode_ended, item)) is not None:
            states[str(ended.state)] += 1
    says = "Seconds for which the oldest ready task has waited."
    return [
        *gauges("interlock_tasks", "Tasks that are not complete, by state.", "state", states),
        gauge("interlock_task_oldest_ready_seconds", says, round(now - oldest, 3)),
    ]
