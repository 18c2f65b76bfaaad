"""Facts from outside for guards: a host looks, stores what it saw, and others rely on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import interlock
from interlock import Fleet, aio, guard
from interlock.core import keys
from interlock.errors import StoreFull
from interlock.nouns.agents.session_service import Sessions
from interlock.nouns.guards import guard as g
from interlock.nouns.guards import rules
from interlock.nouns.guards.allowed import allow, deny
from interlock.nouns.guards.condition import FileNeed, NoFact, Observation
from interlock.nouns.guards.hosts import NOTED, announce
from interlock.nouns.guards.observations import (
    observation_key,
    observations,
    withdraw,
)
from interlock.nouns.guards.results import AllowingHost, GuardCheck, GuardView
from interlock.nouns.guards.service import check_inside
from interlock.runtime.identity import Actor
from interlock.runtime.integrity import unreadable
from interlock.runtime.reads import outside
from interlock.runtime.runner import Runner
from interlock.steps import InThread, drive
from interlock.store import Committed, Put, Range, Txn, Work
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock

FILE = FileNeed(path="STOP")
STOP = guard.named("stop", guard.file_exists("STOP"), max_age="60s")


class Hosts:
    """Hosts with lists of their own, each with a clock, at one store."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self._folder = folder
        self._patch = patch
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)

    def at(self, name: str) -> None:
        """Be this host."""
        self._patch.setenv("INTERLOCK_ALLOWED_DIR", str(self._folder / name))
        self._patch.setattr(os, "uname", lambda: SimpleNamespace(nodename=name))

    def run_agent(self, ttl: float) -> None:
        """A session of an agent on this host."""
        sessions = Sessions(Runner(self.store, clock=self.clock))
        drive(sessions.join("ada", ttl=ttl), self.store)

    def withdraw(self, *guards: g.Guard) -> int:
        named = {g.digest(each): each.name for each in guards}
        for each in named:
            deny(each)
        return drive(withdraw(Runner(self.store, clock=self.clock), named, Actor()), self.store)

    @property
    def observed(self) -> int:
        """How many observations are stored."""
        folder = Range(keys.OBSERVED)
        return len(self.store.read(folder).ranges[folder])

    def allow(self, *guards: g.Guard, root: Path | None = None) -> None:
        for each in guards:
            allow(g.digest(each), root or self.root)

    def facts(self, *guards: g.Guard, clock: FakeClock | None = None) -> list[object]:
        """The facts of each guard about its file."""
        own = clock or self.clock
        runner = Runner(self.store, clock=own)
        found = drive(observations(runner, guards, own), self.store)
        return [found[g.digest(each)][FILE] for each in guards]

    def outcome(self, one: g.Guard, clock: FakeClock | None = None) -> str:
        own = clock or self.clock
        runner = Runner(self.store, clock=own)
        found = drive(observations(runner, [one], own), self.store)
        (result,) = drive(outside(check_inside([one], found, own.wall())), self.store)
        return result.result


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts(tmp_path, monkeypatch)
    made.at("first")
    return made


def test_a_host_that_allows_a_guard_looks_itself(hosts: Hosts) -> None:
    hosts.allow(STOP)
    (seen,) = hosts.facts(STOP)
    assert isinstance(seen, Observation)
    assert (seen.value, seen.at) == (False, hosts.clock.wall())
    (hosts.root / "STOP").touch()
    (seen,) = hosts.facts(STOP)
    assert isinstance(seen, Observation)
    assert seen.value is True


def test_another_host_relies_on_it_for_as_long_as_the_guard_allows(hosts: Hosts) -> None:
    (hosts.root / "STOP").touch()
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.at("second")
    hosts.clock.advance(59)
    assert hosts.outcome(STOP) == "passed"
    hosts.clock.advance(2)
    assert hosts.outcome(STOP) == "unknown"
    (fact,) = hosts.facts(STOP)
    assert isinstance(fact, NoFact)
    assert "this host (second) does not allow it" in fact.says
    assert "first looked 61 s ago" in fact.says


