"""What is measured in one process: locks, slots, tasks, messages, the record, and a command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing, contextmanager, nullcontext
from typing import Any

from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.aio_messages import Receiver
from interlock.bench.engine import (
    ALERT,
    CLAIM,
    COMPLETE,
    PUBLISH,
    SHARE,
    AsyncFloor,
    BenchEngine,
    EngineFloor,
    without_rate_limit,
)
from interlock.bench.measuring import (
    IN_FLIGHT,
    Row,
    Sizes,
    in_flight,
    in_turns,
    one_by_one,
    one_by_one_async,
    percentile,
    timed,
)
from interlock.client_context import SESSION_TTL, Context
from interlock.clock import SystemClock
from interlock.core.rate import Rate
from interlock.nouns.grants.lock import LockAcquired, LockReleased
from interlock.nouns.grants.several import SeveralAcquired
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.inbox_service import subscribe
from interlock.nouns.messages.message import AlertSubscription, Sent
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.runtime.attempt import Attempt, Draft
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import drive
from interlock.stores import open_store

CAPACITY = 4
DATA = {"x": 1}
NO_LIMIT = Rate(0)
HIGH_LIMIT = Rate(10_000)
"""A limit that is checked, and never reached."""
SEVERAL = "at most 1.5"
"""Of the time of one lock: one commit, and three items instead of one."""
SETTLED = 0.01
VERIFY = "at least 100,000 /s of CPU time"


acquire = one_by_one("acquire, blocking", lambda fleet, name: fleet.locks.acquire(name))
acquire_async = one_by_one_async("acquire, async", lambda fleet, name: fleet.locks.acquire(name))
acquire_in_flight = in_flight("acquire", lambda fleet, name: fleet.locks.acquire(name), peers=True)
slots = one_by_one(
    "acquire a slot, blocking",
    lambda fleet, name: fleet.semaphores.acquire(name, capacity=CAPACITY),
)
slots_async = one_by_one_async(
    "acquire a slot, async",
    lambda fleet, name: fleet.semaphores.acquire(name, capacity=CAPACITY),
)
slots_in_flight = in_flight(
    "acquire a slot", lambda fleet, name: fleet.semaphores.acquire(name, capacity=CAPACITY)
)


def several(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Two locks and a slot with one commit, in turns with one lock."""

    def three(name: str) -> None:
        outcome = fleet.several.acquire(f"lock/{name}.a", f"lock/{name}.b", f"sem/{name}")
        assert isinstance(outcome, SeveralAcquired)  # noqa: S101 - there is no other client

    def with_semaphores() -> Iterator[str]:
        for name in size.names:  # right before it is used: a client remembers only so many items
            fleet.semaphores.resize(name, CAPACITY)
            yield name

    with interlock.connect(engine.fresh(), agent="bench") as fleet:
        one, ours = in_turns(with_semaphores(), fleet.locks.acquire, three)
        engine.wipe()
    yield timed("two locks and a slot at once, beside one lock", ours, one, SEVERAL)


