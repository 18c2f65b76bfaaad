from __future__ import annotations

import pytest

from interlock.core import keys
from interlock.nouns.tasks import health
from interlock.nouns.tasks.task import BATCH
from interlock.runtime.health import HealthCheck, Problem
from interlock.store import Put, Range, Txn
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada", ttl=100_000)


def problems(stage: Testbed, **patience: float) -> tuple[Problem, ...]:
    monitor = stage.client("monitor", ttl=None)
    return monitor.run(monitor.fleet.health(**{"dead_after": 1e6, **patience})).problems


def one(stage: Testbed, **patience: float) -> Problem:
    (found,) = problems(stage, **patience)
    return found


def failed(client: Client, task: str, reason: str, *, retry: bool = True) -> None:
    client.run(client.tasks.publish(task, retries=0))
    client.run(client.tasks.claim(task))
    client.run(client.tasks.fail(task, reason, retry=retry))


def test_tasks_at_work_waiting_blocked_and_complete_are_no_problem(
    stage: Testbed, ada: Client
) -> None:
    for task, needs in (("a", ()), ("b", ()), ("c", ()), ("d", ("a",))):
        ada.run(ada.tasks.publish(task, needs=needs))
    ada.run(ada.tasks.claim("a"))
    ada.run(ada.tasks.claim("b"))
    ada.run(ada.tasks.complete("b"))
    assert problems(stage) == ()


