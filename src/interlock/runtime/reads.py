"""Reads beside decisions: many keys, whole prefixes, pages, ids by their beginning, typed values.

An item that does not fit its type raises StoreDamaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from interlock.core import codec, keys
from interlock.core.outcomes import Unknown
from interlock.core.wait import UnqueuedWait
from interlock.errors import BadInput, StoreDamaged
from interlock.steps import Op, Read
from interlock.store import LIVE, Item, Log, Range, Snapshot

if TYPE_CHECKING:
    from interlock.runtime.attempt import ReadOp


T = TypeVar("T")

KEYS_AT_ONCE = 100
"""Keys in one read."""
FIRST_PAGE, LEAST_PAGE, MOST_PAGE = 16, 2, 1000
PAGE_BYTES = 1_000_000
"""A page of more than this is followed by a smaller one."""
BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bytes of one answer with values that others wrote, about."""
_LOOK_AGAIN = 5.0
OWN_OPERATIONS = 8
"""Operations that the runner adds to a commit, such as the check of its entry."""


def life_or(item: Item, allow: Callable[[float], float]) -> float:
    """How long a liveness key lives, or the time to the next look if the engine does not know."""
    return allow(_LOOK_AGAIN) if item.life is None else item.life


def looked_up(
    wanted: Iterable[str], *, times: bool = False, fresh: bool = True, longest: int | None = None
) -> Op[dict[str, Item | None]]:
    """Read many keys, in portions: one round trip for each."""
    keys_ = list(dict.fromkeys(wanted))
    found: dict[str, Item | None] = {}
    for start in range(0, len(keys_), KEYS_AT_ONCE):
        some = keys_[start : start + KEYS_AT_ONCE]
        snapshot: Snapshot = yield Read(*some, times=times, fresh=fresh, longest=longest)
        found.update(snapshot.items)
    return found


