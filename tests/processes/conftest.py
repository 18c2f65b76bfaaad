from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import Cast


@pytest.fixture
def cast() -> Iterator[Cast]:
    with Cast(str(Path(__file__).parent / "actors.py")) as everybody:
        yield everybody


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")
