"""Schedules at a store with a clock that the test sets: runs, outages, wrong clocks, refusals."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.schedules import housekeeping, rules
from interlock.nouns.schedules import schedule as core
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

HOUR = 3600.0
START = 1_700_000_000.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "network"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    make = stage.client if request.param == "local" else stage.remote
    return make("ada", ttl=10_000_000.0)


def add(client: Client, name: str = "hourly", **more: Any) -> core.ScheduleAdded:
    terms = {"every": HOUR, **more}
    added = client.run(client.fleet.schedules.add(name, {"n": 1}, **terms))
    assert isinstance(added, core.ScheduleAdded), added
    return added


def look(client: Client) -> str:
    """Claim and complete the next task; its id, or nothing."""
    got = client.run(client.tasks.next(can=["*"]))
    if not isinstance(got, Claimed):
        return ""
    client.run(client.tasks.complete(got.task, token=got.token))
    return got.task


def looks(client: Client) -> list[str]:
    """All that is ready now."""
    found = []
    while name := look(client):
        found.append(name)
    return found


def shown(client: Client, name: str = "hourly") -> core.ScheduleView:
    view = client.run(client.fleet.schedules.show(name))
    assert isinstance(view, core.ScheduleView)
    return view


def under(store: Any, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in store.read(page).ranges[page]]


def test_a_run_is_published_at_its_time_and_carries_the_fields_of_its_task(
    stage: Testbed, ada: Client
) -> None:
    added = add(ada, title="Sweep", priority=2, requires=["gpu"], labels=["ops"], deadline=600)
    assert (added.next_run, added.task) == (START + HOUR, "hourly@2023-11-14T23:13:20Z")
    stage.clock.advance(HOUR - 1)
    assert look(ada) == ""
    stage.clock.advance(1)
    got = ada.run(ada.tasks.next(can=["gpu"]))
    assert isinstance(got, Claimed)
    assert (got.task, got.data, got.priority) == (added.task, {"n": 1}, 2)
    task: Any = ada.run(ada.tasks.show(added.task))
    assert (task.schedule, task.title, task.labels) == ("hourly", "Sweep", ("ops",))
    assert task.deadline == START + HOUR + 600
    view = shown(ada)
    assert (view.published, view.last_task, view.next_run) == (1, added.task, START + 2 * HOUR)
    assert (view.deadline_in, view.next_runs[0]) == (600, START + 2 * HOUR)
    assert audit(stage.store) == []


def test_a_waiting_worker_wakes_when_the_run_is_due(stage: Testbed, ada: Client) -> None:
    add(ada)
    bob = stage.client("bob", ttl=10_000_000.0)
    got = bob.run(bob.tasks.next(wait=2 * HOUR))
    assert isinstance(got, Claimed)
    assert 0 <= stage.clock.wall() - (START + HOUR) < 0.1


def test_a_waiting_worker_learns_of_an_earlier_schedule(stage: Testbed, ada: Client) -> None:
    add(ada, "late", every=100 * HOUR)
    bob = stage.client("bob", ttl=10_000_000.0)
    waits = bob.start(bob.tasks.next(wait=200 * HOUR))
    add(ada, "soon", every=2)
    waits.run()
    while not waits.done:
        stage.clock.advance(waits.wakes - stage.clock.monotonic())
        waits.run()
    assert isinstance(waits.result(), Claimed)
    assert stage.clock.wall() < START + 2.2


def idle_steps(schedules: int) -> list[str]:
    """What a waiting worker does in an hour, before the first schedule is due."""
    stage = Testbed()
    puts = [
        Put(keys.due_schedule(START + 2 * HOUR + number, f"s{number}"), b"{}")
        for number in range(schedules)
    ]
    stage.store.commit(Txn(id="txn_many", quiet=True, puts=tuple(puts)))
    bob = stage.client("bob", ttl=10_000_000.0)
    waits = bob.start(bob.tasks.next(wait=2 * HOUR))
    before = len(waits.steps)
    while waits.wakes < 1000.0 + HOUR:
        stage.clock.advance(waits.wakes - stage.clock.monotonic())
        waits.run()
    assert not waits.done
    return [type(step).__name__ for step in waits.steps[before:]]


def test_ten_thousand_schedules_cost_an_idle_worker_nothing_until_one_is_due() -> None:
    """It reads once in each nap, as it does without any schedule, and commits nothing."""
    without = idle_steps(0)
    assert set(without) == {"NextChanges", "Read"}
    assert len(without) < 2 * HOUR / 20 + 10
    assert idle_steps(1) == without
    assert idle_steps(10_000) == without


def test_a_claim_of_several_and_one_with_an_end_find_what_is_due(
    stage: Testbed, ada: Client
) -> None:
    for number in range(3):
        add(ada, f"s{number}")
    stage.clock.advance(HOUR)
    first: Any = ada.run(ada.tasks.next(limit=3))  # it publishes them first, and claims the best
    more: Any = ada.run(ada.tasks.next(limit=3))
    assert len({first.task, more.task, *[each.task for each in more.others]}) == 3
    stage.clock.advance(HOUR)
    done: Any = ada.run(ada.tasks.complete(first.task, token=first.token, then_next=True))
    assert isinstance(done.next, Claimed)
    assert done.next.task == "s0@2023-11-15T00:13:20Z"


@pytest.mark.parametrize(
    ("missed", "published", "lost"),
    [("once", 1, 4), ("all", 5, 0), ("none", 0, 5)],
)
def test_what_becomes_of_runs_that_were_missed(
    stage: Testbed, ada: Client, missed: str, published: int, lost: int
) -> None:
    add(ada, missed=missed)
    stage.clock.advance(5.5 * HOUR)
    found = looks(ada)
    assert len(found) == published
    assert found[-1:] == ["hourly@2023-11-15T03:13:20Z"][:published]
    view = shown(ada)
    assert (view.published, view.lost, view.next_run) == (published, lost, START + 6 * HOUR)
    stage.clock.advance(HOUR / 2)
    assert looks(ada) == ["hourly@2023-11-15T04:13:20Z"]


def test_of_all_missed_runs_the_last_hundred_are_published(stage: Testbed, ada: Client) -> None:
    add(ada, missed="all")
    stage.clock.advance(150.5 * HOUR)
    found = looks(ada)
    assert len(found) == len(set(found)) == 100
    assert shown(ada).next_run == START + 151 * HOUR
    assert shown(ada).lost >= 1


def test_a_run_that_cannot_be_published_stops_no_other_and_is_named(
    stage: Testbed, ada: Client
) -> None:
    taken = add(ada, "taken").task
    ada.run(ada.tasks.publish(taken, priority=9))
    add(ada, "needy", needs=["nothing-like-it"])
    add(ada, "fine")
    stage.clock.advance(HOUR)
    assert sorted(looks(ada)) == ["fine@2023-11-14T23:13:20Z", taken]
    health = ada.run(ada.fleet.health())
    said = {each.thing: each for each in health.problems if each.thing.startswith("schedule/")}
    assert set(said) == {"schedule/taken", "schedule/needy"}
    assert "did not publish" in said["schedule/taken"].says
    assert "needs nothing-like-it" in said["schedule/needy"].says
    why = ada.run(ada.fleet.why("schedule/needy"))
    assert why.blocked
    assert "nothing-like-it" in why.because
    ada.run(ada.tasks.publish("nothing-like-it", priority=0))
    stage.clock.advance(HOUR)
    assert len(looks(ada)) == 4
    assert not shown(ada, "needy").failure
    assert ada.run(ada.fleet.health()).healthy
    assert audit(stage.store) == []


def test_a_full_store_takes_the_commit_that_tries_a_schedule_again_later() -> None:
    """So ``maintain`` goes on after a schedule that such a store does not take."""
    assert rules.postpone("due/1", "s", 1.0).ends


def test_a_damaged_schedule_stops_no_other(stage: Testbed, ada: Client) -> None:
    add(ada, "broken")
    add(ada, "fine")
    stage.store.commit(Txn(id="txn_bad", quiet=True, puts=(Put(keys.schedule("broken"), b"?"),)))
    stage.clock.advance(HOUR)
    assert looks(ada) == ["fine@2023-11-14T23:13:20Z"]
    assert keys.due_schedule(START + HOUR + 300, "broken") in under(stage.store, keys.DUE)
    assert any(each.kind == "damaged" for each in ada.run(ada.fleet.health()).problems)


def test_a_client_whose_clock_is_ahead_publishes_nothing_early(stage: Testbed) -> None:
    """The engine's clock decides; the client neither tries without end nor spoils the next run."""
    ada = stage.client("ada", ttl=10_000_000.0)
    add(ada)
    ahead = stage.client("ahead", ttl=10_000_000.0)
    ahead.runner.clock = _Ahead(stage.clock, 10 * HOUR)
    for _ in range(3):
        assert look(ahead) == ""
    waits = ahead.start(ahead.tasks.next(wait=2 * HOUR))
    while not waits.done:
        stage.clock.advance(max(waits.wakes - stage.clock.monotonic(), 0.0))
        waits.run()
        assert len(waits.steps) < 2000
    assert isinstance(waits.result(), Claimed)
    assert stage.clock.wall() >= START + HOUR
    assert shown(ada).next_run == START + 2 * HOUR


