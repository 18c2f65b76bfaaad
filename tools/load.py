"""What ``make load`` runs: 50 agents in 8 processes that send 1,000 messages a second for a minute.

Every agent sends alerts, shares and mail in turns, 20 a second, within the usual limits, and
receives the alerts of two others.  It acknowledges messages four times a second.  In the end the
messages sent are compared with those received: none may be lost, doubled or out of order.

The agents of a process share its connection to the store, unless they are ``--apart``.
During the run a bare client of the engine makes similar commits in a namespace of its own, which
shows how quick the machine was at the time.

    tools/load.py --seconds 10 --store redis://localhost
"""  # noqa: INP001 - a script

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, suppress

import msgspec
from msgspec import Struct

from interlock import aio
from interlock.aio_messages import Message
from interlock.bench.engine import SHARE, local, network
from interlock.bench.measuring import percentile
from interlock.bench.processes import read_line, write_line
from interlock.nouns.messages.message import Sent
from interlock.store import Store
from interlock.stores import is_network

SENDING = ("alert", "share", "mail")
SHARES = (0.5, 0.95, 0.99)
AGENTS = 50
PROCESSES = 8
RATE = 20.0
"""Messages of each agent a second."""
ACKED_EVERY = 0.25
BARE_EVERY = 0.02
SETTLING = 5.0
"""Seconds that the last messages may take before they count as lost."""


class Plan(Struct, frozen=True):
    """The work of one process: its agents among all agents, and how much they send."""

    url: str
    agents: int
    own: list[int]
    rate: float
    seconds: float
    apart: bool


class SentMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message that was sent: its sender, its number among the sender's, and its receivers.

    A process notes ten thousands of these, so noting one must be cheap.
    """

    sender: int
    number: int
    readers: tuple[int, ...]


class ReceivedMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message that was received: its receiver, sender and number, and its latency."""

    reader: int
    sender: int
    number: int
    took: float


class Share(Struct, frozen=True):
    """The messages of the agents of one process, in order."""

    sent: list[SentMessage]
    received: list[ReceivedMessage]
    refused: list[str]


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    sent: int
    received: int
    lost: int
    doubled: int
    reordered: int
    refused: int
    seconds: float
    took: list[float]
    bare: list[float]


class Agent:
    """One agent: sends on time, receives, and acknowledges in batches."""

    def __init__(self, fleet: aio.Fleet, me: int, plan: Plan, share: Share) -> None:
        self._fleet = fleet
        self._me = me
        self._plan = plan
        self._share = share
        self._receiver = fleet.messages.recv(ack=False)
        self._to_ack: list[Message] = []

    async def prepare(self) -> None:
        """Subscribe to the alerts of the two agents before this one."""
        for back in (1, 2):
            await self._fleet.messages.subscribe(f"news.{(self._me - back) % self._plan.agents}")

    async def send(self, begin: float) -> None:
        """One message after the other, each at its time."""
        step = 1 / self._plan.rate
        first = begin + step * self._me / self._plan.agents
        for number in range(int(self._plan.seconds * self._plan.rate)):
            await asyncio.sleep(first + number * step - time.monotonic())
            readers = self._readers(number)
            outcome = await self._one(number, readers)
            if isinstance(outcome, Sent):
                self._share.sent.append(SentMessage(self._me, number, readers))
            else:
                self._share.refused.append(repr(outcome))

    def _readers(self, number: int) -> tuple[int, ...]:
        """The next two agents receive alerts; one agent receives a share, two receive mail."""
        many, jump = self._plan.agents, 3 + number % (self._plan.agents - 4)
        match SENDING[number % len(SENDING)]:
            case "alert":
                return (self._me + 1) % many, (self._me + 2) % many
            case "share":
                return ((self._me + jump) % many,)
            case _:
                return (self._me + jump) % many, (self._me + jump + 1) % many

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

    async def receive(self) -> None:
        """Receive all messages, until cancelled."""
        while True:
            for each in await self._receiver.take():
                sender, number, sent = each.data
                took = time.monotonic() - sent
                self._share.received.append(ReceivedMessage(self._me, sender, number, took))
                self._to_ack.append(each)

    async def acknowledge(self) -> None:
        """Acknowledge the received messages in batches, until cancelled."""
        while True:
            await asyncio.sleep(ACKED_EVERY)
            came, self._to_ack = self._to_ack, []
            if came:
                await self._receiver.ack(*came)


async def work(plan: Plan) -> Share:
    """One process: its agents begin at the same moment as those of all others."""
    share = Share([], [], [])
    async with AsyncExitStack() as stack:
        agents: list[Agent] = []
        shared: Store | None = None
        for me in plan.own:
            fleet = await aio.connect(plan.url, agent=f"agent.{me}", store=shared)
            await stack.enter_async_context(fleet)
            shared = None if plan.apart else fleet.store
            agents.append(Agent(fleet, me, plan, share))
            await agents[-1].prepare()
        print("ready", flush=True)  # noqa: T201 - to the process that started us
        begin = float(await asyncio.to_thread(sys.stdin.readline))
        listening = [
            asyncio.create_task(listen())
            for agent in agents
            for listen in (agent.receive, agent.acknowledge)
        ]
        await asyncio.gather(*(agent.send(begin) for agent in agents))
        print("sent", flush=True)  # noqa: T201
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        await asyncio.wait((ended, *listening), return_when=asyncio.FIRST_COMPLETED)
        for task in listening:
            task.cancel()
        for task in listening:
            with suppress(asyncio.CancelledError):
                await task
    return share


