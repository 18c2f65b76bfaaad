from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.entry import Entry, decode
from interlock.errors import Lapsed as LapsedError
from interlock.errors import StoreAway
from interlock.nouns.agents import session_rules as sessions
from interlock.nouns.agents.session_rules import Left, Renewed, SessionLapsed
from interlock.nouns.grants.lock import (
    LockAcquired,
    LockBusy,
    LockExtended,
    LockReleased,
    LockTarget,
    Reclaimed,
)
from interlock.nouns.grants.semaphore import SlotsAcquired
from interlock.steps import Commit, Read, Step
from interlock.store import Log, Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


def last_entry(stage: Testbed) -> Entry:
    ref = Log(last=True, limit=1)
    return decode(stage.store.read(ref).ranges[ref][0].value)


def test_leaving_hands_over_everything_in_one_commit(stage: Testbed, ada: Client) -> None:
    bob, cleo, dead = stage.client("bob"), stage.client("cleo"), stage.client("dead", ttl=1.0)
    for name in ("one", "two", "three"):
        ada.run(ada.locks.acquire(name))
    for name in ("one", "two"):
        dead.start(dead.locks.acquire(name, wait=600))
    waits = [
        bob.start(bob.locks.acquire("one", wait=600)),
        cleo.start(cleo.locks.acquire("one", wait=600)),
        cleo.start(cleo.locks.acquire("two", wait=600)),
    ]
    stage.clock.advance(2.0)
    before = stage.store.read().revision
    left = ada.run(ada.agents.leave())
    assert isinstance(left, Left)
    assert sorted(left.released) == ["one", "three", "two"]
    assert stage.store.read().revision == before + 1
    assert [wait.run().done for wait in waits] == [True, False, True]
    assert isinstance(waits[0].result(), LockAcquired)
    assert isinstance(waits[2].result(), LockAcquired)
    shown = {lock.lock: lock.holder for lock in bob.run(bob.locks.list())}
    assert shown == {"one": "bob", "two": "cleo"}
    assert stage.store.read(keys.session(ada.session)).items == {keys.session(ada.session): None}


def test_leaving_says_in_its_entry_what_changed_hands(stage: Testbed, ada: Client) -> None:
    bob = stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    bob.start(bob.locks.acquire("merge", wait=600))
    ada.run(ada.agents.leave())
    entry = last_entry(stage)
    assert (entry.verb, entry.outcome, entry.thing) == ("agent.leave", "left", "agent/ada")
    assert [(event.name, event.agent) for event in entry.events] == [
        ("agent:left", "ada"),
        ("lock:released", "ada"),
        ("lock:acquired", "bob"),
    ]
    assert list(entry.put) == ["locks/merge"]


