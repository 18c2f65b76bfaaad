"""The replica: a SQLite file in the cache that holds what the branch says, for one host.

It is the SQLite store's own file with a few tables more.  A transaction of this host runs in it as
on SQLite, and becomes a batch; the batches of other hosts are replayed.  So decisions and reads are
local, and every process of the host sees what one of them fetched.

    replica  where it stands (head, batch, digest), who it is (host), and the state of turns
    life     for each liveness key its ttl, the host that put it, how late it may have been seen,
             and whether the beats of its host renew it
    beat     where the beat ref of each host was last seen
    peer     when a batch of another host was last seen

Liveness: the ttl of a key of another host starts when its batch is seen here, so no host ends a key
early.  ``expires_in`` promises less: another host may have seen the key sooner, and end it sooner,
by the time since the look before the one that brought it (``lag``).  A host that has not looked for
longer than that knows only that the key lives (``ALIVE``).

A transaction judges all keys by the moment of its begin.  Keys that expired by then are deleted in
it and named in its batch.  A transaction that writes nothing is rolled back, so a row stays until a
batch says that it is gone: ``created`` must be the same on all hosts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import apsw
from msgspec import Struct
from msgspec.structs import replace

from interlock.errors import InterlockError, StoreDamaged, StoreNewer
from interlock.store import ALIVE, LIVE, Item, StoreMark, Txn
from interlock.stores.git import batch as batches
from interlock.stores.git import checkpoint
from interlock.stores.git.batch import BATCHES, BatchHead, DecodedBatch
from interlock.stores.git.objects import FILE, FOLDER, Tree, TreeEntry
from interlock.stores.git.repository import Repository
from interlock.stores.marks import decode_mark
from interlock.stores.sqlite.connection import NANO, ReadConnection, Row, WriteConnection
from interlock.stores.sqlite.files import OpenFiles
from interlock.stores.sqlite.notify import CommitNote
from interlock.stores.sqlite.wal import RemoteWal

FORMAT = 1
MARKER = "interlock.json"
"""The file of the branch that says what it is."""
_ABOUT = b"""{"format": %d,
 "about": "A store of Interlock. batches/ is the truth, state/ is a copy of it to read.",
 "warning": "Commits here are made by programs; do not rewrite this branch."}
