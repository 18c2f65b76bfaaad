from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.nouns.grants import lock, semaphore, several
from interlock.nouns.grants.lock import LockAcquired, LockBusy, LockFenced, LockNotOwner, LockView
from interlock.nouns.grants.lock_operator_noun import LockList
from interlock.nouns.messages import query as queries
from interlock.nouns.messages.message import Received
from interlock.nouns.record.noun import Entries
from interlock.nouns.tasks import task_view as listing
from interlock.nouns.tasks.task_outcomes import TaskFailed
from interlock.runtime.health import Health, Problem
from interlock.runtime.text import Paint, ago, columns, lasting, render, table
from interlock.testing.selftest import Raced


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"), (0.5, "0.5 s"), (12, "12 s"), (59.4, "59 s"), (59.6, "60 s"),
        (90, "90 s"), (119.9, "2 min"), (179, "2 min"), (899.9, "15 min"), (900, "15 min"),
        (3599, "59 min"), (3600, "1 h"), (5400, "1 h 30 min"), (5399, "1 h 29 min"), (7200, "2 h"),
        (86_399, "23 h 59 min"), (90_000, "1 d 1 h"), (129_600, "1 d 12 h"), (172_800, "2 d"),
        (None, "a while"),
    ],
)  # fmt: skip
def test_durations_are_words(seconds: float | None, words: str) -> None:
    assert lasting(seconds) == words


def test_moments_are_words() -> None:
    assert ago(time.time() - 12) == "12 s ago"
    assert ago(time.time() + 60) == "in 60 s"


def test_a_grant_shows_its_token() -> None:
    outcome = LockAcquired(lock="merge", holder="ada", token=12, expires_in=900.0)
    assert render(outcome) == "acquired merge, token 12, expires in 15 min"


def test_a_no_names_the_holder() -> None:
    busy = LockBusy(lock="merge", holder="ada", since=time.time() - 5, expires_in=25.0, waiters=2)
    assert render(busy) == "busy merge: held by ada for 5 s, expires in 25 s, 2 waiting"
    stale = LockNotOwner(lock="merge", holder="ada", stale=True)
    assert render(stale) == (
        "not owner merge: ada had it and went stale; the next caller can acquire it"
    )
    fenced = LockFenced(lock="merge", holder="bob", token=13)
    assert render(fenced) == "fenced merge: that grant is over; bob has it with token 13"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("", ""),
        ("answered", ", answered"),
        ("cancelled", ", taken back"),
        ("expired", ", expired: its asker no longer waits"),
        ("deadlock", ", refused, since waiting for it would never have ended"),
        ("handed", ", handed to a person"),
    ],
)
def test_a_question_says_what_became_of_it(state: str, words: str) -> None:
    asked = Received(
        id="qry_1", kind="query", sender="ada", at=time.time() - 5, seq=1, data="?", state=state
    )
    assert render(asked).splitlines()[0] == f"qry_1  question from ada, 5 s ago{words}"


def test_a_table_leaves_out_columns_where_cutting_its_cells_is_not_enough() -> None:
    titles = ("TASK", "STATE", "TITLE", "NOTE")
    rows = [["t" * 30, "pending", "x" * 50, "y" * 20]]
    cut, leave = ("NOTE", "TITLE", "TASK"), ("NOTE", "TITLE")
    widths = (200, 60, 40, 20)
    said = [
        table(titles, rows, Paint(colour=False, width=width), cut, leave).split("\n")
        for width in widths
    ]
    assert [max(map(len, lines)) for lines in said] == [113, 60, 40, 17]
    assert [lines[0].split() for lines in said[2:]] == [list(titles), ["TASK", "STATE"]]


