"""The judgement of ``swarms_load.py``, from the records of all stores and what executors did."""  # noqa: INP001 - a script

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from msgspec import Struct
from tools.swarms_process import Share

import interlock
from interlock.bench.measuring import percentile
from interlock.core import keys
from interlock.nouns.requests.exchange import decode_request
from interlock.nouns.requests.request import OutgoingRequest
from interlock.store import Range, Store
from interlock.testing.audit import request_events

SHARES = (0.5, 0.95, 0.99)
ENOUGH = 0.99
"""The share of requests that must be answered; a person was asked about the others."""
ANSWERED = "RequestAnswered"
FULL = 0.95
"""The share of the processors in use above which they are what bounds the rate."""
_PAGE = 1000


class Busy(Struct, frozen=True, kw_only=True):
    """How many processors were in use in the first seconds, and for what."""

    seconds: float
    cores: int
    machine: float
    swarms: float
    homes: float
    bus: float

    @property
    def ours(self) -> float:
        """Those of this load."""
        return self.swarms + self.homes + self.bus


class Measured(Struct, frozen=True):
    """The measurements of a run.

    ``began`` is a wall time, ``seconds`` how long requests were sent, ``busy`` how many processors
    were in use at first, and ``spent`` the seconds of processors that all of it took.
    """

    began: float
    seconds: float
    busy: Busy
    spent: dict[str, float]


