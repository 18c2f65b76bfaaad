"""Several things at once at the command line: all of them, or none."""

from __future__ import annotations

import json

import pytest
from tests.faces.cli.test_run import NAP, SHOW, first_line, python
from tests.faces.cli.test_sem import session
from tests.faces.shell import Here, Shell, gone, until

BOTH = ("lock/merge", "sem/builds=2")


@pytest.fixture
def builds(ada: Shell) -> Shell:
    """A shell where there is a semaphore."""
    ada.run("sem", "resize", "builds", "3")
    return ada


def test_all_of_it_is_acquired_under_one_token_and_released(builds: Shell) -> None:
    status, answer = builds.json("acquire", *BOTH, "--ttl", "30s")
    assert (status, answer["outcome"], answer["things"]) == (0, "acquired", list(BOTH))
    assert (answer["holder"], answer["expires_in"]) == ("ada", 30)
    assert builds.json("lock", "show", "merge")[1]["token"] == answer["token"]
    assert builds.json("sem", "show", "builds")[1]["holders"][0]["token"] == answer["token"]
    words = ("release", "lock/merge", "sem/builds", "--token", str(answer["token"]))
    assert builds.json(*words, "--agent", "bob")[1]["outcome"] == "not_owner"
    assert builds.json(*words) == (
        0,
        {"outcome": "released", "later": False, "things": ["lock/merge", "sem/builds"], "next": []},
    )
    status, again = builds.json(*words)
    assert (status, again["outcome"]) == (1, "not_owner")


def test_the_words_for_people_are_short(builds: Shell) -> None:
    out = builds.run("acquire", *BOTH).out
    assert out.startswith("acquired lock/merge and sem/builds=2, token ")
    assert out.endswith(", expires in 15 min\n")
    assert "give the --token of your grant" in builds.run("release", *BOTH).out
    token = str(builds.json("lock", "show", "merge")[1]["token"])
    assert builds.run("release", *BOTH, "--token", token).out == (
        "released lock/merge and sem/builds\n"
    )


def test_if_one_thing_is_taken_none_is_had(builds: Shell) -> None:
    builds.run("lock", "acquire", "merge")
    status, answer = builds.json("acquire", *BOTH, "--agent", "bob")
    assert (status, answer["outcome"], answer["things"]) == (1, "busy", list(BOTH))
    (blocked,) = answer["blocked"]
    assert (blocked["outcome"], blocked["holder"]) == ("busy", "ada")
    assert builds.json("sem", "show", "builds")[1]["available"] == 3
    builds.run("sem", "acquire", "builds", "--weight", "2")
    first, *rest = builds.run("acquire", *BOTH, "--agent", "bob").out.splitlines()
    assert first == "busy, so you have none of lock/merge, sem/builds=2"
    assert rest[0].startswith("  busy merge: held by ada for ")
    assert rest[1] == "  full builds: 1 of 3 free, held by ada"


def test_nothing_is_had_before_everything_is(builds: Shell) -> None:
    _, lock = builds.json("lock", "acquire", "merge")
    _, slots = builds.json("sem", "acquire", "builds", "--weight", "3")
    waiter = builds.start("acquire", *BOTH, "--agent", "bob", "--wait", "50s", "--json")
    until(lambda: builds.json("lock", "show", "merge")[1].get("waiters") == ["bob"])
    words = ("--token", str(slots["token"]))
    assert builds.json("sem", "release", "builds", *words)[1]["next"] == []
    assert builds.json("sem", "show", "builds")[1]["available"] == 3
    assert builds.json("lock", "show", "merge")[1]["holder"] == "ada"
    builds.run("lock", "release", "merge", "--token", str(lock["token"]))
    assert '"outcome":"acquired"' in waiter.communicate()[0]


def test_whoever_waits_for_all_gets_all_with_the_last_release(builds: Shell) -> None:
    _, held = builds.json("lock", "acquire", "merge")
    waiter = builds.start("acquire", *BOTH, "--agent", "bob", "--wait", "50s", "--json")
    until(lambda: builds.json("lock", "show", "merge")[1].get("waiters") == ["bob"])
    status, why = builds.json("why", "sem/builds")
    assert (status, why["blocked"]) == (0, True)
    assert why["because"] == "kept for bob, who waits for lock/merge as well"
    released = builds.json("lock", "release", "merge", "--token", str(held["token"]))[1]
    assert released["next"] == "bob"
    assert '"outcome":"acquired"' in waiter.communicate()[0]
    assert builds.json("sem", "show", "builds")[1]["available"] == 1


