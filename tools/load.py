"""What ``make load`` runs: 50 agents in 8 processes that send 1,000 messages a second for a minute.

Every agent sends alerts, shares and mail in turns, 20 a second, within the usual limits, and hears
the alerts of two others.  It acknowledges what came four times a second.  In the end all that was
sent is compared with all that was received: nothing may be lost, doubled or out of order.

    tools/load.py --seconds 10 --store redis://localhost
"""  # noqa: INP001 - a script

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

import msgspec
from msgspec import Struct

from interlock import aio
from interlock.bench.table import percentile
from interlock.core.message import Received, Sent
from interlock.driving import drive_async
from interlock.services.message.receiver import Receiver

SENDING = ("alert", "share", "mail")
ACKED_EVERY = 0.25
SETTLING = 30.0
"""Seconds that a message may take after the last was sent, before it counts as lost."""


class Plan(Struct, frozen=True):
    """What one process does: its agents among all of them, and from when on."""

    url: str
    agents: int
    own: list[int]
    rate: float
    seconds: float


class Told(Struct, frozen=True, array_like=True):
    """A message that was sent: by whom, as which of its messages, and who is to receive it."""

    sender: int
    number: int
    readers: list[int]


class Heard(Struct, frozen=True, array_like=True):
    """A message that was received: by whom, of whom, which, and seconds after it was sent."""

    reader: int
    sender: int
    number: int
    took: float


