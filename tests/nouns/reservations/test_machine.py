"""Reservations against a small model, which knows sets of paths and nothing of the store.

The model has a few files and patterns, and for each pattern the files that it covers.  After each
act the living reservations agree with the model: no file has two holders unless both are shared,
a refusal has a reason, and no waiter is left that nothing blocks.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.hypothesis_settings import budget
from tests.nouns.reservations.test_pattern import covers
from tests.nouns.reservations.test_reservations import files, reserve, unreserve

from interlock.nouns.reservations import reservation as r
from interlock.testing.audit import audit
from interlock.testing.faults import Chances
from interlock.testing.testbed import Client, Testbed

NAMES = ("a.py", "b.py", "c.ts", "d.ts", "b.x", "x")
FILES = [
    *(f"{top}/{name}" for top in ("src", "web", "docs") for name in NAMES),
    *(f"{top}/{name}/{last}" for top in ("src", "web", "docs") for name in NAMES for last in NAMES),
]
"""A folder may have any name, so every pair of patterns that overlaps does so in one of these."""
TEXTS = ("src", "src/*.py", "src/a*", "*.ts", "web/d.ts", "**/[bd].*", "docs", "docs/x")
COVERS = {text: {path for path in FILES if covers(text, path)} for text in TEXTS}
AGENTS = st.sampled_from(["ada", "bob", "eve"])
PATTERNS = st.lists(st.sampled_from(sorted(COVERS)), min_size=1, max_size=2, unique=True)


class ReservationMachine(RuleBasedStateMachine):
    remote = False

    @initialize()
    def start(self) -> None:
        self.bed = Testbed()
        chances = Chances(conflict=0.1, lost_reply=0.1, late_arrival=0.05)
        names = ("ada", "bob", "eve")
        self.clients: dict[str, Client] = {
            name: (
                self.bed.remote(name, ttl=3e7, chances=chances)
                if self.remote
                else self.bed.client(name, ttl=3e7)
            )
            for name in names
        }
        self.watch = self.bed.client("watch", ttl=3e7)

    def listed(self) -> list[r.ReservationView]:
        return list(self.watch.run(files(self.watch).list()))

    @rule(
        agent=AGENTS,
        patterns=PATTERNS,
        shared=st.booleans(),
        ttl=st.sampled_from([5, 50]),
        on_conflict=st.sampled_from(["deny", "queue"]),
    )
    def reserves(
        self, agent: str, patterns: list[str], shared: bool, ttl: int, on_conflict: str
    ) -> None:
        before = [each for each in self.listed() if each.state != "stale"]
        mine = {path for text in patterns for path in COVERS[text]}
        got: Any = reserve(
            self.clients[agent], *patterns, shared=shared, ttl=ttl, on_conflict=on_conflict
        )
        blocked = [
            each
            for each in before
            if each.holder != agent
            and not (each.shared and shared)
            and mine & {path for text in each.patterns for path in COVERS[text]}
        ]
        if isinstance(got, r.ReservationExtended):
            return
        if isinstance(got, r.Reserved):
            assert not [each for each in blocked if each.state == "reserved"]
        else:
            assert isinstance(
                got, r.ReservationQueued if on_conflict == "queue" else (r.ReservationConflict)
            )
            assert blocked
            assert got.holder in {each.holder for each in blocked}

    @rule(agent=AGENTS)
    def releases(self, agent: str) -> None:
        assert unreserve(self.clients[agent], all=True)
        assert agent not in {each.holder for each in self.listed()}

    @rule(seconds=st.sampled_from([1, 7]))
    def passes(self, seconds: int) -> None:
        self.bed.clock.advance(seconds)

    @rule()
    def maintains(self) -> None:
        self.watch.run(self.watch.fleet.maintain())
        assert not [each for each in self.listed() if each.state == "stale"]

    def teardown(self) -> None:
        if not hasattr(self, "bed"):
            return
        for client in self.clients.values():
            if self.remote:
                client.network.chances = Chances()
        found = [each for each in self.listed() if each.state == "reserved"]
        for path in sorted(set().union(*COVERS.values())):
            over = [e for e in found if any(path in COVERS[text] for text in e.patterns)]
            if not all(each.shared for each in over):
                assert len({each.holder for each in over}) <= 1
        self.watch.run(self.watch.fleet.maintain())
        self._no_waiter_is_left_that_nothing_blocks()
        assert audit(self.bed.store) == []

    def _no_waiter_is_left_that_nothing_blocks(self) -> None:
        seen: list[r.ReservationView] = []
        for each in self.listed():
            own = {path for text in each.patterns for path in COVERS[text]}
            if each.state == "queued":
                assert any(
                    own & {path for text in other.patterns for path in COVERS[text]}
                    and other.holder != each.holder
                    and not (other.shared and each.shared)
                    for other in seen
                )
            seen.append(each)


class RemoteMachine(ReservationMachine):
    remote = True


@pytest.mark.parametrize("machine", [ReservationMachine, RemoteMachine])
def test_reservations_agree_with_a_model(machine: type[ReservationMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=budget(25), stateful_step_count=25)
    )
