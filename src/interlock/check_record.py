"""Checks an export of an Interlock record with nothing but Python: read it, then run it.

    python3 check_record.py EXPORT [--anchor FILE] [--against OTHER_EXPORT]

It prints three verdicts, a position (a revision or a key) for each finding against one, and which
keys signed entries:
    integrity     no entry and no item was changed, moved or added
    completeness  no entry is missing in between, and the record agrees with the state
    truncation    no entry is missing at the end; proving that takes an anchor or an older export
It exits with 0, with 1 if a verdict is bad, and with 2 if it cannot read its input.
``interlock record verify`` judges a live store with the same ``RecordJudge``.  It is one file, so
that it can be copied and run without Interlock.

An export is JSON Lines: a head, the entries in order, then the items.
    An entry's hash is the SHA-256 of its text.  The entry names the hashes of its writer's earlier
    entries (after), for each key that it checked the hash of the entry that had written the key
    (saw), and for each key that it wrote the digest of the payload (put).
    An item carries the id and hash of the entry that wrote it, and the digest of its payload.
    One digest is rolled over all entries: SHA-256 of (digest so far, revision, ":", hash).  A mark
    is that digest after some entry: kept in the store, or outside of it as an anchor.

    A writer with a key signs its entries.  The signature, with the public key, is the last field of
    an entry, and is over its text without that field.  A signature that does not fit is a finding,
    and so is a writer that signs some of its entries only.  The keys are named by the fingerprints
    that ssh-keygen prints: whose they are is for the auditor to know.  Signatures are Ed25519, and
    this file has 40 lines that verify them, a few hundred in a second.
    A signed entry names its store by a random id, which a copy of the whole store keeps.  An entry
    that was signed for another store is a finding: it was taken over from there.  Which id the
    store has is for the auditor to know, too; entries of early versions name none.

How each kind of tampering shows:

  done       entry of a chain (linked later)        entry that no other entry links
  edit       integrity at the entry                 integrity: at the entry if the item that it
                                                    wrote is unchanged, else at the next mark
  delete     completeness at the entry that         completeness at a key if it changed one, else
             links it                               integrity at the next mark
  insert     integrity or completeness where the    integrity at the next mark, and completeness
             next entry saw another state           at a key if it claims to have written one
  reorder    integrity: a link points forward, or   integrity where the engine is local (``on``),
             an older state was seen                else at the next mark
  truncate   completeness at the keys that the end had changed, truncation at an anchor behind it

A person who can change the store can change all marks but the anchors.  So an entry that no other
entry links and no anchor covers can be forged.  An edit with a matching hash and a deletion can
look the same: the last entry of a writer is not the one that its next entry links.  Then the
finding names both.

Entries before the beginning of the record are not known.  A writer's first link, or a first check
of a key, that points back there is accepted.  A writer with several commits in flight has more such
links; they are accepted up to its UNDER_WAY-th entry, unless a later entry contradicts: each entry
of a writer is linked by a later one, so where one is linked and the one before it never is, the
entry between them is missing.

Behind a gap the digest is unknown until the next mark gives it.  If that mark is one of the store
itself, a forger of the entries before it may have written it too: so the first anchor behind it
proves nothing, but the next one does.  No anchor behind a gap proves entries in front of the gap.

Memory: the keys that exist, the last entry of each of the last RECENT writers, and the hashes of
the last RECENT to 2 * RECENT entries.  A second reading finds links that point further back
(``wanted``, ``resolve``).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol

RECENT = 100_000
UNDER_WAY = 10_000
"""Entries of one writer while one of its commits is in flight: a generous bound."""
BLIND = "blind"
"""In ``saw``: the item that the entry saw carried no hash."""
VOID = b'{"verb":"void"}'
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
LOG, UNSTAMPED, STAMPED = "log/", ("meta/", "observed/"), ("meta/sealed", "meta/checkpoint")
"""No entry writes the few facts that engines keep below ``meta/``, nor what hosts saw for guards:
an observation counts for a minute or so, and the entry of a commit that relies on it names it."""
SIGNED, SIGNED_BETWEEN, SIGNED_END = b',"signed":{"key":"', b'","signature":"', b'"}}'
SIGNED_SIZE = len(SIGNED) + 44 + len(SIGNED_BETWEEN) + 88 + len(SIGNED_END)
"""Of the last field of a signed entry: 32 and 64 bytes in base64."""
ENTRY_TYPE = b"application/vnd.interlock.entry.v1+json"
UNCHECKED = 4096
"""Signatures that may wait to be verified."""
NAMED = 100
"""Agents that are named for one key."""
NEVER = 1 << 63
EXPLAINED = -1
"""Instead of a revision: an item has this hash, and a finding explains it already."""

Aspect = Literal["integrity", "completeness", "truncation"]
Line = dict[str, Any]


class DigestMark(NamedTuple):
    """The rolled digest after a number of entries, the last of which has this revision."""

    revision: int = 0
    entries: int = 0
    digest: str = ""


class ExpectedMark(NamedTuple):
    """A mark that the entries must meet; ``outside`` if it was kept outside of the store."""

    mark: DigestMark
    name: str
    outside: bool = False


class Flaw(NamedTuple):
    """One finding against the record, at a revision or at a key."""

    verdict: Aspect
    says: str
    revision: int = 0
    key: str = ""


class StoredEntry(Protocol):
    """An entry as it is stored: ``log/`` and its id, its bytes, and the hash beside them.

    ``created`` is its position; ``revision`` differs from it only if the entry was written twice.
    """

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytes: ...
    @property
    def created(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def hash(self) -> str: ...


class ExportedEntry(NamedTuple):
    """A stored entry, read from an export."""

    key: str
    value: bytes
    created: int
    revision: int
    hash: str


class ParsedEntry(NamedTuple):
    """The fields of an entry that are judged."""

    id: str
    writer: str
    agent: str
    on: int
    after: Sequence[str]
    saw: dict[str, str | None]
    put: dict[str, str]
    deleted: Sequence[str]
    store: str = ""


class KnownEntry:
    """An entry that was read, as it is remembered."""

    __slots__ = ("hash", "id", "key", "linked", "number", "revision", "undone", "vouched")

    def __init__(self, revision: int, id_: str, hash_: str, number: int = 0) -> None:
        self.revision, self.id, self.hash = revision, id_, hash_
        self.key = ""  # the public key that signed it
        self.number = number  # counts the writer's entries since the beginning or a gap
        self.vouched = False  # another entry, or an item, carries its hash
        self.linked = False  # a later entry of its writer links it
        self.undone = False  # the item that it wrote is gone, and no entry deleted it


class SignedEntries:
    """The entries that one key signed, or none: their number, their ends, and their agents."""

    __slots__ = ("agents", "entries", "first", "key", "last")

    def __init__(self, key: str, first: int) -> None:
        self.key, self.first, self.last, self.entries = key, first, first, 0
        self.agents: set[str] = set()

    def add(self, agent: str, revision: int) -> None:
        self.entries += 1
        self.last = revision
        if agent not in self.agents and len(self.agents) < NAMED:
            self.agents.add(agent)

    @property
    def fingerprint(self) -> str:
        """The name of the key, as ssh-keygen prints it."""
        from base64 import b64decode, b64encode

        blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b64decode(self.key)
        return "SHA256:" + b64encode(sha256(blob).digest()).decode().rstrip("=")


class OpenLink(NamedTuple):
    """A link to an unknown hash, and the known entry that the link should have pointed to."""

    revision: int
    key: str
    instead: KnownEntry | None


class DoubtfulLink(NamedTuple):
    """A link that may point to before a gap, of an entry that is not the first of its writer."""

    link: str
    known: KnownEntry
    before: KnownEntry


class Findings:
    """One finding for each verdict and position, at most ``limit``; ``more`` counts the others."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.bad: set[Aspect] = set()
        self.more = 0
        self.limit = limit
        self.kept: dict[tuple[Aspect, int, str], Flaw] = {}

    def add(self, verdict: Aspect, says: str, revision: int = 0, key: str = "") -> None:
        self.put(Flaw(verdict, says, revision, key))

    def put(self, flaw: Flaw) -> None:
        self.bad.add(flaw.verdict)
        position = (flaw.verdict, flaw.revision, flaw.key)
        if position in self.kept:
            return
        if len(self.kept) < self.limit:
            self.kept[position] = flaw
        else:
            self.more += 1


