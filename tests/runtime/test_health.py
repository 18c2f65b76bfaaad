from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.conftest import with_git
from tests.faces.shell import until

import interlock
from interlock import aio
from interlock.core import keys
from interlock.nouns.agents.report_rules import Reported
from interlock.nouns.agents.session_rules import DeathsAcknowledged, NoDeath, Renewed
from interlock.nouns.agents.views import all_deaths
from interlock.nouns.grants.health import SETTLED
from interlock.nouns.grants.lock import LockAcquired
from interlock.nouns.record.seal_rules import LIMITS, SealLimits
from interlock.runtime import health
from interlock.runtime.health import Health, Problem
from interlock.steps import drive
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def problems(client: Client, **patience: float) -> tuple[Problem, ...]:
    found = client.run(client.fleet.health(**patience))
    assert found.healthy is (not found.problems)
    assert found.exit_status == (1 if found.problems else 0)
    return found.problems


def one(client: Client, **patience: float) -> Problem:
    (found,) = problems(client, **patience)
    return found


def onlooker(stage: Testbed) -> Client:
    return stage.client("monitor", ttl=None)


def test_an_empty_store_is_healthy_and_so_is_one_at_work(stage: Testbed) -> None:
    assert problems(onlooker(stage)) == ()
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.semaphores.acquire("builds", capacity=3))
    assert problems(onlooker(stage)) == ()


def test_a_session_that_lapsed_long_ago_is_dead(stage: Testbed) -> None:
    stage.client("ada", ttl=10.0)
    stage.clock.advance(10.0 + 300.0)
    assert problems(onlooker(stage)) == ()
    stage.clock.advance(1.0)
    found = one(onlooker(stage))
    assert (found.kind, found.agent, found.thing) == ("dead", "ada", "agent/ada")
    assert found.since == stage.clock.wall() - 301.0
    assert "is not cleared yet" in found.says
    assert "interlock maintain" in found.remedy
    assert problems(onlooker(stage), dead_after=302.0) == ()


def test_a_death_is_told_after_the_session_was_cleared_away(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=10.0)
    ada.run(ada.agents.status("busy", doing="task/t1"))
    stage.clock.advance(11.0)
    monitor = onlooker(stage)
    monitor.run(monitor.fleet.maintain())
    stage.clock.advance(60.0)
    found = one(monitor)
    assert (found.kind, found.agent, found.thing) == ("dead", "ada", "agent/ada")
    assert found.since == stage.clock.wall() - 60.0
    assert found.says.endswith("lapsed while busy with task/t1, and was cleared away 60 s ago")
    assert ada.session in found.says
    assert "interlock agent ack ada --agent NAME" in found.remedy
    monitor.run(monitor.fleet.maintain())
    assert one(monitor) == found, "however often somebody tidies up"


def test_a_death_is_told_for_a_day_or_until_it_is_acknowledged(stage: Testbed) -> None:
    for name in ("ada", "ada", "bob", "cleo"):
        stage.client(name, ttl=10.0)
    stage.clock.advance(11.0)
    monitor = onlooker(stage)
    monitor.run(monitor.fleet.maintain())
    told = {each.agent: each.says for each in problems(monitor)}
    assert set(told) == {"ada", "bob", "cleo"}
    assert told["ada"].endswith("; 1 more of its sessions ended so")
    done = monitor.run(monitor.agents.ack("ada"))
    assert isinstance(done, DeathsAcknowledged)
    assert (done.agent, len(done.sessions)) == ("ada", 2)
    (bob,) = [each.says.split()[2] for each in problems(monitor) if each.agent == "bob"]
    assert monitor.run(monitor.agents.ack(bob)) == DeathsAcknowledged(agent="bob", sessions=(bob,))
    assert monitor.run(monitor.agents.ack("ada")) == NoDeath(agent="ada")
    assert [each.agent for each in problems(monitor)] == ["cleo"]
    stage.clock.advance(86_401.0)
    assert problems(monitor) == ()
    monitor.run(monitor.fleet.maintain())
    assert monitor.run(all_deaths()) == [], "nothing is kept for ever"


def test_who_leaves_is_not_dead(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.agents.leave())
    monitor = onlooker(stage)
    monitor.run(monitor.fleet.maintain())
    assert problems(monitor) == ()


