from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.errors import BadInput, BadName
from interlock.nouns.tasks.why import NEEDS_SHOWN
from interlock.runtime.text import render
from interlock.runtime.why import Why
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada", ttl=600)


def why(stage: Testbed, thing: str) -> Why:
    asker = stage.client("asker", ttl=None)
    return asker.run(asker.fleet.why(thing))


def publish(client: Client, task: str, *needs: str, **more: float) -> None:
    client.run(client.tasks.publish(task, needs=needs, **more))  # type: ignore[arg-type]


def test_a_blocked_task_is_followed_to_who_works_on_the_last_of_its_needs(
    stage: Testbed, ada: Client
) -> None:
    publish(ada, "t1")
    publish(ada, "t2", "t1")
    publish(ada, "t3", "t2")
    began = stage.clock.wall()
    bob = stage.client("bob")
    bob.run(bob.tasks.claim("t1"))
    stage.clock.advance(5.0)
    found = why(stage, "task/t3")
    assert (found.thing, found.state, found.blocked) == ("task/t3", "blocked", True)
    assert found.because == "it needs t2, which needs t1 (running): bob has worked on it for 5 s"
    assert found.clear == "bob completes t1, or does not renew it for 25 s"
    assert (found.by, found.since, found.expires_in) == ("bob", began, 25.0)
    assert [(each.task, each.state, each.depth) for each in found.needs] == [
        ("t2", "blocked", 1), ("t1", "running", 2),
    ]  # fmt: skip


def test_all_unmet_needs_are_named_and_the_one_that_will_not_clear_by_itself_comes_first(
    stage: Testbed, ada: Client
) -> None:
    for task in ("done", "a", "b", "c"):
        publish(ada, task, retries=0)
    publish(ada, "m", "b")
    publish(ada, "top", "done", "a", "m", "c")
    ada.run(ada.tasks.claim("done"))
    ada.run(ada.tasks.complete("done"))
    ada.run(ada.tasks.claim("a"))
    ada.run(ada.tasks.claim("b"))
    ada.run(ada.tasks.fail("b", "out of memory"))
    stage.clock.advance(180.0)
    found = why(stage, "top")
    assert found.because == (
        "it needs m, which needs b (dead): it died 3 min ago after 1 failed attempt:"
        " 'out of memory';"
        " 3 of its needs are not complete"
    )
    assert found.clear == "retry it: interlock task retry b --agent NAME"
    assert [(each.task, each.depth) for each in found.needs] == [
        ("a", 1), ("m", 1), ("b", 2), ("c", 1),
    ]  # fmt: skip
    shown = render(found).splitlines()
    assert shown[2:6] == [
        "needs        a (running): ada has worked on it for 3 min",
        "             m (blocked): it needs b",
        "               b (dead): it died 3 min ago after 1 failed attempt: 'out of memory'",
        "             c (pending): it waits for a worker",
    ]


def test_a_need_that_several_have_is_told_once(stage: Testbed, ada: Client) -> None:
    publish(ada, "root")
    publish(ada, "left", "root")
    publish(ada, "right", "root")
    publish(ada, "top", "left", "right")
    assert [each.task for each in why(stage, "top").needs] == ["left", "root", "right"]


def test_a_long_chain_is_followed_to_its_end_and_told_in_short(stage: Testbed, ada: Client) -> None:
    publish(ada, "c0")
    for number in range(1, 60):
        publish(ada, f"c{number}", f"c{number - 1}")
    found = why(stage, "c59")
    assert found.because == (
        "it needs c58, which needs c57, which needs 56 others one after the other"
        " and in the end c0 (pending): it waits for a worker"
    )
    assert len(found.needs) == NEEDS_SHOWN + 1
    assert (found.needs[-1].task, found.needs[-1].depth) == ("c0", 59)
    assert "needs        " not in render(found), "a mere chain is said already"


def chain(client: Client, count: int) -> str:
    tasks = [{"id": f"c{n}", "needs": [f"c{n - 1}"] if n else []} for n in range(count)]
    client.run(client.tasks.publish_all(tasks))
    return f"c{count - 1}"


def test_a_chain_of_a_thousand_has_an_end_too(stage: Testbed, ada: Client) -> None:
    found = why(stage, chain(ada, 1100))
    assert "which needs 1096 others" in found.because
    assert found.because.endswith("in the end c0 (pending): it waits for a worker")


