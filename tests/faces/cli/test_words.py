"""Wrong words: one clear line, the right status, never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest
from tests.faces.shell import COMMAND, Here, Result, Shell
from tests.for_each import for_each

from interlock import registry
from interlock.faces.cli.parse import COMMON
from interlock.runtime.operation import fields


def refused(done: Result, status: int = 2) -> str:
    assert done.status == status, done
    assert done.out == ""
    assert done.err.startswith("interlock: ")
    assert done.err.count("\n") == 1
    return done.err


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 201,
        "..",
        "a/../b",
        "/a",
        "a//b",
        "a ",
        "a\nb",
        "a\x1b[31m",
        "ä\u200d",
        b"\xff\xfe",
    ],
)
def test_bad_names_are_refused(here: Here, name: str | bytes) -> None:
    refused(here.run("lock", "acquire", name))
    status, answer = here.json("lock", "acquire", name)
    assert (status, answer["error"]) == (2, "bad_name")
    refused(here.run("lock", "acquire", "x", "--agent", name))


@pytest.mark.parametrize("ttl", ["-5s", "soon", "", "1e9d", "99999d", "1ms", "nan", "inf", b"\xff"])
def test_bad_durations_are_refused(here: Here, ttl: str | bytes) -> None:
    status, answer = here.json("lock", "acquire", "x", "--ttl", ttl)
    assert (status, answer["error"]) == (2, "bad_duration")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("lock", "acquire"), "LOCK is missing"),
        (("lock", "acquire", "a", "b"), "one word too many"),
        (("lock", "acquire", "x", "--ttl"), "needs a value"),
        (("lock", "acquire", "x", "--ttl", "--wait"), "needs a value"),
        (("lock", "acquire", "x", "--wiat", "5s"), "did you mean --wait?"),
        (("lock", "acquire", "x", "--token", "abc"), "whole number"),
        (("lock", "acquire", "x", "--token", "9" * 30), "out of bounds"),
        (("lock", "acquire", "x", "--metadata", "{"), "not JSON"),
        (("lock", "acquire", "x", "--metadata", b'"\xff"'), "UTF-8"),
        (("lock", "acquire", "x", "--trace", "a\tb"), "trace"),
        (("lock", "list", "--json=yes"), "takes no value"),
        (("record", "log", "--limit", "0"), "limit"),
        (("record", "log", "--after", "-1"), "out of bounds"),
        (("lock",), "one of: acquire"),
        (("lock", "aquire", "x"), "did you mean 'lock acquire'?"),
        (("acquire", "x"), "write lock/x or sem/x"),
        (("semaphore", "acquire", "x"), "did you mean 'sem acquire'?"),
        (("slots",), "did you mean 'sem'?"),
        (("locks",), "did you mean 'lock'?"),
        (("unlock", "x"), "did you mean 'lock release'?"),
        (("list",), "'message list' or 'agent list' or 'task list'"),
        (("qwertz",), "interlock --help"),
        ((b"\xff",), "interlock --help"),
        (("-v",), "which command?"),
        (("run",), "which program?"),
        (("lock", "run", "x"), "which program?"),
        (("lock", "list", "--store", ""), "--store is empty"),
        (("lock", "list", "--store", "memory:"), "name a file"),
        (("lock", "list", "--store", "redis2://x"), "redis2://"),
        (("lock", "acquire", "x", "--store", b"/tmp/\xff.db"), "UTF-8"),
    ],
)
def test_wrong_words_get_a_hint(here: Here, words: tuple[str | bytes, ...], hint: str) -> None:
    assert hint in refused(here.run(*words))


def test_metadata_above_its_limit_is_refused(here: Here) -> None:
    status, answer = here.json("lock", "acquire", "x", "--metadata", '"' + "a" * 16384 + '"')
    assert (status, answer["error"]) == (2, "too_large")


def test_who_you_are_must_be_known(shell: Shell) -> None:
    assert "INTERLOCK_AGENT" in refused(shell.run("lock", "acquire", "x"))
    shell.exported["INTERLOCK_AGENT"] = ""
    refused(shell.run("lock", "acquire", "x"))


def test_options_may_stand_anywhere(here: Here) -> None:
    for words in (
        ("--ttl", "40s", "--json", "lock", "acquire", "a"),
        ("--json", "lock", "--ttl=40s", "acquire", "b"),
        ("lock", "acquire", "--ttl=40s", "c", "--json"),
        ("lock", "acquire", "--ttl", "40s", "--json", "--", "d"),
    ):
        done = here.run(*words)
        assert done.json["expires_in"] == 40


@for_each("name", registry.names())
def test_every_operation_explains_itself(here: Here, name: str) -> None:
    done = here.run(*name.split(), "--help")
    assert done.status == 0
    assert done.err == ""
    own = fields(registry.find(name).request)
    for field in (*own, *COMMON):
        shown = field.option if not field.positional else field.name.upper()
        assert (shown if field.kind != "command" else "CMD") in done.out
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("-h",), ("help",), ("lock", "--help"), ("help", "lock")]
)
def test_help_needs_nothing(here: Here, words: tuple[str, ...]) -> None:
    done = here.run(*words)
    assert (done.status, done.err) == (0, "")
    assert "lock run" in done.out


def test_the_first_help_fits_on_a_screen_and_names_every_group(here: Here) -> None:
    said = here.run().out
    assert len(said.splitlines()) <= 60
    assert [word for word in registry.words() if f"\n  {word} " not in said] == []
    assert "interlock --all" in said


def test_all_commands_are_listed_when_asked(here: Here) -> None:
    for words in (("--all",), ("help", "--all")):
        said = here.run(*words).out
        assert [name for name in registry.names() if f"\n  {name} " not in said] == []


def test_the_version_is_one_line(bare: Shell) -> None:
    done = bare.run("--version")
    assert done.status == 0
    assert done.out.startswith("interlock ")


def test_more_is_said_only_when_asked(ada: Shell) -> None:
    assert ada.run("lock", "list").err == ""
    store = str(ada.folder / ".interlock" / "store.db")
    assert f"interlock: store {store}, agent ada\n" in ada.run("lock", "list", "-v").err
    assert "session ses_" in ada.run("-vv", "lock", "list").err


def test_a_reader_that_leaves_early_is_no_trouble(ada: Shell) -> None:
    for number in range(3):
        ada.run("lock", "acquire", f"l{number}")
    command = " ".join(COMMAND)
    script = f"{command} record log | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_an_unforeseen_error_is_one_line_too(ada: Shell) -> None:
    # A folder where a file is expected, which nobody checks for in advance.
    path = ada.folder / ".interlock" / "store.db"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    refused(ada.run("lock", "list"), status=4)
    status, answer = ada.json("lock", "list")
    assert (status, answer["error"]) == (4, "store_damaged")
    assert os.path.exists(path)


@pytest.mark.parametrize("words", ["lock list", "--json lock list", "--help", "lock acquire m"])
def test_a_closed_stdout_is_one_line_and_nothing_is_done(ada: Shell, words: str) -> None:
    done = _in_bash(ada, f"{words} >&-")
    assert refused(done, 4).startswith("interlock: stdout is closed")
    assert _in_bash(ada, f"{words} >&- 2>&-") == Result(4, "", "")
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


@pytest.mark.parametrize("words", ["lock list", "--json lock list", "--json lock"])
def test_an_answer_that_cannot_be_written_is_one_line(ada: Shell, words: str) -> None:
    refused(_in_bash(ada, f"{words} >/dev/full"), 2 if words.endswith("lock") else 4)


GRANTING = [
    "lock acquire m", "sem acquire s --capacity 2", "acquire lock/m sem/s=2", "task claim t",
    "task next",
]  # fmt: skip


def _prepare(shell: Shell, words: str) -> None:
    if words.startswith("task"):
        shell.run("task", "add", "t")
    if "sem/s" in words:
        token = shell.json("sem", "acquire", "s", "--capacity", "2")[1]["token"]
        shell.run("sem", "release", "s", "--token", str(token))


@pytest.mark.parametrize("words", [*GRANTING, "lock acquire m --json"])
def test_a_grant_whose_token_cannot_be_told_is_given_back(ada: Shell, words: str) -> None:
    _prepare(ada, words)
    said = refused(_in_bash(ada, f"{words} >/dev/full"), 4)
    assert said.startswith("interlock: the answer could not be written (No space left on device)")
    were = "were" if words.startswith("acquire") else "was"
    assert f"{were} released; send stdout elsewhere, then retry" in said
    assert not any(held.get("holder") for held in ada.json("lock", "list")[1]["locks"])
    status, again = ada.json(*words.split(), "--agent", "bob")
    assert (status, again["holder"]) == (0, "bob")


def test_all_claims_that_cannot_be_told_are_given_back(ada: Shell) -> None:
    for name in ("t1", "t2", "t3", "t4"):
        ada.run("task", "add", name)
    said = refused(_in_bash(ada, "task next --limit 3 --ttl 15m >/dev/full"), 4)
    assert "task t1, t2, t3 were released" in said
    token = ada.json("task", "claim", "t1", "--ttl", "15m")[1]["token"]
    ended = _in_bash(ada, f"task done t1 --token {token} --next --ttl 15m >/dev/full")
    assert "but it was done" in ended.err
    assert "task t2 was released" in ended.err
    tasks = {each["task"]: each["state"] for each in ada.json("task", "list")[1]["tasks"]}
    assert tasks == {"t2": "pending", "t3": "pending", "t4": "pending"}


@pytest.mark.parametrize("words", GRANTING)
def test_a_grant_whose_reader_is_gone_is_given_back(ada: Shell, words: str) -> None:
    _prepare(ada, words)
    hear, speak = os.pipe()
    os.close(hear)
    command = [*COMMAND, *words.split()]
    done = subprocess.run(
        command,
        cwd=ada.folder,
        env=ada.environment(),
        stdout=speak,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(speak)
    assert done.returncode == 141
    assert "(Broken pipe), so" in done.stderr
    status, again = ada.json(*words.split(), "--agent", "bob")
    assert (status, again["holder"]) == (0, "bob")


UNWRITTEN = "interlock: the answer could not be written (No space left on device)"


@pytest.mark.parametrize(
    ("words", "done"),
    [
        ("send bob once", "sent msg_"), ("-q send bob once", "sent msg_"),
        ("--json send bob once", "sent msg_"), ("-vv task add t", "published t"),
        ("alert a", "sent msg_"), ("task import p.jsonl", "imported"),
    ],
)  # fmt: skip
def test_a_change_whose_answer_cannot_be_written_is_told(ada: Shell, words: str, done: str) -> None:
    (ada.folder / "p.jsonl").write_text('{"id": "t"}\n')
    if "send" in words:
        ada.run("inbox", "--agent", "bob")
    result = _in_bash(ada, f"{words} >/dev/full")
    told = next(line for line in result.err.splitlines() if UNWRITTEN in line)
    assert result.status == 4
    assert told.startswith(f"{UNWRITTEN}, but it was done: {done}")
    assert told.endswith("; do not repeat it")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "words", ["lock list", "--help", "--version", "lock --help", "lock show m", "send nobody hi"]
)
def test_where_nothing_changed_another_stdout_is_asked_for(ada: Shell, words: str) -> None:
    assert refused(_in_bash(ada, f"{words} >/dev/full"), 4) == (
        f"{UNWRITTEN}; send stdout elsewhere\n"
    )


@pytest.mark.parametrize("words", ["task add", "alert a", "send ada once", "share ada once"])
def test_quiet_prints_the_id_that_was_made(ada: Shell, words: str) -> None:
    ada.run("inbox")
    quiet = ada.run("-q", *words.split())
    assert (quiet.status, quiet.err) == (0, "")
    assert quiet.out.startswith("tsk_" if words.startswith("task") else "msg_")
    assert quiet.out.strip() in str(ada.json("record", "log")[1])


def test_a_session_that_cannot_be_told_is_left(ada: Shell) -> None:
    refused(_in_bash(ada, "agent join >/dev/full"), 4)
    assert ada.json("agent", "list")[1]["agents"] == []


def test_a_closed_stderr_is_silence(ada: Shell) -> None:
    assert _in_bash(ada, "lock list 2>&-") == Result(0, "no lock is held\n", "")
    assert _in_bash(ada, "lock 2>&-") == Result(2, "", "")
    assert _in_bash(ada, "lock list -vv --store nosql://x 2>&-") == Result(2, "", "")
    assert _in_bash(ada, "agent join 2>&-").out.startswith("export INTERLOCK_SESSION=")


def test_long_words_are_not_repeated_whole(here: Here) -> None:
    long = "9" * 5000
    for words in (
        (long,), ("lock", long), ("--" + long,), ("lock", "show", "m", long),
        ("lock", "list", "--" + long), ("lock", "beat", "m", "--token", long),
        ("lock", "beat", "m", "--token", "x" + long), ("lock", "show", long), ("why", long),
        ("agent", "show", long),
    ):  # fmt: skip
        assert len(refused(here.run(*words))) < 300


def _in_bash(shell: Shell, words: str) -> Result:
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(COMMAND)} {words}"],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("end", ["done", "fail"])
def test_quiet_prints_the_token_of_the_task_that_next_claimed(here: Here, end: str) -> None:
    for task in ("a", "b"):
        here.run("task", "add", task, "--agent", "ada")
    first = here.run("task", "next", "--agent", "ada", "-q").out.strip()
    second = here.run("task", end, "a", "--token", first, "--next", "--agent", "ada", "-q")
    assert (second.status, int(second.out) > int(first)) == (0, True)
    token = second.out.strip()
    last = here.run("task", end, "b", "--token", token, "--next", "--agent", "ada", "-q")
    assert last == (0, "", "")


def test_quiet_prints_what_was_asked_for_and_the_status_says_the_rest(here: Here) -> None:
    token = here.run("lock", "acquire", "m", "--agent", "ada", "--quiet").out.strip()
    assert token.isdigit()
    assert here.run("lock", "acquire", "m", "--agent", "bob", "-q") == (1, "", "")
    assert "m" in here.run("lock", "list", "--quiet").out
    assert here.run("lock", "release", "m", "--agent", "ada", "--token", token, "-q") == (0, "", "")
    assert here.run("task", "add", "t", "--agent", "ada", "--quiet") == (0, "t\n", "")
    sent = here.run("send", "bob", "hello", "--agent", "ada", "--hold", "--quiet")
    assert (sent.status, sent.out[:4]) == (0, "msg_")
    assert "acknowledge" not in here.run("inbox", "--agent", "bob", "--quiet").out
    wrong = here.run("lock", "acquire", "m", "--ttl", "soon", "--quiet")
    assert (wrong.status, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert here.json("lock", "list", "--quiet")[1]["count"] == 0


@pytest.mark.parametrize(("word", "meant"), [("stpo", "stop"), ("atop", ""), ("elease", "")])
def test_what_ends_something_is_suggested_only_for_a_word_that_begins_as_it(
    here: Here, word: str, meant: str
) -> None:
    message = here.json(word)[1]["message"]
    assert ("'stop'" in message) == (meant == "stop")
    assert "release" not in message
