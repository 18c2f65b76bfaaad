"""After a reboot the first to open the file drops all liveness, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from interlock.stores.sqlite import schema

LIVE = "INSERT INTO item VALUES ('live/ses_1', x'', 1, 1, '', '', 9)"


class Interrupted:
    """A connection with something that happens right after its first question."""

    def __init__(self, db: apsw.Connection, then: Callable[[], None]) -> None:
        self._db = db
        self._then: Callable[[], None] | None = then

    def execute(self, *args: Any) -> Any:
        rows = self._db.execute(*args).fetchall()
        then, self._then = self._then, None
        if then is not None:
            then()
        return _Rows(rows)

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchone(self) -> Any:
        return next(iter(self._rows), None)


@pytest.fixture
def connections(tmp_path: Path) -> tuple[apsw.Connection, apsw.Connection]:
    path = str(tmp_path / "store.db")
    (tmp_path / "store.db").touch()
    two = schema.open_connection(path), schema.open_connection(path)
    schema.establish(two[0], path)
    return two


def live(db: apsw.Connection) -> int:
    return len(db.execute("SELECT key FROM item WHERE expires IS NOT NULL").fetchall())


def test_drops_the_liveness_of_an_earlier_boot(
    connections: tuple[apsw.Connection, apsw.Connection],
) -> None:
    db, _ = connections
    schema.start_boot(db, "monday")
    db.execute(LIVE)
    schema.start_boot(db, "tuesday")
    assert live(db) == 0


def test_keeps_a_session_that_joined_while_another_process_was_opening_the_file(
    connections: tuple[apsw.Connection, apsw.Connection],
) -> None:
    fast, slow = connections

    def join() -> None:
        schema.start_boot(fast, "tuesday")
        fast.execute(LIVE)

    schema.start_boot(cast("apsw.Connection", Interrupted(slow, join)), "tuesday")
    assert live(slow) == 1
