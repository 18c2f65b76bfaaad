from __future__ import annotations

import pytest

import interlock
from interlock.core.history import HistoryEvent, Story
from interlock.errors import BadInput, BadName
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def told(client: Client, thing: str, limit: int = 100) -> tuple[HistoryEvent, ...]:
    return client.run(client.record.explain(thing, limit=limit)).happenings


def test_a_story_follows_a_lock_from_hand_to_hand(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    first = ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=600))
    stage.clock.advance(3.2)
    ada.run(ada.locks.release("merge"))
    second = waits.run().result()
    acquired, waiting, released, got = told(ada, "merge")
    assert acquired.token == first.token  # type: ignore[union-attr]
    assert waiting.behind == ("ada",)
    assert (released.held, released.went_to) == (3.2, ("bob",))
    assert (got.waited, got.session) == (3.2, bob.session)
    assert got.token == second.token  # type: ignore[union-attr]


def test_who_reports_while_it_waits_goes_on_waiting_in_its_story(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=600))
    bob.run(bob.agents.status("waiting", note="for merge"))
    bob.run(bob.agents.log(["a line"]))
    stage.clock.advance(3.2)
    ada.run(ada.locks.release("merge"))
    waits.run()
    story = told(ada, "agent/bob")
    assert [each.what for each in story] == ["joined", "waiting", "status", "acquired"]
    assert story[2].session == bob.session
    assert story[3].waited == 3.2


def test_a_token_of_a_story_counts_from_the_base_of_the_store(stage: Testbed) -> None:
    from interlock.core import keys
    from interlock.store import Put, Txn

    stage.store.commit(Txn(id="txn_base", puts=(Put(keys.BASE, b"5000"),), quiet=True))
    ada = stage.client("ada")
    held = ada.run(ada.locks.acquire("merge"))
    assert told(ada, "merge")[0].token == held.token  # type: ignore[union-attr]


def test_a_holder_that_lapsed_is_told_with_who_took_over(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=1.0), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(2.0)
    bob.run(bob.locks.acquire("merge"))
    lost, took = told(bob, "lock/merge")[1:]
    assert (lost.what, lost.agent, lost.held, lost.by) == ("reclaimed", "ada", 2.0, "bob")
    assert took.came_from == ("ada",)
    bob.run(bob.fleet.maintain())
    assert [each.what for each in told(bob, "agent/ada")] == [
        *("joined", "acquired", "reclaimed", "lapsed")
    ]


