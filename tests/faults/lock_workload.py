"""Clients that take and release locks, and note the answers."""

from __future__ import annotations

import threading
from collections import Counter

from tests.faults.setup import Client
from tests.processes import checks

from interlock.nouns.grants.lock import LockGranted, LockReleased


class Notes:
    """The answers that clients got."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.released = 0
        self._guard = threading.Lock()

    def got(self, lock: str, token: int) -> None:
        with self._guard:
            self.tokens.setdefault(lock, []).append(token)

    def gave(self) -> None:
        with self._guard:
            self.released += 1

    def __len__(self) -> int:
        return sum(map(len, self.tokens.values()))


def take_in_turns(
    client: Client, locks: tuple[str, ...], notes: Notes, over: threading.Event
) -> None:
    while not over.is_set():
        for lock in locks:
            got = client.acquire(lock, wait=40)
            assert isinstance(got, LockGranted), got
            notes.got(lock, got.token or 0)
            gave = client.release(lock, token=got.token)
            assert isinstance(gave, LockReleased), gave
            notes.gave()


def check_told_once(url: str, notes: Notes) -> None:
    """Each grant and each release in the record was answered once, and no others were."""
    granted: dict[str, list[int]] = {lock: [] for lock in notes.tokens}
    verbs: Counter[tuple[str, str]] = Counter()
    for revision, entry in checks.read_log(url).items():
        verbs[entry.verb, entry.outcome] += 1
        lock = entry.thing.removeprefix("lock/")
        if lock in granted and any(event.name == "lock:acquired" for event in entry.events):
            granted[lock].append(revision)
    for lock, tokens in granted.items():
        assert sorted(notes.tokens[lock]) == tokens
    assert verbs["lock.release", "released"] == notes.released