def test_a_leaf_says_which_live_host_could_say_more(hosts: Hosts) -> None:
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.run_agent(ttl=3600)
    hosts.at("second")
    hosts.clock.advance(61)
    (fact,) = hosts.facts(STOP)
    assert isinstance(fact, NoFact)
    assert fact.hosts == ("first",)
    assert fact.says == (
        "this host (second) does not allow it; host first may look, and did not within 60 s"
        " (first looked 61 s ago)"
    )
    leaf = rules.evaluate(STOP.condition, {FILE: fact})
    assert rules.acts(leaf) == ("check the guard on host first, which may look",)


def test_a_leaf_says_that_no_live_host_may_look(hosts: Hosts) -> None:
    (nobody,) = hosts.facts(STOP)
    assert isinstance(nobody, NoFact)
    assert "and no live host may look; a person has to allow it" in nobody.says
    runner = Runner(hosts.store, clock=hosts.clock)
    drive(announce(runner, [g.digest(STOP)]), hosts.store)
    hosts.run_agent(ttl=60)
    hosts.at("second")
    hosts.run_agent(ttl=10_000_000)
    hosts.clock.advance(61)
    (fact,) = hosts.facts(STOP)
    assert isinstance(fact, NoFact)
    assert "no live host may look: no agent runs on host first, which may" in fact.says
    assert rules.acts(rules.evaluate(STOP.condition, {FILE: fact}))[0].startswith("check the guard")
    hosts.clock.advance(NOTED)
    assert hosts.facts(STOP) == [replace(nobody, says=nobody.says.replace("first", "second"))]


def test_what_a_host_saw_does_not_outlive_its_denial(hosts: Hosts) -> None:
    other = guard.named("other", guard.file_exists("STOP"))
    hosts.allow(STOP, other)
    hosts.facts(STOP, other)
    assert hosts.withdraw(STOP) == 1
    hosts.at("second")
    assert (hosts.outcome(STOP), hosts.outcome(other)) == ("unknown", "failed")
    (fact,) = hosts.facts(STOP)
    assert isinstance(fact, NoFact)
    assert "no live host may look; a person" in fact.says
    hosts.at("first")
    assert hosts.withdraw(STOP) == 0
    with interlock.connect(store=hosts.store, agent="ada", join=False) as ada:
        verbs = [entry.verb for entry in ada.record.log()]
        assert verbs == ["guard.observe", "guard.withdraw"]
        assert ada.record.verify().completeness == "ok"


def test_a_denial_leaves_what_another_host_saw(hosts: Hosts) -> None:
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.at("second")
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.at("first")
    assert hosts.withdraw(STOP) == 0
    assert hosts.outcome(STOP) == "failed"


def test_a_denial_while_the_host_looks_leaves_nothing_behind(hosts: Hosts) -> None:
    hosts.allow(STOP)
    op = observations(Runner(hosts.store, clock=hosts.clock), [STOP], hosts.clock)
    permitted = next(op)
    looking = op.send(permitted.perform(hosts.store))
    assert isinstance(looking, InThread)
    seen = looking.perform(hosts.store)
    assert hosts.withdraw(STOP) == 0
    step = op.send(seen)
    assert hosts.observed == 0
    with suppress(StopIteration):
        while True:
            step = op.send(step.perform(hosts.store))
    assert hosts.observed == 0
    hosts.at("second")
    assert hosts.outcome(STOP) == "unknown"


def test_a_denial_of_many_facts_is_several_commits(hosts: Hosts) -> None:
    many = guard.named("many", guard.all_of(*[~guard.file_exists(f"f{n}") for n in range(300)]))
    hosts.allow(many)
    drive(observations(Runner(hosts.store), [many], hosts.clock), hosts.store)
    assert hosts.observed == 300
    assert hosts.withdraw(many) == 300
    assert hosts.observed == 0


@pytest.mark.parametrize("wrong", [-7200.0, 7200.0, 86400.0 * 365])
def test_the_engine_measures_the_age_whatever_the_clock_of_a_host_says(
    hosts: Hosts, wrong: float
) -> None:
    (hosts.root / "STOP").touch()
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.at("second")
    elsewhere = FakeClock(wall=hosts.clock.wall() + wrong)
    hosts.clock.advance(30)
    assert hosts.outcome(STOP, elsewhere) == "passed"
    (seen,) = hosts.facts(STOP, clock=elsewhere)
    assert isinstance(seen, Observation)
    assert seen.at == elsewhere.wall() - 30
    hosts.clock.advance(31)
    assert hosts.outcome(STOP, elsewhere) == "unknown"


