"""Whole plans on a store: all or nothing, hidden until all is there, killed and repeated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.hypothesis_settings import budget
from tests.nouns.tasks.gated import FREE, Agent, status_of

from interlock.core import keys
from interlock.errors import BadInput, StoreTrouble, TooLarge
from interlock.nouns.tasks import plan_rules, task_outcomes
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task_outcomes import Checked, Imported, PlanExists
from interlock.nouns.tasks.task_reader import decode_status
from interlock.nouns.tasks.task_view import TaskView
from interlock.store import LIVE, Range
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash, Fault, FaultyStore
from interlock.testing.testbed import Client, Stepper, Testbed

Spec = dict[str, Any]
CHAIN: list[Spec] = [
    {"id": f"t{n}", "needs": [f"t{n - 1}"] if n % 4 else [], "requires": ["rust"] * (n % 2)}
    for n in range(20)
]


def near(stage: Testbed, agent: str) -> Client:
    """Where all of it fits into one commit."""
    return stage.client(agent)


def far(stage: Testbed, agent: str) -> Client:
    """Across a network, with room for a few tasks in a commit."""
    network = FaultyStore(stage.store, sleep=stage.clock.advance)
    network.capabilities = replace(network.capabilities, max_operations=50)
    return stage.client(agent, store=network)


def narrow(stage: Testbed, agent: str) -> Client:
    """A local engine with room for a few tasks in a commit."""
    stage.store.capabilities = replace(stage.store.capabilities, max_operations=50)
    return stage.client(agent)


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=[near, far, narrow])
def join(request: pytest.FixtureRequest) -> Callable[[Testbed, str], Client]:
    found: Callable[[Testbed, str], Client] = request.param
    return found


def statuses(store: MemoryStore) -> dict[str, core.TaskStatus]:
    page = Range(keys.TASKS, limit=100_000)
    found = {}
    for item in store.read(page).ranges[page]:
        if item.key.endswith("/status") and (status := decode_status(item)) is not None:
            found[keys.task_of(item.key)] = status
    return {id_: status for id_, status in found.items() if not id_.startswith(core.BATCH)}


def all_keys(store: MemoryStore) -> list[str]:
    """Everything that stands there, but for sessions, sets and the record."""
    found: list[str] = []
    for prefix in (keys.TASKS, keys.HANGS, keys.READY, keys.TODO, LIVE):
        page = Range(prefix, limit=100_000)
        found += [item.key for item in store.read(page).ranges[page]]
    return [key for key in found if not key.startswith(f"{LIVE}ses_")]


def drained(client: Client) -> list[str]:
    """Do everything there is to do, and say in which order."""
    done = []
    while isinstance(claim := client.run(client.tasks.next(can=["*"])), task_outcomes.Claimed):
        done.append(claim.task)
        client.run(client.tasks.complete(claim.task))
    return done


def test_all_of_a_plan_is_there_at_once_and_done_in_order(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada = join(stage, "ada")
    outcome = ada.run(ada.tasks.publish_all(CHAIN))
    assert isinstance(outcome, Imported)
    assert (outcome.tasks, outcome.ready, outcome.blocked, outcome.later) == (20, 5, 15, 0)
    found = statuses(stage.store)
    assert {id_ for id_ in found if found[id_].state == "pending"} == {
        "t0", "t4", "t8", "t12", "t16",
    }  # fmt: skip
    assert all(status.on == f"t{int(id_[1:]) - 1}" for id_, status in found.items() if status.on)
    assert drained(ada) == ["t0", "t1", "t2", "t3", *(f"t{n}" for n in range(4, 20))]
    assert audit(stage.store) == []


def test_a_plan_is_ready_by_priority_and_then_in_the_order_of_the_file(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada = join(stage, "ada")
    ids = ["z", "m", "a", "t10", "t9", "k", "b"]
    specs = [{"id": id_, "priority": 1 if id_ in ("k", "b") else 5} for id_ in ids]
    ada.run(ada.tasks.publish_all(specs))
    ada.run(ada.tasks.publish("last"))
    assert drained(ada) == ["k", "b", "z", "m", "a", "t10", "t9", "last"]


def test_a_small_plan_is_one_commit(stage: Testbed) -> None:
    ada = stage.client("ada")
    before = stage.store.read(keys.BASE).revision
    ada.run(ada.tasks.publish_all(CHAIN))
    assert stage.store.read(keys.BASE).revision == before + 1


def test_needs_may_be_in_the_store_complete_or_not(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada = join(stage, "ada")
    for id_ in ("done", "open"):
        ada.run(ada.tasks.publish(id_))
    ada.run(ada.tasks.claim("done"))
    ada.run(ada.tasks.complete("done"))
    outcome = ada.run(
        ada.tasks.publish_all(
            [
                {"id": "a", "needs": ["done"]},
                {"id": "b", "needs": ["done", "open"]},
                {"id": "c", "needs": ["b"]},
                {"id": "d", "not_before": "1h"},
                {"id": "e", "not_before": 0},
                *({"id": f"more{n}"} for n in range(10)),
            ]
        )
    )
    assert isinstance(outcome, Imported)
    assert (outcome.ready, outcome.blocked, outcome.later) == (12, 2, 1)
    found = statuses(stage.store)
    assert {id_: found[id_].on for id_ in "abc"} == {"a": "", "b": "open", "c": "b"}
    assert found["d"].due


def test_the_tasks_of_a_plan_wait_for_their_guards(
    join: Callable[[Testbed, str], Client], stage: Testbed
) -> None:
    ada = Agent(join(stage, "ada"))
    ada.define(FREE)
    ada.lock()
    plan = [{"id": f"t{n}", "guard": ["calm"], "evidence": ["calm"]} for n in range(12)]
    plan += [{"id": "last", "needs": ["t0"], "guard": ["calm"]}, {"id": "plain"}]
    done = ada.client.run(ada.client.tasks.publish_all(plan))
    assert isinstance(done, Imported)
    assert (done.tasks, done.ready, done.blocked, done.guarded) == (14, 1, 1, 12)
    assert {status_of(stage.store, f"t{n}").guard for n in range(12)} == {"calm"}
    assert ada.next().task == "plain"
    ada.unlock()
    assert {status_of(stage.store, f"t{n}").state for n in range(12)} == {"pending"}
    assert ada.next().task == "t0"
    ada.lock()
    assert isinstance(ada.complete("t0"), task_outcomes.EvidenceMissing)
    assert audit(stage.store) == []


def test_unknown_needs_are_refused_with_their_names_and_nothing_is_written(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada = join(stage, "ada")
    specs = [*CHAIN, {"id": "x", "needs": ["gone", "t1", "lost"]}]
    for dry in (False, True):
        with pytest.raises(BadInput, match=r"\(x\): it needs 'gone'.* \(x\): it needs 'lost'"):
            ada.run(ada.tasks.publish_all(specs, dry_run=dry))
    assert all_keys(stage.store) == []


def test_a_dry_run_says_the_same_and_writes_nothing(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada = join(stage, "ada")
    before = stage.store.read(keys.BASE).revision
    outcome = ada.run(ada.tasks.publish_all(CHAIN, dry_run=True))
    assert isinstance(outcome, Checked)
    assert (outcome.tasks, outcome.ready, outcome.blocked) == (20, 5, 15)
    assert stage.store.read(keys.BASE).revision == before
    ada.run(ada.tasks.publish("t7"))
    refused = ada.run(ada.tasks.publish_all(CHAIN, dry_run=True))
    assert isinstance(refused, PlanExists)
    assert (refused.task, refused.state) == ("t7", "pending")


def test_a_plan_that_is_there_already_exists(
    stage: Testbed, join: Callable[[Testbed, str], Client]
) -> None:
    ada, bob = join(stage, "ada"), join(stage, "bob")
    first = ada.run(ada.tasks.publish_all(CHAIN, id="release-7"))
    assert isinstance(first, Imported)
    assert first.plan == "release-7"
    before = all_keys(stage.store)
    again = bob.run(bob.tasks.publish_all(CHAIN, id="release-7"))
    assert isinstance(again, PlanExists)
    assert "was imported before, by ada" in again.reason
    other = bob.run(bob.tasks.publish_all([{"id": "new"}], id="release-7"))
    assert isinstance(other, PlanExists)
    assert "another plan was imported under the id release-7" in other.reason
    taken = bob.run(bob.tasks.publish_all([{"id": "new"}, {"id": "t3"}]))
    assert isinstance(taken, PlanExists)
    assert (taken.task, taken.state) == ("t3", "blocked")
    assert taken.exit_status == 1
    assert all_keys(stage.store) == before


def steps() -> int:
    """How many commits a plan takes that does not fit into one."""
    stage = Testbed()
    ada = far(stage, "ada")
    before = stage.store.read(keys.BASE).revision
    ada.run(ada.tasks.publish_all(CHAIN))
    return stage.store.read(keys.BASE).revision - before


def killed(stage: Testbed, fault: Fault, number: int) -> None:
    """A client began to import the plan, and was killed at this commit."""
    ada = far(stage, "ada")
    ada.network.script([*[None] * number, fault])
    with pytest.raises(Crash):
        ada.run(ada.tasks.publish_all(CHAIN))


def is_shown(stage: Testbed) -> bool:
    """Whether the last commit was made."""
    page = Range(f"{keys.TASKS}{core.BATCH}", limit=10)
    found = [item for item in stage.store.read(page).ranges[page] if item.key.endswith("/status")]
    return bool(found) and (decode_status(found[0]) or core.FRESH).state == "complete"


ORDER = ["t0", "t1", "t2", "t3", *(f"t{n}" for n in range(4, 20))]
crashes = pytest.mark.parametrize("fault", ["crash before", "crash after"])


@crashes
def test_killed_anywhere_nobody_sees_a_part_of_it_and_repeating_ends_with_all(fault: Fault) -> None:
    seen = set()
    for number in range(steps()):
        stage = Testbed()
        killed(stage, fault, number)
        bob = far(stage, "bob")
        shown = is_shown(stage)
        seen.add(shown)
        if not shown:
            assert isinstance(bob.run(bob.tasks.next(can=["*"])), task_outcomes.NoTask)
            for id_ in statuses(stage.store):
                claim = bob.run(bob.tasks.claim(id_))
                assert claim == task_outcomes.TaskBlocked(task=id_, reason=core.HIDDEN_REASON)
        outcome = bob.run(bob.tasks.publish_all(CHAIN))
        assert isinstance(outcome, PlanExists if shown else Imported), number
        assert sorted(drained(bob)) == sorted(ORDER), "each of them once"
        assert {status.state for status in statuses(stage.store).values()} == {"complete"}
        assert [key for key in all_keys(stage.store) if not key.startswith(keys.TASKS)] == []
        assert audit(stage.store) == []
    assert seen == {False, True}


@crashes
def test_what_a_killed_import_left_to_be_moved_on_is_done_by_whoever_comes(fault: Fault) -> None:
    for number in range(steps()):
        stage = Testbed()
        killed(stage, fault, number)
        if is_shown(stage):
            bob = far(stage, "bob")
            assert isinstance(bob.run(bob.tasks.claim("t16")), task_outcomes.Claimed), (
                "by name as well"
            )
            bob.run(bob.tasks.release("t16"))
            done = drained(bob)
            assert sorted(done) == sorted(ORDER), "each of them once"
            assert all(done.index(f"t{n - 1}") < done.index(f"t{n}") for n in range(20) if n % 4)


def test_nobody_can_touch_what_is_not_there_yet(stage: Testbed) -> None:
    killed(stage, "crash before", 3)
    bob = far(stage, "bob")
    before = all_keys(stage.store)
    with pytest.raises(BadInput, match="needs 't0', which does not exist"):
        bob.run(bob.tasks.publish("mine", needs=["t0"]))
    with pytest.raises(
        BadInput, match=r"number 1 \(mine\): it needs 't0', which is neither in the plan nor"
    ):
        bob.run(bob.tasks.publish_all([{"id": "mine", "needs": ["t0"]}]))
    assert isinstance(bob.run(bob.tasks.publish("t0")), task_outcomes.TaskExists)
    cancelled, retried = bob.run(bob.tasks.cancel("t0")), bob.run(bob.tasks.retry("t0"))
    claimed, shown = bob.run(bob.tasks.claim("t0")), bob.run(bob.tasks.show("t0"))
    assert (
        cancelled
        == retried
        == task_outcomes.Unchanged(task="t0", state="blocked", reason=core.HIDDEN_REASON)
    )
    assert claimed == task_outcomes.TaskBlocked(task="t0", reason=core.HIDDEN_REASON)
    assert isinstance(shown, TaskView)
    assert (shown.state, shown.reason) == ("blocked", core.HIDDEN_REASON)
    assert all_keys(stage.store) == before


def test_two_who_import_the_same_plan_at_once_publish_each_task_once(stage: Testbed) -> None:
    ada, bob = far(stage, "ada"), far(stage, "bob")
    hands = [
        Stepper(client.tasks.publish_all(CHAIN), client.store, stage.clock) for client in (ada, bob)
    ]
    while not all(hand.done for hand in hands):
        for hand in hands:
            hand.go()
    outcomes = [hand.result() for hand in hands]
    assert any(isinstance(outcome, Imported) for outcome in outcomes)
    assert drained(ada) == ORDER
    assert audit(stage.store) == []


def test_an_id_that_somebody_publishes_meanwhile_stops_it_before_anybody_sees_it(
    stage: Testbed,
) -> None:
    ada, bob = far(stage, "ada"), far(stage, "bob")
    hand = Stepper(ada.tasks.publish_all(CHAIN), ada.store, stage.clock)
    while not statuses(stage.store):
        assert hand.go()
    theirs = next(f"t{n}" for n in range(20) if f"t{n}" not in statuses(stage.store))
    bob.run(bob.tasks.publish(theirs, "bob's"))
    outcome = hand.run().result()
    assert isinstance(outcome, PlanExists)
    assert (outcome.task, outcome.state) == (theirs, "pending")
    assert "take it out of the plan, or change that task with --update" in outcome.reason
    assert list(statuses(stage.store)) == [theirs], "all else was taken back"
    assert [key for key in all_keys(stage.store) if core.BATCH in key] == []
    mended = [spec for spec in CHAIN if spec["id"] != theirs]
    again = ada.run(ada.tasks.publish_all(mended))
    assert isinstance(again, Imported)
    assert sorted(drained(ada)) == sorted(ORDER)
    assert audit(stage.store) == []


@crashes
def test_killed_while_it_takes_back_the_next_one_goes_on_with_that(fault: Fault) -> None:
    for number in range(4):
        stage = Testbed()
        killed(stage, "crash before", 3)
        theirs = next(f"t{n}" for n in range(20) if f"t{n}" not in statuses(stage.store))
        bob, cleo = far(stage, "bob"), far(stage, "cleo")
        cleo.run(cleo.tasks.publish(theirs))
        bob.network.script([*[None] * number, fault])
        with suppress(Crash):
            bob.run(bob.tasks.publish_all(CHAIN))
        refused = cleo.run(cleo.tasks.publish_all(CHAIN))
        assert isinstance(refused, PlanExists)
        assert list(statuses(stage.store)) == [theirs]
        assert [key for key in all_keys(stage.store) if core.BATCH in key] == []
        assert audit(stage.store) == []


def test_ids_of_an_import_that_was_left_behind_are_free_when_its_sign_of_life_is_gone(
    stage: Testbed,
) -> None:
    killed(stage, "crash before", 3)
    bob = far(stage, "bob")
    other = [{"id": "t0"}, {"id": "other"}]
    refused = bob.run(bob.tasks.publish_all(other))
    assert isinstance(refused, PlanExists)
    assert "belongs to an import that is under way" in refused.reason
    stage.clock.advance(plan_rules.TTL + 1)
    bob = far(stage, "bob")
    assert isinstance(bob.run(bob.tasks.publish_all(other)), Imported)
    assert sorted(statuses(stage.store)) == ["other", "t0"]
    assert audit(stage.store) == []


def test_an_importer_that_slept_while_its_import_was_taken_back_begins_anew(stage: Testbed) -> None:
    ada = far(stage, "ada")
    hand = Stepper(ada.tasks.publish_all(CHAIN), ada.store, stage.clock)
    while len(statuses(stage.store)) < 10:
        assert hand.go()
    stage.clock.advance(plan_rules.TTL + 1)
    bob = far(stage, "bob")
    missing = next(f"t{n}" for n in range(20) if f"t{n}" in statuses(stage.store))
    assert isinstance(bob.run(bob.tasks.publish_all([{"id": missing}])), Imported)
    outcome = hand.run().result()
    assert isinstance(outcome, PlanExists)
    assert outcome.task == missing
    assert list(statuses(stage.store)) == [missing]
    assert audit(stage.store) == []


def test_an_importer_that_slept_does_not_go_on_in_what_was_begun_anew(stage: Testbed) -> None:
    """Its batch was deleted, and another client was killed while it began the same plan again."""
    ada = far(stage, "ada")
    hand = Stepper(ada.tasks.publish_all(CHAIN), ada.store, stage.clock)
    while len(statuses(stage.store)) < 10:
        assert hand.go()
    stage.clock.advance(plan_rules.TTL + 1)
    cleo = far(stage, "cleo")
    stop = Stepper(cleo.tasks.publish_all([{"id": "t0"}]), cleo.store, stage.clock)
    while statuses(stage.store):
        assert stop.go()
    killed(stage, "crash after", 0)
    assert 0 < len(statuses(stage.store)) < 10
    assert isinstance(hand.run().result(), Imported)
    assert sorted(drained(far(stage, "bob"))) == sorted(ORDER)
    assert audit(stage.store) == []


def test_who_publishes_one_task_gets_an_id_that_a_dead_import_kept(stage: Testbed) -> None:
    killed(stage, "crash before", 3)
    bob = far(stage, "bob")
    assert isinstance(bob.run(bob.tasks.publish("t0")), task_outcomes.TaskExists), "it may live yet"
    stage.clock.advance(plan_rules.TTL + 1)
    bob = far(stage, "bob")
    assert isinstance(bob.run(bob.tasks.publish("t0")), task_outcomes.Published)
    assert list(statuses(stage.store)) == ["t0"]


def test_what_watchers_hear_of_a_task_comes_with_the_commit_that_shows_it(stage: Testbed) -> None:
    killed(stage, "crash before", 3)
    bob = far(stage, "bob")

    def events() -> list[str]:
        lines = bob.run(bob.record.log(limit=1000))
        return [f"{e.name} {e.thing}" for line in lines for e in line.events if "task" in e.name]

    assert events() == []
    bob.run(bob.tasks.publish_all(CHAIN))
    assert sorted(each for each in events() if "published" in each) == sorted(
        f"task:published task/{id_}" for id_ in ORDER
    )


def test_data_decides_how_much_goes_into_one_commit(stage: Testbed) -> None:
    """Ten tasks with 300 KB each are more than a commit across a network is to carry."""
    ada = stage.remote("ada")
    before = stage.store.read(keys.BASE).revision
    specs = [{"id": f"t{n}", "data": "x" * 300_000} for n in range(10)]
    assert isinstance(ada.run(ada.tasks.publish_all(specs)), Imported)
    assert stage.store.read(keys.BASE).revision - before >= 4
    assert drained(ada) == [f"t{n}" for n in range(10)]


CHANCES = Chances(
    conflict=0.1, delay=0.05, lost_reply=0.1, late_arrival=0.1, crash_before=0.04, crash_after=0.04
)


def storm(seed: int) -> None:
    """Import through a network that fails and in processes that die, until it is done."""
    stage = Testbed(seed)
    outcome: object = None
    for number in range(200):
        ada = far(stage, f"ada{number}")
        ada.network.sow(seed * 1000 + number)
        ada.network.chances = CHANCES
        with suppress(Crash, StoreTrouble):
            outcome = ada.run(ada.tasks.publish_all(CHAIN))
        ada.network.deliver()
        if outcome is not None:
            break
    assert isinstance(outcome, Imported | PlanExists)
    assert not isinstance(outcome, PlanExists) or not outcome.task, outcome
    bob = stage.client("bob")
    assert sorted(drained(bob)) == sorted(ORDER)
    assert [key for key in all_keys(stage.store) if not key.startswith(keys.TASKS)] == []
    assert audit(stage.store) == []


def test_an_import_gets_through_a_storm_with_each_task_once() -> None:
    for seed in range(6):
        storm(seed)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 400))
def test_an_import_gets_through_many_storms(seed: int) -> None:
    storm(seed)


def test_a_task_that_no_store_takes_is_refused_before_anything_is_written(stage: Testbed) -> None:
    ada = far(stage, "ada")
    needs = [f"{'n' * 180}{number}" for number in range(8000)]
    for dry in (False, True):
        with pytest.raises(TooLarge, match=r"task .x. has about .* bytes with all its needs"):
            ada.run(ada.tasks.publish_all([*CHAIN, {"id": "x", "needs": needs}], dry_run=dry))
    assert all_keys(stage.store) == []


def graphs() -> st.SearchStrategy[list[set[int]]]:
    """The needs of each task: any tasks with a lower number."""
    return st.integers(1, 14).flatmap(
        lambda size: st.tuples(
            *(st.sets(st.integers(0, n - 1)) if n else st.just(set()) for n in range(size))
        ).map(list)
    )


def follow(needs: list[set[int]], names: list[int], dice: Random, *, remote: bool) -> None:
    """Publish a graph, do what is ready in any order, and compare with a model all the way."""
    stage = Testbed()
    ada = far(stage, "ada") if remote else stage.client("ada")
    specs = [{"id": f"t{n}", "needs": [f"t{m}" for m in sorted(needs[n])]} for n in names]
    ada.run(ada.tasks.publish_all(specs))
    done: set[int] = set()
    while True:
        ready = {n for n in range(len(needs)) if n not in done and needs[n] <= done}
        found = statuses(stage.store)
        assert {int(id_[1:]) for id_ in found if found[id_].state == "pending"} == ready
        if not ready:
            break
        chosen = dice.choice(sorted(ready))
        ada.run(ada.tasks.claim(f"t{chosen}"))
        ada.run(ada.tasks.complete(f"t{chosen}"))
        done.add(chosen)
    assert len(done) == len(needs)
    assert {status.state for status in statuses(stage.store).values()} == {"complete"}


@given(graphs(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=budget(15), deadline=None)
def test_nothing_is_ready_before_its_needs_and_all_get_done(
    needs: list[set[int]], dice: Random, remote: bool
) -> None:
    names = list(range(len(needs)))
    dice.shuffle(names)
    follow(needs, names, dice, remote=remote)


def test_all_that_is_wrong_is_said_at_once_each_with_its_place(stage: Testbed) -> None:
    """Every cycle, every need that does not exist, and mistakes in single tasks."""
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("there"))
    specs: list[dict[str, object]] = [
        {"id": "a", "needs": ["b"]},
        {"id": "b", "needs": ["a", "x"]},
        {"id": "c", "needs": ["d", "there"]},
        {"id": "d", "needs": ["c"]},
        {"id": "e", "needs": ["y", "x"]},
        {"id": "f", "priority": "high"},
    ]
    with pytest.raises(BadInput) as refused:
        ada.run(ada.tasks.publish_all(specs))
    said = str(refused.value)
    assert said.startswith("the plan has 6 mistakes, and nothing was published: number 6 (f): ")
    for wrong in (
        "number 1 (a): these need each other: a -> b -> a;",
        "number 3 (c): these need each other: c -> d -> c;",
        "number 2 (b): it needs 'x', which is neither in the plan nor in the store",
        "number 5 (e): it needs 'y', which is neither",
        "number 5 (e): it needs 'x', which is neither",
    ):
        assert wrong in said
    assert "'there'" not in said
    assert refused.value.cycles == (("a", "b", "a"), ("c", "d", "c"))