def plans(
    url: str,
    *,
    seconds: float,
    agents: int = AGENTS,
    processes: int = PROCESSES,
    rate: float = RATE,
    apart: bool = False,
) -> list[Plan]:
    """The agents, spread over the processes."""
    numbers = range(agents)
    return [
        Plan(url, agents, list(numbers[first::processes]), rate, seconds, apart)
        for first in range(processes)
    ]


def run(plans: Sequence[Plan]) -> Verdict:
    """Run all processes, and compare the messages sent with those received."""
    workers = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in plans
    ]
    try:
        for worker, plan in zip(workers, plans, strict=True):
            write_line(worker, msgspec.json.encode(plan).decode())
        for worker in workers:
            read_line(worker)
        begin = time.monotonic() + 0.5
        for worker in workers:
            write_line(worker, str(begin))
        bare = _beside(plans[0], begin)
        for worker in workers:
            read_line(worker)
        took = time.monotonic() - begin
        time.sleep(SETTLING)
        outputs = [worker.communicate(b"end\n", timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return judge([msgspec.json.decode(each, type=Share) for each in outputs], bare, took)


def _beside(plan: Plan, begin: float) -> list[float]:
    """How long a bare commit takes under this load, in milliseconds."""
    engine = network(plan.url) if is_network(plan.url) else local(plan.url)
    spans: list[float] = []
    with closing(engine), closing(engine.floor()) as floor:
        while (now := time.monotonic()) < begin + plan.seconds:
            floor.commit(str(len(spans)), kind=SHARE)
            spans.append((time.monotonic() - now) * 1000)
            time.sleep(BARE_EVERY)
    return spans


def judge(shares: Sequence[Share], bare: Sequence[float], seconds: float) -> Verdict:
    """Compare the messages sent with those received."""
    sent = [each for share in shares for each in share.sent]
    received = [each for share in shares for each in share.received]
    wanted = {(each.sender, each.number, reader) for each in sent for reader in each.readers}
    got = [(each.sender, each.number, each.reader) for each in received]
    for refused in sorted({each for share in shares for each in share.refused})[:3]:
        print(f"refused: {refused}", file=sys.stderr)  # noqa: T201
    spans = [each.took * 1000 for each in received]
    return Verdict(
        sent=len(sent),
        received=len(got),
        lost=len(wanted - set(got)),
        doubled=len(got) - len(set(got)),
        reordered=sum(1 for _ in _out_of_order(received)),
        refused=sum(len(share.refused) for share in shares),
        seconds=seconds,
        took=[*(percentile(spans, share) for share in SHARES), max(spans)],
        bare=[*(percentile(bare, share) for share in SHARES), max(bare)],
    )


def _out_of_order(received: Iterable[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """The messages that came after a later message of the same sender."""
    latest: dict[tuple[int, int], int] = {}
    for each in received:
        pair = (each.reader, each.sender)
        if each.number < latest.get(pair, -1):
            yield each
        latest[pair] = max(each.number, latest.get(pair, -1))


def report(verdict: Verdict) -> str:
    """The verdict in lines."""
    names = ("sent", "received", "lost", "doubled", "reordered", "refused")
    return "\n".join(
        [
            *(f"{name:<10}{getattr(verdict, name):>8,}" for name in names),
            f"{verdict.sent / verdict.seconds:,.0f} messages sent each second",
            f"from the call to the receiver: {_times(verdict.took)}",
            f"a bare commit at the same time: {_times(verdict.bare)}",
        ]
    )


def _times(spans: Sequence[float]) -> str:
    return "p50 {:.1f} ms, p95 {:.1f} ms, p99 {:.1f} ms, longest {:.0f} ms".format(*spans)


def main(words: list[str]) -> int:
    """Run it, print the verdict; the exit status says whether all came once and in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="a URL; without one, SQLite in a temporary folder")
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--rate", type=float, default=RATE, help="messages of each agent a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--apart", action="store_true", help="a connection for each agent")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if chosen.worker:
        share = asyncio.run(work(msgspec.json.decode(sys.stdin.readline(), type=Plan)))
        sys.stdout.buffer.write(msgspec.json.encode(share))
        return 0
    with tempfile.TemporaryDirectory(prefix="interlock-load-") as folder:
        verdict = run(
            plans(
                chosen.store or f"{folder}/load.db",
                agents=chosen.agents,
                processes=chosen.processes,
                rate=chosen.rate,
                seconds=chosen.seconds,
                apart=chosen.apart,
            )
        )
    print(report(verdict))  # noqa: T201 - the product
    return int(bool(verdict.lost or verdict.doubled or verdict.reordered or verdict.refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
