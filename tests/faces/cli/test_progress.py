"""Progress of long work: one line on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import interlock
from interlock.faces.cli.progress import ProgressLine
from interlock.runtime import progress
from interlock.stores import open_store


def test_the_line_is_written_over_at_most_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("interlock.faces.cli.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    line = ProgressLine(out)
    line.show("early", 1, 10)
    assert out.getvalue() == ""
    now[0] += 1.0
    for number in range(100):
        now[0] += 0.01
        line.show("copying\n\x1b[31m", number, 100)
    assert 9 <= out.getvalue().count("\r") <= 11
    assert "\n" not in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()
    assert "99 of 100 (99%)" in out.getvalue() or "(9" in out.getvalue()
    line.clear()
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_listener_that_ended_is_called_no_more() -> None:
    found: list[tuple[str, int, int]] = []
    end = progress.listen(lambda *report: found.append(report))
    progress.report("working", 1, 2)
    end()
    progress.report("working", 2, 2)
    assert found == [("working", 1, 2)]


def test_verify_and_import_report_how_far_they_are(tmp_path: Path) -> None:
    found: list[tuple[str, int, int]] = []
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        end = progress.listen(lambda *report: found.append(report))
        try:
            fleet.tasks.publish_all([{"id": f"t{number}"} for number in range(3000)])
            fleet.record.verify()
        finally:
            end()
    published = [done for what, done, total in found if what == "publishing tasks"]
    assert published == sorted(published)
    assert published[-1] == 3000
    assert any(what == "reading the record" for what, _, _ in found)


def test_only_a_terminal_sees_it(tmp_path: Path) -> None:
    """The whole command, with stderr on a terminal and stdout in a pipe, then without one."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps([{"id": f"t{number}"} for number in range(3000)]))
    command = [
        *(str(Path(sys.executable).parent / "interlock"), "task", "import", str(plan)),
        *("--agent", "ada", "--store", str(tmp_path / "store.db")),
    ]
    open_store(str(tmp_path / "store.db")).close()
    patient = "import interlock.faces.cli.progress as p; p.PATIENCE = 0.0;"
    patient += (
        "import sys; sys.argv[1:] = sys.argv[2:]; from interlock.faces.cli.main import main; main()"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", patient, *command], stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    seen = b""
    ends = time.monotonic() + 60
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        assert time.monotonic() < ends
        if select.select([master], [], [], 0.05)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            seen += data
    os.close(master)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"\r" not in out
    assert b"publishing tasks: " in seen
    assert seen.endswith(b"\r\x1b[K")
    again = subprocess.run([*command, "--id", "again"], capture_output=True, text=True, check=False)
    assert "publishing" not in again.stderr
