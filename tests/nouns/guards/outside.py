"""What the tests of facts from outside share: one look, and repositories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from interlock.nouns.guards.condition import Observation, OutsideNeed
from interlock.nouns.guards.outside import observe
from interlock.testing.clock import FakeClock

HOST = "build-7"
WALL = 5000.0


def look(need: OutsideNeed, root: Path) -> Observation:
    """What this host sees."""
    return observe([need], root, host=HOST, clock=FakeClock(wall=WALL))[need]


def value(need: OutsideNeed, root: Path) -> bool | int | None:
    """The value alone."""
    return look(need, root).value


class Repository:
    """A repository in a folder, with a user of its own."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self("init", "-q", "-b", "main", *options)

    def __call__(self, *words: str, path: Path | None = None) -> str:
        """Run git here."""
        who = {f"GIT_{role}_{what}": "ada" for role in ("AUTHOR", "COMMITTER") for what in WHO}
        return subprocess.run(
            ["git", "-C", str(path or self.path), *words],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **who},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def commit(self, name: str = "a.txt", text: str = "text") -> str:
        """A commit that writes one file."""
        (self.path / name).write_text(text)
        self("add", name)
        self("commit", "-q", "-m", f"write {name}")
        return self("rev-parse", "HEAD")

    def branches(self, *names: str) -> Iterator[str]:
        """Make branches at HEAD by plumbing, which allows more names."""
        head = self("rev-parse", "HEAD")
        lines = "".join(f"create refs/heads/{name}\0{head}\0" for name in names)
        subprocess.run(
            ["git", "-C", str(self.path), "update-ref", "-z", "--stdin"],
            input=lines.encode(),
            check=True,
        )
        return iter(names)


WHO = ("NAME", "EMAIL")
