"""The constructors of conditions for Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from interlock import guard
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import KINDS
from interlock.nouns.guards.shell import parse

MADE: list[tuple[guard.Condition, str]] = [
    (guard.lock_free("deploy"), "lock-free=deploy"),
    (guard.lock_held("deploy"), "lock-held=deploy"),
    (guard.lock_held("deploy", by="ada"), "lock-held=deploy,by=ada"),
    (guard.semaphore_available("builds", slots=2), "semaphore-available=builds,slots=2"),
    (guard.tasks_complete("build."), "tasks-complete=build."),
    (
        guard.tasks_complete(state="dead", requires="a", needs="b", label="l", none_ok=True),
        "tasks-complete=,state=dead,requires=a,needs=b,label=l,none-ok",
    ),
    (guard.no_blocked_tasks("build.", label="x"), "no-blocked-tasks=build.,label=x"),
    (guard.branch_exists("x"), "branch-exists=x"),
    (guard.branch_clean("x"), "branch-clean=x"),
    (guard.branch_merged("x", "main"), "branch-merged=x,into=main"),
    (guard.file_exists("STOP"), "file-exists=STOP"),
    (guard.file_contains("f", "1.2"), "file-contains=f,text=1.2"),
    (guard.file_contains("f", pattern="1+"), "file-contains=f,pattern=1+"),
    (guard.pipeline_in_phase("r", "test"), "pipeline-in-phase=r,phase=test"),
    (guard.pipeline_complete("r"), "pipeline-complete=r"),
    (guard.command("make test"), "command=make test"),
    (guard.command(["make", "test"], expect="failure"), "command-fails=make test"),
    (guard.command("make | tail", shell=True), "command,shell,run=make | tail"),  # noqa: S604
    (
        guard.command(("make",), expect=2, timeout="5s", env=["PATH"]),
        "command,expect=2,timeout=5s,env=PATH,run=make",
    ),
]


@pytest.mark.parametrize(("condition", "word"), MADE)
def test_a_constructor_makes_what_the_word_means(condition: guard.Condition, word: str) -> None:
    assert condition == parse(word)


def test_every_condition_has_a_constructor() -> None:
    others = {"all_of", "any_of", "not_", "Condition"}
    guards = {"Guard", "named", "block", "warn", "retry", "fail"}
    assert {*KINDS, *others, *guards} == set(guard.__all__)
    assert sorted(guard.__all__) == guard.__all__


def test_conditions_are_combined_by_operators_and_by_functions() -> None:
    free, stop = guard.lock_free("deploy"), guard.file_exists("STOP")
    assert free & ~stop == guard.all_of(free, guard.not_(stop))
    assert free | stop == guard.any_of(free, stop)
    assert (free & stop) | ~free == c.AnyOf(of=(c.AllOf(of=(free, stop)), c.Not(of=free)))


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (guard.lock_free, ("",), "the lock name is empty"),
        (guard.lock_free, (None,), "the lock name must be text, not NoneType"),
        (guard.lock_held, ("a\nb",), "cannot be seen"),
        (guard.semaphore_available, ("sem/x",), "drop 'sem/'"),
        (guard.tasks_complete, ("\x00",), "no task id begins with"),
        (guard.branch_merged, ("a", "b c"), "git allows no branch"),
        (guard.file_exists, ("/etc/passwd",), "does not stay below the root"),
        (guard.file_contains, ("x",), "either a text or a pattern"),
        (guard.file_contains, ("x", ""), "the text is empty"),
        (guard.pipeline_in_phase, ("r", "-x"), "the phase name '-x' starts with '-'"),
        (guard.command, ("",), "the command is empty"),
        (guard.command, (["a", 3],), "the command must be text"),
        (guard.command, (None,), "a command is a list of words|needs the field 'run'"),
        (guard.all_of, (), "'all' of nothing"),
        (guard.any_of, (), "'any' of nothing"),
        (guard.any_of, (c.AllOf(of=()),), "'all' of nothing"),
        (guard.not_, ("x",), "'x' is none"),
        (guard.all_of, ([c.LockFree(lock="a")],), "is none"),
    ],
)
def test_an_illegal_argument_is_refused_at_once(
    make: Callable[..., Any], given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        make(*given)


def test_conditions_that_operators_nest_too_deeply_are_refused_where_they_come_in() -> None:
    deep = guard.lock_free("a")
    for n in range(40):
        deep = (deep & guard.lock_free(f"b{n}")) | guard.lock_free(f"c{n}")
    with pytest.raises(TooLarge, match="nested too deeply; 32 levels are allowed"):
        guard.all_of(deep)


@pytest.mark.parametrize("costly", ["asyncio", "apsw", "tomllib", "shlex", "difflib", "subprocess"])
def test_a_condition_costs_no_import_that_it_does_not_need(costly: str) -> None:
    code = (
        "from interlock import guard; import sys;"
        "guard.file_exists('a') & guard.branch_merged('a', 'b') & guard.pipeline_complete('r');"
        f"sys.exit({costly!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