def test_a_waiting_worker_notices_that_the_clock_was_set_ahead(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=10_000_000.0)
    add(ada)
    waits = ada.start(ada.tasks.next(wait=2 * HOUR))
    stage.clock.jump_wall(HOUR)
    began = stage.clock.monotonic()
    while not waits.done:
        stage.clock.advance(waits.wakes - stage.clock.monotonic())
        waits.run()
    assert isinstance(waits.result(), Claimed)
    assert stage.clock.monotonic() - began < 25


class _Ahead:
    """A clock whose wall side is ahead of another."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self.monotonic = clock.monotonic
        self.wall = lambda: clock.wall() + seconds


def test_a_machine_whose_clock_jumps_ahead_and_back_runs_nothing_twice(
    stage: Testbed, ada: Client
) -> None:
    add(ada, missed="all")
    stage.clock.advance(HOUR)
    first = looks(ada)
    stage.clock.jump_wall(3 * HOUR)
    ahead = looks(ada)
    assert len(ahead) == 3
    stage.clock.jump_wall(-3 * HOUR)
    assert looks(ada) == []
    problems = ada.run(ada.fleet.health()).problems
    assert [each.thing for each in problems] == ["schedule/hourly"]
    assert ada.run(ada.fleet.maintain()).moved == 1
    assert ada.run(ada.fleet.health()).healthy
    for _ in range(3):  # these were published when the clock was ahead
        stage.clock.advance(HOUR)
        assert looks(ada) == []
    stage.clock.advance(HOUR)
    after = looks(ada)
    assert len(after) == 1
    assert len({*first, *ahead, *after}) == 5
    assert shown(ada).published == 5


def test_a_client_whose_clock_is_behind_sets_no_schedule_back(stage: Testbed, ada: Client) -> None:
    add(ada)
    stage.clock.advance(HOUR)
    assert looks(ada) == ["hourly@2023-11-14T23:13:20Z"]
    behind = stage.client("behind", ttl=10_000_000.0)
    behind.runner.clock = _Ahead(stage.clock, -2 * HOUR)
    assert behind.run(behind.fleet.health()).healthy
    assert behind.run(behind.fleet.maintain()).moved == 0
    resumed = behind.run(behind.fleet.schedules.resume("hourly"))
    assert isinstance(resumed, core.ScheduleResumed)
    assert resumed.already
    assert shown(ada).next_run == START + 2 * HOUR


def test_all_of_many_schedules_are_read_by_one_pass_in_a_while(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "Range", partial(Range, limit=2))
    for name in ("a", "b", "c"):
        add(ada, name)

    def lose(name: str) -> None:
        entry = next(key for key in under(stage.store, keys.DUE) if key.endswith(f"-{name}"))
        stage.store.commit(Txn(id=f"txn_{stage.clock.wall()}", quiet=True, deletes=(entry,)))

    lose("c")
    assert ada.run(ada.fleet.maintain()).moved == 1, "all were read"
    lose("c")
    assert ada.run(ada.fleet.maintain()).moved == 0, "one page was read"
    stage.clock.advance(housekeeping.ALL_READ_EVERY)
    assert ada.run(ada.fleet.maintain()).moved == 1


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_a_run_is_given_up_while_the_last_task_is_open_if_the_schedule_says_so(
    stage: Testbed, ada: Client, overlap: str
) -> None:
    add(ada, overlap=overlap)
    stage.clock.advance(HOUR)
    running = ada.run(ada.tasks.next())
    assert isinstance(running, Claimed)
    stage.clock.advance(HOUR)
    second = look(ada)
    assert (second == "") == (overlap == "skip")
    assert (shown(ada).skipped, shown(ada).published) == ((1, 1) if overlap == "skip" else (0, 2))
    assert shown(ada).next_run == START + 3 * HOUR
    ada.run(ada.tasks.fail(running.task, token=running.token, retry=False))
    stage.clock.advance(HOUR)
    assert look(ada) == "hourly@2023-11-15T01:13:20Z"


def test_a_run_is_given_up_only_while_the_last_task_is_open_at_its_commit() -> None:
    """Wherever between the steps of a publisher the last task ends."""
    skipped = 0
    for number in count():
        stage = Testbed()
        ada, bob = (stage.remote(name, ttl=10_000_000.0) for name in ("ada", "bob"))
        add(ada, overlap="skip")
        stage.clock.advance(HOUR)
        running = ada.run(ada.tasks.next())
        assert isinstance(running, Claimed)
        stage.clock.advance(HOUR)
        publisher = Stepper(bob.fleet.maintain(), bob.store, stage.clock)
        for _ in range(number):
            publisher.go()
        over, skipped = publisher.done, shown(ada).skipped
        ada.run(ada.tasks.complete(running.task, token=running.token))
        publisher.run()
        assert (shown(ada).skipped, shown(ada).published) == (skipped, 2 - skipped), number
        assert audit(stage.store) == []
        if over:
            break
    assert skipped == 1
    assert number > 2


def test_maintain_publishes_what_is_due_and_puts_back_a_lost_entry(
    stage: Testbed, ada: Client
) -> None:
    add(ada)
    (entry,) = under(stage.store, keys.DUE)
    stage.store.commit(Txn(id="txn_lost", quiet=True, deletes=(entry,)))
    stage.clock.advance(HOUR)
    assert look(ada) == ""
    assert ada.run(ada.fleet.maintain()).moved == 2
    assert look(ada) == "hourly@2023-11-14T23:13:20Z"


def test_a_paused_schedule_publishes_nothing_and_goes_on_from_now(
    stage: Testbed, ada: Client
) -> None:
    add(ada, missed="all")
    assert ada.run(ada.fleet.schedules.pause("hourly", "not now"))
    assert under(stage.store, keys.DUE) == []
    again = ada.run(ada.fleet.schedules.pause("hourly"))
    assert isinstance(again, core.SchedulePaused)
    assert again.already
    stage.clock.advance(5.5 * HOUR)
    assert look(ada) == ""
    assert "not now" in ada.run(ada.fleet.why("schedule/hourly")).because
    resumed = ada.run(ada.fleet.schedules.resume("hourly"))
    assert isinstance(resumed, core.ScheduleResumed)
    assert resumed.next_run == START + 6 * HOUR
    stage.clock.advance(HOUR / 2)
    assert len(looks(ada)) == 1


def test_a_dropped_schedule_leaves_nothing_but_its_tasks(stage: Testbed, ada: Client) -> None:
    add(ada)
    stage.clock.advance(HOUR)
    assert look(ada)
    assert ada.run(ada.fleet.schedules.drop("hourly"))
    for prefix in (keys.DUE, keys.SCHEDULES, keys.SCHEDULE_TASKS):
        assert under(stage.store, prefix) == []
    assert isinstance(ada.run(ada.fleet.schedules.drop("hourly")), core.UnknownSchedule)
    assert isinstance(ada.run(ada.fleet.schedules.resume("hourly")), core.UnknownSchedule)
    assert isinstance(ada.run(ada.fleet.schedules.pause("hourly")), core.UnknownSchedule)
    assert isinstance(ada.run(ada.fleet.schedules.show("hourly")), core.UnknownSchedule)


def test_a_schedule_that_is_added_again_repeats_no_run(stage: Testbed, ada: Client) -> None:
    start = START + HOUR
    first = add(ada, start=f"{HOUR}s").task
    stage.clock.advance(HOUR)
    assert look(ada) == first
    ada.run(ada.fleet.schedules.drop("hourly"))
    stage.clock.jump_wall(-HOUR)
    assert add(ada, start=f"{HOUR}s").next_run == start
    stage.clock.advance(HOUR)
    assert look(ada) == ""
    assert not shown(ada).failure


def test_a_name_is_taken_once_unless_it_is_replaced(stage: Testbed, ada: Client) -> None:
    add(ada)
    again = ada.run(ada.fleet.schedules.add("hourly", every=5))
    assert isinstance(again, core.ScheduleExists)
    assert add(ada, every=60, replace=True).replaced
    assert under(stage.store, keys.DUE) == [keys.due_schedule(START + 60, "hourly")]


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"every": 60, "cron": "* * * * *"},
        {"every": 0},
        {"every": 1.5},
        {"every": 60, "zone": "Europe/Berlin"},
        {"cron": "* * * * *", "start": 60},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 0 31 2,4,6 *"},
        {"cron": "* * * * *", "zone": "Nowhere"},
        {"every": 60, "missed": "some"},
        {"every": 60, "requires": "gpu"},
        {"every": 60, "title": "two\nlines"},
    ],
)
def test_terms_that_make_no_schedule_are_refused(ada: Client, terms: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        ada.run(ada.fleet.schedules.add("odd", **terms))


@pytest.mark.parametrize("name", ["", "-x", "+x", "x" * 171, "a//b", "schedule/x", "task/x"])
def test_names_that_make_no_ids_of_tasks_are_refused(ada: Client, name: str) -> None:
    with pytest.raises(BadInput):
        ada.run(ada.fleet.schedules.add(name, every=60))


def test_lists_name_no_schedule_as_a_task(stage: Testbed, ada: Client) -> None:
    for number in range(3):
        add(ada, f"s{number}")
    listed = ada.run(ada.fleet.schedules.list(limit=2))
    assert [each.schedule for each in listed] == ["s0", "s1"]
    assert listed.more == "s1"
    assert [each.schedule for each in ada.run(ada.fleet.schedules.list(after="s1"))] == ["s2"]
    assert list(ada.run(ada.tasks.list())) == []


def test_the_history_of_a_schedule_names_its_tasks(stage: Testbed, ada: Client) -> None:
    task = add(ada).task
    stage.clock.advance(HOUR)
    look(ada)
    ada.run(ada.fleet.schedules.pause("hourly", "enough"))
    told = ada.run(ada.record.explain("schedule/hourly")).happenings
    assert [(each.what, each.says) for each in told] == [
        ("added", ""), ("published", task), ("paused", "enough"),
    ]  # fmt: skip


def test_a_host_without_the_time_zone_leaves_the_run_to_another(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock.nouns.schedules import timing

    add(ada, every=None, cron="0 * * * *", zone="Europe/Berlin")
    add(ada, "fine")
    with monkeypatch.context() as patch:
        patch.setattr(timing, "zone_of", _no_zone)
        stage.clock.advance(HOUR)
        assert looks(ada) == ["fine@2023-11-14T23:13:20Z"]
        assert "tzdata" in shown(ada).failure
    stage.clock.advance(301)
    assert looks(ada) == ["hourly@2023-11-14T23:00:00Z"]
    assert not shown(ada).failure


def _no_zone(name: str) -> Any:
    raise BadInput(f"this host knows no time zone {name}; install tzdata")
