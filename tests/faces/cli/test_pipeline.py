"""Pipelines at the command line: each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faces.shell import Shell
from tests.nouns.pipelines.pipelines import RELEASE

PLAIN = """
[[pipeline.p.phase]]
name = "one"
post = [{lock_free = "deploy"}]

[[pipeline.p.phase]]
name = "two"
hold = ["lock/merge"]
"""


@pytest.fixture
def p(ada: Shell, tmp_path: Path) -> Shell:
    """A shell where a pipeline is defined and started."""
    (tmp_path / "p.toml").write_text(PLAIN)
    assert ada.run("pipeline", "define", "p.toml").status == 0
    assert ada.run("pipeline", "start", "p", "--id", "r1").status == 0
    return ada


def test_define_names_the_phases_and_says_when_nothing_changed(ada: Shell, tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text(RELEASE)
    done = ada.run("pipeline", "define", "release.toml")
    assert done.out == "defined release: phases build, test, merge, deploy\n"
    status, answer = ada.json("pipeline", "define", "release.toml")
    assert (status, answer["outcome"]) == (0, "defined")
    assert answer["pipelines"][0]["already"]
    assert len(answer["pipelines"][0]["digest"]) == 64


def test_start_and_advance_lead_to_the_end(p: Shell) -> None:
    assert p.json("pipeline", "advance", "r1") == (
        0,
        {"outcome": "advanced", "pipeline": "r1", "phase": "two", "warned": []},
    )
    done = p.run("pipeline", "advance", "r1", "--phase", "two")
    assert (done.status, done.out) == (0, "completed r1\n")
    status, answer = p.json("pipeline", "advance", "r1")
    assert (status, answer["outcome"], answer["state"], answer["by"]) == (
        1,
        "overtaken",
        "complete",
        "ada",
    )


def test_a_blocked_pipeline_says_guard_leaf_reason_and_acts(p: Shell) -> None:
    p.run("lock", "acquire", "deploy", "--agent", "bob")
    status, answer = p.json("pipeline", "advance", "r1")
    assert status == 1
    assert answer["reason"].startswith("bob holds lock deploy")
    del answer["reason"]
    assert answer == {
        "outcome": "blocked",
        "pipeline": "r1",
        "phase": "one",
        "guard": "p/one/post",
        "leaf": "lock-free=deploy",
        "acts": ["bob releases lock deploy"],
        "attempts": 0,
        "retry_in": None,
        "cycle": [],
    }
    done = p.run("pipeline", "advance", "r1")
    assert done.status == 1
    assert done.out.startswith("blocked r1 in phase one: p/one/post: lock-free=deploy: bob holds")
    why = p.run("why", "pipeline/r1")
    assert "bob releases lock deploy" in why.out
    assert "lock/deploy: held by bob" in why.out
    listed = p.run("pipeline", "list", "--state", "running").out
    assert "lock-free=deploy: bob holds lock deploy, since " in listed


def test_an_overtaken_caller_learns_who_and_where(p: Shell) -> None:
    p.run("pipeline", "advance", "r1", "--agent", "bob")
    done = p.run("pipeline", "advance", "r1", "--phase", "one")
    assert done.status == 1
    assert done.out.startswith("overtaken r1: it is in phase two; bob moved it ")


def test_show_has_the_phases_and_what_it_holds(p: Shell) -> None:
    p.run("pipeline", "advance", "r1")
    status, answer = p.json("pipeline", "show", "r1")
    assert (status, answer["phase"], answer["holds"], answer["phases"]) == (
        0,
        "two",
        ["lock/merge"],
        ["one", "two"],
    )
    assert "one -> two" in p.run("pipeline", "show", "r1").out
    held = p.run("lock", "acquire", "merge").out
    assert held.startswith("busy merge: held by pipeline:r1 for ")


def test_cancel_takes_a_reason_and_releases(p: Shell) -> None:
    p.run("pipeline", "advance", "r1")
    done = p.run("pipeline", "cancel", "r1", "the release is off")
    assert (done.status, done.out) == (0, "cancelled r1: 'the release is off'\n")
    assert p.run("lock", "acquire", "merge").status == 0
    story = p.run("record", "explain", "pipeline/r1").out
    assert "started" in story
    assert "advanced, phase two" in story
    assert "cancelled, 'the release is off'" in story


def test_what_does_not_exist_is_unknown(p: Shell) -> None:
    for words in (("advance", "r9"), ("show", "r9"), ("cancel", "r9", "x")):
        status, answer = p.json("pipeline", *words)
        assert (status, answer) == (
            1,
            {"outcome": "unknown", "what": "pipeline", "unknown": ["r9"]},
        )
    status, answer = p.json("pipeline", "start", "q")
    assert (status, answer["what"]) == (1, "definition")
    assert "define it: interlock pipeline define FILE" in p.run("pipeline", "start", "q").out
    assert p.json("pipeline", "start", "p", "--id", "r1")[1]["outcome"] == "exists"


def test_a_start_without_an_id_prints_the_fresh_one(p: Shell) -> None:
    made = p.run("-q", "pipeline", "start", "p").out.strip()
    assert made.startswith("pip_")
    assert p.run("why", made).status == 0


def test_define_says_which_guards_need_a_host_that_looks(ada: Shell, tmp_path: Path) -> None:
    ada.allow_in(tmp_path / "guards")
    (tmp_path / "o.toml").write_text(
        '[[pipeline.o.phase]]\nname = "one"\npost = [{file_exists = "ready"}]\n'
    )
    out = ada.run("pipeline", "define", "o.toml").out
    assert "o/one/post: a host has to look outside of the store;" in out
    assert "a person has to allow that on each host that may look" in out


def test_why_says_what_a_host_saw_after_the_pipeline_was_blocked(
    ada: Shell, tmp_path: Path
) -> None:
    ada.allow_in(tmp_path / "guards")
    (tmp_path / "o.toml").write_text(
        '[[pipeline.o.phase]]\nname = "one"\npost = [{file_exists = "ready"}]\n'
    )
    ada.run("pipeline", "define", "o.toml")
    ada.run("pipeline", "start", "o", "--id", "o1")
    assert "does not allow it" in ada.run("pipeline", "advance", "o1").out
    why = ada.json("why", "o1")[1]
    assert "no host may look; a person has to allow it" in why["because"]
    ada.run("guard", "allow", "o.toml")
    why = ada.json("why", "o1")[1]
    assert "no host has looked within 60 s; host" in why["because"]
    assert why["clear"].startswith("check the guard on host ")
    assert "there is no ready" in ada.run("pipeline", "advance", "o1").out
    why = ada.json("why", "o1")[1]
    assert "there is no ready" in why["because"]
    assert why["clear"] == "create file ready"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[guard.x]\nwhen = [{lock_free = 'a'}]\n", "for its guards: interlock guard define FILE"),
        ("[[pipeline.p.phase]]\nnam = 'x'\n", "bad.toml"),
        ("[pipeline.p\n", "bad.toml"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(
    ada: Shell, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    done = ada.run("pipeline", "define", "bad.toml")
    assert (done.status, done.out) == (2, "")
    assert says in done.err


def test_a_phase_or_state_that_does_not_exist_is_bad_input(p: Shell) -> None:
    assert "its phases: one, two" in p.run("pipeline", "advance", "r1", "--phase", "x").err
    assert "the states are" in p.run("pipeline", "list", "--state", "x").err