def test_a_stale_lock_and_stale_slots_are_told(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    ada.run(ada.locks.acquire("merge", ttl=10.0))
    ada.run(ada.semaphores.acquire("builds", capacity=3, ttl=10.0))
    stage.clock.advance(11.0)
    lock, slots = problems(onlooker(stage))
    assert [(each.kind, each.thing, each.agent) for each in (lock, slots)] == [
        ("stale", "lock/merge", "ada"),
        ("stale", "sem/builds", "ada"),
    ]


def test_what_was_got_at_once_is_told_once(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    ada.run(ada.several.acquire("lock/a", "lock/b", ttl=10.0))
    stage.clock.advance(11.0)
    assert one(onlooker(stage)).thing == "lock/a and lock/b"


def test_whoever_holds_for_too_long_is_stuck(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    ada.run(ada.locks.acquire("merge", ttl=9000.0))
    stage.clock.advance(3600.0)
    assert problems(onlooker(stage)) == ()
    stage.clock.advance(1.0)
    found = one(onlooker(stage))
    assert (found.kind, found.thing, found.agent) == ("stuck", "lock/merge", "ada")
    assert "ada has held it for 1 h" in found.says
    assert problems(onlooker(stage), held=4000.0) == ()


def test_whoever_waits_for_too_long_is_named_with_who_is_in_the_way(stage: Testbed) -> None:
    ada, bob, cleo = (stage.client(name, ttl=9000.0) for name in ("ada", "bob", "cleo"))
    ada.run(ada.semaphores.acquire("builds", capacity=3, weight=2))
    for client, weight in ((bob, 3), (cleo, 1)):
        client.start(client.semaphores.acquire("builds", weight=weight, wait=9000))
    stage.clock.advance(3601.0)
    first, second = problems(onlooker(stage), held=9000.0)
    assert (first.kind, first.agent, first.thing) == ("waiting", "bob", "sem/builds")
    assert first.says.endswith("bob has waited for 1 h; sem/builds is held by ada (2)")
    assert second.agent == "cleo"
    assert second.says.endswith("bob is before it")
    assert "interlock why sem/builds" in second.remedy
    assert problems(onlooker(stage), held=9000.0, waiting=9000.0) == ()


def test_the_dead_are_told_with_what_they_were_doing(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=10.0)
    ada.run(ada.agents.status("busy", doing="task/t1"))
    stage.clock.advance(400.0)
    found = one(onlooker(stage))
    assert found.kind == "dead", "its report is over, so it is not silent as well"
    assert "lapsed while busy with task/t1, and is not cleared yet" in found.says


def test_who_lives_and_missed_three_paces_is_silent(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=3600.0)
    ada.run(ada.agents.status("busy", doing="task/t1"))
    stage.clock.advance(90.0)
    assert problems(onlooker(stage)) == ()
    stage.clock.advance(60.0)
    found = one(onlooker(stage))
    assert (found.kind, found.thing, found.agent) == ("silent", "agent/ada", "ada")
    assert "said it is busy with task/t1, but gave no sign of life for 2 min" in found.says
    assert found.since == stage.clock.wall() - 150.0
    ada.run(ada.context.keeper.run_due())
    assert problems(onlooker(stage)) == ()


def shell(stage: Testbed, metadata: object = None) -> Client:
    """A command in a session that another process began and nothing renews."""
    first = stage.client("ada", ttl=None)
    joined = first.run(first.agents.join(ttl=7200.0, metadata=metadata))
    command = stage.client("ada", ttl=None)
    command.run(command.context.resume(joined.session))
    return command


def reported(client: Client, state: str) -> Reported:
    outcome = client.run(client.agents.status(state))
    assert isinstance(outcome, Reported)
    return outcome


def beaten(client: Client) -> Renewed:
    outcome = client.run(client.agents.beat())
    assert isinstance(outcome, Renewed)
    return outcome


def test_a_script_that_missed_its_pace_by_the_time_of_the_dead_is_silent(stage: Testbed) -> None:
    ada = shell(stage)
    assert reported(ada, "building").pace == 30.0
    stage.clock.advance(325.0)
    assert problems(onlooker(stage)) == ()
    stage.clock.advance(10.0)
    found = one(onlooker(stage))
    assert (found.kind, found.agent) == ("silent", "ada")
    assert "said it is building, but gave no sign of life for 5 min" in found.says
    assert beaten(ada).pace == 30.0
    assert problems(onlooker(stage)) == ()
    (shown,) = onlooker(stage).run(onlooker(stage).agents.list())
    assert shown.heard == shown.last_heartbeat == stage.clock.wall()
    ada.run(ada.agents.status("idle"))
    stage.clock.advance(500.0)
    assert problems(onlooker(stage)) == (), "an idle one beats every five minutes"


def test_a_coding_agent_thinks_for_as_long_as_it_likes(stage: Testbed) -> None:
    ada = shell(stage, {"host": "claude"})
    assert (reported(ada, "busy").pace, beaten(ada).pace) == (0.0, 0.0)
    stage.clock.advance(3000.0)
    assert problems(onlooker(stage)) == ()


def test_a_wall_clock_that_is_wrong_silences_nobody(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=3600.0)
    ada.run(ada.agents.status("busy"))
    stage.clock.jump_wall(1000.0)
    assert problems(onlooker(stage)) == ()


def test_who_leaves_while_we_look_is_not_silent(stage: Testbed) -> None:
    steps = 1
    while True:
        ada = stage.client("ada", ttl=3600.0)
        ada.run(ada.agents.status("busy"))  # long ago, but it was heard of since
        for _ in range(4):
            stage.clock.advance(30.0)
            ada.run(ada.context.keeper.run_due())
        hand = Stepper(onlooker(stage).fleet.health(), stage.store, stage.clock)
        for _ in range(steps):
            hand.go()
        done = hand.done
        ada.run(ada.agents.leave())
        assert hand.run().result().problems == ()
        if done:
            break
        steps += 1
    assert steps > 3


def test_a_dead_waiter_is_no_waiter(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=9000.0), stage.client("bob", ttl=10.0)
    ada.run(ada.locks.acquire("merge"))
    bob.start(bob.locks.acquire("merge", wait=9000))
    stage.clock.advance(3601.0)
    assert problems(onlooker(stage), held=9000.0, dead_after=9000.0) == ()


def test_a_circle_that_stands_is_told(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody withdraws here, as a client might that does not look."""
    monkeypatch.setattr("interlock.runtime.deadlock.Graph.deadlock", lambda *_: None)
    ada, bob = stage.client("ada", ttl=900.0), stage.client("bob", ttl=900.0)
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b"))
    ada.start(ada.locks.acquire("b", wait=600))
    bob.start(bob.locks.acquire("a", wait=600))
    monkeypatch.undo()
    assert problems(onlooker(stage)) == (), "the waiter that closed it may be about to withdraw"
    stage.clock.advance(SETTLED + 1)
    found = one(onlooker(stage))
    assert found.kind == "deadlock"
    assert found.thing in ("lock/a and lock/b", "lock/b and lock/a")
    assert "(ada -> bob -> ada)" in found.says or "(bob -> ada -> bob)" in found.says
    assert found.cycle in (("ada", "bob", "ada"), ("bob", "ada", "bob"))


def test_a_wait_that_will_end_is_no_circle(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=900.0), stage.client("bob", ttl=900.0)
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b"))
    bob.start(bob.locks.acquire("a", wait=600))
    stage.clock.advance(SETTLED + 1)
    assert problems(onlooker(stage)) == ()


@pytest.mark.parametrize("steps", range(8))
def test_what_ends_while_we_look_is_neither_stale_nor_dead(stage: Testbed, steps: int) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=None)
    lock = bob.run(bob.locks.acquire("merge", ttl=900.0))
    assert isinstance(lock, LockAcquired)
    stage.clock.advance(29.0)
    ada.run(ada.agents.beat())
    stage.clock.advance(29.0)
    hand = Stepper(onlooker(stage).fleet.health(dead_after=0), stage.store, stage.clock)
    for _ in range(steps):
        assert hand.go()
    bob.run(bob.locks.release("merge", token=lock.token))
    ada.run(ada.agents.leave())
    assert hand.run().result().problems == ()


def test_a_log_far_above_its_limit_is_told(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = stage.client("ada")
    for _ in range(20):
        ada.run(ada.locks.acquire("merge"))
        ada.run(ada.locks.release("merge"))
    assert problems(onlooker(stage)) == ()
    limits = SealLimits(hot_entries=10, hot_bytes=0, newest=1, age=0.0, pressed=0.0)
    monkeypatch.setitem(LIMITS, stage.store.capabilities.engine, limits)
    found = one(onlooker(stage))
    assert (found.kind, found.thing) == ("record", "record")
    assert "interlock maintain" in found.remedy


def test_a_pass_changes_nothing(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=1.0)
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(1000.0)
    before = stage.store.read().revision
    assert len(problems(onlooker(stage))) == 2
    assert stage.store.read().revision == before


def test_a_pass_reads_no_more_than_its_bound(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = stage.client("ada", ttl=None)
    for number in range(3):
        ada.run(ada.locks.acquire(f"lock-{number}", ttl=10.0))
    stage.clock.advance(11.0)
    monkeypatch.setattr(health, "BOUND", 2)
    found = ada.run(ada.fleet.health())
    assert (len(found.problems), found.partial) == (2, True)
    monkeypatch.setattr(health, "BOUND", 3)
    assert ada.run(ada.fleet.health()).partial is False


def test_what_cannot_be_read_is_a_problem_and_hides_no_other(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("deploy"))
    for key in (keys.lock("merge"), keys.session("ses_1"), f"{keys.WAITS}x/y"):
        stage.store.commit(Txn(id=key, puts=(Put(key, b"{"),), quiet=True))
    stage.clock.advance(1.0)
    found = problems(onlooker(stage), held=0.0)
    assert {each.kind: each.thing for each in found}["stuck"] == "lock/deploy"
    said = [(each.says.split(" does")[0], each.remedy) for each in found if each.kind == "damaged"]
    assert said == [
        ("store: locks/merge", "restore a copy of the store"),
        ("store: sessions/ses_1", "restore a copy of the store"),
        ("store: waits/x/y", "run 'interlock maintain'"),
    ]


def test_the_same_on_every_store(url: str) -> None:
    with interlock.connect(url, agent="ada", join=False) as ada:
        ada.locks.acquire("merge", ttl=2)
        ada.semaphores.acquire("builds", capacity=3, weight=2, ttl=900)
        began = time.time()
        until(lambda: ada.health().problems, "the lapse of a grant")
        found = ada.health(held=0)
    assert isinstance(found, Health)
    kinds = [(each.kind, each.thing, each.agent) for each in found.problems]
    assert kinds == [("stale", "lock/merge", "ada"), ("stuck", "sem/builds", "ada")]
    assert all(abs((each.since or 0) - began) < 30 for each in found.problems)


def test_the_same_in_an_event_loop(tmp_path: Path) -> None:
    async def look() -> Health:
        async with (
            await aio.connect(str(tmp_path / "store.db"), agent="ada") as fleet,
            fleet.lock("merge"),
        ):
            return await fleet.health(held=0)

    (found,) = asyncio.run(look()).problems
    assert (found.kind, found.thing) == ("stuck", "lock/merge")


def test_pools_that_nobody_uses_are_no_problem(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.semaphores.resize("builds", 3))
    assert drive(health.HealthCheck(ada.runner).run(), stage.store).healthy


@with_git
def test_a_client_checks_its_store_as_the_doctor_does(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.locks.acquire("merge")
        found = fleet.check()
        assert found, [each for each in found.checks if each.verdict == "bad"]
        names = [each.name for each in found.checks]
        assert names[0] == "python"
        assert names[-5:] == ["integrity", "record", "clock", "stale grants", "lapsed sessions"]
        assert "writing" in names
        assert fleet.health().healthy


def test_a_client_of_an_event_loop_checks_its_store_likewise(tmp_path: Path) -> None:
    async def look() -> tuple[bool, bool]:
        async with await aio.connect(tmp_path / "store.db", agent="ada") as fleet:
            return bool(await fleet.check()), (await fleet.health()).healthy

    assert asyncio.run(look()) == (True, True)


def test_trouble_with_the_store_is_a_finding_of_the_check(stage: Testbed) -> None:
    ada = stage.client("ada")
    stage.store.commit(Txn(id="t", puts=(Put(keys.lock("bad"), b"garbage"),), quiet=True))
    found = ada.run(ada.fleet.check())
    assert not found
    assert [each.name for each in found.checks if each.verdict == "bad"] == ["integrity"]
