"""Moves a whole store to another one: everything is copied, compared, and then changes place.

The marks of the two stores are the state of a move (``StoreMark``); nothing else remembers it, so
any process can continue it, or take it back.

    source    target     what the next run does
    --        --         verifies the record, notes the move in it, marks the source
    moving    --         marks the target, if it is empty
    moving    filling    copies what the target lacks, compares all, verifies, marks the source
    moved     filling    removes the mark of the target: from here on agents use it
    moved     --         nothing: the move is complete
    --        filling    a move that was taken back: deletes the remains, begins a new one

Invariants: at most one of the two stores accepts commits, at every moment and after every crash.
The target accepts the first one when the source never can any more.  ``--abort`` opens the source
while its mark is ``moving``; once it is ``moved`` there is no way back.

A copy has the revisions and stamps of the source, so tokens, cursors, links and digests mean there
what they meant before, and the first new revision is above all old ones.  A liveness key lives in
the target no shorter than it would have lived in the source, where no client can renew it any more.
So a holder that does not follow has stopped by itself before its lock is passed on.

Memory is bounded: pages of both stores are read side by side, in the order of their keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.segment import MoveNote, SealedMark
from interlock.errors import BadInput, NotAllowed, StoreBusy, StoreDamaged, StoreFull
from interlock.nouns.fleet.store_noun import CopyAborted, StoreCopied
from interlock.runtime.identity import Actor
from interlock.runtime.reads import with_bytes
from interlock.runtime.runner import Runner
from interlock.steps import drive
from interlock.store import (
    ENGINE_KEYS,
    LIVE,
    LOG,
    Item,
    Log,
    MovableStore,
    Range,
    Snapshot,
    Store,
    StoreMark,
    can_be_moved,
)

if TYPE_CHECKING:
    from interlock.core.signing import Signer
    from interlock.nouns.record.noun import Verified
    from interlock.runtime.attempt import DecideOp

Step: TypeAlias = Literal[
    "verifying the source", "noted", "frozen", "marked", "copying entries", "copying items",
    "copying sessions", "comparing", "verifying the target", "moved", "complete",
]  # fmt: skip
Report: TypeAlias = Callable[["CopyProgress"], None]

_FIRST_PAGE, _MOST_ITEMS, _PAGE_BYTES = 32, 1000, 4 << 20
"""Items in the first page of a folder, and at most; pages grow while they are small in bytes."""
_SURVIVES = {"none": "no restart of the server", "process": "its process, and no power loss"}
_MOVE = codec.Decoder(MoveNote)
_SEALED = codec.Decoder(SealedMark)
_ID = codec.Decoder(str)


class CopyProgress(Struct, frozen=True, kw_only=True):
    """How far a copy is: in a step, ``done`` of ``total`` items or entries (0 if unknown)."""

    step: Step
    done: int = 0
    total: int = 0


class StoreCopy:
    """One run of a move; ``places`` name the source and the target, without passwords.

    ``signer`` signs the entry in the record that names the move.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        places: tuple[str, str],
        *,
        signer: Signer | None = None,
        report: Report = lambda _progress: None,
    ) -> None:
        self._source = _movable(source, places[0])
        self._target = _movable(target, places[1])
        self._places = places
        self._report = report
        self._runner = Runner(source, signer=signer)
        self._began = time.monotonic()
        self._resumed = False

    def run(self, *, damaged: bool = False) -> StoreCopied:
        """Carry the move on to its end, from the step that it has reached.

        ``damaged`` accepts a record that does not verify, and copies it as it is.
        """
        theirs, ours = self._source.mark(), self._target.mark()
        if theirs is not None and theirs.state == "moved":
            return self._complete(theirs, ours)
        _refuse(theirs, self._places[0], "filling", "backup")
        _refuse(ours, self._places[1], "moving", "moved", "backup")
        if self._places[0] == self._places[1]:
            raise _same(self._places[0])
        self._resumed = theirs is not None
        if ours is not None and not (theirs is not None and theirs.move == ours.move):
            if not _fills(self._source, self._places[0], ours):
                raise self._foreign(ours)
            _erase(self._target, self._places[1], ours)
            ours = None
        if ours is None:
            if theirs is not None and theirs.place != self._places[1]:
                raise _elsewhere(self._places[0], theirs)
            self._refuse_nonempty()
        verdict = self._verify_source(damaged=damaged)
        if theirs is None:
            self._fit_the_log()
            theirs = self._freeze()
        else:
            self._source.set_mark(theirs, theirs)  # a killed run may have left it half done
        if ours is None:
            ours = self._begin_filling(theirs)
        self._copy(ours.move)
        items, entries, digest = self._compare()
        if verdict and not verdict.since:
            self._verify_target(verdict)
        return self._switch(theirs, ours, (items, entries, digest))

    def abort(self) -> CopyAborted:
        """Take the move back: the source accepts commits again, and the copy is deleted."""
        theirs, ours = self._source.mark(), self._target.mark()
        if theirs is not None and theirs.state == "moved":
            raise NotAllowed(
                f"{self._places[0]} was moved already: agents may use {theirs.place};"
                " to come back, copy that one to a new place"
            )
        _refuse(theirs, self._places[0], "filling", "backup")
        known = theirs is not None and ours is not None and theirs.move == ours.move
        opened = theirs is not None and (known or theirs.place == self._places[1])
        if theirs is not None and not opened:
            raise _elsewhere(self._places[0], theirs)
        if theirs is not None and not self._source.set_mark(None, theirs):
            raise _overtaken(self._places[0])
        erased = 0
        if ours is not None and ours.state == "filling":
            if known or _fills(self._source, self._places[0], ours):
                erased = _erase(self._target, self._places[1], ours)
            elif not opened:
                raise self._foreign(ours)
        return CopyAborted(
            source=self._places[0], target=self._places[1], opened=opened, erased=erased
        )

    def _complete(self, theirs: StoreMark, ours: StoreMark | None) -> StoreCopied:
        """The source is closed for good: open the target, if that is still to be done."""
        if ours is not None and (ours.state, ours.move) == ("filling", theirs.move):
            if not self._target.set_mark(None, ours):
                raise _overtaken(self._places[1])
        elif ours is not None or theirs.place != self._places[1]:
            raise NotAllowed(
                f"{self._places[0]} was moved to {theirs.place}; copy from there, if you want"
                " everything in a third place"
            )
        self._report(CopyProgress(step="complete"))
        return StoreCopied(
            source=self._places[0],
            target=self._places[1],
            move=theirs.move,
            revision=theirs.revision,
            resumed=True,
            seconds=self._seconds(),
        )

    def _foreign(self, ours: StoreMark) -> NotAllowed:
        """The error if another store fills the target."""
        same = ours.place == self._places[0]
        other = f"another store with the path {ours.place}" if same else ours.place
        return NotAllowed(
            f"{self._places[1]} is being filled from {other} ({ours.source or ours.move});"
            " continue that copy or take it back with --abort where it was begun, or name another"
            " target; if that store is lost for good, delete the incomplete copy: --abort --lost"
        )

    def _refuse_nonempty(self) -> None:
        entry, item = Log(limit=1), next(_Pages(self._target).items(), None)
        if item is not None or self._target.read(entry).ranges[entry]:
            raise NotAllowed(
                f"{self._places[1]} is not empty; a copy needs an empty store: name a new file,"
                " or another namespace (?ns=NAME)"
            )

    def _verify_source(self, *, damaged: bool) -> Verified:
        from interlock.nouns.record.verify import verify

        self._report(CopyProgress(step="verifying the source"))
        found = drive(verify(self._source.capabilities), self._source)
        if damaged or (found and not found.since):
            return found
        if found:  # a gap that this engine may make, and others would have to be trusted with
            raise StoreDamaged(
                f"{self._places[0]} dropped entries before revision {found.since} that were not"
                " sealed, and in a copy that would look as if they were removed; export the record,"
                " then copy it as it is with --damaged"
            )
        first = found.findings[0].says if found.findings else "a verdict is bad"
        raise StoreDamaged(
            f"the record of {self._places[0]} does not verify ({first}); look with 'interlock"
            " record verify', and copy it as it is with --damaged"
        )

    def _fit_the_log(self) -> None:
        """Seal what the log of the target would not hold: its engine would drop it unsealed."""
        most = self._target.capabilities.max_log
        if not most or self._source.extent().entries <= most // 2:
            return
        from interlock.nouns.record.seal_rules import LIMITS
        from interlock.nouns.record.seal_service import Sealing

        sealing = Sealing(self._runner)
        sealing.limits = LIMITS.get(self._target.capabilities.engine, LIMITS["etcd"])
        while drive(sealing.run_pass(Actor()), self._source).sealed:
            pass
        if (entries := self._source.extent().entries) > most:
            raise StoreFull(
                f"the log of {self._places[0]} has {entries} entries that are too young to be"
                f" sealed, and {self._places[1]} keeps {most}; run this again in five minutes, or"
                " raise its limit (?log= in the URL)"
            )

    def _freeze(self) -> StoreMark:
        move, now = self._runner.new_id("mov"), self._runner.clock.wall()
        source = drive(self._runner.store_id(), self._source)
        drive(self._runner.change(lambda: self._note(move, now), Actor()), self._source)
        self._report(CopyProgress(step="noted"))
        mark = StoreMark(
            state="moving", place=self._places[1], move=move, at=round(now, 3), source=source
        )
        if not self._source.set_mark(mark, None):
            raise _overtaken(self._places[0])
        if mark.same(self._target.mark()):
            self._source.set_mark(None, mark)
            raise _same(self._places[0])
        self._report(CopyProgress(step="frozen"))
        return mark

    def _note(self, move: str, now: float) -> DecideOp[str]:
        """The entry in the record, by which the copy says where it comes from."""
        before = _MOVE.read_if_present((yield (keys.MOVE,)).items[keys.MOVE])
        loose = not self._source.capabilities.consecutive or (before is not None and before.loose)
        note = MoveNote(
            source=self._places[0], target=self._places[1], move=move, at=round(now, 3), loose=loose
        )
        return Decision(
            outcome="noted", verb="store.copy", thing="store", puts=(Write(keys.MOVE, note),)
        )

    def _begin_filling(self, theirs: StoreMark) -> StoreMark:
        mark = StoreMark(
            state="filling",
            place=self._places[0],
            move=theirs.move,
            at=round(self._runner.clock.wall(), 3),
            revision=self._source.read().revision,
            source=theirs.source,
        )
        if not self._target.set_mark(mark, None):
            if self._target.mark() is None:  # then a client has just written into it
                self._refuse_nonempty()
            raise _overtaken(self._places[1])
        self._report(CopyProgress(step="marked"))
        return mark

    # ---- copying --------------------------------------------------------------------------------

    def _copy(self, move: str) -> None:
        """Everything that the target lacks; liveness last, since its time is running."""
        self._copy_entries(move)
        self._copy_items(move)
        done = 0
        for page in _Pages(self._source, LIVE).pages(times=True):
            grain = self._source.capabilities.grain
            self._target.load(move, [_with_time(item, grain) for item in page])
            done += len(page)
            self._report(CopyProgress(step="copying sessions", done=done))

    def _copy_entries(self, move: str) -> None:
        last = Log(limit=1, last=True)
        there = self._target.read(last).ranges[last]
        total, done = self._source.extent().entries, 0
        for page in _entries(self._source, there[-1].revision if there else 0):
            self._target.load(move, page)
            done += len(page)
            self._report(CopyProgress(step="copying entries", done=done, total=total))

    def _copy_items(self, move: str) -> None:
        total, done = _count(self._source), 0
        theirs = _Pages(self._target).items() if self._resumed else iter(())
        other = next(theirs, None)
        lacking: list[Item] = []
        size = 0
        for page in _Pages(self._source).pages():
            for item in page:
                while other is not None and other.key < item.key:
                    other = next(theirs, None)
                if other is None or other != item:
                    lacking.append(item)
                    size += len(item.value)
            if len(lacking) >= _MOST_ITEMS or size > _PAGE_BYTES:  # a load may be a round trip
                self._target.load(move, lacking)
                lacking, size = [], 0
            done += len(page)
            self._report(CopyProgress(step="copying items", done=done, total=total))
        if lacking:
            self._target.load(move, lacking)

    # ---- comparing ------------------------------------------------------------------------------

    def _compare(self) -> tuple[int, int, str]:
        """Compare all items and entries; their numbers, and one digest over the items."""
        digest, items = sha256(), 0
        theirs = _Pages(self._target).items()
        for page in _Pages(self._source).pages():
            for item in page:
                self._refuse_difference(item, next(theirs, None))
                digest.update(_fingerprint(item))
            items += len(page)
            self._report(CopyProgress(step="comparing", done=items))
        self._refuse_difference(None, next(theirs, None))
        entries = self._compare_entries()
        self._compare_liveness()
        return items, entries, digest.hexdigest()

    def _compare_entries(self) -> int:
        count, copied = 0, chain.from_iterable(_entries(self._target))
        for entry in chain.from_iterable(_entries(self._source)):
            self._refuse_difference(entry, next(copied, None))
            count += 1
        self._refuse_difference(None, next(copied, None))
        return count

    def _compare_liveness(self) -> None:
        """Every key that lives in the source lives in the target; its time is not compared."""
        theirs = _Pages(self._target, LIVE).items()
        other = next(theirs, None)
        for item in _Pages(self._source, LIVE).items():
            while other is not None and other.key < item.key:
                other = next(theirs, None)
            same = other is not None and (other.key, other.value) == (item.key, item.value)
            if not same and self._source.read(item.key)[item.key] is not None:
                raise self._differs(f"{item.key} is missing")

    def _refuse_difference(self, item: Item | None, other: Item | None) -> None:
        if item != other:
            key = min(each.key for each in (item, other) if each is not None)
            raise self._differs(f"{key} is not what it is in {self._places[0]}")

    def _differs(self, how: str) -> StoreDamaged:
        return StoreDamaged(
            f"the copy in {self._places[1]} differs: {how}; take it back with 'interlock store copy"
            " FROM TO --abort', and copy to another place"
        )

    def _verify_target(self, expected: Verified) -> None:
        from interlock.nouns.record.verify import verify

        self._report(CopyProgress(step="verifying the target"))
        found = drive(verify(self._target.capabilities), self._target)
        verdicts = [(each.integrity, each.completeness) for each in (expected, found)]
        if verdicts[0] != verdicts[1]:
            first = found.findings[0].says if found.findings else str(verdicts[1])
            raise self._differs(f"its record does not verify ({first})")

    def _switch(
        self, theirs: StoreMark, ours: StoreMark, compared: tuple[int, int, str]
    ) -> StoreCopied:
        """The source first: the target must not accept commits while the source may again."""
        items, entries, digest = compared
        moved = StoreMark(
            state="moved",
            place=self._places[1],
            move=theirs.move,
            at=round(self._runner.clock.wall(), 3),
            source=theirs.source,
        )
        if not self._source.set_mark(moved, theirs):
            raise _overtaken(self._places[0])
        self._report(CopyProgress(step="moved"))
        if not self._target.set_mark(None, ours):
            raise _overtaken(self._places[1])
        self._report(CopyProgress(step="complete"))
        return StoreCopied(
            source=self._places[0],
            target=self._places[1],
            move=theirs.move,
            items=items,
            entries=entries,
            digest=digest,
            revision=self._target.read().revision,
            resumed=self._resumed,
            warning=self._warning(),
            seconds=self._seconds(),
        )

    def _warning(self) -> str:
        """What the target may lose: commits, or sealed entries above its limit."""
        grades = ("none", "process", "power loss")
        before, after = (store.capabilities.durability for store in (self._source, self._target))
        if grades.index(after) < grades.index(before):
            return (
                f"{self._places[1]} is less durable: a commit there survives {_SURVIVES[after]};"
                " 'interlock doctor' says how to change that"
            )
        from interlock.nouns.record.seal_rules import LIMITS

        sealed = _SEALED.read_if_present(self._target.read(keys.SEALED)[keys.SEALED])
        most = LIMITS.get(self._target.capabilities.engine, LIMITS["etcd"]).sealed
        if sealed is None or sealed.bytes <= most:
            return ""
        return (
            f"the sealed record has {sealed.bytes >> 20} MiB, and {most >> 20} MiB are kept there"
            " by default: raise record.sealed in config.toml, or export the record before agents"
            " start"
        )

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)