def test_a_guard_that_changed_finds_no_observation_of_the_old_one(hosts: Hosts) -> None:
    hosts.allow(STOP)
    hosts.facts(STOP)
    changed = guard.named("stop", guard.file_exists("STOP"), max_age="61s")
    (fact,) = hosts.facts(changed)
    assert isinstance(fact, NoFact)
    assert "does not allow it" in fact.says


def test_guards_that_ask_for_the_same_file_below_two_roots_get_two_answers(hosts: Hosts) -> None:
    other = guard.named("other", guard.file_exists("STOP"))
    elsewhere = hosts.root / "below"
    elsewhere.mkdir()
    (elsewhere / "STOP").touch()
    hosts.allow(STOP)
    hosts.allow(other, root=elsewhere)
    third = guard.named("third", guard.file_exists("STOP"))
    first, second, none = hosts.facts(STOP, other, third)
    assert isinstance(first, Observation)
    assert isinstance(second, Observation)
    assert (first.value, second.value) == (False, True)
    assert isinstance(none, NoFact)


def test_a_look_that_cannot_say_anything_replaces_no_answer(hosts: Hosts) -> None:
    (hosts.root / "STOP").touch()
    hosts.allow(STOP)
    hosts.facts(STOP)
    hosts.at("second")
    hosts.allow(STOP, root=hosts.root)
    (hosts.root / "STOP").unlink()
    hosts.root.rmdir()
    (own,) = hosts.facts(STOP)
    assert isinstance(own, Observation)
    assert own.value is None
    hosts.at("third")
    assert hosts.outcome(STOP) == "passed"


def test_what_is_stored_is_quiet_and_lives_for_the_maximum_age(hosts: Hosts) -> None:
    hosts.allow(STOP)
    hosts.facts(STOP)
    key = observation_key(g.digest(STOP), FILE)
    found = hosts.store.read(key, keys.observed_live(key), times=True)
    assert found[key] is not None
    live = found[keys.observed_live(key)]
    assert live is not None
    assert live.expires_in == pytest.approx(60)
    with interlock.connect(store=hosts.store, agent="ada", join=False) as ada:
        assert [line.verb for line in ada.record.log()] == ["guard.observe"]
        assert ada.record.verify().completeness == "ok"


def test_an_age_that_the_engine_cannot_measure_is_not_shared(hosts: Hosts) -> None:
    brief = guard.named("brief", guard.file_exists("STOP"), max_age="100ms")
    hosts.allow(brief)
    hosts.facts(brief)
    folder = Range(keys.OBSERVED)
    assert hosts.store.read(folder).ranges[folder] == ()


def test_a_full_store_spoils_no_answer(hosts: Hosts) -> None:
    class FullStore(MemoryStore):
        def transact(self, work: Work) -> Committed | None:
            raise StoreFull("no room; delete something")

    hosts.store = FullStore(hosts.clock)
    hosts.allow(STOP)
    assert hosts.outcome(STOP) == "failed"


def test_the_words_of_a_caller_are_looked_at_but_not_stored(hosts: Hosts) -> None:
    own = g.Guard(name="", condition=guard.file_exists("STOP"))
    runner = Runner(hosts.store, clock=hosts.clock)
    found = drive(observations(runner, [own], hosts.clock, own_root=str(hosts.root)), hosts.store)
    fact = found[g.digest(own)][FILE]
    assert isinstance(fact, Observation)
    folder = Range(keys.OBSERVED)
    assert hosts.store.read(folder).ranges[folder] == ()
    (refused,) = hosts.facts(own)  # a gate gives no root, so a guard without a name is nothing else
    assert isinstance(refused, NoFact)


def test_a_slow_command_does_not_make_the_files_beside_it_too_old(
    hosts: Hosts, tmp_path: Path
) -> None:
    both = guard.file_exists("project") & guard.command("sleep 0.4")
    slow = guard.named("slow", both, max_age="300ms")
    hosts.allow(slow, root=tmp_path)
    with interlock.connect(store=hosts.store, agent="ada", join=False) as ada:
        answer = ada.guards.check(slow)
        assert answer, answer


