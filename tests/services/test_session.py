from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.core import session as sessions
from interlock.core.lock import LockAcquired, LockBusy, LockExtended, LockReleased, Reclaimed
from interlock.core.log import Entry, decode
from interlock.core.session import Left, Renewed, SessionLapsed
from interlock.driving import Step
from interlock.errors import Lapsed as LapsedError
from interlock.services.steps import Read
from interlock.store import Log, Range
from interlock.testing.audit import audit
from interlock.testing.hand import Hand
from interlock.testing.stage import Client, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Stage) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


def last_entry(stage: Stage) -> Entry:
    ref = Log(last=True, limit=1)
    return decode(stage.store.read(ref).ranges[ref][0].value)


def test_leaving_hands_over_everything_in_one_commit(stage: Stage, ada: Client) -> None:
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


def test_leaving_says_in_its_entry_what_changed_hands(stage: Stage, ada: Client) -> None:
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


def test_leaving_keeps_what_lives_by_a_ttl_of_its_own(stage: Stage, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge", ttl=60))
    ada.run(ada.agents.leave())
    bob = stage.client("bob")
    assert isinstance(bob.run(bob.locks.acquire("merge")), LockBusy)


def test_leaving_hands_nothing_to_ones_own_waiting_self(stage: Stage, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    another_task = replace(ada.desk.seat, caller="another")
    wait = ada.start(ada.desk.locks.acquire(another_task, "merge", wait=600))
    assert not wait.done
    ada.run(ada.agents.leave())
    assert ada.run(ada.locks.show("merge")).state == "free"


def test_leaving_twice_finds_nothing_left(stage: Stage, ada: Client) -> None:
    ada.run(ada.agents.leave())
    assert isinstance(ada.run(ada.agents.leave()), SessionLapsed)


def test_leaving_takes_no_lock_that_changed_hands_meanwhile(stage: Stage) -> None:
    """Between its reading and its commit somebody else may release and take a lock of ours."""
    ada, bob = stage.remote("ada"), stage.client("bob")
    held = ada.run(ada.locks.acquire("merge"))
    assert isinstance(held, LockAcquired)
    hand = Hand(ada.agents.leave(), ada.store, stage.clock)
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


def test_leaving_forgets_nobody_who_came_meanwhile(stage: Stage) -> None:
    ada, bob = stage.remote("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    hand = Hand(ada.agents.leave(), ada.store, stage.clock)
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


def test_a_session_lives_as_long_as_it_beats(stage: Stage, ada: Client) -> None:
    for _ in range(5):
        stage.clock.advance(29.0)
        assert isinstance(ada.run(ada.agents.beat()), Renewed)
    stage.clock.advance(30.0)
    assert isinstance(ada.run(ada.agents.beat()), SessionLapsed)


def test_a_wall_clock_that_jumps_ends_nobody(stage: Stage, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.clock.jump_wall(86400.0)
    assert isinstance(ada.run(ada.agents.beat()), Renewed)
    stage.clock.jump_wall(-2 * 86400.0)
    assert isinstance(ada.run(ada.agents.beat()), Renewed)
    assert ada.run(ada.locks.show("merge")).state == "held"


def test_a_lapsed_session_is_over_for_good(stage: Stage, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(31.0)
    with pytest.raises(LapsedError):
        ada.run(ada.locks.acquire("other"))
    bob = stage.client("bob")
    outcome = bob.run(bob.locks.acquire("merge"))
    assert isinstance(outcome, Reclaimed)
    assert outcome.reclaimed_from == "ada"


def test_two_sessions_under_one_name_are_two_holders(stage: Stage) -> None:
    one, two = stage.client("ada"), stage.client("ada")
    one.run(one.locks.acquire("merge"))
    assert isinstance(two.run(two.locks.acquire("merge")), LockBusy)
    two.run(two.agents.leave())
    assert one.run(one.locks.show("merge")).holder == "ada"


def test_a_resumed_session_speaks_for_what_it_holds(stage: Stage) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    shell = stage.client("ada", ttl=None)
    shell.run(shell.desk.resume(ada.session))
    assert isinstance(shell.run(shell.locks.acquire("merge")), LockExtended)
    assert isinstance(shell.run(shell.locks.release("merge")), LockReleased)


def test_extending_by_token_renews_the_holders_session_by_its_own_ttl(stage: Stage) -> None:
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


def test_sessions_are_listed_with_what_they_hold(stage: Stage, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    stage.client("bob", ttl=1.0)
    stage.clock.advance(2.0)
    listed = ada.run(ada.agents.list())
    assert [(agent.agent, agent.state, agent.holds) for agent in listed] == [
        ("ada", "alive", ("merge",)),
        ("bob", "lapsed", ()),
    ]


def test_leaving_with_many_locks_decides_a_few_times_not_once_for_each(
    stage: Stage, ada: Client, monkeypatch: pytest.MonkeyPatch
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


def test_what_a_session_works_on_is_among_what_it_holds(stage: Stage, ada: Client) -> None:
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
