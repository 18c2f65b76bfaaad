from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.stores.git import GitStore
from interlock.testing.conformance import LocalConformance, MovableConformance, Place


class GitPlace(Place):
    """A remote on disk; each store object is a host of its own."""

    def __init__(self, folder: Path) -> None:
        self.remote = folder / "remote.git"
        subprocess.run(["git", "init", "-q", "--bare", str(self.remote)], check=True)
        numbers = itertools.count()
        super().__init__(
            lambda: GitStore(
                f"git+file://{self.remote}", cache=f"{folder}/host{next(numbers)}", min_ttl=0.5
            )
        )


class TestGitStore(LocalConformance, MovableConformance):
    repetitions = 0.1

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        place = GitPlace(tmp_path)
        yield place
        place.close()