class Records(Struct, frozen=True, kw_only=True):
    """What the stores and the executors say in the end.

    ``asked`` are the events in the homes of askers by request, ``served`` those in the homes of
    receivers; ``effects`` are how many effects each request had, ``executions`` how many all had.
    """

    asked: Mapping[str, Counter[str]]
    served: Mapping[str, Counter[str]]
    requests: Mapping[str, OutgoingRequest]
    effects: Mapping[str, int]
    executions: int
    entries: int = 0
    complaints: tuple[str, ...] = ()


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of a run; latencies are in milliseconds.

    ``unfinished`` are requests that a later process would finish, ``lost`` those of which the homes
    know nothing any more.  ``ended`` are the requests that ended before the time was up.  ``took``
    are the latencies of all, from the call to the commit that ended the request, ``calm`` those of
    requests that ended before anything failed, and ``seen`` those that callers saw.
    """

    sent: int
    answered: int
    escalated: int
    unfinished: list[str]
    lost: list[str]
    twice: list[str]
    without_effect: list[str]
    executions: int
    seconds: float
    ended: int
    calm: list[float]
    took: list[float]
    seen: list[float]
    outcomes: dict[str, int]
    complaints: tuple[str, ...]
    commits: float
    busy: Busy
    spent: dict[str, float]

    @property
    def well(self) -> bool:
        """Whether all of it is true that was promised."""
        wrong = self.unfinished or self.lost or self.twice or self.without_effect or self.complaints
        return not wrong and self.sent > 0 and self.answered >= ENOUGH * self.sent

    @property
    def rate(self) -> float:
        """Requests that ended each second, from the call to the result."""
        return self.ended / self.seconds


def read(homes: Mapping[str, str], bus: str, effects: Mapping[str, str]) -> Records:
    """Read and verify the records of all homes and of the bus; all are given by swarm."""
    asked: dict[str, Counter[str]] = {}
    served: dict[str, Counter[str]] = {}
    requests: dict[str, OutgoingRequest] = {}
    entries, complaints = 0, []
    for name, url in {**homes, "the bus": bus}.items():
        with interlock.connect(url, join=False) as fleet:
            verified = fleet.record.verify()
            entries += verified.entries
            if not verified:
                complaints.append(f"the record of {name} does not hold: {verified}")
            for id_, events in request_events(fleet.store).items():
                (asked if events["request:sent"] else served)[id_] = events
            requests |= {each.id: each for each in _requests(fleet.store)}
    done: Counter[str] = Counter()
    executions = 0
    for path in effects.values():
        with closing(sqlite3.connect(path)) as db:
            executions += db.execute("SELECT count(*) FROM executions").fetchone()[0]
            done.update([id_ for (id_,) in db.execute("SELECT request FROM effects")])
    return Records(
        asked=asked,
        served=served,
        requests=requests,
        effects=done,
        executions=executions,
        entries=entries,
        complaints=tuple(complaints),
    )


def _requests(store: Store) -> Iterator[OutgoingRequest]:
    page = Range(keys.REQUESTS, limit=_PAGE)
    while items := store.read(page).ranges[page]:
        yield from filter(None, map(decode_request, items))
        page = Range(keys.REQUESTS, after=items[-1].key, limit=_PAGE)


def judge(records: Records, shares: Sequence[Share], measured: Measured) -> Verdict:
    """Judge each request that was sent by its intakes, completions, ends and effects."""
    began, seconds, busy = measured.began, measured.seconds, measured.busy
    answered: list[OutgoingRequest] = []
    unfinished: list[str] = []
    lost: list[str] = []
    escalated = 0
    for id_, events in records.asked.items():
        request = records.requests.get(id_)
        if request is not None and request.state == "answered" and events["request:answered"]:
            answered.append(request)
        elif request is not None and request.state == "escalated" and events["request:escalated"]:
            escalated += 1
        else:
            (unfinished if request is not None and request.state == "open" else lost).append(id_)
    ends = [each.ended or 0.0 for each in answered]
    calm = [each for each in answered if (each.ended or 0.0) < began + busy.seconds]
    outcomes: Counter[str] = Counter()
    for share in shares:
        outcomes.update(share.outcomes)
    return Verdict(
        sent=len(records.asked),
        answered=len(answered),
        escalated=escalated,
        unfinished=unfinished,
        lost=lost,
        twice=[id_ for id_ in records.asked if _twice(records, id_)],
        without_effect=[each.id for each in answered if not records.effects.get(each.id)],
        executions=records.executions,
        seconds=seconds,
        ended=sum(each < began + seconds for each in ends),
        calm=_latencies(calm),
        took=_latencies(answered),
        seen=_shares([each for share in shares for each in share.took]),
        outcomes=dict(outcomes),
        complaints=records.complaints,
        commits=records.entries / max(len(records.asked), 1),
        busy=busy,
        spent=measured.spent,
    )


def _twice(records: Records, id_: str) -> bool:
    """Whether a request was taken in, completed, ended or effective more than once."""
    asked, served = records.asked[id_], records.served.get(id_, Counter())
    counts = (
        asked["request:sent"],
        asked["request:answered"],
        served["request:received"],
        served["request:executed"],
        records.effects.get(id_, 0),
    )
    return max(counts) > 1


def _latencies(requests: Sequence[OutgoingRequest]) -> list[float]:
    return _shares([(each.ended - each.made) * 1000 for each in requests if each.ended])


def _shares(spans: Sequence[float]) -> list[float]:
    return [*(percentile(spans, share) for share in SHARES), max(spans)] if spans else []


def report(verdict: Verdict) -> Iterator[str]:
    """The verdict in lines, and what the rate is bound by."""
    share = verdict.answered / verdict.sent if verdict.sent else 0.0
    rate = verdict.sent / verdict.seconds
    yield f"sent           {verdict.sent:>8,}   {rate:,.0f} each second for {verdict.seconds:g} s"
    yield f"ended in time  {verdict.ended:>8,}   {verdict.rate:,.0f} each second"
    yield f"answered       {verdict.answered:>8,}   {share:.2%}"
    yield f"escalated      {verdict.escalated:>8,}"
    for name, ids in (
        ("unfinished", verdict.unfinished),
        ("lost", verdict.lost),
        ("twice", verdict.twice),
        ("no effect", verdict.without_effect),
    ):
        yield f"{name:<14} {len(ids):>8,}   {' '.join(ids[:3])}".rstrip()
    again = verdict.executions - verdict.answered
    yield f"executions     {verdict.executions:>8,}   {max(again, 0):,} of them again, after a kill"
    yield f"from the call to the end of a request: {_times(verdict.took)}"
    if verdict.busy.seconds < ENOUGH * verdict.seconds:
        yield f"  before anything failed: {_times(verdict.calm)}"
    yield f"  as the callers that lived saw it: {_times(verdict.seen)}"
    others = {name: many for name, many in verdict.outcomes.items() if name != ANSWERED}
    words = ", ".join(f"{name} {many:,}" for name, many in others.items())
    yield f"other outcomes of calls: {words or 'none'}"
    yield from verdict.complaints or ["record verify holds in all stores"]
    yield from _bound(verdict)


def _bound(verdict: Verdict) -> Iterator[str]:
    busy, spent = verdict.busy, verdict.spent
    others = max(0.0, busy.machine - busy.ours)
    yield (
        f"processors in use: {busy.machine:.2f} of {busy.cores}: swarms {busy.swarms:.2f},"
        f" Redis of the homes {busy.homes:.2f}, Redis of the bus {busy.bus:.2f},"
        f" other programs {others:.2f}"
    )
    cost = sum(spent.get(name, 0.0) for name in ("swarms", "homes", "bus"))
    if verdict.answered and cost:
        each = 1000 / verdict.answered
        yield (
            f"a request costs {cost * each:.2f} ms of a processor,"
            f" {spent['swarms'] * each:.2f} of them in Python, and {verdict.commits:.1f} recorded"
            f" commits; {busy.cores} processors alone could do"
            f" {busy.cores * verdict.answered / cost:,.0f} a second"
        )
    full = busy.machine > FULL * busy.cores
    yield "bound by the processors" if full else "not bound by the processors: some are idle"


def _times(spans: Sequence[float]) -> str:
    if not spans:
        return "no answer"
    return "p50 {:,.0f} ms, p95 {:,.0f} ms, p99 {:,.0f} ms, longest {:,.0f} ms".format(*spans)
