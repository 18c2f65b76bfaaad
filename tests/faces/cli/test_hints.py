"""What a newcomer gets wrong: the line that comes back says what to do, and that then works."""

from __future__ import annotations

import re
import subprocess

import pytest
from tests.docs.pages import ROOT
from tests.faces.shell import COMMAND, Here, Shell


def hint(shell: Shell, *words: str) -> str:
    done = shell.run(*words)
    assert (done.status, done.out) == (2, ""), done
    return done.err


def test_a_shell_whose_session_is_over_can_join_again(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = "ses_gone"
    lapsed = ada.run("lock", "acquire", "m")
    assert lapsed.status == 4
    line = 'eval "$(interlock agent join --agent NAME)"'
    assert line in lapsed.err
    assert "unset INTERLOCK_SESSION" in lapsed.err
    ours = line.replace("interlock", " ".join(COMMAND), 1).replace("NAME", "bob")
    done = subprocess.run(
        ["bash", "-c", f"{ours} && {' '.join(COMMAND)} lock acquire m"],
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("acquired m")
    assert [one["agent"] for one in ada.json("agent", "list")[1]["agents"]] == ["bob"]


def test_join_ignores_the_session_of_the_shell(ada: Shell) -> None:
    _, first = ada.json("agent", "join")
    ada.exported["INTERLOCK_SESSION"] = first["session"]
    _, second = ada.json("agent", "join", "--agent", "bob")
    assert second["agent"] == "bob"
    assert second["session"] != first["session"]
    assert "leave --session out" in hint(ada, "agent", "join", "--session", first["session"])


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("lock unlock x", "did you mean 'lock release'?"),
        ("lock get x", "did you mean 'lock acquire'?"),
        ("lock take x", "did you mean 'lock acquire'?"),
        ("lock ls", "did you mean 'lock list'?"),
        ("agent ls", "did you mean 'agent list'?"),
        ("lock status x", "did you mean 'lock show'?"),
        ("lock renew x", "did you mean 'lock beat'?"),
        ("lock steal x", "see 'interlock lock --help'"),
        ("record ls", "see 'interlock record --help'"),
        ("take x", "did you mean 'lock acquire'?"),
        ("lokc acquire x", "no command 'lokc acquire'; did you mean 'lock acquire'?"),
        ("lokc", "did you mean 'lock'?"),
        ("lock acquire x --force", "no option '--force' here; see 'interlock lock acquire --help'"),
        ("lock acquire x --tll 5s", "did you mean --ttl?"),
        ("wait --tiemout 5s", "did you mean --timeout?"),
        ("inbox --agents bob", "did you mean --agent?"),
        ("task list --status ready", "did you mean --state?"),
        ("inbox --unread", "unread messages are shown anyway, so leave it out"),
        ("inbox --follow", "and 'interlock subscribe TYPE --follow' shows alerts as they come"),
        ("version", "did you mean '--version'?"),
        ("send bob hi --unread", "no option '--unread' here; see 'interlock send --help'"),
        ("wait --urgent", "no option '--urgent' here; see 'interlock wait --help'"),
        ("wait -timeout 5s", "did you mean --timeout?"),
        ("send bob hi -d x", "no option '-d' here; see 'interlock send --help'"),
        ("wait -t 5s", "no option '-t' here; see 'interlock wait --help'"),
        ("wait 5s", "'5s' is one word too many; did you mean --timeout 5s?"),
        ("wait forever", "did you mean --timeout forever?"),
        ("lock acquire x 5", "did you mean --ttl 5, --wait 5 or --max-hold 5?"),
        ("lock acquire x forever", "did you mean --wait forever?"),
        ("query bob hi 5s", "so quote it; did you mean --timeout 5s or --cached 5s?"),
        ("agent join zoe", "'zoe' is one word too many; did you mean --agent zoe?"),
        ("schema lock aquire", "there is no command 'lock aquire'; did you mean 'lock acquire'?"),
        ("wait soon", "'soon' is one word too many; see 'interlock wait --help'"),
        ("inbox 5s", "'5s' is one word too many; see 'interlock inbox --help'"),
    ],
)
def test_what_was_meant_is_guessed_only_where_it_is_likely(
    here: Here, words: str, meant: str
) -> None:
    assert hint(here, *words.split()).endswith(f"{meant}\n")


