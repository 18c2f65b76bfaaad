"""Guards at the command line: every condition, definitions in files and in the store."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.faces.shell import Shell, gone, until
from tests.nouns.guards.outside import Repository

import interlock
from interlock.core import keys
from interlock.nouns.guards.leaf_kinds import KINDS
from interlock.nouns.guards.rules import OPPOSITE
from interlock.store import Put, Range, Txn

CALM = """
[guard.calm]
when = [{lock_free = "deploy"}, {not = {file_exists = "STOP"}}]
on_failure = {fail = "no deploys now"}

[guard.tested]
when = {command = ["sh", "test.sh"]}
"""


@pytest.fixture
def guarded(ada: Shell, tmp_path: Path) -> Shell:
    """A shell whose host has a list of its own, outside of the folder that it works in."""
    ada.allow_in(tmp_path / "home" / "list")
    (tmp_path / "guards.toml").write_text(CALM)
    (tmp_path / "test.sh").write_text("echo ran >> ran.txt\n")
    return ada


@pytest.fixture
def world(guarded: Shell) -> Shell:
    """A store, a repository and files in which each condition is true, false and unknown."""
    furnish(guarded.folder, str(guarded.folder / ".interlock" / "store.db"))
    return guarded


def furnish(folder: Path, url: str) -> None:
    """Locks, slots, tasks and pipelines in a store; branches and files in a folder."""
    (folder / "pipelines.toml").write_text(PIPELINES)
    with interlock.connect(url, agent="bob", join=False) as bob:
        bob.locks.acquire("merge", ttl=900)
        bob.semaphores.acquire("builds", capacity=2, weight=2, ttl=900)
        bob.semaphores.acquire("tests", capacity=2, weight=1, ttl=900)
        for task in ("build.1", "test.1"):
            bob.tasks.publish(task)
        bob.tasks.publish("ship.1", needs=["test.1"])
        claim = bob.tasks.claim("build.1")
        assert isinstance(claim, interlock.Claimed)
        bob.tasks.complete("build.1", token=claim.token)
        bob.pipelines.define(folder / "pipelines.toml")
        assert bob.pipelines.start("release", id="r1")
        assert bob.pipelines.start("release", id="r0")
        assert bob.pipelines.advance("r0")
        broken = (keys.lock("odd"), keys.semaphore("odd"), keys.status("odd"), keys.pipeline("odd"))
        puts = tuple([Put(key, b"[") for key in broken])
        bob.store.commit(Txn(id="x", puts=puts, quiet=True))
    repository = Repository(folder)
    repository.commit("notes.txt", "all is well")
    repository("branch", "merged")
    repository("branch", "broken")
    (folder / ".git/refs/heads/broken").write_text("garbage\n")
    repository("checkout", "-q", "-b", "work")
    repository.commit("work.txt")
    (folder / "work.txt").write_text("changed")
    os.symlink("loop", folder / "loop")
    os.mkfifo(folder / "pipe")


PIPELINES = """
[[pipeline.release.phase]]
name = "test"
"""

TRUE = [
    "lock-free=deploy",
    "lock-held=merge",
    "lock-held=merge,by=bob",
    "semaphore-available=tests",
    "tasks-complete=build.",
    "tasks-complete=none.,none-ok",
    "no-blocked-tasks=build.",
    "pipeline-in-phase=r1,phase=test",
    "pipeline-complete=r0",
    "branch-exists=main",
    "branch-clean=main",
    "branch-merged=merged,into=main",
    "file-exists=notes.txt",
    "file-contains=notes.txt,text=is well",
    "file-contains=notes.txt,pattern=is w[e]ll$",
    "command=true",
    "command-fails=false",
    "command,expect=3,run=sh -c 'exit 3'",
]
FALSE = [
    "lock-free=merge",
    "lock-held=deploy",
    "lock-held=merge,by=ada",
    "semaphore-available=builds",
    "semaphore-available=tests,slots=2",
    "tasks-complete=test.",
    "tasks-complete=none.",
    "no-blocked-tasks=ship.",
    "pipeline-in-phase=r1,phase=build",
    "pipeline-complete=r1",
    "branch-exists=feature",
    "branch-clean=work",
    "branch-merged=work,into=main",
    "file-exists=STOP",
    "file-contains=notes.txt,text=is ill",
    "command=false",
    "command-fails=true",
]
UNKNOWN = [
    "lock-free=odd",
    "lock-held=odd",
    "semaphore-available=odd",
    "semaphore-available=unused",
    "tasks-complete=odd",
    "no-blocked-tasks=odd",
    "pipeline-in-phase=odd,phase=test",
    "pipeline-complete=odd",
    "branch-exists=broken",
    "branch-clean=nowhere",
    "branch-merged=main,into=nowhere",
    "file-exists=loop/x",
    "file-contains=pipe,text=x",
    "command=no-such-program",
    "command,timeout=0.1s,run=sleep 60",
]


@pytest.mark.parametrize(
    "condition", ["branch-exists=main", "branch-clean=main", "branch-merged=a,into=main"]
)
def test_branches_are_unknown_where_there_is_no_repository(guarded: Shell, condition: str) -> None:
    assert guarded.json("guard", "check", condition)[1]["outcome"] == "unknown"


def test_a_check_says_each_leaf_and_then_what_would_clear_it(world: Shell) -> None:
    done = world.run("guard", "check", "lock-free=merge", "!file-exists=notes.txt", "command=true")
    assert done.status == 1
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["false", "lock-free=merge"],
        ["false", "'!file-exists=notes.txt'"],
        ["true", "command=true"],
    ]
    assert "bob holds lock merge" in lines[0]
    assert lines[3:] == [
        "failed; to clear it:",
        "  bob releases lock merge",
        "  remove file notes.txt",
    ]


def test_a_shell_checks_store_and_outside_together_on_every_engine(bare: Shell, url: str) -> None:
    bare.exported |= {
        "INTERLOCK_STORE": url,
        "INTERLOCK_AGENT": "ada",
        "INTERLOCK_ALLOWED_DIR": str(bare.folder / "list"),
    }
    (bare.folder / "guards.toml").write_text(CALM)
    (bare.folder / "test.sh").touch()
    bare.run("init")
    words = ("guard", "check", "lock-free=deploy", "command=true", "--name", "calm")
    assert bare.run(*words).status == 1
    assert bare.run("guard", "define", "guards.toml").status == 0
    assert bare.json(*words)[1]["outcome"] == "unknown"
    bare.run("guard", "allow", "guards.toml")
    assert bare.json(*words)[1]["outcome"] == "passed"
    bare.run("lock", "acquire", "deploy", "--agent", "bob")
    status, answer = bare.json(*words)
    assert (status, answer["outcome"], answer["guard"]) == (1, "failed", "")
    assert [each["outcome"] for each in answer["guards"]] == ["failed", "failed"]
    assert bare.json("why", "guard/calm")[1]["by"] == "bob"
    assert bare.run("guard", "list").status == 0
    assert bare.run("guard", "show", "calm").status == 0
    assert bare.run("maintain").status == 0
    assert bare.run("record", "verify").status == 0
    denied = bare.run("guard", "deny", "guards.toml")
    assert denied.out == "denied calm, tested; deleted 1 observation of this host\n"
    assert bare.json("guard", "show", "calm")[1]["observations"] == []
    assert bare.json("guard", "check", "--name", "tested")[1]["outcome"] == "unknown"
    assert bare.run("record", "verify").status == 0


def test_every_condition_is_true_false_and_unknown_from_the_shell_on_every_engine(
    bare: Shell, url: str
) -> None:
    bare.exported |= {"INTERLOCK_STORE": url, "INTERLOCK_AGENT": "ada"}
    bare.run("init")
    furnish(bare.folder, url)
    verdicts = {"true": TRUE, "false": FALSE, "unknown": UNKNOWN}
    for some in verdicts.values():
        assert {re.split("[=,]", word)[0].replace("-", "_") for word in some} >= set(KINDS)
    expected = {word: verdict for verdict, some in verdicts.items() for word in some}
    expected |= {f"!{word}": OPPOSITE[verdict] for word, verdict in expected.items()}
    status, answer = bare.json("guard", "check", *expected)
    assert (status, answer["outcome"]) == (1, "failed")
    assert {leaf["condition"]: leaf["verdict"] for leaf in answer["leaves"]} == expected
    assert all(leaf["reason"] for leaf in answer["leaves"])
    for words, outcome in (
        (TRUE, "passed"),
        ([*TRUE, UNKNOWN[0]], "unknown"),
        ([*TRUE, f"!{UNKNOWN[0]}"], "unknown"),
        ([UNKNOWN[0], FALSE[0]], "failed"),
    ):
        status, answer = bare.json("guard", "check", *words)
        assert (status, answer["outcome"]) == (int(outcome != "passed"), outcome)
        assert bool(answer["acts"]) is (outcome != "passed")


def test_the_help_of_a_check_says_what_its_exit_status_means(bare: Shell) -> None:
    said = bare.run("guard", "check", "--help").out
    assert "exit status: 0 passed; 1 failed, unknown, nothing; 2 bad input" in said


def test_one_of_several_conditions_is_enough_with_any(world: Shell) -> None:
    words = ("lock-free=merge", "file-exists=notes.txt")
    assert world.run("guard", "check", *words).status == 1
    done = world.run("guard", "check", "--any", *words)
    assert (done.status, done.out.splitlines()[-1]) == (0, "passed")


def test_conditions_about_the_outside_need_no_store(bare: Shell) -> None:
    (bare.folder / "notes.txt").write_text("x")
    assert bare.run("guard", "check", "file-exists=notes.txt", "command=true").status == 0
    assert bare.run("guard", "check", "!file-exists=notes.txt").status == 1
    done = bare.run("guard", "check", "file-exists=notes.txt", "lock-free=deploy")
    assert (done.status, done.out) == (4, "")
    assert "interlock init" in done.err
    assert not (bare.folder / ".interlock").exists()


def test_guards_of_a_file_need_a_store_only_if_they_ask_for_it(bare: Shell) -> None:
    bare.exported["INTERLOCK_ALLOWED_DIR"] = str(bare.folder / "list")
    (bare.folder / "a.toml").write_text('[guard.a]\nwhen = {file_exists = "a.toml"}\n')
    assert bare.json("guard", "check", "--file", "a.toml")[1]["outcome"] == "unknown"
    assert bare.run("guard", "allow", "a.toml").status == 0
    assert bare.run("guard", "check", "--file", "a.toml").status == 0
    (bare.folder / "b.toml").write_text('[guard.b]\nwhen = {lock_free = "b"}\n')
    assert bare.run("guard", "check", "--file", "b.toml").status == 4


def test_conditions_are_about_the_folder_that_is_named(guarded: Shell) -> None:
    (guarded.folder / "below").mkdir()
    (guarded.folder / "below" / "x").touch()
    assert guarded.run("guard", "check", "file-exists=x").status == 1
    assert guarded.run("guard", "check", "file-exists=x", "--in", "below").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lock-fre=deploy",), "did you mean lock-free"),
        (("lock-held",), "write it like lock-held=deploy,by=ada"),
        (("lock-free=",), "the lock name is empty"),
        (("lock-free=a,bye=ada",), "lock_free has no field 'bye'"),
        (("lock-held=a,by=",), "empty"),
        (("semaphore-available=a,slots=many",), "slots"),
        (("file-exists=/etc/passwd",), "does not stay below the root"),
        (("file-contains=a",), "either a text or a pattern"),
        (("",), "write one such as lock-free=deploy"),
        (("!",), "write one such as lock-free=deploy"),
        ((), "what is to be checked"),
        (("--any",), "what is to be checked"),
        (("--any", "--name", "calm"), "--any is for conditions"),
        (("--file", "none.toml"), "cannot be read"),
        (("--file", "guards.toml", "--name", "clam"), "it has calm"),
        (("--file", "wrong.toml"), "wrong.toml:2: there is no condition 'lock_fre'"),
        (("file-exists=x", "--in", "nowhere"), "is not a folder"),
    ],
)
def test_odd_input_gives_one_line_that_says_what_was_meant(
    guarded: Shell, words: tuple[str, ...], said: str
) -> None:
    (guarded.folder / "wrong.toml").write_text('[guard.a]\nwhen = {lock_fre = "x"}\n')
    done = guarded.run("guard", "check", *words)
    assert (done.status, done.out) == (2, ""), done
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_file_is_looked_at_only_after_its_owner_allowed_it(guarded: Shell) -> None:
    """A file that was fetched from elsewhere must not run commands by being checked."""
    status, answer = guarded.json("guard", "check", "--file", "guards.toml")
    assert (status, answer["outcome"]) == (1, "unknown")
    assert "does not allow it" in answer["leaves"][1]["reason"]
    assert not (guarded.folder / "ran.txt").exists()
    status, allowed = guarded.json("guard", "allow", "guards.toml")
    assert (status, allowed["outcome"], allowed["root"]) == (0, "allowed", str(guarded.folder))
    assert [each["runs"] for each in allowed["guards"]] == [[], ["sh test.sh"]]
    assert [each["looks"] for each in allowed["guards"]] == [["file-exists=STOP"], []]
    status, answer = guarded.json("guard", "check", "--file", "guards.toml")
    assert (status, answer["outcome"]) == (0, "passed")
    assert [each["guard"] for each in answer["guards"]] == ["calm", "tested"]
    assert (guarded.folder / "ran.txt").read_text() == "ran\n"
    assert guarded.run("guard", "deny", "guards.toml").out.startswith("denied calm, tested")
    guarded.run("guard", "check", "--file", "guards.toml")
    assert (guarded.folder / "ran.txt").read_text() == "ran\n"


def test_a_definition_that_changed_is_not_allowed_any_more(guarded: Shell) -> None:
    guarded.run("guard", "allow", "guards.toml")
    changed = CALM.replace('"test.sh"', '"test.sh", "x"')
    (guarded.folder / "guards.toml").write_text(changed)
    _, answer = guarded.json("guard", "check", "--file", "guards.toml")
    assert {each["guard"]: each["outcome"] for each in answer["guards"]} == {
        "calm": "passed",
        "tested": "unknown",
    }
    assert not (guarded.folder / "ran.txt").exists()


def test_a_permission_is_listed_and_ends_though_its_file_is_gone(guarded: Shell) -> None:
    assert "allows nothing" in guarded.run("guard", "permissions").out
    guarded.run("guard", "allow", "guards.toml")
    assert guarded.run("guard", "define", "guards.toml").status == 0
    assert guarded.run("guard", "check", "--name", "tested").status == 0
    (guarded.folder / "guards.toml").unlink()
    listed = guarded.json("guard", "permissions")[1]["permissions"]
    digests = {each["note"]: each["digest"] for each in listed}
    assert sorted(digests) == ["calm of guards.toml", "tested of guards.toml"]
    digest = digests["tested of guards.toml"]
    assert digest[:12] in guarded.run("guard", "permissions").out
    done = guarded.run("guard", "deny", digest[:12])
    assert done.out == "denied tested; deleted 1 observation of this host\n"
    assert re.search(r"denied .* 'tested of guards.toml'", guarded.run("guard", "permissions").out)
    assert guarded.json("guard", "check", "--name", "tested")[1]["outcome"] == "unknown"
    assert guarded.run("guard", "check", "--name", "calm").status == 0
    for wrong in ("guards.toml", "abcdefabcdef"):
        done = guarded.run("guard", "deny", wrong)
        assert (done.status, done.err.count("\n")) == (2, 1)


def test_a_denial_holds_though_the_store_does_not_answer(guarded: Shell) -> None:
    assert guarded.run("guard", "allow", "guards.toml").status == 0
    guarded.exported["INTERLOCK_STORE"] = "redis://127.0.0.1:1"
    status, answer = guarded.json("guard", "deny", "guards.toml")
    assert (status, answer["outcome"], answer["withdrawn"]) == (0, "denied", 0)
    assert "127.0.0.1" in answer["left"]
    guarded.allow_in(Path(guarded.exported["INTERLOCK_ALLOWED_DIR"]))
    assert guarded.json("guard", "check", "--file", "guards.toml")[1]["outcome"] == "unknown"
    assert not (guarded.folder / "ran.txt").exists()


def test_a_guard_in_the_store_runs_nothing_on_a_host_that_did_not_allow_it(guarded: Shell) -> None:
    hostile = '[guard.calm]\nwhen = {command = ["touch", "owned"]}\n'
    (guarded.folder / "hostile.toml").write_text(hostile)
    guarded.run("guard", "allow", "guards.toml")
    assert guarded.run("guard", "define", "hostile.toml").status == 0
    for words in (("guard", "check", "--name", "calm"), ("why", "guard/calm"), ("health",)):
        guarded.run(*words)
    assert guarded.json("guard", "check", "--name", "calm")[1]["outcome"] == "unknown"
    assert guarded.json("guard", "show", "calm")[1]["allowed"] is False
    assert not (guarded.folder / "owned").exists()


def test_another_host_relies_on_what_an_allowed_host_saw(guarded: Shell) -> None:
    guarded.run("guard", "define", "guards.toml")
    guarded.run("guard", "allow", "guards.toml")
    assert guarded.run("guard", "check", "--name", "calm,tested").status == 0
    guarded.allow_in(guarded.folder / "other-host")
    status, answer = guarded.json("guard", "check", "--name", "calm,tested")
    assert (status, answer["outcome"]) == (0, "passed")
    assert (guarded.folder / "ran.txt").read_text() == "ran\n"
    seen = guarded.json("guard", "show", "tested")[1]["observations"]
    assert [(each["condition"], each["value"], each["current"]) for each in seen] == [
        ("command=sh test.sh", 0, True)
    ]
    assert guarded.run("record", "verify").status == 0


def test_definitions_are_new_changed_or_the_same(guarded: Shell) -> None:
    assert guarded.run("guard", "define", "guards.toml").out == "defined calm, tested (new)\n"
    assert guarded.run("guard", "define", "guards.toml").out == "defined calm, tested (the same)\n"
    (guarded.folder / "guards.toml").write_text(CALM.replace("deploy", "merge"))
    status, answer = guarded.json("guard", "define", "guards.toml")
    assert (status, answer) == (
        0,
        {"outcome": "defined", "new": [], "changed": ["calm"], "same": ["tested"]},
    )
    assert [each["guard"] for each in guarded.json("guard", "list")[1]["guards"]] == [
        "calm",
        "tested",
    ]
    assert guarded.run("guard", "drop", "calm").out == "dropped calm\n"
    assert guarded.run("guard", "drop", "calm").status == 1
    assert guarded.run("guard", "show", "calm").status == 1
    assert guarded.json("guard", "check", "--name", "calm") == (
        1,
        {"outcome": "nothing", "guard": "calm"},
    )
    story = guarded.run("record", "explain", "guard/calm").out
    assert [line.split()[-1] for line in story.splitlines()] == ["defined", "defined", "dropped"]


def test_a_guard_is_shown_as_a_file_could_define_it(guarded: Shell) -> None:
    guarded.run("guard", "define", "guards.toml")
    done = guarded.run("guard", "show", "calm")
    assert done.out.startswith(CALM.strip().partition("\n\n")[0] + "\n\ndigest")
    assert "not allowed: no person allowed this definition here" in done.out
    status, shown = guarded.json("guard", "show", "calm")
    assert (status, shown["stored"]["name"], shown["outside"]) == (0, "calm", True)
    assert len(shown["digest"]) == 64


def test_why_names_each_failing_leaf_its_holder_and_since_when(guarded: Shell) -> None:
    guarded.run("guard", "define", "guards.toml")
    guarded.run("guard", "allow", "guards.toml")
    assert guarded.run("why", "guard/calm").out.startswith("guard/calm is passed: ")
    guarded.run("lock", "acquire", "deploy", "--agent", "bob")
    (guarded.folder / "STOP").touch()
    status, why = guarded.json("why", "guard/calm")
    assert (status, why["blocked"], why["by"], why["state"]) == (0, True, "bob", "failed")
    assert "lock-free=deploy is false: bob holds lock deploy" in why["because"]
    assert "'!file-exists=STOP' is false: STOP is a file" in why["because"]
    assert why["clear"] == "bob releases lock deploy; remove file STOP"
    assert why["since"] is not None


def test_drop_names_the_tasks_that_wait_for_the_guard(guarded: Shell) -> None:
    guarded.run("guard", "define", "guards.toml")
    guarded.run("task", "add", "t1", "--guard", "tested")
    said = "dropped tested; what waits for it waits until it is defined again: task/t1\n"
    assert guarded.run("guard", "drop", "tested").out == said


def test_a_file_without_guards_says_what_it_defines(guarded: Shell) -> None:
    (guarded.folder / "p.toml").write_text(PIPELINES)
    done = guarded.run("guard", "define", "p.toml")
    assert done.status == 2
    assert "for its pipelines: interlock pipeline define FILE" in done.err


def test_deny_of_a_name_says_what_it_takes(guarded: Shell) -> None:
    done = guarded.run("guard", "deny", "calm")
    assert done.status == 2
    assert "a digest that 'interlock guard permissions' shows" in done.err


def test_why_says_that_no_live_host_may_look(guarded: Shell) -> None:
    guarded.run("guard", "define", "guards.toml")
    why = guarded.json("why", "guard/tested")[1]
    assert why["state"] == "unknown"
    assert "does not allow it, and no live host may look" in why["because"]
    assert "a person" in why["clear"]
    assert guarded.run("why", "guard/none").status == 1


def test_a_check_that_is_ended_ends_its_commands(guarded: Shell) -> None:
    nap = "command=sh -c 'echo $$ > pid.tmp && mv pid.tmp pid && sleep 600'"
    check = guarded.start("guard", "check", nap)
    pid = int(until((guarded.folder / "pid").exists) and (guarded.folder / "pid").read_text())
    check.terminate()
    assert check.wait(30) == 143
    until(lambda: gone(pid))


def test_the_list_of_allowed_definitions_must_belong_to_its_user(guarded: Shell) -> None:
    guarded.run("guard", "allow", "guards.toml")
    folder = Path(guarded.exported["INTERLOCK_ALLOWED_DIR"])
    folder.chmod(0o777)
    _, answer = guarded.json("guard", "check", "--file", "guards.toml", "--name", "tested")
    assert answer["outcome"] == "unknown"
    assert "other users may write to" in answer["leaves"][0]["reason"]
    assert guarded.run("guard", "allow", "guards.toml").status == 3


def test_a_file_with_nothing_outside_needs_no_permission(guarded: Shell) -> None:
    (guarded.folder / "plain.toml").write_text('[guard.a]\nwhen = {lock_free = "x"}\n')
    assert "needs no permission" in guarded.run("guard", "allow", "plain.toml").out
    assert not Path(guarded.exported["INTERLOCK_ALLOWED_DIR"]).exists()
    assert guarded.run("guard", "check", "--file", "plain.toml").status == 0


@pytest.fixture
def gated(ada: Shell) -> Shell:
    """A shell where a guard wants a lock free that another agent holds."""
    (ada.folder / "guards.toml").write_text('[guard.calm]\nwhen = {lock_free = "db"}\n')
    assert ada.run("guard", "define", "guards.toml").status == 0
    assert ada.run("lock", "acquire", "db", "--agent", "bob").status == 0
    return ada


GATED = """
    lock acquire deploy --guard calm
    sem acquire builds --capacity 2 --guard calm
    acquire lock/merge lock/ship --guard calm
    lock run run --guard calm -- true
    sem run runs --capacity 2 --guard calm -- true
    run --hold lock/run --guard calm -- true
