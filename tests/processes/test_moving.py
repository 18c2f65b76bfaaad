"""A move between engines by real processes: killed at every step, under agents that work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.nouns.fleet.test_moving import content, state_of, work
from tests.processes.helpers import ProcessGroup
from tests.processes.moving_programs import moves

import interlock
from interlock.nouns.fleet.moving import StoreCopy
from interlock.nouns.record.verify import verify
from interlock.steps import drive
from interlock.stores import open_store
from interlock.testing.servers import RedisServer


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.moving_programs") as everybody:
        yield everybody


def test_a_mover_killed_between_two_steps_leaves_one_store_and_the_next_one_completes(
    tmp_path: Path, redis_server: RedisServer, programs: ProcessGroup
) -> None:
    for step in (3, 4, 6, 8, 10, 12):
        source, target = f"{tmp_path}/{step}.db", redis_server.url(f"{tmp_path.name}-{step}")
        with closing(open_store(source, filling=True)) as one:
            work(one)
            mover = programs.start("moves", source, target, step)
            mover.died()
            with closing(open_store(target, filling=True)) as two:
                if content(two)[0]:
                    assert state_of(one) in ("moving", "moved")  # type: ignore[arg-type]
                programs.start("moves", source, target, 0).finish()
                assert content(one) == content(two)
                assert drive(verify(two.capabilities), two)
                assert (state_of(one), state_of(two)) == ("moved", "")  # type: ignore[arg-type]


def test_agents_at_work_lose_no_acknowledged_change_and_are_told(
    tmp_path: Path, redis_url: str, programs: ProcessGroup
) -> None:
    source = f"{tmp_path}/store.db"
    agents = [programs.start("works", source, f"agent-{number}") for number in range(3)]
    for agent in agents:
        assert agent.read_line() == "ready"
        agent.read_line()
    moves(source, redis_url, "0")
    granted: list[int] = []
    for agent in agents:
        *tokens, last = agent.remaining_lines()
        assert last == f"moved {redis_url}"
        granted += map(int, tokens)
    with closing(open_store(redis_url)) as target:
        revisions = {entry.revision for entry in content(target)[1]}
        assert set(granted) <= revisions, "acknowledged, and not in the copy"
        assert drive(verify(target.capabilities), target)
    with interlock.connect(redis_url, agent="ada") as ada:
        got = ada.locks.acquire("lock-new")
        assert isinstance(got, interlock.Acquired)
        assert got.token is not None
        assert got.token > max(granted)


@pytest.mark.parametrize("engine", ["sqlite", "redis", "etcd"])
def test_a_holder_and_a_waiter_of_the_old_store_are_told_and_the_lock_stays_reserved(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, programs: ProcessGroup
) -> None:
    target = f"{tmp_path}/target.db"
    source = (
        f"{tmp_path}/source.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    )
    holder = programs.start("holds", source, 4)
    token = int(holder.read_line().split()[1])
    waiter = programs.start("waits", source, 3)
    assert waiter.read_line() == "waits"
    moves(source, target, "0")
    with interlock.connect(target, agent="ada") as ada:
        assert [each.token for each in ada.locks.list()] == [token]
        assert holder.read_line() == "lost"
        assert waiter.read_line() == "moved"
        assert [each.token for each in ada.locks.list()] == [token]


@pytest.mark.parametrize("engine", ["sqlite", "redis", "etcd"])
def test_every_program_that_runs_while_its_store_is_moved_ends_and_is_told_where(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, programs: ProcessGroup
) -> None:
    target = f"{tmp_path}/target.db"
    source = (
        f"{tmp_path}/source.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    )
    with interlock.connect(source, agent="ada") as ada:
        ada.tasks.publish("first")
    busy = programs.start("toils", source, "busy")
    assert [busy.read_line(), busy.read_line()] == ["ready", "begun first"]
    names = ("toils", "serves", "observes", "receives")
    idle = [programs.start(name, source, name) for name in names]
    for each in idle:
        assert each.read_line() == "ready"
    moves(source, target, "0")
    assert [each.read_line() for each in idle] == [f"StoreMoved {target}"] * len(idle)
    busy.write_line("")
    assert [busy.read_line(), busy.read_line()] == ["lost first", f"StoreMoved {target}"]
    with interlock.connect(target, agent="ada") as ada:
        [held] = ada.tasks.list()
        assert (held.task, held.state) == ("first", "running"), "until its time is up"


@pytest.mark.proof
def test_five_thousand_items_a_second_are_moved_from_sqlite_to_redis(
    tmp_path: Path, redis_url: str
) -> None:
    source = f"{tmp_path}/store.db"
    with interlock.connect(source, agent="ada") as ada:
        for number in range(5000):
            ada.tasks.publish(f"t{number}", {"text": "x" * 200})
    with (
        closing(open_store(source, filling=True)) as one,
        closing(open_store(redis_url, filling=True)) as two,
    ):
        done = StoreCopy(one, two, (source, redis_url)).run()
    assert done.items / done.seconds > 5000
