"""A client dies at any commit of any operation: the others finish all work, each task once.

Each operation runs across a network and is struck at its first commit, at its second, and so on,
just before or just after; commits have room for little, so that there are many.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace
from tests.nouns.tasks import task_truths
from tests.nouns.tasks.gated import gate_items

from interlock import guard
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.tasks.ready_index import Abilities
from interlock.nouns.tasks.task import Claimant, TaskEnd
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    TaskBlocked,
    TaskCompleted,
    TaskExists,
    Unchanged,
)
from interlock.steps import Op
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Testbed

FAN = 7
CALM = guard.named("calm", guard.lock_free("deploy"))


def scene(stage: Testbed) -> None:
    """A need with many who wait, one of them for another one too, and something not due."""
    owner = cramped(stage, "owner")
    owner.run(owner.tasks.publish("root"))
    owner.run(owner.tasks.publish("other"))
    for number in range(FAN):
        more = ["other"] if number % 2 else []
        owner.run(owner.tasks.publish(f"leaf{number}", needs=["root", *more]))
    owner.run(owner.tasks.publish("later", not_before=3.5))
    owner.run(GuardCalls(owner.context).define(CALM))
    owner.run(owner.tasks.publish("guarded", guard=["calm"], evidence=["calm"]))


def take(client: Client, lock: str) -> None:
    assert client.run(client.locks.acquire(lock))


def cramped(stage: Testbed, name: str) -> Client:
    client = stage.remote(name, ttl=10.0)
    client.runner.capabilities = replace(client.runner.capabilities, max_operations=30)
    return client


def held(client: Client, task: str) -> int:
    got = client.run(client.tasks.claim(task))
    assert isinstance(got, Claimed)
    return got.token or 0


def publish(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.publish("late", needs=["root", "other"], requires=["rust"], labels=["a"])


def claim(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.claim("root")


def claim_what_is_not_fresh(stage: Testbed, client: Client) -> Op[Any]:
    client.run(client.tasks.fail("other", token=held(client, "other")))
    stage.clock.advance(2)
    return client.tasks.claim("other", ttl=5)


def next_(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.next(can=["*"])


def next_several(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.next(can=["*"], limit=2, ttl=5)


def complete_several_and_claim_others(stage: Testbed, client: Client) -> Op[Any]:
    for name in ("first", "second"):
        client.run(client.tasks.publish(name, priority=1))
    me, tasks = client.context.me(), client.context.tasks
    got = client.run(client.tasks.next(limit=2))
    assert isinstance(got, Claimed)
    ends = [
        TaskEnd(
            claimant=Claimant(
                task=each.task, agent=me.actor.agent, session=me.actor.session, token=each.token
            )
        )
        for each in (got, *got.others)
    ]
    several = tasks.claims.several(me, Abilities(frozenset("*")), None, 1, apart=True)
    return tasks.complete_several(me.actor, ends, several)


def next_that_wakes_and_tidies(stage: Testbed, client: Client) -> Op[Any]:
    held(client, "root")
    held(client, "other")
    stage.clock.advance(4)
    return client.tasks.next()


def next_that_reclaims(stage: Testbed, client: Client) -> Op[Any]:
    lost = cramped(stage, "lost")
    held(lost, "root")
    held(lost, "other")
    stage.clock.advance(9)
    client.run(client.agents.beat())
    stage.clock.advance(2)
    return client.context.tasks.housekeeping.step(client.context.me().actor)


def complete(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.complete("root", token=held(client, "root"), result={"x": 1})


def complete_and_claim_what_it_unblocks(stage: Testbed, client: Client) -> Op[Any]:
    held(client, "other")
    return client.tasks.complete("root", token=held(client, "root"), then_next=True, can=["*"])


def complete_and_claim_another(stage: Testbed, client: Client) -> Op[Any]:
    client.run(client.tasks.publish("late", requires=["rust"], priority=1))
    return client.tasks.complete("other", token=held(client, "other"), then_next=True, can=["*"])


def fail_and_claim_another(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.fail("root", "why", token=held(client, "root"), then_next=True)


def drain(stage: Testbed, client: Client) -> Op[Any]:
    first = cramped(stage, "first")
    token = held(first, "root")
    first.network.script(["crash after"])
    with pytest.raises(Crash):
        first.run(first.tasks.complete("root", token=token))
    return client.context.tasks.housekeeping.drain(client.context.me().actor, "root")


def fail(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.fail("root", "why", token=held(client, "root"), error=["x"])


def release(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.release("root", token=held(client, "root"))


def progress(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.progress("root", 0.5, "half", token=held(client, "root"))


def beat(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.heartbeat("root", token=held(client, "root"))


def leave(stage: Testbed, client: Client) -> Op[Any]:
    held(client, "root")
    held(client, "other")
    return client.agents.leave()


def send_back(stage: Testbed, client: Client) -> Op[Any]:
    client.run(client.tasks.cancel("leaf1"))
    return client.tasks.retry("leaf1")


def publish_behind_a_guard(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.publish("late", guard=["calm"])


def publish_behind_a_closed_gate(stage: Testbed, client: Client) -> Op[Any]:
    take(client, "deploy")
    return client.tasks.publish("late", guard=["calm"])


def open_the_gate(stage: Testbed, client: Client) -> Op[Any]:
    take(client, "deploy")
    assert isinstance(client.run(client.tasks.claim("guarded")), TaskBlocked)
    return client.locks.release("deploy")


def claim_through_a_gate(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.claim("guarded")


def claim_at_a_closed_gate(stage: Testbed, client: Client) -> Op[Any]:
    take(client, "deploy")
    return client.tasks.claim("guarded")


def complete_with_evidence(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.complete("guarded", token=held(client, "guarded"))


def complete_without_evidence(stage: Testbed, client: Client) -> Op[Any]:
    token = held(client, "guarded")
    take(client, "deploy")
    return client.tasks.complete("guarded", token=token)


def note(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.note("root", "it is hot")


def cancel_at_the_gate(stage: Testbed, client: Client) -> Op[Any]:
    take(client, "deploy")
    client.run(client.tasks.claim("guarded"))
    return client.tasks.cancel("guarded")


def edit(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.edit("other", priority=1, requires=["rust"], labels=["x"], data={"x": 1})


def edit_needs(stage: Testbed, client: Client) -> Op[Any]:
    client.run(client.tasks.publish("young"))
    return client.tasks.edit("root", add_needs=["young", "other"])


def edit_the_last_need_away(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.edit("leaf1", needs=[])


def drop(stage: Testbed, client: Client) -> Op[Any]:
    return client.tasks.drop("root", "leaf2", "later")


def publish_again(stage: Testbed, client: Client) -> Op[Any]:
    client.run(client.tasks.drop("root"))
    return client.tasks.publish("root", needs=["other"], again=True)


Act: TypeAlias = Callable[[Testbed, Client], Op[Any]]
ACTS: list[Act] = [
    publish,
    claim,
    claim_what_is_not_fresh,
    next_,
    next_several,
    complete_several_and_claim_others,
    next_that_wakes_and_tidies,
    next_that_reclaims,
    complete,
    complete_and_claim_what_it_unblocks,
    complete_and_claim_another,
    fail_and_claim_another,
    drain,
    fail,
    release,
    progress,
    beat,
    leave,
    send_back,
    publish_behind_a_guard,
    publish_behind_a_closed_gate,
    open_the_gate,
    claim_through_a_gate,
    claim_at_a_closed_gate,
    complete_with_evidence,
    complete_without_evidence,
    cancel_at_the_gate,
    note,
    edit,
    edit_needs,
    edit_the_last_need_away,
    drop,
    publish_again,
]
FEWEST: dict[Act, int] = {
    complete: 3,
    drain: 2,
    leave: 3,
    next_that_wakes_and_tidies: 4,
    next_that_reclaims: 2,
    publish_behind_a_guard: 2,
    publish_behind_a_closed_gate: 2,
    open_the_gate: 2,
}


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
@pytest.mark.parametrize("act", ACTS)
def test_all_work_is_finished_once_whatever_was_struck(act: Act, fault: Fault) -> None:
    for commit in count():
        stage = Testbed()
        scene(stage)
        client = cramped(stage, "struck")
        op = act(stage, client)
        client.network.script([None] * commit + [fault])
        struck = False
        try:
            client.run(op)
        except Crash:
            struck = True
        finish(stage)
        if not struck and not client.network.drawn:
            assert commit >= FEWEST.get(act, 1)
            return


def finish(stage: Testbed) -> None:
    """Another worker does the rest, and may have to wait until lost tasks are reclaimed."""
    heir = stage.remote("heir", ttl=1000.0)
    known = task_truths.look(stage.store)
    assert task_truths.complaints(known) == []
    if isinstance(heir.run(heir.tasks.publish("late", needs=["root", "other"])), TaskExists):
        assert "late" in known.statuses
    for task in known.ended:
        if isinstance(heir.run(heir.tasks.retry(task)), Unchanged):
            heir.run(heir.tasks.publish(task, again=True))
    for _ in range(60):
        got = heir.run(heir.tasks.next(can=["*"]))
        assert task_truths.complaints(task_truths.look(stage.store)) == []
        if isinstance(got, Claimed):
            done = heir.run(heir.tasks.complete(got.task, token=got.token))
            assert isinstance(done, TaskCompleted)
            continue
        states = set(task_truths.look(stage.store).states().values())
        if states == {"complete"}:
            break
        stage.clock.advance(1)
    assert gate_items(stage.store) == []
    done_once = task_truths.completions(stage.store)
    assert sorted(done_once) == sorted(task_truths.look(stage.store).statuses)
    assert audit(stage.store) == []
