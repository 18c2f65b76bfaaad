from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock import guard
from interlock.core import keys
from interlock.core.wait import caller_name_of
from interlock.nouns.grants import why as why_service
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.pipelines.calls import PipelineCalls
from interlock.nouns.pipelines.definition import PhaseDefinition, PipelineDefinition
from interlock.runtime.why import Why
from interlock.store import Put, Range, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def why(stage: Testbed, thing: str) -> Why:
    asker = stage.client("asker", ttl=None)
    return asker.run(asker.fleet.why(thing))


def slots(client: Client, weight: int, wait: float = 0) -> None:
    client.start(client.semaphores.acquire("builds", capacity=3, weight=weight, wait=wait))


def test_a_held_lock_names_its_holder_since_when_and_the_queue(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    began = stage.clock.wall()
    stage.clock.advance(5.0)
    bob.start(bob.locks.acquire("merge", wait=60))
    found = why(stage, "merge")
    assert (found.thing, found.blocked, found.by, found.since) == (
        "lock/merge", True, "ada", began,
    )  # fmt: skip
    assert [(each.agent, each.weight, each.since) for each in found.waiters] == [
        ("bob", 1, began + 5.0)
    ]
    assert found.because.startswith("held by ada (process ")
    assert found.because.endswith(", 1 waits")
    assert found.clear == "ada releases it, or does not renew it for 25 s"
    assert found.meanwhile == ()


def test_what_the_holder_waits_for_itself_is_said(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b"))
    ada.start(ada.locks.acquire("b", wait=60))
    assert why(stage, "a").meanwhile == ("ada waits for lock/b, held by bob",)
    assert why(stage, "b").meanwhile == ()


def test_a_chain_of_waits_is_followed_to_the_holder_at_its_end(stage: Testbed) -> None:
    names = ("ada", "bob", "cleo", "dan")
    clients = {name: stage.client(name) for name in names}
    for name, lock in zip(names, "abcd", strict=True):
        clients[name].context.identity = replace(
            clients[name].context.identity, caller=f"shell-{name}"
        )
        clients[name].run(clients[name].locks.acquire(lock))
    for name, lock in zip(names, "bcd", strict=False):
        clients[name].start(clients[name].locks.acquire(lock, wait=60))
    assert why(stage, "a").meanwhile == (
        (
            "ada waits for lock/b, held by bob, who waits for lock/c, held by cleo,"
            " who waits for lock/d, held by dan"
        ),
    )


def test_a_chain_of_waits_is_bounded(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why_service, "LINKS", 2)
    clients = [stage.client(f"w{number}") for number in range(5)]
    for number, client in enumerate(clients):
        client.context.identity = replace(client.context.identity, caller=f"shell-{number}")
        client.run(client.locks.acquire(f"l{number}"))
    for number, client in enumerate(clients[:-1]):
        client.start(client.locks.acquire(f"l{number + 1}", wait=60))
    assert why(stage, "l0").meanwhile == (
        (
            "w0 waits for lock/l1, held by w1, who waits for lock/l2, held by w2, who waits for"
            " lock/l3, and so on"
        ),
    )


def test_a_wait_that_is_listed_but_over_is_not_said(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("a"))
    pool = decode_pool(stage.store.read(keys.lock("a"))[keys.lock("a")], 0)
    assert pool is not None
    left = keys.waits(caller_name_of(pool.grants[0]), "grt_gone")
    stage.store.commit(Txn(id="t", puts=(Put(left, b'["locks/b"]'),)))
    assert why(stage, "a").meanwhile == ()


def test_a_stale_lock_blocks_nobody(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=1.0)
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(2.0)
    found = why(stage, "lock/merge")
    assert found.blocked is False
    assert "ada stopped renewing it" in found.because


def test_a_lock_that_is_kept_names_what_its_first_waiter_lacks(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("a"))
    bob.start(bob.several.acquire("lock/a", "lock/b", wait=60))
    found = why(stage, "b")
    assert (found.blocked, found.by) == (True, "bob")
    assert found.because == "kept for bob, who waits for lock/a as well"
    assert why(stage, "a").by == "ada"


def test_free_slots_and_unknown_semaphores_block_nobody(stage: Testbed) -> None:
    assert "--capacity" in why(stage, "sem/builds").clear
    ada = stage.client("ada")
    slots(ada, 2)
    found = why(stage, "sem/builds")
    assert (found.blocked, found.because) == (False, "1 of 3 slots is free")


def test_slots_that_are_all_held_name_their_holders_with_their_weights(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    slots(ada, 2)
    slots(bob, 1)
    found = why(stage, "sem/builds")
    assert (found.blocked, found.by) == (True, "ada, bob")
    assert found.because == "all 3 slots are held: ada (2), bob"
    assert found.clear == "one of them releases, or does not renew for 30 s"


def test_a_large_request_at_the_head_of_the_queue_is_said_plainly(stage: Testbed) -> None:
    ada, bob, cleo = (stage.client(name) for name in ("ada", "bob", "cleo"))
    slots(ada, 2)
    slots(bob, 3, wait=60)
    slots(cleo, 1, wait=60)
    found = why(stage, "sem/builds")
    assert (found.blocked, found.by) == (True, "ada")
    assert found.because == (
        "1 of 3 slots is free, but bob wants 3 and came first;"
        " requests are served in order, so smaller ones wait behind it"
    )
    assert found.clear == "ada (2) gives back 2 more, or bob gives up"
    assert [(each.agent, each.weight) for each in found.waiters] == [("bob", 3), ("cleo", 1)]


def test_stale_slots_count_as_free(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=1.0), stage.client("bob")
    slots(ada, 2)
    slots(bob, 1)
    stage.clock.advance(2.0)
    found = why(stage, "sem/builds")
    assert found.blocked is False
    assert found.because.startswith("2 of 3 slots are free, with what ada left")


def test_a_dead_waiter_is_in_nobodys_way(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=1.0)
    slots(ada, 2)
    slots(bob, 3, wait=60)
    stage.clock.advance(2.0)
    assert why(stage, "sem/builds").blocked is False


# Chains across nouns.


def links(found: Why) -> list[tuple[str, str]]:
    return [(each.thing, each.by) for each in found.chain]


def piped(client: Client, *phases: PhaseDefinition) -> None:
    """Start a pipeline r1 with these phases."""
    calls = PipelineCalls(client.context)
    client.run(calls.define(PipelineDefinition(name="p", phases=phases)))
    client.run(calls.start("p", id="r1"))


def test_a_lock_that_a_pipeline_holds_leads_to_the_guard_that_keeps_the_pipeline(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("freeze"))
    piped(
        bob,
        PhaseDefinition(
            name="merge",
            hold=("lock/merge",),
            post=guard.named("p/merge/post", guard.lock_free("freeze")),
        ),
        PhaseDefinition(name="deploy"),
    )
    bob.run(PipelineCalls(bob.context).advance("r1"))
    found = why(stage, "lock/merge")
    assert (found.by, found.clear) == ("pipeline:r1", "pipeline/r1 leaves its phase, or ends")
    assert links(found) == [("pipeline/r1", "ada"), ("lock/freeze", "ada")]
    assert "lock-free=freeze: ada holds lock freeze" in found.chain[0].because
    assert links(why(stage, "pipeline/r1")) == [("lock/freeze", "ada")]


def test_an_agent_is_explained_by_what_it_waits_for(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("a"))
    stage.clock.advance(3.0)
    began = stage.clock.wall()
    bob.start(bob.locks.acquire("a", wait=60))
    found = why(stage, "agent/bob")
    assert (found.blocked, found.by, found.since) == (True, "ada", began)
    assert found.because == "bob waits for lock/a, held by ada"
    assert links(found) == [("lock/a", "ada")]
    ada_now = why(stage, "agent/ada")
    assert (ada_now.blocked, ada_now.state, ada_now.chain) == (False, "alive", ())
    assert why(stage, "agent/zoe").exit_status == 1


def test_a_question_leads_to_the_guard_that_keeps_the_agent_that_was_asked(stage: Testbed) -> None:
    ada, bob, cleo = stage.client("ada"), stage.client("bob"), stage.client("cleo")
    cleo.run(cleo.locks.acquire("db"))
    bob.run(GuardCalls(bob.context).define(guard.named("calm", guard.lock_free("db"))))
    waits = bob.start(bob.locks.acquire("deploy", guard="calm", wait=60))
    assert waits.asleep
    asked = ada.start(ada.messages.query("bob", "ready?", timeout=60))
    page = Range(keys.QUERIES)
    (query,) = stage.store.read(page).ranges[page]
    found = why(stage, f"query/{keys.id_of(query.key)}")
    assert found.by == "bob"
    assert links(found) == [("agent/bob", "cleo"), ("lock/db", "cleo")]
    assert found.chain[0].because.startswith("bob waits for guard/calm: lock-free=db: cleo holds")
    asked.interrupt(KeyboardInterrupt())


def test_a_chain_that_comes_back_ends_there(stage: Testbed) -> None:
    """Each thing is explained once, however many others lead to it."""
    ada = stage.client("ada")
    define = GuardCalls(ada.context).define
    ada.run(define(guard.named("a", guard.tasks_complete(prefix="b"))))
    ada.run(define(guard.named("b", guard.tasks_complete(prefix="a"))))
    ada.run(ada.tasks.publish("a1", guard=["a"]))
    ada.run(ada.tasks.publish("b1", guard=["b"]))
    found = why(stage, "task/a1")
    assert [each.thing for each in found.chain] == ["task/b1"]
    assert found.meanwhile == (
        "they wait for each other: task/a1 -> task/b1 -> task/a1; cancel one of them",
    )