class RollingDigest:
    """The digest over all entries, and the marks that it must meet.

    ``known`` is false behind missing entries that no mark covers, until the next mark.
    """

    def __init__(self, begins: DigestMark, findings: Findings) -> None:
        self.at, self.entries, self.digest = begins
        self.known = bool(begins.digest) or not begins.revision
        self.anchored = 0  # the revision of the last anchor that is met
        self.compared = 0  # anchors at an entry that is here
        self.since = begins.revision  # earlier marks are about entries that are not here
        self._findings = findings
        self._marks: list[ExpectedMark] = []
        self._due = NEVER
        self._proven = 0
        self._grounded = True  # the digest rests on the beginning, or on an anchor
        self._severed = False  # entries were read that no later mark can prove

    @property
    def mark(self) -> DigestMark:
        return DigestMark(self.at, self.entries, self.digest)

    def expect(self, expected: ExpectedMark) -> None:
        """Add a mark to meet; a mark of no entries proves nothing."""
        if not expected.mark.entries:
            return
        self._marks.append(expected)
        self._marks.sort(key=lambda each: each.mark.revision)
        self._due = self._marks[0].mark.revision

    def roll(self, revision: int, hash_: str) -> None:
        if self._due < revision:  # no entry is where the mark was made
            self.meet(revision - 1)
        self.digest = sha256(f"{self.digest}{revision}:{hash_}".encode()).hexdigest()
        self.entries += 1
        self.at = revision
        if self._due == revision:
            self.meet(revision)

    def meet(self, revision: int) -> None:
        """Compare the marks up to this revision with the current digest."""
        while self._due <= revision:
            expected = self._pop()
            mark = expected.mark
            if mark.revision < self.since:
                continue
            if mark.revision != self.at:
                self._unmet(expected)
                continue
            self.compared += expected.outside
            if self.known and mark == self.mark:
                if expected.outside and self._grounded:
                    self.anchored = mark.revision
            elif self.known:
                self._unmet(expected)
            if expected.outside:
                self._grounded = not self._severed
            # The next mark is measured from this one, so one change is found once.
            self.digest, self.entries, self.known = mark.digest, mark.entries, True
            self._proven = mark.revision

    def skip(self, upto: DigestMark, *, known: bool = True) -> None:
        """Continue behind a gap; an anchor inside it cannot be met."""
        while self._due < upto.revision:
            expected = self._pop()
            if expected.outside and expected.mark.revision >= self.since:
                self._unmet(expected)
        self._continue(upto, known=known)

    def skip_trimmed(self, upto: int) -> None:
        """Continue behind entries that the engine trimmed; marks among them prove nothing."""
        while self._due <= upto:
            self._pop()
        self._continue(DigestMark(upto), known=False)

    def _continue(self, upto: DigestMark, *, known: bool) -> None:
        if not known:
            self._grounded, self._severed = False, self._severed or self.at > self.since
        self.at, self.entries, self.digest = upto
        self.since, self.known = upto.revision, known

    def end(self) -> None:
        """No entry follows: report the marks that were not reached."""
        while self._marks:
            (revision, _, _), name, _ = self._pop()
            said = f"{name} stands at revision {revision}, and the record ends at {self.at}"
            self._findings.add("truncation", f"{said}: its end is missing", revision)

    def _pop(self) -> ExpectedMark:
        expected = self._marks.pop(0)
        self._due = self._marks[0].mark.revision if self._marks else NEVER
        return expected

    def _unmet(self, expected: ExpectedMark) -> None:
        mark, name = expected.mark, expected.name
        among = f"after revision {self._proven}" if self._proven else "up to there"
        if mark.revision != self.at:
            said = f"no entry stands here, where {name} was made"
        elif mark.entries != self.entries:
            said = (
                f"{name} counts {mark.entries} entries and the record {self.entries}:"
                f" some {among} were removed or added"
            )
        else:
            said = f"{name} has another digest: entries {among} were changed or moved"
        self._findings.add("truncation" if expected.outside else "integrity", said, mark.revision)