@pytest.mark.parametrize(
    "words", ["inbox", "send", "query", "stop", "lock acquire", "request serve"]
)
def test_help_has_each_exit_status_once_and_in_order(here: Here, words: str) -> None:
    said = here.run(*words.split(), "--help").out.split("exit status: ")[1]
    told = [int(each.split()[0].removesuffix("+n")) for each in said.split(";")]
    assert told == sorted(set(told))
    assert {0, 2, 3, 4} <= set(told)


@pytest.mark.parametrize("words", ["merge serve", "request serve", "task run"])
def test_the_statuses_of_a_command_that_runs_programs_are_its_own(here: Here, words: str) -> None:
    said = " ".join(here.run(*words.split(), "--help").out.split("exit status: ")[1].split())
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    section = page.partition(f"### interlock {words}\n")[2].partition("\n### ")[0]
    assert f"Exit status: {said}.\n" in section
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    for word, status in rows:
        by_status = rf"(^|; ){status} [^;]*\b{word}\b"
        assert re.search(by_status, said) or f"{word}: {status}" in said


def test_a_limit_below_the_least_is_refused_in_one_way(here: Here) -> None:
    said = {hint(here, "record", "log", "--limit", limit) for limit in ("0", "-1")}
    assert len(said) == 1
    assert "give 1 to" in said.pop()


@pytest.mark.parametrize("wait", ["forevr", "-1"])
def test_a_wait_that_cannot_be_read_may_have_meant_forever(here: Here, wait: str) -> None:
    for words in (("lock", "acquire", "x"), ("lock", "run", "x")):
        assert "or forever" in hint(here, *words, "--wait", wait)
    assert "forever" not in hint(here, "lock", "acquire", "x", "--ttl", wait)


def test_options_behind_the_program_belong_to_the_program(shell: Shell) -> None:
    for words in (
        ("lock", "run", "x", "echo", "hi", "--agent", "ada"),
        ("run", "--", "echo", "--agent=ada"),
    ):
        assert "options of interlock go before the program; move --agent" in hint(shell, *words)
    assert "who are you?" in hint(shell, "lock", "run", "x", "echo", "--wait", "5s")
    shell.exported["INTERLOCK_AGENT"] = "ada"
    assert shell.run("lock", "run", "x", "echo", "hi", "--agent", "bob").out == "hi --agent bob\n"


@pytest.mark.parametrize("thing", ["session/ses_12", "ses_12"])
def test_why_of_a_session_names_the_command_that_shows_it(here: Here, thing: str) -> None:
    said = hint(here, "why", thing)
    assert "'why' knows tasks, locks, semaphores, pipelines, guards, schedules, agents" in said
    assert f"agent show {thing.rpartition('/')[2]}" in said
    assert here.run("why", f"lock/{thing}").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "run", "merge", "--", "true"),
        ("sem", "run", "builds", "--", "true"),
        ("acquire", "lock/merge", "lock/free"),
        ("acquire", "sem/builds", "lock/free"),
        ("run", "--hold", "lock/merge", "--", "true"),
        ("task", "claim", "t1"),
    ],
)
def test_whoever_has_itself_what_it_is_refused_is_told_so(
    here: Here, words: tuple[str, ...]
) -> None:
    here.run("lock", "acquire", "merge")
    here.run("sem", "acquire", "builds", "--capacity", "1")
    here.run("task", "add", "t1")
    here.run("task", "claim", "t1")
    mine = "interlock: ada is you: you have it already; continue with the --token of that grant,"
    done = here.run(*words)
    assert (done.status, done.err) == (1, f"{mine} or release it first\n")
    assert "is you" not in here.run(*words[:2], "--agent", "bob", *words[2:]).err


def test_a_token_of_another_grant_is_told_from_none(here: Here) -> None:
    here.run("lock", "acquire", "merge")
    here.run("lock", "acquire", "other")
    for verb in ("acquire", "release", "beat"):
        done = here.run("lock", verb, "merge", "--token", "999999")
        assert done.status == 1
        assert done.err == (
            "interlock: ada is you, but 999999 is not the token of that grant;"
            " give the one you got with it\n"
        )
