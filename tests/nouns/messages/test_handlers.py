"""Message handlers that ask each other: a cycle among them is refused like any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.core import keys
from interlock.nouns.grants.lock import LockAcquired
from interlock.nouns.messages.query import AskOutcome, QueryAnswered, QueryDeadlock
from interlock.runtime import callers
from interlock.store import Item, Range
from interlock.testing.testbed import Testbed

LONG = 60.0
"""No test waits so long unless it fails."""


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def fleets(place: str) -> Iterator[dict[str, interlock.Fleet]]:
    with ExitStack() as stack:
        names = ("ada", "bob", "cleo", "boss")
        yield {name: stack.enter_context(interlock.connect(place, agent=name)) for name in names}


def ends(outcomes: dict[str, AskOutcome], cycle: int) -> None:
    """One wait of the cycle is refused, so all others get their answers."""
    (refused,) = [each for each in outcomes.values() if isinstance(each, QueryDeadlock)]
    assert len(refused.cycle) == cycle
    assert sum(isinstance(each, QueryAnswered) for each in outcomes.values()) == cycle - 1


@pytest.mark.parametrize("cycle", [("ada", "bob"), ("ada", "bob", "cleo")])
def test_of_handlers_in_threads_that_ask_each_other_one_is_refused(
    fleets: dict[str, interlock.Fleet], cycle: tuple[str, ...]
) -> None:
    outcomes: dict[str, AskOutcome] = {}
    all_asked = threading.Event()

    def handle(name: str, to: str) -> None:
        for message in fleets[name].messages.recv():
            match message.kind, message.data:
                case "query", _:
                    message.reply("here")
                case "mail", "ask":
                    outcomes[name] = fleets[name].messages.query(to, "?", timeout=LONG)
                    if len(outcomes) == len(cycle):
                        all_asked.set()
                case _:
                    return

    pairs = zip(cycle, (*cycle[1:], cycle[0]), strict=True)
    threads = [threading.Thread(target=handle, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    fleets["boss"].messages.send(cycle, "ask")
    assert all_asked.wait(LONG)
    fleets["boss"].messages.send(cycle, "end")
    for thread in threads:
        thread.join(LONG)
    ends(outcomes, len(cycle))


def test_of_handlers_in_tasks_that_ask_each_other_one_is_refused(place: str) -> None:
    outcomes: dict[str, AskOutcome] = {}

    async def handle(fleet: aio.Fleet, to: str) -> None:
        async for message in fleet.messages.recv():
            if message.kind == "query":
                await message.reply("here")
            elif message.data == "ask":
                outcomes[to] = await fleet.messages.query(to, "?", timeout=LONG)
                if len(outcomes) == 2:
                    await fleet.messages.send(["ada", "bob"], "end")
            else:
                return

    async def both() -> None:
        async with (
            await aio.connect(place, agent="ada") as ada,
            await aio.connect(place, agent="bob") as bob,
        ):
            await ada.messages.send(["ada", "bob"], "ask")
            await asyncio.wait_for(asyncio.gather(handle(ada, "bob"), handle(bob, "ada")), LONG)

    asyncio.run(both())
    ends(outcomes, 2)


def test_a_handler_that_waits_for_the_lock_of_its_asker_closes_a_cycle(
    fleets: dict[str, interlock.Fleet],
) -> None:
    ada, bob = fleets["ada"], fleets["bob"]
    found: list[object] = []

    def handle() -> None:
        for message in bob.messages.recv():
            if message.kind == "query":
                message.reply("here")
                return
            outcome = bob.locks.acquire("build", wait=LONG)
            found.append(outcome)
            if isinstance(outcome, LockAcquired):
                return

    ada.locks.acquire("build")
    thread = threading.Thread(target=handle)
    thread.start()
    ada.messages.send("bob", "build")
    found.append(ada.messages.query("bob", "?", timeout=LONG))
    ada.locks.release("build")
    thread.join(LONG)
    assert len([each for each in found if getattr(each, "cycle", ())]) == 1


def test_a_receiver_that_ended_is_in_no_cycle(fleets: dict[str, interlock.Fleet]) -> None:
    """What it waits for after that counts for its agent alone."""
    bob = fleets["bob"]
    someone = callers.current()
    assert someone is not None
    before = set(someone.holds)
    with bob.messages.recv(timeout="1ms") as messages:
        assert list(messages) == []
        assert len(someone.holds) == len(before) + 1
    assert someone.holds == before


@pytest.mark.parametrize("caller", ["*", "@vm"])
def test_of_two_shells_that_wait_for_messages_one_is_there_when_the_other_ends(caller: str) -> None:
    stage = Testbed()
    ada = stage.client("ada")
    shells = [stage.client("bob", ttl=30.0 if caller == "*" else None) for _ in range(2)]
    for shell in shells:
        shell.context.identity = replace(shell.context.identity, caller=caller)
    waiting = [shell.start(shell.messages.wait(600)) for shell in shells]
    assert len(serving(stage)) == 2
    with pytest.raises(KeyboardInterrupt):
        waiting[1].interrupt(KeyboardInterrupt()).result()
    assert len(serving(stage)) == 1
    asks = ada.start(ada.messages.query("bob", "?", timeout=60))
    assert waiting[0].run().done
    assert not asks.done


def test_a_shell_that_waits_for_messages_is_there_whatever_its_other_commands_wait_for() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.context.identity = replace(bob.context.identity, caller="*")
    waiting = bob.start(bob.messages.wait(600))
    first = bob.start(bob.messages.query("ada", "?", timeout=60))
    asks = ada.start(ada.messages.query("bob", "?", timeout=60))
    assert not asks.done, "an agent is present for it"
    assert not first.done
    assert waiting.run().done


def serving(stage: Testbed) -> tuple[Item, ...]:
    page = Range(keys.SERVING)
    return tuple(stage.store.read(page).ranges[page])
