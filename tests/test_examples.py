"""Every example runs, and its own assertions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"})
STORIES = sorted(EXAMPLES.glob("*/story.py"))
"""Longer ones, with a folder of their own."""


@pytest.mark.parametrize(
    "script", [*SCRIPTS, *STORIES], ids=lambda path: str(path.relative_to(EXAMPLES))
)
def test_runs_and_shows_something(script: Path, tmp_path: Path) -> None:
    run(script, tmp_path)


def test_the_pipeline_also_runs_across_a_network(redis_url: str, tmp_path: Path) -> None:
    run(EXAMPLES / "release_pipeline.py", tmp_path, redis_url)


def test_two_swarms_also_work_together_across_a_network(tmp_path: Path) -> None:
    run(EXAMPLES / "two_swarms" / "story.py", tmp_path, "redis")


def run(script: Path, tmp_path: Path, *words: str) -> None:
    commands = Path(sys.executable).parent
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("INTERLOCK")}
    environment |= {"TMPDIR": str(tmp_path), "PATH": f"{commands}:{os.environ['PATH']}"}
    runner = [sys.executable, "-W", "error"] if script.suffix == ".py" else ["bash"]
    done = subprocess.run(
        [*runner, str(script), *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_is_short_and_says_what_it_shows(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) < 40
    assert any(line.startswith(('"""', "# ")) for line in lines[:3])


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.parent.name)
def test_a_story_is_no_book(story: Path) -> None:
    for script in story.parent.iterdir():
        if script.suffix == ".py":
            assert len(script.read_text().splitlines()) < 250
            assert script.read_text().startswith('"""')


def test_there_are_some() -> None:
    assert len(SCRIPTS) >= 4
