"""Definition files: what they say, and what is wrong with odd ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nouns.guards.random_conditions import leaves

from interlock import guard
from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.definition import Definitions, define, definition
from interlock.nouns.guards.leaf_kinds import KINDS
from interlock.nouns.guards.shell import parse as word
from interlock.nouns.guards.source import parse


def read(text: str, name: str = "x.toml") -> Definitions:
    return define([parse(name, text.encode())])


def condition(when: str) -> c.Condition:
    return read(f"[guard.a]\nwhen = {when}").guards["a"].condition


def refused(*texts: str, name: str = "x.toml") -> str:
    with pytest.raises(BadInput) as error:
        define(parse(f"{n}{name}" if n else name, text.encode()) for n, text in enumerate(texts))
    said = str(error.value)
    assert re.match(r"\d?x\.(toml|json):\d+[: ]", said), said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ('{lock_free = "deploy"}', "lock-free=deploy"),
        ('{lock_held = {lock = "deploy", by = "ada"}}', "lock-held=deploy,by=ada"),
        ('{lock_held = "deploy"}', "lock-held=deploy"),
        ('{semaphore_available = "builds"}', "semaphore-available=builds"),
        (
            '{semaphore_available = {semaphore = "builds", slots = 2}}',
            "semaphore-available=builds,slots=2",
        ),
        ('{tasks_complete = "build."}', "tasks-complete=build."),
        ("{tasks_complete = {}}", "tasks-complete"),
        (
            '{tasks_complete = {prefix = "a", state = "running", label = "l", none_ok = true}}',
            "tasks-complete=a,state=running,label=l,none-ok",
        ),
        (
            '{no_blocked_tasks = {requires = "gpu", needs = "n"}}',
            "no-blocked-tasks=,requires=gpu,needs=n",
        ),
        ('{no_blocked_tasks = ""}', "no-blocked-tasks"),
        ('{branch_exists = "x"}', "branch-exists=x"),
        ('{branch_clean = "x"}', "branch-clean=x"),
        ('{branch_merged = {branch = "x", into = "main"}}', "branch-merged=x,into=main"),
        ('{file_exists = "STOP"}', "file-exists=STOP"),
        ('{file_contains = {path = "f", text = "1.2"}}', "file-contains=f,text=1.2"),
        ("{file_contains = {path = 'f', pattern = '\\d'}}", r"file-contains=f,pattern=\d"),
        ('{pipeline_in_phase = {pipeline = "r", phase = "t"}}', "pipeline-in-phase=r,phase=t"),
        ('{pipeline_complete = "r1"}', "pipeline-complete=r1"),
        ('{command = ["make", "test"]}', "command=make test"),
        ('{command = "make test"}', "command=make test"),
        ('{command = {run = ["make"], expect = "failure"}}', "command-fails=make"),
        ('{command = {run = "make | tail", shell = true}}', "command,shell,run=make | tail"),
        (
            '{command = {run = "make", expect = 1, timeout = "30s", env = ["PATH", "HOME"]}}',
            "command,expect=1,timeout=30s,env=PATH HOME,run=make",
        ),
        ('{not = {file_exists = "STOP"}}', "!file-exists=STOP"),
        ('{not = [{file_exists = "STOP"}]}', "!file-exists=STOP"),
        ('[{lock_free = "deploy"}]', "lock-free=deploy"),
    ],
)
def test_a_condition_of_a_file_is_that_of_its_word(when: str, words: str) -> None:
    assert condition(when) == word(words)


def test_a_list_means_all_of_it() -> None:
    a, b = word("file-exists=a"), word("file-exists=b")
    both = "{file_exists = 'a'}, {file_exists = 'b'}"
    assert condition(f"[{both}]") == c.AllOf(of=(a, b))
    assert condition(f"{{all = [{both}]}}") == c.AllOf(of=(a, b))
    assert condition(f"{{any = [{both}]}}") == c.AnyOf(of=(a, b))
    assert condition("{all = [{file_exists = 'a'}]}") == c.AllOf(of=(a,))
    assert condition(f"[{{any = [{both}]}}, [{both}]]") == c.AllOf(
        of=(c.AnyOf(of=(a, b)), c.AllOf(of=(a, b)))
    )


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("", g.BlockAction()),
        ('on_failure = "block"', g.BlockAction()),
        ('on_failure = "warn"', g.WarnAction()),
        ('on_failure = {retry = "30s", limit = 5}', g.RetryAction(delay=30.0, limit=5)),
        ('on_failure = {fail = "it is broken"}', g.FailAction(message="it is broken")),
    ],
)
def test_a_guard_has_the_action_that_its_file_says(line: str, action: g.FailureAction) -> None:
    found = read(f'[guard.a]\nwhen = {{lock_free = "x"}}\n{line}\nmax_age = "5m"')
    assert found.guards["a"] == g.guard("a", word("lock-free=x"), action, 300)


def test_a_text_in_a_list_is_the_condition_of_that_guard() -> None:
    found = read(
        """
        [guard.calm]
        when = ["quiet", {not = "stopped"}, {any = ["quiet", "stopped"]}]
        [guard.quiet]
        when = [{lock_free = "deploy"}, {lock_free = "merge"}]
        on_failure = "warn"
        [guard.stopped]
        when = {file_exists = "STOP"}
        """
    )
    quiet, stopped = (found.guards[name].condition for name in ("quiet", "stopped"))
    assert found.guards["calm"] == g.guard(
        "calm", c.AllOf(of=(quiet, c.Not(of=stopped), c.AnyOf(of=(quiet, stopped))))
    )


def test_guards_of_several_files_are_one_set() -> None:
    found = define(
        [
            parse("a.toml", b"[guard.a]\nwhen = ['b']"),
            parse("b.json", b'{"guard": {"b": {"when": [{"lock_free": "x"}]}}}'),
        ]
    )
    assert found.guards["a"].condition == word("lock-free=x")
    assert found.files == ("a.toml", "b.json")


def test_json_says_the_same_as_toml() -> None:
    toml = """
        [guard.a]
        when = [{lock_held = {lock = "x", by = "ada"}}, {any = [{command = ["a", "b"]}, "b"]}]
        max_age = 30
        [guard.b]
        when = [{tasks_complete = "t."}]
        on_failure = {retry = 30, limit = 2}
        [[pipeline.p.phase]]
        name = "one"
        tasks = [{id = "t.1", data = {x = [1, 2.5, true]}}]
        post = ["b"]
    """
    import tomllib

    assert read(json.dumps(tomllib.loads(toml)), "x.json") == define(
        [parse("x.json", json.dumps(tomllib.loads(toml), indent=1).encode())]
    )
    same = read(json.dumps(tomllib.loads(toml)), "x.json")
    assert (same.guards, same.pipelines) == (read(toml).guards, read(toml).pipelines)


SIMPLE = '[guard.a]\nwhen = {lock_free = "x"}\n'
GUARD = '[guard.a]\nwhen = [\n  {lock_free = "x"},\n  %s\n]'
ODD: list[tuple[str, int, str]] = [
    (GUARD % '{lock_fre = "x"}', 4, "there is no condition 'lock_fre'; did you mean lock_free"),
    (GUARD % '{lock-free = "x"}', 4, "did you mean lock_free"),
    (GUARD % '{moon_phase = "full"}', 4, "there is no condition 'moon_phase'; there are lock_free"),
    (GUARD % '{lock_held = {lock = "x", buy = "y"}}', 4, "has no field 'buy'; did you mean by?"),
    (GUARD % '{lock_held = {by = "y"}}', 4, "lock_held needs the field 'lock', as in {lock_held"),
    (GUARD % "{lock_free = 3}", 4, "the lock name must be text, not int"),
    (GUARD % "{lock_free = true}", 4, "the lock name must be text, not bool"),
    (GUARD % '{lock_free = ["x"]}', 4, "the lock name must be text, not list"),
    (GUARD % "{lock_free = 2026-01-01}", 4, "the lock name must be text, not date"),
    (GUARD % '{semaphore_available = {semaphore = "s", slots = "2"}}', 4, "whole number, not '2'"),
    (GUARD % "{tasks_complete = {none_ok = 1}}", 4, "'none_ok' is either true or false, not 1"),
    (GUARD % '{tasks_complete = {state = "done"}}', 4, "there is no task state 'done'"),
    (GUARD % '{lock_free = "x", lock_held = "y"}', 4, 'one key with its value: {lock_free = "dep'),
    (GUARD % '{file_contains = "f", text = "x"}', 4, "file_contains go into a table: {file_contai"),
    (GUARD % "{}", 4, "a condition is one key with its value"),
    (GUARD % "3", 4, 'a condition is a table such as {lock_free = "deploy"}, not 3'),
    (GUARD % "{any = []}", 4, "'any' of nothing says nothing"),
    (GUARD % "{all = []}", 4, "'all' of nothing says nothing"),
    (GUARD % '{any = {lock_free = "x"}}', 4, "'any' takes a list of conditions, not {'lock_free'"),
    (GUARD % "{not = []}", 4, "'all' of nothing says nothing"),
    ("[guard.a]\n\nwhen = []", 3, "'all' of nothing says nothing"),
    (GUARD % ("{not = " * 40 + '{lock_free = "x"}' + "}" * 40), 4, "nested too deeply; 32 levels"),
    (GUARD % ("[" * 40 + '{lock_free = "x"}' + "]" * 40), 4, "nested too deeply; 32 levels"),
    (GUARD % '{file_contains = {path = "f", pattern = "(("}}', 4, "'((' is no regular expression"),
    (GUARD % '{file_contains = {path = "f"}}', 4, "file_contains needs either a text or a pattern"),
    (GUARD % '{file_exists = "../f"}', 4, "does not stay below the root"),
    (GUARD % '{branch_exists = "a b"}', 4, "git allows no branch of the name 'a b'"),
    (GUARD % '{command = ["make", 3]}', 4, "the command must be text, not int"),
    (GUARD % '{command = {run = "make", timeout = "5 parsecs"}}', 4, "timeout '5 parsecs' is no"),
    (GUARD % '{command = {run = "make", expect = "joy"}}', 4, "expect is a status such as 0"),
    (GUARD % '{command = {run = ["a", "b"], shell = true}}', 4, "for a shell is one text"),
    (GUARD % '{command = "make \'test"}', 4, "is not clear (No closing quotation)"),
    (GUARD % '"b"', 4, "there is no guard 'b'; there is a"),
    (GUARD % '"lock-free=x"', 4, "a text names a guard; write a condition as {lock_free = "),
    (GUARD % '"a"', 4, "guards name each other in a cycle: a -> a; drop one name"),
    ('[guard.a]\nwhen = ["b"]\n[guard.b]\nwhen = ["c"]\n[guard.c]\nwhen = ["b"]', 6, "b -> c -> b"),
    ("[guard.a]\n", 1, "the guard has no condition; add when = "),
    ("# nothing\n[guard.a]\nwhn = []", 3, "a guard has no field 'whn'; did you mean when?"),
    ("[guard.a.b]\nwhen = []", 1, "a guard has no field 'b'; there are when, on_failure, max_age"),
    ('\n[guard."a b "]\nwhen = []', 2, "the guard name 'a b ' begins or ends with a space"),
    ("\nguard = 3", 2, "'guard' has a table for each name, as in [guard.NAME]"),
    ("[guard]\na = 3", 2, "guard 'a' is a table, as in [guard.NAME]"),
    ("\n\n[gard.a]", 3, "there is no 'gard' in a definition; did you mean guard?"),
    ("deploy = 3", 1, "there is no 'deploy' in a definition; a name stands in [guard.deploy]"),
    (SIMPLE + 'max_age = "soon"', 3, "the max_age 'soon' is not like"),
    (SIMPLE + "max_age = 0", 3, "the max_age 0 is out of bounds"),
    (SIMPLE + 'on_failure = "halt"', 3, "on_failure is 'block', "),
    (SIMPLE + 'on_failure = {retry = "1s"}', 3, "on_failure is 'block'"),
    (
        SIMPLE + 'on_failure = {retry = "x", limit = 3}', 3,
        "the delay of retry 'x' is not like",
    ),
    (SIMPLE + 'on_failure = {fail = ""}', 3, "message of fail is empty"),
    ("[guard.a]\nwhen = [\n  {lock_free = 'x'}\n  {lock_free = 'y'}]", 4, "this is not TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "said"), ODD)
def test_an_odd_definition_is_refused_with_its_line(text: str, line: int, said: str) -> None:
    found = refused(text)
    assert found.startswith(f"x.toml:{line}: ")
    assert said in found


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"guard": {"a": {\n"when": [\n{"lock_fre": "x"}]}}}', 3, "did you mean lock_free"),
        (
            '{"guard": {"a": {\n"when": [\n{"lock_held": {"lock": "x",\n"by": 3}}]}}}',
            4,
            "agent name",
        ),
        ('{"guard": {"a": {\n"when": null}}}', 2, "a condition is a table such as"),
        ('{"guard": {"a": {\n"when": ["\\ud800"]}}}', 2, "there is no guard '\\ud800'"),
        ('{\n"guard": {"a": {},\n"a": {}}}', 3, "the key 'a' is in line 2 already"),
        ('{"guard": {\n"\\u0000": {}}}', 2, "has a character that cannot be seen"),
    ],
)
def test_an_odd_definition_in_json_is_refused_with_its_line(
    text: str, line: int, said: str
) -> None:
    found = refused(text, name="x.json")
    assert found.startswith(f"x.json:{line}: ")
    assert said in found


def test_a_guard_that_two_files_define_is_refused_with_both_places() -> None:
    found = refused("\n[guard.a]\nwhen = {lock_free = 'x'}", "[guard.b]\n[guard.a]\nwhen = []")
    assert found == "1x.toml:2: guard 'a' is defined in x.toml:2 already; keep one"


def test_guards_that_double_each_other_are_refused_before_they_fill_the_memory() -> None:
    text = "\n".join(f'[guard.g{n}]\nwhen = ["g{n + 1}", "g{n + 1}"]' for n in range(31))
    said = refused(text + '\n[guard.g31]\nwhen = {lock_free = "x"}')
    assert "too many leaves; 10000 are allowed" in said


def test_guards_that_deepen_each_other_are_refused() -> None:
    text = "\n".join(f'[guard.g{n}]\nwhen = {{not = "g{n + 1}"}}' for n in range(40))
    said = refused(text + '\n[guard.g40]\nwhen = {lock_free = "x"}')
    assert "nested too deeply; 32 levels are allowed" in said


def test_32_levels_are_allowed() -> None:
    deep = condition("{not = " * 31 + '{lock_free = "x"}' + "}" * 31)
    for _ in range(31):
        assert isinstance(deep, c.Not)
        deep = deep.of
    assert deep == word("lock-free=x")


KEYS = sorted({*KINDS, "all", "any", "not", "when", "on_failure", "max_age", "lock", "run", "x"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from(["a", "b", "", "5s", "\ud800"]),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=2)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2), VALUES)
def test_any_file_is_a_definition_or_an_error_with_its_line(
    guards: dict[str, Any], phase: Any
) -> None:
    values = {"guard": guards, "pipeline": {"p": {"phase": phase}}}
    text = json.dumps(values, indent=1)
    try:
        found = read(text, "x.json")
    except BadInput:
        lines = text.count("\n") + 1
        said = refused(text, name="x.json")
        assert int(re.split("[: ]", said)[1]) <= lines
    else:
        assert set(found.guards) == set(guards)


# A guard as a file could have it.

ACTIONS = (
    st.just(guard.block())
    | st.just(guard.warn())
    | st.builds(guard.retry, st.floats(0.001, 3600), st.integers(1, 1000))
    | st.builds(guard.fail, st.sampled_from(["no", 'a "b"\n\\c', "é\x07"]))
)
CONDITIONS = st.recursive(
    leaves(),
    lambda below: (
        st.builds(lambda each: c.Not(of=each), below)
        | st.lists(below, min_size=2, max_size=3).map(lambda some: c.AnyOf(of=tuple(some)))
        | st.lists(below, min_size=2, max_size=3).map(lambda some: c.AllOf(of=tuple(some)))
    ),
    max_leaves=6,
)


@given(
    CONDITIONS, ACTIONS, st.floats(0.001, 86400), st.sampled_from(["calm", "a.b c", 'é"x', "1/2"])
)
def test_the_text_of_a_guard_reads_as_the_same_guard(
    condition: c.Condition, action: g.FailureAction, age: float, name: str
) -> None:
    made = guard.named(name, condition, on_failure=action, max_age=age)
    text = "\n".join(definition(made))
    again = define([parse("guards.toml", text.encode())]).guards[name]
    assert g.digest(again) == g.digest(made)


def test_the_text_leaves_defaults_out() -> None:
    made = guard.named("calm", guard.lock_free("deploy") & ~guard.file_exists("STOP"))
    assert definition(made) == (
        "[guard.calm]",
        'when = [{lock_free = "deploy"}, {not = {file_exists = "STOP"}}]',
    )
