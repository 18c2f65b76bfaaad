from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import ProcessGroup

from interlock.stores.sqlite import SQLiteStore


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.stores.sqlite.store_programs") as everybody:
        yield everybody


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str) -> Iterator[SQLiteStore]:
    opened = SQLiteStore(path)
    yield opened
    opened.close()
