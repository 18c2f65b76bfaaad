"""The audit of requests, read from the record: the lines of a day, and the daily files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.entry import Entry
from interlock.errors import BadInput
from interlock.nouns.requests.audit import (
    AUDIT_KEPT,
    MARKS,
    AuditEntry,
    AuditSubject,
    audited,
    facts_of_head,
    recognised,
    subject_taken_in,
)
from interlock.nouns.requests.audit_files import AuditFolder, AuditPosition
from interlock.nouns.requests.exchange import decode_received
from interlock.nouns.requests.outcomes import AuditBusy, AuditList, AuditWritten
from interlock.runtime.history import EntriesBackward, EntriesForward, read_entry
from interlock.runtime.reads import looked_up, readable
from interlock.runtime.retention_clock import earlier_time
from interlock.steps import InThread, Op
from interlock.store import LOG, Item

if TYPE_CHECKING:
    from interlock.client_context import Context

DAY = 86400.0
SKEW = 60.0
"""Seconds by which the clocks of two writers may differ."""
MOST_IN_PASS = 100_000
"""Entries of the record that a pass of ``maintain`` copies to the files at most."""
_REMEMBERED = 10_000
"""Requests that a walk remembers, for the claims that follow."""


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Which lines are wanted; an empty field is no condition."""

    begin: float
    end: float
    action: str = ""
    swarm: str = ""
    request: str = ""

    def keeps(self, line: AuditEntry) -> bool:
        """Whether this line is wanted."""
        return (
            self.action in ("", line.action)
            and self.swarm in ("", line.from_swarm, line.to_swarm)
            and self.request in ("", line.request_id)
        )


class AuditWalk:
    """Makes the lines of entries, and remembers the requests that claims are about."""

    def __init__(self) -> None:
        self._subjects: dict[tuple[str, str], AuditSubject] = {}

    def lines(self, items: Sequence[Item]) -> Op[list[tuple[float, AuditEntry]]]:
        """The lines of entries in order, each with its time."""
        found = [
            (entry, item.revision)
            for item in items
            if any(mark in item.value for mark in MARKS)
            and (entry := readable(read_entry, item)) is not None
        ]
        yield from self._learn([entry for entry, _ in found])
        return [
            (entry.at, line)
            for entry, revision in found
            for line in audited(entry, revision, self._subjects)
        ]

    def completed(self, line: AuditEntry) -> AuditEntry:
        """A claim with what is known of its request by now."""
        known = self._subjects.get((line.from_swarm, line.request_id))
        if line.event_type != "cross_swarm_task_claimed" or line.from_agent or known is None:
            return line
        return replace(
            line,
            from_agent=known.from_agent,
            to_swarm=known.to_swarm,
            to_agent=known.to_agent,
            confidence=known.confidence,
            citations=known.citations,
        )

    def _learn(self, entries: Iterable[Entry]) -> Op[None]:
        """Know the requests of these entries: those taken in, and those that are claimed."""
        claimed: dict[tuple[str, str], str] = {}
        for entry in entries:
            for event in entry.events:
                if (taken := subject_taken_in(event, entry.thing)) is not None:
                    self._subjects[taken.from_swarm, taken.request] = taken
                elif (known := recognised(event, entry.thing)) is not None:
                    swarm, request = known[1].from_swarm, known[1].request
                    if known[0] == "cross_swarm_task_claimed":
                        claimed[swarm, request] = keys.received(swarm, request)
        missing = {both: key for both, key in claimed.items() if both not in self._subjects}
        items = yield from looked_up(missing.values())
        for both, key in missing.items():
            received = readable(decode_received, items[key])
            if received is not None:
                head = received.head
                self._subjects[both] = facts_of_head(head, request=head.request_id)
        while len(self._subjects) > _REMEMBERED:
            self._subjects.pop(next(iter(self._subjects)))


def audit_lines(wanted: AuditFilter, limit: int) -> Op[AuditList]:
    """The last lines of a day, oldest first."""
    walk, backward = AuditWalk(), EntriesBackward()
    found: list[AuditEntry] = []
    while len(found) <= limit and (items := (yield from backward.page())):
        dated = yield from walk.lines(items)
        some = [
            line for at, line in dated if wanted.begin <= at < wanted.end and wanted.keeps(line)
        ]
        found = [*some, *found]
        if _all_before(items, wanted.begin - SKEW):
            break
    # The entry that took a request in may be in an earlier page than its claims.
    return AuditList(
        events=tuple([walk.completed(line) for line in found[-limit:]]),
        earlier=len(found) > limit,
    )


def _all_before(items: Sequence[Item], moment: float) -> bool:
    entries = [entry for item in items if (entry := readable(read_entry, item)) is not None]
    return bool(entries) and max(entry.at for entry in entries) < moment


def write_audit(
    context: Context, folder: str, most: int | None = None
) -> Op[AuditWritten | AuditBusy]:
    """Bring the daily files of a folder up to date, and delete those that are too old."""
    with AuditFolder(folder) as files:
        position: AuditPosition | None = yield InThread(files.begin)
        if position is None:
            return AuditBusy(folder=folder)
        return (yield from _copy(context, files, position, most))


def _copy(
    context: Context, files: AuditFolder, position: AuditPosition, most: int | None
) -> Op[AuditWritten]:
    missed = yield from _is_trimmed(files.path, position)
    walk, forward = AuditWalk(), EntriesForward(position.revision)
    lines = entries = 0
    saved = position
    while (most is None or entries < most) and (items := (yield from forward.page())):
        some = yield from walk.lines(items)
        position = AuditPosition(revision=items[-1].revision, entry=items[-1].key.removeprefix(LOG))
        entries += len(items)
        lines += len(some)
        if some:
            yield InThread(partial(files.append, some, position))
            saved = position
    if saved != position:
        yield InThread(partial(files.append, (), position))
    keep = max(AUDIT_KEPT, context.settings.record().get("keep", 0.0))
    now = yield from earlier_time(context.runner)
    deleted: list[str] = yield InThread(partial(files.rotate, now, keep))
    return AuditWritten(
        folder=files.path,
        lines=lines,
        revision=position.revision,
        missed=missed,
        deleted=tuple(deleted),
    )


def _is_trimmed(folder: str, position: AuditPosition) -> Op[bool]:
    """Whether entries behind the position are gone; BadInput if the record is another one."""
    if not position.revision:
        return False
    first = yield from EntriesForward(0, 1).page()
    if first and first[0].revision > position.revision:
        return True
    next_ = yield from EntriesForward(position.revision - 1, 1).page()
    same = next_ and next_[0].revision == position.revision
    if position.entry and not (same and next_[0].key == LOG + position.entry):
        raise BadInput(
            f"{folder} has the audit of another record, or of this one before an older copy of the"
            " store was restored; name another folder"
        )
    return False
