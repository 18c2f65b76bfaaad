"""What only processes that share a file can do to each other."""

from __future__ import annotations

from tests.processes.helpers import LockWaiters, ProcessGroup

WAYS = ("blocking", "interrupt", "async")


def test_a_holder_that_cannot_renew_stops_before_anybody_else_begins(
    path: str, programs: ProcessGroup
) -> None:
    holders = {way: programs.start("hold", path, way, 2.0, way) for way in WAYS}
    tokens = {way: int(holder.read_line().split()[1]) for way, holder in holders.items()}
    heirs = LockWaiters(path, WAYS)
    heirs.wait()
    stuck = programs.start("stop_inside", path)
    stuck.frozen()
    stops = {way: holder.read_line().split() for way, holder in holders.items()}
    stuck.thaw()
    for way, (later, began) in heirs.came().items():
        word, moment, stood = stops[way]
        assert word == "stopped"
        assert float(moment) < began + float(stood), "before another holder began, if it could"
        assert tokens[way] < later
    for holder in holders.values():
        assert holder.read_line() == "raised Lost"
        holder.finish()
