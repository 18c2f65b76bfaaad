"""One client whose wall clock is wrong, by hours or a year, ends and deletes nothing of others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

import interlock
from interlock.clock import SystemClock
from interlock.core import keys
from interlock.nouns.messages.query import QueryAnswered
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask
from interlock.runtime.retention_clock import earlier_time
from interlock.store import Put, Range, Store, Txn
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.testbed import Testbed

HOUR, YEAR = 3600.0, 365 * 86400.0
KEPT = (keys.READ, keys.MESSAGES, keys.IDS, keys.TOPICS, keys.QUERIES, keys.TASKS, keys.LOGS)
WRONG = pytest.mark.parametrize("by", [2 * HOUR, YEAR, -2 * HOUR, -YEAR])


class Wrong(SystemClock):
    """The clock of a machine that was set wrongly; durations are right on it."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self._by = by

    def wall(self) -> float:
        return super().wall() + self._by


@pytest.fixture
def ada(url: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(url, agent="ada") as fleet:
        yield fleet


def wrong(url: str, by: float) -> interlock.Fleet:
    return interlock.connect(url, agent="wrong", clock=Wrong(by))


@WRONG
def test_no_task_of_others_dies_of_it(url: str, ada: interlock.Fleet, by: float) -> None:
    for number in range(4):
        ada.tasks.publish(f"t{number}", deadline=HOUR)
    with wrong(url, by) as fleet:
        assert isinstance(got := fleet.tasks.next(), Claimed)
        assert isinstance(fleet.tasks.claim("t1"), Claimed)
        fleet.maintain()
        assert got.task == "t0"
    states = {each.task: each.state for each in ada.tasks.list().tasks}
    assert (states["t2"], states["t3"]) == ("pending", "pending")
    assert isinstance(ada.tasks.next(), Claimed)


@pytest.mark.parametrize("by", [-2 * HOUR, YEAR])
def test_nobody_begins_a_task_too_late(url: str, ada: interlock.Fleet, by: float) -> None:
    ada.tasks.publish("late", deadline=0.5)
    ada.tasks.publish("later", deadline=HOUR)
    with closing(open_store(url)) as store:
        ends = time.monotonic() + 30
        while store.read(keys.deadline("late"))[keys.deadline("late")] is not None:
            assert time.monotonic() < ends
            time.sleep(0.02)
    with wrong(url, by) as fleet:
        assert isinstance(got := fleet.tasks.next(), Claimed)
        assert got.task == "later"
        assert isinstance(fleet.tasks.claim("late"), NoTask)
    assert ada.tasks.show("late").state == "dead"


def test_a_task_of_an_older_version_has_its_deadline_by_the_wall_clock() -> None:
    """An older client puts no key with it, though a newer one did with a task before."""
    stage = Testbed()
    ada = stage.client("ada")
    for name in ("first", "soon", "later"):
        ada.run(ada.tasks.publish(name, deadline=HOUR / 2 if name == "soon" else HOUR))
    for name in ("soon", "later"):
        stored = stage.store.read(keys.data(name))[keys.data(name)]
        assert stored is not None
        spec = msgspec.json.decode(stored.value)
        del spec["measured"]
        stage.store.commit(
            Txn(
                id=ada.runner.new_id("txn"),
                entry=b"{}",
                puts=(Put(keys.data(name), msgspec.json.encode(spec)),),
                deletes=(keys.deadline(name),),
            )
        )
    ada.run(ada.fleet.maintain())
    shown = {each.task: each.state for each in ada.run(ada.tasks.list()).tasks}
    assert shown == dict.fromkeys(("first", "soon", "later"), "pending")
    stage.clock.advance(HOUR * 0.75)
    bob = stage.client("bob")
    assert isinstance(bob.run(bob.tasks.claim("soon")), NoTask)
    assert isinstance(bob.run(bob.tasks.claim("later")), Claimed)


@pytest.mark.parametrize("end", ["complete", "forget"])
def test_the_key_of_a_deadline_goes_with_what_needs_it(end: str) -> None:
    stage = Testbed()
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t", deadline=YEAR))
    ada.run(ada.tasks.claim("t"))
    assert stage.store.read(key := keys.deadline("t"))[key] is not None, "it may be released"
    if end == "complete":
        ada.run(ada.tasks.complete("t"))
    else:
        ada.run(ada.tasks.cancel("t"))
        assert stage.store.read(key)[key] is not None, "it may be sent back"
        stage.clock.advance(YEAR / 2)
        assert ada.run(ada.fleet.maintain()).forgotten_tasks == 1
    assert stage.store.read(key)[key] is None


@WRONG
def test_nothing_that_is_kept_goes_too_soon(url: str, ada: interlock.Fleet, by: float) -> None:
    """Mail that was read, alerts, queries, tasks that are over, lines of a log."""
    with interlock.connect(url, agent="bob") as bob, closing(open_store(url)) as store:
        bob.messages.subscribe("built")
        ada.messages.send("bob", "read me", id="msg_mail")
        ada.messages.alert("built", 1)
        bob.messages.ack("msg_mail")
        with ThreadPoolExecutor(1) as aside, bob.messages.recv() as coming:
            asked = aside.submit(ada.messages.query, "bob", "what?")
            next(each for each in coming if each.kind == "query").reply("that")
            assert isinstance(asked.result(), QueryAnswered)
        ada.tasks.publish("done")
        claim = bob.tasks.claim("done")
        assert isinstance(claim, Claimed)
        bob.tasks.complete("done", token=claim.token)
        bob.agents.log(["a line"])
        before = kept(store)
        assert all(before.values())
        with wrong(url, by) as fleet:
            fleet.maintain()
            fleet.agents.log(["another line"], name="bob")
        assert kept(store) == before


def kept(store: Store) -> dict[str, list[str]]:
    """The keys of what is kept for a while."""
    pages = [Range(prefix) for prefix in KEPT]
    found = store.read(*pages).ranges
    return {page.prefix: [item.key for item in found[page]] for page in pages}


def test_the_engine_tells_the_time_if_its_hosts_share_a_clock(url: str) -> None:
    with closing(open_store(url)) as store:
        before = time.time()
        told = store.wall()
        if store.capabilities.clock == "each host":
            assert told is None
            return
        assert told is not None
        assert before - 1.001 <= told <= time.time() + 0.001


def test_without_a_clock_of_the_engine_the_record_is_the_second_one() -> None:
    class Mute(MemoryStore):
        def wall(self) -> float:
            return None  # type: ignore[return-value]

    stage = Testbed()
    stage.store = Mute(stage.clock)
    ada, bob = stage.client("ada"), stage.client("bob")
    at = stage.clock.wall()
    ada.run(ada.locks.acquire("x"))
    bob.clock = bob.runner.clock = FakeClock(wall=at + YEAR)
    assert bob.run(earlier_time(bob.runner)) == pytest.approx(at)
    assert ada.run(earlier_time(ada.runner)) == pytest.approx(at)
