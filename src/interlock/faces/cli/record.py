"""``record log``, which can go on for as long as somebody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.core.log import Line
from interlock.faces.cli.command import answer, colourful, stoppable, write, write_json
from interlock.faces.cli.connect import connected
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.record import Entries, Log
from interlock.faces.render import render

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
        for lines in _later(fleet, first.entries[-1].revision if first.entries else request.after):
            _show(parsed, lines)
    return 0


def _later(fleet: Fleet, after: int | None) -> Iterator[tuple[Line, ...]]:
    """Entries as they come, for ever."""
    at = after if after is not None else fleet.store.read().revision
    while True:
        lines = fleet.record.follow(at)
        if not lines:
            # History up to some revision is gone: go on with what there is.
            now = fleet.store.read().revision
            lines = fleet.record.log(after=at, last=False)
            at = at if lines else max(at, now)
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
