"""The trials that anybody can run on a store of their own."""

from __future__ import annotations

from tests.faces.shell import Here, Shell


def test_a_race_says_how_many_won_and_leaves_nothing_to_do(shell: Shell) -> None:
    words = ("selftest", "--race", "--processes", "2", "--tasks", "5")
    status, raced = shell.json(*words)
    assert raced.pop("seconds") > 0
    assert raced.pop("where").startswith("selftest/")
    assert (status, raced) == (
        0,
        {
            "outcome": "raced",
            "verdict": "ok",
            "processes": 2,
            "tasks": 5,
            "winners": 5,
            "doubles": 0,
            "nobody": 0,
            "misled": 0,
            "completed": 5,
        },
    )
    assert shell.json("task", "list")[1] == {"tasks": [], "more": "", "count": 0}


def test_wrong_words_start_no_race(here: Here) -> None:
    for words, hint in (
        ((), "which test? --race"),
        (("--race", "--processes", "1"), "give 2 to 64"),
        (("--race", "--seconds", "soon"), "seconds"),
        (("--race", "--store", "redis2://x"), "redis2://"),
    ):
        done = here.run("selftest", *words)
        assert (done.status, hint in done.err) == (2, True), done
    assert here.json("task", "list", "--all")[1] == {"tasks": [], "more": "", "count": 0}