class Share(Struct, frozen=True):
    """What the agents of one process saw, in order."""

    told: list[Told]
    heard: list[Heard]
    refused: list[str]


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of all messages."""

    sent: int
    received: int
    lost: int
    doubled: int
    reordered: int
    refused: int
    seconds: float
    p50: float
    p95: float
    p99: float
    longest: float


class Agent:
    """One agent: sends on time, receives, and acknowledges in batches."""

    def __init__(self, fleet: aio.Fleet, me: int, plan: Plan, share: Share) -> None:
        self._fleet = fleet
        self._me = me
        self._plan = plan
        self._share = share
        self._to_ack: list[str] = []

    async def prepare(self) -> Receiver:
        """Subscribe to the alerts of the two before us."""
        for back in (1, 2):
            await self._fleet.messages.subscribe(f"news.{(self._me - back) % self._plan.agents}")
        return self._fleet.messages.calls.receiver()

    async def send(self, begin: float) -> None:
        """One message after the other, each at its time."""
        step = 1 / self._plan.rate
        first = begin + step * self._me / self._plan.agents
        for number in range(int(self._plan.seconds * self._plan.rate)):
            await asyncio.sleep(first + number * step - time.monotonic())
            readers = self._readers(number)
            outcome = await self._one(number, readers)
            if isinstance(outcome, Sent):
                self._share.told.append(Told(self._me, number, readers))
            else:
                self._share.refused.append(repr(outcome))

    def _readers(self, number: int) -> list[int]:
        """The two behind us hear alerts; one gets what is shared, two get mail."""
        many, jump = self._plan.agents, 3 + number % (self._plan.agents - 4)
        match SENDING[number % len(SENDING)]:
            case "alert":
                return [(self._me + 1) % many, (self._me + 2) % many]
            case "share":
                return [(self._me + jump) % many]
            case _:
                return [(self._me + jump) % many, (self._me + jump + 1) % many]

    async def _one(self, number: int, readers: Sequence[int]) -> object:
        messages = self._fleet.messages
        body = [self._me, number, time.monotonic()]
        names = [f"agent.{each}" for each in readers]
        match SENDING[number % len(SENDING)]:
            case "alert":
                return await messages.alert(f"news.{self._me}", body)
            case "share":
                return await messages.share(names[0], "load", body)
            case _:
                return await messages.send(names, body, subject=f"the {number}th")

    async def receive(self, receiver: Receiver) -> None:
        """Everything that comes, until we are cancelled."""
        while True:
            for each in await drive_async(receiver.take(None), self._fleet.store):
                self._hear(each, time.monotonic())

    def _hear(self, message: Received, now: float) -> None:
        sender, number, sent = message.data
        self._share.heard.append(Heard(self._me, sender, number, now - sent))
        self._to_ack.append(message.id)

    async def acknowledge(self, receiver: Receiver) -> None:
        """What came, some at a time, until we are cancelled."""
        while True:
            await asyncio.sleep(ACKED_EVERY)
            ids, self._to_ack = self._to_ack, []
            if ids:
                await drive_async(receiver.ack(ids), self._fleet.store)


async def work(plan: Plan) -> Share:
    """One process: its agents begin together with those of all others."""
    share = Share([], [], [])
    async with AsyncExitStack() as stack:
        agents: list[tuple[Agent, Receiver]] = []
        for me in plan.own:
            fleet = await stack.enter_async_context(
                await aio.connect(plan.url, agent=f"agent.{me}")
            )
            agent = Agent(fleet, me, plan, share)
            agents.append((agent, await agent.prepare()))
            stack.callback(agents[-1][1].close)
        print("ready", flush=True)  # noqa: T201 - to the process that started us
        begin = float(await asyncio.to_thread(sys.stdin.readline))
        listening = [
            asyncio.create_task(listen(receiver))
            for agent, receiver in agents
            for listen in (agent.receive, agent.acknowledge)
        ]
        await asyncio.gather(*(agent.send(begin) for agent, _ in agents))
        print("sent", flush=True)  # noqa: T201
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        await asyncio.wait((ended, *listening), return_when=asyncio.FIRST_COMPLETED)
        for task in listening:
            task.cancel()
        for task in listening:
            with suppress(asyncio.CancelledError):
                await task
    return share


def run(url: str, agents: int, processes: int, rate: float, seconds: float) -> Verdict:
    """All processes, and what became of what they sent."""
    plans = [
        Plan(url, agents, list(range(agents))[number::processes], rate, seconds)
        for number in range(processes)
    ]
    workers = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in plans
    ]
    try:
        for worker, plan in zip(workers, plans, strict=True):
            _say(worker, msgspec.json.encode(plan))
        for worker in workers:
            _hear(worker)
        begin = time.monotonic() + 0.5
        for worker in workers:
            _say(worker, str(begin).encode())
        for worker in workers:
            _hear(worker)
        took = time.monotonic() - begin
        time.sleep(min(SETTLING, 2 + seconds / 20))
        outputs = [worker.communicate(b"end\n", timeout=SETTLING + 60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return judge([msgspec.json.decode(each, type=Share) for each in outputs], took)


def judge(shares: Sequence[Share], seconds: float) -> Verdict:
    """Compare what was sent with what was received."""
    told = [each for share in shares for each in share.told]
    heard = [each for share in shares for each in share.heard]
    wanted = {(each.sender, each.number, reader) for each in told for reader in each.readers}
    got = [(each.sender, each.number, each.reader) for each in heard]
    for refused in sorted({each for share in shares for each in share.refused})[:3]:
        print(f"refused: {refused}", file=sys.stderr)  # noqa: T201
    spans = [each.took * 1000 for each in heard]
    return Verdict(
        sent=len(told),
        received=len(got),
        lost=len(wanted - set(got)),
        doubled=len(got) - len(set(got)),
        reordered=sum(1 for _ in _out_of_order(heard)),
        refused=sum(len(share.refused) for share in shares),
        seconds=seconds,
        p50=percentile(spans, 0.5),
        p95=percentile(spans, 0.95),
        p99=percentile(spans, 0.99),
        longest=max(spans),
    )


def _out_of_order(heard: Iterable[Heard]) -> Iterator[Heard]:
    """Those that came after a later one of the same sender."""
    latest: dict[tuple[int, int], int] = {}
    for each in heard:
        pair = (each.reader, each.sender)
        if each.number < latest.get(pair, -1):
            yield each
        latest[pair] = max(each.number, latest.get(pair, -1))


def _say(worker: subprocess.Popen[bytes], line: bytes) -> None:
    assert worker.stdin is not None  # noqa: S101 - it is a pipe
    worker.stdin.write(line + b"\n")
    worker.stdin.flush()


def _hear(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdout is not None  # noqa: S101 - it is a pipe
    if not worker.stdout.readline():
        raise RuntimeError("a process ended too soon; see above")


def report(verdict: Verdict) -> str:
    """The verdict in lines."""
    counts: Mapping[str, int] = {
        name: getattr(verdict, name)
        for name in ("sent", "received", "lost", "doubled", "reordered", "refused")
    }
    return "\n".join(
        [
            *(f"{name:<10}{count:>8,}" for name, count in counts.items()),
            f"{verdict.sent / verdict.seconds:,.0f} messages sent each second;"
            f" from the call to the receiver: p50 {verdict.p50:.1f} ms, p95 {verdict.p95:.1f} ms,"
            f" p99 {verdict.p99:.1f} ms, longest {verdict.longest:.0f} ms",
        ]
    )


def main(words: list[str]) -> int:
    """Run it, print the verdict; the exit status says whether all came once and in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="a URL; without one, SQLite in a temporary folder")
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rate", type=float, default=20.0, help="messages of each agent a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if chosen.worker:
        share = asyncio.run(work(msgspec.json.decode(sys.stdin.readline(), type=Plan)))
        sys.stdout.buffer.write(msgspec.json.encode(share))
        return 0
    with tempfile.TemporaryDirectory(prefix="interlock-load-") as folder:
        url = chosen.store or f"{folder}/load.db"
        verdict = run(url, chosen.agents, chosen.processes, chosen.rate, chosen.seconds)
    print(report(verdict))  # noqa: T201 - the product
    return int(bool(verdict.lost or verdict.doubled or verdict.reordered or verdict.refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
