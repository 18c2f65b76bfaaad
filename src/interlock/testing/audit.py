"""Replay the log against the items, to check that each commit happened once, as recorded.

The replay starts empty.  Each entry must have seen the items as its predecessors left them, and
after the last entry the items and their stamps must be those of the entries.  A lost, doubled,
reordered or half-done commit is a complaint.  The log must be complete.

It keeps everything in memory and is simple on purpose: where it has no complaint, ``record verify``
must have none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from interlock.check_record import BLIND, UNSTAMPED
from interlock.core import codec, keys
from interlock.core.entry import Entry, decode
from interlock.core.filter import RecordFilter
from interlock.nouns.record.verify import verify
from interlock.runtime.history import search
from interlock.steps import drive
from interlock.store import LIVE, LOG, VOID, Item, Log, Range, Store

_PAGE = 1000


def audit(store: Store, heads: int = 1) -> list[str]:
    """Everything that log and items disagree about.

    ``heads`` is how many entries of one writer no later entry may link: the number of commits that
    it had under way at once, so one for a writer that commits one after the other.
    """
    entries = [(item, decode(item.value)) for item in _log(store) if item.value != VOID]
    return [*_replay(store, entries), *_links(entries, heads)] or list(_verified(store))


def request_events(store: Store) -> dict[str, Counter[str]]:
    """How often each event of a request is in the record of a home, by the id of the request.

    A request that went well has one ``request:sent`` and one ``request:answered`` in the home of
    its asker, and one ``request:received`` and one ``request:executed`` in that of its receiver.
    """
    found: dict[str, Counter[str]] = {}
    after = 0
    while lines := drive(search(RecordFilter(), after=after, limit=_PAGE, last=False), store):
        for line in lines:
            for event in line.events:
                noun, _, id_ = (event.thing or line.thing).partition("/")
                if noun == "request":
                    found.setdefault(id_, Counter())[event.name] += 1
        after = lines[-1].revision
    return found


def _verified(store: Store) -> Iterator[str]:
    """The findings of ``record verify``; clients across a network may share a store in memory."""
    capabilities = store.capabilities
    strict = capabilities.consecutive and capabilities.durability != "none"
    found = drive(verify(replace(capabilities, consecutive=strict)), store)
    yield from (
        f"{each.verdict}: {each.revision or each.key} {each.says}" for each in found.findings
    )


def _log(store: Store) -> Iterator[Item]:
    after = 0
    while True:
        ref = Log(after=after, limit=_PAGE)
        items = store.read(ref).ranges[ref]
        yield from items
        if len(items) < _PAGE:
            return
        after = items[-1].revision


def _replay(store: Store, entries: list[tuple[Item, Entry]]) -> Iterator[str]:
    state: dict[str, tuple[str, Item]] = {}
    for item, entry in entries:
        if item.key != LOG + entry.id or item.hash != codec.digest(item.value):
            yield f"{item.key} is not stamped by its own bytes"
        for key, saw in entry.saw.items():
            there = state[key][1].hash if key in state else None
            unrecorded = saw == BLIND and (there or key.startswith(UNSTAMPED))
            if saw != there and not unrecorded:
                yield f"{entry.verb} {entry.id} saw {saw} under {key}, where {there} stood"
        state.update({key: (digest, item) for key, digest in entry.put.items()})
        for key in entry.deleted:
            state.pop(key, None)
    written = {key for _, entry in entries for key in (*entry.put, *entry.deleted)}
    found = {item.key: item for item in _items(store, written)}
    for key in found.keys() | state.keys():
        if key not in found or key not in state:
            yield f"{key} is only in the {'log' if key in state else 'store'}"
            continue
        digest, by = state[key]
        stamp = (found[key].entry, found[key].hash)
        if codec.digest(found[key].value) != digest or stamp != (by.entry, by.hash):
            yield f"{key} is not what {by.key} wrote"


def _items(store: Store, written: Iterable[str]) -> Iterator[Item]:
    """All items that entries wrote and that do not expire, in every folder."""
    known = {*keys.POOLS, keys.SESSIONS, keys.WAITS, keys.REFUSALS, _folder(keys.BASE)}
    for folder in sorted(known.union(map(_folder, written))):
        page = Range(folder, limit=_PAGE)
        while items := store.read(page).ranges[page]:
            yield from (i for i in items if i.entry and not i.key.startswith((LOG, LIVE)))
            page = Range(folder, after=items[-1].key, limit=_PAGE)


def _folder(key: str) -> str:
    head, slash, _ = key.partition("/")
    return head + slash


def _links(entries: list[tuple[Item, Entry]], heads: int) -> Iterator[str]:
    open_: dict[str, list[str]] = {}
    known: dict[str, set[str]] = {}
    for item, entry in entries:
        unknown = set(entry.after) - known.setdefault(entry.writer, set())
        if unknown:
            yield f"{entry.id} links {unknown}, which its writer never committed before"
        linked = [hash_ for hash_ in open_.get(entry.writer, ()) if hash_ not in entry.after]
        open_[entry.writer] = [*linked, item.hash]
        known[entry.writer].add(item.hash)
    for writer, unlinked in open_.items():
        if len(unlinked) > heads:
            yield f"{writer} left {len(unlinked)} entries unlinked"