def looked_up_within(limits: Mapping[str, int]) -> Op[dict[str, Item | None]]:
    """Read values that others wrote, each of at most its number of bytes; longer ones are left out.

    Small values come with one read.  Only then the sizes of the others are known, and they are
    read in portions: a writer of the store cannot make its readers take more memory.
    """
    wanted = list(limits)
    found: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        some = wanted[start : start + KEYS_AT_ONCE]
        small = min(BYTES_AT_ONCE // len(some), max(limits[key] for key in some))
        found |= yield from looked_up(some, longest=small)
    large = {
        key: item.omitted
        for key, item in found.items()
        if item is not None and 0 < item.omitted <= limits[key]
    }
    while large:  # from small to large: as many of the largest one of a portion must fit
        some, sizes = [], sorted(large.items(), key=lambda pair: pair[1])
        for key, size in sizes:
            if some and size * (len(some) + 1) > BYTES_AT_ONCE:
                break
            some.append(key)
        found |= yield from looked_up(some, longest=max(large.pop(key) for key in some))
    return {
        key: None if (item := found[key]) is None else item.at_most(limits[key]) for key in wanted
    }


def every(*prefixes: str, most: int | None = None) -> Op[list[Item]]:
    """All items under these prefixes, in pages; or ``most`` of them, and less than a page more."""
    return outside(every_inside(*prefixes, most=most))


def every_inside(*prefixes: str, most: int | None = None) -> ReadOp[list[Item]]:
    """As ``every``, but read by a decision; the commit does not check the items."""
    found: list[Item] = []
    for prefix in prefixes:
        page = Range(prefix)
        while True:
            items = (yield (page,)).ranges[page]
            found.extend(items)
            if len(items) < page.limit or (most is not None and len(found) >= most):
                break
            page = Range(prefix, items[-1].key)
    return found


class Pages:
    """Reads the items under a prefix, page by page; a page is smaller where items are larger.

    after         the last key of the last page: another reader may continue there
    limit         the maximum number of items in the next page
    longest       bytes above which a value is left out; None for no limit
    finished      whether no page follows
    items, bytes  the totals of all pages
    revision      the revision of the first page
    """

    def __init__(
        self,
        prefix: str,
        after: str = "",
        limit: int = FIRST_PAGE,
        *,
        longest: int | None = None,
    ) -> None:
        self.prefix = prefix
        self.longest = longest
        self.after = after
        self.limit = limit
        self.finished = False
        self.items = self.bytes = self.revision = 0

    def read(self, most: int = MOST_PAGE) -> Op[tuple[Item, ...]]:
        """The next page, of at most this number of items."""
        page = Range(self.prefix, self.after, min(self.limit, most))
        snapshot: Snapshot = yield Read(page, longest=self.longest)
        found = snapshot.ranges[page]
        size = sum(len(item.value) for item in found)
        large = size > PAGE_BYTES
        self.limit = max(LEAST_PAGE, page.limit // 4) if large else min(MOST_PAGE, page.limit * 4)
        self.after = found[-1].key if found else self.after
        self.finished = len(found) < page.limit
        self.items, self.bytes = self.items + len(found), self.bytes + size
        self.revision = self.revision or snapshot.revision
        return found


def outside(reading: ReadOp[T]) -> Op[T]:
    """Run the reads of a decision outside of one; nothing is guessed."""
    try:
        refs = next(reading)
        while True:
            snapshot: Snapshot = yield Read(*refs)
            refs = reading.send(snapshot)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def fresh_once(operation: Op[T]) -> Op[T]:
    """Carry out an operation that reads a lot; only its first read is fresh.

    The others are never from before that one.  On git a fresh read looks at the remote, which takes
    longer than all the rest.
    """
    fresh = True
    try:
        step = next(operation)
        while True:
            if isinstance(step, Read):
                first = fresh and step.fresh
                step = Read(*step.refs, times=step.times, fresh=first, longest=step.longest)
                fresh = False
            try:
                answer = yield step
            except BaseException as error:  # noqa: BLE001 - it is the operation's own
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class ReadBeforeWait(msgspec.Struct, Generic[T], frozen=True):
    """The result of a read before a wait, all items behind it, and where a watch begins.

    A watch from ``revision`` on sees every later change of these items.  No watch sees the end of a
    liveness key, so their items have the remaining times.
    """

    result: T
    items: Mapping[str, Item | None]
    revision: int


def read_before_wait(reading: ReadOp[T]) -> Op[ReadBeforeWait[T]]:
    """Run the reads of a decision before a wait; each item is read once."""
    known: dict[str, Item | None] = {}
    revision: int | None = None
    try:
        refs = next(reading)
        while True:
            missing = [ref for ref in refs if not isinstance(ref, str) or ref not in known]
            ranges: Mapping[Range | Log, tuple[Item, ...]] = {}
            if missing:
                times = all(isinstance(ref, str) and ref.startswith(LIVE) for ref in missing)
                read: Snapshot = yield Read(*missing, times=times)
                known.update(read.items)
                revision = read.revision if revision is None else min(revision, read.revision)
                ranges = read.ranges
            items = {ref: known[ref] for ref in refs if isinstance(ref, str)}
            refs = reading.send(Snapshot(revision or 0, items, ranges))
    except StopIteration as done:
        return ReadBeforeWait(done.value, known, revision or 0)


Given = TypeVar("Given", Item, Item | None)

_KEYS = codec.Decoder(tuple[str, ...])
_WAIT: codec.Decoder[tuple[str, ...] | UnqueuedWait] = codec.Decoder(
    tuple[str, ...] | UnqueuedWait  # type: ignore[arg-type]  # a union is no type[T]
)


def readable(read: Callable[[Given], T | None], item: Given) -> T | None:
    """The value of an item in a pass over many; None for a damaged one, which others survive."""
    try:
        return read(item)
    except StoreDamaged:
        return None


def decode_wait(item: Item) -> tuple[str, ...] | UnqueuedWait:
    """A listed wait: the keys of the pools where it queues, or a wait without a queue."""
    return _WAIT.read(item)


def readable_wait(item: Item) -> tuple[str, ...] | UnqueuedWait | None:
    """A listed wait in a pass over many; None for a damaged one."""
    try:
        return decode_wait(item)
    except StoreDamaged:
        return None


def waited_for(item: Item) -> tuple[str, ...]:
    """The keys that a listed wait is for."""
    found = decode_wait(item)
    return (found.wants,) if isinstance(found, UnqueuedWait) else found


def decode_keys(item: Item) -> tuple[str, ...]:
    """An item that is a list of keys."""
    return _KEYS.read(item)


def with_bytes(item: Item) -> Item:
    """The item with its value as bytes: a SQLite file that was edited by hand may hold text."""
    if type(item.value) is bytes:
        return item
    return msgspec.structs.replace(item, value=str(item.value).encode("utf-8", "replace"))


WHOLE = 32
"""The digits of an id that Interlock made."""
LEAST = 6
"""The fewest digits, or letters of an id that a caller chose, that make a prefix."""
FOLDERS = {
    "dec": keys.DECISIONS,
    "mrg": keys.MERGES,
    "msg": keys.MESSAGES,
    "qry": keys.QUERIES,
    "qua": keys.QUARANTINE,
    "req": keys.REQUESTS,
    "ses": keys.SESSIONS,
}
"""The folder for each kind of id."""
NAMED = 5
"""The most ids that an error names to choose from."""


def is_prefix(id_: str) -> bool:
    """Whether this may be the beginning of an id, and is no whole id that Interlock made."""
    kind, _, rest = id_.partition("_")
    return kind in FOLDERS and LEAST <= len(rest) < WHOLE


def whole_id(id_: str, *folders: str) -> Op[str]:
    """The one id in these folders that begins like this; the text unchanged if there is none.

    One read, bounded by the number of folders.  If several ids begin like it, the caller has to
    write more of the one that is meant.
    """
    if not is_prefix(id_):
        return id_
    ranges = [Range(folder + id_, limit=NAMED + 1) for folder in folders]
    snapshot: Snapshot = yield Read(*ranges)
    items = [item for each in ranges for item in snapshot.ranges[each]]
    found = sorted({item.key.rpartition("/")[2] for item in items})
    if len(found) > 1 and id_ not in found:
        raise BadInput(
            f"{id_!r} is the beginning of several ids; write more of it:"
            f" {', '.join(found[:NAMED])}{' ...' if len(found) > NAMED else ''}"
        )
    return found[0] if len(found) == 1 else id_


def whole_thing(thing: str) -> Op[str]:
    """A thing of the record (``query/qry_...``) with its whole id, if it is still in the store."""
    kind, _, id_ = thing.partition("/")
    folder = FOLDERS.get(id_.partition("_")[0])
    return thing if folder is None else f"{kind}/{(yield from whole_id(id_, folder))}"


def by_prefix(id_: str, attempt: Callable[[str], Op[T]], *folders: str) -> Op[T]:
    """The outcome of an attempt; if the id is unknown, of one with the id that begins like it."""
    outcome = yield from attempt(id_)
    if not isinstance(outcome, Unknown):
        return outcome
    whole = yield from whole_id(id_, *folders)
    return outcome if whole == id_ else (yield from attempt(whole))
