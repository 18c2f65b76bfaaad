"""The checkpoint: the state of the store as files of the branch, for people and for cold starts.

    state/checkpoint.json        the batch that it is a copy of
    state/items/locks.jsonl      the items under locks/, one a line
    state/items/tasks/3f.jsonl   many items are spread over files, by a hash of their keys
    state/log/0000012.jsonl      the log, 256 revisions a file

The commit of every 256th batch, or after some megabytes of batches, writes it again, as it is after
that batch, and then drops the batches before the checkpoint before: a host that is farther behind
than the batches reach, or a new one, loads the checkpoint and goes on from there.  So no reader
needs the history, and the history may be cut: a commit without a parent and with the same files is
a good root.  A checkpoint is such a root once the history is long, large or old (``outgrown``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Raw, Struct

from interlock.stores.git.batch import (
    BATCHES,
    IN_FOLDER,
    from_raw,
    to_raw,
)
from interlock.stores.git.objects import FILE, FOLDER, Tree, TreeEntry
from interlock.stores.git.repository import Repository
from interlock.stores.sqlite.connection import NANO

if TYPE_CHECKING:
    import apsw

EVERY = 256
"""Batches between two checkpoints."""
GROWN = 4 << 20
"""Bytes of batches after which a checkpoint is due, unless the one before was larger."""
HISTORY, LARGE, OLD = 20_000, 32 << 20, 30 * 86_400.0
"""Batches, bytes and seconds of a history after which a checkpoint begins a new one."""
_LARGE_IN_CHECKPOINTS = 4
STATE = "state"
_FACTS = "checkpoint.json"
_IN_LOG = 256
_IN_FILE = 256
_ITEMS = """SELECT item.key, value, revision, created, entry, hash, ttl, host, beat
  FROM item LEFT JOIN life USING (key) ORDER BY item.key"""
_LOG = """SELECT revision, id, value, hash, touched FROM log
  WHERE revision < ? OR revision >= ? ORDER BY revision"""
_ITEM = "INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?)"
_LIFE = "INSERT INTO life VALUES (?, ?, ?, ?, ?)"


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """What a checkpoint is a copy of, and how far the history goes back from it.

    root   the batch with which the history begins
    began  the time of that, by the clock of the host that wrote it
    size   bytes of the history since then: its batches, and what checkpoints added to the files
    added  what this checkpoint added to the files
    """

    batch: int
    digest: str
    revision: int
    trimmed: int
    root: int = 0
    began: float = 0.0
    size: int = 0
    added: int = 0
    mark: str = ""
    loaded: int = 0

    def outgrown(self, now: float) -> bool:
        """Whether the history is long, large or old enough to begin a new one."""
        return (
            self.batch - self.root >= HISTORY
            or self.size >= max(LARGE, _LARGE_IN_CHECKPOINTS * self.added)
            or abs(now - self.began) >= OLD  # also if the clock was wrong by that
        )


class ItemLine(Struct, frozen=True, omit_defaults=True):
    """An item in a file; ``ttl``, ``host`` and ``beat`` are those of a liveness key."""

    key: str
    value: Raw
    revision: int
    created: int
    entry: str = ""
    hash: str = ""
    ttl: float | None = None
    host: str = ""
    beat: bool = False


class EntryLine(Struct, frozen=True, omit_defaults=True):
    """An entry of the log in a file."""

    revision: int
    id: str
    value: Raw
    hash: str = ""
    touched: str = ""


def write_state(
    repository: Repository,
    db: apsw.Connection,
    root: Tree,
    earlier: CheckpointFacts | None,
    trimmed: int,
) -> tuple[Tree, int]:
    """The folder of a checkpoint of what the transaction sees, and the bytes that are new in it.

    Its facts are still to come.
    """
    before = repository.subtree(root, STATE)
    old = set(_files(repository, before))
    if earlier is not None and earlier.mark:
        before = {}  # entries that were loaded then may have been erased since
    state: Tree = {}
    _put(state, FOLDER, "items", repository.write_tree(_items(repository, db)))
    log = _log(repository, db, repository.subtree(before, "log"), trimmed)
    _put(state, FOLDER, "log", repository.write_tree(log))
    new = set(_files(repository, state)) - old
    return state, sum(map(repository.loose_size, new))


def replace_state(
    repository: Repository,
    root: Tree,
    state: Tree,
    facts: CheckpointFacts,
    earlier: CheckpointFacts | None,
) -> Tree:
    """The root with this checkpoint, and without the batches before the earlier one."""
    _put(state, FILE, _FACTS, repository.write("blob", msgspec.json.encode(facts) + b"\n"))
    found = dict(root)
    _put(found, FOLDER, STATE, repository.write_tree(state))
    oldest = 0 if earlier is None else earlier.batch // IN_FOLDER
    kept = {
        name: entry
        for name, entry in repository.subtree(root, BATCHES).items()
        if not name.isdigit() or int(name) >= oldest
    }
    _put(found, FOLDER, BATCHES, repository.write_tree(kept))
    return found


def facts_of(repository: Repository, root: Tree) -> CheckpointFacts | None:
    """The facts of the checkpoint in a tree; None if it has none yet."""
    content = repository.file(repository.subtree(root, STATE), _FACTS)
    return None if content is None else msgspec.json.decode(content, type=CheckpointFacts)


def load(repository: Repository, db: apsw.Connection, root: Tree, now: int) -> CheckpointFacts:
    """Replace everything in the replica by the checkpoint; every ttl starts now."""
    facts = facts_of(repository, root)
    if facts is None:
        raise repository.incomplete(f"{STATE}/{_FACTS}")
    state = repository.subtree(root, STATE)
    for table in ("item", "log", "life"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
    items = msgspec.json.Decoder(ItemLine)
    for oid in _files(repository, repository.subtree(state, "items")):
        for line in items.decode_lines(repository.blob(oid)):
            ttl = None if line.ttl is None else int(line.ttl * NANO)
            stamp = (line.revision, line.created, line.entry, line.hash)
            expires = None if ttl is None else now + ttl
            db.execute(_ITEM, (line.key, from_raw(line.value), *stamp, expires))
            if ttl is not None:
                db.execute(_LIFE, (line.key, ttl, ttl, line.host, int(line.beat)))
    entries = msgspec.json.Decoder(EntryLine)
    for oid in _files(repository, repository.subtree(state, "log")):
        for entry in entries.decode_lines(repository.blob(oid)):
            row = (entry.revision, entry.id, from_raw(entry.value), entry.hash, entry.touched)
            db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?)", row)
    known = {"quiet": facts.mark or facts.revision, "trimmed": facts.trimmed}
    for name, value in (known | {"loaded": facts.loaded}).items():
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
    return facts


def _items(repository: Repository, db: apsw.Connection) -> Tree:
    folders: dict[str, list[ItemLine]] = {}
    for row in db.execute(_ITEMS):
        key, value, revision, created, entry, hash_, ttl, host, beat = cast(
            "tuple[str, bytes, int, int, str, str, int | None, str | None, int | None]", row
        )
        line = ItemLine(
            key, to_raw(value), revision, created, entry, hash_,
            None if ttl is None else ttl / NANO, host or "", bool(beat),
        )  # fmt: skip
        folders.setdefault(key.partition("/")[0], []).append(line)
    found: Tree = {}
    for folder, lines in folders.items():
        name = _file_name(folder)
        if len(lines) <= _IN_FILE:
            _put(found, FILE, f"{name}.jsonl", _write_lines(repository, lines))
        else:
            _put(found, FOLDER, name, repository.write_tree(_spread(repository, lines)))
    return found


def _spread(repository: Repository, lines: list[ItemLine]) -> Tree:
    """Many items: over 16 files or 256, so that a change of a few rewrites little."""
    digits = 1 if len(lines) <= 16 * _IN_FILE else 2
    parts: dict[str, list[ItemLine]] = {}
    for line in lines:
        part = hashlib.sha256(line.key.encode()).hexdigest()[:digits]
        parts.setdefault(part, []).append(line)
    found: Tree = {}
    for part, some in parts.items():
        _put(found, FILE, f"{part}.jsonl", _write_lines(repository, some))
    return found


def _log(repository: Repository, db: apsw.Connection, before: Tree, trimmed: int) -> Tree:
    """The files of the log: those that were full before, and of which nothing was trimmed, stay."""
    whole = sorted(before)[:-1]  # the last one may have been written before it was full
    found = {name: before[name] for name in whole if trimmed < max(1, _first_in(name))}
    begins = _first_in(min(found)) if found else 0
    ends = _first_in(max(found)) + _IN_LOG if found else 0
    parts: dict[int, list[EntryLine]] = {}
    for row in db.execute(_LOG, (begins, ends)):
        revision, id_, value, hash_, touched = cast("tuple[int, str, bytes, str, str]", row)
        line = EntryLine(revision, id_, to_raw(value), hash_, touched)
        parts.setdefault(revision // _IN_LOG, []).append(line)
    for part, lines in parts.items():
        _put(found, FILE, f"{part:07}.jsonl", _write_lines(repository, lines))
    return found


def _first_in(name: str) -> int:
    """The lowest revision that a file of the log may have; the first one of a store is 1."""
    return int(name[:7]) * _IN_LOG


def _files(repository: Repository, tree: Tree) -> Iterable[str]:
    for entry in tree.values():
        if "." in entry.name:
            yield repository.require(entry, FILE).oid
        else:
            yield from _files(repository, repository.subtree(tree, entry.name))


def _write_lines(repository: Repository, lines: Iterable[Struct]) -> str:
    return repository.write("blob", msgspec.json.Encoder().encode_lines(list(lines)))


def _file_name(folder: str) -> str:
    """The name of a file for a folder of keys."""
    plain = folder.isascii() and folder.replace("-", "").replace("_", "").isalnum()
    return folder if plain else "other-" + hashlib.sha256(folder.encode()).hexdigest()[:8]


def _put(tree: Tree, mode: str, name: str, oid: str) -> None:
    tree[name] = TreeEntry(mode, name, oid)