class _Pages:
    """The items of a store in the order of their keys, in pages that stay small in bytes.

    Without a prefix: all but liveness, the log, and the engine's own keys.
    """

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store = store
        self._prefix = prefix

    def items(self) -> Iterator[Item]:
        """One by one."""
        for page in self.pages():
            yield from page

    def pages(self, *, times: bool = False) -> Iterator[list[Item]]:
        """Page by page, none of them empty."""
        after, limit, folder = "", _FIRST_PAGE, ""
        while True:
            ref = Range(self._prefix, after, limit)
            found: Snapshot = self._store.read(ref, times=times, fresh=not after)
            items = found.ranges[ref]
            if not items:
                return
            after = items[-1].key
            if page := [with_bytes(item) for item in items if self._wanted(item.key)]:
                yield page
            if not self._prefix and after.startswith((LIVE, LOG)):
                after = _behind(after)
            size = sum(len(item.value) for item in items)
            changed, folder = after.partition("/")[0] != folder, after.partition("/")[0]
            if len(items) < limit:
                return
            limit = _FIRST_PAGE if changed or size > _PAGE_BYTES else min(2 * limit, _MOST_ITEMS)

    def _wanted(self, key: str) -> bool:
        if self._prefix:
            return True
        return key not in ENGINE_KEYS and not key.startswith((LIVE, LOG))


