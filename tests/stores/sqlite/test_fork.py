"""A fork leaves the parent's store alone, and the child is told to connect again."""

from __future__ import annotations

import apsw
import pytest
from tests.processes.helpers import Cast

import interlock


@pytest.mark.parametrize("exit_by", ["_exit", "exit"])
def test_the_child_of_a_fork_is_refused_and_harms_nothing(
    path: str, cast: Cast, exit_by: str
) -> None:
    actor = cast.start("fork", path, exit_by)
    answers = dict(actor.hear().split(" ", 1) for _ in range(9))
    assert set(answers.values()) == {"closed"}, answers
    assert actor.hear() == "child 0"
    assert actor.hear() == "heard ['k/parent']"
    assert actor.hear() == "held"
    with interlock.connect(path, agent="other") as other:
        assert isinstance(other.locks.acquire("merge"), interlock.Busy)
        actor.tell()
        outcome = other.locks.acquire("merge", wait=20)
        assert isinstance(outcome, interlock.Acquired), "given back in order, not lapsed"
        actor.finish()
    db = apsw.Connection(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
