"""The guards whose facts from outside gates wait for, by the entries of the gates.

Every client of a store can write an entry, with any guard in it.  So only the digests on the list
of this host are asked for, and a guard counts only if it has the digest of its entry.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

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
    return keys.gated_of(key)[0].removeprefix(OBSERVED)


def allowed_folders() -> dict[str, str]:
    """The folders of the definitions that this host allows, by their digests."""
    from interlock.nouns.guards.allowed import AllowedDefinition, listed

    return {each.digest: each.root for each in listed() if isinstance(each, AllowedDefinition)}


def awaited_guards(digests: Sequence[str]) -> Op[tuple[dict[str, g.Guard], int]]:
    """The guards of these digests that gates wait for, and the revision of the first read."""
    found: dict[str, g.Guard] = {}
    revision: int | None = None
    pages = {digest: Range(keys.gated(OBSERVED + digest), limit=_PAGE) for digest in digests}
    while pages or revision is None:
        some = dict(list(pages.items())[:_RANGES])
        snapshot: Snapshot = yield Read(*some.values())
        revision = snapshot.revision if revision is None else revision
        for digest, page in some.items():
            items = snapshot.ranges[page]
            guard = next(filter(None, (_guard_of(item, digest) for item in items)), None)
            if guard is not None:
                found[digest] = guard
            elif len(items) == page.limit:  # entries that are not what they should be hide others
                pages[digest] = Range(page.prefix, items[-1].key)
                continue
            del pages[digest]
    return found, revision


def names_not_allowed(allowed: Container[str]) -> Op[dict[str, None]]:
    """The names of guards that gates wait for, beside the allowed ones; some, if there are many."""
    page = Range(ENTRIES)
    snapshot: Snapshot = yield Read(page)
    names: dict[str, None] = {}
    for item in snapshot.ranges[page]:
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
