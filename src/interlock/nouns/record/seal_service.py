"""Sealing and retention, in bounded steps that any process may take at any time.

A step reads a stretch of the log, packs it outside of any transaction, and commits segment and
mark together, provided that the mark has not moved: of two sealers one wins, and the other has lost
a little time.  Then it trims the sealed entries.  The next step repairs an interrupted one, since
each begins with the leftovers of the one before.

A store whose log is never sealed works, and grows.
``seal_rules.py`` has the theory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.segment import RecordMark, SealedMark, Segment
from interlock.errors import StoreDamaged, StoreFull, TooLarge
from interlock.nouns.record import seal_rules
from interlock.nouns.record.seal_rules import LIMITS, AgeLimit, Row, SegmentEnd
from interlock.runtime.attempt import DecideOp
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import with_bytes
from interlock.runtime.retention_clock import earlier_time
from interlock.runtime.runner import Runner
from interlock.runtime.verdict import Verdict, kept_verdict
from interlock.steps import InThread, Op, Read, StoreCall
from interlock.store import LOG, Extent, Finding, Item, Log, Range, Snapshot

if TYPE_CHECKING:
    from interlock.settings import Settings

STEPS = 4
"""Steps in one pass: some 8,000 entries, well under a second of work."""
CLIENT_STEPS = 1
"""Up to 2,000 entries sealed for 1,000 written, so a client catches up with what others left; and
quick enough to be done between two renewals of the shortest lease."""
BATCH = 2_000
"""Entries in one segment at most."""
PAGE = 1_000
TRIMS = 8
"""Calls of ``trim`` in one step: more entries than a step seals, so that it catches up."""
OVERHEAD = 256
"""Bytes that an entry takes in an engine beside its own: id, hash, touched keys, indexes."""
ENVELOPE = 4_096
"""Bytes of a segment beside its entries: a generous bound."""
SHARE = 4
"""An engine that trims by itself begins at this multiple of the log's limit."""

Word: TypeAlias = Literal["sealed", "overtaken", "idle"]

_SAMPLE = Log(limit=100, last=True)
_SEALED = codec.Decoder(SealedMark)
_MARK = codec.Decoder(RecordMark)
_STUB = codec.Decoder(SegmentEnd)


class SealStep(Struct, frozen=True, kw_only=True):
    """The result of one step: entries sealed and trimmed, and why it ended."""

    word: Word
    sealed: int = 0
    trimmed: int = 0
    finding: str = ""


class SealPass(Struct, frozen=True, kw_only=True):
    """The result of a pass: entries sealed, segments dropped, entries left to seal.

    ``finding`` says why it could seal no further.
    """

    sealed: int = 0
    dropped: int = 0
    left: int = 0
    finding: str = ""


class SealState(Struct, frozen=True, kw_only=True):
    """The state of the record: the sealed mark, the checkpoint, and the size of the log."""

    item: Item | None
    sealed: SealedMark
    noted_item: Item | None
    noted: RecordMark | None
    extent: Extent
    size: int
    newest: float
    trims: bool = False

    @property
    def gap(self) -> bool:
        """Whether entries are gone that were never sealed: the engine had to trim them."""
        return self.extent.trimmed > self.sealed.revision

    @property
    def restarted(self) -> bool:
        """Whether sealing must restart behind a gap.

        Only a gap that the engine made counts: behind removed entries nothing is sealed.
        """
        return self.gap and self.trims and not self.sealed.bytes


