"""``make grow``: how the cost grows with the agents, the tasks that wait, and the subscribers.

Each point is a median of all turns; the contenders of a point take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tools.compare import claims, messages, report, sections
from tools.compare.peer import Peer
from tools.compare.plot import Lines, line_chart
from tools.compare.processes import CompareTrouble, say
from tools.compare.sections import Bench, Section, Turn

AGENTS = (1, 2, 4, 8, 16, 32, 64)
TASKS = (1_000, 10_000, 100_000, 1_000_000)
SUBSCRIBERS = (1, 5, 50, 500)
DRAINED = 1000
"""Tasks of a turn that begins with many tasks that wait."""
ALERTS = 10
PACE = 0.002
"""Seconds for each subscriber before the next alert is sent, so that none waits behind another."""
SUBSCRIBER_PROCESSES = 4


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One panel: the figure of each contender at each size."""

    title: str
    size: str
    figure: str
    peers: tuple[type[Peer], ...]
    points: dict[str, list[tuple[int, float]]]
    digits: int = 0

    def lines(self) -> Lines:
        """The panel of the plot."""
        lines = list(self.points.items())
        return Lines(title=self.title, x=self.size, y=self.figure, lines=lines, digits=self.digits)

    def table(self) -> str:
        """A row for each size."""
        head = (self.size, *(f"{title}, {self.figure}" for title in self.points))
        rows = (
            [f"{points[0][0]:,}", *(f"{value:,.{self.digits}f}" for _, value in points)]
            for points in zip(*self.points.values(), strict=True)
        )
        return f"### {self.title}\n\n{report.table(head, rows)}"


def plot(title: str, grown: Sequence[Growth]) -> str:
    """All panels."""
    return line_chart(title, [each.lines() for each in grown])


def agents(bench: Bench, turns: int, most: int) -> Growth:
    """Processes that empty a queue."""
    peers = (claims.Interlock, claims.BareSql, claims.Huey)
    each = replace(sections.CLAIMS, peers=peers)
    sizes = {size: replace(each, processes=size) for size in AGENTS if size <= most}
    return Growth(
        title="From 1 to 64 agents, each a process, that empty a queue of 2,000 tasks",
        size="agents",
        figure="tasks/s",
        peers=peers,
        points=_points(bench, turns, "agents", sizes),
    )


def tasks(bench: Bench, turns: int, most: int) -> Growth:
    """One process that works while many tasks wait; all turns work on one queue."""
    peers = (claims.Interlock, claims.BareSql)
    each = replace(sections.ALONE, peers=peers)
    sizes = {
        size: replace(each, turn=partial(_some, {}, turns * DRAINED), count=size)
        for size in TASKS
        if size <= most
    }
    return Growth(
        title="From 1,000 to 1,000,000 tasks that wait, one process",
        size="tasks that wait",
        figure="tasks/s",
        peers=peers,
        points=_points(bench, turns, "tasks", sizes),
    )


def subscribers(bench: Bench, turns: int, most: int) -> Growth:
    """An alert, until the last of its subscribers has it."""
    peers = (messages.InterlockAlert, messages.InterlockAlertRedis)
    each = replace(sections.LATENCY, peers=peers, turn=_alert, count=ALERTS)
    sizes = {size: replace(each, processes=size) for size in SUBSCRIBERS if size <= most}
    return Growth(
        title="From 1 to 500 subscribers of an alert, in four processes",
        size="subscribers",
        figure="ms to the last of them",
        peers=peers,
        points=_points(bench, turns, "subscribers", sizes),
        digits=2,
    )


PANELS: dict[str, Callable[[Bench, int, int], Growth]] = {
    "agents": agents,
    "tasks": tasks,
    "subscribers": subscribers,
}


def _points(
    bench: Bench, turns: int, what: str, sizes: dict[int, Section]
) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = {}
    for size, section in sizes.items():
        compared = sections.take_turns(bench, replace(section, name=f"{size:,} {what}"), turns)
        for peer in section.peers:
            points.setdefault(peer.title, []).append((size, compared.median(peer.name)))
    return points


def _some(
    places: dict[str, str], more: int, bench: Bench, peer: type[Peer], section: Section
) -> Turn:
    """Work on some of many tasks; the first turn publishes them, and those of all turns."""
    if peer.name not in places:
        places[peer.name] = bench.servers.fresh(peer.server)
        say(f"{section.count:,} tasks are published")
        bench.runner.prepare(peer, places[peer.name], "publish", section.count + more)
    job = bench.runner.job(peer, places[peer.name], "drain")
    ran = bench.runner.together(peer, [job], lambda noted, _: noted >= DRAINED)
    (notes,) = ran.notes
    if len({number for number, _ in notes}) != len(notes):
        raise CompareTrouble(f"{peer.title} ran a task twice")
    return {"rate": DRAINED / (notes[DRAINED - 1][1] - ran.begin)}


def _alert(bench: Bench, peer: type[Peer], section: Section) -> Turn:
    place = bench.servers.fresh(peer.server)
    job = bench.runner.job(peer, place, "send", section.count)
    job = replace(job, pace=max(job.pace, PACE * section.processes))
    each, rest = divmod(section.processes, SUBSCRIBER_PROCESSES)
    shares = [each + (number < rest) for number in range(SUBSCRIBER_PROCESSES)]
    receivers = [replace(job, method="subscribe", at_once=share) for share in shares if share]
    wanted = section.count * (1 + section.processes)
    ran = bench.runner.together(peer, [job, *receivers], lambda noted, _: noted >= wanted)
    bench.servers.clear(place)
    sent, *received = ran.notes
    last = dict(sorted((note for notes in received for note in notes), key=lambda note: note[1]))
    return {"p50": statistics.median((last[number] - moment) * 1000 for number, moment in sent)}