def test_refusals_and_withdrawals_are_part_of_it(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    held = ada.run(ada.locks.acquire("merge"))
    bob.run(bob.locks.release("merge"))
    bob.run(bob.locks.acquire("merge", wait=5))
    ada.run(ada.locks.release("merge", token=held.token))  # type: ignore[union-attr]
    ends = [(each.agent, each.what, each.reason) for each in told(bob, "merge")[1:]]
    assert ends == [
        ("bob", "refused", "not_owner"),
        ("bob", "waiting", ""),
        ("bob", "withdrew", ""),
        ("ada", "released", ""),
    ]


def test_a_session_is_found_by_its_id_also_when_it_was_cleared_away(stage: Testbed) -> None:
    first, second = stage.client("ada", ttl=1.0), stage.client("ada")
    first.run(first.locks.acquire("a"))
    second.run(second.locks.acquire("b"))
    stage.clock.advance(2.0)
    keeper = stage.client("keeper")
    keeper.run(keeper.fleet.maintain())
    found = told(keeper, first.session)
    assert [(each.what, each.thing) for each in found] == [
        ("joined", "agent/ada"),
        ("acquired", "lock/a"),
        ("reclaimed", "lock/a"),
        ("lapsed", "agent/ada"),
    ]
    assert told(keeper, f"agent/{first.session}") == found


def test_a_limit_shows_the_last_and_says_that_there_is_more(stage: Testbed) -> None:
    ada = stage.client("ada")
    for _ in range(3):
        ada.run(ada.locks.acquire("merge"))
        stage.clock.advance(1.0)
        ada.run(ada.locks.release("merge"))
    story = ada.run(ada.record.explain("merge", limit=1))
    assert [each.held for each in story.happenings] == [1.0]
    assert story.earlier
    assert not ada.run(ada.record.explain("merge", limit=6)).earlier


def test_a_thing_that_nobody_touched_has_no_story(stage: Testbed) -> None:
    ada = stage.client("ada")
    assert ada.run(ada.record.explain("nothing")) == Story(thing="lock/nothing", happenings=())


def test_bad_words_are_refused(stage: Testbed) -> None:
    ada = stage.client("ada")
    with pytest.raises(BadName):
        ada.record.explain("a\tb")
    with pytest.raises(BadInput):
        ada.record.explain("merge", limit=0)
    with pytest.raises(BadName):
        ada.record.log(by="a\tb")
    with pytest.raises(BadInput):
        ada.record.log(since="soon")


def test_every_store_can_tell_a_story(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        for fleet in (ada, bob):
            with fleet.lock("merge"):
                pass
        story = bob.record.explain("merge")
        agents = [(each.agent, each.what) for each in story.happenings]
        assert agents == [
            *(("ada", "acquired"), ("ada", "released"), ("bob", "acquired"), ("bob", "released"))
        ]
        log = bob.record.log(by="ada", verb="lock", since="1h", limit=1)
        assert [line.verb for line in log] == ["lock.release"]
        assert bob.record.log(by=ada.session, verb="lock")[-1:] == log
        assert bob.record.log(until="1h") == ()


def test_a_story_follows_a_task_from_its_needs_to_its_end(stage: Testbed) -> None:
    ada, bob, dan = (stage.client(name, ttl=600) for name in ("ada", "bob", "dan"))
    cleo = stage.client("cleo", ttl=12.0)
    for task, needs in (("t0", ()), ("t1", ()), ("t2", ("t0", "t1"))):
        ada.run(ada.tasks.publish(task, needs=needs))
    for task in ("t0", "t1"):
        bob.run(bob.tasks.claim(task))
        bob.run(bob.tasks.complete(task))
    first = cleo.run(cleo.tasks.claim("t2"))
    stage.clock.advance(13.0)
    dan.run(dan.fleet.maintain())
    stage.clock.advance(2.0)
    second = dan.run(dan.tasks.next())
    cleo.run(cleo.tasks.complete("t2", token=first.token))  # type: ignore[union-attr]
    stage.clock.advance(3.0)
    dan.run(dan.tasks.complete("t2"))
    (published, moved, ready, claimed, lost, again, taken, late, done) = told(ada, "task/t2")
    assert (published.what, published.agent, published.on) == ("published", "ada", "t0")
    assert (moved.what, moved.on, moved.by) == ("blocked", "t1", "bob")
    assert (ready.what, ready.on, ready.by) == ("unblocked", "t1", "bob")
    assert (claimed.agent, claimed.attempt) == ("cleo", 1)
    assert claimed.token == first.token  # type: ignore[union-attr]
    assert (lost.what, lost.agent, lost.held, lost.by) == ("reclaimed", "cleo", 13.0, "dan")
    assert lost.rests is not None
    assert 1.0 <= lost.rests <= 1.25
    assert (again.what, taken.agent, taken.attempt) == ("ready", "dan", 2)
    assert taken.token == second.token  # type: ignore[union-attr]
    assert (late.what, late.agent, late.reason) == ("refused", "cleo", "fenced")
    assert (done.what, done.agent, done.held) == ("completed", "dan", 3.0)
    assert [each.what for each in told(ada, "agent/cleo")] == [
        *("joined", "claimed", "reclaimed", "lapsed", "refused")
    ]


def test_the_last_reason_of_a_task_is_told_and_the_way_back(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1", retries=0))
    ada.run(ada.tasks.claim("t1"))
    ada.run(ada.tasks.fail("t1", "out of disk"))
    dead = told(ada, "task/t1")[-1]
    assert (dead.what, dead.reason, dead.says) == ("dead", "attempts", "out of disk")
    ada.run(ada.tasks.retry("t1"))
    ada.run(ada.tasks.cancel("t1", "not needed"))
    *_, dead, retried, cancelled = told(ada, "task/t1")
    assert (dead.says, retried.what) == ("", "retried")
    assert cancelled.says == "not needed"
    ada.run(ada.tasks.publish("late", deadline=1))
    stage.clock.advance(2.0)
    ada.run(ada.fleet.maintain())
    late = told(ada, "task/late")[-1]
    assert (late.what, late.agent, late.reason) == ("dead", "", "deadline")


def test_a_task_that_fails_for_good_is_told_apart_from_one_that_rests(stage: Testbed) -> None:
    ada = stage.client("ada")
    for task, retry in (("a", True), ("b", False)):
        ada.run(ada.tasks.publish(task, backoff=4))
        ada.run(ada.tasks.claim(task))
        ada.run(ada.tasks.fail(task, retry=retry))
    rests, final = told(ada, "task/a")[-1], told(ada, "task/b")[-1]
    assert rests.rests is not None
    assert (rests.what, rests.rests >= 4.0, rests.reason) == ("failed", True, "")
    assert (final.what, final.rests, final.reason) == ("failed", None, "final")


def test_attempts_are_numbered_only_where_all_of_them_are_heard(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    assert told(ada, "task/t1")[-1].attempt == 1
    assert told(ada, "agent/ada")[-1].attempt is None
