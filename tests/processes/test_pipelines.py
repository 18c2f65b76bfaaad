"""Pipelines and real processes: two advance at once, and advancers are killed at each commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.nouns.pipelines.pipelines import definition
from tests.processes import checks
from tests.processes.helpers import ProcessGroup

import interlock
from interlock.core import keys
from interlock.nouns.pipelines.pipeline import PipelineCompleted
from interlock.store import Range

ROUNDS = 8
TEXT = "".join(
    f'[[pipeline.p.phase]]\nname = "phase{number}"\nhold = ["lock/merge", "lock/step{number}"]\n'
    for number in range(ROUNDS + 1)
)


@pytest.fixture
def movers() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.pipeline_programs") as everybody:
        yield everybody


@pytest.mark.proof_on("etcd")
def test_of_two_processes_that_advance_at_once_one_wins_and_the_other_is_told_who(
    url: str, movers: ProcessGroup
) -> None:
    with interlock.connect(url, agent="owner") as fleet:
        fleet.pipelines.define(definition(TEXT))
        fleet.pipelines.start("p", id="r1")
        both = [movers.start("race", url, "r1", ROUNDS) for _ in range(2)]
        names = [mover.read_line().split()[1] for mover in both]
        for number in range(ROUNDS):
            for mover in both:
                mover.write_line()
            said = [mover.read_line().split() for mover in both]
            words = [word for word, _ in said]
            assert sorted(words) == ["lost", "won"], said
            winner = words.index("won")
            assert said[winner] == ["won", f"phase{number + 1}"]
            assert said[1 - winner] == ["lost", names[winner]]
        for mover in both:
            mover.finish()
        view: Any = fleet.pipelines.show("r1")
        assert view.phase == f"phase{ROUNDS}"
    checks.sound(url)


@pytest.mark.proof_on("etcd")
def test_an_advancer_that_is_killed_at_any_commit_leaves_a_pipeline_that_goes_on(
    url: str, movers: ProcessGroup
) -> None:
    points = [(write, when) for write in range(1, 5) for when in ("before", "after")]
    with interlock.connect(url, agent="heir") as fleet:
        text = TEXT.replace('"lock/merge", ', "").split("[[pipeline.p.phase]]")[:5]
        short = "[[pipeline.p.phase]]".join(text).replace("lock/step", "lock/own")
        fleet.pipelines.define(definition(short.replace('hold = ["lock/own', 'hold = ["sem/own')))
        for number in range(4):
            fleet.semaphores.resize(f"own{number}", len(points))
        for place, point in enumerate(points):  # in turn, so that no commit conflicts
            movers.start("die", url, f"r{place}", *point).died()
        for place, (write, when) in enumerate(points):
            commits = write if when == "after" else write - 1
            if not commits:
                assert not fleet.pipelines.show(f"r{place}")
                continue
            view: Any = fleet.pipelines.show(f"r{place}")
            outcome: object = None
            assert view.phase == f"phase{min(commits, 4) - 1}", (write, when)
            for _ in range(5 - commits):
                outcome = fleet.pipelines.advance(f"r{place}")
            assert isinstance(outcome, PipelineCompleted)
        for number in range(4):
            slots: Any = fleet.semaphores.show(f"own{number}")
            assert slots.available == len(points)
    checks.sound(url)


GATED = """
[[pipeline.{0}.phase]]
name = "one"
post = [{1}]

[[pipeline.{0}.phase]]
name = "two"
"""


def test_a_release_that_is_killed_at_any_write_moves_all_that_waits_or_nothing(
    url: str, movers: ProcessGroup
) -> None:
    with interlock.connect(url, agent="heir") as fleet:
        local = fleet.store.capabilities.transacts
        # Elsewhere the first one conflicts: bob does not know yet that a gate waits for his lock.
        points = "1 before,inside,1 after" if local else "2 before,2 after,3 before,3 after"
        for place, point in enumerate(points.split(",")):
            lock, first, second = (f"{letter}{place}" for letter in "xab")
            leaf = f"{{pipeline_in_phase = {{pipeline = '{first}', phase = 'two'}}}}"
            fleet.pipelines.define(definition(GATED.format(first, f"{{lock_free = '{lock}'}}")))
            fleet.pipelines.define(definition(GATED.format(second, leaf)))
            bob = movers.start("release", url, lock, point)
            assert bob.read_line() == "ready"
            for id_ in (first, second):
                fleet.pipelines.start(id_, id=id_)
                assert not fleet.pipelines.advance(id_)
            bob.write_line()
            bob.died()
            released = fleet.locks.show(lock).state == "free"
            assert released == (place > local)
            if not local:  # the note of a dead client is for any other one
                fleet.tasks.next()
            views: list[Any] = [fleet.pipelines.show(id_) for id_ in (first, second)]
            assert [each.phase for each in views] == ["two" if released else "one"] * 2, point
        notes = Range(keys.RECHECK)
        assert fleet.store.read(notes).ranges[notes] == ()
    checks.sound(url)