def _behind(key: str) -> str:
    """A key behind all others of its folder, and before those of the next."""
    return key.partition("/")[0] + "/\U0010ffff"


def _entries(store: Store, after: int = 0) -> Iterator[Sequence[Item]]:
    limit = _FIRST_PAGE
    while True:
        ref = Log(after=after, limit=limit)
        found = store.read(ref, fresh=limit == _FIRST_PAGE)
        page = [with_bytes(item) for item in found.ranges[ref]]
        if page:
            yield page
            after = page[-1].revision
        if len(page) < limit:
            return
        limit = min(2 * limit, _MOST_ITEMS)


def _count(store: Store) -> int:
    """How many items a store has, about: for the progress."""
    found = store.info().get("items", 0)
    return found if isinstance(found, int) else 0


def _with_time(item: Item, grain: float) -> Item:
    """A liveness key with all the time that it may have left."""
    left = (item.expires_in or 0.0) + grain
    return Item(
        item.key, item.value, item.revision, item.created, item.entry, item.hash, max(left, 0.001)
    )


def _fingerprint(item: Item) -> bytes:
    head = f"{item.key} {item.revision} {item.created} {item.entry} {item.hash} ".encode()
    return sha256(head + sha256(item.value).digest()).digest()


def _movable(store: Store, place: str) -> MovableStore:
    if not can_be_moved(store):
        raise BadInput(
            f"{place}: the engine {store.capabilities.engine} cannot be copied; name another store"
        )
    return store


