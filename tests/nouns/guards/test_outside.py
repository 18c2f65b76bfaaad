"""Looks at the outside: side by side, each with its limit, none of them an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.nouns.guards.outside import HOST, Repository

from interlock.nouns.guards import outside_files
from interlock.nouns.guards.condition import (
    BranchNeed,
    CleanNeed,
    CommandNeed,
    FileNeed,
    MergedNeed,
    OutsideNeed,
    TextNeed,
)
from interlock.nouns.guards.outside import observe
from interlock.nouns.guards.sighting import AT_ONCE, in_parallel
from interlock.testing.clock import FakeClock

NEEDS: list[OutsideNeed] = [
    BranchNeed("main"),
    CleanNeed("main"),
    MergedNeed("main", "main"),
    FileNeed("a.txt"),
    TextNeed("a.txt", text="text"),
    TextNeed("a.txt", pattern="t..t"),
    CommandNeed(run=("true",)),
]


class CountingClock(FakeClock):
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        super().__init__(wall=0.0)
        self._reading = threading.Lock()

    def wall(self) -> float:
        with self._reading:
            self.advance(1.0)
            return super().wall()


def test_nothing_is_looked_at_unless_it_is_asked(tmp_path: Path) -> None:
    assert observe([], tmp_path / "missing", host=HOST, clock=FakeClock()) == {}


def test_all_kinds_of_facts_come_from_one_call(tmp_path: Path) -> None:
    Repository(tmp_path).commit("a.txt")
    seen = observe(NEEDS, tmp_path, host=HOST, clock=FakeClock(wall=7.0))
    assert [seen[need].value for need in NEEDS] == [True] * 6 + [0]
    assert {(found.host, found.at) for found in seen.values()} == {(HOST, 7.0)}
    assert all(len(found.digest) == 64 for found in seen.values())


def test_each_unknown_fact_has_a_reason_and_a_digest(tmp_path: Path) -> None:
    seen = observe(NEEDS, tmp_path / "missing", host=HOST, clock=FakeClock(wall=7.0))
    assert {found.value for found in seen.values()} == {None}
    assert all(found.says and len(found.digest) == 64 for found in seen.values())
    assert {(found.host, found.at) for found in seen.values()} == {(HOST, 7.0)}


def test_what_is_asked_twice_is_looked_at_once(tmp_path: Path) -> None:
    need = CommandNeed(run=("sh", "-c", "echo >> runs"))
    seen = observe([need, need], tmp_path, host=HOST, clock=FakeClock())
    assert list(seen) == [need]
    assert (tmp_path / "runs").read_text() == "\n"


def test_a_file_is_dated_by_the_begin_of_the_look_and_a_command_by_its_end(tmp_path: Path) -> None:
    file, command = FileNeed("a.txt"), CommandNeed(run=("true",))
    clock = CountingClock()
    assert observe([file], tmp_path, host=HOST, clock=clock)[file].at == 1.0
    clock = CountingClock()
    assert observe([command], tmp_path, host=HOST, clock=clock)[command].at == 2.0


def test_a_look_that_fails_does_not_spoil_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(outside_files, "_look")
    file, command = FileNeed("a.txt"), CommandNeed(run=("true",))
    seen = observe([file, command], tmp_path, host=HOST, clock=FakeClock())
    assert (seen[file].value, seen[command].value) == (None, 0)
    assert "_look" in seen[file].says


def test_a_look_that_never_ends_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file on a network disk that is gone."""
    over = threading.Event()
    monkeypatch.setattr(outside_files, "look", lambda *_: over.wait())
    monkeypatch.setattr(outside_files, "FILE_SECONDS", 0.1)
    files = [FileNeed(f"{number}.txt") for number in range(AT_ONCE + 1)]
    command = CommandNeed(run=("true",))
    try:
        seen = observe([*files, command], tmp_path, host=HOST, clock=FakeClock(wall=7.0))
    finally:
        over.set()
    assert seen[command].value == 0
    assert {seen[file].says for file in files} == {"there is no answer after 0.1 s"}
    assert {(seen[file].value, seen[file].at) for file in files} == {(None, 7.0)}


def test_works_are_carried_out_side_by_side_but_not_too_many() -> None:
    together, one_more = threading.Barrier(AT_ONCE), threading.Event()

    def work() -> bool:
        together.wait(60)
        return one_more.wait(0.1)

    works: list[tuple[Callable[[], object], float]] = [(work, 60.0)] * AT_ONCE
    results = in_parallel([*works, (one_more.set, 60.0)])
    assert not all(results[:AT_ONCE])


def test_results_are_in_the_order_of_the_works() -> None:
    second = threading.Event()

    def first() -> str:
        second.wait(60)
        return "first"

    def then() -> str:
        second.set()
        return "second"

    works: list[tuple[Callable[[], str], float]] = [(first, 60.0), (then, 60.0)]
    assert in_parallel(works) == ["first", "second"]


def test_an_exception_of_a_work_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        in_parallel([(lambda: 1 // 0, 60.0)])
