"""Pipelines as definition files have them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import codec
from interlock.errors import BadInput
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.definition import define
from interlock.nouns.guards.shell import parse as word
from interlock.nouns.guards.source import parse
from interlock.nouns.pipelines import definition as d

RELEASE = """
[guard.calm]
when = [{lock_free = "deploy"}]
on_failure = "warn"
max_age = "5m"

[pipeline.release]

[[pipeline.release.phase]]
name = "build"
on_failure = {retry = "30s", limit = 5}
max_age = "2m"
tasks = [
  {id = "build.linux", data = {os = "linux", cpus = 4}, requires = ["linux"]},
  {id = "build.mac", priority = 2, needs = ["build.linux"], labels = ["slow"]},
]
post = [{tasks_complete = "build."}]

[[pipeline.release.phase]]
name = "merge"
pre = "calm"
post = ["calm", {file_exists = "done"}]
retries = 2
hold = ["lock/merge", "sem/builds=2", "sem/tests=1"]
tasks = [{id = "merge", needs = ["build.mac", "elsewhere"]}]
"""


def pipelines(text: str) -> dict[str, d.PipelineDefinition]:
    return dict(define([parse("x.toml", text.encode())]).pipelines)


def test_a_pipeline_is_its_phases_with_their_guards() -> None:
    retry = g.retry(30, 5)
    build = d.PhaseDefinition(
        name="build",
        on_failure=retry,
        post=g.guard("release/build/post", word("tasks-complete=build."), retry, 120),
        tasks=(
            d.PhaseTask(
                id="build.linux", data=Raw(b'{"os":"linux","cpus":4}'), requires=("linux",)
            ),
            d.PhaseTask(id="build.mac", priority=2, needs=("build.linux",), labels=("slow",)),
        ),
    )
    merge = d.PhaseDefinition(
        name="merge",
        pre=g.guard("calm", word("lock-free=deploy"), g.WarnAction(), 300),
        post=g.guard("release/merge/post", word("lock-free=deploy") & word("file-exists=done")),
        retries=2,
        hold=("lock/merge", "sem/builds=2", "sem/tests"),
        tasks=(d.PhaseTask(id="merge", needs=("build.mac", "elsewhere")),),
    )
    release = pipelines(RELEASE)["release"]
    assert release == d.PipelineDefinition(name="release", phases=(build, merge))
    assert [guard.name for guard in d.guards_of(release)] == [
        "release/build/post", "calm", "release/merge/post",
    ]  # fmt: skip


def test_the_guards_of_a_set_are_those_by_name_and_those_of_phases() -> None:
    found = define([parse("x.toml", RELEASE.encode())])
    assert [guard.name for guard in found.all_guards] == [
        "calm", "release/build/post", "release/merge/post",
    ]  # fmt: skip


def test_a_stored_definition_is_the_same() -> None:
    release = pipelines(RELEASE)["release"]
    assert d.decode(codec.encode(release)) == release


def test_a_phase_needs_only_a_name() -> None:
    found = pipelines("[[pipeline.p.phase]]\nname = 'a'\n[[pipeline.p.phase]]\nname = 'b'")
    assert found["p"].phases == (d.PhaseDefinition(name="a"), d.PhaseDefinition(name="b"))


PHASE = "[[pipeline.p.phase]]\nname = 'a'\n%s"
ODD = [
    ("[pipeline.p]", 1, "the pipeline has no phase; add one under [[pipeline.p.phase]]"),
    ("[pipeline.p]\nphase = []", 1, "the pipeline has no phase"),
    ("[pipeline.p]\nphase = 3", 2, "phases are a list of tables"),
    ("[pipeline.p]\nphase = ['a']", 2, "a phase is a table, not 'a'"),
    ("[pipeline.p]\nphases = []", 2, "a pipeline has no field 'phases'; did you mean phase?"),
    ("[pipeline]\np = 3", 2, "pipeline 'p' is a table"),
    ("\n[[pipeline.p.phase]]\npost = []", 2, "the phase has no name; add name = 'build'"),
    ("[[pipeline.p.phase]]\nname = ''", 2, "the phase name is empty"),
    ("[[pipeline.p.phase]]\nname = 3", 2, "the phase name must be text, not int"),
    (PHASE % "[[pipeline.p.phase]]\n\nname = 'a'", 5, "'a' is in x.toml:2 already; rename one"),
    (PHASE % "prae = []", 3, "a phase has no field 'prae'; did you mean pre"),
    (PHASE % "pre = []", 3, "'all' of nothing says nothing"),
    (PHASE % "post = [\n{lock_fre = 'x'}]", 4, "there is no condition 'lock_fre'; did you mean"),
    (PHASE % "pre = 'calm'", 3, "there is no guard 'calm' in this file; define it here"),
    (PHASE % "pre = ['calm']\n[guard.clam]\nwhen = {lock_free = 'x'}", 3, "did you mean clam?"),
    (PHASE % "on_failure = 'panic'", 3, "on_failure is 'block', 'warn', "),
    (PHASE % "pre = [{lock_free = 'x'}]\nmax_age = '-1s'", 4, "the max_age '-1s' is not like"),
    (PHASE % "retries = -1", 3, "the number of retries -1 is out of bounds"),
    (PHASE % "retries = '2'", 3, "the number of retries is a whole number, not '2'"),
    (PHASE % "hold = 'lock/merge'", 3, "hold takes a list of things, as in ['lock/merge'], not"),
    (PHASE % "hold = ['merge']", 3, "'merge' does not say what it is; write lock/merge or sem/"),
    (PHASE % "hold = ['lock/a', 'lock/a']", 3, "lock/a is named twice"),
    (PHASE % "tasks = 3", 3, "tasks are a list of tables, as in [{id = 'test.1'}], not 3"),
    (PHASE % "tasks = [\n'x']", 4, "a task is a table with an id, not 'x'"),
    (PHASE % "tasks = [\n{id = 'x'},\n{id = 'y', prio = 3}]", 5, "no field 'prio'; did you"),
    (PHASE % "tasks = [{id = 'y', deadline = '1h'}]", 3, "of a phase has no field 'deadline'"),
    (PHASE % "tasks = [\n{id = 'x', priority = 'high'}]", 4, "the priority is a whole number"),
    (PHASE % "tasks = [\n{data = 3}]", 4, "it has no id"),
    (PHASE % "tasks = [{id = 'x', data = 2026-01-01}]", 3, "date is nothing that JSON can say"),
    (PHASE % "tasks = [\n{id = 'x', needs = ['y']},\n{id = 'y', needs = ['x']}]", 4, "x -> y -> x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "said"), ODD)
def test_an_odd_pipeline_is_refused_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        pipelines(text)
    found = str(refused.value)
    assert found.startswith((f"x.toml:{line}: ", f"x.toml:{line} ("))
    assert said in found
    assert "\n" not in found


def test_all_mistakes_of_tasks_are_said_with_their_lines() -> None:
    text = PHASE % "tasks = [{id = 'x'}, {id = 'x'},\n{id = 'y', priority = 'x'}]"
    with pytest.raises(BadInput) as refused:
        pipelines(text + "\n[[pipeline.p.phase]]\nname = 'b'\ntasks = [{id = 'x'}]")
    assert refused.value.mistakes == (
        "x.toml:4 (y): the priority is a whole number, not 'x'",
        "task 'x' appears 3 times (x.toml:3, x.toml:3, x.toml:7); keep one",
    )
    assert str(refused.value).startswith("x.toml:4 (y): ")


def test_a_pipeline_of_too_many_phases_is_refused() -> None:
    text = "".join(f"[[pipeline.p.phase]]\nname = 'p{n}'\n" for n in range(101))
    with pytest.raises(BadInput, match=r"x\.toml:1: the pipeline has 101 phases; 100 are allowed"):
        pipelines(text)


def test_a_pipeline_that_two_files_define_is_refused() -> None:
    text = (PHASE % "").encode()
    with pytest.raises(BadInput, match=r"b\.toml:1: pipeline 'p' is defined in a\.toml:1 already"):
        define([parse("a.toml", text), parse("b.toml", text)])


def test_names_that_are_too_long_for_a_guard_are_refused() -> None:
    text = f"[[pipeline.{'p' * 150}.phase]]\nname = '{'q' * 60}'\npre = [{{lock_free = 'x'}}]"
    with pytest.raises(BadInput, match=r"x\.toml:3: the guard name has 215 bytes; 200 are allowed"):
        pipelines(text)


A = d.PhaseDefinition(name="a")


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ((), "the pipeline has no phase"),
        ((A, A), "two phases have the name 'a'; rename one"),
        ((A,) * 101, "the pipeline has 101 phases"),
        ((replace(A, name="\x1b"),), "cannot be seen"),
        ((replace(A, retries=-1),), "the number of retries -1 is out of bounds"),
        ((replace(A, hold=("merge",)),), "does not say what it is"),
        ((replace(A, tasks=(d.PhaseTask(id="x"), d.PhaseTask(id="x"))),), "appears 2 times"),
        ((replace(A, tasks=(d.PhaseTask(id="\0"),)),), "the task id"),
        (
            (replace(A, pre=g.Guard(name="x", condition=word("lock-free=a"), max_age=-1.0)),),
            "the max_age -1.0 is out of bounds",
        ),
    ],
)
def test_a_stored_definition_that_is_illegal_is_refused(phases: Any, said: str) -> None:
    stored = codec.encode(d.PipelineDefinition(name="p", phases=phases))
    with pytest.raises(BadInput) as refused:
        d.decode(stored)
    assert said in str(refused.value)


@pytest.mark.parametrize("data", [b"{}", b"", b'{"name":"p","phases":[],"x":1}', b"[" * 100_000])
def test_bytes_that_are_no_pipeline_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        d.decode(data)
