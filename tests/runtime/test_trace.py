from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.shell import Shell

import interlock
from interlock import aio
from interlock.client import Fleet
from interlock.errors import BadName
from interlock.stores.memory import MemoryStore
from interlock.testing.testbed import Testbed


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with interlock.connect(agent="ada", store=MemoryStore(), trace="t-1", join=False) as fleet:
        yield fleet


def traces(fleet: Fleet) -> list[str]:
    return [line.trace for line in fleet.record.log()]


def test_what_a_client_does_carries_its_trace(fleet: Fleet) -> None:
    fleet.locks.acquire("a")
    assert fleet.trace == "t-1"
    assert traces(fleet) == ["t-1"]


def test_a_block_has_a_trace_of_its_own(fleet: Fleet) -> None:
    with interlock.trace("t-2") as outer:
        fleet.locks.acquire("a")
        with interlock.trace("t-3"):
            fleet.locks.acquire("b")
            assert fleet.trace == "t-3"
        fleet.locks.acquire("c")
    fleet.locks.acquire("d")
    assert outer == "t-2"
    assert traces(fleet) == ["t-2", "t-3", "t-2", "t-1"]
    assert [line.thing for line in fleet.record.log(trace="t-2")] == ["lock/a", "lock/c"]


def test_another_thread_is_not_in_the_block(fleet: Fleet) -> None:
    with interlock.trace("t-2"):
        thread = threading.Thread(target=fleet.locks.acquire, args=("a",))
        thread.start()
        thread.join()
    assert traces(fleet) == ["t-1"]


def test_tasks_at_the_same_time_keep_their_traces_apart() -> None:
    asyncio.run(_tasks())


async def _tasks() -> None:
    async with await aio.connect(agent="ada", store=MemoryStore(), join=False) as fleet:

        async def work(name: str) -> None:
            with interlock.trace(f"t-{name}"):
                await asyncio.sleep(0)
                await fleet.locks.acquire(name)
                assert fleet.trace == f"t-{name}"

        await asyncio.gather(*(work(name) for name in "abc"))
        log = await fleet.record.log()
        assert {line.thing: line.trace for line in log} == {f"lock/{n}": f"t-{n}" for n in "abc"}
        assert (await fleet.record.explain("a")).happenings[0].trace == "t-a"
        assert fleet.trace.startswith("trc_")


def test_a_program_goes_on_with_the_trace_of_who_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INTERLOCK_TRACE", "t-0")
    for given, trace in (("", "t-0"), ("t-1", "t-1")):
        with interlock.connect(agent="a", store=MemoryStore(), trace=given, join=False) as fleet:
            assert fleet.trace == trace


@pytest.mark.parametrize("name", ["", "a\tb", "-x", "a\nb", "x" * 201])
def test_a_trace_is_a_name(name: str) -> None:
    with pytest.raises(BadName), interlock.trace(name):
        pass
    if name:
        with pytest.raises(BadName, match="trace"):
            interlock.connect(agent="ada", store=MemoryStore(), trace=name)


def told(fleet: Fleet, trace: str) -> list[str]:
    """The verbs of a trace, oldest first."""
    return [line.verb for line in fleet.record.log(trace=trace, limit=100)]


def test_a_task_hands_its_trace_on_to_whoever_works_on_it(url: str) -> None:
    with (
        interlock.connect(url, agent="ada", trace="story") as ada,
        interlock.connect(url, agent="bob", trace="other") as bob,
    ):
        for name in ("done", "failed", "released", "named"):
            ada.tasks.publish(name, retries=0)
        for end in (bob.tasks.complete, bob.tasks.fail, bob.tasks.release):
            claim = bob.tasks.next()
            assert isinstance(claim, interlock.Claimed)
            end(claim.task)
        bob.tasks.claim("named")
        ada.tasks.cancel("named")
        verbs = [verb for verb in told(bob, "story") if verb.startswith("task.")]
        assert verbs == ["task.publish"] * 4 + [
            *("task.claim", "task.complete", "task.claim", "task.fail"),
            *("task.claim", "task.release", "task.claim", "task.cancel"),
        ]
        assert not [verb for verb in told(bob, "other") if verb.startswith("task.")]


