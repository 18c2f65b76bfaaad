"""Pipelines as numbers for monitors."""

from __future__ import annotations

from collections import Counter

from interlock.core import keys
from interlock.nouns.pipelines.pipeline_reader import decode_run
from interlock.runtime.metrics import Metric, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import readable
from interlock.steps import Op


def pipeline_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Pipelines by state; ``blocked`` ones run, and a guard keeps them."""
    states = Counter(running=0, blocked=0, complete=0, failed=0, cancelled=0)
    for item in (yield from scrape.read(keys.PIPELINES)):
        run = readable(decode_run, item)
        if run is not None:
            blocked = run.state == "running" and run.blocked_by is not None
            states["blocked" if blocked else str(run.state)] += 1
    return gauges("interlock_pipelines", "Pipelines, by state.", "state", states)