"""


def test_what_a_guard_blocks_is_not_acquired_until_it_passes(gated: Shell) -> None:
    commands = [line.split() for line in GATED.strip().splitlines()]
    for words in commands:
        done = gated.run(*words)
        assert done.status == 1, done
        assert "guard calm failed: lock-free=db: bob holds lock db, for" in done.out
        assert done.out.endswith("; to clear it:\n  bob releases lock db\n")
    status, answer = gated.json(*commands[0], "--wait", "100ms")
    assert (status, answer["outcome"], answer["thing"]) == (1, "blocked", "lock/deploy")
    assert (answer["guard"], answer["leaf"], answer["action"]) == ("calm", "lock-free=db", "block")
    assert gated.run("lock", "break", "db", "--reason", "test").status == 0
    for words in commands:
        assert gated.run(*words).status == 0, words


def test_a_guard_that_is_not_there_or_about_the_lock_itself_is_an_error(gated: Shell) -> None:
    done = gated.run("lock", "acquire", "deploy", "--guard", "calm,other", "--wait", "1h")
    assert (done.status, done.out) == (
        1,
        "nothing: the store has no guard other; define it: interlock guard define FILE\n",
    )
    done = gated.run("lock", "acquire", "db", "--guard", "calm")
    assert (done.status, done.out) == (2, "")
    assert "drop that condition" in done.err
    done = gated.run("run", "--guard", "calm", "--", "true")
    assert done.status == 2
    assert "need something to hold; name it: --hold" in done.err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_ends_while_it_waits_for_a_guard_leaves_nothing(
    gated: Shell, signum: signal.Signals
) -> None:
    words = ("--guard", "calm", "--wait", "forever", "--ttl", "1s")
    waits = gated.start("lock", "run", "deploy", *words, "--", "touch", "ran")

    def waiting() -> list[str]:
        found: list[str] = gated.json("why", "lock/deploy")[1]["meanwhile"]
        return found

    until(waiting, "the wait")
    assert waiting()[0].startswith("ada waits for guard/calm before it acquires this")
    waits.send_signal(signum)
    waits.wait()
    until(lambda: not waiting(), "the end of the wait")  # a killed one ends with its session
    assert gated.run("lock", "break", "db", "--reason", "test").status == 0
    assert gated.json("lock", "show", "deploy")[1]["state"] == "free"
    assert gated.run("maintain").status == 0
    assert gated.run("doctor", "--json").status == 0
    with interlock.connect(str(gated.folder / ".interlock" / "store.db")) as fleet:
        page = Range(keys.WAITS)
        assert fleet.store.read(page).ranges[page] == ()
    assert not (gated.folder / "ran").exists()