def test_a_task_that_runs_for_too_long_is_stuck(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    began = stage.clock.wall()
    stage.clock.advance(3600.0)
    assert problems(stage) == ()
    stage.clock.advance(1.0)
    found = one(stage)
    assert (found.kind, found.thing, found.agent) == ("stuck", "task/t1", "ada")
    assert (found.says, found.since) == ("task/t1: ada has worked on it for 1 h", began)
    assert problems(stage, stuck=7200.0) == ()


def test_a_claim_whose_worker_is_lost_is_stale_until_somebody_puts_it_back(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t1"))
    bob = stage.client("bob", ttl=1.0)
    bob.run(bob.tasks.claim("t1"))
    stage.clock.advance(2.0)
    found = one(stage)
    assert (found.kind, found.thing, found.agent) == ("stale", "task/t1", "bob")
    ada.run(ada.fleet.maintain())
    assert one(stage).kind == "dead"
    ada.run(ada.agents.ack("bob"))
    assert problems(stage) == ()


def test_who_completes_and_leaves_while_one_looks_is_not_called_lost(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t1"))
    bob, monitor = stage.client("bob"), stage.client("monitor", ttl=None)
    bob.run(bob.tasks.claim("t1"))
    looking = Stepper(health.health(HealthCheck(monitor.runner)), monitor.store, stage.clock)
    assert looking.go()
    bob.run(bob.tasks.complete("t1"))
    bob.run(bob.agents.leave())
    assert looking.run().result() == []


@pytest.mark.parametrize("steps", range(8))
def test_who_takes_over_while_one_looks_is_not_called_lost(steps: int) -> None:
    stage = Testbed()
    bob, dan = stage.client("bob", ttl=1.0), stage.client("dan")
    monitor = stage.client("monitor", ttl=None)
    bob.run(bob.tasks.publish("t1", backoff=0))
    bob.run(bob.tasks.claim("t1"))
    stage.clock.advance(2.0)
    looking = Stepper(health.health(HealthCheck(monitor.runner)), monitor.store, stage.clock)
    for _ in range(steps):
        looking.go()
    dan.run(dan.tasks.claim("t1"))
    assert {each.agent for each in looking.run().result()} <= {"bob"}


def test_a_task_that_runs_past_its_deadline_is_overdue(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", deadline=60))
    ada.run(ada.tasks.claim("t1"))
    stage.clock.advance(90.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("overdue", "task/t1")
    assert found.says == "task/t1: ada works on it, and its deadline was 30 s ago"


def test_dead_letters_are_counted_and_the_first_named_with_their_reasons(
    stage: Testbed, ada: Client
) -> None:
    for number in range(7):
        failed(ada, f"t{6 - number}", f"reason {number}")
        stage.clock.advance(1.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("dead_letter", "task/t6")
    assert found.says == (
        "7 tasks died: t6 ('reason 0'), t5 ('reason 1'), t4 ('reason 2'), t3 ('reason 3'), t2"
        " ('reason 4')"
        " and 2 more"
    )
    assert found.remedy.endswith("interlock task retry t6 --agent NAME")
    for number in range(7):
        ada.run(ada.tasks.retry(f"t{number}"))
    assert problems(stage) == ()


def test_what_failed_for_good_is_told_and_what_was_cancelled_is_not(
    stage: Testbed, ada: Client
) -> None:
    failed(ada, "t1", "cannot be done", retry=False)
    ada.run(ada.tasks.publish("t2"))
    ada.run(ada.tasks.cancel("t2"))
    found = one(stage)
    assert (found.kind, found.says) == ("failed", "1 task failed for good: t1 ('cannot be done')")


def test_a_task_that_no_worker_takes_for_long_is_told_once_for_each_set(
    stage: Testbed, ada: Client
) -> None:
    for task in ("g1", "g2", "g3"):
        ada.run(ada.tasks.publish(task, requires=["gpu"], priority=9 if task == "g1" else 5))
    ada.run(ada.tasks.publish("plain"))
    stage.clock.advance(3601.0)
    ada.run(ada.tasks.publish("fresh"))
    ada.run(ada.agents.status("waiting", can=["gpu"]))
    plain, gpu = problems(stage)
    assert (plain.kind, plain.thing) == ("waiting", "task/plain")
    assert plain.says == "task/plain: it has waited for a worker for 1 h; 1 more such task waits"
    assert gpu.says == (
        "task/g1: it has waited for a worker who can gpu for 1 h; 2 more such tasks wait"
    )
    assert problems(stage, waiting=7200.0) == ()


def test_a_capability_that_no_agent_here_has_is_a_problem(stage: Testbed, ada: Client) -> None:
    for task in ("g1", "g2"):
        ada.run(ada.tasks.publish(task, requires=["gpu"]))
    assert one(stage).kind == "unable", "an agent that says nothing is not able, either"
    ada.run(ada.agents.status("idle", can=[]))
    assert one(stage).kind == "unable", "nothing special is an answer, too"
    ada.run(ada.agents.status("idle", can=["rust"]))
    found = one(stage)
    assert (found.kind, found.thing) == ("unable", "task/g1")
    assert found.says == (
        "task/g1: it requires gpu, and no agent that is here reports that it can;"
        " 1 more such task waits"
    )
    stage.clock.advance(60.0)
    assert one(stage, waiting=30.0).kind == "unable", "one line is enough"
    ada.run(ada.agents.status("idle", can=["gpu"]))
    assert one(stage, waiting=30.0).kind == "waiting"


def test_tasks_that_wait_while_every_worker_is_dead_are_told_at_once(stage: Testbed) -> None:
    for number in range(5):
        worker = stage.client(f"w{number}", ttl=10.0)
        worker.run(worker.agents.status("busy", can=["rust"]))
    shell = stage.client("shell", ttl=None)
    for number in range(100):
        shell.run(shell.tasks.publish(f"t{number}"))
    shell.run(shell.tasks.publish("r1", requires=["rust"]))
    assert problems(stage) == ()
    stage.clock.advance(11.0)
    for maintained in (False, True):
        (found,) = [each for each in problems(stage) if each.kind == "unattended"]
        assert found.says == (
            "task/t0: it is ready, and no worker is here; 100 more such tasks wait"
        )
        assert "start a worker" in found.remedy
        if not maintained:
            shell.run(shell.fleet.maintain())
    worker = stage.client("w9")
    worker.run(worker.agents.status("idle", can=[]))
    assert [each.kind for each in problems(stage) if each.thing.startswith("task/")] == ["unable"]


def test_tasks_that_wait_where_nobody_ever_was_are_told_after_a_while(stage: Testbed) -> None:
    shell = stage.client("shell", ttl=None)
    shell.run(shell.tasks.publish("t1", requires=["gpu"]))
    assert problems(stage) == (), "a worker may come with a command at any moment"
    stage.clock.advance(61.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("unattended", "task/t1")
    assert found.remedy.endswith("interlock task next --agent NAME --can gpu")


def test_a_session_that_is_merely_here_is_no_worker_for_tasks_that_wait(stage: Testbed) -> None:
    human = stage.client("human", ttl=100_000)
    human.run(human.tasks.publish("t1", backoff=0))
    worker = stage.client("wk", ttl=10.0)
    worker.run(worker.tasks.claim("t1"))
    stage.clock.advance(11.0)
    human.run(human.fleet.maintain())
    assert {each.kind for each in problems(stage)} == {"dead", "unattended"}, "reported at once"
    human.run(human.agents.ack("wk"))
    stage.clock.advance(61.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("unattended", "task/t1")
    assert found.remedy.startswith("start a worker, or take it: interlock task next")


def test_a_session_that_works_or_waits_for_tasks_keeps_the_others_attended(stage: Testbed) -> None:
    human = stage.client("human", ttl=100_000)
    for task in ("t1", "t2", "later"):
        human.run(human.tasks.publish(task, not_before=1e6 if task == "later" else 0))
    stage.clock.advance(61.0)
    assert one(stage).kind == "unattended"

    human.run(human.tasks.claim("t1"))
    assert problems(stage) == (), "a worker that is busy with another task"
    human.run(human.tasks.release("t1"))
    assert one(stage).kind == "unattended"

    for state in ("busy", "waiting"):
        human.run(human.agents.status(state))
        assert problems(stage) == ()
    human.run(human.agents.status("idle"))
    assert one(stage).kind == "unattended"

    human.start(human.tasks.claim("later", wait=1e5))
    assert problems(stage) == (), "a wait that is listed"


def test_an_idle_worker_has_a_minute_to_take_what_a_dead_one_left(stage: Testbed) -> None:
    worker, idle = stage.client("wk", ttl=10.0), stage.client("idle", ttl=100_000)
    idle.run(idle.agents.status("idle"))
    worker.run(worker.tasks.publish("t1"))
    stage.clock.advance(11.0)
    assert problems(stage) == ()
    stage.clock.advance(61.0)
    assert one(stage).kind == "unattended"


def test_a_task_that_is_blocked_for_ever_is_told_with_the_need_that_ended(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("a"))
    ada.run(ada.tasks.publish("b", needs=["a"]))
    ada.run(ada.tasks.publish("c", needs=["a"]))
    ada.run(ada.tasks.publish("d", needs=["b"]))
    ada.run(ada.tasks.cancel("a", "out of scope"))
    stage.clock.advance(120.0)
    found = one(stage)
    assert (found.kind, found.thing, found.since) == ("blocked", "task/b", stage.clock.wall() - 120)
    assert found.says == (
        "task/b: it needs a, which was cancelled 2 min ago ('cancelled by ada: out of scope');"
        " 1 more such task is blocked"
    )
    assert "interlock task retry a --agent NAME" in found.remedy
    assert "interlock task cancel b --agent NAME" in found.remedy
    ada.run(ada.tasks.retry("a"))
    assert [each.kind for each in problems(stage)] == []


def test_a_need_that_ended_counts_before_the_task_comes_to_hang_on_it(
    stage: Testbed, ada: Client
) -> None:
    for task in ("first", "second"):
        ada.run(ada.tasks.publish(task))
    ada.run(ada.tasks.publish("t", needs=["first", "second"]))
    ada.run(ada.tasks.claim("first"))
    failed_need = ada.run(ada.tasks.cancel("second"))
    assert failed_need is not None
    found = one(stage)
    assert (found.kind, found.thing) == ("blocked", "task/t")
    assert found.says.startswith("task/t: it needs second, which was cancelled")
    ada.run(ada.tasks.cancel("t"))
    assert problems(stage) == ()


def test_of_very_many_needs_that_block_others_some_are_named(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LINES", 2)
    for number in range(4):
        ada.run(ada.tasks.publish(f"n{number}"))
        ada.run(ada.tasks.publish(f"t{number}", needs=[f"n{number}"]))
        ada.run(ada.tasks.cancel(f"n{number}"))
    *named, rest = problems(stage)
    assert [each.thing for each in named] == ["task/t0", "task/t1"]
    assert rest.says == "2 more needs ended without success, and block tasks"


def test_a_task_waits_only_since_it_may_begin(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("need"))
    ada.run(ada.tasks.publish("t1", needs=["need"]))
    ada.run(ada.tasks.publish("back"))
    ada.run(ada.tasks.claim("need"))
    ada.run(ada.tasks.claim("back"))
    stage.clock.advance(5000.0)
    ada.run(ada.tasks.complete("need"))
    ada.run(ada.tasks.release("back"))
    assert problems(stage) == ()
    stage.clock.advance(3601.0)
    ada.run(ada.agents.status("waiting"))
    assert one(stage).kind == "waiting"


def test_a_task_whose_time_came_and_that_nobody_woke_waits_for_a_worker(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t1", not_before=60))
    stage.clock.advance(60.0 + 3600.0)
    ada.run(ada.agents.status("waiting"))
    assert problems(stage) == ()
    stage.clock.advance(1.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("waiting", "task/t1")


def test_the_place_that_a_blind_claim_left_standing_is_no_task_that_waits(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=100_000)
    for task in ("t1", "t2"):
        ada.run(ada.tasks.publish(task))
    ada.run(ada.tasks.claim("t1"))
    stage.clock.advance(3601.0)
    says = "task/t2: it has waited for a worker for 1 h"
    assert [each.says for each in problems(stage, stuck=7200.0)] == [says]


def test_what_was_left_hanging_on_a_complete_need_is_told_after_a_while(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=100_000)
    ada.run(ada.agents.status("busy"))
    ada.run(ada.tasks.publish("need"))
    for number in range(200):
        ada.run(ada.tasks.publish(f"t{number}", needs=["need"]))
    ada.run(ada.tasks.claim("need"))
    completing = Stepper(ada.tasks.complete("need"), ada.store, stage.clock)
    while not stage.store.read(keys.todo("need"))[keys.todo("need")]:
        assert completing.go()
    assert problems(stage) == ()
    stage.clock.advance(61.0)
    found = one(stage)
    assert (found.kind, found.thing) == ("leftover", "task/need")
    ada.run(ada.fleet.maintain())
    assert problems(stage) == ()


def test_an_import_that_was_never_finished_is_told_without_its_batch(stage: Testbed) -> None:
    since = stage.clock.wall()
    batch = b'{"state":"blocked","since":%f}' % since
    stage.store.commit(Txn(id="t", puts=(Put(keys.status("+imp_1"), batch),), quiet=True))
    assert problems(stage, dead_after=300.0) == ()
    stage.clock.advance(301.0)
    alive = Put(keys.live("+imp_1"), b"{}", ttl=10.0)
    stage.store.commit(Txn(id="u", puts=(alive,), quiet=True))
    assert problems(stage, dead_after=300.0) == (), "the import still runs"
    stage.clock.advance(10.0)
    found = one(stage, dead_after=300.0)
    assert (found.kind, found.thing, found.since) == ("unfinished", "", since)
    assert "+" not in found.says


def test_a_pass_is_bounded_and_says_that_there_is_more(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("a", "b", "c"):
        failed(ada, task, "no")
    assert not ada.run(ada.fleet.health()).partial
    monkeypatch.setattr("interlock.runtime.health.BOUND", 2)
    found = ada.run(ada.fleet.health())
    assert found.partial
    assert found.problems[0].says.startswith("2 tasks died")


def test_what_is_complete_costs_nothing(stage: Testbed, ada: Client) -> None:
    def steps() -> int:
        hand = Stepper(ada.fleet.health(), ada.store, stage.clock)
        hand.run().result()
        return len(hand.steps)

    steps()  # what a client learns only once
    before = steps()
    for number in range(300):
        ada.run(ada.tasks.publish(f"t{number}"))
        ada.run(ada.tasks.claim(f"t{number}"))
        ada.run(ada.tasks.complete(f"t{number}"))
    assert steps() == before


def test_what_cannot_be_read_is_left_out_and_the_rest_is_told(stage: Testbed, ada: Client) -> None:
    bob = stage.client("bob", ttl=1.0)
    for task in ("bad", "running", "lost", "gpu", "dead", "worse", "ready"):
        ada.run(ada.tasks.publish(task, retries=0, requires=["gpu"] if task == "gpu" else ()))
    for task in ("bad", "running", "lost"):
        bob.run(bob.tasks.claim(task))
    for task in ("dead", "worse"):
        failed(ada, task, "no luck")
    broken = [
        keys.status("bad"), keys.owner("running"), keys.requirement_set("gpu"), keys.ended("worse"),
        f"{keys.TASKS}{BATCH}1/status", f"{keys.CLAIMS}ses_0/none",
    ]  # fmt: skip
    (place,) = stage.store.read(page := Range(keys.ready("-"))).ranges[page]
    puts = tuple(Put(key, b"garbage") for key in (*broken, place.key))
    stage.store.commit(Txn(id="t", puts=puts, quiet=True))
    stage.clock.advance(60.0)
    ada.run(ada.agents.status("idle"))
    assert sorted(each.thing for each in problems(stage, waiting=30.0)) == [
        "task/dead", "task/gpu", "task/lost", "task/ready",
    ]  # fmt: skip