def _refuse(mark: StoreMark | None, place: str, *states: str) -> None:
    """Raise if a store has a mark of another purpose."""
    if mark is None or mark.state not in states:
        return
    if mark.state == "backup":
        raise BadInput(f"{place} is a backup of {mark.place}; restore it first")
    raise NotAllowed(f"{place} {mark.words}; name another store")


def _same(place: str) -> BadInput:
    return BadInput(f"{place} is the same store twice; name two stores")


def _elsewhere(place: str, mark: StoreMark) -> NotAllowed:
    return NotAllowed(
        f"{place} is being copied to {mark.place}; name that target, with --abort to take it back"
    )


def _overtaken(place: str) -> StoreBusy:
    return StoreBusy(
        f"another process changed the state of {place} at this moment; look at it with 'interlock"
        " store info', and run this again"
    )


def abort_alone(source: Store, place: str, target: str, trouble: str) -> CopyAborted:
    """Take a move back while its target does not answer.

    That is safe: the target has its mark, and accepts no commits until a run of the same move
    removes it, which needs the mark of the source.
    """
    movable = _movable(source, place)
    mark = movable.mark()
    if mark is None or mark.state != "moving":
        raise NotAllowed(f"{place} is not being copied, so there is nothing to take back")
    if not movable.set_mark(None, mark):
        raise _overtaken(place)
    return CopyAborted(source=place, target=target, opened=True, left=trouble)


