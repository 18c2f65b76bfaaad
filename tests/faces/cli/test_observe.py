"""``interlock observe``: everything that happens, line by line, or what it comes to."""

from __future__ import annotations

import json
import signal

from tests.faces.shell import Here, Shell

import interlock


def place(shell: Shell) -> str:
    return str(shell.folder / ".interlock" / "store.db")


def test_events_of_all_nouns_come_as_json_lines_until_it_is_stopped(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    watcher = ada.start("observe", "--json", "--after", "0", "--noun", "lock,message")
    assert watcher.stdout is not None
    first = json.loads(watcher.stdout.readline())
    assert (first["event"], first["thing"], first["agent"]) == (
        "lock:acquired",
        "lock/merge",
        "ada",
    )
    with interlock.connect(place(ada), "bob", join=False) as bob:
        bob.messages.alert("built")
    second = json.loads(watcher.stdout.readline())
    assert (second["event"], second["on"], second["agent"]) == (
        "message:sent",
        "alert/built",
        "bob",
    )
    watcher.send_signal(signal.SIGINT)
    assert watcher.communicate() == ("", "")
    assert watcher.returncode == 130


def test_a_reader_that_goes_away_ends_it(ada: Shell) -> None:
    watcher = ada.start("observe", "--after", "0")
    assert watcher.stdout is not None
    ada.run("lock", "acquire", "merge")
    assert watcher.stdout.readline().split()[1:] == ["ada", "lock:acquired", "lock/merge"]
    watcher.stdout.close()
    assert watcher.wait(60) == 141, "though there is nothing to write"


def test_counters_are_one_answer(here: Here) -> None:
    with interlock.connect(place(here), "bob") as bob:
        bob.messages.alert("built")
        status, answer = here.json("observe", "--counts", "--since", "1h")
        assert (status, answer.pop("since") > 0) == (0, True)
        counted = {name: count for name, count in answer.items() if count and name != "since_iso"}
        assert counted == {"registered": 1, "sent": 1}
        assert answer["timeouts"] == 0, "what did not happen is a number, too"
    said = here.run("observe", "--counts").out
    assert "registered agents" in said
    assert "rate-limit violations  0" in said


def test_wrong_words_are_one_line(here: Here) -> None:
    done = here.run("observe", "--noun", "mail")
    assert done.status == 2
    assert "no event is of 'mail'; there are: agent, alert" in done.err
    assert here.run("observe", "--counts", "--since", "yesterday").status == 2


def test_what_does_not_go_together_is_refused(here: Here) -> None:
    for words, why in (
        (("--since", "5m", "--after", "0"), "--since is for --counts;"),
        (("--counts", "--after", "0"), "leave --noun and --after out"),
        (("--counts", "--noun", "lock"), "leave --noun and --after out"),
    ):
        done = here.run("observe", *words)
        assert (done.status, why in done.err) == (2, True)


def test_the_story_of_a_question_and_why_it_waits(here: Here) -> None:
    with interlock.connect(place(here), "bob", join=False) as bob:
        outcome = bob.messages.query("carol", "may I?", person=True, timeout=0, hold=True)
        query, decision = outcome.query, outcome.decision  # type: ignore[union-attr]
    told = here.run("record", "explain", query).out
    assert "bob  asked, to carol" in told
    assert f"bob  left it to a person, decision/{decision}" in told
    why = here.run("why", query).out
    assert f"interlock decision resolve {decision} ANSWER" in why
    done = here.run("health")
    assert (done.status, done.out.split()[:3]) == (1, ["undecided", "1", "decision"])
