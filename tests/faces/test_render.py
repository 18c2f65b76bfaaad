from __future__ import annotations

import time

import pytest

from interlock.core.lock import Acquired, Busy, Fenced
from interlock.faces.operations.lock import LockList
from interlock.faces.render import ago, columns, lasting, render
from interlock.services.lock import Shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"), (0.5, "0.5 s"), (12, "12 s"), (59.4, "59 s"), (59.6, "1 min"),
        (90, "2 min"), (900, "15 min"), (3599, "1 h"), (7200, "2 h"),
        (90_000, "1 d"), (None, "a while"),
    ],
)  # fmt: skip
def test_durations_are_words(seconds: float | None, words: str) -> None:
    assert lasting(seconds) == words


def test_moments_are_words() -> None:
    assert ago(time.time() - 12) == "12 s ago"
    assert ago(time.time() + 60) == "in 1 min"


def test_a_grant_shows_its_token() -> None:
    outcome = Acquired(lock="merge", holder="ada", token=12, expires_in=900.0)
    assert render(outcome) == "acquired merge, token 12, expires in 15 min"


def test_a_no_names_the_holder() -> None:
    busy = Busy(lock="merge", holder="ada", since=time.time() - 5, expires_in=25.0, waiters=2)
    assert render(busy) == "busy merge: held by ada for 5 s, expires in 25 s, 2 waiting"
    fenced = Fenced(lock="merge", holder="bob", token=13)
    assert render(fenced) == "fenced merge: that grant is over; bob has it with token 13"


def test_colours_do_not_disturb_the_columns() -> None:
    locks = LockList(
        locks=(
            Shown(lock="a", state="held", holder="ada", token=1, since=time.time(), expires_in=9.0),
            Shown(lock="longer", state="stale", holder="bob", token=2, since=time.time()),
        )
    )
    plain, coloured = render(locks), render(locks, colour=True)
    assert "\033" not in plain
    assert "\033[31mstale\033[0m" in coloured
    assert columns([("a", "b"), ("ccc", "d")]) == ["a    b", "ccc  d"]
    heads = [line.index("TOKEN") for line in plain.splitlines()[:1]]
    assert plain.splitlines()[1][heads[0]] == "1"
    assert plain.splitlines()[2][heads[0]] == "2"


def test_facts_are_aligned_words_and_sizes() -> None:
    facts = {
        "engine": "redis",
        "wal_bytes": 20480,
        "db_bytes_in_use": 3 << 30,
        "members": ["a", "b"],
        "limit": None,
        "tls": False,
        "per_member": {"a": 1, "b_bytes": 2048},
    }
    assert render(facts).splitlines() == [
        "engine          redis",
        "wal size        20.0 KB",
        "db size in use  3.0 GB",
        "members         a, b",
        "tls             no",
        "per member      a 1, b size 2.0 KB",
    ]
