"""A subscriber gets each event once, in order, with the data that it needs to begin."""

from __future__ import annotations

import pytest

from interlock.errors import BadInput, StoreBusy
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.history import TaskEventFeed
from interlock.nouns.tasks.task import EVENT_NAMES, TaskEvent
from interlock.store import Log
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def opened(
    client: Client,
    *events: str,
    prefix: str = "",
    can: tuple[str, ...] | None = None,
    after: int | None = None,
) -> TaskEventFeed:
    wanted = events or ("published",)
    feed = client.run(client.tasks.subscribe(events=wanted, prefix=prefix, can=can, after=after))
    assert isinstance(feed, TaskEventFeed)
    return feed


def came(client: Client, feed: TaskEventFeed) -> list[TaskEvent]:
    return list(client.run(feed.take(0)))


def told(client: Client, feed: TaskEventFeed) -> list[tuple[str, str]]:
    return [(event.event, event.task) for event in came(client, feed)]


def test_what_is_published_comes_with_what_it_is(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    feed = opened(bob)
    ada.run(ada.tasks.publish("t1", {"x": 1}, priority=2, requires=["rust"]))
    (event,) = came(bob, feed)
    assert (event.event, event.task, event.agent) == ("published", "t1", "ada")
    assert (event.data, event.priority, event.requires) == ({"x": 1}, 2, ("rust",))
    assert event.revision == stage.store.read().revision
    assert event.at == stage.clock.wall()


def test_a_listener_wakes_with_the_commit_and_not_by_looking(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = bob.start(opened(bob).take(None))
    assert waits.asleep
    assert waits.wakes == float("inf")
    ada.run(ada.tasks.publish("t1"))
    assert [event.task for event in waits.run().result()] == ["t1"]


def test_trouble_with_reading_what_came_loses_nothing(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    feed = opened(bob)
    ada.run(ada.tasks.publish("t1", {"x": 1}))
    hears = Stepper(feed.take(0), bob.store, bob.clock)
    hears.go()
    with pytest.raises(StoreBusy):
        hears.interrupt(StoreBusy("another process delays it")).result()
    ada.run(ada.tasks.publish("t2"))
    assert [event.data for event in came(bob, feed)] == [{"x": 1}]
    assert told(bob, feed) == [("published", "t2")]


def test_other_changes_let_it_sleep_on(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = bob.start(opened(bob).take(10))
    ada.run(ada.locks.acquire("merge"))
    assert not waits.run().done
    stage.clock.advance(10)
    assert waits.run().result() == ()


def test_the_whole_life_of_tasks_is_told_in_order(stage: Testbed) -> None:
    ada = stage.client("ada")
    feed = opened(ada, *EVENT_NAMES)
    ada.run(ada.tasks.publish("a", retries=0))
    ada.run(ada.tasks.publish("b", needs=["a"]))
    ada.run(ada.tasks.claim("a"))
    ada.run(ada.tasks.release("a"))
    ada.run(ada.tasks.claim("a"))
    ada.run(ada.tasks.fail("a", "broken"))
    ada.run(ada.tasks.retry("a"))
    ada.run(ada.tasks.next())
    ada.run(ada.tasks.complete("a"))
    ada.run(ada.tasks.cancel("b"))
    assert told(ada, feed) == [
        ("published", "a"),
        ("published", "b"),
        ("claimed", "a"),
        ("released", "a"),
        ("claimed", "a"),
        ("dead", "a"),
        ("retried", "a"),
        ("claimed", "a"),
        ("completed", "a"),
        ("ready", "b"),
        ("cancelled", "b"),
    ]


def test_only_what_was_asked_for_is_told(stage: Testbed) -> None:
    ada = stage.client("ada")
    rust = opened(ada, can=("rust", "gpu"))
    nothing = opened(ada, can=())
    docs = opened(ada, "published", "claimed", prefix="docs/")
    claims = opened(ada, "claimed", can=("rust",))
    for task, requires in (("docs/a", []), ("b", ["rust"]), ("c", ["rust", "python"])):
        ada.run(ada.tasks.publish(task, requires=requires))
        ada.run(ada.tasks.claim(task))
    assert told(ada, rust) == [("published", "docs/a"), ("published", "b")]
    assert told(ada, nothing) == [("published", "docs/a")]
    assert told(ada, docs) == [("published", "docs/a"), ("claimed", "docs/a")]
    assert told(ada, claims) == [("claimed", "docs/a"), ("claimed", "b")]


def test_after_a_revision_nothing_is_missed_and_nothing_is_told_twice(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.publish("t2"))
    first, second = came(ada, opened(ada, after=0))
    assert (first.task, second.task) == ("t1", "t2")
    assert told(ada, opened(ada, after=first.revision)) == [("published", "t2")]


def test_when_history_is_gone_what_is_ready_is_told(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("taken"))
    for number in range(150):
        ada.run(ada.tasks.publish(f"t{number:03d}", number))
    ada.run(ada.tasks.publish("not-ours", requires=["gpu"]))
    ada.run(ada.tasks.claim("taken"))
    todo, life = opened(ada, after=1, can=()), opened(ada, "completed", after=1)
    last = stage.store.read(Log(last=True, limit=1)).revision
    stage.store.trim(last)
    found: list[TaskEvent] = []
    while some := came(ada, todo):
        found += some
    assert [event.task for event in found] == [f"t{number:03d}" for number in range(150)]
    assert {event.event for event in found} == {"ready"}
    assert found[7].data == 7
    (missed,) = came(ada, life)
    assert (missed.event, missed.task) == ("missed", "")
    ada.run(ada.tasks.publish("later"))
    assert told(ada, todo) == [("published", "later")]


def test_batches_of_an_import_are_nobodys_business(stage: Testbed) -> None:
    ada = stage.client("ada")
    feed = opened(ada)
    spec = core.Spec(at=stage.clock.wall())
    ada.run(ada.context.tasks.publish(ada.context.me().actor, "+batch", spec))
    ada.run(ada.tasks.publish("t1"))
    assert told(ada, feed) == [("published", "t1")]


def test_wrong_words_are_refused_with_the_right_ones(stage: Testbed) -> None:
    ada = stage.client("ada")
    with pytest.raises(BadInput, match="'finished'; there are: published, ready"):
        ada.run(ada.tasks.subscribe(events=["finished"]))
    with pytest.raises(BadInput, match="put brackets around 'published'"):
        ada.run(ada.tasks.subscribe(events="published"))
    with pytest.raises(BadInput, match="no event is named"):
        ada.run(ada.tasks.subscribe(events=[]))
    with pytest.raises(BadInput, match="is out of bounds"):
        ada.run(ada.tasks.subscribe(events=["ready"], after=-1))


def test_without_a_choice_all_events_come_as_in_the_command(stage: Testbed) -> None:
    ada = stage.client("ada")
    feed = ada.run(ada.tasks.subscribe(after=0))
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    ada.run(ada.tasks.complete("t1"))
    assert {"published", "claimed", "completed"} <= {each.event for each in ada.run(feed.take(0))}
    feed.close()
