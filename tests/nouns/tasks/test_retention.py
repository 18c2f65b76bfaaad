"""Ended tasks are deleted in time, with all their items, and none that a task still needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count, product
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.tasks import task_truths

import interlock
from interlock.core import keys
from interlock.errors import BadInput, StoreBusy
from interlock.nouns.tasks import retention
from interlock.nouns.tasks.retention import TaskRetention
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    Imported,
    NoTask,
    PlanExists,
    Published,
    Retried,
    TaskCompleted,
    TaskExists,
    TaskNotOwner,
)
from interlock.runtime.identity import Actor
from interlock.runtime.retention import RetentionLimits
from interlock.steps import Op, Read
from interlock.store import Log, Put, Range, Txn
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Stepper, Testbed

DAY = 86400.0
LONG = 91 * DAY


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    """At no session, which a clock that is moved by months would end."""
    return stage.client("ada", ttl=None)


def done(client: Client, *tasks: str, **terms: Any) -> None:
    for task in tasks:
        client.run(client.tasks.publish(task, **terms))
        complete(client, task)


def complete(client: Client, task: str) -> int:
    got = client.run(client.tasks.claim(task, ttl=60))
    assert isinstance(got, Claimed)
    assert isinstance(
        client.run(client.tasks.complete(task, token=got.token, result=1)), TaskCompleted
    )
    return got.token or 0


def cancelled(client: Client, *tasks: str) -> None:
    for task in tasks:
        client.run(client.tasks.publish(task))
        client.run(client.tasks.cancel(task))


def pass_time(stage: Testbed, client: Client, seconds: float = LONG) -> None:
    """Let time pass, and another client write then: no client trusts its own clock alone."""
    stage.clock.advance(seconds)
    client.run(client.locks.acquire("merge", ttl=60))
    client.run(client.locks.release("merge"))


def maintained(client: Client) -> int:
    return client.run(client.fleet.maintain()).forgotten_tasks


def standing(stage: Testbed) -> list[str]:
    truths = task_truths.look(stage.store)
    assert task_truths.complaints(truths) == []
    return sorted(truths.statuses)


def sweep(client: Client, keep: RetentionLimits | None = None) -> Op[retention.TasksDeleted]:
    return TaskRetention(client.runner, keep or RetentionLimits(age=1.0, count=100)).run(
        client.context.identity.actor
    )


# ---- what goes, and when ------------------------------------------------------------------------


def test_what_is_over_goes_after_90_days_with_all_that_is_its(stage: Testbed, ada: Client) -> None:
    done(ada, "done")
    cancelled(ada, "cancelled")
    ada.run(ada.tasks.publish("dead", retries=0, deadline=5))
    stage.clock.advance(6)
    assert maintained(ada) == 0, "it became a dead letter just now"
    ada.run(ada.tasks.publish("open"))
    stage.clock.advance(89 * DAY)
    assert maintained(ada) == 0
    stage.clock.advance(2 * DAY)
    assert maintained(ada) == 3
    assert standing(stage) == ["open"]
    left = stage.store.read(page := Range("")).ranges[page]
    told = {item.key for item in left if not item.key.startswith("log/")}
    assert {*map(keys.data, ["open"])} | {keys.status("open")} <= told
    assert not any(word in key for key in told for word in ("done", "cancelled", "dead"))
    assert audit(stage.store) == []
    assert maintained(ada) == 0


def test_of_those_that_are_over_only_so_many_stay_those_that_ended_last(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_KEPT", "2")
    done(ada, "d", "a")
    cancelled(ada, "c")
    done(ada, "e", "b")
    assert maintained(ada) == 3
    assert standing(stage) == ["b", "e"]


def test_the_age_is_a_setting(stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_KEEP", "1h")
    done(ada, "t")
    stage.clock.advance(3599)
    assert maintained(ada) == 0
    stage.clock.advance(2)
    assert maintained(ada) == 1


def test_a_pass_is_bounded_and_says_what_is_left(stage: Testbed, ada: Client) -> None:
    done(ada, *[f"t{number}" for number in range(6)])
    stage.clock.advance(LONG)
    again = TaskRetention(ada.runner, RetentionLimits(age=DAY, count=100))
    assert ada.run(again.run(Actor(), bound=4)) == retention.TasksDeleted(forgotten=4, left=2)
    assert ada.run(again.run(Actor(), bound=4)) == retention.TasksDeleted(forgotten=2)


def test_a_commit_has_no_more_operations_than_the_engine_takes(stage: Testbed, ada: Client) -> None:
    done(ada, *[f"t{number}" for number in range(9)])
    cancelled(ada, *[f"c{number}" for number in range(9)])
    pass_time(stage, ada)
    small = stage.remote("bob", ttl=None)
    small.runner.capabilities = replace(small.runner.capabilities, max_operations=26)
    assert small.run(sweep(small)).forgotten == 18
    assert standing(stage) == []


# ---- clocks that are wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
def test_whoever_is_ahead_of_everybody_else_lets_go_of_nothing_that_is_young(
    stage: Testbed, ada: Client, *, busy: bool
) -> None:
    bob, ahead = stage.client("bob", ttl=None), stage.client("ahead", ttl=None)
    done(ada, "t1")
    done(bob, "t2")
    cancelled(bob, "t3")
    stage.clock.jump_wall(100 * DAY)
    if busy:
        done(ahead, "t4")
        again = stage.client("ahead", ttl=None)
        done(again, "t5")
    assert maintained(ahead) == 0
    assert ahead.run(sweep(ahead, RetentionLimits(age=90 * DAY, count=100))).forgotten == 0
    stage.clock.jump_wall(-100 * DAY)
    assert {"t1", "t2", "t3"} <= {*standing(stage)}


def test_whoever_is_ahead_looks_at_the_entries_of_others_before_it_writes_many(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_NEWEST", Log(limit=1, last=True))
    ahead = stage.client("ahead", ttl=None)
    ada.run(ada.tasks.publish("t0"))
    ada.run(ada.tasks.claim("t0", ttl=60))
    stage.clock.advance(61)
    done(ada, "t1")
    stage.clock.jump_wall(100 * DAY)
    told = ahead.run(ahead.fleet.maintain())
    assert (told.reclaimed, told.forgotten_tasks) == (1, 0)


def test_what_a_slow_clock_ended_stays_though_the_others_of_its_page_ended_later(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "FIRST_PAGE", 2)
    monkeypatch.setattr(retention, "MOST_PAGE", 2)
    done(ada, "t2")
    slow = stage.client("slow", ttl=None)
    stage.clock.jump_wall(-100 * DAY)
    done(slow, "t1")
    stage.clock.jump_wall(100 * DAY)
    assert maintained(ada) == 0
    assert standing(stage) == ["t1", "t2"]


def test_what_a_clock_saw_that_is_ahead_keeps_nobody_from_looking(
    stage: Testbed, ada: Client, looked: list[int]
) -> None:
    keep = RetentionLimits(age=100 * DAY, count=700)
    fill(stage, 600, since=stage.clock.wall())
    stage.clock.jump_wall(5 * DAY)
    ada.run(sweep(ada, keep))
    stage.clock.jump_wall(-5 * DAY)
    looked.clear()
    ada.run(sweep(ada, keep))
    assert sum(looked) == 1200


# ---- what is needed -----------------------------------------------------------------------------


def test_what_waits_for_another_task_goes_on_though_its_need_was_forgotten(
    stage: Testbed, ada: Client
) -> None:
    done(ada, "first", "last")
    ada.run(ada.tasks.publish("open"))
    ada.run(ada.tasks.publish("all", needs=["first", "open", "last"]))
    stage.clock.advance(LONG)
    assert maintained(ada) == 2
    assert ada.run(ada.fleet.why("all")).because.startswith("it needs open")
    complete(ada, "open")
    assert isinstance(ada.run(ada.tasks.claim("all", ttl=60)), Claimed)
    assert standing(stage) == ["all", "open"]


def test_what_died_can_be_sent_back_though_its_needs_were_forgotten(
    stage: Testbed, ada: Client
) -> None:
    done(ada, "need")
    ada.run(ada.tasks.publish("t", needs=["need"], not_before=LONG))
    stage.clock.advance(LONG + 1)
    assert maintained(ada) == 1
    ada.run(ada.tasks.cancel("t"))
    assert ada.run(ada.tasks.retry("t")) == Retried(task="t", state="pending")


def test_what_failed_stays_while_a_task_needs_it_that_is_not_complete(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("open"))
    ada.run(ada.tasks.publish("broken"))
    ada.run(ada.tasks.publish("t", needs=["open", "broken"]))
    ada.run(ada.tasks.cancel("broken"))
    stage.clock.advance(LONG)
    assert maintained(ada) == 0
    ada.run(ada.tasks.cancel("t"))
    assert maintained(ada) == 0, "it may be sent back"
    stage.clock.advance(LONG)
    assert maintained(ada) == 1
    assert standing(stage) == ["broken", "open"]
    assert maintained(ada) == 1
    assert standing(stage) == ["open"]


def test_what_hangs_on_a_need_that_was_completed_is_worked_off_before_that_goes(
    stage: Testbed,
) -> None:
    ada = stage.remote("ada", ttl=None)
    ada.runner.capabilities = replace(ada.runner.capabilities, max_operations=30)
    ada.run(ada.tasks.publish("root"))
    for number in range(9):
        ada.run(ada.tasks.publish(f"leaf{number}", needs=["root"]))
    got = ada.run(ada.tasks.claim("root", ttl=60))
    assert isinstance(got, Claimed)
    ada.network.script(["crash after"])
    with pytest.raises(Crash):
        ada.run(ada.tasks.complete("root", token=got.token))
    heir = stage.client("heir", ttl=None)
    ada.network.revive()
    pass_time(stage, ada)
    assert heir.run(sweep(heir)).forgotten == 0
    heir.run(heir.context.tasks.housekeeping.drain(Actor(), "root"))
    assert heir.run(sweep(heir)).forgotten == 1
    assert "root" not in standing(stage)


def test_nothing_that_failed_goes_while_a_plan_is_being_imported(
    stage: Testbed, ada: Client
) -> None:
    cancelled(ada, "broken")
    stage.clock.advance(LONG)
    struck = stage.remote("bob", ttl=None)
    struck.runner.capabilities = replace(struck.runner.capabilities, max_operations=36)
    plan: list[dict[str, object]] = [
        {"id": f"t{n}", "needs": ["broken"] if n == 8 else []} for n in range(9)
    ]
    struck.network.script([None, "crash before"])
    with pytest.raises(Crash):
        struck.run(struck.tasks.publish_all(plan))
    assert maintained(ada) == 0
    ada.run(ada.tasks.publish_all(plan))
    assert maintained(ada) == 0
    assert "broken" in standing(stage)


def test_nothing_that_failed_goes_while_a_task_cannot_be_read_that_may_need_it(
    stage: Testbed, ada: Client
) -> None:
    cancelled(ada, "broken")
    done(ada, "done")
    ada.run(ada.tasks.publish("t", needs=["broken"]))
    stage.store.commit(Txn(id="txn_1", puts=(Put(keys.data("t"), b"{"),), quiet=True))
    stage.clock.advance(LONG)
    assert maintained(ada) == 1
    left = stage.store.read(keys.status("broken"), keys.status("done"))
    assert left[keys.status("broken")] is not None
    assert left[keys.status("done")] is None


def test_a_plan_that_was_imported_long_ago_is_imported_anew(stage: Testbed, ada: Client) -> None:
    plan: list[dict[str, object]] = [{"id": "a"}, {"id": "b", "needs": ["a"]}]
    ada.run(ada.tasks.publish_all(plan))
    complete(ada, "a")
    assert isinstance(ada.run(ada.tasks.publish_all(plan)), PlanExists)
    complete(ada, "b")
    stage.clock.advance(LONG)
    assert maintained(ada) == 3, "two tasks, and the mark that they were imported"
    assert isinstance(ada.run(ada.tasks.publish_all(plan)), Imported)


@pytest.mark.parametrize("publish", ["task", "plan", "large plan"])
def test_whoever_publishes_what_needs_a_failed_task_meets_it_or_is_told(publish: str) -> None:
    """However the steps of the two come between each other."""
    for first, then in product(range(40), range(0, 24, 3 if publish == "large plan" else 1)):
        stage = Testbed()
        ada, bob = stage.remote("ada", ttl=None), stage.remote("bob", ttl=None)
        ada.run(ada.tasks.publish("open"))
        cancelled(ada, "broken")
        stage.clock.advance(LONG)
        bob.runner.capabilities = replace(bob.runner.capabilities, max_operations=36)
        forgets, publishes = _hand(ada, sweep(ada)), _hand(bob, _publishing(bob, publish))
        over = _go(forgets, first), _go(publishes, then)
        forgets.run().result()
        try:
            publishes.run().result()
        except BadInput:
            assert "broken" not in standing(stage)
        else:
            assert {"broken", "t0"} <= {*standing(stage)}, (first, then)
        if all(over):
            return
    raise AssertionError("both are over before that")


@pytest.mark.parametrize("publish", ["task", "plan", "large plan"])
def test_whoever_publishes_what_needs_a_task_that_fails_and_goes_meanwhile_is_told(
    publish: str,
) -> None:
    """It was open when its publisher read it, so no mark kept it."""
    for first, then in product(range(10), range(24)):
        stage = Testbed()
        ada, bob = stage.remote("ada", ttl=None), stage.remote("bob", ttl=None)
        ada.run(ada.tasks.publish("open"))
        ada.run(ada.tasks.publish("broken"))
        bob.runner.capabilities = replace(bob.runner.capabilities, max_operations=36)
        forgets = _hand(ada, sweep(ada, RetentionLimits(age=DAY, count=0)))
        publishes = _hand(bob, _publishing(bob, publish))
        _go(publishes, first)
        ada.run(ada.tasks.cancel("broken"))
        _go(forgets, then)
        try:
            publishes.run().result()
        except BadInput:
            forgets.run().result()
            assert standing(stage) == ["open"], (first, then)
        else:
            forgets.run().result()
            assert {"broken", "t0"} <= {*standing(stage)}, (first, then)


def _publishing(client: Client, what: str) -> Op[Any]:
    if what == "task":
        return client.tasks.publish("t0", needs=["open", "broken"])
    number = 2 if what == "plan" else 7
    plan = [{"id": f"t{n}", "needs": ["open", "broken"]} for n in range(number)]
    return client.tasks.publish_all(plan)


def _hand(client: Client, op: Op[Any]) -> Stepper[Any]:
    return Stepper(op, client.store, client.clock)


def _go(hand: Stepper[Any], steps: int) -> bool:
    for _ in range(steps):
        hand.go()
    return hand.done


# ---- what is known of it afterwards -------------------------------------------------------------


def test_an_id_that_was_forgotten_is_free_and_old_claims_do_not_count_for_the_new_task(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t"))
    token = complete(ada, "t")
    assert isinstance(ada.run(ada.tasks.publish("t")), TaskExists)
    stage.clock.advance(LONG)
    assert maintained(ada) == 1
    assert ada.run(ada.tasks.publish("t")) == Published(task="t")
    assert isinstance(ada.run(ada.tasks.complete("t", token=token)), TaskNotOwner)
    assert isinstance(ada.run(ada.tasks.claim("t", ttl=60)), Claimed)


def test_a_task_needs_what_was_there_before_it_and_not_what_has_that_name_now(
    stage: Testbed, ada: Client
) -> None:
    done(ada, "need")
    ada.run(ada.tasks.publish("open"))
    ada.run(ada.tasks.publish("t", needs=["open", "need"]))
    stage.clock.advance(LONG)
    assert maintained(ada) == 1
    ada.run(ada.tasks.publish("need", needs=["t"]))
    ada.run(ada.tasks.cancel("t"))
    assert ada.run(ada.tasks.retry("t")) == Retried(task="t", state="blocked")
    assert [each.task for each in ada.run(ada.fleet.why("t")).needs] == ["open"]
    complete(ada, "open")
    complete(ada, "t")
    complete(ada, "need")
    assert standing(stage) == ["need", "open", "t"]


def test_a_wait_is_no_circle_by_a_task_that_has_the_name_of_what_was_needed(
    stage: Testbed, ada: Client
) -> None:
    done(ada, "need")
    ada.run(ada.tasks.publish("open"))
    ada.run(ada.tasks.publish("t", needs=["open", "need"]))
    stage.clock.advance(LONG)
    assert maintained(ada) == 1
    ada.run(ada.tasks.publish("need"))
    one, two = stage.client("one", ttl=900), stage.client("two", ttl=900)
    one.run(one.tasks.claim("need"))
    two.run(two.tasks.claim("open"))
    waits = one.start(one.tasks.claim("t", wait=600))
    assert waits.asleep, "two completes what it needs, and one is not in the way"


def test_the_record_tells_of_a_task_that_was_forgotten(stage: Testbed, ada: Client) -> None:
    done(ada, "t", "other")
    stage.clock.advance(LONG)
    maintained(ada)
    told = [each.what for each in ada.run(ada.record.explain("task/t")).happenings]
    assert told == ["published", "claimed", "completed", "forgotten"]
    shown = ada.run(ada.tasks.show("t"))
    assert isinstance(shown, NoTask)
    assert shown.state == "unknown"
    assert "record explain task/t" in shown.reason
    with pytest.raises(BadInput, match="leave out"):
        ada.run(ada.tasks.publish("next", needs=["t"]))


def test_nobody_complains_about_what_was_forgotten(stage: Testbed, ada: Client) -> None:
    cancelled(ada, "broken")
    done(ada, "need")
    ada.run(ada.tasks.publish("open", not_before=2 * LONG))
    ada.run(ada.tasks.publish("t", needs=["open", "need"]))
    stage.clock.advance(LONG)
    assert maintained(ada) == 2
    health = ada.run(ada.fleet.health())
    assert health.healthy, health.problems
    assert audit(stage.store) == []


# ---- who does it, and what it costs -------------------------------------------------------------


@pytest.fixture
def looked(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each read of tasks brought."""
    found: list[int] = []
    read = stage.store.read

    def counted(*refs: Any, **how: Any) -> Any:
        snapshot = read(*refs, **how)
        found.extend(len(snapshot.ranges[ref]) for ref in refs if isinstance(ref, Range))
        return snapshot

    monkeypatch.setattr(stage.store, "read", counted)
    return found


