"""A client dies at any commit of any operation: another one finishes, each phase once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest
from tests.nouns.pipelines.pipelines import RELEASE, Mover, definition, run_of

from interlock.nouns.pipelines import pipeline as core
from interlock.steps import Op
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Testbed

PHASES = ("build", "test", "merge", "deploy")


def start(mover: Mover) -> Op[Any]:
    return mover.calls.start("release", id="r1")


def leave_the_tasks(mover: Mover) -> Op[Any]:
    """The commit that completes the last task leads into the next phase."""
    mover.start("release")
    mover.do_tasks(1)
    last: Any = mover.client.run(mover.client.tasks.next())
    return mover.client.tasks.complete(last.task, token=last.token)


def acquire(mover: Mover) -> Op[Any]:
    mover.client.run(leave_the_tasks(mover))
    return mover.calls.advance("r1", phase="test")


def exchange(mover: Mover) -> Op[Any]:
    mover.client.run(acquire(mover))
    return mover.calls.advance("r1")


def complete(mover: Mover) -> Op[Any]:
    mover.client.run(exchange(mover))
    return mover.calls.advance("r1")


def block(mover: Mover) -> Op[Any]:
    mover.start("release")
    return mover.calls.advance("r1")


Act: TypeAlias = Callable[[Mover], Op[Any]]
ACTS: list[Act] = [start, leave_the_tasks, acquire, exchange, complete, block]


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
@pytest.mark.parametrize("act", ACTS)
def test_another_client_finishes_what_was_struck(act: Act, fault: Fault) -> None:
    for commit in count():
        bed = Testbed()
        owner = Mover(bed.client("owner"))
        owner.define(definition(RELEASE))
        owner.client.run(owner.client.semaphores.resize("builds", 2))
        struck = Mover(bed.remote("struck", ttl=10.0))
        op = act(struck)
        struck.client.network.script([None] * commit + [fault])
        crashed = False
        try:
            struck.client.run(op)
        except Crash:
            crashed = True
        finish(bed)
        if not crashed and not struck.client.network.drawn:
            assert commit >= 1
            return


def finish(bed: Testbed) -> None:
    heir = Mover(bed.remote("heir", ttl=1000.0))
    for _ in range(40):
        bed.clock.advance(3)
        heir.start("release")
        heir.do_tasks()
        if isinstance(heir.advance(), core.PipelineCompleted):
            break
        if run_of(bed.store).state == "complete":
            break
    run = run_of(bed.store)
    assert (run.state, run.grants) == ("complete", ())
    assert heir.holder("merge") == ""
    story = heir.client.run(heir.client.record.explain("pipeline/r1"))
    entered = [each.says for each in story.happenings if each.what == "advanced"]
    assert entered == [f"phase {name}" for name in PHASES]
    assert audit(bed.store) == []
