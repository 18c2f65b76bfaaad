"""What a pipeline waits for moves it on: no process runs for it, and no agent asks again.

Each way is a commit of another agent.  On a local engine the pipeline moves with that commit, on
others right after it; if the agent dies in between, any other client finds its note.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest
from tests.nouns.pipelines.pipelines import Mover, phases, run_of

from interlock.core import keys
from interlock.core.entry import Entry
from interlock.nouns.grants.lock import AlreadyFree
from interlock.nouns.guards.housekeeping import client_step
from interlock.runtime import gates as runtime_gates
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.store import LOG, Log, Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.conformance.place import write
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Stepper, Testbed

TASKS_A = 'post = [{tasks_complete = {prefix = "a."}}]'


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "remote"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def mover(bed: Testbed, where: str, name: str) -> Mover:
    return Mover(bed.client(name) if where == "local" else bed.remote(name))


# Each way: the fields of the phase, and what bob does before and after ada wants to leave it.

Act: TypeAlias = Callable[[Mover], None]


def nothing(bob: Mover) -> None:
    del bob


def hold_slots(bob: Mover) -> None:
    bob.client.run(bob.client.semaphores.resize("builds", 1))
    bob.client.run(bob.client.semaphores.acquire("builds"))


def release_slots(bob: Mover) -> None:
    assert bob.client.run(bob.client.semaphores.release("builds"))


def resize(bob: Mover) -> None:
    assert bob.client.run(bob.client.semaphores.resize("builds", 2))


def acquire_new_slots(bob: Mover) -> None:
    assert bob.client.run(bob.client.semaphores.acquire("builds", capacity=2))


def lock(bob: Mover) -> None:
    bob.lock("x")


def unlock(bob: Mover) -> None:
    assert bob.client.run(bob.client.locks.release("x"))


def break_lock(bob: Mover) -> None:
    assert bob.client.run(bob.client.locks.break_("x", reason="stuck"))


def publish_two(bob: Mover) -> None:
    for id_ in ("a.1", "a.2"):
        bob.client.run(bob.client.tasks.publish(id_))


def do_tasks(bob: Mover) -> None:
    assert bob.do_tasks()


def publish_others_and_do_all(bob: Mover) -> None:
    bob.client.run(bob.client.tasks.publish("b.1"))
    publish_two(bob)
    bob.do_tasks()


def fail_one(bob: Mover) -> None:
    publish_two(bob)
    claim: Any = bob.client.run(bob.client.tasks.next())
    bob.client.run(bob.client.tasks.fail(claim.task, "no", token=claim.token, retry=False))


def retry_one(bob: Mover) -> None:
    assert bob.client.run(bob.client.tasks.retry("a.1"))


def claim_one(bob: Mover) -> None:
    publish_two(bob)
    assert bob.client.run(bob.client.tasks.claim("a.1"))


def release_one(bob: Mover) -> None:
    assert bob.client.run(bob.client.tasks.release("a.1"))


def start_other(bob: Mover) -> None:
    bob.define(phases("", "", name="q"))
    bob.start("q", "q1")


def advance_other(bob: Mover) -> None:
    assert bob.advance("q1")


def cancel_other(bob: Mover) -> None:
    assert bob.cancel("q1")


WAYS: dict[str, tuple[str, Act, Act]] = {
    "a lock is released": ('post = [{lock_free = "x"}]', lock, unlock),
    "a lock is broken": ('post = [{lock_free = "x"}]', lock, break_lock),
    "a lock is acquired": ('post = [{lock_held = "x"}]', nothing, lock),
    "a slot is released": ('post = [{semaphore_available = "builds"}]', hold_slots, release_slots),
    "a semaphore grows": ('post = [{semaphore_available = "builds"}]', hold_slots, resize),
    "a semaphore is made": ('post = [{semaphore_available = "builds"}]', nothing, resize),
    "new slots are acquired": (
        'post = [{semaphore_available = "builds"}]',
        nothing,
        acquire_new_slots,
    ),
    "the last task is complete": (TASKS_A, publish_two, do_tasks),
    "a task comes later": (TASKS_A, nothing, publish_others_and_do_all),
    "a failed task is retried": (
        'post = [{no_blocked_tasks = {prefix = "a."}}]',
        fail_one,
        retry_one,
    ),
    "no task is running": (
        'post = [{tasks_complete = {prefix = "a.", state = "running", none_ok = true}}]',
        claim_one,
        release_one,
    ),
    "another pipeline starts": (
        'post = [{pipeline_in_phase = {pipeline = "q1", phase = "one"}}]',
        nothing,
        start_other,
    ),
    "another pipeline enters a phase": (
        'post = [{pipeline_in_phase = {pipeline = "q1", phase = "two"}}]',
        start_other,
        advance_other,
    ),
    "another pipeline leaves a phase": (
        'post = [{not = {pipeline_in_phase = {pipeline = "q1", phase = "one"}}}]',
        start_other,
        cancel_other,
    ),
    "one of two is enough": (
        'post = [{any = [{lock_held = "y"}, {lock_free = "x"}]}]',
        lock,
        unlock,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_moves_on_by_itself_when(bed: Testbed, where: str, way: str) -> None:
    fields, before, after = WAYS[way]
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases(fields, ""))
    ada.start()
    before(bob)
    assert not ada.advance()
    assert run_of(bed.store).phase == "one"
    after(bob)
    if (where, way) == ("remote", "new slots are acquired"):  # by a guess, which reads nothing
        bob.client.run(bob.client.fleet.maintain())
    assert (run_of(bed.store).phase, run_of(bed.store).by) == ("two", "ada")
    assert keys_left(bed) == []
    assert audit(bed.store) == []


def test_a_free_lock_that_a_gate_waits_for_is_shown_as_free(bed: Testbed, where: str) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{lock_held = "x"}]', ""))
    ada.start()
    assert not ada.advance()
    assert bed.store.read(keys.lock("x"))[keys.lock("x")] is not None
    assert bob.client.run(bob.client.locks.show("x")).state == "free"
    assert not bob.client.run(bob.client.locks.list())
    assert bob.client.run(bob.client.fleet.why("lock/x")).because == "free"
    assert isinstance(bob.client.run(bob.client.locks.release("x")), AlreadyFree)
    assert ada.cancel()
    bob.unlock("x", bob.lock("x"))
    assert bed.store.read(keys.lock("x"))[keys.lock("x")] is None


def keys_left(bed: Testbed) -> list[str]:
    """The gates, their entries and the notes that the store has."""
    folders = [Range(each) for each in (keys.GATES, keys.GATED, keys.RECHECK)]
    found = bed.store.read(*folders).ranges
    return [item.key for folder in folders for item in found[folder]]


def test_it_moves_on_when_retention_deletes_the_failed_task(bed: Testbed, where: str) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{no_blocked_tasks = {prefix = "a."}}]', ""))
    ada.start()
    fail_one(bob)
    assert not ada.advance()
    bed.clock.advance(400 * 86400)
    for name in ("cleo", "dan", "eve"):  # no client trusts its own clock alone
        other = mover(bed, where, name)
        other.unlock("y", other.lock("y"))
    zoe = mover(bed, where, "zoe")
    zoe.client.run(zoe.client.fleet.maintain())
    assert run_of(bed.store).phase == "two"


def test_slots_that_a_waiter_leaves_move_it_on(bed: Testbed, where: str) -> None:
    ada, bob, cleo = (mover(bed, where, each) for each in ("ada", "bob", "cleo"))
    ada.client.run(ada.client.semaphores.resize("builds", 2))
    ada.define(phases("", 'hold = ["sem/builds"]'))
    ada.start()
    bob.client.run(bob.client.semaphores.acquire("builds"))
    wait = cleo.client.start(cleo.client.semaphores.acquire("builds", weight=2, wait=60))
    assert "reserved for cleo" in ada.advance().reason
    wait.interrupt(KeyboardInterrupt())
    assert run_of(bed.store).phase == "two"


def chain(ada: Mover) -> None:
    """Three pipelines: the second waits for the first, the third for the second."""
    ada.define(phases('post = [{lock_free = "x"}]', "", name="p1"))
    for number in (2, 3):
        leaf = f'{{pipeline_in_phase = {{pipeline = "r{number - 1}", phase = "two"}}}}'
        ada.define(phases(f"post = [{leaf}]", "", name=f"p{number}"))
    for number in (1, 2, 3):
        ada.start(f"p{number}", f"r{number}")


def test_three_pipelines_that_wait_for_each_other_in_a_row_move_with_one_release(
    bed: Testbed, where: str
) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    chain(ada)
    token = bob.lock("x")
    assert not any(ada.advance(f"r{number}") for number in (3, 2, 1))
    bob.unlock("x", token)
    assert [run_of(bed.store, f"r{number}").phase for number in (1, 2, 3)] == ["two"] * 3
    assert keys_left(bed) == []
    assert audit(bed.store) == []
    done = bob.client.run(bob.client.record.verify())
    assert done, done


def test_of_many_pipelines_that_want_one_lock_each_gets_it_in_its_turn(
    bed: Testbed, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_gates, "STEPS_INSIDE", 3)
    ada = mover(bed, where, "ada")
    ada.define(phases("", 'hold = ["lock/x"]'))
    ids = [f"r{number}" for number in range(8)]
    for id_ in ids:
        ada.start(id_=id_)
    assert [bool(ada.advance(id_)) for id_ in ids] == [True] + [False] * 7
    for _ in ids:
        holder = ada.holder("x").removeprefix("pipeline:")
        assert ada.advance(holder)
    assert {run_of(bed.store, id_).state for id_ in ids} == {"complete"}
    assert keys_left(bed) == []
    assert audit(bed.store) == []


def test_a_thing_that_moves_on_opens_the_gate_of_one_that_was_checked_before_it(
    bed: Testbed, where: str
) -> None:
    """Both wait for slots: r1 for two of them, r2 for one; then r2 releases the one it has."""
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    bob.client.run(bob.client.semaphores.resize("builds", 2))
    ada.define(phases("", 'hold = ["sem/builds=2"]', name="p1"))
    held = 'hold = ["sem/builds"]\npost = [{semaphore_available = "builds"}]'
    ada.define(phases(held, "", name="p2"))
    ada.start("p1", "r1")
    ada.start("p2", "r2")
    bob.client.run(bob.client.semaphores.acquire("builds"))
    assert not any(ada.advance(id_) for id_ in ("r1", "r2"))
    release_slots(bob)
    assert [run_of(bed.store, id_).phase for id_ in ("r1", "r2")] == ["two", "two"]


def test_an_entry_of_a_kind_that_only_a_newer_version_knows_is_left_alone(
    bed: Testbed, where: str
) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{lock_free = "x"}]', ""))
    ada.start()
    token = bob.lock("x")
    assert not ada.advance()
    other = keys.gated("lock/x", "ship/1")
    bed.store.commit(Txn(id="txn_newer", puts=(Put(other, b"{}"),), quiet=True))
    bob.unlock("x", token)
    assert run_of(bed.store).phase == "two"
    assert keys_left(bed) == [other]


# The local engine: one transaction.


ODD_FACTS = b'["gate/", "gate/pipeline", "lock/", "sem/", "task/", "tasks/", "guard/", "", "%"]'
ODD_ITEMS = {
    "gated/lock%2Fx/%ZZ": b"{}",
    "gated/lock%2Fx/": b"{}",
    "gated/lock%2Fx/pipeline%2F": b"[",
    "gates/%FF": b'{"facts": ["lock/x"]}',
    "gates/task%2Fgone": b'{"facts": ' + ODD_FACTS + b"}",
    "gates/pipeline%2F": b'{"facts": ["lock/", "%"]}',
    "recheck/odd": b'{"facts": ' + ODD_FACTS + b"}",
}


def test_a_thing_whose_items_contradict_each_other_prevents_no_release(
    bed: Testbed, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    from interlock.nouns.guards import condition as c
    from interlock.nouns.guards import guard as g

    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    calm = g.Guard(name="calm", condition=c.LockFree(lock="x"))
    ada.client.run(ada.client.guards.define(calm))
    token = bob.lock("x")
    ada.client.run(ada.client.tasks.publish("a.broken", guard="calm"))
    ada.client.run(ada.client.tasks.publish("b.whole", guard="calm"))
    write(bed.store, deletes=(keys.data("a.broken"),))
    bob.unlock("x", token)
    assert ada.client.run(ada.client.tasks.claim("b.whole"))
    assert "could not be checked" in caplog.text


@pytest.mark.parametrize("key", ODD_ITEMS)
def test_an_odd_item_that_a_client_wrote_prevents_no_release_and_no_maintenance(
    bed: Testbed, where: str, key: str
) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{lock_free = "x"}]', ""))
    ada.start()
    lock(bob)
    assert not ada.advance()
    bed.store.commit(Txn(id="odd", puts=(Put(key, ODD_ITEMS[key]),), quiet=True))
    unlock(bob)
    assert run_of(bed.store).phase == "two"
    run = ada.client.run
    assert run(ada.client.fleet.maintain())
    run(ada.client.fleet.health())


def entries(bed: Testbed) -> list[Entry]:
    from interlock.core import codec

    everything = Log(limit=1000)
    read: codec.Decoder[Entry] = codec.Decoder(Entry)
    return [read.read(item) for item in bed.store.read(everything).ranges[everything]]


def test_a_release_that_opens_a_gate_is_one_transaction_with_an_entry_for_each(
    bed: Testbed,
) -> None:
    ada, bob = mover(bed, "local", "ada"), mover(bed, "local", "bob")
    chain(ada)
    token = bob.lock("x")
    for number in (3, 2, 1):
        ada.advance(f"r{number}")
    seen = []
    transact = bed.store.transact

    def counted(work: Any) -> Any:
        seen.append(work)
        return transact(work)

    bed.store.transact = counted  # type: ignore[method-assign]
    bob.unlock("x", token)
    assert len(seen) == 1
    words = [(entry.verb, entry.thing, entry.agent) for entry in entries(bed)[-4:]]
    assert words == [
        ("lock.release", "lock/x", "bob"),
        ("pipeline.advance", "pipeline/r1", "bob"),
        ("pipeline.advance", "pipeline/r2", "bob"),
        ("pipeline.advance", "pipeline/r3", "bob"),
    ]
    story = bob.client.run(bob.client.record.explain("pipeline/r3"))
    assert story.happenings[-1].what == "advanced"


# Other engines: a note, and housekeeping.


def worker_finds_no_task(heir: Mover) -> None:
    heir.client.run(heir.client.tasks.next())


def thousandth_commit(heir: Mover) -> None:
    heir.client.run(client_step(heir.client.runner, None, Actor("heir")))


def maintain(heir: Mover) -> None:
    heir.client.run(heir.client.fleet.maintain())


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
@pytest.mark.parametrize("later", [worker_finds_no_task, thousandth_commit, maintain])
def test_a_client_that_dies_before_it_checked_the_gates_leaves_them_to_another(
    later: Act, fault: Fault
) -> None:
    for commit in count():
        bed = Testbed()
        ada, bob = Mover(bed.client("ada")), Mover(bed.remote("bob"))
        chain(ada)
        token = bob.lock("x")
        for number in (3, 2, 1):
            assert not ada.advance(f"r{number}")
        bob.client.network.script([None] * commit + [fault])
        crashed = False
        try:
            bob.client.run(bob.client.locks.release("x", token=token))
        except Crash:
            crashed = True
        heir = Mover(bed.remote("heir"))
        released = heir.holder("x") == ""
        for _ in range(3):
            later(heir)
        moved = [run_of(bed.store, f"r{number}").phase for number in (1, 2, 3)]
        assert moved == (["two"] * 3 if released else ["one"] * 3), (commit, fault)
        left = keys_left(bed)
        assert not released or left == [], left
        assert audit(bed.store) == []
        if not crashed and not bob.client.network.drawn:
            assert commit >= 3
            return


@pytest.mark.parametrize("way", ["another pipeline starts", "a semaphore is made"])
def test_a_client_that_dies_after_it_created_a_thing_leaves_its_gates_to_another(way: str) -> None:
    fields, _, after = WAYS[way]
    for commit in count():
        bed = Testbed()
        ada, bob = Mover(bed.client("ada")), Mover(bed.remote("bob"))
        ada.define(phases(fields, ""))
        ada.start()
        assert not ada.advance()
        bob.client.network.script([None] * commit + ["crash after"])
        try:
            after(bob)
        except Crash:
            things = (keys.pipeline("q1"), keys.semaphore("builds"))
            created = any(bed.store.read(*things).items.values())
            thousandth_commit(Mover(bed.remote("heir")))
            assert run_of(bed.store).phase == ("two" if created else "one"), commit
        else:
            assert commit
            return


IN_BETWEEN = [
    "a lock is released",
    "a semaphore is made",
    "a task comes later",
    "another pipeline starts",
    "another pipeline enters a phase",
    "a failed task is retried",
]


def after_steps(mover: Mover, op: Op[Any], steps: int) -> Stepper[Any]:
    """An operation that has taken this many steps."""
    hand = Stepper(op, mover.client.store, mover.client.clock)
    for _ in range(steps):
        if not hand.done:
            hand.go()
    return hand


@pytest.mark.parametrize("way", IN_BETWEEN)
def test_a_change_while_a_gate_comes_to_wait_is_not_missed(way: str) -> None:
    fields, before, after = WAYS[way]
    for steps in count():
        bed = Testbed()
        ada, bob = mover(bed, "remote", "ada"), mover(bed, "remote", "bob")
        ada.define(phases(fields, ""))
        ada.start()
        before(bob)
        hand = after_steps(ada, ada.calls.advance("r1"), steps)
        ended = hand.done
        after(bob)
        hand.run()
        assert run_of(bed.store).phase == "two", steps
        if ended:
            assert steps > 3
            return


@pytest.mark.parametrize("way", IN_BETWEEN)
def test_a_gate_that_comes_to_wait_during_the_change_is_not_missed(way: str) -> None:
    fields, before, _ = WAYS[way]
    changes: dict[str, Callable[[Mover], Op[Any]]] = {
        "a lock is released": lambda bob: bob.client.locks.release("x"),
        "a semaphore is made": lambda bob: bob.client.semaphores.resize("builds", 2),
        "a task comes later": lambda bob: bob.client.tasks.publish("a.1"),
        "another pipeline starts": lambda bob: bob.calls.start("q", id="q1"),
        "another pipeline enters a phase": lambda bob: bob.calls.advance("q1"),
        "a failed task is retried": lambda bob: bob.client.tasks.retry("a.1"),
    }
    for steps in count():
        bed = Testbed()
        ada, bob = mover(bed, "remote", "ada"), mover(bed, "remote", "bob")
        ada.define(phases(fields, ""))
        ada.define(phases("", "", name="q"))
        ada.start()
        before(bob)
        hand = after_steps(bob, changes[way](bob), steps)
        ended = hand.done
        ada.advance()
        hand.run()
        bob.do_tasks()
        assert run_of(bed.store).phase == "two", steps
        if ended:
            return


def test_a_caller_that_is_interrupted_while_it_checks_gates_keeps_no_lock() -> None:
    """The lock is acquired by then: it is released, and another client checks the gates."""
    checking = 0
    for steps in count():
        bed = Testbed()
        ada, bob = mover(bed, "remote", "ada"), mover(bed, "remote", "bob")
        ada.define(phases('post = [{lock_held = "x"}]', ""))
        for id_ in ("r1", "r2"):
            ada.start(id_=id_)
            ada.advance(id_)
        hand = after_steps(bob, bob.client.locks.acquire("x"), steps)
        if hand.done:
            break
        checking += ada.holder("x") == "bob"
        hand.interrupt(KeyboardInterrupt())
        assert ada.holder("x") == ""
        maintain(ada)
        assert not any(key.startswith(keys.RECHECK) for key in keys_left(bed))
        assert audit(bed.store) == []
    assert checking > 2


# What no commit reports.


def test_maintain_finds_a_semaphore_of_an_older_client_and_a_lost_mark(
    bed: Testbed, where: str
) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{semaphore_available = "builds"}]', ""))
    ada.start()
    assert not ada.advance()
    key = keys.semaphore("builds")
    bed.store.commit(Txn(id="txn_older", puts=(Put(key, b'{"capacity":3}'),), quiet=True))
    assert bob.client.run(bob.client.fleet.maintain()).moved == 1
    assert run_of(bed.store).phase == "two"


def test_maintain_checks_a_retry_whose_delay_is_over(bed: Testbed, where: str) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    retried = 'post = [{lock_free = "x"}]\non_failure = {retry = "10s", limit = 2}'
    ada.define(phases(retried, ""))
    ada.start()
    bob.client.run(bob.client.locks.acquire("x", ttl=3600))
    assert ada.advance().attempts == 1
    for attempt in (2, 3):
        bed.clock.advance(11)
        zoe = mover(bed, where, f"zoe{attempt}")
        zoe.client.run(zoe.client.fleet.maintain())
    run = run_of(bed.store)
    assert (run.state, "failed 3 times" in run.reason) == ("failed", True)
    assert keys_left(bed) == []


@pytest.mark.parametrize(
    ("folder", "damage"),
    [(keys.GATES, "unreadable"), (keys.GATED, "unreadable"), (keys.GATED, "deleted")],
)
def test_maintain_restores_what_a_gate_waits_for(
    bed: Testbed, where: str, folder: str, damage: str
) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{lock_free = "x"}]', ""))
    ada.start()
    token = bob.lock("x")
    assert not ada.advance()
    (key,) = [each for each in keys_left(bed) if each.startswith(folder)]
    if damage == "unreadable":
        bed.store.commit(Txn(id="txn_harm", puts=(Put(key, b"{"),), quiet=True))
    else:
        bed.store.commit(Txn(id="txn_harm", deletes=(key,), quiet=True))
    for _ in range(2):
        bob.client.run(bob.client.fleet.maintain())
    assert len(keys_left(bed)) == 2
    bob.unlock("x", token)
    assert run_of(bed.store).phase == "two"


def test_maintain_deletes_entries_of_things_that_wait_for_nothing(bed: Testbed, where: str) -> None:
    ada = mover(bed, where, "ada")
    stray = keys.gated("lock/x", "pipeline/none")
    bed.store.commit(Txn(id="txn_stray", puts=(Put(stray, b"{}"),), quiet=True))
    ada.client.run(ada.client.fleet.maintain())
    assert keys_left(bed) == []


def test_many_gates_are_checked_in_bounded_steps_and_a_note_has_the_place(
    bed: Testbed, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_gates, "STEPS_INSIDE", 2)
    monkeypatch.setattr(runtime_gates.check_gates, "__defaults__", (3,))
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    ada.define(phases('post = [{lock_free = "x"}]', ""))
    ids = [f"r{number}" for number in range(12)]
    token = bob.lock("x")
    for id_ in ids:
        ada.start(id_=id_)
        assert not ada.advance(id_)
    bob.unlock("x", token)
    moved = [run_of(bed.store, id_).phase for id_ in ids].count("two")
    assert moved == (5 if where == "local" else 3)
    for _ in range(4):
        bob.client.run(bob.client.tasks.next())
    assert [run_of(bed.store, id_).phase for id_ in ids].count("two") == 12
    assert keys_left(bed) == []


def test_the_log_names_every_entry_once(bed: Testbed, where: str) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    chain(ada)
    token = bob.lock("x")
    for number in (3, 2, 1):
        ada.advance(f"r{number}")
    bob.unlock("x", token)
    ids = [entry.id for entry in entries(bed)]
    assert len(ids) == len(set(ids))
    assert all(bed.store.read(LOG + id_)[LOG + id_] is not None for id_ in ids)


# Pipelines that wait for each other.

CYCLES = {
    "each for the end of the other": (
        'post = [{pipeline_complete = "r2"}]',
        'post = [{pipeline_complete = "r1"}]',
    ),
    "each for the lock of the other": (
        'hold = ["lock/a"]\npost = [{lock_free = "b"}]',
        'hold = ["lock/b"]\npost = [{lock_free = "a"}]',
    ),
    "one for the end, the other for slots": (
        'hold = ["sem/builds=2"]\npost = [{pipeline_complete = "r2"}]',
        'post = [{semaphore_available = "builds"}]',
    ),
}


@pytest.mark.parametrize("which", CYCLES)
def test_pipelines_that_wait_for_each_other_are_named_by_the_answer_why_and_health(
    bed: Testbed, where: str, which: str
) -> None:
    ada = mover(bed, where, "ada")
    ada.client.run(ada.client.semaphores.resize("builds", 2))
    for number, fields in enumerate(CYCLES[which], 1):
        ada.define(phases(fields, "", name=f"p{number}"))
        ada.start(f"p{number}", f"r{number}")
    assert ada.advance("r1").cycle == ()
    assert deadlocks(ada) == []
    cycle = ("pipeline/r2", "pipeline/r1", "pipeline/r2")
    assert ada.advance("r2").cycle == cycle
    for id_ in ("r1", "r2"):
        why = ada.client.run(ada.client.fleet.why(f"pipeline/{id_}"))
        (said,) = [each for each in why.meanwhile if "wait for each other" in each]
        assert {"pipeline/r1", "pipeline/r2"} <= set(said.replace(";", " ").split())
    assert deadlocks(ada) == [
        "pipeline/r1: waiting never ends (pipeline/r1 -> pipeline/r2 -> pipeline/r1)"
    ]
    assert ada.cancel("r2")
    assert deadlocks(ada) == []


def deadlocks(ada: Mover) -> list[str]:
    problems = ada.client.run(ada.client.fleet.health()).problems
    return [each.says for each in problems if each.kind == "deadlock"]


def test_a_start_that_closes_a_cycle_names_it(bed: Testbed, where: str) -> None:
    ada = mover(bed, where, "ada")
    ada.define(phases('post = [{pipeline_complete = "r2"}]', name="p1"))
    ada.define(phases('pre = [{pipeline_complete = "r1"}]', name="p2"))
    ada.start("p1", "r1")
    ada.advance("r1")
    assert ada.start("p2", "r2").cycle == ("pipeline/r2", "pipeline/r1", "pipeline/r2")


OPEN_ENDS = {
    "an alternative": (
        'post = [{any = [{pipeline_complete = "r2"}, {lock_free = "x"}]}]',
        'post = [{pipeline_complete = "r1"}]',
    ),
    "slots that an agent has, too": (
        'hold = ["sem/builds"]\npost = [{pipeline_complete = "r2"}]',
        'post = [{semaphore_available = "builds"}]',
    ),
}


@pytest.mark.parametrize("which", OPEN_ENDS)
def test_a_cycle_that_an_agent_can_open_is_none(bed: Testbed, where: str, which: str) -> None:
    ada, bob = mover(bed, where, "ada"), mover(bed, where, "bob")
    bob.lock("x")
    ada.client.run(ada.client.semaphores.resize("builds", 2))
    bob.client.run(bob.client.semaphores.acquire("builds"))
    for number, fields in enumerate(OPEN_ENDS[which], 1):
        ada.define(phases(fields, "", name=f"p{number}"))
        ada.start(f"p{number}", f"r{number}")
    assert [ada.advance(id_).cycle for id_ in ("r1", "r2")] == [(), ()]
    assert deadlocks(ada) == []
