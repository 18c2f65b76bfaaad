"""Messages: sending one, many in flight, to one or five hundred, and how soon they are received."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing

from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.aio_messages import Receiver
from interlock.bench import locks, pairs
from interlock.bench.engine import ALERT, ASK, REPLY, SHARE, Act, Engine, unlimited
from interlock.bench.table import Row, timed
from interlock.drivers import drive
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import AlertSubscription, SendOutcome, Sent
from interlock.nouns.messages.query_rules import Answered
from interlock.nouns.messages.rate_limit import Rate
from interlock.runtime.identity import Actor

SUBSCRIBERS = {"quick": 50, "full": 500}
FLOODED = {"quick": 0.3, "full": 0.6}
DATA = {"x": 1}
_PLENTY = Rate(10_000)
"""The limit is kept, and never met."""
_BETWEEN = 0.002
_MANY = "bench"
_READER = "reader"


def one_at_a_time(engine: Engine, quick: bool) -> Iterator[Row]:
    """An alert through the blocking client, in turns with a bare commit."""
    ours: list[float] = []
    bare: list[float] = []
    with (
        closing(engine.floor()) as floor,
        interlock.connect(engine.fresh(), agent="bench") as fleet,
    ):
        allow(fleet.messages.calls, _PLENTY)
        for name in locks.names(quick):
            began = time.perf_counter()
            outcome = fleet.messages.alert(_MANY, DATA)
            between = time.perf_counter()
            floor.commit(name, act=ALERT)
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
            assert isinstance(outcome, Sent)  # noqa: S101 - nothing is in the way
        engine.wipe()
    yield timed("alert, blocking", ours, bare, engine.targets["alert"])


def in_flight(engine: Engine, quick: bool) -> Iterator[Row]:
    """64 in one process that send, without a limit, in turns with bare commits."""

    def alert(fleet: aio.Fleet, number: int) -> Awaitable[SendOutcome]:
        return fleet.messages.alert(f"{_MANY}.{number}", DATA)

    def share(fleet: aio.Fleet, number: int) -> Awaitable[SendOutcome]:
        return fleet.messages.share(f"{_READER}.{number}", "bench", DATA, hold=True)

    yield _in_flight(engine, quick, "alert", alert, unlimited(ALERT))
    yield _in_flight(engine, quick, "share", share, unlimited(SHARE))


def _in_flight(
    engine: Engine,
    quick: bool,
    what: str,
    send: Callable[[aio.Fleet, int], Awaitable[SendOutcome]],
    act: Act,
) -> Row:
    rounds, each = locks.ROUNDS["quick" if quick else "full"]
    ours = bare = 0.0

    async def sender(fleet: aio.Fleet, number: int) -> None:
        for _ in range(each):
            outcome = await send(fleet, number)
            assert isinstance(outcome, Sent)  # noqa: S101 - nothing is in the way

    async def measure() -> None:
        nonlocal ours, bare
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            allow(fleet.messages.calls, Rate(0))
            for turn in range(rounds):
                began = time.perf_counter()
                await asyncio.gather(*(sender(fleet, each) for each in range(locks.IN_FLIGHT)))
                ours += time.perf_counter() - began
                names = [
                    [f"{turn}.{number}.{count}" for number in range(locks.IN_FLIGHT)]
                    for count in range(each)
                ]
                began = time.perf_counter()
                await floor.in_flight(names, act)
                bare += time.perf_counter() - began
            engine.wipe()

    asyncio.run(measure())
    done = rounds * each * locks.IN_FLIGHT
    return Row(
        name=f"{what}, {locks.IN_FLIGHT} in flight",
        floor=done / bare,
        rate=done / ours,
        ratio=bare / ours,
        target=engine.targets["messages-in-flight"],
        unit="/s",
    )


def many_subscribers(engine: Engine, quick: bool) -> Iterator[Row]:
    """An alert that hundreds subscribed to, in turns with one that a single agent did."""
    many, one = SUBSCRIBERS["quick" if quick else "full"], 1
    spans: dict[int, list[float]] = {many: [], one: []}
    with interlock.connect(engine.fresh(), agent="bench") as fleet:
        calls = fleet.messages.calls
        allow(calls, _PLENTY)
        for number in range(many):
            for type_ in (f"to.{many}", f"to.{one}")[: 1 if number else 2]:
                actor = Actor(f"{_READER}.{number}")
                drive(calls.topics.subscribe(actor, type_, AlertSubscription(), 0), fleet.store)
        before = _entries(fleet)
        for _ in range(locks.ONE_BY_ONE["quick" if quick else "full"]):
            for number, took in spans.items():
                began = time.perf_counter()
                fleet.messages.alert(f"to.{number}", DATA)
                took.append(time.perf_counter() - began)
        commits = (_entries(fleet) - before) / sum(map(len, spans.values()))
        engine.wipe()
    told = f"commits for each alert: {commits:g}"
    yield timed(f"alert to {many} subscribers, beside one to 1", spans[many], spans[one], told)


def heard_here(engine: Engine, quick: bool) -> Iterator[Row]:
    """An alert to the return of a subscriber in the same event loop."""
    ours: list[float] = []
    bare: list[float] = []

    async def measure() -> None:
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            await fleet.messages.subscribe(_MANY)
            async with fleet.messages.recv() as receiver:
                for number in range(pairs.ROUNDS["quick" if quick else "full"]):
                    hearing = asyncio.create_task(_receive(receiver))
                    await asyncio.sleep(pairs.SETTLED)
                    began = time.monotonic()
                    await fleet.messages.alert(_MANY, DATA)
                    ours.append(await hearing - began)
                    began = time.monotonic()
                    await floor.commit(str(number), ALERT)
                    bare.append(time.monotonic() - began)

    asyncio.run(measure())
    target = engine.targets["heard-here"]
    yield timed("alert to a subscriber, same process", ours, bare, target)


async def _receive(receiver: Receiver) -> float:
    """When the next message came; it is acknowledged."""
    found = await receiver.take()
    now = time.monotonic()
    await receiver.ack(*found)
    return now


def heard(engine: Engine, quick: bool) -> Iterator[Row]:
    """An alert to the return of a subscriber in another process."""

    def tell(fleet: interlock.Fleet, partner: pairs.Partner) -> float:
        fleet.messages.alert(pairs.ALERT, DATA)
        return partner.woken()

    ours, bare = _rounds(engine, quick, "alert", tell, (ALERT,))
    yield timed("alert to a subscriber, another process", ours, bare, engine.targets["heard"])


def asked(engine: Engine, quick: bool) -> Iterator[Row]:
    """A question to an agent in another process, from the call to the return with the answer."""

    def ask(fleet: interlock.Fleet, partner: pairs.Partner) -> float:
        outcome = fleet.messages.query("partner", "how far are you?")
        now = time.monotonic()
        assert isinstance(outcome, Answered)  # noqa: S101 - it was there
        partner.woken()
        return now

    ours, bare = _rounds(engine, quick, "query", ask, (ASK, REPLY))
    yield timed("query and its answer, 2 processes", ours, bare, engine.targets["query"])


def flooded(engine: Engine, quick: bool) -> Iterator[Row]:
    """An alert while another agent floods, and is refused; beside one in peace."""
    url, seconds = engine.fresh(), FLOODED["quick" if quick else "full"]
    spans: dict[bool, list[float]] = {True: [], False: []}
    with interlock.connect(url, agent="bench") as fleet, pairs.Partner(url) as partner:
        allow(fleet.messages.calls, _PLENTY)
        for turn in range(4):
            if flood := bool(turn % 2):
                partner.begin(f"flood {seconds}")
            ends = time.monotonic() + seconds * 0.9
            while (began := time.monotonic()) < ends:
                fleet.messages.alert(_MANY, DATA)
                spans[flood].append(time.monotonic() - began)
                time.sleep(_BETWEEN)
            if flood:
                partner.woken()
    target = engine.targets["flooded"]
    yield timed("alert while another agent floods", spans[True], spans[False], target)


def _rounds(
    engine: Engine,
    quick: bool,
    what: str,
    tell: Callable[[interlock.Fleet, pairs.Partner], float],
    acts: Sequence[Act],
) -> tuple[list[float], list[float]]:
    """Each time: let the other process wait, and tell it something; then as many bare commits."""
    url = engine.fresh()
    ours: list[float] = []
    bare: list[float] = []
    with (
        closing(engine.floor()) as floor,
        interlock.connect(url, agent="bench") as fleet,
        pairs.Partner(url) as partner,
    ):
        for number in range(pairs.ROUNDS["quick" if quick else "full"]):
            partner.begin(what)
            time.sleep(pairs.SETTLED)
            began = time.monotonic()
            ours.append(tell(fleet, partner) - began)
            began = time.monotonic()
            for act in acts:
                floor.commit(str(number), act=act)
            bare.append(time.monotonic() - began)
    return ours, bare


def allow(calls: MessageCalls, rate: Rate) -> None:
    """Let a client send so often, whatever is set on this machine."""
    calls.posting.limits = replace(calls.limits, rate=rate)


def _entries(fleet: interlock.Fleet) -> int:
    return len(fleet.record.log(limit=10_000))
