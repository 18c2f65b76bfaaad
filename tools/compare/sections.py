"""What is measured: each section lets its contenders take turns, and finds what a turn brought."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from tools.compare import claims, locks, messages
from tools.compare.peer import Peer
from tools.compare.processes import CompareTrouble, Ran, Runner, say
from tools.compare.servers import Servers

Turn = Mapping[str, float]
"""The figures of one contender in one turn, by column."""
Notes = Sequence[Sequence[tuple[int, float]]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the contenders run on; nothing of it is left behind."""

    runner: Runner
    servers: Servers

    @classmethod
    @contextmanager
    def open(cls, peers: str) -> Iterator[Self]:
        """With the Python of the contenders."""
        with (
            tempfile.TemporaryDirectory(prefix="interlock-compare-") as folder,
            Servers(folder, peers) as servers,
        ):
            yield cls(runner=Runner(folder, peers), servers=servers)

    def versions(self, peers: Iterable[type[Peer]]) -> dict[str, str]:
        """The versions of contenders and of all servers that were started."""
        versions = self.servers.versions()
        for peer in peers:
            versions |= self.runner.versions(peer)
        return versions


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure of the table; the first column of a section is the one that is compared."""

    key: str
    title: str
    digits: int = 0
    less_is_better: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """One comparison."""

    name: str
    title: str
    peers: tuple[type[Peer], ...]
    columns: tuple[Column, ...]
    turn: Callable[[Bench, type[Peer], Section], Turn]
    processes: int = 1
    count: int = 0
    """Tasks or messages of a turn."""
    at_once: int = 1
    seconds: float = 0.0
    """How long a turn takes, if it has no count."""

    @property
    def compared(self) -> Column:
        """The column that is compared."""
        return self.columns[0]

    def only(self, names: Sequence[str]) -> Section:
        """The section with these contenders and those that they are compared with."""
        wanted = {peer.beside for peer in self.peers if peer.name in names} | set(names)
        return replace(self, peers=tuple(peer for peer in self.peers if peer.name in wanted))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The turns of each contender of a section."""

    section: Section
    turns: Mapping[str, Sequence[Turn]]

    def values(self, peer: str, key: str = "") -> list[float]:
        """A figure of a contender, turn by turn."""
        return [turn[key or self.section.compared.key] for turn in self.turns[peer]]

    def median(self, peer: str, key: str = "") -> float:
        """The median of all turns."""
        return statistics.median(self.values(peer, key))

    def ahead(self, peer: type[Peer]) -> float:
        """How many times as good Interlock is: above one, it is ahead; the median of all turns."""
        ours, theirs = self.values(peer.beside), self.values(peer.name)
        ratios = [a / b if b else math.inf for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        return 1 / ratio if self.section.compared.less_is_better else ratio


def take_turns(bench: Bench, section: Section, turns: int) -> Compared:
    """Let all contenders of a section run in turns; each turn begins with another one."""
    found: dict[str, list[Turn]] = {peer.name: [] for peer in section.peers}
    for number in range(turns):
        start = number % len(section.peers)
        for peer in (*section.peers[start:], *section.peers[:start]):
            say(f"{section.name}, turn {number + 1} of {turns}: {peer.title}")
            found[peer.name].append(section.turn(bench, peer, section))
    return Compared(section=section, turns=found)


def drain(bench: Bench, peer: type[Peer], section: Section) -> Turn:
    """Processes empty a queue; each task must have run once."""
    place = bench.servers.fresh(peer.server)
    bench.runner.prepare(peer, place, "publish", section.count)
    job = bench.runner.job(peer, place, "drain", section.count)
    jobs = [replace(job, at_once=section.at_once)] * section.processes
    ran = bench.runner.together(peer, jobs, lambda noted, _: noted >= section.count)
    bench.servers.clear(place)
    once(peer.title, ran.notes, section.count)
    return {"rate": section.count / (last(ran) - ran.begin), **shares(ran.notes)}


def hold(bench: Bench, peer: type[Peer], section: Section) -> Turn:
    """Processes take one lock from each other; no two may hold it."""
    place = bench.servers.fresh(peer.server)
    jobs = [bench.runner.job(peer, place, "hold")] * section.processes
    ran = bench.runner.together(peer, jobs, lambda _, seconds: seconds >= section.seconds)
    bench.servers.clear(place)
    grants = sorted(
        (number, moment, worker)
        for worker, notes in enumerate(ran.notes)
        for number, moment in notes
    )
    if [number for number, _, _ in grants] != list(range(1, len(grants) + 1)):
        raise CompareTrouble(f"{peer.title} let two processes hold the lock at once")
    moved = sum(before[2] != after[2] for before, after in pairwise(grants))
    seconds = grants[-1][1] - grants[0][1]
    return {"handoffs": moved / seconds, "grants": len(grants) / seconds, **shares(ran.notes)}


def deliver(bench: Bench, peer: type[Peer], section: Section) -> Turn:
    """A process sends, another one receives; each message must arrive once."""
    place = bench.servers.fresh(peer.server)
    bench.runner.prepare(peer, place, "prepare")
    jobs = [
        replace(bench.runner.job(peer, place, method, section.count), at_once=section.at_once)
        for method in ("send", "receive")
    ]
    ran = bench.runner.together(peer, jobs, lambda noted, _: noted >= 2 * section.count)
    bench.servers.clear(place)
    sent, received = ran.notes
    once(peer.title, [received], section.count)
    moments = dict(sent)
    spans = sorted((moment - moments[number]) * 1000 for number, moment in received)
    return {
        "rate": section.count / (received[-1][1] - ran.begin),
        "p50": spans[len(spans) // 2],
        "p95": spans[int(len(spans) * 0.95)],
    }


def once(title: str, notes: Notes, count: int) -> None:
    """Fail unless each number was noted once."""
    numbers = [number for each in notes for number, _ in each]
    if sorted(numbers) != list(range(count)):
        raise CompareTrouble(
            f"{title}: of {count:,} {len(set(numbers)):,} were done, {len(numbers):,} in all"
        )


def last(ran: Ran) -> float:
    """The moment of the last note."""
    return max(moment for each in ran.notes for _, moment in each)


def shares(notes: Notes) -> dict[str, float]:
    """How evenly the processes shared the work: the least of them beside the mean."""
    counts = [len(each) for each in notes]
    return {"least": min(counts) * len(counts) / sum(counts)}


RATE = Column(key="rate", title="tasks/s")
LEAST = Column(key="least", title="least share", digits=2)
CLAIMS = Section(
    name="claims",
    title="Eight processes empty a queue of 2,000 tasks",
    peers=claims.PEERS,
    columns=(RATE, LEAST),
    turn=drain,
    processes=8,
    count=2000,
)
ALONE = Section(
    name="alone",
    title="One process empties a queue of 1,000 tasks",
    peers=(
        claims.Interlock,
        claims.InterlockAhead,
        claims.InterlockOneByOne,
        claims.InterlockInFlight,
        claims.BareSql,
        claims.Huey,
        claims.InterlockRedis,
        claims.InterlockInFlightRedis,
    ),
    columns=(RATE,),
    turn=drain,
    count=1000,
    at_once=64,
)
GRANTS = Column(key="grants", title="grants/s")
LOCKS = Section(
    name="locks",
    title="Eight processes want one lock",
    peers=locks.PEERS,
    columns=(Column(key="handoffs", title="handoffs/s"), GRANTS, LEAST),
    turn=hold,
    processes=8,
    seconds=3.0,
)
UNCONTENDED = Section(
    name="uncontended",
    title="One process acquires and releases a lock",
    peers=locks.PEERS,
    columns=(GRANTS,),
    turn=hold,
    seconds=1.0,
)
LATENCY = Section(
    name="latency",
    title="One message at a time, to a receiver in another process",
    peers=(*messages.PEERS, messages.InterlockAlert, messages.InterlockAlertRedis),
    columns=(
        Column(key="p50", title="p50 in ms", digits=2, less_is_better=True),
        Column(key="p95", title="p95 in ms", digits=2, less_is_better=True),
    ),
    turn=deliver,
    count=160,
)
MESSAGES = Section(
    name="messages",
    title="5,000 messages to a receiver in another process, 64 in flight",
    peers=messages.PEERS,
    columns=(Column(key="rate", title="messages/s"),),
    turn=deliver,
    count=5000,
    at_once=64,
)
SECTIONS = (CLAIMS, ALONE, LOCKS, UNCONTENDED, LATENCY, MESSAGES)


def chosen(only: Sequence[str]) -> Iterator[Section]:
    """The sections of a run: all, or those that are named, as ``claims`` or ``claims/huey``."""
    for section in SECTIONS:
        names = [name for each in only for name in _contenders(each, section.name)]
        if not only or section.name in only:
            yield section
        elif names:
            yield section.only(names)


def _contenders(word: str, section: str) -> list[str]:
    head, slash, name = word.partition("/")
    return [name] if slash and head == section else []
