"""What `make test` is about, and with which versions of the dependencies it passes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
MEASURES = re.compile(r"\b(?:compare|git_race|load|measure_\w+|merge_speed|size|swarms_\w+)\b")
USES = re.compile(
    r"^\s*(?:from tools\S* import .*|import tools\S*|.*\"tools\" / .*)$", re.MULTILINE
)

BOUNDS = (TESTS.parent / "tools" / "bounds").read_text()
TRIED = re.findall(r"--extra (\w+)", BOUNDS)

NEEDED = (
    "awk", "bash", "chmod", "dirname", "env", "grep", "id", "mkdir", "mktemp", "mv", "rm", "sort",
    "tail", "touch",
)  # fmt: skip


def test_tests_of_the_tools_that_measure_are_left_out_of_the_gate() -> None:
    of_tools = [
        path
        for path in TESTS.rglob("test_*.py")
        if any(MEASURES.search(line) for line in USES.findall(path.read_text()))
    ]
    assert len(of_tools) > 3
    for path in of_tools:
        assert "pytestmark = pytest.mark.tools\n" in path.read_text(), path


def test_each_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(extras[name] for name in TRIED)]
    flat = [each for part in asked for each in ([part] if isinstance(part, str) else part)]
    assert [each for each in flat if not re.fullmatch(r"[\w-]+>=[\d.]+", each)] == []


def test_the_bounds_of_all_extras_are_tried() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    assert set(TRIED) == set(project["optional-dependencies"]) - {"test", "check"}


def test_servers_are_unpacked_and_never_installed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in [
        "awk",
        "bash",
        "chmod",
        "dirname",
        "env",
        "grep",
        "id",
        "mkdir",
        "mktemp",
        "mv",
        "rm",
        "sort",
        "tail",
        "touch",
    ]:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name in ("apt-get", "sudo"):
        fake = tmp_path / name
        fake.write_text(f'#!/bin/sh\necho "{name} $*" >>"{log}"\nexit 1\n')
        fake.chmod(0o755)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [TESTS.parent / "tools" / "servers"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "The tests need redis-server" in done.stderr) == (1, True)
    asked = log.read_text().splitlines()
    assert any(" install " in line for line in asked)
    assert [
        line for line in asked if "sudo" in line or (" install " in line and " -s " not in line)
    ] == []