def test_a_beat_for_one_thing_renews_all_and_one_can_be_given_back_alone(builds: Shell) -> None:
    _, grant = builds.json("acquire", *BOTH, "--ttl", "60s")
    token = ("--token", str(grant["token"]))
    until(lambda: lives(builds) < 59.9)
    before = lives(builds)

    def renewed() -> bool:
        assert builds.json("lock", "beat", "merge", *token)[1]["outcome"] == "extended"
        return lives(builds) > before

    until(renewed)
    assert builds.json("lock", "release", "merge", *token)[0] == 0
    assert builds.json("sem", "beat", "builds", *token)[1]["weight"] == 2
    assert builds.json("release", *BOTH, *token)[1]["things"] == ["sem/builds"]


def lives(shell: Shell) -> float:
    return float(shell.json("sem", "show", "builds")[1]["holders"][0]["expires_in"])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "THINGS is missing"),
        (("merge",), "write lock/merge or sem/merge"),
        (("agent/ada",), "not like lock/merge, sem/builds or sem/builds=2"),
        (("lock/",), "not like lock/merge"),
        (("lock/a=2",), "not like lock/merge"),
        (("sem/builds=0",), "the weight 0 is out of bounds"),
        (("sem/builds=-1",), "write sem/builds=2"),
        (("sem/builds=",), "write sem/builds=2"),
        (("sem/builds=4",), "sem/builds has 3 in all"),
        (("sem/new",), "interlock sem resize new N"),
        (("lock/a", "lock/a"), "lock/a is named twice"),
        (("sem/builds", "sem/builds=2"), "sem/builds is named twice"),
        (tuple(f"lock/{number}" for number in range(17)), "17 things at once; 16 are allowed"),
        (("lock/a\tb",), "lock name"),
    ],
)
def test_bad_words_are_refused_with_what_to_do(
    here: Here, words: tuple[str, ...], hint: str
) -> None:
    here.run("sem", "resize", "builds", "3")
    done = here.run("acquire", *words)
    assert (done.status, done.out) == (2, "")
    assert hint in done.err
    assert done.err.count("\n") == 1
    assert here.json("lock", "list")[1] == {"locks": [], "count": 0}


def test_sixteen_things_can_be_had(ada: Shell) -> None:
    things = [f"lock/{number}" for number in range(16)]
    _, answer = ada.json("acquire", *things)
    assert len(ada.json("lock", "list")[1]["locks"]) == 16
    assert ada.run("release", *things, "--token", str(answer["token"])).status == 0
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


def test_a_program_runs_while_it_holds_all_of_it(builds: Shell) -> None:
    words = ("run", "--hold", "lock/merge", "--hold", "sem/builds=2")
    known = json.loads(builds.run(*words, *python(SHOW)).out)
    assert known["INTERLOCK_HELD"] == "lock/merge sem/builds=2"
    assert int(known["INTERLOCK_TOKEN"]) > 0
    assert builds.json("lock", "list")[1] == {"locks": [], "count": 0}
    assert builds.json("sem", "show", "builds")[1]["available"] == 3
    builds.run("lock", "acquire", "merge")
    status, answer = builds.json(*words, "--agent", "bob", "--", "true")
    assert (status, answer["outcome"]) == (1, "busy")
    done = builds.run("run", "--hold", "merge", "--", "true")
    assert (done.status, "write lock/merge or sem/merge" in done.err) == (2, True)


def test_what_is_lost_ends_the_program(builds: Shell) -> None:
    words = ("run", "--hold", "lock/merge", "--hold", "sem/builds", "--max-hold", "2s")
    process = builds.start(*words, *NAP)
    (pid,) = first_line(process)
    _, err = process.communicate()
    assert process.returncode in (137, 143)
    assert "the maximum hold of lock/merge and sem/builds, 2 s, is over" in err
    assert gone(pid)


def test_a_session_needs_no_token_to_give_back(builds: Shell) -> None:
    session(builds)
    assert builds.json("acquire", *BOTH)[0] == 0
    assert builds.json("release", *BOTH)[1]["things"] == ["lock/merge", "sem/builds"]