def read_first(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A release by a client that knows nothing but the token, so it has to read."""
    url = engine.fresh()
    with (
        closing(engine.floor()) as floor,
        interlock.connect(url, agent="bench") as holder,
        interlock.connect(url, agent="bench") as fleet,
    ):
        tokens: dict[str, int | None] = {}
        for name in size.names:
            held = holder.locks.acquire(name)
            assert isinstance(held, LockAcquired)  # noqa: S101 - there is no other client
            tokens[name] = held.token

        def release(name: str) -> None:
            outcome = fleet.locks.release(name, token=tokens[name])
            assert isinstance(outcome, LockReleased)  # noqa: S101 - there is no other client

        spans = in_turns(size.names, release, floor.commit)
        engine.wipe()
    yield timed("release, read first", *spans, engine.targets["read-first"])


def _publish(fleet: interlock.Fleet, floor: EngineFloor, size: Sizes) -> None:
    for name in size.names:
        fleet.tasks.publish(name, DATA)
    floor.commit(*size.names, kind=PUBLISH)


async def _publish_async(fleet: aio.Fleet, floor: AsyncFloor, size: Sizes) -> None:
    for name in size.names:
        await fleet.tasks.publish(name, DATA)
    for name in size.names:
        await floor.commit(name, PUBLISH)


async def _publish_in_flight(fleet: aio.Fleet, floor: AsyncFloor, names: list[list[str]]) -> None:
    for some in names:
        await asyncio.gather(*(fleet.tasks.publish(name) for name in some))
    await floor.in_flight(names, PUBLISH)


async def _work(fleet: aio.Fleet, _: str) -> None:
    claim = await fleet.tasks.next()
    assert isinstance(claim, Claimed)  # noqa: S101 - there is one for each worker
    await fleet.tasks.complete(claim.task, token=claim.token)


claim = one_by_one(
    "claim by name, blocking",
    lambda fleet, name: fleet.tasks.claim(name),
    expected=Claimed,
    target="claim",
    kind=CLAIM,
    prepare=_publish,
)
claim_async = one_by_one_async(
    "claim by name, async",
    lambda fleet, name: fleet.tasks.claim(name),
    target="claim-async",
    kind=CLAIM,
    prepare=_publish_async,
)
tasks_in_flight = in_flight(
    "claim the next and complete",
    _work,
    target="tasks-in-flight",
    kinds=(CLAIM, COMPLETE),
    prepare=_publish_in_flight,
)
alert = one_by_one(
    "alert, blocking",
    lambda fleet, _: fleet.messages.alert("bench", DATA),
    expected=Sent,
    target="alert",
    kind=ALERT,
    prepare=lambda fleet, _, __: limit_rate(fleet.messages, HIGH_LIMIT),
)


async def _no_rate_limit(fleet: aio.Fleet, _: AsyncFloor, __: list[list[str]]) -> None:
    limit_rate(fleet.messages, NO_LIMIT)


alerts_in_flight = in_flight(
    "alert",
    lambda fleet, name: fleet.messages.alert(f"bench.{name.split('.')[2]}", DATA),
    expected=Sent,
    target="messages-in-flight",
    kinds=(without_rate_limit(ALERT),),
    prepare=_no_rate_limit,
)
shares_in_flight = in_flight(
    "share",
    lambda fleet, name: fleet.messages.share(
        f"reader.{name.split('.')[2]}", "bench", DATA, hold=True
    ),
    expected=Sent,
    target="messages-in-flight",
    kinds=(without_rate_limit(SHARE),),
    prepare=_no_rate_limit,
)


def messages_in_flight(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Alerts and shares without a rate limit; each worker has a type and a reader of its own."""
    yield from alerts_in_flight(engine, size)
    yield from shares_in_flight(engine, size)


def subscribers(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """An alert to many subscribers, in turns with an alert to one."""
    with interlock.connect(engine.fresh(), agent="bench") as fleet:
        calls = fleet.messages
        limit_rate(calls, HIGH_LIMIT)
        for number in range(size.subscribers):
            for type_ in ("to.many", "to.one")[: 1 if number else 2]:
                actor = Actor(f"reader.{number}")
                subscription = subscribe(calls.context.runner, actor, type_, AlertSubscription(), 0)
                drive(subscription, fleet.store)
        before = len(fleet.record.log(limit=10_000))
        many, one = in_turns(
            size.names,
            lambda _: fleet.messages.alert("to.many", DATA),
            lambda _: fleet.messages.alert("to.one", DATA),
        )
        commits = (len(fleet.record.log(limit=10_000)) - before) / (len(many) + len(one))
        engine.wipe()
    row = f"alert to {size.subscribers} subscribers, beside one to 1"
    yield timed(row, many, one, f"commits for each alert: {commits:g}")


def alert_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From an alert to its receipt by a subscriber in the same event loop."""
    ours: list[float] = []
    bare: list[float] = []

    async def receive(receiver: Receiver) -> float:
        found = await receiver.take()
        now = time.monotonic()
        await receiver.ack(*found)
        return now

    async def measure() -> None:
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            await fleet.messages.subscribe("bench")
            async with fleet.messages.recv() as receiver:
                for number in range(size.wakeups):
                    receiving = asyncio.create_task(receive(receiver))
                    await asyncio.sleep(SETTLED)
                    began = time.monotonic()
                    await fleet.messages.alert("bench", DATA)
                    ours.append(await receiving - began)
                    began = time.monotonic()
                    await floor.commit(str(number), ALERT)
                    bare.append(time.monotonic() - began)

    asyncio.run(measure())
    yield timed("alert to a subscriber, same process", ours, bare, engine.targets["heard-here"])


def limit_rate(calls: MessageCalls[Any], rate: Rate) -> None:
    """Set how often a client may send, regardless of the settings of this machine."""
    calls.message_sender.limits = replace(calls.limits, rate=rate)


def record_share(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """An acquire with its record, in turns with one without; the ratio is the record's share.

    There is no row for an engine that has to read before it writes without a record: the two
    would not do the same work.
    """
    if "share" not in engine.targets:
        return
    with (
        interlock.connect(engine.fresh(), agent="bench") as fleet,
        unrecorded(engine.fresh()) as other,
    ):
        spans = in_turns(size.names, fleet.locks.acquire, other.locks.acquire)
        engine.wipe()
    whole, without = (percentile(each, 0.5) for each in spans)
    yield Row(
        name="the record's share of an acquire",
        floor=without * 1000,
        p50=whole * 1000,
        ratio=1 - without / whole,
        target=engine.targets["share"],
    )


class UnrecordedRunner(Runner):
    """A runner that keeps no record: nothing is encoded, hashed, linked or logged.

    Nothing but this measurement may do that: such a store cannot say what happened.
    """

    def draft(self, attempt: Attempt, actor: Actor, *, checked: bool, behind: str = "") -> Draft:
        """The transaction alone."""
        quiet = replace(attempt, decision=replace(attempt.decision, quiet=True))
        return super().draft(quiet, actor, checked=checked, behind=behind)


def unrecorded(url: str) -> interlock.Fleet:
    """A client whose acquisitions are not in the record."""
    store = open_store(url)
    clock = SystemClock(suspends=store.capabilities.one_machine)
    context = Context(store, "bench", "", UnrecordedRunner(store, clock=clock))
    drive(context.begin(None, SESSION_TTL), store)
    return interlock.Fleet(context)


def verify(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Reading and verifying the whole record, by the processor's time."""
    url = engine.fresh()
    asyncio.run(_fill_record(url, size.rounds * size.each))
    with interlock.connect(url) as fleet:
        began = time.process_time()
        found = fleet.record.verify()
        spent = time.process_time() - began
    engine.wipe()
    yield Row(name="record verify, entries", rate=found.entries / spent, target=VERIFY)


async def _fill_record(url: str, each: int) -> None:
    """Write two entries for each acquisition, by many workers at once."""
    async with await aio.connect(url, agent="bench") as fleet:

        async def worker(number: int) -> None:
            for _ in range(each):
                await fleet.locks.acquire(f"bench.{number}")
                await fleet.locks.release(f"bench.{number}")

        await asyncio.gather(*map(worker, range(IN_FLIGHT)))


def cold_start(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """An ``interlock lock acquire`` beside an interpreter that does nothing: cold, then warm."""
    path = engine.fresh()
    interlock.connect(path).close()
    with tempfile.TemporaryDirectory() as runtime:
        variables = {"INTERLOCK_STORE": path, "XDG_RUNTIME_DIR": runtime}
        for kind in ("cold", "warm"):
            with _warm_process(variables) if kind == "warm" else nullcontext():
                bare, ours = in_turns(
                    map(str, range(size.cold_starts)),
                    lambda _: _run(variables, "-c", "pass"),
                    lambda name, kind=kind: _run(  # type: ignore[misc]
                        variables,
                        *(*_command(), "lock", "acquire", f"{kind}.{name}", "--agent", "bench"),
                    ),
                )
            yield timed(f"{kind} lock acquire", ours, bare, engine.targets[kind])


@contextmanager
def _warm_process(variables: Mapping[str, str]) -> Iterator[None]:
    """A process that carries out the commands of this measurement."""
    command = [sys.executable, "-P", *_command(), "warm"]
    environment = _cached(variables)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def _command() -> tuple[str, ...]:
    """The command that users type, which is installed beside the interpreter; else the package."""
    script = os.path.join(os.path.dirname(sys.executable), "interlock")
    return (script,) if os.path.exists(script) else ("-m", "interlock")


def _run(variables: Mapping[str, str], *arguments: str) -> None:
    command = [sys.executable, "-P", *arguments]
    environment = _cached(variables)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603


def _cached(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of Python with its byte code cached, as it is on a machine in use."""
    ours = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return ours | dict(variables)


_BLOCKING = """
import sys, interlock
with interlock.connect(sys.argv[1], agent="idle") as fleet:
    with fleet.lock("idle"):
        print("ready", flush=True); sys.stdin.read()
"""
_ASYNC = """
import asyncio, sys
from interlock import aio
async def main():
    async with await aio.connect(sys.argv[1], agent="idle") as fleet:
        async with fleet.lock("idle"):
            print("ready", flush=True); await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def idle_memory(engine: BenchEngine, _: Sizes) -> Iterator[Row]:
    """The resident memory of a client that is connected and waits."""
    path = engine.fresh()
    for kind, program in (("blocking", _BLOCKING), ("async", _ASYNC)):
        resident, target = _memory(path, program), engine.targets["memory"]
        yield Row(name=f"idle client, {kind}", p50=resident, unit="MB", target=target)


def _memory(path: str, program: str) -> float:
    command = [sys.executable, "-P", "-c", program, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # noqa: S603
        try:
            assert client.stdout is not None  # noqa: S101 - it is a pipe
            client.stdout.readline()
            with open(f"/proc/{client.pid}/status", encoding="ascii") as status:
                resident = next(line for line in status if line.startswith("VmRSS"))
            return int(resident.split()[1]) / 1024
        finally:
            client.communicate()
