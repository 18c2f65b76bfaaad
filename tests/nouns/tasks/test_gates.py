"""Guards before the claim of a task: what keeps it, what opens its gate, and what ends it."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.tasks.gated import FREE, Agent, gate_items, gate_of, status_of

from interlock import guard
from interlock.core import keys
from interlock.core.entry import decode
from interlock.errors import StoreDamaged
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.allowed import allow
from interlock.nouns.tasks import task_outcomes
from interlock.store import VOID, Log, Put, Range, Store, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Stepper, Testbed

CALM: dict[str, Any] = {"guard": ["calm"]}


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


def client(bed: Testbed, where: str, name: str) -> Agent:
    return Agent(bed.client(name, ttl=1e6) if where == "local" else bed.remote(name, ttl=1e6))


@pytest.fixture(params=["local", "remote"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Agent:
    return client(bed, request.param, "ada")


@pytest.fixture
def bob(bed: Testbed, ada: Agent) -> Agent:
    """Another agent, as near to the store as ada."""
    return client(bed, "local" if ada.client.store is bed.store else "remote", "bob")


def entries(store: Store) -> list[Any]:
    page = Log(limit=1000)
    return [decode(i.value) for i in store.read(page).ranges[page] if i.value != VOID]


# At the gate.


def test_a_task_whose_guard_passes_is_ready_at_once(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    assert ada.publish(**CALM) == task_outcomes.Published(task="t1", state="pending")
    assert status_of(bed.store).guards == ("calm",)
    assert gate_items(bed.store) == []
    assert ada.next().task == "t1"


def test_a_task_whose_guard_fails_is_blocked_and_names_the_leaf(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    published = ada.publish(**CALM)
    assert (published.state, published.guard) == ("blocked", "calm")
    assert published.leaf == "lock-free=deploy"
    assert published.reason.startswith("ada holds lock deploy, since")
    found = ada.claim()
    assert found == task_outcomes.TaskBlocked(
        task="t1",
        guard="calm",
        result="failed",
        leaf="lock-free=deploy",
        reason="ada holds lock deploy, for 0 s",
        acts=("ada releases lock deploy",),
    )
    assert isinstance(ada.next(), task_outcomes.NoTask)
    shown = ada.show()
    assert (shown.state, shown.guard, shown.leaf) == ("blocked", "calm", "lock-free=deploy")
    assert (shown.guards, shown.on) == (("calm",), "")


def test_the_commit_that_opens_the_gate_makes_the_task_ready(
    bed: Testbed, ada: Agent, bob: Agent
) -> None:
    ada.define(FREE)
    ada.lock()
    ada.publish(**CALM)
    waits = bob.client.start(bob.client.tasks.next(wait=600))
    assert waits.asleep
    ada.unlock()
    assert waits.run().done, "the waiting worker was woken"
    assert waits.result().task == "t1"  # type: ignore[union-attr]
    assert gate_items(bed.store) == []
    assert audit(bed.store) == []


def test_a_claim_by_name_waits_for_the_gate(bed: Testbed, ada: Agent, bob: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    ada.publish(**CALM)
    waits = bob.client.start(bob.client.tasks.claim("t1", wait=600))
    assert waits.asleep
    ada.unlock()
    assert isinstance(waits.run().result(), task_outcomes.Claimed)


def test_a_wait_for_a_task_that_waits_for_our_own_lock_is_refused(ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    ada.publish(**CALM)
    found = ada.claim(wait=600)
    assert isinstance(found, task_outcomes.TaskDeadlock)
    assert found.cycle[0].startswith("ada")


def test_a_claim_checks_the_guard_again_and_brings_the_task_back_to_its_gate(
    bed: Testbed, ada: Agent
) -> None:
    ada.define(FREE)
    ada.publish("t1", **CALM)
    ada.publish("t2", priority=9)
    ada.lock()
    assert status_of(bed.store).state == "pending", "it stays ready until it is claimed"
    assert ada.next().task == "t2", "another one is taken"
    assert status_of(bed.store).guard == "calm"
    assert isinstance(ada.claim("t1"), task_outcomes.TaskBlocked)
    ada.unlock()
    assert ada.next().task == "t1"


def test_a_lock_is_acquired_or_the_task_is_claimed_but_never_both() -> None:
    """A claim relies on the free lock: an acquisition at any step of it makes it fail."""
    for steps in count(1):
        bed = Testbed()
        ada, bob = Agent(bed.remote("ada")), Agent(bed.remote("bob"))
        ada.define(FREE)
        ada.publish(**CALM)
        claim = Stepper(ada.client.tasks.claim("t1"), ada.client.store, bed.clock)
        for _ in range(steps):
            claim.go()
        finished = claim.done
        bob.lock()
        assert isinstance(claim.run().result(), task_outcomes.Claimed) is finished, steps
        if finished:
            break
    assert steps > 2


@pytest.mark.parametrize("act", ["publish", "claim", "complete"])
def test_a_gate_that_opens_at_any_step_of_another_client_is_not_missed(act: str) -> None:
    """A task comes to its gate while the lock that it waits for is released."""
    for steps in count(1):
        bed = Testbed()
        ada, bob = Agent(bed.remote("ada")), Agent(bed.remote("bob"))
        ada.define(FREE)
        ada.publish("t0")
        assert ada.claim("t0")
        if act == "complete":
            ada.publish(needs=["t0"], **CALM)
        elif act == "claim":
            ada.publish(**CALM)
        bob.lock()
        tasks = ada.client.tasks
        acts = {"publish": tasks.publish("t1", **CALM), "complete": tasks.complete("t0")}
        op: Any = acts.get(act) or tasks.claim("t1")
        coming = Stepper(op, ada.client.store, bed.clock)
        for _ in range(steps):
            coming.go()
        finished = coming.done
        bob.unlock()
        claimed = isinstance(coming.run().result(), task_outcomes.Claimed)
        assert claimed or status_of(bed.store).state == "pending", steps
        assert gate_items(bed.store) == []
        if finished:
            break


def test_needs_come_first_and_then_the_guard(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.publish("t0")
    ada.lock()
    assert ada.publish("t1", needs=["t0"], **CALM).guard == ""
    assert status_of(bed.store).on == "t0"
    ada.claim("t0")
    assert ada.complete("t0").unblocked == 0
    found = status_of(bed.store)
    assert (found.state, found.on, found.guard) == ("blocked", "", "calm")
    ada.unlock()
    assert status_of(bed.store).state == "pending"


def test_a_moment_comes_before_the_guard(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    assert ada.publish(not_before="1h", **CALM).state == "pending"
    bed.clock.advance(3601)
    assert isinstance(ada.next(), task_outcomes.NoTask)
    assert status_of(bed.store).guard == "calm"
    ada.unlock()
    assert ada.next().task == "t1"


def test_several_guards_must_all_pass(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE, guard.named("quiet", guard.lock_free("night")))
    ada.lock("deploy")
    ada.lock("night")
    ada.publish(guard=["calm", "quiet"])
    assert status_of(bed.store).guard == "calm"
    ada.unlock("deploy")
    assert status_of(bed.store).guard == "quiet"
    assert ada.show().leaf == "lock-free=night"
    ada.unlock("night")
    assert status_of(bed.store).state == "pending"
    assert gate_items(bed.store) == []


def test_a_task_waits_for_other_tasks(bed: Testbed, ada: Agent) -> None:
    ada.define(guard.named("built", guard.tasks_complete(prefix="build/")))
    ada.publish("t1", guard=["built"])
    found = ada.claim()
    assert (found.guard, found.result) == ("built", "failed")
    ada.publish("build/1")
    assert status_of(bed.store).guard == "built"
    ada.claim("build/1")
    ada.complete("build/1")
    assert ada.next().task == "t1"


def test_a_lost_holder_opens_the_gate_for_a_worker_that_waits(bed: Testbed, ada: Agent) -> None:
    """A grant that expires is no commit: the worker looks when the holder may be lost."""
    ada.define(FREE)
    lost = Agent(bed.client("lost", ttl=3.0))
    lost.lock()
    ada.publish(**CALM)
    worker = Agent(bed.client("bob", ttl=600.0))
    began = bed.clock.monotonic()
    assert worker.next(wait=60).task == "t1"
    assert 3.0 <= bed.clock.monotonic() - began < 4.0


def test_a_lost_holder_opens_the_gate_for_a_claim_by_name(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    lost = Agent(bed.client("lost", ttl=5.0))
    lost.lock()
    ada.publish(**CALM)
    bed.clock.advance(6)
    assert isinstance(ada.claim(), task_outcomes.Claimed)


# The definition.


def test_a_guard_that_is_not_defined_is_unknown_until_it_is(bed: Testbed, ada: Agent) -> None:
    published = ada.publish(**CALM)
    assert (published.state, published.guard) == ("blocked", "calm")
    found = ada.claim()
    assert (found.result, found.leaf) == ("unknown", "")
    assert found.reason == "the store has no guard of this name"
    assert found.acts == ("define guard calm: interlock guard define FILE",)
    ada.define(FREE)
    assert status_of(bed.store).state == "pending"
    assert gate_items(bed.store) == []


def test_another_definition_of_its_guard_checks_a_task_again(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    ada.publish(**CALM)
    ada.define(guard.named("calm", guard.lock_free("other")))
    assert status_of(bed.store).state == "pending"


def test_a_guard_that_is_dropped_is_unknown(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    ada.publish(**CALM)
    ada.drop()
    assert gate_of(bed.store).facts == ("guard/calm",)  # type: ignore[union-attr]
    ada.unlock()
    assert ada.claim().result == "unknown"
    ada.define(FREE)
    assert isinstance(ada.claim(), task_outcomes.Claimed)


@pytest.mark.parametrize("end", ["define", "change"])
def test_a_definition_that_comes_while_a_task_is_published_is_not_missed(end: str) -> None:
    """At any step of the definition, the task that waits for it is found afterwards."""
    for steps in count(1):
        bed = Testbed()
        ada, bob = Agent(bed.remote("ada")), Agent(bed.remote("bob"))
        if end == "change":
            ada.define(guard.named("calm", guard.lock_held("deploy")))
        defining = Stepper(ada.guards.define(FREE), ada.client.store, bed.clock)
        for _ in range(steps):
            defining.go()
        finished = defining.done
        bob.publish(**CALM)
        defining.run().result()
        assert status_of(bed.store).state == "pending", steps
        assert gate_items(bed.store) == []
        if finished:
            break


# Actions.


def acting(action: g.FailureAction) -> g.Guard:
    return guard.named("calm", guard.lock_free("deploy"), on_failure=action)


def test_a_guard_that_warns_lets_the_claim_pass_and_the_entry_says_so(
    bed: Testbed, ada: Agent
) -> None:
    ada.define(acting(g.WarnAction()))
    ada.lock()
    assert ada.publish(**CALM).state == "pending"
    assert isinstance(ada.next(), task_outcomes.Claimed)
    claimed = next(each for each in entries(bed.store) if each.verb == "task.claim")
    assert [each.name for each in claimed.events] == ["task:claimed", "task:warned"]
    assert claimed.reason.startswith("warned by guard calm: lock-free=deploy: ada holds lock")


def test_a_guard_that_fails_ends_the_task_with_its_message(bed: Testbed, ada: Agent) -> None:
    ada.define(acting(g.fail("the freeze has begun")))
    ada.publish(**CALM)
    ada.lock()
    found = ada.claim()
    assert isinstance(found, task_outcomes.NoTask)
    assert (found.state, status_of(bed.store).reason) == ("failed", "the freeze has begun")
    assert ada.publish("t2", **CALM).state == "failed"
    assert gate_items(bed.store) == []
    ada.unlock()
    assert ada.client.run(ada.client.tasks.retry("t1")) == task_outcomes.Retried(
        task="t1", state="pending"
    )


def test_a_guard_that_fails_does_not_end_a_task_while_it_is_unknown(
    bed: Testbed, ada: Agent
) -> None:
    condition = guard.file_exists("STOP")
    ada.define(guard.named("calm", condition, on_failure=g.fail("there is no file")))
    assert ada.publish(**CALM).state == "blocked"
    assert ada.claim().result == "unknown"


def test_a_guard_that_is_retried_fails_the_task_after_its_limit(bed: Testbed, ada: Agent) -> None:
    ada.define(acting(g.retry("10s", 2)))
    ada.lock()
    assert ada.publish(**CALM).guard == "calm"
    assert status_of(bed.store).failures == 1
    found = ada.claim()
    assert (found.retry_in, status_of(bed.store).failures) == (10.0, 1), "not counted twice"
    bed.clock.advance(11)
    assert isinstance(ada.next(), task_outcomes.NoTask)
    assert status_of(bed.store).failures == 2
    bed.clock.advance(11)
    assert isinstance(ada.next(), task_outcomes.NoTask)
    found = status_of(bed.store)
    assert found.state == "failed"
    assert found.reason.endswith("(failure 3)")
    assert gate_items(bed.store) == []
    assert audit(bed.store) == []


def test_a_guard_that_is_retried_opens_before_its_delay_is_over(bed: Testbed, ada: Agent) -> None:
    ada.define(acting(g.retry("1h", 2)))
    ada.lock()
    ada.publish(**CALM)
    ada.unlock()
    assert ada.next().task == "t1"
    assert gate_items(bed.store) == []


# What ends a task at its gate takes its entries along.


@pytest.mark.parametrize("end", ["cancel", "expire", "forget"])
def test_a_task_that_ends_leaves_nothing_at_its_gate(bed: Testbed, ada: Agent, end: str) -> None:
    ada.define(acting(g.retry("1h", 9)))
    ada.lock()
    ada.publish(deadline="10s", **CALM)
    if end == "cancel":
        assert ada.client.run(ada.client.tasks.cancel("t1"))
    elif end == "expire":
        bed.clock.advance(11)
        assert isinstance(ada.claim(), task_outcomes.NoTask)
        assert status_of(bed.store).state == "dead"
    else:
        ada.drop()
        ada.unlock()
        assert ada.client.run(ada.client.tasks.cancel("t1"))
    assert gate_items(bed.store) == []
    due = Range(keys.DUE)
    assert bed.store.read(due).ranges[due] == ()


@pytest.mark.parametrize("end", ["release", "requeue", "fail", "lose"])
def test_a_task_that_returns_to_the_queue_comes_to_its_gate_again(
    bed: Testbed, ada: Agent, end: str
) -> None:
    ada.define(FREE)
    ada.publish(retries=3, backoff=0, **CALM)
    worker = Agent(bed.client("bob", ttl=5.0))
    claimed = worker.claim()
    ada.lock()
    tasks = worker.client.tasks
    if end == "release":
        worker.client.run(tasks.release("t1"))
    elif end == "requeue":
        ada.client.run(ada.client.tasks.requeue("t1", "hangs"))
    elif end == "fail":
        for already in (False, True):
            failed = worker.client.run(tasks.fail("t1", "no", token=claimed.token))
            assert failed == task_outcomes.TaskFailed(
                task="t1", state="pending", attempts=1, already=already
            )
    else:
        bed.clock.advance(6)
        ada.next()
    found = status_of(bed.store)
    assert (found.state, found.guard) == ("blocked", "calm")
    ada.unlock()
    assert ada.next().task == "t1"


# Facts from outside.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "allowed"))
    root = tmp_path / "project"
    root.mkdir()
    return root


GO = guard.named("calm", guard.file_exists("GO"), max_age="60s")


def test_a_claim_by_name_looks_for_a_guard_that_its_host_allows_and_next_does_not(
    bed: Testbed, ada: Agent, project: Path
) -> None:
    ada.define(GO)
    ada.publish(**CALM)
    found = ada.claim()
    assert (found.result, found.leaf) == ("unknown", "file-exists=GO")
    assert "does not allow it, and no live host may look" in found.reason
    allow(g.digest(GO), project)
    assert ada.claim().result == "failed"
    (project / "GO").touch()
    assert ada.claim().result == "failed", "an observation counts for its maximum age"
    bed.clock.advance(61)
    assert isinstance(ada.next(), task_outcomes.NoTask), "a worker without a task runs no command"
    assert ada.claim().task == "t1"
    claimed = next(each for each in entries(bed.store) if each.verb == "task.claim")
    assert [each.condition for each in claimed.observed] == ["file-exists=GO"]


def test_a_worker_relies_on_what_another_host_saw(
    bed: Testbed, ada: Agent, bob: Agent, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "GO").touch()
    allow(g.digest(GO), project)
    ada.define(GO)
    ada.publish(**CALM)
    assert ada.claim().task == "t1"
    ada.publish("t2", **CALM)
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(project / "none"))
    assert bob.next().task == "t2"
    ada.publish("t3", **CALM)
    bed.clock.advance(61)
    assert isinstance(bob.next(), task_outcomes.NoTask), (
        "what was seen is too old, and bob cannot look"
    )
    assert status_of(bed.store, "t3").guard == "calm"


# Why.


def test_why_names_the_leaf_the_holder_and_since_when(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.lock()
    since = bed.clock.wall()
    ada.publish(**CALM)
    bed.clock.advance(5)
    why = ada.why()
    assert why.because == "guard calm: lock-free=deploy: ada holds lock deploy, for 5 s"
    assert (why.by, why.clear, why.since) == ("ada", "ada releases lock deploy", since)
    assert (why.guard, why.leaf) == ("calm", "lock-free=deploy")
    assert [(each.thing, each.by, each.since) for each in why.chain] == [
        ("lock/deploy", "ada", since)
    ]
    ada.publish("t2", needs=["t1"])
    below = ada.why("task/t2")
    assert below.because.startswith("it needs t1 (blocked): guard calm: lock-free=deploy:")
    assert below.by == "ada"


def test_why_says_which_host_may_look(bed: Testbed, ada: Agent, project: Path) -> None:
    ada.define(GO)
    ada.publish(**CALM)
    assert any("no live host may look" in line for line in ada.why().meanwhile)
    allow(g.digest(GO), project)
    ada.claim()
    assert "there is no GO" in ada.why().because
    assert any("which may look" in line for line in ada.why().meanwhile)


def test_a_damaged_guard_keeps_its_task_and_no_other(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    ada.publish("t1", **CALM)
    ada.publish("t2", priority=9)
    bed.store.commit(Txn(id="x", puts=(Put(keys.guard("calm"), b"["),), quiet=True))
    assert ada.next().task == "t2"
    with pytest.raises(StoreDamaged):
        ada.claim("t1")
    ada.define(FREE)
    assert isinstance(ada.claim("t1"), task_outcomes.Claimed)


def test_maintain_finds_a_gate_that_opened_without_a_commit(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    Agent(bed.client("lost", ttl=5.0)).lock()
    ada.publish(**CALM)
    bed.clock.advance(6)
    ada.client.run(ada.client.fleet.maintain())
    assert status_of(bed.store).state == "pending"


def test_why_ends_where_two_tasks_wait_for_each_other(ada: Agent) -> None:
    ada.define(
        guard.named("a", guard.tasks_complete(prefix="b")),
        guard.named("b", guard.tasks_complete(prefix="a")),
    )
    ada.publish("a1", guard=["a"])
    ada.publish("b1", guard=["b"])
    why = ada.why("task/a1")
    assert any("wait for each other" in line for line in why.meanwhile)
    assert (why.cycle[0], why.cycle[-1]) == ("task/a1", "task/a1")
    (problem,) = ada.client.run(ada.client.fleet.health()).problems
    assert problem.kind == "deadlock"
    assert problem.says == "task/a1: waiting never ends (task/a1 -> task/b1 -> task/a1)"
    assert problem.cycle == ("task/a1", "task/b1", "task/a1")


# What a plain task pays.

PLAIN = """
import interlock, sys
with interlock.connect("memory:", agent="ada") as fleet:
    fleet.tasks.publish("t1")
    fleet.tasks.publish("t2", needs=["t1"])
    fleet.tasks.claim("t1")
    fleet.tasks.complete("t1")
    fleet.tasks.fail(fleet.tasks.next().task)
    fleet.tasks.next()
    fleet.tasks.cancel("t2")
    fleet.tasks.list(all=True)
print(*[name for name in sys.modules if "guard" in name or "gate" in name])
"""


def test_a_task_without_a_guard_imports_nothing_of_guards() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_task_without_a_guard_is_stored_as_before(bed: Testbed, where: str) -> None:
    ada = client(bed, where, "ada")
    ada.publish()
    status = keys.status("t1")
    item = bed.store.read(status)[status]
    assert item is not None
    assert item.value == b'{"state":"pending"}'
    ready = Range(keys.READY)
    assert [item.value for item in bed.store.read(ready).ranges[ready]] == [b'{"since":0.0}']
