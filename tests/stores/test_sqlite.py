from __future__ import annotations

from pathlib import Path

import pytest

from interlock.stores.sqlite import SQLiteStore
from interlock.testing.conformance import LocalConformance, MovableConformance, Place


class TestSQLiteStore(LocalConformance, MovableConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(lambda: SQLiteStore(str(tmp_path / "store.db")))
