"""A process without free file descriptors gets one error, by its name, and can still close."""

from __future__ import annotations

from pathlib import Path

from tests.processes.helpers import ProcessGroup


def test_every_call_that_lacks_a_descriptor_says_so(tmp_path: Path) -> None:
    with ProcessGroup("tests.descriptor_programs") as programs:
        program = programs.start("starve", str(tmp_path / "store.db"))
        assert program.read_line().startswith("refused ")
        program.finish()


def test_a_client_without_descriptors_can_be_closed(tmp_path: Path) -> None:
    with ProcessGroup("tests.descriptor_programs") as programs:
        program = programs.start("starve_in_use", str(tmp_path / "store.db"))
        assert program.read_line() == "closed"
        program.finish()