def test_a_task_that_was_published_without_a_trace_has_its_id(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        ada.tasks.publish("first")
        ada.tasks.publish("second", needs=["first"])
        bob.tasks.claim("first")
        bob.tasks.complete("first")
        bob.tasks.next()
        assert told(ada, "first") == ["task.publish", "task.claim", "task.complete"]
        assert told(ada, "second") == ["task.publish", "task.complete", "task.claim"]


def test_the_tasks_of_a_plan_have_the_trace_of_who_published_it(url: str) -> None:
    with interlock.connect(url, agent="ada", join=False) as ada:
        with interlock.trace("story"):
            ada.tasks.publish_all([{"id": "a"}, {"id": "b", "needs": ["a"]}])
        ada.tasks.publish_all([{"id": "c"}])
        with interlock.connect(url, agent="bob") as bob:
            for _ in range(2):
                claim = bob.tasks.next()
                assert isinstance(claim, interlock.Claimed)
                bob.tasks.complete(claim.task)
        assert told(ada, "story").count("task.claim") == 2 - told(ada, "c").count("task.claim")
        assert told(ada, "c")[0] == "task.import"


def test_messages_are_acknowledged_under_the_trace_that_they_were_sent_under(url: str) -> None:
    with (
        interlock.connect(url, agent="ada", trace="story") as ada,
        interlock.connect(url, agent="bob", trace="other") as bob,
    ):
        bob.messages.subscribe("build")
        ada.messages.alert("build", {"n": 1})
        ada.messages.send("bob", "hello")
        with interlock.trace("second"):
            ada.messages.share("bob", "finding", 1)
        with bob.messages.recv(timeout=0) as messages:
            assert len(messages.take()) == 3
            messages.take()
        acked = [line for line in bob.record.log(trace="story") if line.verb == "message.ack"]
        assert sum(len(line.events) for line in acked) >= 2
        assert "message.ack" in told(bob, "second")
        ada.messages.alert("build", {"n": 2})
        unread = bob.messages.inbox().messages
        bob.messages.ack(*[each.id for each in unread])
        line = bob.record.log(trace="story", limit=1)[-1]
        assert (line.verb, line.trace) == ("message.ack", "story")


def test_an_answer_goes_under_the_trace_of_the_question(url: str) -> None:
    with (
        interlock.connect(url, agent="ada", trace="story") as ada,
        interlock.connect(url, agent="bob", trace="other") as bob,
    ):

        def answer() -> None:
            for message in bob.messages.recv(timeout=20):
                message.reply("42")
                return

        thread = threading.Thread(target=answer)
        thread.start()
        assert isinstance(ada.messages.query("bob", "what?", timeout=20), interlock.QueryAnswered)
        thread.join()
        assert {"query.ask", "query.reply"} <= set(told(ada, "story"))


def claims(fleet: Fleet) -> list[tuple[str, float]]:
    """Which component made each claim, and how long that took."""
    lines = fleet.record.log(verb="task.claim", limit=100)
    return [(line.via, -1.0 if line.took is None else line.took) for line in lines]


def test_a_claim_says_which_component_made_it_and_how_long_that_took(
    url: str, tmp_path: Path
) -> None:
    async def claim_in_a_loop() -> None:
        async with await aio.connect(url, agent="bob") as fleet:
            await fleet.tasks.claim("second")
            async for _ in fleet.tasks.work(stop_on_signals=False):
                break

    with interlock.connect(url, agent="ada") as ada:
        for name in ("first", "second", "third", "fourth", "fifth"):
            ada.tasks.publish(name)
        ada.tasks.claim("first")
        asyncio.run(claim_in_a_loop())
        for _ in ada.tasks.work(stop_on_signals=False):
            break
        shell = Shell(tmp_path, INTERLOCK_STORE=url, INTERLOCK_AGENT="cleo")
        assert shell.run("task", "next").status == 0
        made = claims(ada)
        components = ["python", "python-async", "python-async/worker", "python/worker", "cli"]
        assert [via for via, _ in made] == components
        assert all(0 <= took < 60_000 for _, took in made)
        others = [line.via for line in ada.record.log(limit=100) if line.verb != "task.claim"]
        assert not any(others), "only claims pay for it"
        assert ada.record.verify().exit_status == 0


def test_a_wait_for_a_task_counts_as_time_that_the_claim_took() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    waiting = bob.start(bob.tasks.next(wait=60))
    stage.clock.advance(3)
    ada.run(ada.tasks.publish("late"))
    assert isinstance(waiting.run().result(), interlock.Claimed)
    (line,) = ada.run(ada.record.log(verb="task.claim"))
    assert line.took is not None
    assert 3000 <= line.took < 4000
