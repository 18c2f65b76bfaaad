"""``record log``, which can go on for as long as somebody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.core.log import Line
from interlock.faces.cli.command import answer, colourful, note, stoppable, write, write_json
from interlock.faces.cli.connect import connected
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.record import Entries, Log
from interlock.faces.render import render
from interlock.store import Resync

if TYPE_CHECKING:
    from interlock.client import Fleet


def log(parsed: Parsed) -> int:
    """What happened; with ``--follow`` also what happens from now on."""
    request: Log = parsed.request
    assert parsed.operation.act is not None  # noqa: S101 - the table says how to read
    with connected(parsed) as fleet:
        first: Entries = parsed.operation.act(fleet, request)
        if not request.follow:
            return answer(parsed, first)
        stoppable()
        _show(parsed, first.entries)
        # Where nothing was yet, from the beginning: something may have come since we looked.
        last = first.entries[-1].revision if first.entries else request.after or 0
        for lines in _later(fleet, last):
            _show(parsed, lines)
    return 0


def _later(fleet: Fleet, after: int) -> Iterator[tuple[Line, ...]]:
    """Entries as they come, for ever; if some are gone it says so, and goes on with the rest."""
    at = after
    while True:
        found = fleet.record.follow(at)
        if isinstance(found, Resync):
            note(f"entries after revision {at} were trimmed away; what is left follows")
            lines = fleet.record.log(after=at, last=False)
            at = max(at, found.revision)
        else:
            lines = found
        if lines:
            yield lines
            at = lines[-1].revision


def _show(parsed: Parsed, lines: tuple[Line, ...]) -> None:
    if not lines:
        return
    if parsed.common.json:
        for line in lines:
            write_json(line)
    else:
        write((render(Entries(entries=lines), colour=colourful()) + "\n").encode())
