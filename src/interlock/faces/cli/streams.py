"""Commands whose answer is a stream: record log and export, task watch, observe.

A stream that follows what happens continues while stdout has a reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.structs import replace

from interlock.core.entry import RecordLine
from interlock.core.filter import RecordFilter
from interlock.core.history import Story
from interlock.errors import BadInput
from interlock.faces.cli.command import (
    LOOK,
    answer,
    is_read,
    note,
    stoppable,
    write,
    write_json,
)
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.record.noun import Entries, Gap, RecordExport, RecordLog, filters, gap
from interlock.runtime.history import EVERYTHING
from interlock.steps import drive
from interlock.store import Resync

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.client_blocks import Stream
    from interlock.nouns.tasks.view_noun import TaskWatch

_MISSED = 100_000
"""What the record may still have of the entries that a feed dropped, sealed ones above all."""


def observe(parsed: Parsed) -> int:
    """Every event, one line each, at once; or the counters."""
    from interlock.nouns.fleet.noun import fitting

    request = fitting(parsed.request)
    with connected(parsed) as fleet:
        if request.counts:
            return answer(parsed, fleet.act(request))
        return follow(
            parsed, lambda: fleet.observe(nouns=request.noun or None, after=request.after)
        )


def task_watch(parsed: Parsed) -> int:
    """The events of tasks, one line each, as they are recorded."""
    from interlock.nouns.tasks.task import EVENT_NAMES

    request: TaskWatch = parsed.request
    with connected(parsed) as fleet:
        return follow(
            parsed,
            lambda: fleet.tasks.subscribe(
                events=request.event or EVENT_NAMES,
                prefix=request.prefix or "",
                can=request.can or None,
                after=request.after,
            ),
        )


def follow(parsed: Parsed, opened: Callable[[], Stream[Any, Any]]) -> NoReturn:
    """Show each value of a stream as it comes, while stdout has a reader."""
    stoppable()
    speak_up()
    with opened() as events:
        while is_read():
            for event in events.take(LOOK):
                answer(parsed, event)
    raise BrokenPipeError


def record_log(parsed: Parsed) -> int:
    """What happened; with ``--follow`` also what happens from now on."""
    request: RecordLog = parsed.request
    if request.follow and request.until is not None:
        raise BadInput("--follow waits for new entries; leave --until out")
    with connected(parsed) as fleet:
        wanted = fleet.record.wanted(**filters(request))
        # Where nothing matches yet, what comes is looked at from here on, not all history again.
        begin = _newest(fleet) if request.follow and wanted != EVERYTHING else 0
        first: Entries = fleet.act(request)
        if not request.follow:
            _warn(first.gap)
            return answer(parsed, first)
        stoppable()
        speak_up()
        _show(parsed, first.entries, first.gap)
        # An empty record is followed from its beginning: entries may have come since the read.
        last = first.entries[-1].revision if first.entries else request.after or 0
        if request.after is None:
            last = max(last, begin)
        for lines, missing in _later(fleet, last, wanted):
            _show(parsed, lines, missing)
    return 0


def record_explain(parsed: Parsed) -> int:
    """The history of one thing; the trace of each event with ``-v`` or in JSON."""
    with connected(parsed) as fleet:
        outcome = fleet.act(parsed.request)
    if isinstance(outcome, Story) and not parsed.common.json and not parsed.common.verbose:
        untraced = tuple(replace(each, trace="") for each in outcome.happenings)
        outcome = replace(outcome, happenings=untraced)
    return answer(parsed, outcome)


def record_export(parsed: Parsed) -> int:
    """The record on stdout or in a file; or the script that checks one."""
    request: RecordExport = parsed.request
    if request.checker:
        from interlock import check_record

        with open(check_record.__file__, "rb") as file:
            write(file.read())
        return 0
    with connected(parsed) as fleet:
        if request.out:
            return answer(parsed, fleet.act(request))
        to_terminal = sys.stdout.isatty()  # the bytes that a file or a pipe gets are hashed
        fleet.record.export(_write_spelled if to_terminal else write, after=request.after or 0)
    return 0


def _write_spelled(lines: bytes) -> None:
    from interlock.faces.json_output import spelled

    write("\n".join(map(spelled, lines.decode().split("\n"))).encode())


def _newest(fleet: Fleet) -> int:
    return max((line.revision for line in fleet.record.log(limit=1)), default=0)


def _later(
    fleet: Fleet, after: int, wanted: RecordFilter
) -> Iterator[tuple[tuple[RecordLine, ...], Gap | None]]:
    """Entries as they come, without end; if some are lost it says so, and continues after them."""
    at = after
    with fleet.record.follow(after) as follower:
        while True:
            found = follower.take()
            missing = None
            if isinstance(found, Resync):
                missing = drive(gap(FleetCalls(fleet.context), at), fleet.store)
                lines = fleet.record.log(after=at, last=False, limit=_MISSED)
                at = found.revision
            else:
                lines = tuple(line for line in found if line.revision > at)
            kept = tuple(line for line in lines if wanted.keeps(line))
            if kept or missing:
                yield kept, missing
            if lines:
                at = max(at, lines[-1].revision)


def _warn(missing: Gap | None) -> None:
    if missing is not None:
        left = f"what is left begins at {missing.begins}" if missing.begins else "nothing is left"
        note(f"entries after revision {missing.after} may be trimmed away; {left}")


def _show(parsed: Parsed, lines: tuple[RecordLine, ...], missing: Gap | None = None) -> None:
    _warn(missing)
    if missing is not None and parsed.common.json:
        write_json(missing)
    if parsed.common.json:
        for line in lines:
            write_json(line)
    elif lines:
        answer(parsed, Entries(entries=lines))
