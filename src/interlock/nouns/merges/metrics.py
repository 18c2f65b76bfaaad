"""Merges as numbers for monitors."""

from __future__ import annotations

from collections import Counter

from interlock.core import keys
from interlock.nouns.merges.service import decode_merge
from interlock.runtime.metrics import LABELLED, OTHERS, Metric, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import readable
from interlock.steps import Op

_STATES = ("waiting", "merged", "bounced", "cancelled")


def merge_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Merges by state, and the length and age of each queue."""
    states = Counter(dict.fromkeys(_STATES, 0))
    lengths, oldest = Counter[str](), dict[str, float]()
    now = scrape.runner.clock.wall()
    for item in (yield from scrape.read(keys.MERGES)):
        merge = readable(decode_merge, item)
        if merge is None:
            continue
        states[merge.state] += 1
        if merge.state == "waiting":
            known = merge.queue in lengths or len(lengths) < LABELLED
            target = merge.queue if known else OTHERS  # as shop:main
            lengths[target] += 1
            oldest[target] = max(oldest.get(target, 0.0), round(now - merge.at, 3))
    says = "Branches that were submitted, by state; those that ended as long as they are kept."
    return [
        *gauges("interlock_merges", says, "state", states),
        *gauges("interlock_merge_queue", "Branches that wait for a target.", "target", lengths),
        *gauges(
            "interlock_merge_oldest_seconds",
            "Seconds for which the first branch has waited for a target.",
            "target",
            oldest,
        ),
    ]