def fill(stage: Testbed, number: int, since: float = 1.0) -> None:
    """Many tasks that are over, all at once."""
    puts = [
        Put(key(f"t{n:05d}"), value)
        for n in range(number)
        for key, value in (
            (keys.data, b'{"at":0.0}'),
            (keys.status, b'{"state":"complete","since":%f,"by":"ada"}' % since),
        )
    ]
    stage.store.commit(Txn(id="txn_1", puts=tuple(puts), quiet=True))


def test_a_part_looks_at_a_thousand_items_and_the_next_one_goes_on_there(
    stage: Testbed, ada: Client, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "random_key", lambda *_: "")
    fill(stage, 1500)
    some = TaskRetention(ada.runner, RetentionLimits(age=100 * 366 * DAY, count=10_000))
    seen = []
    for _ in range(4):
        looked.clear()
        assert not ada.run(some.some(Actor()))
        seen.append(sum(looked))
    assert sum(seen) == 3000
    assert max(seen) <= retention.SOME_READ
    looked.clear()
    revision = stage.store.read().revision
    assert not ada.run(some.some(Actor()))
    assert sum(looked) == 0, "nothing can be old enough, nor can too many have come"
    assert stage.store.read().revision == revision


def test_what_one_saw_with_effort_no_other_has_to_see_again(
    stage: Testbed, ada: Client, looked: list[int]
) -> None:
    fill(stage, 600)
    keep = RetentionLimits(age=stage.clock.wall() + DAY, count=610)
    assert ada.run(sweep(ada, keep)).forgotten == 0
    assert sum(looked) == 1200
    bob = stage.client("bob", ttl=None)
    looked.clear()
    assert bob.run(sweep(bob, keep)).forgotten == 0
    assert not bob.run(TaskRetention(bob.runner, keep).some(Actor()))
    assert sum(looked) == 0
    pass_time(stage, ada, DAY + 2)
    assert bob.run(sweep(bob, keep)).forgotten == 600


