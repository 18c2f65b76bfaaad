"""Slots at the command line: each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import apsw
import pytest
from tests.faces.cli.test_run import NAP, SHOW, first_line, python
from tests.faces.shell import Here, Shell, gone, until

from interlock.core.validate import CAPACITY
from interlock.nouns.grants.pool import WAITERS

THREE = ("--capacity", "3")


def session(shell: Shell, agent: str = "ada") -> Shell:
    """The same shell after it joined."""
    shell.exported["INTERLOCK_SESSION"] = shell.json("agent", "join", "--agent", agent)[1][
        "session"
    ]
    return shell


def said(shell: Shell, *words: str) -> str:
    """The line that refuses bad input."""
    done = shell.run("sem", *words)
    assert (done.status, done.out) == (2, ""), done
    assert done.err.count("\n") == 1
    return done.err


def queued(shell: Shell, name: str = "builds") -> list[str]:
    return [each["agent"] for each in shell.json("sem", "show", name)[1].get("waiters", ())]


def test_slots_are_acquired_with_a_token_and_say_what_is_left(here: Here) -> None:
    status, answer = here.json("sem", "acquire", "builds", *THREE, "--weight", "2")
    assert (status, answer.pop("outcome"), answer.pop("grant")[:4]) == (0, "acquired", "grt_")
    assert isinstance(answer.pop("token"), int)
    assert answer == {
        "semaphore": "builds",
        "holder": "ada",
        "weight": 2,
        "capacity": 3,
        "available": 1,
        "expires_in": 900,
    }
    out = here.run("sem", "acquire", "builds", "--ttl", "30s").out
    assert out.startswith("acquired 1 of builds, token ")
    assert out.endswith(", expires in 30 s; 0 of 3 left\n")


def test_a_full_semaphore_says_how_many_are_free_who_holds_and_how_many_wait(ada: Shell) -> None:
    ada.run("sem", "acquire", "builds", *THREE, "--weight", "2")
    status, answer = ada.json("sem", "acquire", "builds", "--weight", "2", "--agent", "bob")
    assert (status, answer) == (
        1,
        {
            "outcome": "full",
            "semaphore": "builds",
            "capacity": 3,
            "available": 1,
            "waiters": 0,
            "holders": ["ada"],
        },
    )
    done = ada.run("sem", "acquire", "builds", "--weight", "2", "--agent", "bob", "--wait", "50ms")
    assert (done.status, done.out) == (1, "full builds: 1 of 3 free, held by ada\n")
    assert queued(ada) == []


def test_slots_are_kept_or_increased_by_their_token_from_any_process(ada: Shell) -> None:
    _, first = ada.json("sem", "acquire", "builds", *THREE)
    words = ("sem", "acquire", "builds", "--token", str(first["token"]))
    status, same = ada.json(*words)
    assert (status, same["outcome"], same["token"]) == (0, "already_held", first["token"])
    status, more = ada.json(*words, "--weight", "3")
    assert (status, more["outcome"], more["weight"]) == (0, "increased", 3)
    assert (more["available"], more["token"]) == (0, first["token"])
    status, kept = ada.json(*words, "--weight", "2")
    assert (status, kept["outcome"], kept["weight"]) == (0, "already_held", 3)
    assert ada.run("sem", "beat", *words[2:]).out.startswith("already held 3 of builds, token ")
    (holder,) = ada.json("sem", "show", "builds")[1]["holders"]
    assert holder["weight"] == 3


def test_within_a_session_slots_need_no_token(ada: Shell) -> None:
    session(ada)
    _, first = ada.json("sem", "acquire", "builds", *THREE)
    assert ada.json("sem", "acquire", "builds")[1]["outcome"] == "already_held"
    status, more = ada.json("sem", "acquire", "builds", "--weight", "2")
    assert (status, more["outcome"], more["token"]) == (0, "increased", first["token"])
    assert ada.json("sem", "beat", "builds")[1]["outcome"] == "already_held"
    assert ada.json("sem", "release", "builds")[1]["outcome"] == "released"
    assert ada.json("agent", "leave")[0] == 0


def test_only_the_holder_gives_back(here: Here) -> None:
    _, grant = here.json("sem", "acquire", "builds", *THREE)
    words = ("sem", "release", "builds", "--token", str(grant["token"]))
    assert here.json(*words, "--agent", "bob") == (
        1,
        {"outcome": "not_holder", "semaphore": "builds"},
    )
    assert "--token" in here.run("sem", "release", "builds").out
    assert here.run("sem", "beat", "builds", "--agent", "bob").status == 1
    assert here.run(*words).out == "released builds\n"
    status, again = here.json(*words)
    assert (status, again["outcome"]) == (1, "fenced")
    assert here.run(*words).out == "fenced builds: that grant is over; acquire again\n"


def test_whoever_waits_and_fits_is_served_in_order_with_the_release(ada: Shell) -> None:
    _, grant = ada.json("sem", "acquire", "builds", *THREE, "--weight", "3")
    waiters = []
    for agent, weight in (("bob", "2"), ("cleo", "1"), ("dan", "1")):
        words = ("sem", "acquire", "builds", "--agent", agent, "--weight", weight, "--wait", "50s")
        waiters.append(ada.start(*words, "--json"))
        until(lambda name=agent: name in queued(ada))  # type: ignore[misc]
    assert queued(ada) == ["bob", "cleo", "dan"]
    assert "3 waiting" in ada.run("sem", "acquire", "builds", "--agent", "eve").out
    assert ada.run("sem", "show", "builds").out.splitlines()[-1].startswith("waiting: bob (2) for ")
    released = ada.run("sem", "release", "builds", "--token", str(grant["token"]))
    assert released.out == "released builds; bob, cleo have some now\n"
    for waiter in waiters[:2]:
        assert '"outcome":"acquired"' in waiter.communicate()[0]
    assert queued(ada) == ["dan"]


def test_a_lapsed_grant_makes_room(ada: Shell) -> None:
    _, old = ada.json("sem", "acquire", "builds", "--capacity", "1", "--ttl", "500ms")
    until(lambda: ada.json("sem", "show", "builds")[1]["holders"][0]["state"] == "stale")
    assert "stale" in ada.run("sem", "show", "builds").out
    assert ada.json("why", "sem/builds")[1]["blocked"] is False
    assert ada.json("sem", "acquire", "builds", "--agent", "bob")[1]["outcome"] == "acquired"
    token = ("--token", str(old["token"]))
    assert ada.json("sem", "beat", "builds", *token)[1]["outcome"] == "fenced"


def test_a_maximum_hold_ends_a_grant_that_is_renewed(ada: Shell) -> None:
    _, grant = ada.json("sem", "acquire", "builds", *THREE, "--max-hold", "500ms")
    token = ("--token", str(grant["token"]))
    until(lambda: ada.json("sem", "beat", "builds", *token)[1]["outcome"] == "fenced")


def test_a_new_capacity_serves_who_fits_and_takes_from_nobody(ada: Shell) -> None:
    ada.run("sem", "acquire", "builds", "--capacity", "1")
    waiter = ada.start("sem", "acquire", "builds", "--agent", "bob", "--wait", "50s", "--json")
    until(lambda: queued(ada) == ["bob"])
    status, resized = ada.json("sem", "resize", "builds", "2")
    assert (status, resized) == (
        0,
        {"outcome": "resized", "semaphore": "builds", "capacity": 2, "before": 1, "next": ["bob"]},
    )
    assert '"outcome":"acquired"' in waiter.communicate()[0]
    assert ada.run("sem", "resize", "builds", "1").out == "resized builds from 2 to 1\n"
    shown = ada.json("sem", "show", "builds")[1]
    assert (shown["available"], len(shown["holders"])) == (0, 2)
    assert ada.run("sem", "resize", "new", "5").out == "made new with 5 slots\n"
    assert ada.json("sem", "resize", "new", "5")[0] == 0
    assert ada.json("sem", "remove", "builds")[1]["outcome"] == "full"
    assert ada.run("sem", "remove", "new").out == "removed new\n"
    assert ada.json("sem", "remove", "new") == (1, {"outcome": "nothing", "semaphore": "new"})


def test_semaphores_are_listed_and_shown(here: Here) -> None:
    assert here.run("sem", "list").out == "there is no semaphore\n"
    assert here.json("sem", "list") == (0, {"semaphores": [], "count": 0})
    here.run("sem", "acquire", "builds", *THREE, "--weight", "2", "--metadata", '{"pull": 7}')
    head, row = here.run("sem", "list").out.splitlines()
    assert (head.split(), row.split()) == (
        ["SEMAPHORE", "FREE", "HOLDERS"],
        ["builds", "1", "of", "3", "ada", "(2)"],
    )
    assert [each["semaphore"] for each in here.json("sem", "list")[1]["semaphores"]] == ["builds"]
    shown = here.run("sem", "show", "builds").out
    assert shown.startswith("builds has 1 of 3 free\nHOLDER")
    assert '{"pull":7}' in shown
    assert here.json("sem", "show", "nope") == (1, {"outcome": "nothing", "semaphore": "nope"})
    assert "'interlock sem list' shows all" in here.run("sem", "show", "nope").out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("acquire",), "SEMAPHORE is missing"),
        (("acquire", "new"), "interlock sem resize new N"),
        (("acquire", "builds", "--weight", "0"), f"give 1 to {CAPACITY}"),
        (("acquire", "builds", "--weight", "-1"), f"give 1 to {CAPACITY}"),
        (("acquire", "builds", "--weight", "two"), "whole number"),
        (("acquire", "builds", "--weight", "4"), "sem/builds has 3 in all"),
        (("acquire", "new", "--capacity", "2", "--weight", "3"), "sem/new has 2 in all"),
        (("acquire", "builds", "--capacity", "4"), "interlock sem resize builds 4"),
        (("acquire", "new", "--capacity", "0"), f"give 1 to {CAPACITY}"),
        (("acquire", "new", "--capacity", str(CAPACITY + 1)), f"give 1 to {CAPACITY}"),
        (("acquire", "a\tb", "--capacity", "1"), "semaphore name"),
        (("acquire", "builds", "--slots", "1"), "there is no option '--slots'"),
        (("resize", "builds"), "CAPACITY is missing"),
        (("resize", "builds", "0"), f"give 1 to {CAPACITY}"),
        (("resize", "builds", "many"), "whole number"),
        (("run", "builds"), "which program?"),
        (("take", "builds"), "did you mean 'sem acquire'?"),
        ((), "sem what? one of: acquire"),
    ],
)
def test_bad_words_are_refused_with_what_to_do(
    here: Here, words: tuple[str, ...], hint: str
) -> None:
    here.run("sem", "resize", "builds", "3")
    assert hint in said(here, *words)


def test_the_remedies_of_the_messages_work(ada: Shell) -> None:
    assert ada.run("sem", "resize", "new", "2").status == 0
    assert ada.run("sem", "acquire", "new").status == 0
    assert ada.run("sem", "resize", "new", "4").status == 0
    assert ada.run("sem", "acquire", "new", "--capacity", "4").status == 0


def test_one_waiter_too_many_is_not_allowed(ada: Shell) -> None:
    ada.run("sem", "acquire", "builds", "--capacity", "1")
    crowd(ada.folder, WAITERS)
    words = ("sem", "acquire", "builds", "--agent", "bob", "--wait", "5s")
    status, answer = ada.json(*words)
    assert (status, answer["error"]) == (3, "not_allowed")
    assert f"{WAITERS} already wait for sem/builds; retry later" in ada.run(*words).err
    assert ada.json(*words[:-2])[0] == 1, "who does not wait gets its plain no"


def crowd(folder: Path, count: int) -> None:
    """So many waiters, as they would stand in the store."""
    db = apsw.Connection(str(folder / ".interlock" / "store.db"))
    key = "semaphores/builds"
    pool = json.loads(db.execute("SELECT value FROM item WHERE key = ?", (key,)).get)
    one = {"agent": "eve", "session": "ses_1", "live": "live/ses_1", "since": 1.0, "order": 1}
    pool["waiters"] = [{"id": f"grt_{number}", **one} for number in range(count)]
    db.execute("UPDATE item SET value = ? WHERE key = ?", (json.dumps(pool).encode(), key))
    alive = ("live/ses_1", b"{}", 1, 1, "", "", time.monotonic_ns() + 600 * 10**9)
    db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?)", alive)
    db.close()


def test_a_program_runs_while_it_holds_slots_and_knows_them(ada: Shell) -> None:
    done = ada.run("sem", "run", "builds", *THREE, "--weight", "2", *python(SHOW))
    known = json.loads(done.out)
    assert known["INTERLOCK_SEMAPHORE"] == "builds"
    assert int(known["INTERLOCK_TOKEN"]) > 0
    assert known["INTERLOCK_CALLER"] == known["INTERLOCK_SESSION"]
    assert ada.json("sem", "show", "builds")[1] == {
        "semaphore": "builds",
        "capacity": 3,
        "available": 3,
        "holders": [],
        "waiters": [],
    }
    assert ada.run("sem", "run", "builds", *python("raise SystemExit(7)")).status == 7


def test_without_a_slot_nothing_runs(ada: Shell) -> None:
    ada.run("sem", "acquire", "builds", "--capacity", "1")
    mark = ada.folder / "ran"
    words = ("sem", "run", "builds", "--agent", "bob", "--", "touch", str(mark))
    assert ada.run(*words).out == "full builds: 0 of 1 free, held by ada\n"
    status, answer = ada.json(*words)
    assert (status, answer["outcome"], mark.exists()) == (1, "full", False)


def test_lost_slots_end_the_program(ada: Shell) -> None:
    process = ada.start("sem", "run", "builds", *THREE, "--max-hold", "2s", *NAP)
    (pid,) = first_line(process)
    _, err = process.communicate()
    assert process.returncode in (137, 143)
    assert "the maximum hold of sem/builds, 2 s, is over; the program was ended" in err
    assert gone(pid)
    assert ada.json("sem", "show", "builds")[1]["available"] == 3


def test_the_settings_name_a_capacity_and_the_terms(ada: Shell) -> None:
    ada.configure("[semaphore.builds]\ncapacity = 3\nttl = '2m'\nmax_hold = '10m'\n")
    _, answer = ada.json("sem", "acquire", "builds")
    assert (answer["capacity"], answer["expires_in"]) == (3, 120)
    ada.exported["INTERLOCK_SEMAPHORE_TTL"] = "40s"
    assert ada.json("sem", "acquire", "builds")[1]["expires_in"] == 40
    assert ada.json("sem", "acquire", "builds", "--ttl", "50s")[1]["expires_in"] == 50
    assert ada.json("sem", "show", "builds")[1]["holders"][0]["max_hold"] == 600
    ada.configure("[semaphore.builds]\ncapacity = 4\n")
    assert "has capacity 3, not 4" in said(ada, "acquire", "builds")
    ada.configure("[semaphore.builds]\ncapacty = 4\n")
    assert "it takes ttl, max_hold and capacity" in said(ada, "acquire", "builds")
    ada.configure("[semaphore.builds]\ncapacity = true\n")
    assert "capacity must be a whole number" in said(ada, "acquire", "builds")


def test_an_operator_ends_the_grant_of_a_holder(ada: Shell) -> None:
    ada.run("sem", "acquire", "builds", "--capacity", "2")
    ada.run("sem", "acquire", "builds", "--agent", "bob")
    words = ("sem", "break", "builds", "--reason", "bob hangs", "--agent", "maria")
    assert ada.run(*words).status == 2, "which of them?"
    status, broken = ada.json(*words, "--holder", "bob")
    assert (status, broken["outcome"], broken["holder"]) == (0, "broken", "bob")
    done = ada.run(*words, "--holder", "bob")
    assert (done.status, done.out) == (
        1,
        "nothing builds: there is no such grant; held by ada\n",
    )