class Sealing:
    """Keeps the log within its limit, as generators for a driver."""

    def __init__(self, runner: Runner, settings: Settings | None = None) -> None:
        self._runner = runner
        found = LIMITS.get(runner.capabilities.engine, LIMITS["etcd"])
        self.limits = found if settings is None else replace(found, **settings.record())

    def run_pass(self, actor: Actor, steps: int = STEPS) -> Op[SealPass]:
        """Seal while the log is too large, write a checkpoint, drop old segments; bounded."""
        total = left = dropped = 0
        finding = ""
        try:
            for _ in range(steps):
                state = yield from self.read_state()
                left = self.excess(state)
                if not left:
                    break
                step = yield from self.step(actor, state)
                total += step.sealed
                finding = step.finding
                left = max(0, left - step.sealed) if step.word == "sealed" else 0
                if step.word != "sealed":
                    break
            yield from self.checkpoint(actor, steps * self.limits.between)
        except (StoreDamaged, StoreFull, TooLarge) as error:
            finding = str(error)  # dropping segments may still free space
        try:
            for _ in range(2 * steps):
                gone = yield from self.drop(actor)
                dropped += gone
                if not gone:
                    break
        except StoreDamaged as error:
            finding = finding or str(error)
        return SealPass(sealed=total, dropped=dropped, left=left, finding=finding)

    def read_state(self) -> Op[SealState]:
        """Read the state of the record."""
        extent: Extent = yield StoreCall("extent")
        snapshot = yield Read(keys.SEALED, keys.CHECKPOINT, _SAMPLE)
        item, noted = snapshot[keys.SEALED], snapshot[keys.CHECKPOINT]
        sample = _rows(snapshot.ranges[_SAMPLE])
        size = sum(len(row[2]) + OVERHEAD for row in sample) // len(sample) if sample else 0
        return SealState(
            item=item,
            sealed=SealedMark() if item is None else _SEALED.read(item),
            noted_item=noted,
            noted=_MARK.read_if_present(noted),
            extent=extent,
            size=size,
            newest=seal_rules.newest_time(sample),
            trims=self._runner.capabilities.may_have_trimmed(
                extent.trimmed, sample[-1][0] if sample else 0
            ),
        )

    def excess(self, state: SealState) -> int:
        """How many entries the log has above its limit."""
        return max(0, state.extent.entries - self._log_limit(state))

    def step(self, actor: Actor, state: SealState | None = None) -> Op[SealStep]:
        """Seal one stretch of the log, and trim the sealed entries."""
        if state is None:
            state = yield from self.read_state()
        trimmed = yield from self._trim(state.sealed.revision)
        if state.gap and not state.sealed.bytes:
            yield from _refuse_lost_mark(state.extent.trimmed)
        begins = self._begins(state)
        found, rows = yield from self._oldest(state, begins, state.extent.entries - trimmed)
        if not rows:
            finding = seal_rules.clock_ahead(found, self._runner.clock.wall())
            return SealStep(word="idle", trimmed=trimmed, finding=finding)
        try:
            made = yield from self._segment(state, begins, rows)
        except StoreDamaged:
            if (yield from _sealed_since(state)):  # another client sealed while we read
                return SealStep(word="overtaken", trimmed=trimmed)
            raise
        decision = seal_rules.seal(state.sealed, made, restarted=state.restarted)
        whole = yield from self._untrimmed(begins)
        if not whole or not (
            yield from self._commit_if_unchanged(decision, {keys.SEALED: state.item}, actor)
        ):
            return SealStep(word="overtaken", trimmed=trimmed)
        trimmed += yield from self._trim(made.ends.revision)
        count = made.ends.entries - begins.entries
        return SealStep(word="sealed", sealed=count, trimmed=trimmed)

    def checkpoint(self, actor: Actor, most: int) -> Op[int]:
        """Roll the digest from the last mark and write a checkpoint, if it is due; counts entries.

        At most about ``most`` entries: the next checkpoint continues from there.
        """
        state = yield from self.read_state()
        mark: RecordMark = state.sealed
        if state.noted is not None and state.noted.revision > mark.revision:
            mark = state.noted
        behind = state.extent.entries - (mark.entries - state.sealed.entries)
        if behind < self.limits.between or state.extent.trimmed > mark.revision:
            return 0
        begins = mark
        while mark.entries - begins.entries < most:
            rows = yield from _read(mark.revision, PAGE)
            mark = yield InThread(partial(seal_rules.rolled, mark, rows))
            if len(rows) < PAGE:
                break
        count = mark.entries - begins.entries
        if count < self.limits.between or not (yield from self._untrimmed(begins)):
            return 0
        known = {keys.SEALED: state.item, keys.CHECKPOINT: state.noted_item}
        done = yield from self._commit_if_unchanged(seal_rules.checkpoint(mark), known, actor)
        return count if done else 0

    def drop(self, actor: Actor) -> Op[int]:
        """Drop the oldest segment if it is too old, or if all segments are too large."""
        item = (yield Read(keys.SEALED))[keys.SEALED]
        state = SealedMark() if item is None else _SEALED.read(item)
        if not seal_rules.too_old(state, self.limits, self._runner.clock.wall()):
            return 0
        ref = Range(keys.SEGMENTS, limit=1)
        snapshot: Snapshot = yield Read(ref, _SAMPLE)
        found = snapshot.ranges[ref]
        if not found:
            return 0
        newest = seal_rules.newest_time(_rows(snapshot.ranges[_SAMPLE]))
        now = min(newest, (yield from earlier_time(self._runner)))
        oldest = _STUB.read(found[0])
        if state.bytes <= self.limits.sealed and oldest.until >= now - self.limits.keep:
            return 0
        decision = seal_rules.drop(state, found[0].key, oldest, len(found[0].value))
        return int((yield from self._commit_if_unchanged(decision, {keys.SEALED: item}, actor)))

    def facts(self) -> Op[dict[str, int]]:
        """How large the record is, for ``store info``; the bytes of the log are an estimate."""
        return _facts((yield from self.read_state()))

    def findings(self) -> Op[list[Finding]]:
        """The state of the record, for ``doctor``."""
        state = yield from self.read_state()
        facts = _facts(state)
        entries, sealed = facts["log_entries"], facts["sealed_entries"]
        fact = f"entries: {entries} in the log (about {_mib(facts['log_bytes'])})"
        fact += f", {sealed} sealed ({_mib(state.sealed.bytes)})" if sealed else ""
        try:
            begins = self._begins(state)
        except StoreDamaged as error:
            return [Finding(verdict="bad", name="record", fact=f"{fact}; {error}")]
        if entries > 2 * self._log_limit(state):
            _, sealable = yield from self._oldest(state, begins, entries)
            if sealable:  # a log of young entries is no problem
                remedy = "run 'interlock maintain'"
                return [Finding(verdict="warn", name="record", fact=fact, remedy=remedy)]
        return [Finding(verdict="ok", name="record", fact=fact)]

    def _commit_if_unchanged(
        self, decision: Decision[str], known: dict[str, Item | None], actor: Actor
    ) -> Op[bool]:
        """Commit a decision if the items that it is based on are unchanged; whether it did."""
        done = yield from self._runner.change(lambda: _if_unchanged(known, decision), actor, known)
        return done.outcome != "overtaken"

    def _segment(self, state: SealState, begins: RecordMark, rows: Sequence[Row]) -> Op[Segment]:
        noted = None if state.restarted else state.noted
        room = self._runner.capabilities.max_value - ENVELOPE
        now = min(self._runner.clock.wall(), state.newest)
        made: Segment = yield InThread(partial(seal_rules.segment, begins, rows, noted, room, now))
        return made

    def _untrimmed(self, begins: RecordMark) -> Op[bool]:
        """Whether the engine trimmed nothing after a mark while we read."""
        if not self._runner.capabilities.max_log:
            return True
        extent: Extent = yield StoreCall("extent")
        return extent.trimmed <= begins.revision

    def _log_limit(self, state: SealState) -> int:
        """How many entries the log may have."""
        limits, most = self.limits, self._runner.capabilities.max_log
        allowed = limits.hot_entries or limits.hot_bytes // max(state.size, 1)
        return min(allowed, most // SHARE) if most else allowed

    def _begins(self, state: SealState) -> RecordMark:
        """Where the next segment begins."""
        if state.restarted:
            return RecordMark(revision=state.extent.trimmed)
        if state.gap:
            why = f"entries after revision {state.sealed.revision} were trimmed before their time"
            raise seal_rules.damaged(state.extent.trimmed, why)
        done = state.sealed
        return RecordMark(revision=done.revision, entries=done.entries, digest=done.digest)

    def _oldest(
        self, state: SealState, begins: RecordMark, entries: int
    ) -> Op[tuple[list[Row], Sequence[Row]]]:
        """The oldest entries, and those of them that may be sealed.

        The entries of one segment are read, and the ones behind that shield them.
        """
        limits, now = self.limits, self._runner.clock.wall()
        pressed = entries > 2 * self._log_limit(state)
        before = min(now, state.newest) - (limits.pressed if pressed else limits.age)
        age = AgeLimit(before=before, now=now, shield=limits.newest)
        count = min(BATCH + limits.newest, entries)
        rows: list[Row] = []
        while len(rows) < count and seal_rules.first_young(rows, age) is None:
            after = rows[-1][0] if rows else begins.revision
            found = yield from _read(after, min(PAGE, count - len(rows)))
            rows += found
            if not found:
                break
        most = max(0, min(BATCH, entries - limits.newest))
        room = self._runner.capabilities.max_value
        return rows, seal_rules.sealable(rows, age, room)[:most]

    def _trim(self, revision: int) -> Op[int]:
        """Trim sealed entries, a bounded number."""
        total = 0
        for _ in range(TRIMS if revision else 0):
            gone: int = yield StoreCall("trim", revision)
            total += gone
            if not gone:
                break
        return total


def _if_unchanged(known: Mapping[str, Item | None], decision: Decision[str]) -> DecideOp[str]:
    found = (yield tuple(known)).items
    for key, before in known.items():
        item = found[key]
        if (item and item.revision) != (before and before.revision):
            return Decision(outcome="overtaken")
    return decision


def _sealed_since(state: SealState) -> Op[bool]:
    """Whether another client sealed since the state was read."""
    item: Item | None = (yield Read(keys.SEALED))[keys.SEALED]
    known = state.item
    return (item.revision if item else 0) != (known.revision if known else 0)


def _refuse_lost_mark(trimmed: int) -> Op[None]:
    """Segments without a mark mean that the mark was lost."""
    ref = Range(keys.SEGMENTS, limit=1)
    if (yield Read(ref)).ranges[ref]:
        raise seal_rules.damaged(trimmed, f"there are segments, and {keys.SEALED} knows of none")


def _read(after: int, limit: int) -> Op[list[Row]]:
    ref = Log(after=after, limit=limit)
    return _rows((yield Read(ref)).ranges[ref])


def _rows(items: Sequence[Item]) -> list[Row]:
    return [
        (item.revision, item.key[len(LOG) :], item.value, item.hash)
        for item in map(with_bytes, items)
    ]


def _facts(state: SealState) -> dict[str, int]:
    dropped = 0 if state.sealed.dropped is None else state.sealed.dropped.entries
    return {
        "log_entries": state.extent.entries,
        "log_bytes": state.extent.entries * state.size,
        "sealed_entries": state.sealed.entries - dropped,
        "sealed_bytes": state.sealed.bytes,
    }


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """A record that cannot be sealed, grows beyond its limits, or was found not to be intact."""
    findings = yield from Sealing(checkup.runner, checkup.settings).findings()
    verdict = yield from kept_verdict()
    broken = () if verdict is None or verdict.intact else (_broken(verdict),)
    return [*broken, *_not_sealed(findings)]


def _broken(verdict: Verdict) -> Problem:
    return Problem(
        kind="record",
        says=f"record: it is not intact: {verdict.says}",
        remedy="see 'interlock record verify'; if it was changed, restore a backup",
        thing="record",
        since=verdict.at,
    )


def _not_sealed(findings: Sequence[Finding]) -> list[Problem]:
    return [
        Problem(kind="record", says=f"record: {each.fact}", remedy=each.remedy, thing="record")
        for each in findings
        if each.verdict != "ok"
    ]


def client_step(runner: Runner, settings: Settings | None, actor: Actor) -> Op[bool]:
    """The share of a client: seal a little; whether more is left to seal."""
    done = yield from Sealing(runner, settings).run_pass(actor, CLIENT_STEPS)
    return done.left > 0 and not done.finding


class RecordHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about the record."""

    def shrink(self) -> Op[None]:
        """Seal the log."""
        done = yield from Sealing(self.work.runner, self.work.settings).run_pass(self.work.actor)
        self.work.sealed += done.sealed
        self.work.left += done.left
        self.work.finding = done.finding or ""
