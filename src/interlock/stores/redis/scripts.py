"""The scripts that run inside the server: their names, their requests and their answers.

An item is kept as ``revision created expires entry hash value``, separated by blanks, the value
as it is: the scripts look at the first few words and never copy or parse the rest.
One of a task is plain JSON, for people to read: ``{...,"stamp":"revision created entry hash"}``.
Times are microseconds of the server's clock; an item that never expires has 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from struct import Struct
from typing import NamedTuple, TypeAlias, cast

from hiredis import pack_command
from msgspec.structs import replace

from interlock.store import LOG, TOLD, Change, Item, Log, Range, Ref, Txn, covers
from interlock.stores.network import stamped, unstamped

try:  # hashlib would load OpenSSL, a tenth of a command's time
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:  # pragma: no cover - a Python built without it
    from hashlib import sha1

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Script:
    """One script: its text, and the digest by which a server that has it runs it."""

    __slots__ = ("body", "sha")

    def __init__(self, name: str) -> None:
        with open(os.path.join(_FOLDER, f"{name}.lua"), "rb") as file:
            self.body = file.read()
        self.sha = sha1(self.body).hexdigest()  # noqa: S324 - the digest that Redis uses


COMMIT = Script("commit")
ERASE = Script("erase")
LOAD = Script("load")
MARK = Script("mark")
READ = Script("read")
RIGHTS = Script("rights")
SINCE = Script("since")
SWEEP = Script("sweep")
TRIM = Script("trim")


Argument: TypeAlias = bytes | str
"""No number: hiredis crashes if a signal handler raises while it spells one."""

pack = cast("Callable[[tuple[Argument, ...]], bytes]", pack_command)
"""A command as it goes over the wire.  (Its own annotation allows one word only.)"""

_MICRO = 1_000_000
_COUNTS = Struct(">5H")


class PackedCommit(NamedTuple):
    """The arguments of one commit, as they go over the wire."""

    words: int
    packed: bytes
    room: bool
    """Whether a full server accepts it; a request has either such commits or others."""


class CommitPacker:
    """Makes the requests that run commit.lua, with one commit or several.

    Each commit is packed by itself, so that one that cannot be packed harms no other.
    """

    def __init__(self, tail: tuple[Argument, ...], bound: int) -> None:
        self._words = 2 + len(tail) + 3
        self._by_name = _packed(("EVALSHA", COMMIT.sha, *tail))
        self._in_full = _packed(("EVAL", COMMIT.body, *tail))
        self._bound = {
            room: _packed((str(bound), "room" if room else "")) for room in (True, False)
        }

    def request(
        self, commits: Sequence[PackedCommit], latest: int, *, whole: bool = False
    ) -> bytes:
        """The request for these commits, which are either all to make room or none of them.

        With ``whole`` it has the text of the script, for a server that does not know it.
        """
        words, moment = self._words, b"%d" % latest
        for commit in commits:
            words += commit.words
        parts = [
            b"*%d\r\n" % words,
            self._in_full if whole else self._by_name,
            b"$%d\r\n%b\r\n" % (len(moment), moment),
            self._bound[commits[0].room],
            *[commit.packed for commit in commits],
        ]
        return b"".join(parts)


def packed_commit(txn: Txn) -> PackedCommit:
    """A commit that is ready to be sent."""
    words = commit_arguments(txn)
    return PackedCommit(len(words), _packed(tuple(words)), txn.makes_room)


def _packed(words: tuple[Argument, ...]) -> bytes:
    """Words as they go over the wire, without their number."""
    packed = pack(words)
    return packed[packed.index(b"\n") + 1 :]


def commit_arguments(txn: Txn) -> list[Argument]:
    """The arguments of one commit in commit.lua."""
    if " " in txn.id or " " in txn.hash:
        raise ValueError(f"the id or the hash of {txn.id!r} has a blank")
    checks, puts, deletes, reads, signals = (
        txn.checks,
        txn.puts,
        txn.deletes,
        txn.reads,
        txn.signals,
    )
    found: list[Argument] = [
        txn.id,
        _flags(txn) if txn.quiet or txn.longest is not None else "",
        txn.entry,
        txn.hash,
        _COUNTS.pack(len(checks), len(puts), len(deletes), len(reads), len(signals)),
    ]
    for check in checks:
        kind = check.kind
        found += (kind, check.key, check.value if kind == "has" else str(check.revision))
    for put in puts:
        # Rounded up: it never expires early.
        found += (put.key, put.value, "0" if put.ttl is None else str(ceil(put.ttl * _MICRO)))
    found += deletes
    found += reads
    found += signals
    return found


def _flags(txn: Txn) -> str:
    words = "quiet " if txn.quiet else ""
    return words if txn.longest is None else f"{words}longest={txn.longest}"


def load_arguments(move: str, items: Sequence[Item]) -> list[Argument]:
    """The arguments of load.lua."""
    found: list[Argument] = [move]
    for item in items:
        if item.key.startswith(LOG):
            found += (item.key, "log", str(item.revision), item.value, item.hash)
        elif item.expires_in is None:
            found += (item.key, "0", _stored(item), "", "")
        else:
            head = f"{item.revision} {item.created} "
            tail = f" {item.entry} {item.hash} ".encode() + item.value
            ttl = str(max(1, ceil(item.expires_in * _MICRO)))
            found += (item.key, ttl, head, tail, "")
    return found


def _stored(item: Item) -> bytes:
    """An item as commit.lua stores it."""
    value, marks = item.value, f"{item.revision} {item.created}"
    by = f"{item.entry} {item.hash}"
    if item.key.startswith("tasks/") and value[:1] == b"{" and value[-1:] == b"}":
        return stamped(value, f"{marks} {by}".encode())
    return f"{marks} 0 {by} ".encode() + value


def read_arguments(refs: Iterable[Ref], longest: int | None = None) -> list[Argument]:
    """The arguments of read.lua."""
    found: list[Argument] = [] if longest is None else ["s", str(longest)]
    for ref in refs:
        if isinstance(ref, str):
            found += ("k", ref)
        elif isinstance(ref, Range):
            start = f"({ref.after}" if ref.after >= ref.prefix and ref.after else f"[{ref.prefix}"
            # No key in UTF-8 has this byte.
            found += ("r", start, b"(" + ref.prefix.encode() + b"\xff", str(ref.limit))
        else:
            found += ("l", *map(str, (ref.after, ref.before, ref.limit)), "1" if ref.last else "0")
    return found


def item(key: str, packed: bytes, now: int) -> Item:
    """An item as it was kept: with its stamp in front, or (of a task) as the last member."""
    if packed[:1] == b"{":
        value, stamp = unstamped(packed)
        revision, created, entry, stamp = stamp.split(b" ", 3)
        return Item(key, value, int(revision), int(created), entry.decode(), stamp.decode())
    omitted = 0
    if packed[:1] == b"~":  # its size stands in the place of its value
        size, _, packed = packed[1:].partition(b" ")
        omitted = int(size)
    revision, created, expires, entry, stamp, value = packed.split(b" ", 5)
    left = None if expires == b"0" else (int(expires) - now) / _MICRO
    by, hash_ = entry.decode(), stamp.decode()
    return Item(key, value, int(revision), int(created), by, hash_, left, omitted)


def items(keys: Iterable[str], answers: Sequence[bytes | None], now: int) -> dict[str, Item | None]:
    """Items by key, None for what is not there."""
    return {
        key: None if packed is None else item(key, packed, now)
        for key, packed in zip(keys, answers, strict=True)
    }


def many(ref: Range | Log, answer: Sequence[bytes], now: int) -> tuple[Item, ...]:
    """The items of a range, or the entries of the log."""
    if isinstance(ref, Range):
        pairs = zip(answer[::2], answer[1::2], strict=True)
        return tuple([item(key.decode(), packed, now) for key, packed in pairs])
    rows = zip(answer[::4], answer[1::4], answer[2::4], answer[3::4], strict=True)
    return tuple([_entry(*row) for row in rows])


def _entry(stream_id: bytes, txn: bytes, entry: bytes, digest: bytes) -> Item:
    revision, name = int(stream_id.partition(b"-")[0]), txn.decode()
    return Item(LOG + name, entry, revision, revision, name, digest.decode())


def changes(
    scopes: tuple[str, ...], revision: int, tokens: bytes, at: int = 0, *, written: bool = False
) -> list[Change]:
    """The changes in these scopes, from a published payload or from the log.

    Each token has its length before it and its kind as its first byte: a key that was put (+),
    deleted (-) or signalled (!), or the id of the entry (=) and then the entry itself (").  Without
    an id before it, the last kind is an item that the commit wrote; ``written`` adds these to the
    changes of new messages.
    """
    name, found, items = "", list[Change](), list[Item]()
    while at < len(tokens):
        colon = tokens.index(b":", at)
        at = colon + 1 + int(tokens[at:colon])
        kind, text = tokens[colon + 1 : colon + 2], tokens[colon + 2 : at]
        if kind == b"=":
            name = LOG + text.decode()
        elif kind == b'"':
            if not name and written:
                items.append(_written(text, revision))
            elif name and covers(scopes, name):
                found.append(Change(revision, name, value=text))
        elif covers(scopes, key := text.decode()):
            found.append(Change(revision, key, deleted=kind == b"-"))
    if not items:
        return found
    sent = tuple(items)
    return [replace(each, written=sent) if each.key.startswith(TOLD) else each for each in found]


def _written(text: bytes, revision: int) -> Item:
    """An item that a commit wrote: its key, with its length before it, and its value."""
    colon = text.index(b":")
    end = colon + 1 + int(text[:colon])
    return Item(text[colon + 1 : end].decode(), text[end:], revision, 0)
