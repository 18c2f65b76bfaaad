"""Merge queues for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.nouns.merges.queue_bed import QueueBed


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueBed:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    return QueueBed(tmp_path)


@pytest.fixture
def checked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueBed:
    """The target is checked out in the folder of the repository."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    return QueueBed(tmp_path, bare=False)
