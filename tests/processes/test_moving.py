"""A move between engines by real processes: killed at every step, under agents that work."""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from tests.nouns.fleet.test_moving import content, state_of, work
from tests.nouns.pipelines.pipelines import RELEASE, definition
from tests.processes.helpers import ProcessGroup, until
from tests.processes.moving_programs import moves

import interlock
from interlock import registry
from interlock.errors import NotAllowed, StoreBusy
from interlock.nouns.fleet.moving import StoreCopy, record_restore
from interlock.nouns.messages.decision import OwnDecision
from interlock.nouns.record.verify import verify
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmRegistered
from interlock.steps import drive
from interlock.stores import open_store
from interlock.stores.sqlite import backup
from interlock.testing.audit import audit
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
                moves(source, target, "0")
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


@pytest.mark.parametrize(
    "engine",
    ["sqlite", *[pytest.param(name, marks=pytest.mark.proof) for name in ("redis", "etcd")]],
)
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


def test_a_store_with_something_of_everything_is_the_same_after_moves_through_all_engines(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    programs: ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first process of each move is killed, at a step that differs in each run."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    subprocess.run(["git", "init", "-q", "--bare", f"{tmp_path}/fleet.git"], check=True)
    places = [
        f"{tmp_path}/first.db",
        request.getfixturevalue("redis_url"),
        request.getfixturevalue("etcd_url"),
        f"git+file://{tmp_path}/fleet.git",
        f"{tmp_path}/last.db",
    ]
    bank = tmp_path / "bank.db"
    merge, question = everything(places[0], str(bank), str(tmp_path / "bus.db"))
    before = listed(places[0])
    for source, target in itertools.pairwise(places):
        step = random.randint(2, 14)
        programs.start("moves", source, target, step).died()
        moves(source, target, "0")
        with (
            closing(open_store(source, filling=True)) as one,
            closing(open_store(target)) as two,
        ):
            assert content(one) == content(two), step
            assert state_of(one) == "moved"  # type: ignore[arg-type]
        assert listed(target) == before, (source, target, step)
    with interlock.connect(places[-1], agent="ops", key="shop") as shop:
        assert isinstance(shop.locks.release("merge", token=merge - 1), interlock.LockFenced)
        assert isinstance(shop.locks.release("merge", token=merge), interlock.Released)
        again = shop.locks.acquire("merge")
        assert isinstance(again, interlock.Acquired)
        assert (again.token or 0) > max(merge, int(time.time() * 1e6) - 10**9), "Redis was there"
        assert shop.locks.break_("freeze", reason="the move is over")
        assert take_in(shop) == 0, "nothing is taken in twice"
        assert audit(shop.store) == []
        assert isinstance(shop.messages.resolve(question, "yes"), OwnDecision)
        assert {each.task for each in shop.tasks.list() if each.state == "blocked"} == {
            "two",
            "r1.build.b",
        }, "the guard let its task go on"


def everything(url: str, bank: str, bus: str) -> tuple[int, str]:
    """Fill a store with something of each noun; the token of a lock, and the id of a decision."""
    prints = {}
    for name, home in (("shop", url), ("bank", bank)):
        key_files.create(name)
        with interlock.connect(home, agent="ops", key=name) as fleet:
            registered = fleet.swarms.register(name, bus=bus, key=name)
            assert isinstance(registered, SwarmRegistered)
            prints[name] = registered.fingerprint
    for home, other, name in ((url, "bank", "shop"), (bank, "shop", "bank")):
        with interlock.connect(home, agent="ops", key=name) as fleet:
            assert fleet.swarms.allow(other, key=prints[other])
    with (
        interlock.connect(url, agent="ops", key="shop") as shop,
        interlock.connect(bank, agent="teller", key="bank") as teller,
    ):
        merge = shop.locks.acquire("merge", ttl=600)
        assert isinstance(merge, interlock.Acquired)
        assert shop.locks.acquire("freeze", ttl=600)
        assert shop.semaphores.acquire("builds", weight=2, capacity=3, ttl=600)
        shop.tasks.publish_all([{"id": "one", "data": 1}, {"id": "two", "needs": ["one"]}])
        shop.tasks.publish("later", not_before="1h", deadline="2h")
        shop.guards.define(interlock.guard.named("calm", interlock.guard.lock_free("freeze")))
        shop.tasks.publish("gated", guard="calm")
        shop.pipelines.define(definition(RELEASE))
        assert shop.pipelines.start("release", id="r1")
        shop.messages.subscribe("alerts")
        shop.messages.alert("alerts", {"n": 1})
        shop.messages.send("ops", "hello")
        shop.messages.query("?nobody", "may I?", person=True, timeout=0.01)
        assert shop.requests.send("bank", "teller", {"n": 1})
        assert teller.requests.send("shop", "can:sum", {"n": 2})
        assert shop.swarms.share("rate", 3)
        teller.requests.tend()
        assert take_in(shop) == 1
        [decision] = shop.messages.decisions()
        return merge.token or 0, decision.decision


def take_in(fleet: interlock.Fleet) -> int:
    requests, store = fleet.context.requests, fleet.store
    own = drive(requests.home.own(), store)
    return drive(requests.take_in(fleet.context.identity.actor, own), store)


_AGES = ("expires_in", "retry_in", "age", "since", "entries", "ends", "unsigned", "problems")
"""What differs with the time, and what the entry of the move itself adds."""


def listed(url: str) -> dict[str, object]:
    """The outcome of every operation that lists something."""
    with interlock.connect(url, agent="ops", join=False) as fleet:
        found: dict[str, object] = {}
        for operation in (each for noun in registry.nouns() for each in noun.operations):
            if operation.name in ("metrics", "record export", "store info", "wait"):
                continue
            if operation.reads and (operation.call or operation.act):
                with suppress(TypeError):  # it needs an argument
                    outcome = fleet.act(operation.request())
                    found[operation.name] = _plain(msgspec.to_builtins(outcome))
        found["trust"] = _plain(msgspec.to_builtins(fleet.swarms.trust()))
        found["swarms"] = _plain(msgspec.to_builtins(fleet.swarms.list()))
        return found


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if name not in _AGES}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def test_a_restore_among_agents_that_come_and_go_is_refused_or_grants_no_token_twice(
    tmp_path: Path, programs: ProcessGroup
) -> None:
    store, copy = f"{tmp_path}/store.db", f"{tmp_path}/store.backup"
    with interlock.connect(store, agent="ada") as ada:
        ada.tasks.publish("kept")
    backup.back_up(store, copy)
    holder = programs.start("holds", store, 30)
    holder.read_line()
    visitors = [programs.start("visits", store, f"visitor-{number}") for number in range(2)]
    for visitor in visitors:
        visitor.read_line()
    with pytest.raises(NotAllowed, match=f"{holder.pid}.*open; stop every agent"):
        restored(store, copy)
    holder.kill()
    until(lambda: restored_if_unused(store, copy))
    for visitor in visitors:
        tokens = [int(visitor.read_line())]
        while tokens[-1] < backup.JUMP:  # until it goes on in the restored store
            tokens.append(int(visitor.read_line()))
        tokens += [int(line) for line in visitor.remaining_lines()]
        assert tokens == sorted(set(tokens))
    with closing(open_store(store)) as found:
        assert drive(verify(found.capabilities), found)


def restored(store: str, copy: str) -> backup.RestoreFacts:
    return backup.restore(
        store, copy, force=True, before=lambda part: record_restore(part, copy, store)
    )


def restored_if_unused(store: str, copy: str) -> bool:
    try:
        return bool(restored(store, copy))
    except (NotAllowed, StoreBusy):
        return False


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