def abort_lost(source: Store | None, target: Store, places: tuple[str, str]) -> CopyAborted:
    """Empty a target whose source is lost for good; ``source`` is the store found in its place.

    The caller has to say that it is lost: a source that only does not answer may be ``moved``
    already, and then this is all that is left of it.
    """
    movable = _movable(target, places[1])
    ours = movable.mark()
    if ours is None or ours.state != "filling":
        raise NotAllowed(f"{places[1]} is not being filled, so there is nothing to take back")
    if source is not None and _fills(source, places[0], ours):
        raise NotAllowed(
            f"{places[0]} is not lost: continue the copy, or take it back without --lost"
        )
    if ours.place != places[0]:
        raise NotAllowed(f"{places[1]} {ours.words}; if that one is lost, name it")
    erased = _erase(movable, places[1], ours)
    return CopyAborted(source=places[0], target=places[1], lost=True, erased=erased)


def _fills(source: Store, place: str, ours: StoreMark) -> bool:
    """Whether a target has the remains of a move of this source.

    The place alone is not enough: another machine may have a store at the same path.  The id alone
    is not enough either: a restored backup has the same one.
    """
    item = source.read(keys.STORE_ID)[keys.STORE_ID]
    return (ours.place, ours.source) == (place, _ID.read_if_present(item) or "")


def _erase(target: MovableStore, place: str, ours: StoreMark) -> int:
    """Delete the copied items, and let the target be used again; returns how much it was."""
    total = 0
    while gone := target.erase(ours.move):
        total += gone
    if not target.set_mark(None, ours):
        raise _overtaken(place)
    return total


def record_restore(store: Store, backup: str, place: str, *, signer: Signer | None = None) -> None:
    """Write into the record that its end was replaced by a backup: everything later is missing."""
    runner = Runner(store, signer=signer)
    now = round(runner.clock.wall(), 3)

    def note() -> DecideOp[str]:
        before = _MOVE.read_if_present((yield (keys.MOVE,)).items[keys.MOVE])
        loose = before is not None and before.loose
        found = MoveNote(
            source=backup, target=place, move=runner.new_id("mov"), at=now, loose=loose
        )
        return Decision(
            outcome="restored", verb="store.restore", thing="store", puts=(Write(keys.MOVE, found),)
        )

    drive(runner.change(note, Actor()), store)
