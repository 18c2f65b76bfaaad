"""Programs that send, receive, ask and answer, and are killed; words name one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count
from typing import Any

from tests.processes.lock_programs import Notes, say, wait

import interlock
from interlock import aio
from interlock.nouns.messages.message import Limited, MessageExists, Sent
from interlock.nouns.messages.query import QueryAnswered, Replied


def deadly(name: str, url: str, write: str, when: str, *arguments: str) -> None:
    """Run another program, and be killed before or after this write."""
    connect, writes = interlock.connect, count(1)

    def connected(*words: Any, **more: Any) -> Any:
        fleet = connect(*words, **more)
        store: Any = fleet.store
        word = "transact" if store.capabilities.transacts else "commit"
        change = getattr(store, word)

        def deadly_change(*what: Any) -> Any:
            last = next(writes) == int(write)
            if last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = change(*what)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(store, word, deadly_change)
        return fleet

    interlock.connect = connected
    globals()[name](url, *arguments)


def handle(url: str, how: str, last: str) -> None:
    """Handle numbers, and be killed in the handler of one of them, if it comes."""

    def each(data: int, attempt: int) -> None:
        say(data, attempt)
        if data == int(last):
            os.kill(os.getpid(), signal.SIGKILL)

    async def loop() -> None:
        async with await aio.connect(url, agent="bob", ttl=30) as fleet:
            async for message in fleet.messages.recv(timeout=5):
                each(message.data, message.attempt)
                if message.data == 3:
                    await message.ack()
                    return

    if how == "async":
        asyncio.run(loop())
        return
    with interlock.connect(url, agent="bob", ttl=30) as fleet:
        for message in fleet.messages.recv(timeout=5):
            each(message.data, message.attempt)
            if message.data == 3:
                message.ack()
                return


def pour(url: str, agent: str, to: str, many: str) -> None:
    """Send numbers, each under an id of its own: in turn as a share, an alert and mail."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        for number in range(int(many)):
            id_ = f"msg_{agent}.{number}"
            match number % 3:
                case 0:
                    got = fleet.messages.share(to, "number", number, hold=True, id=id_)
                case 1:
                    got = fleet.messages.alert(agent, number, id=id_)
                case _:
                    got = fleet.messages.send([to, agent], number, hold=True, id=id_)
            assert isinstance(got, Sent | MessageExists), got
            say(number)


def drink(url: str, agent: str, book: str, many: str, paced: str = "") -> None:
    """Note each message before it is acknowledged, until this and earlier processes have all.

    With a pace, the next message follows after a line of the test.
    """
    notes = Notes(book)
    with open(book, encoding="ascii") as file:
        known = {line.split()[1] for line in file}
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        while len(known) < int(many):
            for message in fleet.messages.recv(timeout=0.2):
                notes.write(message.sender, message.id, message.data)
                say(message.id)
                known.add(message.id)
                if paced:
                    wait()
                if len(known) == int(many):
                    message.ack()
                    break


def ask(url: str, agent: str, to: str, id_: str) -> None:
    """Ask, and print the outcome."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        got = fleet.messages.query(to, "why?", timeout=120, hold=True, id=id_)
        say(type(got).__name__, got.answer if isinstance(got, QueryAnswered) else "")


def answer(url: str, agent: str) -> None:
    """Receive a question, print it, and answer it after a line."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        for message in fleet.messages.recv():
            say(message.id, message.data)
            wait()
            assert isinstance(message.reply("because"), Replied)
            say("replied")
            return


def flood(url: str, agent: str, to: str, rate: str) -> None:
    """Send as fast as possible until a line comes, and print how many were sent and refused."""
    os.environ["INTERLOCK_MESSAGE_RATE"] = rate
    sent = refused = 0
    os.set_blocking(sys.stdin.fileno(), False)
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        while not sys.stdin.readline():
            got = fleet.messages.share(to, "noise", sent)
            sent += isinstance(got, Sent)
            refused += isinstance(got, Limited)
            if sent + refused == 150:
                say("flooding")
        say(sent, refused)


def ask_in_a_cycle(url: str, agent: str, to: str) -> None:
    """Ask an agent that asks this one: one of the two is refused as a deadlock."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        say("ready")
        wait()
        got = fleet.messages.query(to, "you first", timeout=60)
        say(type(got).__name__)
        if not isinstance(got, QueryAnswered):
            for message in fleet.messages.recv():
                message.reply("I give in")
                return


def loops(url: str, names: str, rounds: str, *agents: str) -> None:
    """Several agents in one event loop that alert, share with and ask each other."""
    asyncio.run(_loops(url, names.split(","), int(rounds), agents))


async def _loops(url: str, names: list[str], rounds: int, agents: tuple[str, ...]) -> None:
    fleets = [await aio.connect(url, agent=name, ttl=60) for name in names]
    for fleet in fleets:
        await fleet.messages.subscribe("news")
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.gather(
        *[_send(fleet, name, rounds, agents) for fleet, name in zip(fleets, names, strict=True)],
        *[_receive(fleet, name, rounds, agents) for fleet, name in zip(fleets, names, strict=True)],
    )
    for fleet in fleets:
        await fleet.close()


async def _send(fleet: aio.Fleet, name: str, rounds: int, agents: tuple[str, ...]) -> None:
    """Each round: an alert, and a share and a question for the next agent."""
    following = agents[(agents.index(name) + 1) % len(agents)]
    for number in range(rounds):
        assert isinstance(await fleet.messages.alert("news", number), Sent)
        assert isinstance(await fleet.messages.share(following, "number", number), Sent)
        got = await fleet.messages.query(following, number, timeout=60)
        assert isinstance(got, QueryAnswered), got
        assert (got.answer, got.by) == (number + 1, following)


async def _receive(fleet: aio.Fleet, name: str, rounds: int, agents: tuple[str, ...]) -> None:
    """Receive all messages, answer questions, and print all in their order."""
    received: list[str] = []
    due = rounds * (len(agents) + 2)
    async for message in fleet.messages.recv():
        if message.kind == "query":
            await message.reply(message.data + 1)
        received.append(f"{message.sender},{message.kind},{message.data}")
        if len(received) == due:
            await message.ack()
            break
    say(name, *received)


def main() -> None:
    """Run the program that the first word names."""
    globals()[sys.argv[1]](*sys.argv[2:])
