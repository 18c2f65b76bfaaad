"""Conditions as words of a shell, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nouns.guards.random_conditions import leaves

from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import shell

WORDS: list[tuple[str, c.Condition]] = [
    ("lock-free=deploy", c.LockFree(lock="deploy")),
    ("lock_free=deploy", c.LockFree(lock="deploy")),
    ("lock-free=a=b", c.LockFree(lock="a=b")),
    ("!file-exists=STOP", c.Not(of=c.FileExists(path="STOP"))),
    ("file-exists=./a//b/", c.FileExists(path="a/b")),
    ("lock-held=deploy,by=ada", c.LockHeld(lock="deploy", by="ada")),
    ("lock-held=deploy,by=agent/ada", c.LockHeld(lock="deploy", by="ada")),
    ("semaphore-available=builds,slots=2", c.SemaphoreAvailable(semaphore="builds", slots=2)),
    ("branch-merged=x,into=main", c.BranchMerged(branch="x", into="main")),
    ("file-contains=CHANGELOG.md,text=1.2", c.FileContains(path="CHANGELOG.md", text="1.2")),
    (r"file-contains=f,text=a\,b", c.FileContains(path="f", text="a,b")),
    (r"file-contains=f,text=a\\\,b", c.FileContains(path="f", text=r"a\,b")),
    (r"file-contains=f,pattern=\d+\\", c.FileContains(path="f", pattern=r"\d+\\")),
    (r"file-contains=f\\,pattern=\d\,", c.FileContains(path="f\\", pattern=r"\d,")),
    (
        "tasks-complete=build.,none-ok",
        c.TasksComplete(filter=c.TaskFilter(prefix="build."), none_ok=True),
    ),
    ("tasks-complete", c.TasksComplete()),
    ("tasks-complete,none-ok=false", c.TasksComplete()),
    (
        "no-blocked-tasks=,state=running,requires=gpu,needs=a,label=x",
        c.NoBlockedTasks(
            filter=c.TaskFilter(state="running", requires="gpu", needs="a", label="x")
        ),
    ),
    ("pipeline-in-phase=r1,phase=test", c.PipelineInPhase(pipeline="r1", phase="test")),
    ("command=make test, now", c.Command(run=("make", "test,", "now"))),
    ("command=sh -c 'a b'", c.Command(run=("sh", "-c", "a b"))),
    ("command-fails=grep x f", c.Command(run=("grep", "x", "f"), expect="failure")),
    (
        "command,expect=3,timeout=1500ms,env=PATH HOME,run=make a,b",
        c.Command(run=("make", "a,b"), expect=3, timeout=1.5, env=("PATH", "HOME")),
    ),
    ("command,shell,run=make | tail, x", c.Command(run=("make | tail, x",), shell=True)),  # noqa: S604
    ("command-fails,shell,run=a", c.Command(run=("a",), shell=True, expect="failure")),  # noqa: S604
]


@pytest.mark.parametrize(("word", "condition"), WORDS)
def test_a_word_means_its_condition(word: str, condition: c.Condition) -> None:
    assert shell.parse(word) == condition
    assert shell.parse(shell.text(condition)) == condition


@given(leaves(), st.integers(0, 3))
def test_the_text_of_a_leaf_means_the_leaf(leaf: c.Condition, negations: int) -> None:
    for _ in range(negations):
        leaf = c.Not(of=leaf)
    text = shell.text(leaf)
    assert shell.parse(text) == leaf
    assert shell.text(shell.parse(text)) == text


@given(st.text(max_size=30) | st.text(st.sampled_from("!lock-free=,\\ 'x"), max_size=30))
def test_any_word_is_a_condition_or_a_clear_error(word: str) -> None:
    said = ""
    try:
        shell.parse(word)
    except BadInput as error:
        said = str(error)
    assert "\n" not in said


@given(
    st.sampled_from(
        ["file-contains", "lock-held", "semaphore-available", "command", "tasks-complete"]
    ),
    st.lists(st.sampled_from(["=", ",", "\\", "by", "slots", "run", "x", "none-ok", "shell", "'"])),
)
def test_any_fields_are_a_condition_or_a_clear_error(kind: str, rest: list[str]) -> None:
    try:
        found = shell.parse(kind + "".join(rest))
    except BadInput:
        return
    assert shell.parse(shell.text(found)) == found


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("", "'' is no condition; write one such as lock-free=deploy"),
        ("!", "'!' is no condition"),
        ("=x", "'=x' is no condition"),
        ("lock-fre=x", "there is no condition 'lock-fre'; did you mean lock-free or lock-held?"),
        ("file-contain=x", "did you mean file-contains"),
        ("lock-free:x", "did you mean lock-free"),
        ("quorum=x", "there is no condition 'quorum'; there are lock-free, lock-held, "),
        ("calm", "a guard of the store is --name NAME, a file is --file FILE"),
        ("lock-free", "something is missing; write it like lock-free=deploy"),
        ("lock-free=", "the lock name is empty"),
        ("lock-free=lock/x", "drop 'lock/' from 'lock/x'"),
        ("branch-merged=x", "something is missing; write it like branch-merged=feature,into=main"),
        ("lock-held=x,buy=ada", "lock_held has no field 'buy'; did you mean by?"),
        ("lock-free=x,ttl=3", "lock_free has no field 'ttl'; there is lock"),
        ("lock-held=x,by", "the field 'by' has no value; write by=VALUE"),
        ("lock-held=x,by=a,by=b", "it says 'by' twice; keep one of them"),
        ("lock-free=x,", "the field '' has no value; write NAME=VALUE"),
        ("semaphore-available=b,slots=two", "the number of slots is a whole number, not 'two'"),
        ("semaphore-available=b,slots=0", "the number of slots 0 is out of bounds"),
        ("tasks-complete=x,none-ok=maybe", "'none_ok' is either true or false, not 'maybe'"),
        ("tasks-complete=x,state=compleet", "no task state 'compleet'; did you mean complete"),
        ("tasks-complete=-x", "no task id begins with '-x'"),
        ("file-contains=x", "file_contains needs either a text or a pattern"),
        ("file-contains=x,text=a,pattern=b", "file_contains needs either a text or a pattern"),
        ("file-contains=x,pattern=(", "'(' is no regular expression"),
        ("file-exists=../x", "does not stay below the root"),
        ("file-exists=/etc/passwd", "does not stay below the root"),
        ("file-exists=.", "does not stay below the root"),
        ("branch-exists=a..b", "git allows no branch of the name 'a..b'"),
        ("branch-exists=refs/heads/x", "drop 'refs/heads/'"),
        ("command=", "the command is empty"),
        ("command='a", "is not clear (No closing quotation)"),
        ("command=''", "the command is empty"),
        ("command,expect=300,run=x", "the expected status 300 is out of bounds"),
        ("command,expect=fine,run=x", "expect is a status such as 0, or 'failure', not 'fine'"),
        ("command,timeout=0s,run=x", "the timeout 0s is out of bounds"),
        ("command,timeout=soon,run=x", "the timeout 'soon' is not like 500ms"),
        ("command,env=A=B,run=x", "env lists names of variables"),
        ("command-fails,expect=0,run=x", "it says 'expect' twice"),
        ("!" * 32 + "lock-free=x", "has too many '!'; one is enough"),
    ],
)
def test_a_wrong_word_says_what_was_meant(word: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        shell.parse(word)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_word_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadInput, match="a condition is a word such as lock-free=deploy, not 3"):
        shell.parse(3)  # type: ignore[arg-type]


def test_a_combination_has_a_text_for_people() -> None:
    a, b, d = (c.FileExists(path=name) for name in "abd")
    assert shell.text((a & b) | ~(a & d)) == (
        "any(all(file-exists=a, file-exists=b), !all(file-exists=a, file-exists=d))"
    )


def test_the_text_of_many_names_the_first_and_counts_the_rest() -> None:
    many = c.AllOf(of=tuple(c.FileExists(path=str(n)) for n in range(1000)))
    text = shell.text(many)
    assert len(text) < 250
    shown = text.count("file-exists=")
    assert re.search(rf"file-exists={shown - 1}, \.\.\. {1000 - shown} more\)$", text)