def test_a_chain_that_is_too_long_says_that_it_goes_on(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.nouns.tasks.why.FOLLOWED", 30)
    found = why(stage, chain(ada, 60))
    assert found.because.endswith(
        "in the end c29 (blocked): it needs c28, and so on: 30 tasks were followed"
    )
    assert found.clear == "see 'interlock why task/c28'"


def test_of_more_than_a_thousand_needs_all_are_counted_and_the_failed_one_is_named(
    stage: Testbed, ada: Client
) -> None:
    names = [f"n{number}" for number in range(1100)]
    ada.run(ada.tasks.publish_all([{"id": name} for name in names]))
    publish(ada, "top", *names)
    ada.run(ada.tasks.claim("n1080"))
    ada.run(ada.tasks.fail("n1080", "boom", retry=False))
    found = why(stage, "top")
    assert found.because.startswith("it needs n1080 (failed): it failed")
    assert found.because.endswith("; 1100 of its needs are not complete")
    assert [each.task for each in found.needs] == ["n1080", "n0", "n1", "n2", "n3"]


@pytest.mark.parametrize("part", [keys.status, keys.data])
def test_a_damaged_task_and_what_needs_it_say_so(
    stage: Testbed, ada: Client, part: Callable[[str], str]
) -> None:
    for task, need in (("bad", ()), ("mid", ("bad",)), ("top", ("mid",))):
        publish(ada, task, *need)
    stage.store.commit(Txn(id="t", puts=(Put(part("bad"), b"garbage"),)))
    found = why(stage, "task/bad")
    assert (found.state, found.blocked) == ("damaged", True)
    assert found.because.startswith(f"it is damaged: {part('bad')} does not read as what it")
    above = why(stage, "task/top")
    assert above.because.startswith("it needs mid, which needs bad (damaged): it is damaged:")


def test_many_needs_are_counted_and_some_told(stage: Testbed, ada: Client) -> None:
    names = [f"n{number}" for number in range(30)]
    for name in names:
        publish(ada, name)
    publish(ada, "top", *names)
    found = why(stage, "top")
    assert found.because.endswith("; 30 of its needs are not complete")
    assert len(found.needs) == 5


def test_a_task_that_runs_names_its_worker_and_what_that_waits_for(
    stage: Testbed, ada: Client
) -> None:
    bob = stage.client("bob")
    bob.run(bob.locks.acquire("merge"))
    publish(ada, "t1")
    ada.context.identity = replace(ada.context.identity, caller="shell-7")
    claimed = ada.run(ada.tasks.claim("t1"))
    ada.start(ada.locks.acquire("merge", wait=60))
    found = why(stage, "t1")
    assert found.because.startswith(
        f"ada has worked on it for 0 s (token {claimed.token}, attempt 1, process "  # type: ignore[union-attr]
    )
    assert (found.state, found.by, found.blocked) == ("running", "ada", True)
    assert found.meanwhile == ("ada waits for lock/merge, held by bob",)


def test_a_blocked_task_leads_to_the_holder_at_the_end_of_the_chain(
    stage: Testbed, ada: Client
) -> None:
    bob, cleo = stage.client("bob"), stage.client("cleo")
    for client, caller in ((ada, "shell-7"), (bob, "shell-8")):
        client.context.identity = replace(client.context.identity, caller=caller)
    publish(ada, "t1")
    publish(ada, "t2", "t1")
    ada.run(ada.tasks.claim("t1"))
    bob.run(bob.locks.acquire("merge"))
    cleo.run(cleo.locks.acquire("db"))
    ada.start(ada.locks.acquire("merge", wait=60))
    bob.start(bob.locks.acquire("db", wait=60))
    assert why(stage, "t2").meanwhile == (
        "ada waits for lock/merge, held by bob, who waits for lock/db, held by cleo",
    )


def test_a_lost_worker_is_in_nobodys_way(stage: Testbed, ada: Client) -> None:
    publish(ada, "t1")
    bob = stage.client("bob", ttl=1.0)
    bob.run(bob.tasks.claim("t1"))
    stage.clock.advance(2.0)
    found = why(stage, "t1")
    assert (found.blocked, found.by) == (False, "bob")
    assert found.because == "bob was lost, and its claim is stale"
    assert found.clear == "claim t1, or run 'interlock maintain'"


def test_a_task_that_is_ready_says_who_it_waits_for_and_how_many_are_before_it(
    stage: Testbed, ada: Client
) -> None:
    for task in ("g1", "g2", "g3"):
        ada.run(ada.tasks.publish(task, requires=["gpu", "rust"]))
    publish(ada, "other")
    found = why(stage, "g3")
    assert (found.state, found.blocked) == ("pending", False)
    assert found.because == "it waits for a worker who can gpu and rust; 2 others are before it"
    assert found.clear == "claim it: interlock task claim g3"
    assert why(stage, "other").because == "it waits for a worker"


def test_a_rest_says_how_long_and_why(stage: Testbed, ada: Client) -> None:
    publish(ada, "t1", backoff=60)
    ada.run(ada.tasks.claim("t1"))
    ada.run(ada.tasks.fail("t1", "no disk"))
    stage.clock.jump_wall(3600.0)
    found = why(stage, "t1")
    assert found.blocked
    assert found.because.startswith("it rests for ")
    assert found.because.endswith(" after 1 failed attempt ('no disk')")
    assert "min" not in found.because, "the clock of the store counts, not that on the wall"
    stage.clock.advance(80.0)
    assert why(stage, "t1").because == "it waits for a worker"


def test_a_task_that_must_not_begin_yet_says_so(stage: Testbed, ada: Client) -> None:
    publish(ada, "t1", not_before=7200)
    assert why(stage, "t1").because == "it must not begin for 2 h"


def test_a_task_whose_deadline_is_over_says_so(stage: Testbed, ada: Client) -> None:
    publish(ada, "t1", deadline=10)
    publish(ada, "t2", deadline=10)
    ada.run(ada.tasks.claim("t2"))
    stage.clock.advance(11.0)
    assert why(stage, "t1").because.startswith("no worker began it before its deadline")
    assert why(stage, "t2").because.startswith("ada has worked on it for 11 s, past its deadline")


def test_what_is_over_says_how(stage: Testbed, ada: Client) -> None:
    for task in ("t1", "t2", "t3"):
        publish(ada, task)
    for task in ("t1", "t2"):
        ada.run(ada.tasks.claim(task))
    ada.run(ada.tasks.complete("t1"))
    ada.run(ada.tasks.fail("t2", "cannot be done", retry=False))
    ada.run(ada.tasks.cancel("t3", "not needed"))
    done, failed, cancelled = (why(stage, task) for task in ("t1", "t2", "t3"))
    assert render(done) == "task/t1 is complete: ada completed it 0 s ago; nothing is left to do"
    assert (failed.state, failed.blocked) == ("failed", True)
    assert failed.because == "it failed 0 s ago after 1 failed attempt: 'cannot be done'"
    assert cancelled.because == "it failed 0 s ago: 'cancelled by ada: not needed'"


def test_a_task_that_is_not_there_is_not_blocked(stage: Testbed) -> None:
    found = why(stage, "task/t1")
    assert (found.blocked, found.state) == (False, "unknown")
    assert found.clear == "publish it: interlock task add t1"


@pytest.mark.parametrize("name", ["-rf", "a//b", "x" * 201, "a\u2028b"])
def test_a_bad_name_is_refused(stage: Testbed, name: str) -> None:
    for thing in (name, f"task/{name}", "task/+imp_1"):
        with pytest.raises(BadName):
            why(stage, thing)
    assert why(stage, "+imp_1").thing == "lock/+imp_1"
    assert why(stage, f"task/{'x' * 200}").state == "unknown"


def test_an_import_that_is_not_finished_is_no_task_that_anybody_knows(
    stage: Testbed, ada: Client
) -> None:
    publish(ada, "t1")
    on = "+imp_1"
    blocked = b'{"state":"blocked","on":"%s","place":-1,"since":1.0}' % on.encode()
    puts = (
        Put(keys.status(on), b'{"state":"blocked","since":1.0,"awaited":true}'),
        Put(keys.status("t1"), blocked),
    )
    stage.store.commit(Txn(id="t", puts=puts))
    found = why(stage, "t1")
    assert found.because == (
        "it needs an import (unfinished): the import that publishes it has not finished"
    )
    assert "+" not in render(found)


def test_a_plain_name_is_a_task_if_there_is_one_and_else_a_lock(
    stage: Testbed, ada: Client
) -> None:
    publish(ada, "merge")
    assert why(stage, "merge").thing == "task/merge"
    assert why(stage, "other").thing == "lock/other"
    ada.run(ada.locks.acquire("merge"))
    assert why(stage, "lock/merge").thing == "lock/merge"
    assert why(stage, "task/merge").thing == "task/merge"
    with pytest.raises(BadInput, match="'task/merge' or for 'lock/merge'"):
        why(stage, "merge")
    ada.run(ada.locks.release("merge"))
    assert why(stage, "merge").thing == "task/merge"


def test_a_capability_that_nobody_here_has_is_told_once_somebody_says_what_it_can(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("g1", requires=["gpu", "rust"]))
    publish(ada, "top", "g1")
    assert why(stage, "g1").blocked is False, "workers may come that report nothing"
    ada.run(ada.agents.status("idle", can=["rust"]))
    found = why(stage, "g1")
    assert (found.blocked, found.because) == (
        True,
        "it waits for a worker who can gpu and rust, and no agent that is here reports that it can",
    )
    assert found.clear == "a worker who can gpu and rust comes, and claims g1"
    assert why(stage, "top").because.startswith("it needs g1 (pending): it waits for a worker who")
    bob = stage.client("bob")
    bob.run(bob.agents.status("idle", can=["gpu", "rust", "go"]))
    found = why(stage, "g1")
    assert (found.blocked, found.because) == (
        False, "it waits for a worker who can gpu and rust; bob can do it",
    )  # fmt: skip
    bob.run(bob.agents.leave())
    assert why(stage, "g1").blocked
    ada.run(ada.agents.status("idle", can=["*"]))
    assert why(stage, "g1").blocked is False, "she can do everything"