"""
_TABLES = """
CREATE TABLE IF NOT EXISTS replica (name TEXT NOT NULL PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS life (
  key TEXT NOT NULL PRIMARY KEY, ttl INTEGER NOT NULL, lag INTEGER NOT NULL, host TEXT NOT NULL,
  beat INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS beat (host TEXT NOT NULL PRIMARY KEY, oid TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS peer (host TEXT NOT NULL PRIMARY KEY, seen INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS expiring ON item (expires) WHERE expires IS NOT NULL;
CREATE TRIGGER IF NOT EXISTS life_ends AFTER DELETE ON item WHEN OLD.expires IS NOT NULL BEGIN
  DELETE FROM life WHERE key = OLD.key; END;
"""
_EXPIRED = """SELECT item.key, host, beat FROM item JOIN life USING (key)
  WHERE expires <= ?"""
_DELETE = "DELETE FROM item WHERE key = ?"
_LIFE = "INSERT OR REPLACE INTO life VALUES (?, ?, ?, ?, 0)"
_BEATS = "UPDATE life SET beat = 1 WHERE key = ? AND host = ?"
_LAG = "SELECT lag FROM life WHERE key = ?"
_SET = "INSERT OR REPLACE INTO replica VALUES (?, ?)"
_LOADED = "SELECT max(value) FROM meta WHERE name = 'loaded'"
_NEVER = -1


class Position(Struct, frozen=True, kw_only=True):
    """How far the replica follows the branch: its commit, the last batch and that one's digest.

    ``grown`` is the bytes of the batches since the last checkpoint.
    """

    head: str = ""
    batch: int = 0
    digest: str = ""
    looked: int = 0
    grown: int = 0


class MadeCommit(Struct, frozen=True):
    """A commit that is not pushed yet, and where the replica stands once it is."""

    commit: str
    position: Position
    full: bool = False


def establish(db: apsw.Connection, boot: str, host: str) -> None:
    """Add the tables of a replica; after a reboot every ttl starts again, since clocks did.

    A replica that has all of this is not written to: another process may be in a long push.
    """
    if _established(db, boot):
        return
    with db:
        db.execute(_TABLES)
        db.execute("INSERT OR IGNORE INTO replica VALUES ('host', ?)", (host,))
        found = db.execute("SELECT value FROM meta WHERE name = 'boot'").fetchone()
        if found is None or found[0] != boot:
            now = monotonic()
            db.execute("UPDATE life SET lag = ttl")
            db.execute(
                "UPDATE item SET expires = ? + (SELECT ttl FROM life WHERE life.key = item.key)"
                " WHERE expires IS NOT NULL",
                (now,),
            )
            db.execute(
                "DELETE FROM replica WHERE name IN ('turn', 'looked', 'beats_looked', 'beaten')"
            )
            db.execute("DELETE FROM peer")
            db.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (boot,))


def _established(db: apsw.Connection, boot: str) -> bool:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'life_ends'").fetchone():
        return False
    rows = db.execute("SELECT value FROM meta WHERE name = 'boot'").fetchall()
    return rows == [(boot,)]


def discard(folder: str) -> None:
    """Take a broken cache out of the way: a process that still uses it notices that it is gone."""
    aside = f"{folder}.broken"
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process was faster
        os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def host_of(db: apsw.Connection) -> str:
    """The name of this host among those that share the remote."""
    rows = db.execute("SELECT value FROM replica WHERE name = 'host'").fetchall()
    return str(rows[0][0])


def read_facts(reader: ReadConnection) -> tuple[Position, dict[str, object]]:
    """Where the replica stands, and all that it remembers."""
    rows = reader.db.execute("SELECT name, value FROM replica").fetchall()
    found: dict[str, Any] = {str(name): value for name, value in rows}
    known = {name: found[name] for name in Position.__struct_fields__ if name in found}
    return Position(**known), found


def monotonic() -> int:
    """Nanoseconds that all processes of this boot share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def marker() -> bytes:
    """The content of the file that says what the branch is."""
    return _ABOUT % FORMAT


class ReplicaReader(ReadConnection):
    """Reads the replica as a caller sees it now."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(db)
        self.make_item = lambda row: living_item(self, row, monotonic())


def living_item(reader: ReadConnection, row: Row, now: int) -> Item | None:
    """The item of a row at a moment; a liveness key lives at least as long as another host says."""
    key, value, revision, created, entry, hash_, expires = row
    if expires is None:
        return Item(key, value, revision, created, entry, hash_)
    if expires <= now:
        return None
    left = (expires - now - int(reader.one(_LAG, (key,))[0])) / NANO
    return Item(key, value, revision, created, entry, hash_, max(left, ALIVE))


class ReplicaConnection(WriteConnection):
    """Runs the works of this host, replays the batches of the others."""

    sends_written = False  # a batch of another host may be old by the time it is replayed
    make_wal = RemoteWal

    def __init__(
        self,
        db: apsw.Connection,
        path: str,
        notify: Callable[[Sequence[CommitNote]], None],
        files: OpenFiles,
        repository: Repository,
    ) -> None:
        self.host = host_of(db)
        self.position = Position()
        self.looked = 0
        """When this process last began to look and found nothing newer."""
        self._repository = repository
        self.begins_history = False
        """Whether the commit of this transaction has no parent, since the history became long."""
        self.refused: list[str] = []
        """What the remote refused beside the batch; the next attempts of the group go without."""
        self._start = 0
        self._txns: list[Txn] = []
        self._dead: list[str] = []
        self.beating: list[str] = []
        """The keys that the beats of this host renew from this transaction on."""
        self._mark: str | None = None
        self._loaded: list[Item] = []
        self._erased = False
        self.ended: set[str] = set()
        """The hosts with beats of which this transaction ends keys."""
        self._swept = False
        self._trimmed = 0
        super().__init__(db, path, notify, files)
        self.make_item = lambda row: living_item(self, row, self._start)
        self.shown = repository.shown

    def translated(self, error: apsw.Error, db: apsw.Connection | None = None) -> InterlockError:
        """The engine's complaint in our words; a damaged replica is removed, since it is a copy."""
        broken = isinstance(error, apsw.CorruptError | apsw.NotADBError)
        if broken and not self.files.recheck():  # no other process has made it again
            folder = os.path.dirname(self._path)
            discard(folder)
            return StoreDamaged(
                f"the copy of {self.shown} in {folder} was damaged ({error}) and is removed;"
                " connect again: it is made again from the remote"
            )
        return super().translated(error, db)

    # ---- the transaction of this host

    def begin(self, wait: float) -> None:
        """Open the transaction, and delete the keys that expired by now."""
        self.begin_replay(wait)
        rows = self._execute(_EXPIRED, (self._start,)).fetchall()
        for key, host, beat in cast("list[tuple[str, str, int]]", rows):
            self._execute(_DELETE, (key,))
            self._dead.append(key)
            if beat and host != self.host:
                self.ended.add(host)

    def begin_replay(self, wait: float) -> None:
        """Open the transaction, and leave expired keys to the batches."""
        super().begin(wait)
        self._start = monotonic()
        self._txns, self._dead, self.beating, self._swept, self._trimmed = [], [], [], False, 0
        self._mark, self._loaded, self._erased = None, [], False
        self.ended = set()
        self.begins_history = False
        self.position = self.read_position()

    def read_position(self) -> Position:
        """Where the replica stands."""
        return read_facts(self)[0]

    def times(self) -> tuple[int, int]:
        """The moment of the begin; expired keys are deleted already."""
        return self._start, _NEVER

    def sweep(self, now: int) -> int:  # noqa: ARG002 - the begin of the transaction counts
        """Expired keys are gone since the begin: only publish that."""
        self._swept = bool(self._dead)
        return len(self._dead)

    def trim(self, revision: int) -> int:
        """Delete the oldest entries up to a revision, for all hosts."""
        number = super().trim(revision)
        if number:
            self._trimmed = int(self.one("SELECT value FROM meta WHERE name='trimmed'")[0])
        return number

    def set_mark(self, new: StoreMark | None) -> None:
        """Replace the mark, for all hosts; none of them beats without a look from then on."""
        super().set_mark(new)
        self._mark = self._standing_mark()
        rows = self._execute("SELECT DISTINCT host FROM life WHERE beat = 1").fetchall()
        self.ended.update({str(row[0]) for row in rows} - {self.host})

    def load(self, items: Sequence[Item]) -> None:
        """Write items as they are, for all hosts."""
        self._load_items(items, self.host)
        self._loaded += items

    def erase(self) -> int:
        """Delete some of the loaded items, for all hosts."""
        gone = super().erase()
        self._erased = gone > 0
        return gone

    def _standing_mark(self) -> str:
        found = self.one("SELECT value FROM meta WHERE name = 'quiet'")[0]
        return found if isinstance(found, str) else ""

    def _load_items(self, items: Sequence[Item], host: str) -> None:
        super().load(items)
        for item in items:
            if item.expires_in is not None:
                self._execute(_LIFE, (item.key, int(item.expires_in * NANO), 0, host))

    def let_beat(self, keys: Iterable[str]) -> None:
        """Have the beats of this host renew these keys from this transaction on."""
        for key in sorted(keys):
            self._execute(_BEATS, (key, self.host))
            self.beating.append(key)

    def own_dead(self) -> bool:
        """Whether a key of this host expired that only this host can end for all."""
        row = self._execute(
            "SELECT 1 FROM item JOIN life USING (key) WHERE expires <= ? AND host = ? AND beat = 1",
            (self._start, self.host),
        ).fetchone()
        return row is not None

    @property
    def start(self) -> int:
        """The moment of the begin of the transaction."""
        return self._start

    def make_commit(self) -> MadeCommit | None:
        """Write the commit of this transaction, and where it leads; None if it changes nothing."""
        moved = self._mark is not None or self._loaded or self._erased
        if not (self._txns or self._swept or self._trimmed or moved):
            return None
        import uuid

        number, grown = self.position.batch + 1, self.position.grown
        full = self.near_checkpoint() or self._outgrown(grown)
        head = BatchHead(
            batch=number,
            before=self.position.digest,
            id=uuid.uuid4().hex,
            host=self.host,
            revision=self._last - len(self._txns),
            dead=tuple(self._dead),
            beats=tuple(self.beating),
            trimmed=self._trimmed,
            mark=self._mark,
            full=full,
            loaded=len(self._loaded),
            erased=self._erased,
        )
        file = batches.encode(head, self._txns, self._loaded)
        digest = batches.digest(file)
        root = self._with_batch(self._repository.root(self.position.head), number, file)
        parent, message = self.position.head, batches.message(self._txns, head)
        if full:
            root = self._with_checkpoint(root, number, digest, grown + len(file))
            if self.begins_history:
                message += f"Continues: {parent}\n"
                parent = ""
        tree = self._repository.write_tree(root)
        commit = self._repository.write_commit(tree, parent, message)
        grown = 0 if full else grown + len(file)
        after = Position(head=commit, batch=number, digest=digest, grown=grown, looked=self._start)
        return MadeCommit(commit, after, full)

    def advance(self, position: Position) -> None:
        """Note where the replica stands after this transaction."""
        for name in Position.__struct_fields__:
            self.remember(name, getattr(position, name))
        self.position = position

    def remember(self, name: str, value: object) -> None:
        """Keep a fact of the host with this transaction."""
        self._execute(_SET, (name, value))

    def takes(self, refusal: str) -> bool:
        """Whether the remote may take what it refused to another host, or at another time."""
        return refusal not in self.refused and not self.recall(refusal)

    def recall(self, name: str) -> int:
        """A number of the host; 0 if there is none."""
        found = self._execute("SELECT value FROM replica WHERE name = ?", (name,)).fetchone()
        return 0 if found is None else int(found[0])

    def read_last(self) -> str:
        """The host that committed last, as far as this one knows."""
        found = self._execute("SELECT value FROM replica WHERE name = 'last'").fetchone()
        return "" if found is None else str(found[0])

    def _apply(self, txn: Txn) -> None:
        for key in (*(put.key for put in txn.puts), *txn.deletes):
            if key.startswith(LIVE):  # its host must not renew it any more without a look
                rows = self._execute("SELECT host FROM life WHERE key = ? AND beat = 1", (key,))
                self.ended.update({str(row[0]) for row in rows.fetchall()} - {self.host})
        super()._apply(txn)
        self._txns.append(txn)
        self._keep_lives(txn, self.host, 0)

    def _keep_lives(self, txn: Txn, host: str, lag: int) -> None:
        for put in txn.puts:
            if put.ttl is not None:
                self._execute(_LIFE, (put.key, int(put.ttl * NANO), lag, host))

    def _with_batch(self, root: Tree, number: int, file: bytes) -> Tree:
        """The root with one batch more."""
        repository = self._repository
        all_ = dict(repository.subtree(root, BATCHES))
        folder = dict(repository.subtree(all_, batches.folder(number)))
        _add(folder, FILE, batches.name(number), repository.write("blob", file))
        _add(all_, FOLDER, batches.folder(number), repository.write_tree(folder))
        _add(found := dict(root), FOLDER, BATCHES, repository.write_tree(all_))
        return found

    def near_checkpoint(self) -> bool:
        """Whether the next batch has a checkpoint by its number."""
        return (self.position.batch + 1) % checkpoint.EVERY == 0

    def _outgrown(self, grown: int) -> bool:
        """Whether the batches since the last checkpoint are larger than a checkpoint is."""
        if grown < checkpoint.GROWN:
            return False
        facts = checkpoint.facts_of(self._repository, self._repository.root(self.position.head))
        return facts is None or grown >= facts.added

    def _with_checkpoint(self, root: Tree, number: int, digest: str, grown: int) -> Tree:
        """The root with a checkpoint after this batch; it may be the root of a new history."""
        repository, now = self._repository, time.time()
        trimmed = int(self.one("SELECT value FROM meta WHERE name = 'trimmed'")[0])
        before = checkpoint.facts_of(repository, root)
        state, added = checkpoint.write_state(repository, self.db, root, before, trimmed)
        facts = checkpoint.CheckpointFacts(
            batch=number,
            digest=digest,
            revision=self._last,
            trimmed=trimmed,
            root=0 if before is None else before.root,
            began=now if before is None else before.began,
            size=(0 if before is None else before.size) + grown + added,
            added=added,
            mark=self._standing_mark(),
            loaded=int((self.one(_LOADED)[0]) or 0),
        )
        if facts.outgrown(now) and self._may_begin(number):
            self.begins_history = True
            facts = replace(facts, root=number, began=now, size=added)
        return checkpoint.replace_state(repository, root, state, facts, before)

    def _may_begin(self, number: int) -> bool:
        """Whether the remote may let a new history begin: if it refused, not soon again."""
        refused = self.recall("whole_history")
        again = not refused or number - refused >= checkpoint.HISTORY
        return again and "whole_history" not in self.refused

    # ---- the batches of others

    def catch_up(self, head: str) -> None:
        """Replay what the branch has at this commit, in one transaction."""
        self.begin_replay(10.0)
        try:
            if head != self.position.head:
                self._replay_all(head)
            self.advance(replace(self.position, head=head, looked=self._start))
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def holds(self, head: str, made: MadeCommit) -> bool:
        """Whether a commit of the branch has the batch of one that was made here."""
        file = self._batch_file(self._repository.root(head), made.position.batch)
        return file is not None and batches.digest(file) == made.position.digest

    def _replay_all(self, head: str) -> None:
        root = self._repository.root(head)
        if self.position.head and MARKER not in root:
            raise self._rewritten(None)
        self._check_format(root)
        last = last_batch(self._repository, root)
        mine = self._batch_file(root, self.position.batch)
        if last < self.position.batch or (
            mine is not None and batches.digest(mine) != self.position.digest
        ):
            raise self._rewritten(last)
        lag = monotonic() - max(self.position.looked, self.looked)
        if self.position.batch < last and self._batch_file(root, self.position.batch + 1) is None:
            self._load(root)
        for number in range(self.position.batch + 1, last + 1):
            file = self._batch_file(root, number)
            if file is None:
                raise self._rewritten(last)
            found = self._decoded(number, file)
            self._replay(found, lag)
            grown = 0 if found.head.full else self.position.grown + len(file)
            self.position = replace(self.position, grown=grown)

    def _load(self, root: Tree) -> None:
        """The next batch left the branch: start again from the checkpoint."""
        facts = checkpoint.load(self._repository, self.db, root, self._start)
        if facts.batch < self.position.batch or facts.revision < self._last:
            raise self._rewritten(facts.batch)
        self._cache.clear()
        self._last, self.mark = self.standing()
        self.position = replace(self.position, batch=facts.batch, digest=facts.digest, grown=0)

    def _replay(self, found: DecodedBatch, lag: int) -> None:
        head = found.head
        if head.before != self.position.digest or head.revision != self._last:
            raise self._rewritten(head.batch)
        for key in head.dead:
            self._cache.pop(key, None)
            self._execute(_DELETE, (key,))
        for txn in found.txns:
            super()._apply(txn)
            self._keep_lives(txn, head.host, lag)
        for key in head.beats:
            self._execute(_BEATS, (key, head.host))
        self._replay_move(found)
        if head.trimmed:
            self._quiet = self._last
            self._execute("UPDATE meta SET value = ? WHERE name = 'trimmed'", (head.trimmed,))
            self._execute("DELETE FROM log WHERE revision <= ?", (head.trimmed,))
        if head.host != self.host:
            self.remember("wins", 0)
            self._execute("INSERT OR REPLACE INTO peer VALUES (?, ?)", (head.host, self._start))
        self.remember("last", head.host)
        self.position = replace(self.position, batch=head.batch, digest=found.digest)

    def _replay_move(self, found: DecodedBatch) -> None:
        head = found.head
        if found.items:
            self._load_items(found.items, head.host)
        if head.erased:
            super().erase()
        if head.mark is not None:
            super().set_mark(decode_mark(head.mark) if head.mark else None)
            self._last, self.mark = self.standing()

    def _batch_file(self, root: Tree, number: int) -> bytes | None:
        all_ = self._repository.subtree(root, BATCHES)
        folder = self._repository.subtree(all_, batches.folder(number))
        return self._repository.file(folder, batches.name(number))

    def _decoded(self, number: int, file: bytes) -> DecodedBatch:
        with suppress(ValueError):
            found = batches.decode(file)
            if found.head.batch == number:
                return found
        raise StoreDamaged(
            f"batch {number} of {self._repository.shown} is none (another program wrote it?);"
            " put the branch back to a commit before that one"
        )

    def _check_format(self, root: Tree) -> None:
        content = self._repository.file(root, MARKER)
        check_marker(content or b"", self._repository.shown)

    def _rewritten(self, found: int | None) -> StoreDamaged:
        """The error of a branch without what this host has seen; None if it is no store at all."""
        where, mine = self._repository.shown, self.position
        what = "a commit of no store" if found is None else f"batch {found} without it"
        return StoreDamaged(
            f"the history of {where} was rewritten: this host has seen batch {mine.batch} in commit"
            f" {mine.head[:12]}, and the branch leads to {what}; put it back:"
            f" {self._repository.way(mine.head)}; or, to accept the loss, stop all agents and"
            f" remove {os.path.dirname(self._repository.path)} on every host"
        )


def check_marker(content: bytes, where: str) -> None:
    """Raise if the branch is no store, or one of a later version."""
    import msgspec

    try:
        number = msgspec.json.decode(content)["format"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise StoreDamaged(
            f"the branch of {where} has no {MARKER} of a store; name a branch of its own: ?branch="
        ) from None
    if number != FORMAT:
        raise StoreNewer(
            f"{where} has format {number}, this Interlock knows {FORMAT}; install a newer interlock"
        )


def last_batch(repository: Repository, root: Tree) -> int:
    """The number of the latest batch in a tree; 0 if it has none."""
    all_ = repository.subtree(root, BATCHES)
    if not all_:
        return 0
    newest = repository.subtree(all_, max(all_))
    return max((batches.number_of(name) for name in newest), default=0)


def _add(tree: Tree, mode: str, name: str, oid: str) -> None:
    tree[name] = TreeEntry(mode, name, oid)