def decode_json(text: str) -> Any:  # noqa: ANN401 - as json.loads
    import json  # here, since a caller that brings its own ``parse`` does not need it

    return json.loads(text)


def parse(data: bytes) -> ParsedEntry:
    """An entry; ValueError, TypeError or RecursionError if it is none."""
    entry = decode_json(data.decode())
    if type(entry) is not dict:
        raise TypeError("an entry is an object")
    after, deleted = entry.get("after", []), entry.get("deleted", [])
    saw, put = entry.get("saw", {}), entry.get("put", {})
    id_, writer, agent, store = (entry.get(name, "") for name in ("id", "writer", "agent", "store"))
    fields = ParsedEntry(id_, writer, agent, entry.get("on", 0), after, saw, put, deleted, store)
    if [*map(type, fields)] != [str, str, str, int, list, dict, dict, list, str]:
        raise TypeError("a field has another type")
    hashes = (hash_ for hash_ in saw.values() if hash_ is not None)
    if not all(type(each) is str for each in (*after, *deleted, *hashes, *put.values())):
        raise TypeError("hashes and keys are text")
    return fields


# ---- signatures ---------------------------------------------------------------------------------

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = 37095705934669439343138083508754565189542113879843219016388785533085940283555
"""-121665 / 121666."""
ROOT = 19681161376707505956807079304988542015446066515923890162744021073123829784752
"""Its square is -1."""
Point = tuple[int, int, int, int]
"""A point of edwards25519 in extended coordinates: x * z, y * z, z, x * y * z."""
ZERO: Point = (0, 1, 1, 0)
BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
BASE_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960
BASE: Point = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % P)


