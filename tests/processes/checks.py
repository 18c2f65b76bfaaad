"""Checks that the notes of all processes agree with each other, and with the record."""

from __future__ import annotations

import glob
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import interlock
from interlock.core import keys
from interlock.core.entry import Entry
from interlock.testing.audit import audit


class Note(NamedTuple):
    """One line in the notes of a process."""

    word: str
    lock: str
    token: int
    rest: list[str]


class HeldSpan(NamedTuple):
    """A time in which a holder could rely on its lock."""

    token: int
    begin: float
    end: float
    file: str


def notes(pattern: str) -> dict[str, list[Note]]:
    """The notes of every process."""
    found: dict[str, list[Note]] = {}
    for name in glob.glob(pattern):
        with open(name, encoding="ascii") as file:
            lines = [line.split() for line in file if line.endswith("\n")]
        found[name] = [Note(w[0], w[1], int(w[2]), w[3:]) for w in lines if w[0] != "no"]
    return found


def one_holder(books: dict[str, list[Note]]) -> Counter[str]:
    """No lock had two holders at once, in the order of tokens; returns the shares."""
    stays: dict[str, list[HeldSpan]] = {}
    shares: Counter[str] = Counter()
    for name, book in books.items():
        for note in book:
            if note.word == "had" and note.rest[2] == "kept":
                begin, end = float(note.rest[0]), float(note.rest[1])
                stays.setdefault(note.lock, []).append(HeldSpan(note.token, begin, end, name))
                shares[name] += 1
    for lock, found in stays.items():
        found.sort()
        for before, after in pairwise(found):
            assert before.token < after.token, (lock, before, after)
            assert before.end <= after.begin, (lock, before, after)
    tokens = [(n.lock, n.token) for book in books.values() for n in book if n.word == "got"]
    assert len(tokens) == len(set(tokens)), "a token was given twice"
    return shares


def in_turn(books: dict[str, list[Note]]) -> None:
    """Typically, no process waits longer than two rounds of the others.

    Grants are counted and not time, and a process that stalls for a moment changes no median.
    """
    waits = {
        name: [(float(note.rest[1]), float(note.rest[2])) for note in book if note.word == "got"]
        for name, book in books.items()
    }
    begins = sorted(begin for some in waits.values() for _, begin in some)
    for name, some in waits.items():
        passed = [bisect_left(begins, begin) - bisect_right(begins, asked) for asked, begin in some]
        assert median(passed) <= 2 * len(books), (name, passed)


def never_above(books: dict[str, list[Note]], capacity: int) -> dict[str, Counter[int]]:
    """No more slots than the capacity were in use; how often each process had which weight."""
    moments: list[tuple[float, int, int]] = []
    shares: dict[str, Counter[int]] = {}
    for name, book in books.items():
        for note in (note for note in book if note.word == "had"):
            begin, end, word, weight = note.rest
            if word == "kept":
                moments += [(float(begin), 1, int(weight)), (float(end), 0, -int(weight))]
                shares.setdefault(name, Counter())[int(weight)] += 1
    taken = 0
    for moment, _, change in sorted(moments):
        taken += change
        assert taken <= capacity, f"{taken} of {capacity} at {moment}"
    return shares


def tokens_grow(books: dict[str, list[Note]]) -> int:
    """A request after a known grant got a higher token; returns how many grants there were."""
    grants: dict[str, list[tuple[int, float, float]]] = {}
    for book in books.values():
        for note in book:
            if note.word == "got":
                asked, known = float(note.rest[1]), float(note.rest[2])
                grants.setdefault(note.lock, []).append((note.token, asked, known))
    for lock, found in grants.items():
        latest = 0.0
        for token, asked, known in sorted(found):
            assert known >= latest, f"{lock}: {token} was known before a lower one was asked for"
            latest = max(latest, asked)
    return sum(map(len, grants.values()))


def nothing_lost(url: str, books: dict[str, list[Note]]) -> None:
    """Every answer that a process got is in the record."""
    entries = read_log(url)
    acquired: set[tuple[str, int]] = set()
    released: Counter[tuple[str, str]] = Counter()
    for revision, entry in entries.items():
        if any(event.name == "lock:acquired" for event in entry.events):
            acquired.update((key, revision) for key in entry.put)
        if entry.verb == "lock.release" and entry.outcome == "released":
            released[entry.session, entry.thing] += 1
    noted: Counter[tuple[str, str]] = Counter()
    for book in books.values():
        for note in book:
            if note.word == "got":
                assert (keys.lock(note.lock), note.token) in acquired, note
            if note.word == "gave" and note.rest[0] == "LockReleased":
                noted[note.rest[1], f"lock/{note.lock}"] += 1
    assert all(released[key] >= many for key, many in noted.items())


def read_log(url: str) -> dict[int, Entry]:
    """The record by revision."""
    found: dict[int, Entry] = {}
    after = -1
    with interlock.connect(url) as fleet:
        while after != (after := max(found, default=0)):
            lines = fleet.record.log(after=after, last=False, limit=1000)
            found.update((line.revision, line) for line in lines)
    assert list(found) == sorted(found)
    return found


def sound(url: str, heads: int = 1) -> int:
    """The store is undamaged, and its items are those of the record; returns its length.

    ``heads`` is how many entries a writer may have left unlinked: more than its last one only if
    it never learned the outcome of some.
    """
    with interlock.connect(url) as fleet:
        assert [found for found in fleet.store.examine() if found.verdict == "bad"] == []
        wrong = ["not audited yet"]
        for _ in range(3):  # a process that still runs may commit between the reads of an audit
            wrong = wrong and audit(fleet.store, heads)
        assert wrong == [], wrong
    return len(read_log(url))
