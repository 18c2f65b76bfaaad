"""Agents as numbers for monitors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from interlock.core import keys
from interlock.nouns.agents.report_rules import kind_of
from interlock.nouns.agents.views import all_reports
from interlock.runtime.metrics import LABELLED, OTHERS, Metric, gauge, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import looked_up
from interlock.runtime.refusals import RefusalCounts, all_refused
from interlock.steps import Op

STATES = ("busy", "waiting", "idle", "unreported", "lapsed")
"""What a session reports of itself; ``lapsed`` if it expired and was not cleared away yet."""


def agent_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Sessions by state, and deaths that no operator acknowledged."""
    items = yield from scrape.read(keys.SESSIONS)
    sessions = [item.key.removeprefix(keys.SESSIONS) for item in items]
    reports = yield from all_reports()
    live = yield from looked_up(map(keys.live, sessions))
    states = Counter(dict.fromkeys(STATES, 0))
    for session in sessions:
        report = reports.get(session)
        reported = "unreported" if report is None else kind_of(report.state)
        states["lapsed" if live[keys.live(session)] is None else reported] += 1
    deaths = yield from scrape.read(keys.DEATHS)
    refused = yield from all_refused()
    return [
        *gauges("interlock_agents", "Sessions of agents, by state.", "state", states),
        gauge(
            "interlock_agent_deaths", "Sessions that died and were not acknowledged.", len(deaths)
        ),
        *_refusals(refused),
    ]


def _refusals(refused: Mapping[str, RefusalCounts]) -> list[Metric]:
    """The refusals of each agent by outcome; of agents beyond a bound together."""
    found: Counter[tuple[str, str]] = Counter()
    for number, (agent, counts) in enumerate(refused.items()):
        for word, count in counts.total.items():
            found[agent if number < LABELLED else OTHERS, word] += count
    says = "Calls of this agent that were refused; begins again a day after the last one."
    return [
        gauge("interlock_refusals", says, count, agent=agent, outcome=word)
        for (agent, word), count in found.items()
    ]