def add_points(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def decode_point(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P:
        return None
    x = -x % P if x & 1 != sign else x
    return x, y, 1, x * y % P


def signature_fits(key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether this is an Ed25519 signature of the key over the data (RFC 8032, 5.1.7).

    A key of small order is refused: under one of them a single signature fits all data.
    """
    from hashlib import sha512

    point = decode_point(key) if len(key) == 32 and len(signature) == 64 else None  # noqa: PLR2004
    scalar = int.from_bytes(signature[32:], "little")
    if point is None or scalar >= ORDER or times_eight(point)[0] == 0:
        return False
    factor = int.from_bytes(sha512(signature[:32] + key + data).digest(), "little") % ORDER
    minus = (-point[0] % P, point[1], 1, -point[3] % P)
    sums = (ZERO, BASE, minus, add_points(BASE, minus))
    found = ZERO
    for bit in range(252, -1, -1):
        found = add_points(found, found)
        found = add_points(found, sums[(scalar >> bit & 1) + 2 * (factor >> bit & 1)])
    inverse = pow(found[2], -1, P)
    x, y = found[0] * inverse % P, found[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]


def times_eight(point: Point) -> Point:
    for _ in range(3):
        point = add_points(point, point)
    return point


class EntrySignature(NamedTuple):
    """A signature under an entry, still to be verified."""

    revision: int
    key: bytes
    signature: bytes
    data: bytes


def signature_of(data: bytes, revision: int) -> EntrySignature | None:
    """The signature that an entry ends with; None if it is not one."""
    from base64 import b64decode, b64encode

    tail = data[-SIGNED_SIZE:]
    between = tail[len(SIGNED) + 44 : -88 - len(SIGNED_END)]
    texts = tail[len(SIGNED) : len(SIGNED) + 44], tail[-88 - len(SIGNED_END) : -len(SIGNED_END)]
    if between != SIGNED_BETWEEN or not tail.endswith(SIGNED_END):
        return None
    try:
        key, signature = (b64decode(text, validate=True) for text in texts)
    except ValueError:
        return None
    if (b64encode(key), b64encode(signature)) != texts:
        return None
    bare = data[:-SIGNED_SIZE] + b"}"
    signed = b"DSSEv1 %d %b %d %b" % (len(ENTRY_TYPE), ENTRY_TYPE, len(bare), bare)
    return EntrySignature(revision, key, signature, signed)


class RecordJudge:
    """Reads a record once, entry by entry, then the items, and finds what contradicts it.

    ``strict`` is for local engines, where an entry's revision follows the one it was decided on.
    ``trims`` is for engines that trim unsealed entries by themselves: elsewhere such a gap means
    that entries were removed.  ``begins`` is the mark before the first entry, if entries preceded.
    ``fits`` verifies a signature; with None signatures are counted and not verified.
    ``store`` is the id of the store, which signed entries name; without it the first one says it.
    """

    def __init__(
        self,
        *,
        strict: bool,
        trims: bool = True,
        begins: DigestMark | None = None,
        marks: Iterable[ExpectedMark] = (),
        findings: Findings | None = None,
        parse: Callable[[bytes], ParsedEntry] = parse,
        known: Callable[[int, str, str, int], KnownEntry] = KnownEntry,
        fits: Callable[[bytes, bytes, bytes], bool] | None = signature_fits,
        store: str = "",
    ) -> None:
        self.store = store
        start = begins or DigestMark()
        self.findings = findings or Findings()
        self.rolling = RollingDigest(start, self.findings)
        self.first = self.read = self.trimmed = 0
        self.dropped = start.entries
        self._strict, self._trims, self._parse, self._remember = strict, trims, parse, known
        self._partial, self._gap = begins is not None, start.revision
        self._fits = fits
        self.unchecked: list[EntrySignature] = []  # signatures that ``check_signatures`` verifies
        self.signed: dict[str, SignedEntries] = {}  # by public key; unsigned entries under ""
        self._recent: dict[str, KnownEntry] = {}
        self._older: dict[str, KnownEntry] = {}
        self._writers: dict[str, KnownEntry] = {}
        self._state: dict[str, tuple[KnownEntry, str]] = {}
        self._deleted: set[str] = set()
        self._accepted: dict[str, set[str]] = {}
        self._doubtful: list[DoubtfulLink] = []
        self._open: dict[str, list[OpenLink]] = {}
        self._resolved: dict[str, int] = {}
        self._unreadable: list[int] = []
        self._suspects: dict[str, Flaw] = {}
        for expected in marks:
            self.rolling.expect(expected)
        self.rolling.meet(start.revision)

    # ---- entries --------------------------------------------------------------------------------

    def segment(self, key: str, begins: DigestMark, ends: DigestMark | None) -> None:
        """The next entries come from a segment, which must continue those before it."""
        at = self.rolling.at
        if begins.revision > at:
            self.missing(begins)
        elif begins.revision == at and at:  # else it was sealed while the log was read
            self.expect(ExpectedMark(begins, f"the beginning of {key}"))
        if ends is not None:
            self.rolling.expect(ExpectedMark(ends, key))

    def expect(self, expected: ExpectedMark) -> None:
        """A mark that the entries must meet, from here on."""
        self.rolling.expect(expected)
        self.rolling.meet(self.rolling.at)

    def missing(self, upto: DigestMark) -> None:
        """The entries up to a mark are not here."""
        said = f"the entries after revision {self.rolling.at} up to {upto.revision} are missing"
        self.findings.add("completeness", said, upto.revision)
        self._skip(upto)

    def unreadable(self, key: str, last: int) -> None:
        """A segment cannot be read: its entries, up to this revision, are unknown."""
        self.findings.add("integrity", f"{key} is not a segment of sealed entries", key=key)
        self._skip(DigestMark(last), known=False)

    def changed(self, key: str) -> None:
        """A segment does not match its entries: they are judged without it."""
        self.findings.add("integrity", f"{key} is not as it was sealed: it was changed", key=key)

    def trimmed_before(self, first: int) -> None:
        """The entries before this one are gone, and no segment has them."""
        if not self._trims:
            said = f"entries up to revision {first - 1} were removed, and they were never sealed"
            self.findings.add("completeness", said, first - 1)
            self._skip(DigestMark(first - 1))
            return
        self.trimmed = first
        self.rolling.skip_trimmed(first - 1)
        self._begin_again(first - 1)

    def _skip(self, upto: DigestMark, *, known: bool = True) -> None:
        self.rolling.skip(upto, known=known)
        self._begin_again(upto.revision)

    def _begin_again(self, after: int) -> None:
        """Behind a gap the state is unknown: earlier entries prove nothing about it."""
        self._partial, self._gap = True, after
        for known in (self._state, self._writers, self._deleted, self._accepted):
            known.clear()

    def feed(self, items: Sequence[StoredEntry], *, sealed: bool = False) -> None:
        """The next entries, in order; sealed ones have no stored hash."""
        roll, writers, remember = self.rolling.roll, self._writers, self._remember
        self.first = self.first or (items[0].created if items else 0)
        for item in items:
            hash_ = sha256(item.value).hexdigest()
            roll(item.created, hash_)
            entry = self._entry(item, hash_, sealed=sealed)
            if entry is not None:
                writer, stored = entry.writer, hash_ if sealed else item.hash
                before = writers.get(writer)
                number = 1 if before is None else before.number + 1
                known = remember(item.created, entry.id, stored, number)
                known.key = self._signed(entry, item)
                if before is not None and before.key != known.key:
                    self._mixed(before.key, known)
                self._follow(entry, known)
                self._replay(entry, known)
                self._recent[stored] = writers[writer] = known
        self.read += len(items)
        if len(self.unchecked) > UNCHECKED:
            self.check_signatures()
        self._bound_memory()

    def _signed(self, entry: ParsedEntry, item: StoredEntry) -> str:
        """The public key that an entry says has signed it; empty if none."""
        key = ""
        if item.value[-SIGNED_SIZE:].startswith(SIGNED):
            found = signature_of(item.value, item.created)
            if found is None:
                self._spoilt(item.created, "has a signature that cannot be read")
            else:
                start = len(SIGNED) - SIGNED_SIZE
                key = item.value[start : start + 44].decode()
                if self._fits is not None:
                    self.unchecked.append(found)
                if entry.store != self.store:
                    self._signed_elsewhere(entry.store, item.created)
        share = self.signed.get(key)
        if share is None:
            if len(self.signed) >= RECENT:  # more keys than writers are remembered
                return key
            share = self.signed[key] = SignedEntries(key, item.created)
        share.add(entry.agent, item.created)
        return key

    def _signed_elsewhere(self, store: str, revision: int) -> None:
        """A signed entry counts in the store that it names; those of early versions name none."""
        if store and self.store:
            self._spoilt(revision, f"was signed for the store {store}, and this is {self.store}")
        self.store = self.store or store

    def _mixed(self, before: str, known: KnownEntry) -> None:
        """A writer signs all of its entries with one key, or none of them."""
        if not known.key:
            self._spoilt(known.revision, "is not signed, and its writer signs its entries")
        elif not before:
            self._spoilt(known.revision, "is signed, and the ones before it of its writer are not")
        else:
            self._spoilt(known.revision, "is signed by another key than its writer's before")

    def check_signatures(self) -> None:
        """Verify the signatures of the entries since the last time."""
        unchecked, self.unchecked = self.unchecked, []
        for revision, key, signature, data in unchecked:
            if self._fits is not None and not self._fits(key, signature, data):
                self._spoilt(revision, "has a signature that does not fit")

    def _bound_memory(self) -> None:
        if len(self._recent) > RECENT:
            self._older, self._recent = self._recent, {}
        while len(self._writers) > RECENT:
            del self._writers[next(iter(self._writers))]
        if len(self._deleted) > RECENT:
            self._deleted.clear()

    def _entry(self, item: StoredEntry, hash_: str, *, sealed: bool) -> ParsedEntry | None:
        """An entry, judged by itself; None for a void, or if it cannot be read."""
        revision, data = item.created, item.value
        if item.revision != revision:
            self._spoilt(revision, f"was written again at revision {item.revision}")
        if data == VOID:
            if item.hash and not sealed:
                self._spoilt(revision, "is a void that carries the hash of another entry")
            return None
        if hash_ != item.hash and not sealed:
            self._spoilt(revision, "does not hash to what is stored beside it")
        try:
            entry = self._parse(data)
        except (ValueError, TypeError, RecursionError):
            self._spoilt(revision, "cannot be read as an entry")
            self._unreadable.append(revision)
            return None
        if LOG + entry.id != item.key:
            self._spoilt(revision, f"says that it is {entry.id}, and stands at {item.key}")
        on = entry.on
        if on and (on + 1 != revision if self._strict else on >= revision):
            self._spoilt(revision, f"was decided on revision {on}, and cannot stand here")
        return entry

    def _spoilt(self, revision: int, wrong: str) -> None:
        self.findings.add("integrity", f"the entry {wrong}", revision)

    def _known(self, hash_: str) -> KnownEntry | None:
        return self._recent.get(hash_) or self._older.get(hash_)

    def _follow(self, entry: ParsedEntry, known: KnownEntry) -> None:
        """Follow the chain of the entry's writer."""
        for link in entry.after:
            linked = self._recent.get(link) or self._older.get(link)
            if linked is not None:
                linked.vouched = linked.linked = True
            else:
                self._dangling(entry, known, link)

    def _replay(self, entry: ParsedEntry, known: KnownEntry) -> None:
        """Follow the chains of the keys: the entry must have seen the state that the record has."""
        state = self._state
        for key, seen in entry.saw.items():
            there = state.get(key)
            if there is None:
                if seen is not None:
                    self._unexpected(known, key, seen, None)
            elif there[0].hash == seen:
                there[0].vouched = True
            else:
                self._unexpected(known, key, seen, there[0])
        for key, wrote in entry.put.items():
            state[key] = (known, wrote)
        for key in entry.deleted:
            state.pop(key, None)
            if self._partial:
                self._deleted.add(key)

    def _dangling(self, entry: ParsedEntry, known: KnownEntry, link: str) -> None:
        """A link to an entry of its writer that is not among the recent ones."""
        before = self._writers.get(entry.writer)
        if self._partial and (before is None or known.number <= UNDER_WAY):
            accepted = self._accepted.setdefault(entry.writer, set())
            if before is not None and link not in accepted:
                self._doubtful.append(DoubtfulLink(link, known, before))
            accepted.add(link)
        else:
            self._open.setdefault(link, []).append(OpenLink(known.revision, "", before))

    def _unexpected(
        self, known: KnownEntry, key: str, seen: str | None, there: KnownEntry | None
    ) -> None:
        """The entry saw another state of a key than the record has."""
        if seen == BLIND:
            return
        if seen is None:
            assert there is not None  # noqa: S101 - else both say that the key is absent
            there.undone = True
            wrote = f"revision {there.revision}" if there.revision else "an entry"
            said = f"the entry saw nothing under {key}, which {wrote} had written:"
            said += " one that deleted it is missing"
            self.findings.add("completeness", said, known.revision, key)
            return
        older = self._known(seen)
        unknown = there is None and self._partial and key not in self._deleted
        if unknown and (older is None or older.revision <= self._gap):
            if older is not None:  # no entry in the gap changed the key
                older.vouched = True
            writer = KnownEntry(0, "", seen)
            writer.vouched = True
            self._state[key] = (writer, "")
        elif older is not None:
            self._stale(known.revision, key, older.revision)
        else:
            self._open.setdefault(seen, []).append(OpenLink(known.revision, key, there))

    def _stale(self, revision: int, key: str, older: int) -> None:
        said = f"the entry saw {key} as revision {older} left it, and that was not the last before"
        self.findings.add("integrity", f"{said} it: one was moved or added", revision, key)

    # ---- a second reading -----------------------------------------------------------------------

    def wanted(self) -> frozenset[str]:
        """The hashes of open links, to be looked for among all entries."""
        self._reopen()
        return frozenset(self._open)

    def resolve(self, hash_: str, revision: int) -> None:
        """One of the wanted entries is here."""
        self._resolved[hash_] = revision

    def _reopen(self) -> None:
        """All entries were read: open the links again that should not have been accepted.

        If an entry is linked and the one before it never is, the one between them is missing.
        """
        for link, known, before in self._doubtful:
            if known.linked and not before.linked:
                self._open.setdefault(link, []).append(OpenLink(known.revision, "", before))
        self._doubtful.clear()

    # ---- items ----------------------------------------------------------------------------------

    def keys(self) -> KeysView[str]:
        """The keys that exist, by the entries."""
        return self._state.keys()

    def item(self, key: str, revision: int, digest: str, entry: str, hash_: str) -> None:
        """An item: its key and revision, the digest of its payload, the entry that wrote it."""
        there = self._state.pop(key, None)
        if there is None:
            self._unwritten(key, revision, entry, hash_)
            return
        known, wrote = there
        if hash_ == known.hash and entry == (known.id or entry):
            known.vouched = True
            if known.revision and (digest != wrote or revision != known.revision):
                self._suspect(
                    "integrity", f"{key} is not what revision {known.revision} wrote", key
                )
        elif entry == known.id:
            said = f"the entry is not the one that wrote {key}: it was changed"
            self._suspects[key] = Flaw("integrity", said, known.revision)
            self._resolved[hash_] = EXPLAINED
        else:
            older = self._known(hash_)
            if older is not None or not known.revision:
                was = older.revision if older is not None else "an entry"
                last = known.revision or "the last entry"
                self._suspect("integrity", f"{key} is as {was} left it, and not as {last} did", key)
            else:
                writer = entry or "an unknown entry"
                said = f"{key} was written by {writer}, which is not in the record"
                self._suspect("completeness", said, key)

    def _unwritten(self, key: str, revision: int, entry: str, hash_: str) -> None:
        """An item that no entry wrote."""
        if not hash_ and key.startswith(UNSTAMPED) and key not in STAMPED:
            return
        if self._partial and key not in self._deleted and 0 < revision <= self._gap:
            return
        said = f"{key} stands there, and no entry wrote it"
        if entry and self._known(hash_) is None:
            said = f"{key} was written by {entry}, which is not in the record"
        self._suspect("completeness", said, key)

    def _suspect(self, verdict: Aspect, said: str, key: str) -> None:
        self._suspects[key] = Flaw(verdict, said, key=key)

    def items_end(self) -> frozenset[str]:
        """All items were read; returns the keys where record and state disagree.

        Keys that a later entry changed while the items were read are passed to ``finish``.
        """
        for key, (known, _) in self._state.items():
            said = f"revision {known.revision} wrote {key}, and nothing stands there"
            if not known.revision:
                said = f"{key} was there, no entry deleted it, and nothing stands there"
            self._suspect("completeness", said, key)
            known.undone = True
        self._state.clear()
        return frozenset(self._suspects)

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, changed: Iterable[str] = ()) -> dict[Aspect, Literal["ok", "bad", "unproven"]]:
        """The verdicts; ``changed`` are keys that were written while the items were read."""
        self.check_signatures()
        self._reopen()
        for key in changed:
            self._suspects.pop(key, None)
        for flaw in self._suspects.values():
            self.findings.put(flaw)
        for link, opens in self._open.items():
            self._close(link, opens)
        self.rolling.end()
        proven: dict[Aspect, bool] = {
            "integrity": True,
            "completeness": not self.trimmed,
            "truncation": self.rolling.anchored > 0,
        }
        bad = self.findings.bad
        return {
            name: "bad" if name in bad else "ok" if sure else "unproven"
            for name, sure in proven.items()
        }

    def _close(self, link: str, opens: list[OpenLink]) -> None:
        """Report a link that leads nowhere, or to the wrong entry."""
        position = self._resolved.get(link)
        if position == EXPLAINED:
            return
        if position is not None:
            for each in opens:
                self._misled(each, position)
            return
        saw = [each for each in opens if each.key]
        each = saw[0] if saw else opens[0]
        instead = each.instead
        if instead is None or instead.vouched or instead.undone or not instead.revision:
            what = f"saw {each.key} as an entry left it" if each.key else "links an entry"
            self.findings.add("completeness", f"the entry {what} that is missing", each.revision)
        elif not any(instead.revision < one < each.revision for one in self._unreadable):
            said = f"the entry is not the one that revision {each.revision} links:"
            said += " it was changed, or the one behind it is missing"
            self.findings.add("integrity", said, instead.revision)

    def _misled(self, each: OpenLink, position: int) -> None:
        if position >= each.revision:
            self._spoilt(each.revision, f"links one that stands behind it, at revision {position}")
        elif each.key:
            self._stale(each.revision, each.key, position)


class Comparison:
    """A record compared with an export: an older one of itself, or one of a copy of its store.

    An export that the record contains in full proves as much as an anchor at the export's end.
    An export of a part also names the digest at its beginning, which the record must meet.
    ``entries`` are the positions and hashes of the export's entries, ``after`` is where ours begin.
    """

    def __init__(
        self,
        judge: RecordJudge,
        name: str,
        begins: DigestMark,
        entries: Iterator[tuple[int, str]],
        after: int = 0,
    ) -> None:
        self._judge, self._name, self._begins, self._entries = judge, name, begins, entries
        judge.expect(ExpectedMark(begins, f"the beginning of {name}", outside=True))
        self._theirs = next((each for each in entries if each[0] > after), None)
        self._common = self._longer = 0
        self._parted: tuple[int, int] | None = None

    def entry(self, revision: int, hash_: str) -> None:
        """The next entry of the record."""
        if self._parted is not None or revision <= self._begins.revision:
            return
        if self._theirs is None:
            self._longer = self._longer or revision
        elif self._theirs == (revision, hash_):
            self._common = revision
            self._theirs = next(self._entries, None)
        else:
            self._parted = (revision, self._theirs[0])

    def skip(self, first: int) -> None:
        """Skip the export's entries before this revision: the record no longer has its own."""
        while self._theirs is not None and self._theirs[0] < first:
            self._theirs = next(self._entries, None)

    def end(self) -> tuple[Literal["same", "longer", "shorter", "parted"], int, int, int]:
        """How they compare, the last common revision, and where each goes on; before ``finish``."""
        for _ in self._entries:  # reads to the last line: the export may be cut
            pass
        common, findings, rolling = self._common, self._judge.findings, self._judge.rolling
        if self._parted is not None:
            ours, theirs = self._parted
            both = f"revision {common} is the last that both have" if common else "they share none"
            said = f"the record and {self._name} parted: {both}, then the record has revision"
            findings.add("truncation", f"{said} {ours} and the export another at {theirs}", theirs)
            return "parted", common, ours, theirs
        if self._theirs is not None:
            theirs = self._theirs[0]
            said = f"{self._name} goes on after revision {common} with {theirs}:"
            said += " the end of this record is missing, or the export is of a newer copy"
            findings.add("truncation", said, theirs)
            return "shorter", common, 0, theirs
        rolling.anchored = max(rolling.anchored, common)
        return ("longer" if self._longer else "same"), common, self._longer, 0


# ---- reading an export --------------------------------------------------------------------------


def mark_of(found: Line) -> DigestMark:
    return DigestMark(found.get("revision", 0), found.get("entries", 0), found.get("digest", ""))


def entry_of(line: Line) -> ExportedEntry:
    from base64 import b64decode

    data = line["entry"].encode() if "entry" in line else b64decode(line["base64"])
    created: int = line["revision"]
    again: int = line.get("again", created)
    return ExportedEntry(LOG + line["id"], data, created, again, line["hash"])


def lines_of(path: str) -> Iterator[Line]:
    """The lines of an export, which must have its head and its end."""
    line: Line = {}
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file):
            line = decode_json(text)
            if not number and line.get("interlock") != 1:
                raise ValueError(f"{path} is not an export that this checker knows")
            yield line
    if "ends" not in line:
        raise ValueError(f"{path} was cut before its end")


def hashes_of(lines: Iterator[Line]) -> Iterator[tuple[int, str]]:
    """The position and the hash of each entry."""
    for entry in (entry_of(line) for line in lines if "id" in line):
        yield entry.created, sha256(entry.value).hexdigest()


def anchors_of(path: str) -> list[Line]:
    """The anchors of a file; a last line that was cut while it was written is left out."""
    found: list[Line] = []
    with open(path, encoding="utf-8") as file:
        for text in file:
            try:
                found += [decode_json(text)] if text.strip() else []
            except ValueError:
                if text.endswith("\n"):
                    raise
    return found


class ExportCheck:
    """One reading of an export, line by line; ``verdicts`` are there after the last line."""

    def __init__(self, path: str, anchors: Iterable[Line] = (), against: str = "") -> None:
        self.verdicts: dict[Aspect, Literal["ok", "bad", "unproven"]] = {}
        lines = lines_of(path)
        head = next(lines)
        begins = mark_of(head["begins"])
        self._path, self._items = path, 0
        self._strict, self._entries_read = bool(head["strict"]), False
        self.judge = RecordJudge(
            strict=self._strict,
            begins=None if head["whole"] else begins,
            marks=[ExpectedMark(mark_of(each), "the anchor", outside=True) for each in anchors],
            store=str(head.get("store", "")),
        )
        self._comparison: Comparison | None = None
        if against:
            theirs = lines_of(against)
            first = mark_of(next(theirs)["begins"])
            self._comparison = Comparison(
                self.judge, against, first, hashes_of(theirs), begins.revision
            )
        for line in lines:
            self._read(line)

    def _read(self, line: Line) -> None:
        judge = self.judge
        if "mark" in line:
            judge.expect(ExpectedMark(mark_of(line["mark"]), line["name"]))
        elif "missing" in line and line["why"]:
            judge.unreadable(line["why"].split()[0], line["missing"]["revision"])
        elif "missing" in line:
            judge.missing(mark_of(line["missing"]))
        elif "forgotten" in line:
            self._trimmed(line["forgotten"])
        elif "key" in line:
            self._end_entries()
            self._items += 1
            judge.item(*(line[name] for name in ("key", "revision", "digest", "entry", "hash")))
        elif "ends" in line:
            self._end(line)
        elif "changed" in line:
            judge.changed(line["changed"])
        else:
            entry = entry_of(line)
            if self._comparison is not None:
                self._comparison.entry(entry.created, sha256(entry.value).hexdigest())
            judge.feed([entry])

    def _trimmed(self, first: int) -> None:
        if self._strict:
            said = f"entries up to revision {first - 1} were removed, and they were never sealed"
            self.judge.findings.add("completeness", said, first - 1)
        if self._comparison is not None:
            self._comparison.skip(first)
        self.judge.trimmed_before(first)

    def _end_entries(self) -> None:
        """The items follow: look for links that point far back in a second reading."""
        if not self._entries_read and (wanted := self.judge.wanted()):
            for revision, hash_ in hashes_of(lines_of(self._path)):
                if hash_ in wanted:
                    self.judge.resolve(hash_, revision)
        self._entries_read = True

    def _end(self, line: Line) -> None:
        self._end_entries()
        judge = self.judge
        if mark_of(line["ends"]).revision != judge.rolling.at or line["items"] != self._items:
            said = "lines of this file are missing"
            judge.findings.add("completeness", said, judge.rolling.at)
        judge.items_end()
        if self._comparison is not None:
            self._comparison.end()
        self.verdicts = judge.finish(line["changed"])

    def findings(self) -> list[Flaw]:
        """Changed segments first, since they explain later findings, then by verdict."""
        return sorted(
            self.judge.findings.kept.values(),
            key=lambda each: (
                each.verdict != "integrity" or not each.key.startswith("segments/"),
                *(each.verdict, each.revision, each.key),
            ),
        )


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Check an export of a record of Interlock.")
    parser.add_argument("export")
    parser.add_argument("--anchor", help="a file of anchors")
    parser.add_argument("--against", help="another export: an older one, or that of a copy")
    words = parser.parse_args()
    try:
        anchors = anchors_of(words.anchor) if words.anchor else []
        check = ExportCheck(words.export, anchors, words.against or "")
    except UNREADABLE as error:
        sys.stderr.write(f"this cannot be checked: {error!r}\n")
        return 2
    for name, word in check.verdicts.items():
        print(f"{name:<13} {word}")
    judge = check.judge
    print(f"{judge.read} entries, revision {judge.first} to {judge.rolling.at}")
    for key, share in judge.signed.items() if any(judge.signed) else ():
        by = f"signed by {share.fingerprint}" if key else "not signed"
        agents = ", ".join(sorted(each or "-" for each in share.agents))
        print(f"{by}: {share.entries} entries, revision {share.first} to {share.last}, of {agents}")
    if any(judge.signed) and judge.store:
        print(f"signed for the store {judge.store}")
    for verdict, says, revision, key in check.findings():
        print(f"{verdict} at {f'revision {revision}' if revision else key}: {says}")
    return int("bad" in check.verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
