"""Pipelines on every engine that real processes can share."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.conftest import with_git
from tests.nouns.pipelines.pipelines import definition

import interlock
from interlock.core import codec
from interlock.core.entry import Entry
from interlock.nouns.pipelines import pipeline as core
from interlock.store import Log
from interlock.testing.audit import audit

PHASES = 10
TEXT = "".join(
    f"""
[[pipeline.ten.phase]]
name = "phase{number}"
pre = [{{lock_free = "freeze"}}, {{not = {{lock_held = "stop"}}}}]
post = [{{semaphore_available = "builds"}}]
hold = ["lock/step{number}"]
tasks = [{{id = "task{number}"}}]
"""
    for number in range(PHASES)
)


def entries(fleet: interlock.Fleet) -> list[str]:
    everything = Log(limit=1000)
    read: codec.Decoder[Entry] = codec.Decoder(Entry)
    return [
        f"{entry.verb} {entry.thing}"
        for entry in map(read.read, fleet.store.read(everything).ranges[everything])
    ]


def test_ten_phases_on_store_facts_take_at_most_three_commits_each(url: str) -> None:
    """One of them enters the phase; a worker claims the task and completes it."""
    with interlock.connect(url, agent="ada") as fleet:
        fleet.semaphores.resize("builds", 2)
        fleet.pipelines.define(definition(TEXT))
        before = len(entries(fleet))
        assert fleet.pipelines.start("ten", id="r1")
        for number in range(PHASES):
            claim = fleet.tasks.next()
            assert isinstance(claim, interlock.outcomes.Claimed)
            assert claim.task == f"r1.task{number}"
            assert fleet.tasks.complete(claim.task, token=claim.token)
        shown = fleet.pipelines.show("r1")
        assert isinstance(shown, core.PipelineView)
        assert shown.state == "complete"
        verbs = Counter(each.split()[0] for each in entries(fleet)[before:])
        made = {verb: n for verb, n in verbs.items() if not verb.startswith(("agent.", "record."))}
        assert sum(made.values()) <= 3 * PHASES + 1, verbs
        assert audit(fleet.store) == []


@with_git
def test_a_busy_lock_a_guard_and_an_overtaken_caller_on_each_engine(url: str) -> None:
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        ada.pipelines.define(definition(TEXT.replace("tasks =", "# tasks =")))
        ada.semaphores.resize("builds", 1)
        assert ada.pipelines.start("ten", id="r1")
        with bob.lock("step1"):
            with bob.lock("freeze"):
                blocked = ada.pipelines.advance("r1")
                assert isinstance(blocked, core.PipelineBlocked)
                assert (blocked.leaf, blocked.phase) == ("lock-free=freeze", "phase0")
                assert ada.why("pipeline/r1").by == "bob"
            assert "lock-free=step1" in ada.why("pipeline/r1").because
        late = bob.pipelines.advance("r1", phase="phase0")
        assert isinstance(late, core.Overtaken)
        assert (late.by, late.phase) == ("ada", "phase1")
        assert bob.pipelines.cancel("r1", "enough")
        assert [each.state for each in bob.pipelines.list()] == ["cancelled"]
        told = [each.what for each in bob.record.explain("pipeline/r1").happenings]
        assert told == ["started", "advanced", "blocked", "blocked", "advanced", "cancelled"]
        assert audit(ada.store) == []


def test_a_retry_rests_by_the_clock_of_the_engine(url: str) -> None:
    from tests.faces.shell import until

    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        delay = max(ada.store.capabilities.min_ttl, 0.1)
        text = (
            '[[pipeline.p.phase]]\nname = "one"\npost = [{lock_free = "x"}]\n'
            f"on_failure = {{retry = '{delay}s', limit = 1}}\n"
        )
        ada.pipelines.define(definition(text.replace(f"{delay}s", f"{delay:g}s")))
        ada.pipelines.start("p", id="r1")
        with bob.lock("x"):
            first = ada.pipelines.advance("r1")
            assert isinstance(first, core.PipelineBlocked)
            assert first.attempts == 1
            until(lambda: isinstance(ada.pipelines.advance("r1"), core.PipelineFailed))


async def _whole(url: str) -> object:
    async with await interlock.aio.connect(url, agent="ada") as fleet:
        await fleet.pipelines.define(definition(TEXT.replace("tasks =", "# tasks =")))
        await fleet.semaphores.resize("builds", 1)
        outcome: object = await fleet.pipelines.start("ten", id="r1")
        for _ in range(PHASES):
            outcome = await fleet.pipelines.advance("r1")
        assert [each.state for each in await fleet.pipelines.list()] == ["complete"]
        return outcome


@pytest.mark.parametrize("where", ["sqlite", "memory"])
def test_the_async_client_has_the_same_calls(where: str, tmp_path: object) -> None:
    import asyncio

    url = "memory:" if where == "memory" else f"{tmp_path}/store.db"
    assert asyncio.run(_whole(url)) == core.PipelineCompleted(pipeline="r1")
