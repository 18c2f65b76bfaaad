"""A fork beside the first use of a client leaves a child that works."""

from __future__ import annotations

from pathlib import Path

from tests.processes.helpers import ProcessGroup


def test_a_child_uses_what_another_thread_was_importing_at_the_fork(tmp_path: Path) -> None:
    with ProcessGroup("tests.fork_programs") as programs:
        program = programs.start("fork_beside_an_import", str(tmp_path / "store.db"))
        assert program.read_line(within=20) == "child done"
        program.finish()


def test_children_that_are_forked_beside_first_uses_all_end(tmp_path: Path) -> None:
    with ProcessGroup("tests.fork_programs") as programs:
        program = programs.start("fork_beside_first_uses", str(tmp_path / "store.db"))
        assert program.read_line(within=60) == "all done"
        program.finish()
