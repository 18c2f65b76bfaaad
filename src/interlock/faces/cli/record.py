"""``record log``, which can go on for as long as somebody reads, and ``record export``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.core.log import Line
from interlock.faces.cli.command import answer, colourful, note, stoppable, write, write_json
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.record import Entries, Export, Gap, Log, gap
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
            _warn(first.gap)
            return answer(parsed, first)
        stoppable()
        speak_up()
        _show(parsed, first.entries, first.gap)
        # Where nothing was yet, from the beginning: something may have come since we looked.
        last = first.entries[-1].revision if first.entries else request.after or 0
        for lines, missing in _later(fleet, last):
            _show(parsed, lines, missing)
    return 0


def export(parsed: Parsed) -> int:
    """The record on stdout or in a file; or the script that checks one."""
    request: Export = parsed.request
    assert parsed.operation.act is not None  # noqa: S101 - the table says how to write a file
    if request.checker:
        from interlock import check_record

        with open(check_record.__file__, "rb") as file:
            write(file.read())
        return 0
    with connected(parsed) as fleet:
        if request.out:
            return answer(parsed, parsed.operation.act(fleet, request))
        fleet.record.export(write, after=request.after or 0)
    return 0


def _later(fleet: Fleet, after: int) -> Iterator[tuple[tuple[Line, ...], Gap | None]]:
    """Entries as they come, for ever; if some are gone it says so, and goes on with the rest."""
    at = after
    with fleet.record.follow(after) as follower:
        while True:
            found = follower.take()
            missing = None
            if isinstance(found, Resync):
                missing = gap(fleet, at)
                lines = fleet.record.log(after=at, last=False)
                at = found.revision
            else:
                lines = tuple(line for line in found if line.revision > at)
            if lines or missing:
                yield lines, missing
            if lines:
                at = max(at, lines[-1].revision)


def _warn(missing: Gap | None) -> None:
    if missing is not None:
        left = f"what is left begins at {missing.begins}" if missing.begins else "nothing is left"
        note(f"entries after revision {missing.after} may be trimmed away; {left}")


def _show(parsed: Parsed, lines: tuple[Line, ...], missing: Gap | None = None) -> None:
    _warn(missing)
    if missing is not None and parsed.common.json:
        write_json(missing)
    if not lines:
        return
    if parsed.common.json:
        for line in lines:
            write_json(line)
    else:
        write((render(Entries(entries=lines), colour=colourful()) + "\n").encode())
