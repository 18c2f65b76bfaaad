"""One commit claims several tasks and completes others, as one after the other would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.tasks import task_truths

import interlock
from interlock import aio, guard
from interlock.aio_tasks import Claim
from interlock.core.decision import Decision
from interlock.errors import BadInput
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.tasks.held_claim import WENT_ON
from interlock.nouns.tasks.ready_index import Abilities
from interlock.nouns.tasks.task import Claimant, TaskEnd
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask, TaskCompleted, TaskFenced
from interlock.runtime.attempt import DecideOp
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Testbed

KINDS = st.fixed_dictionaries(
    {"priority": st.integers(1, 3)},
    optional={
        "requires": st.just(["rust"]),
        "deadline": st.sampled_from([0.5, 90.0]),
        "not_before": st.just(0.25),
        "guard": st.just(["calm"]),
        "evidence": st.just(["calm"]),
    },
)
PLANS = st.lists(st.tuples(KINDS, st.booleans()), min_size=1, max_size=9)


def published(plan: Sequence[tuple[dict[str, Any], bool]], *, remote: bool) -> Client:
    """A worker with these tasks; some of them need the one before."""
    stage = Testbed()
    client = stage.remote("ada") if remote else stage.client("ada")
    client.run(GuardCalls(client.context).define(guard.named("calm", guard.lock_free("gate"))))
    for number, (terms, chained) in enumerate(plan):
        needs = [f"t{number - 1}"] if chained and number else []
        client.run(client.tasks.publish(f"t{number}", number, needs=needs, **terms))
    stage.clock.advance(1)
    return client


def claimed(client: Client, limit: int) -> list[Claimed]:
    got = client.run(client.tasks.next(can=["rust"], limit=limit))
    return [got, *got.others] if isinstance(got, Claimed) else []


def end(client: Client, claims: Sequence[Claimed]) -> None:
    """Complete these with one commit as far as that can be, the others one by one."""
    actor, tasks = client.context.me().actor, client.context.tasks
    ends = [
        TaskEnd(
            claimant=Claimant(
                task=each.task, agent=actor.agent, session=actor.session, token=each.token
            ),
            result=Raw(b"1"),
        )
        for each in claims
    ]
    several = tasks.claims.several(
        client.context.me(), Abilities(frozenset()), None, 0, apart=False
    )
    done = client.run(tasks.complete_several(actor, ends, several))
    for each in claims:
        if each.task not in getattr(done, "ended", ()):
            client.run(client.tasks.complete(each.task, token=each.token, result=1))


def standing(client: Client) -> dict[str, object]:
    """Everything that stands there, without the ids and tokens of claims."""
    board = task_truths.look(client.store)
    assert task_truths.complaints(board) == []
    statuses = {task: replace(each, token=0) for task, each in board.statuses.items()}
    owners = {task: replace(each, id="", since=0) for task, each in board.owners.items()}
    indexes = (board.ready, board.due, board.hangs, board.ended, board.todo, board.results)
    return {"statuses": statuses, "owners": owners, "indexes": indexes}


@pytest.mark.parametrize("remote", [False, True])
@given(plan=PLANS, limits=st.lists(st.integers(2, 5), min_size=12, max_size=12))
def test_several_at_once_are_those_that_come_one_by_one(
    remote: bool, plan: list[tuple[dict[str, Any], bool]], limits: list[int]
) -> None:
    together, apart = (published(plan, remote=remote) for _ in range(2))
    for limit in limits:
        several = claimed(together, limit)
        singles = [claim for _ in several or ((),) for claim in claimed(apart, 1)]
        assert [each.task for each in several] == [each.task for each in singles]
        assert [each.data for each in several] == [each.data for each in singles]
        assert standing(together) == standing(apart)
        if not several:
            break
        end(together, several)
        for each in singles:
            assert apart.run(apart.tasks.complete(each.task, token=each.token, result=1))
        assert standing(together) == standing(apart)
    assert audit(together.store) == []


def completed_with_next(client: Client, claim: Claimed, *, at_once: bool) -> object:
    """Complete a task and claim the next one, as one decision if that can be, or as two."""

    def unchanged(decision: Decision[Any]) -> DecideOp[Any]:
        yield from ()
        return decision

    me, tasks = client.context.me(), client.context.tasks
    claimant = Claimant(
        task=claim.task, agent=me.actor.agent, session=me.actor.session, token=claim.token
    )
    then = tasks.claims.following(me, Abilities(frozenset(["rust"])), None)
    along = None if at_once else unchanged
    return client.run(tasks.complete(me.actor, claimant, Raw(b"1"), along, then=then))


@given(plan=PLANS)
def test_an_end_and_a_claim_as_one_decision_are_those_of_two(
    plan: list[tuple[dict[str, Any], bool]],
) -> None:
    quick, slow = (published(plan, remote=False) for _ in range(2))
    claims = [claimed(client, 1) for client in (quick, slow)]
    while claims[0]:
        done = [
            completed_with_next(client, each[0], at_once=client is quick)
            for client, each in zip((quick, slow), claims, strict=True)
        ]
        claims = [
            [following]
            if isinstance(following := getattr(outcome, "next", None), Claimed)
            else claimed(client, 1)
            for client, outcome in zip((quick, slow), done, strict=True)
        ]
        assert [type(each) for each in done] == [type(done[0])] * 2
        names = [[(each.task, each.data, each.attempt) for each in some] for some in claims]
        assert names[0] == names[1]
        assert standing(quick) == standing(slow)
    assert audit(quick.store) == []


def test_each_claim_ends_by_itself() -> None:
    ada = published([({"priority": 1}, False)] * 3, remote=False)
    first, second, third = claimed(ada, 3)
    assert len({each.grant for each in (first, second, third)}) == 3
    ada.run(ada.tasks.requeue(first.task, "it hangs"))
    assert isinstance(ada.run(ada.tasks.complete(first.task, token=first.token)), TaskFenced)
    assert ada.run(ada.tasks.complete(second.task, token=second.token))
    assert ada.run(ada.tasks.release(third.task, token=third.token))
    assert [each.task for each in claimed(ada, 5)] == [first.task, third.task]


def test_a_claim_that_was_lost_does_not_keep_the_others_from_ending() -> None:
    ada = published([({"priority": 1}, False)] * 3, remote=True)
    claims = claimed(ada, 3)
    ada.run(ada.tasks.requeue("t1", "it hangs"))
    end(ada, claims)
    states = task_truths.look(ada.store).states()
    assert states == {"t0": "complete", "t1": "pending", "t2": "complete"}


def test_the_claims_of_a_client_that_dies_after_the_commit_expire_and_others_begin() -> None:
    ada = published([({"priority": 1}, False)] * 4, remote=False)
    ttl = ada.run(ada.tasks.next(limit=2, ttl=5))
    by_session = ada.run(ada.tasks.next(limit=2))
    assert isinstance(ttl, Claimed)
    assert isinstance(by_session, Claimed)
    stage = Testbed()
    stage.clock, stage.store = ada.clock, ada.store  # type: ignore[assignment]
    bob = stage.client("bob", ttl=1000.0)
    assert isinstance(bob.run(bob.tasks.next(limit=4)), NoTask)
    stage.clock.advance(6)
    assert {each.task for each in claimed(bob, 1) + claimed(bob, 4)} <= {"t0", "t1"}
    stage.clock.advance(60)
    while claimed(bob, 4):
        stage.clock.advance(1)
    assert {each.agent for each in task_truths.look(ada.store).owners.values()} == {"bob"}


def test_a_limit_is_a_number_of_tasks() -> None:
    ada = published([], remote=False)
    for limit in (0, -1, 65, "many"):
        with pytest.raises(BadInput, match="limit"):
            ada.run(ada.tasks.next(limit=limit))  # type: ignore[arg-type]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def ended_and_claimed(fleet: interlock.Fleet) -> list[tuple[int, int]]:
    """How many tasks each commit of a worker completed and claimed."""
    lines = [line for line in fleet.record.log(limit=1000) if line.verb != "task.publish"]
    names = [[event.name for event in line.events] for line in lines]
    return [(each.count("task:completed"), each.count("task:claimed")) for each in names]


def test_tasks_that_end_together_end_with_one_commit_that_claims_as_many(url: str) -> None:
    async def work() -> list[int]:
        async with await aio.connect(url, agent="ada") as ada:
            await asyncio.gather(*(ada.tasks.publish(f"t{n}", n) for n in range(40)))
            worker, done = ada.tasks.work(concurrency=8, stop_on_signals=False), list[int]()

            async def handle(claim: Claim) -> None:
                done.append(claim.data)
                if len(done) == 40:
                    worker.stop()

            await worker.serve(handle)
            return done

    assert sorted(asyncio.run(work())) == list(range(40))
    with interlock.connect(url) as fleet:
        commits = ended_and_claimed(fleet)
        assert sum(ended for ended, _ in commits) == sum(claims for _, claims in commits) == 40
        assert max(commits) == (8, 8)
        assert len([each for each in commits if any(each)]) < 20
        assert {each.state for each in fleet.tasks.list(all=True).tasks} == {"complete"}
        assert fleet.record.verify().exit_status == 0


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(url: str) -> None:
    async def work() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            await asyncio.gather(*(ada.tasks.publish(f"t{n}", n) for n in range(30)))
            begun = []
            worker = ada.tasks.work(concurrency=8, stop_on_signals=False)
            async for claim in worker:
                begun.append(claim)
                if len(begun) == 6:
                    worker.stop()
            states = {each.task: each.state for each in (await ada.tasks.list(all=True)).tasks}
            running = {task for task, state in states.items() if state == "running"}
            assert running == {claim.task for claim in begun}
            for claim in begun:
                await claim.passed_over(WENT_ON)

    asyncio.run(work())


def test_what_cannot_end_together_ends_alone_and_harms_no_other(url: str) -> None:
    async def work() -> list[tuple[str, str]]:
        async with await aio.connect(url, agent="ada") as ada:
            await ada.guards.define(guard.named("calm", guard.lock_free("gate")))
            await ada.tasks.publish("plain")
            await ada.tasks.publish("proven", evidence="calm")
            await ada.tasks.publish("needed")
            await ada.tasks.publish("after", needs=["needed"])
            await ada.tasks.publish("lost")
            await ada.tasks.publish("large")
            worker = ada.tasks.work(concurrency=8, stop_on_signals=False)

            async def handle(claim: Claim) -> str:
                if claim.task == "lost":
                    await ada.tasks.requeue("lost", "it hangs")
                    await ada.tasks.cancel("lost")
                if claim.task == "after":
                    worker.stop()
                return "x" * 20_000 if claim.task == "large" else "x"

            await worker.serve(handle)
            listed = (await ada.tasks.list(all=True)).tasks
            return sorted((each.task, each.state) for each in listed)

    assert asyncio.run(work()) == [
        ("after", "complete"),
        ("large", "complete"),
        ("lost", "failed"),
        ("needed", "complete"),
        ("plain", "complete"),
        ("proven", "complete"),
    ]


def test_never_more_are_claimed_than_the_worker_has_room_for(url: str) -> None:
    """A task with dependents ends alone, and so keeps its place when the others end."""

    async def work() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            for number in range(24):
                needs = [f"t{number - 3}"] if number % 3 and number > 3 else []
                await ada.tasks.publish(f"t{number}", needs=needs)
            worker, done = ada.tasks.work(concurrency=4, stop_on_signals=False), list[str]()

            async def handle(claim: Claim) -> None:
                done.append(claim.task)
                if len(done) == 24:
                    worker.stop()

            await worker.serve(handle)

    asyncio.run(work())
    with interlock.connect(url) as fleet:
        lines = sorted(fleet.record.log(limit=1000), key=lambda line: line.revision)
        running = most = 0
        for line in lines:
            names = [event.name for event in line.events]
            running += names.count("task:claimed") - names.count("task:completed")
            most = max(most, running)
        assert (running, most) == (0, 4)


def test_an_end_that_is_cancelled_while_it_waits_for_others_releases_its_task(url: str) -> None:
    async def work() -> dict[str, str]:
        async with await aio.connect(url, agent="ada") as ada:
            for name in ("a", "b"):
                await ada.tasks.publish(name)
            worker = ada.tasks.work(concurrency=2, stop_on_signals=False)
            claims = [claim async for claim in _first(worker, 2)]

            async def run(claim: Claim) -> None:
                async with claim:
                    pass

            tasks = [asyncio.create_task(run(claim)) for claim in claims]
            await asyncio.sleep(0)  # both are about to end
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            worker.stop()
            return {each.task: each.ended for each in claims}

    assert asyncio.run(work())["b"] == "completed"


async def _first(worker: Any, number: int) -> Any:
    async for claim in worker:
        yield claim
        number -= 1
        if not number:
            return


def test_completed_alone_is_completed_as_ever(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada:
        for name in ("a", "b", "c"):
            ada.tasks.publish(name)
        got = ada.tasks.next(limit=3)
        assert isinstance(got, Claimed)
        assert ada.tasks.next(limit=3) == ada.tasks.next()
        for claim in (got, *got.others):
            done = ada.tasks.complete(claim.task, token=claim.token)
            assert isinstance(done, TaskCompleted)
        assert [line.verb for line in ada.record.log(thing="task/b")] != []
