"""A fork leaves the parent's store alone, and the child is told to connect again."""

from __future__ import annotations

import apsw
import pytest
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import increase

import interlock
from interlock.stores.sqlite import SQLiteStore


@pytest.mark.parametrize("exit_by", ["_exit", "exit"])
def test_the_child_of_a_fork_is_refused_and_harms_nothing(
    path: str, programs: ProcessGroup, exit_by: str
) -> None:
    actor = programs.start("fork", path, exit_by)
    answers = dict(actor.read_line().split(" ", 1) for _ in range(9))
    assert set(answers.values()) == {"closed"}, answers
    assert actor.read_line() == "child 0"
    assert actor.read_line() == "heard ['k/parent']"
    assert actor.read_line() == "held"
    with interlock.connect(path, agent="other") as other:
        assert isinstance(other.locks.acquire("merge"), interlock.Busy)
        actor.write_line()
        outcome = other.locks.acquire("merge", wait=20)
        assert isinstance(outcome, interlock.Acquired), "given back in order, not lapsed"
        actor.finish()
    db = apsw.Connection(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def counted(path: str) -> tuple[int, int]:
    """The counter, and the latest revision."""
    store = SQLiteStore(path)
    item = store.read("counter")["counter"]
    revision = store.read().revision
    store.close()
    assert item is not None
    return int(item.value), revision


def test_what_a_child_commits_through_its_own_connection_is_not_lost_when_the_parent_leaves(
    path: str, programs: ProcessGroup
) -> None:
    """SQLite would have the child rely on the parent's locks."""
    actor = programs.start("fork_and_connect", path)
    assert actor.read_line() == "child ready"
    actor.write_line()
    assert actor.read_line() == "parent closed"
    store = SQLiteStore(path)  # the last one, as far as the kernel can tell, unless the child locks
    store.transact(increase)
    store.close()
    assert counted(path) == (3, 3)
    actor.write_line()
    assert actor.read_line() == "child 4"
    assert actor.read_line() == "child gone"
    actor.finish()
    assert counted(path) == (4, 4)


def test_a_program_may_fork_while_its_threads_commit(path: str, programs: ProcessGroup) -> None:
    actor = programs.start("fork_often", path, 20)
    (line,) = actor.remaining_lines()
    done, children = map(int, line.split())
    assert children == 20
    assert counted(path) == (done + 20, done + 20)
    db = apsw.Connection(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


@pytest.mark.timeout(60)
def test_a_child_forked_inside_of_a_transaction_is_refused_the_file(
    path: str, programs: ProcessGroup
) -> None:
    actor = programs.start("fork_inside", path)
    assert (
        "was being written when this process was forked; start such processes" in actor.read_line()
    )
    actor.finish()
    assert counted(path) == (2, 2)


def test_a_fork_by_c_code_which_runs_no_hooks_is_noticed(path: str, programs: ProcessGroup) -> None:
    actor = programs.start("fork_unseen", path)
    answers = [actor.read_line() for _ in range(4)]
    assert answers == ["read closed", "write closed", "connect closed", "close done"]
    assert actor.read_line() == "child 0"
    assert actor.read_line() == "parent 2"
    actor.finish()
    assert counted(path) == (2, 2)
