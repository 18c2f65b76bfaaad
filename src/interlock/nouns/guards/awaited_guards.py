"""The guards whose facts from outside something waits for: a gate, or a call on another host.

Each of them has an entry with the guard (``gated/observed%2F{digest}/{thing}`` and
``live/wants/{digest}/{id}``).  Every client of a store can write an entry, with any guard in it.
So only the digests on the list of this host are asked for, and a guard counts only if it has the
digest of its entry.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import OBSERVED
from interlock.runtime.gates import decode_entry
from interlock.runtime.reads import readable
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

ENTRIES = keys.gated(OBSERVED).removesuffix("/")
"""How the keys of these entries begin."""
_PAGE = 10
_RANGES = 50


def digest_of(key: str) -> str:
    """The digest of the guard that an entry is about."""
    if key.startswith(keys.WANTS):
        return keys.wants_of(key)
    return keys.gated_of(key)[0].removeprefix(OBSERVED)


def allowed_folders() -> dict[str, str]:
    """The folders of the definitions that this host allows, by their digests."""
    from interlock.nouns.guards.allowed import AllowedDefinition, listed

    return {each.digest: each.root for each in listed() if isinstance(each, AllowedDefinition)}


class AwaitedGuard(NamedTuple):
    """A guard that something waits for, and the keys of calls that do."""

    guard: g.Guard
    calls: frozenset[str]


def awaited_guards(digests: Sequence[str]) -> Op[tuple[dict[str, AwaitedGuard], int]]:
    """The guards of these digests that something waits for, and the revision of the first read."""
    guards: dict[str, g.Guard] = {}
    calls: dict[str, set[str]] = {digest: set() for digest in digests}
    revision: int | None = None
    pages = [(digest, Range(keys.gated(OBSERVED + digest), limit=_PAGE)) for digest in digests]
    pages += [(digest, Range(keys.wants(digest), limit=_PAGE)) for digest in digests]
    while pages or revision is None:
        some, pages = pages[:_RANGES], pages[_RANGES:]
        snapshot: Snapshot = yield Read(*[page for _, page in some])
        revision = snapshot.revision if revision is None else revision
        for digest, page in some:
            items = snapshot.ranges[page]
            found = {item.key: guard for item in items if (guard := _guard_of(item, digest))}
            if found:
                guards[digest] = next(iter(found.values()))
            calls[digest] |= {key for key in found if key.startswith(keys.WANTS)}
            if not found and len(items) == page.limit:  # odd entries may hide others
                pages.append((digest, Range(page.prefix, items[-1].key)))
    awaited = {key: AwaitedGuard(guard, frozenset(calls[key])) for key, guard in guards.items()}
    return awaited, revision


def names_not_allowed(allowed: Container[str]) -> Op[dict[str, None]]:
    """The names of guards that are waited for, beside the allowed ones; some, if there are many."""
    gates, calls = Range(ENTRIES), Range(keys.WANTS)
    ranges = (yield Read(gates, calls)).ranges
    names: dict[str, None] = {}
    for item in (*ranges[gates], *ranges[calls]):
        digest = digest_of(item.key)
        guard = None if digest in allowed else _guard_of(item, digest)
        if guard is not None:
            names[guard.name] = None
    return names


def _guard_of(item: Item, digest: str) -> g.Guard | None:
    """The guard of an entry, if it has this digest."""
    entry = readable(decode_entry, item)
    if entry is None:
        return None
    try:
        guard = g.decode(bytes(entry.guard))
    except BadInput:
        return None
    return guard if g.digest(guard) == digest else None