def test_whoever_saw_that_what_failed_is_needed_does_not_look_again_at_once(
    stage: Testbed, ada: Client, looked: list[int]
) -> None:
    cancelled(ada, "broken")
    ada.run(ada.tasks.publish("t", needs=["broken"]))
    stage.clock.advance(LONG)
    some = TaskRetention(ada.runner, RetentionLimits(age=DAY, count=1000))
    for _ in range(3):  # begins anywhere, suspects it, and finds who needs it
        ada.run(some.some(Actor()))
    looked.clear()
    ada.run(some.some(Actor()))
    assert sum(looked) == 0
    stage.clock.advance(DAY / 64)
    ada.run(some.some(Actor()))
    assert sum(looked) == 4


def test_parts_let_go_of_everything_in_time_and_say_when_there_is_more(
    stage: Testbed, ada: Client
) -> None:
    fill(stage, 1500)
    stage.clock.advance(LONG)
    some = TaskRetention(ada.runner, RetentionLimits(age=DAY, count=100))
    parts = [ada.run(some.some(Actor())) for _ in range(30)]
    assert sum(parts) >= 1500 // (retention.SOME + retention.SOME_PAGE // 2)
    assert not parts[-1]
    assert standing(stage) == []


def test_whoever_works_a_lot_lets_go_of_what_is_over_now_and_then(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_KEPT", "5")
    worker = stage.client("worker", ttl=None)
    done(worker, *[f"t{number}" for number in range(12)])
    worker.context.housekeeping.passes = {"broken": _broken, **worker.context.housekeeping.passes}
    for _ in range(4):  # begins anywhere, counts, and deletes
        worker.context.housekeeping.due = True
        while worker.context.housekeeping.due:
            worker.run(worker.context.keeper.run_due())
        stage.clock.advance(2)
    assert standing(stage) == ["t10", "t11", "t7", "t8", "t9"]


def _broken(_who: Actor) -> Op[bool]:
    """Something else that is to be done now and then, and cannot be."""
    yield from ()
    raise StoreBusy("others are quicker")


# ---- struck at any commit -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
def test_a_task_goes_with_all_that_is_its_or_not_at_all(fault: Fault) -> None:
    for commit in count():
        stage = Testbed()
        ada = stage.client("ada", ttl=None)
        done(ada, *[f"t{number}" for number in range(5)])
        cancelled(ada, *[f"c{number}" for number in range(5)])
        pass_time(stage, ada)
        struck = stage.remote("struck", ttl=None)
        struck.runner.capabilities = replace(struck.runner.capabilities, max_operations=30)
        struck.network.script([None] * commit + [fault])
        hit = _struck(lambda: struck.run(sweep(struck)))  # noqa: B023 - called at once
        standing(stage)
        if hit:
            struck.network.revive()
            struck.network.deliver()
        ada.run(sweep(ada))
        assert standing(stage) == []
        assert audit(stage.store) == []
        if not hit and not struck.network.drawn:
            assert commit >= 6
            return


def _struck(act: Callable[[], object]) -> bool:
    try:
        act()
    except Crash:
        return True
    return False


# ---- on every engine ----------------------------------------------------------------------------


def test_what_one_saw_no_other_sees_again_on_every_engine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a revision may be a time, and count no commits."""
    monkeypatch.setattr(retention, "_LONG", 0)
    keep = RetentionLimits(age=DAY, count=12)
    with closing(open_store(url)) as store:
        ada, bob = (Testbed().client(name, ttl=None, store=store) for name in ("ada", "bob"))
        done(ada, *[f"t{number}" for number in range(6)])
        assert _walks(ada, keep)
        assert not _walks(bob, keep)
        done(ada, "t6", "t7", "t8")
        assert _walks(bob, keep)


def _walks(client: Client, keep: RetentionLimits) -> bool:
    """Whether the sweep reads tasks."""
    steps = _hand(client, sweep(client, keep)).run().steps
    refs = [ref for step in steps if isinstance(step, Read) for ref in step.refs]
    return any(isinstance(ref, Range) for ref in refs)


def test_what_is_over_goes_on_every_engine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_KEPT", "1")
    with interlock.connect(url, agent="ada") as fleet:
        for number in range(30):
            fleet.tasks.publish(f"t{number}")
        fleet.tasks.publish("open")
        fleet.tasks.publish("all", needs=["t3", "open", "t4"])
        for number in range(30):
            claimed = fleet.tasks.claim(f"t{number}")
            assert isinstance(claimed, Claimed)
            fleet.tasks.complete(f"t{number}", token=claimed.token)
        fleet.tasks.publish("broken")
        fleet.tasks.cancel("broken")
        assert fleet.maintain().forgotten_tasks == 30
        left = [each.task for each in fleet.tasks.list(state=["complete", "failed"]).tasks]
        assert left == ["broken"]
        assert fleet.maintain().forgotten_tasks == 0
        claimed = fleet.tasks.claim("open")
        assert isinstance(claimed, Claimed)
        fleet.tasks.complete("open", token=claimed.token)
        assert isinstance(fleet.tasks.claim("all"), Claimed)
        assert fleet.record.verify().integrity == "ok"
