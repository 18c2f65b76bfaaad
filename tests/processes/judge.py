"""Whether what processes were told agrees with each other, and with the record."""

from __future__ import annotations

import glob
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import apsw
import msgspec

from interlock.core.log import Entry


class Note(NamedTuple):
    """One line of a process."""

    word: str
    lock: str
    token: int
    rest: list[str]


class Stay(NamedTuple):
    """A holder that could rely on its lock from begin to end."""

    token: int
    begin: float
    end: float
    file: str


def notes(pattern: str) -> dict[str, list[Note]]:
    """What every process wrote down."""
    found: dict[str, list[Note]] = {}
    for name in glob.glob(pattern):
        with open(name, encoding="ascii") as file:
            lines = [line.split() for line in file if line.endswith("\n")]
        found[name] = [Note(w[0], w[1], int(w[2]), w[3:]) for w in lines if w[0] != "no"]
    return found


def one_holder(books: dict[str, list[Note]]) -> Counter[str]:
    """Nobody held a lock beside anybody else, and tokens tell the order; returns the shares."""
    stays: dict[str, list[Stay]] = {}
    shares: Counter[str] = Counter()
    for name, book in books.items():
        for note in book:
            if note.word == "had" and note.rest[2] == "kept":
                begin, end = float(note.rest[0]), float(note.rest[1])
                stays.setdefault(note.lock, []).append(Stay(note.token, begin, end, name))
                shares[name] += 1
    for lock, found in stays.items():
        found.sort()
        for before, after in pairwise(found):
            assert before.token < after.token, (lock, before, after)
            assert before.end <= after.begin, (lock, before, after)
    tokens = [(n.lock, n.token) for book in books.values() for n in book if n.word == "got"]
    assert len(tokens) == len(set(tokens)), "a token was given twice"
    return shares


def nothing_lost(path: str, books: dict[str, list[Note]]) -> None:
    """Whatever a process was told is in the record."""
    entries = read_log(path)
    acquired: dict[str, set[int]] = {}
    released: Counter[tuple[str, str]] = Counter()
    for revision, entry in entries.items():
        if any(event.name == "lock:acquired" for event in entry.events):
            acquired.setdefault(entry.thing, set()).add(revision)
        if entry.verb == "lock.release" and entry.outcome == "released":
            released[entry.session, entry.thing] += 1
    told: Counter[tuple[str, str]] = Counter()
    for book in books.values():
        for note in book:
            if note.word == "got":
                assert note.token in acquired.get(f"lock/{note.lock}", ()), note
            if note.word == "gave" and note.rest[0] == "Released":
                told[note.rest[1], f"lock/{note.lock}"] += 1
    assert all(released[key] >= many for key, many in told.items())


def ask(path: str, sql: str) -> list[Any]:
    """The rows that a question has."""
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def read_log(path: str) -> dict[int, Entry]:
    """The record by revision."""
    rows = ask(path, "SELECT revision, value FROM log ORDER BY revision")
    decode = msgspec.json.Decoder(Entry).decode
    return {int(revision): decode(value) for revision, value in rows}


def sound(path: str) -> int:
    """The file is whole, and every item agrees with the entry that wrote it; how many there are."""
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]
    items = ask(
        path,
        "SELECT key, item.value, item.revision, item.hash, log.value, log.revision, log.hash"
        " FROM item LEFT JOIN log ON log.id = item.entry WHERE expires IS NULL",
    )
    entries = ask(path, "SELECT revision, value, hash FROM log ORDER BY revision")
    for key, value, revision, hash_, entry, entry_revision, entry_hash in items:
        assert revision == entry_revision, key
        assert hash_ == entry_hash == sha256(entry).hexdigest(), key
        assert msgspec.json.decode(entry)["put"][key] == sha256(value).hexdigest(), key
    revisions = [revision for revision, _, _ in entries]
    assert revisions == sorted(set(revisions))
    assert all(sha256(value).hexdigest() == hash_ for _, value, hash_ in entries)
    return len(entries)
