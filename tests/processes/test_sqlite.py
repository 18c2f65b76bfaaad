"""What only processes that share a file can do to each other."""

from __future__ import annotations

import pytest
from tests.processes.helpers import Cast, until

import interlock


@pytest.mark.parametrize("way", ["blocking", "interrupt", "async"])
def test_a_holder_that_cannot_renew_stops_before_anybody_else_begins(
    path: str, cast: Cast, way: str
) -> None:
    holder = cast.start("hold", path, "merge", 1.0, way)
    token = int(holder.hear().split()[1])
    waiter = cast.start("acquire", path, "merge", 1.0, 30)
    assert waiter.hear() == "ready"
    with interlock.connect(path) as fleet:
        until(lambda: fleet.locks.show("merge").waiters)
    stuck = cast.start("stop_inside", path)
    stuck.frozen()
    word, moment = holder.hear().split()
    assert word == "stopped"
    stuck.thaw()
    later, began = waiter.hear().split()
    assert int(later) > token
    assert float(moment) < float(began)
    assert holder.hear() == "raised Lost"
    holder.finish()
    waiter.tell()
    waiter.finish()