def test_what_a_host_sees_is_seen_in_a_thread(hosts: Hosts) -> None:
    """An event loop goes on while commands run."""
    hosts.allow(STOP)
    op = observations(Runner(hosts.store), [STOP], hosts.clock)
    assert isinstance(next(op), InThread)
    op.close()


def test_guards_of_the_store_alone_look_at_nothing(hosts: Hosts) -> None:
    free = guard.named("free", guard.lock_free("deploy"))
    with pytest.raises(StopIteration) as done:
        next(observations(Runner(hosts.store), [free], hosts.clock))
    assert done.value.value == {}


def test_maintenance_deletes_observations_that_are_too_old_and_no_others(hosts: Hosts) -> None:
    old = guard.named("old", guard.file_exists("STOP"), max_age="10s")
    hosts.allow(STOP, old)
    hosts.facts(STOP, old)
    hosts.clock.advance(30)
    with interlock.connect(store=hosts.store, agent="ada", join=False) as ada:
        ada.maintain()
        folder = Range(keys.OBSERVED)
        (left,) = hosts.store.read(folder).ranges[folder]
        assert left.key == observation_key(g.digest(STOP), FILE)
        hosts.facts(old)
        assert ada.record.verify().completeness == "ok"


def test_a_damaged_observation_is_none_and_maintenance_deletes_it(hosts: Hosts) -> None:
    hosts.allow(STOP)
    hosts.facts(STOP)
    key = observation_key(g.digest(STOP), FILE)
    hosts.store.commit(Txn(id="x", puts=(Put(key, b"["),), quiet=True))
    hosts.at("second")
    assert hosts.outcome(STOP) == "unknown"
    assert len(drive(unreadable(), hosts.store)) == 1
    with interlock.connect(store=hosts.store, agent="ada", join=False) as ada:
        ada.maintain()
        assert drive(unreadable(), hosts.store) == []


@pytest.fixture
def fleet(url: str) -> Iterator[Fleet]:
    with interlock.connect(url, agent="ada") as ada:
        yield ada


def test_hosts_share_what_they_see_on_every_engine(
    fleet: Fleet, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "STOP").touch()
    both = guard.named("both", guard.file_exists("STOP") & guard.lock_free("deploy"))
    fleet.guards.define(both)
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "first"))
    assert not fleet.guards.check("both")
    allow(g.digest(both), tmp_path)
    assert fleet.guards.check("both")
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "second"))
    assert fleet.guards.check("both")

    async def awaited() -> None:
        async with await aio.connect(url, agent="bob") as bob:
            assert await bob.guards.check("both")
            await bob.locks.acquire("deploy")
            failed = await bob.guards.check("both")
            assert isinstance(failed, GuardCheck)
            assert failed.outcome == "failed"
            await bob.locks.release("deploy")

    asyncio.run(awaited())
    many = guard.named("many", guard.all_of(*[~guard.file_exists(f"f{n}") for n in range(300)]))
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "first"))
    allow(g.digest(many), tmp_path)
    assert fleet.guards.check(many)
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "second"))
    assert fleet.guards.check(many)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    drive(announce(fleet.context.runner, [g.digest(many)]), fleet.store)
    with interlock.connect(url, agent="bob"):
        monkeypatch.undo()
        monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "second"))
        named = {g.digest(many): "many"}
        assert drive(withdraw(fleet.context.runner, named, Actor()), fleet.store) == 300
        unseen = fleet.guards.check(many)
        assert isinstance(unseen, GuardCheck)
        assert "host elsewhere may look" in unseen.leaves[0].reason
        fleet.guards.define(many)
        shown = fleet.guards.show("many")
        assert isinstance(shown, GuardView)
        assert shown.hosts == (AllowingHost(host="elsewhere", live=True),)
    key = observation_key(g.digest(both), FILE)
    fleet.store.commit(Txn(id="x", deletes=(keys.observed_live(key),)))
    assert not fleet.guards.check("both")
    fleet.maintain()
    assert fleet.store.read(key)[key] is None
    assert fleet.record.verify().completeness == "ok"