def test_leaving_keeps_what_lives_by_a_ttl_of_its_own(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge", ttl=60))
    ada.run(ada.agents.leave())
    bob = stage.client("bob")
    assert isinstance(bob.run(bob.locks.acquire("merge")), LockBusy)


def test_leaving_hands_nothing_to_ones_own_waiting_self(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    another_task = replace(ada.context.identity, caller="another")
    wait = ada.start(ada.context.grants.acquire(another_task, LockTarget("merge"), wait=600))
    assert not wait.done
    ada.run(ada.agents.leave())
    assert ada.run(ada.locks.show("merge")).state == "free"


def test_leaving_twice_finds_nothing_left(stage: Testbed, ada: Client) -> None:
    ada.run(ada.agents.leave())
    assert isinstance(ada.run(ada.agents.leave()), SessionLapsed)


def test_leaving_takes_no_lock_that_changed_hands_meanwhile(stage: Testbed) -> None:
    """Between its reading and its commit somebody else may release and take a lock of ours."""
    ada, bob = stage.remote("ada"), stage.client("bob")
    held = ada.run(ada.locks.acquire("merge"))
    assert isinstance(held, LockAcquired)
    hand = Stepper(ada.agents.leave(), ada.store, stage.clock)
    raced = False
    while not hand.done:
        hand.go()
        if not raced and _read_the_locks(hand.steps):
            raced = True
            ada.run(ada.locks.release("merge", token=held.token))
            bob.run(bob.locks.acquire("merge"))
    left = hand.result()
    assert isinstance(left, Left)
    assert left.released == ()
    assert bob.run(bob.locks.show("merge")).holder == "bob"
    assert audit(stage.store) == []


def test_leaving_forgets_nobody_who_came_meanwhile(stage: Testbed) -> None:
    ada, bob = stage.remote("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    hand = Stepper(ada.agents.leave(), ada.store, stage.clock)
    while not _read_the_locks(hand.steps):
        hand.go()
    wait = bob.start(bob.locks.acquire("merge", wait=600))
    hand.run()
    assert bob.run(bob.locks.show("merge")).holder == "bob"
    assert isinstance(wait.run().result(), LockAcquired)


def _read_the_locks(steps: list[Step]) -> bool:
    return any(
        isinstance(step, Read) and any(isinstance(ref, Range) for ref in step.refs)
        for step in steps
    )


def test_a_session_lives_as_long_as_it_beats(stage: Testbed, ada: Client) -> None:
    for _ in range(5):
        stage.clock.advance(29.0)
        assert isinstance(ada.run(ada.agents.beat()), Renewed)
    stage.clock.advance(30.0)
    assert isinstance(ada.run(ada.agents.beat()), SessionLapsed)


def test_a_wall_clock_that_jumps_ends_nobody(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.clock.jump_wall(86400.0)
    assert isinstance(ada.run(ada.agents.beat()), Renewed)
    stage.clock.jump_wall(-2 * 86400.0)
    assert isinstance(ada.run(ada.agents.beat()), Renewed)
    assert ada.run(ada.locks.show("merge")).state == "held"


def test_a_lapsed_session_is_over_for_good(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(31.0)
    with pytest.raises(LapsedError):
        ada.run(ada.locks.acquire("other"))
    bob = stage.client("bob")
    outcome = bob.run(bob.locks.acquire("merge"))
    assert isinstance(outcome, Reclaimed)
    assert outcome.reclaimed_from == "ada"


def test_two_sessions_under_one_name_are_two_holders(stage: Testbed) -> None:
    one, two = stage.client("ada"), stage.client("ada")
    one.run(one.locks.acquire("merge"))
    assert isinstance(two.run(two.locks.acquire("merge")), LockBusy)
    two.run(two.agents.leave())
    assert one.run(one.locks.show("merge")).holder == "ada"


def test_a_resumed_session_speaks_for_what_it_holds(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    shell = stage.client("ada", ttl=None)
    shell.run(shell.context.resume(ada.session))
    assert isinstance(shell.run(shell.locks.acquire("merge")), LockExtended)
    assert isinstance(shell.run(shell.locks.release("merge")), LockReleased)


def test_extending_by_token_renews_the_holders_session_by_its_own_ttl(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=30.0)
    held = ada.run(ada.locks.acquire("merge"))
    assert isinstance(held, LockAcquired)
    for ttl in (None, 900.0):
        other = stage.client("ada", ttl=ttl)
        stage.clock.advance(10.0)
        other.run(other.locks.acquire("merge", token=held.token))
        live = stage.store.read(keys.live(ada.session))[keys.live(ada.session)]
        assert live is not None
        assert live.expires_in == 30.0


def test_sessions_are_listed_with_what_they_hold(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.client("bob", ttl=1.0)
    stage.clock.advance(2.0)
    listed = ada.run(ada.agents.list())
    assert [(agent.agent, agent.state, agent.holds) for agent in listed] == [
        ("ada", "alive", ("merge",)),
        ("bob", "lapsed", ()),
    ]


def test_leaving_with_many_locks_decides_a_few_times_not_once_for_each(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = 0
    leave = sessions.leave

    def counted(*args: Any) -> Any:
        nonlocal decided
        decided += 1
        return leave(*args)

    monkeypatch.setattr(sessions, "leave", counted)
    for number in range(300):
        ada.run(ada.locks.acquire(f"lock.{number}"))
    left = ada.run(ada.agents.leave())
    assert isinstance(left, Left)
    assert len(left.released) == 300
    assert decided < 10


def test_what_a_session_works_on_is_among_what_it_holds(stage: Testbed, ada: Client) -> None:
    bob = stage.client("bob")
    for task in ("a/b", "c", "d"):
        bob.run(bob.tasks.publish(task))
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.tasks.claim("a/b"))
    ada.run(ada.tasks.claim("c", ttl=60))
    held = {each.agent: each.holds for each in bob.run(bob.agents.list())}
    assert held == {"ada": ("merge", "task/a/b", "task/c"), "bob": ()}
    ada.run(ada.tasks.complete("c"))
    assert [each.holds for each in bob.run(bob.agents.show("ada"))] == [("merge", "task/a/b")]


def shell(stage: Testbed, session: str) -> Client:
    """A command of its own process in a session that another one began."""
    command = stage.client("ada", ttl=None)
    command.run(command.context.resume(session))
    return command


def listed(stage: Testbed) -> list[str]:
    ref = Range(keys.HELD)
    return [item.key for item in stage.store.read(ref).ranges[ref]]


def test_leaving_looks_at_no_pool_of_others(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand idle semaphores cost nobody who goes."""
    bob = stage.client("bob")
    for number in range(30):
        bob.run(bob.semaphores.acquire(f"idle{number}", capacity=1))
        bob.run(bob.semaphores.release(f"idle{number}"))
    ada.run(ada.semaphores.acquire("own", capacity=1))
    ada.run(ada.locks.acquire("own"))
    inside = shell(stage, ada.session)
    inside.run(inside.locks.acquire("inside"))
    monkeypatch.setattr("interlock.nouns.agents.session_service._searched", None)
    left = ada.run(ada.agents.leave())
    assert isinstance(left, Left)
    assert sorted(left.released) == ["inside", "own", "sem/own"]
    assert listed(stage) == []


def test_a_shells_session_leaves_all_that_its_commands_took(stage: Testbed) -> None:
    joins = stage.client("ada", ttl=None)
    session = joins.run(joins.agents.join()).session
    bob = stage.client("bob")
    bob.run(bob.locks.acquire("later"))
    for name in ("one", "two"):
        command = shell(stage, session)
        command.run(command.locks.acquire(name))
    waiting = shell(stage, session)
    wait = waiting.start(waiting.locks.acquire("later", wait=600))
    assert listed(stage) == [keys.held(session, keys.lock(n)) for n in ("later", "one", "two")]
    bob.run(bob.locks.release("later"))
    assert isinstance(wait.run().result(), LockAcquired)
    gives = shell(stage, session)
    assert isinstance(gives.run(gives.locks.release("two")), LockReleased)
    assert listed(stage) == [keys.held(session, keys.lock(n)) for n in ("later", "one")]
    leaves = shell(stage, session)
    left = leaves.run(leaves.agents.leave())
    assert isinstance(left, Left)
    assert sorted(left.released) == ["later", "one"]
    assert listed(stage) == []
    assert bob.run(bob.locks.list()) == ()


def test_a_pool_stays_listed_while_its_session_has_anything_of_it(
    stage: Testbed, ada: Client
) -> None:
    one, two = shell(stage, ada.session), shell(stage, ada.session)
    for command in (one, two):
        command.context.identity = replace(command.context.identity, whole_session=False)
    first = one.run(one.semaphores.acquire("s", capacity=2))
    second = two.run(two.semaphores.acquire("s"))
    assert isinstance(first, SlotsAcquired)
    assert isinstance(second, SlotsAcquired)
    one.run(one.semaphores.release("s", token=first.token))
    assert listed(stage) == [keys.held(ada.session, keys.semaphore("s"))]
    two.run(two.semaphores.release("s", token=second.token))
    assert listed(stage) == []


def test_a_session_that_its_own_process_does_not_end_is_left_whole_too(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    other = shell(stage, ada.session)
    left = other.run(other.agents.leave())
    assert isinstance(left, Left)
    assert left.released == ("merge",)


def test_a_session_of_an_older_version_is_left_whole_too(stage: Testbed) -> None:
    """Whose grants are listed nowhere."""
    joins = stage.client("ada", ttl=None)
    session = joins.run(joins.context.sessions.join("ada", ttl=900.0)).session
    command = shell(stage, session)
    command.context.identity = replace(command.context.identity, listed=False)
    command.run(command.locks.acquire("merge"))
    assert listed(stage) == []
    left = command.run(command.agents.leave())
    assert isinstance(left, Left)
    assert left.released == ("merge",)


def test_maintenance_clears_what_is_listed_and_not_held(stage: Testbed, ada: Client) -> None:
    command = shell(stage, ada.session)
    command.run(command.locks.acquire("kept"))
    stray = keys.held(ada.session, keys.lock("gone"))
    stage.store.commit(Txn(id="txn_stray", entry=b"{}", puts=(Put(stray, b"{}"),)))
    ada.run(ada.fleet.maintain())
    assert listed(stage) == [keys.held(ada.session, keys.lock("kept"))]


def test_leaving_gives_back_what_a_call_of_unknown_outcome_took(stage: Testbed) -> None:
    ada = stage.remote("ada")
    taking = ada.locks.acquire("merge")
    step = next(taking)
    while not isinstance(step, Commit):
        step = taking.send(step.perform(ada.store))
    step.perform(ada.store)
    with pytest.raises(StoreAway):
        taking.throw(StoreAway("gone"))
    left = ada.run(ada.agents.leave())
    assert isinstance(left, Left)
    assert left.released == ("merge",)