def test_colours_do_not_disturb_the_columns() -> None:
    locks = LockList(
        locks=(
            LockView(
                lock="a", state="held", holder="ada", token=1, since=time.time(), expires_in=9.0
            ),
            LockView(lock="longer", state="stale", holder="bob", token=2, since=time.time()),
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


def test_slots_show_what_is_left_and_who_has_the_rest() -> None:
    got = semaphore.SlotsAcquired(
        semaphore="builds", holder="ada", weight=2, capacity=3, available=1, token=4
    )
    assert render(got) == "acquired 2 of builds, token 4; 1 of 3 left"
    full = semaphore.SlotsFull(
        semaphore="builds", capacity=9, available=0, waiters=2, holders=tuple("abcdefg")
    )
    assert render(full) == "full builds: 0 of 9 free, held by a, b, c, d, e and 2 more, 2 waiting"
    assert render(semaphore.SlotsReleased(semaphore="builds", next=("ada",))) == (
        "released builds; ada has some now"
    )


def test_a_deadlock_shows_the_circle_and_what_to_do() -> None:
    then = "release what you hold, answer your open questions, then retry"
    circle = f"waiting would never end (bob -> ada -> bob); {then}"
    cycle = ("bob", "ada")
    assert render(lock.LockDeadlock(lock="a", cycle=cycle)) == f"deadlock a: {circle}"
    assert render(semaphore.SlotsDeadlock(semaphore="s", cycle=cycle)) == f"deadlock s: {circle}"
    several_ = several.SeveralDeadlock(things=("lock/a", "sem/s=2"), cycle=cycle)
    assert render(several_) == f"deadlock lock/a, sem/s=2: {circle}"


def test_a_question_that_would_never_be_answered_says_whom_to_answer_first() -> None:
    refused = queries.QueryDeadlock(query="qry_1", cycle=("cleo", "ada", "bob"))
    assert render(refused) == (
        "deadlock qry_1: waiting would never end (cleo -> ada -> bob -> cleo);"
        " answer bob first (interlock inbox --agent cleo), or give back what it waits for;"
        " then ask again"
    )
    alone = queries.QueryDeadlock(query="qry_1", cycle=("ada",))
    assert render(alone) == (
        "deadlock qry_1: waiting would never end (ada -> ada); only you could answer"
    )


def test_a_problem_is_one_line_and_none_is_one_word() -> None:
    assert render(Health(healthy=True, problems=())) == "healthy"
    problem = Problem(kind="stuck", says="lock/a: ada has held it for 2 h", remedy="see ada")
    assert (
        render(Health(healthy=False, problems=(problem, problem))).splitlines()
        == ["stuck lock/a: ada has held it for 2 h; see ada"] * 2
    )


def test_a_command_imports_the_words_of_its_own_noun_alone() -> None:
    code = (
        "import sys; from interlock.runtime.text import render;"
        "from interlock.nouns.grants import lock_noun;"
        "from interlock.nouns.grants.lock import AlreadyFree; render(AlreadyFree(lock='a'));"
        "print([n for n in sys.modules if 'interlock.nouns' in n and n.endswith('text')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['interlock.nouns.grants.text']\n"


def test_a_race_shows_its_winners_and_a_verdict() -> None:
    good = Raced(
        verdict="ok", processes=8, tasks=2, winners=2, doubles=0, nobody=0, misled=0, completed=2,
        seconds=0.5, where="selftest/ab",
    )  # fmt: skip
    assert render(good).splitlines() == [
        "tasks      2, for each of which 8 processes raced",
        "winners    2",
        "doubles    0",
        "completed  2",
        "time       0.5 s",
        "kept as    selftest/ab/..., all complete",
        "verdict    ok: each task had one winner, and the others got its name",
    ]
    bad = replace(good, verdict="bad", winners=1, doubles=1)
    assert "verdict    bad: " in render(bad)
    assert (good.exit_status, bad.exit_status) == (0, 1)


def test_a_task_in_each_state_says_what_there_is_to_know() -> None:
    now = time.time()
    common: dict[str, Any] = {"priority": 5, "attempts": 1, "retries": 3}
    rows = (
        listing.TaskView(task="a", state="running", holder="ada", since=now - 60, **common),
        listing.TaskView(task="b", state="running", holder="ada", stale=True, **common),
        listing.TaskView(task="c", state="blocked", on="a", **common),
        listing.TaskView(task="d", state="pending", retry_in=4.0, reason="no luck", **common),
        listing.TaskView(task="e", state="dead", reason="no luck", since=now - 60, **common),
        listing.TaskView(task="f", state="complete", by="ada", since=now - 60, **common),
    )
    head, *lines = render(listing.TaskList(tasks=rows, more="f")).splitlines()
    at = head.index("LABELS") + len("LABELS")
    assert lines.pop() == "more: --after f"
    assert [line[at:].strip() for line in lines] == [
        "ada for 60 s",
        "ada is stale; the next worker takes it over",
        "needs a",
        "attempt 1 failed: 'no luck'; begins in 4 s",
        "60 s ago: 'no luck'",
        "ada, 60 s ago",
    ]


@pytest.mark.parametrize(
    ("state", "attempts", "says"),
    [
        ("pending", 0, "0 of 2 failed"),
        ("running", 1, "1 of 2 failed"),
        ("dead", 2, "2 of 2 failed"),
        ("dead", 0, ""),
        ("failed", 1, "1 failed"),
        ("complete", 1, "1 failed"),
        ("complete", 0, ""),
    ],
)
def test_a_task_says_how_many_attempts_failed_and_are_left(
    state: Any, attempts: int, says: str
) -> None:
    task = listing.TaskView(task="a", state=state, priority=5, attempts=attempts, retries=1)
    lines = dict(line.split(None, 1) for line in render(task).splitlines())
    assert lines.get("attempts", "") == says


def test_large_data_are_cut_for_people() -> None:
    task = listing.TaskView(
        task="a", state="pending", priority=5, attempts=0, retries=3, data="x" * 5000
    )
    line = render(task).splitlines()[-1]
    assert line.endswith("...' (5002 characters; use --json)")
    assert len(line) < 1100


def test_an_entry_about_tasks_says_what_became_of_others() -> None:
    def told(verb: str, outcome: str, thing: str, *events: Event) -> str:
        line = RecordLine(
            revision=7, hash="", at=0.0, agent="ada", verb=verb, outcome=outcome, thing=thing,
            events=events,
        )  # fmt: skip
        return render(Entries(entries=(line,))).split("  ada  ")[1]

    completed = Event("task:completed", "ada")
    ready = [Event("task:ready", "", f"task/t{number}") for number in range(7)]
    assert (
        told("task.complete", "completed", "task/a", completed, *ready)
        == "task.complete completed  task/a, ready: t0, t1, t2, t3, t4 and 2 more"
    )
    assert (
        told("task.fail", "failed", "task/a", Event("task:dead", "ada"))
        == "task.fail failed  task/a, dead"
    )
    assert told("lock.release", "released", "lock/a", Event("lock:acquired", "bob")).endswith("/a")


@pytest.mark.parametrize(("attempts", "says"), [(1, "1 attempt,"), (2, "2 attempts,")])
def test_a_dead_letter_counts_its_attempts(attempts: int, says: str) -> None:
    assert says in render(TaskFailed(task="t", state="dead", attempts=attempts))
