"""Circles over locks, claims, dependencies and queries: refused at once, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.questions import ask, can, end, serve

from interlock.core import keys
from interlock.core.wait import UnqueuedWait
from interlock.errors import Deadlocked
from interlock.nouns.grants import health, lock
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.held_claim import claim_for_block
from interlock.nouns.tasks.worker import WorkerLoop
from interlock.runtime import reads
from interlock.runtime.callers import LocalCaller
from interlock.steps import Commit, OpenWatch, Read
from interlock.store import Range
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

asleep: list[Stepper[Any]] = []
"""Whoever waits; what nobody holds on to is given up."""


class Near(Testbed):
    """Everybody in one process."""

    def join(self, agent: str, ttl: float = 900.0) -> Client:
        return self.client(agent, ttl=ttl)


class Far(Near):
    """Everybody across a network."""

    def join(self, agent: str, ttl: float = 900.0) -> Client:
        return self.remote(agent, ttl=ttl)


@pytest.fixture(params=["near", "far"])
def stage(request: pytest.FixtureRequest) -> Iterator[Near]:
    yield Near() if request.param == "near" else Far()
    asleep.clear()


def three(stage: Near) -> tuple[Client, Client, Client]:
    return stage.join("ada"), stage.join("bob"), stage.join("cleo")


def holds(client: Client, *things: str) -> None:
    """Take locks, or claim tasks (``task/t``), under the name of whoever speaks."""
    for thing in things:
        if thing.startswith("task/"):
            assert isinstance(client.run(client.tasks.claim(thing[5:])), task_outcomes.Claimed)
        else:
            client.run(client.locks.acquire(thing))


def waits(client: Client, thing: str) -> Stepper[Any]:
    """Wait for a lock, a task (``task/t``), or an answer (``ada?``)."""
    if thing.startswith("task/"):
        hand: Stepper[Any] = client.start(client.tasks.claim(thing[5:], wait=600))
    elif thing.endswith("?"):
        hand = client.start(ask(client, thing[:-1]))
    else:
        hand = client.start(client.locks.acquire(thing, wait=600))
    asleep.append(hand)
    return hand


def cycle(hand: Stepper[Any]) -> tuple[str, ...] | None:
    """The circle it was refused for; None if it sleeps."""
    if not hand.done:
        return None
    return getattr(hand.result(), "cycle", ())


def publish(client: Client, *tasks: str, **needs: str) -> None:
    for task in tasks:
        client.run(client.tasks.publish(task, needs=needs.get(task, "").split()))


def listed(stage: Testbed) -> list[str]:
    waits = Range(keys.WAITS)
    return [item.key for item in stage.store.read(waits).ranges[waits]]


PAIRS = {
    "lock and lock": ("a", "b"),
    "lock and claim": ("a", "task/t"),
    "claim and claim": ("task/t", "task/u"),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_of_two_who_cross_the_younger_is_refused(stage: Near, pair: str, *, turned: bool) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t", "u")
    one, two = reversed(PAIRS[pair]) if turned else PAIRS[pair]
    holds(ada, one)
    holds(bob, two)
    first = waits(ada, two)
    assert cycle(first) is None
    assert cycle(waits(bob, one)) == ("bob", "ada")
    assert cycle(first) is None
    assert audit(stage.store, heads=3) == []


def test_the_refusal_says_what_was_waited_for_and_leaves_nothing_behind(stage: Near) -> None:
    ada, bob, _ = three(stage)  # the task has a name that no other test of this thread claims
    publish(ada, "story")
    holds(ada, "task/story")
    holds(bob, "b")
    waits(ada, "b")
    found = waits(bob, "task/story").result()
    assert found == task_outcomes.TaskDeadlock(task="story", cycle=("bob", "ada"))
    assert all(
        key.startswith(("waits/agent:ada/", "waits/" + ada.someone.name)) for key in listed(stage)
    )
    told = [each.what for each in bob.run(bob.record.explain("task/story")).happenings]
    assert told == ["published", "claimed", "waiting", "refused"]
    with pytest.raises(Deadlocked, match="bob -> ada -> bob; release what you hold"):
        bob.run(claim_for_block(bob.context, "story", ttl=None, wait=600))


def test_who_waits_for_its_own_claim_is_refused(stage: Near) -> None:
    ada, _, _ = three(stage)
    publish(ada, "t")
    holds(ada, "task/t")
    assert cycle(waits(ada, "task/t")) == ("ada",)


def test_two_shells_of_one_name_are_two(stage: Near) -> None:
    """Without a session nobody can tell which of them works on it, and which one waits."""
    ada, _, _ = three(stage)
    publish(ada, "t")
    ada.context.identity = replace(ada.context.identity, caller="@host")
    holds(ada, "task/t")
    assert cycle(waits(ada, "task/t")) is None


def test_an_agent_goes_by_its_own_name_only(stage: Near) -> None:
    """What ``ada`` waits for on a host is not what an agent waits for that is called so."""
    ada, bob = stage.join("ada"), stage.join("bob")
    ada.context.identity = replace(ada.context.identity, caller="@host")
    holds(bob, "b")
    waits(ada, "b")
    assert cycle(waits(bob, "ada@host?")) is None
    assert cycle(waits(stage.join("ada@host"), "b")) == ("ada@host", "bob")


def test_a_blocked_task_is_waited_for_by_way_of_all_that_it_needs(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "other", "t0", "t1", "t2", t1="t0", t2="other t1")
    holds(ada, "task/t0")
    holds(bob, "b")
    assert cycle(waits(bob, "task/t2")) is None
    assert cycle(waits(ada, "b")) == ("ada", "bob"), "though anybody may do the other"


def test_of_several_who_work_on_its_needs_one_who_is_stuck_is_enough(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t0", "t1", "t2", t2="t0 t1")
    holds(ada, "task/t0")
    holds(cleo, "task/t1")
    holds(bob, "b")
    assert cycle(waits(ada, "b")) is None
    assert cycle(waits(bob, "task/t2")) == ("bob", "ada")


@pytest.mark.parametrize("how", ["ready", "resting", "failed", "complete", "unknown"])
def test_a_need_that_nobody_works_on_is_a_way_that_is_open(stage: Near, how: str) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t0", "t1", t1="t0")
    if how not in ("ready", "unknown"):
        token = cleo.run(cleo.tasks.claim("t0"))
        if how == "complete":
            cleo.run(cleo.tasks.complete("t0", token=getattr(token, "token", 0)))
        else:
            cleo.run(cleo.tasks.fail("t0", "no", retry=how == "resting"))
    holds(ada, "a")
    holds(bob, "b")
    first = waits(ada, "task/nowhere" if how == "unknown" else "task/t1")
    assert cycle(first) in (None, ())
    second = waits(bob, "a")
    assert cycle(second) is None
    assert listed(stage)


def test_a_claim_of_somebody_dead_is_a_way_that_is_open(stage: Near) -> None:
    ada, bob, cleo = stage.join("ada", ttl=5.0), stage.join("bob"), stage.join("cleo")
    publish(cleo, "t")
    holds(ada, "task/t")
    holds(bob, "b")
    waits(ada, "b")
    stage.clock.advance(6.0)
    assert cycle(waits(bob, "task/t")) in (None, ())


def test_who_waits_for_any_task_is_in_nobodys_way(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t")
    holds(ada, "task/t")
    ada.start(ada.tasks.next(wait=600))
    assert cycle(waits(bob, "task/t")) is None


@pytest.mark.parametrize("how", ["claimed", "deadline", "interrupt", "over"])
def test_a_wait_for_a_task_that_is_over_is_listed_no_more(stage: Near, how: str) -> None:
    ada, bob, _ = three(stage)
    publish(ada, "t")
    holds(ada, "task/t")
    hand = waits(bob, "task/t")
    assert listed(stage) == [keys.waits("agent:bob", keys.id_of(listed(stage)[0]))]
    before = len(hand.steps)
    match how:
        case "claimed":
            ada.run(ada.tasks.release("t"))
            assert isinstance(hand.run().result(), task_outcomes.Claimed)
            kinds = [type(step) for step in hand.steps[before:]]
            assert kinds.count(Commit) <= 2, "the claim ends the wait in the same commit"
        case "deadline":
            stage.clock.advance(601.0)
            assert isinstance(hand.run().result(), task_outcomes.Taken)
        case "interrupt":
            hand.interrupt(KeyboardInterrupt())
        case _:
            ada.run(ada.tasks.complete("t"))
            assert isinstance(hand.run().result(), task_outcomes.NoTask)
    assert listed(stage) == []
    assert audit(stage.store, heads=3) == []


def test_maintenance_clears_a_wait_of_the_dead_and_no_other(stage: Near) -> None:
    ada, bob, cleo = stage.join("ada"), stage.join("bob", ttl=5.0), stage.join("cleo")
    publish(ada, "t")
    holds(ada, "task/t")
    waits(bob, "task/t")
    waits(cleo, "task/t")
    stage.clock.advance(6.0)
    ada.run(ada.fleet.maintain())
    assert [key.split("/")[1] for key in listed(stage)] == ["agent:cleo"]


def test_a_claim_costs_no_read_and_no_write_more() -> None:
    stage = Far()
    ada, bob = stage.join("ada"), stage.join("bob")
    publish(ada, "t")
    bob.run(bob.runner.base())
    hand = bob.start(bob.tasks.claim("t"))
    assert [type(step) for step in hand.steps] == [Commit]
    ada.run(ada.runner.base())
    waiting = ada.start(ada.tasks.claim("t", wait=600))
    assert [type(step) for step in waiting.steps].count(Commit) <= 2, "one try, and the wait"
    assert {type(step) for step in waiting.steps} == {Commit, OpenWatch, Read}


@pytest.mark.parametrize("serves", [False, True])
def test_lock_and_query(stage: Near, *, serves: bool) -> None:
    ada, bob, _ = three(stage)
    if serves:
        serve(ada)
    holds(bob, "b")
    assert cycle(waits(bob, "ada?")) is None
    assert cycle(waits(ada, "b")) == ("ada", "bob")
    assert cycle(waits(bob, "ada?")) is None, "ada was refused, and goes on"


def test_query_and_lock(stage: Near) -> None:
    ada, bob, _ = three(stage)
    holds(bob, "b")
    assert cycle(waits(ada, "b")) is None
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")


@pytest.mark.parametrize("serves", [False, True])
def test_query_and_query(stage: Near, *, serves: bool) -> None:
    ada, bob, _ = three(stage)
    for each in (ada, bob) if serves else ():
        serve(each)
    first = waits(ada, "bob?")
    assert cycle(first) is None
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")
    assert cycle(first.run()) is None


def test_three_who_ask_each_other_are_named_in_their_order(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    waits(ada, "bob?")
    waits(bob, "cleo?")
    assert cycle(waits(cleo, "ada?")) == ("cleo", "ada", "bob")


def test_claim_and_query(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t")
    holds(bob, "task/t")
    waits(bob, "ada?")
    assert cycle(waits(ada, "task/t")) == ("ada", "bob")


def test_an_agent_that_serves_its_inbox_is_not_blocked(stage: Near) -> None:
    ada, bob, _ = three(stage)
    serve(ada, "p1.7")
    holds(bob, "b")
    waits(ada, "b")
    assert cycle(waits(bob, "ada?")) is None


def test_an_agent_all_of_whose_servers_wait_for_it_is_blocked(stage: Near) -> None:
    ada, bob, _ = three(stage)
    holds(bob, "b")
    for name in ("p1.7", "p1.8"):
        serve(ada, name)
        ada.someone = LocalCaller(name)
        ada.someone.holds.add("inbox")
        waits(ada, "b")
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")


def test_who_serves_and_is_dead_answers_nothing(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    dead = stage.join("ada", ttl=5.0)
    serve(ada)
    serve(ada, "p1.7", dead.session)
    holds(bob, "b")
    waits(ada, "b")
    assert cycle(waits(cleo, "ada?")) is None
    stage.clock.advance(6.0)
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")


def test_an_agent_with_a_wait_that_will_end_is_not_blocked(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    holds(bob, "b")
    holds(cleo, "c")
    waits(ada, "b")
    ada.someone = LocalCaller("another")
    waits(ada, "c")
    assert cycle(waits(bob, "ada?")) is None


def test_an_agent_with_another_session_that_goes_on_is_not_blocked(stage: Near) -> None:
    ada, bob, _ = three(stage)
    other = stage.join("ada", ttl=5.0)
    holds(bob, "b")
    waits(ada, "b")
    first = waits(bob, "ada?")
    assert cycle(first) is None, "the other may look at its messages"
    stage.clock.advance(6.0)
    assert cycle(first.run()) == ("bob", "ada"), "now there is no other"
    assert other.run(other.agents.leave()) is not None


def test_an_agent_all_of_whose_sessions_wait_for_it_is_blocked(stage: Near) -> None:
    ada, bob, _ = three(stage)
    holds(bob, "b", "c")
    waits(ada, "b")
    waits(stage.join("ada"), "c")
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")


def test_who_asks_its_own_agent_waits_if_another_session_may_answer(stage: Near) -> None:
    ada, _, _ = three(stage)
    assert cycle(waits(ada, "ada?")) == ("ada",)
    stage.join("ada")
    assert cycle(waits(ada, "ada?")) is None


def test_a_dead_wait_of_an_agent_opens_no_way(stage: Near) -> None:
    """Its wait for c could end, if anybody waited."""
    ada, bob, cleo = three(stage)
    before = stage.join("ada", ttl=5.0)
    holds(bob, "b")
    holds(cleo, "c")
    waits(before, "c")
    waits(ada, "b")
    stage.clock.advance(6.0)
    assert cycle(waits(bob, "ada?")) == ("bob", "ada")


def test_a_dead_asker_is_no_edge(stage: Near) -> None:
    ada, bob = stage.join("ada"), stage.join("bob", ttl=5.0)
    holds(ada, "a")
    waits(bob, "ada?")
    stage.clock.advance(6.0)
    assert cycle(waits(ada, "bob?")) is None


def test_a_query_that_is_over_is_no_edge(stage: Near) -> None:
    ada, bob, _ = three(stage)
    bob.start(ask(bob, "ada", "q1"))
    end(stage, [keys.live("q1")])
    assert cycle(waits(ada, "bob?")) is None


def test_who_asks_somebody_who_is_not_there_waits(stage: Near) -> None:
    ada, _, _ = three(stage)
    assert cycle(waits(ada, "nobody?")) is None
    assert cycle(waits(ada, "?rust?")) is None


def test_a_query_for_an_ability_has_a_way_open_while_one_of_the_able_goes_on(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    can(ada, "rust")
    can(cleo, "*")
    can(bob, "rust")
    holds(bob, "b")
    waits(ada, "b")
    first = waits(bob, "?rust?")
    assert cycle(first) is None, "cleo can do everything, and goes on"
    assert cycle(waits(cleo, "b")) == ("cleo", "bob"), "bob himself does not count"


def test_who_takes_questions_of_an_ability_is_a_way_that_is_open(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    can(ada, "rust")
    holds(bob, "b")
    waits(ada, "b")
    assert cycle(waits(bob, "?rust?")) == ("bob", "ada")
    asleep.append(cleo.start(cleo.messages.wait(600, can=["rust"])))
    assert cycle(waits(bob, "?rust?")) is None, "cleo waits for such questions"


def test_an_able_session_that_is_dead_is_no_way(stage: Near) -> None:
    ada, bob, cleo = stage.join("ada"), stage.join("bob"), stage.join("cleo", ttl=5.0)
    can(ada, "rust")
    can(cleo, "rust")
    holds(bob, "b")
    waits(ada, "b")
    stage.clock.advance(6.0)
    assert cycle(waits(bob, "?rust?")) == ("bob", "ada")


@pytest.mark.parametrize("steps", range(14))
def test_an_asker_that_is_answered_meanwhile_refuses_nobody(stage: Near, steps: int) -> None:
    """Whatever ada has read by then: there is no circle at her commit."""
    ada, bob, _ = three(stage)
    holds(bob, "b")
    bob.start(ask(bob, "ada", "q1"))
    hand = Stepper(ada.locks.acquire("b", wait=600), ada.store, stage.clock)
    for _ in range(steps):
        hand.go()
    refused = hand.done
    end(stage, [keys.live("q1"), keys.query("q1"), *[k for k in listed(stage) if "q1" in k]])
    assert hand.run().done == refused
    bob.run(bob.locks.release("b"))
    assert isinstance(hand.run().result(), lock.LockDeadlock if refused else lock.LockAcquired)


@pytest.mark.parametrize("steps", range(14))
def test_a_worker_that_is_done_meanwhile_refuses_nobody(stage: Near, steps: int) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t", "u", u="t")
    holds(bob, "b")
    holds(ada, "task/t")
    first = waits(bob, "task/u")
    hand = Stepper(ada.locks.acquire("b", wait=600), ada.store, stage.clock)
    for _ in range(steps):
        hand.go()
    refused = hand.done
    ada.run(ada.tasks.complete("t"))
    assert hand.run().done == refused
    assert isinstance(first.run().result(), task_outcomes.Claimed)


def test_who_alone_can_do_what_it_asks_for_waits_for_others_to_come(stage: Near) -> None:
    ada, _, _ = three(stage)
    can(ada, "rust")
    assert cycle(waits(ada, "?rust?")) is None


def test_what_a_handler_waits_for_is_found_from_its_task(stage: Near) -> None:
    """The worker claims as nobody in particular; the handler is another task of the loop."""
    ada, bob, cleo = three(stage)
    publish(cleo, "t")
    working = ada.run(WorkerLoop(ada.context, (), None).claim_next())
    assert working is not None
    ada.someone = LocalCaller("handler")
    holds(bob, "b")
    first = waits(bob, "task/t")
    working.take_up()
    assert cycle(waits(ada, "b")) == ("ada", "bob")
    ada.run(working.complete())
    assert isinstance(first.run().result(), task_outcomes.NoTask)
    assert ada.someone.works == {}


def test_of_two_handlers_of_one_worker_only_the_one_that_waits_is_stuck(stage: Near) -> None:
    ada, bob, cleo = three(stage)
    publish(cleo, "t", "u")
    shift = WorkerLoop(ada.context, (), None)
    for name in ("one", "two"):
        ada.someone = LocalCaller(name)
        working = ada.run(shift.claim_next())
        assert working is not None
        working.take_up()
    holds(bob, "b")
    waits(ada, "b")
    first = waits(bob, "task/t")
    assert cycle(first) is None, "the other handler goes on"
    first.interrupt(KeyboardInterrupt())
    assert cycle(waits(bob, "task/u")) == ("bob", "ada")


def test_why_and_health_name_such_a_circle(stage: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.runtime.deadlock.Graph.deadlock", lambda *_: None)
    ada, bob, cleo = three(stage)
    publish(cleo, "t")
    holds(ada, "task/t")
    holds(bob, "b")
    waits(ada, "b")
    waits(bob, "task/t")
    monkeypatch.undo()
    assert cleo.run(cleo.fleet.why("b")).meanwhile == (
        "bob waits for task/t, held by ada, who waits for lock/b, held by bob: a cycle",
    )
    assert cleo.run(cleo.fleet.why("task/t")).meanwhile == (
        "ada waits for lock/b, held by bob, who waits for task/t, held by ada: a cycle",
    )
    cycle = {"b": ("bob", "ada", "bob"), "task/t": ("ada", "bob", "ada")}
    cycle |= {"agent/ada": ("bob", "ada", "bob")}
    assert {thing: cleo.run(cleo.fleet.why(thing)).cycle for thing in cycle} == cycle
    stage.clock.advance(health.SETTLED + 1)
    (found,) = cleo.run(cleo.fleet.health()).problems
    assert (found.kind, found.agent) == ("deadlock", "bob")
    assert "(bob -> ada -> bob)" in found.says
    assert found.cycle == ("bob", "ada", "bob")
    assert "task/t" in found.thing


def test_a_listed_wait_says_who_waits_for_what(stage: Near) -> None:
    ada, bob, _ = three(stage)
    publish(ada, "t")
    holds(ada, "task/t")
    waits(bob, "task/t")
    (key,) = listed(stage)
    item = stage.store.read(key)[key]
    assert item is not None
    found = reads.decode_wait(item)
    assert isinstance(found, UnqueuedWait)
    assert (found.wants, found.agent, found.session) == (keys.status("t"), "bob", bob.session)
