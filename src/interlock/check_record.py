"""Checks an export of a record of Interlock, and needs nothing but Python: read it, then run it.

    python3 check_record.py EXPORT [--anchor FILE] [--against OTHER_EXPORT]

Three verdicts, with a position (a revision or a key) for whatever speaks against one:
    integrity     nothing that is there was changed, moved or added
    completeness  nothing is missing in between, and record and state tell the same
    truncation    nothing is missing at the end; that takes an anchor, or an older export
It ends with 0, with 1 if one of them is bad, with 2 if it cannot read what it was given.

An export is JSON Lines: a head, the entries in order, then the items.
    An entry's hash is the SHA-256 of its text.  It names the hashes of its writer's entries before
    it (after), for each key that it checked the hash of the entry that wrote what it saw (saw),
    and for each key that it wrote the digest of the payload (put).
    An item carries the id and hash of the entry that wrote it, and the digest of its payload.
    A digest is rolled over all entries: SHA-256 of (digest so far, revision, ":", hash).  A mark
    is that digest as it was after some entry: kept in the store, or elsewhere as an anchor.
What was before the beginning is not here: a first link of a writer, or a first look at a key, that
leads back there is let pass.  A writer with several commits under way has more such links; they are
let pass up to its UNDER_WAY-th entry, unless the entry before is never linked and this one is: then
the one between them is missing.
Where the digest is not known (forgotten, which no local engine does by itself) it goes on from the
next mark.  If that is none of the anchors, the first anchor behind it counts for nothing; none does
if entries stand before the gap.
"""

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

UNDER_WAY = 10_000
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
VOID = b'{"verb":"void"}'
Line = dict[str, Any]
Mark = tuple[int, int, str]


class Entry:
    """What is remembered of an entry."""

    def __init__(self, revision: int, id_: str, hash_: str) -> None:
        self.revision, self.id, self.hash = revision, id_, hash_
        self.vouched = revision == 0  # another entry, or an item, carries its hash
        self.linked = False  # by another of its writer
        self.number = 0  # so many of its writer came, since the beginning or a gap
        self.undone = False  # what it wrote is gone, and no entry says why


class Check:
    """One reading of an export."""

    def __init__(self, head: Line, anchors: list[Line]) -> None:
        self.found: list[tuple[str, int, str, str]] = []
        self.at, self.count, self.digest = mark_of(head["begins"])
        self.lost = self.at
        self.covered, self.strict = True, bool(head["strict"])
        self.rolled, self.partial = True, not head["whole"]
        self.grounded = True  # the digest rests on the beginning, or on an anchor
        self.severed = False  # entries were read that no mark to come can prove
        self.marks = [(mark_of(each), "the anchor", True) for each in anchors if mark_of(each)[1]]
        self.first = self.read = self.anchored = 0
        self.entries: dict[str, Entry] = {}
        self.last_of: dict[str, Entry] = {}
        self.state: dict[str, tuple[Entry, str]] = {}
        self.gone: set[str] = set()
        self.excused: set[tuple[str, str]] = set()
        self.open: dict[str, list[tuple[int, str, Entry | None]]] = {}
        self.doubts: list[tuple[str, Entry, Entry]] = []
        self.told: set[str] = set()
        self.unread: list[int] = []
        self.items: dict[str, Line] = {}
        self.meet(self.at)

    def say(self, verdict: str, revision: int, key: str, sentence: str) -> None:
        if not any(each[:3] == (verdict, revision, key) for each in self.found):
            self.found.append((verdict, revision, key, sentence))

    def meet(self, upto: int) -> None:
        """Compare the marks up to a revision with the digest as it is now."""
        for each in sorted(mark for mark in self.marks if mark[0][0] <= upto):
            self.marks.remove(each)
            mark, name, outside = each
            if mark[0] <= self.lost and mark[0] != self.at:
                continue  # about entries that are not here
            if mark[0] == self.at and not self.rolled:
                pass
            elif mark == (self.at, self.count, self.digest):
                self.anchored = mark[0] if outside and self.grounded else self.anchored
            else:
                verdict = "truncation" if outside else "integrity"
                self.say(verdict, mark[0], "", f"{name} is not met by the entries up to here")
            if mark[0] == self.at:  # what follows is measured from here
                self.grounded = not self.severed if outside else self.grounded
                self.count, self.digest, self.rolled = mark[1], mark[2], True

    def missing(self, line: Line) -> None:
        """Entries that should have come from a segment are not here."""
        upto = mark_of(line["missing"])
        if line["why"]:
            self.say("integrity", 0, line["why"].split()[0], line["why"])
        else:
            self.say("completeness", upto[0], "", f"entries after {self.at} are missing")
        for each in [each for each in self.marks if each[0][0] < upto[0]]:
            self.marks.remove(each)
            if each[2]:
                self.say("truncation", each[0][0], "", "the anchor is not met: entries are missing")
        if line["why"]:
            self.unknown()
        self.at, self.count, self.digest = upto
        self.begin_again()

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one; the digest is known from the next mark on."""
        if self.strict:
            self.say("completeness", first - 1, "", "a local store forgets only what is sealed")
        self.marks = [each for each in self.marks if each[0][0] >= first]
        self.unknown()
        self.at, self.covered = first - 1, False
        self.begin_again()

    def unknown(self) -> None:
        """The digest is the next mark's, which may be as false as what was before it."""
        self.severed = self.severed or self.at > self.lost
        self.rolled = self.grounded = False

    def begin_again(self) -> None:
        """Behind a gap anything may have changed: what was before it says nothing any more."""
        self.partial, self.lost = True, self.at
        self.last_of, self.state, self.gone, self.excused = {}, {}, set(), set()

    def entry(self, line: Line) -> None:
        revision, data = line["revision"], raw(line)
        self.first = self.first or revision
        self.meet(revision - 1)
        hash_ = sha(data)
        self.digest = sha(f"{self.digest}{revision}:{hash_}".encode())
        self.at, self.count, self.read = revision, self.count + 1, self.read + 1
        self.meet(revision)
        if line["hash"] != ("" if data == VOID else hash_):
            self.say("integrity", revision, "", "its hash is not that of its text")
        if "again" in line:
            self.say("integrity", revision, "", f"it was written again, at {line['again']}")
        if data == VOID:
            return
        entry = parsed(data)
        if entry is None:
            self.say("integrity", revision, "", "it cannot be read as an entry")
            self.unread.append(revision)
            return
        self.judge(revision, line, entry)
        known = Entry(revision, entry.get("id", ""), line["hash"])
        self.follow(known, entry.get("writer", ""), entry.get("after", []))
        self.replay(known, entry)
        self.entries[line["hash"]] = self.last_of[entry.get("writer", "")] = known

    def judge(self, revision: int, line: Line, entry: Line) -> None:
        """What an entry says of itself."""
        on = entry.get("on", 0)
        if entry.get("id", "") != line["id"]:
            self.say("integrity", revision, "", "it stands in the place of another entry")
        if on and (on + 1 != revision if self.strict else on >= revision):
            self.say("integrity", revision, "", f"it was decided on revision {on}: it was moved")

    def follow(self, known: Entry, writer: str, links: list[str]) -> None:
        """The chain of its writer."""
        before = self.last_of.get(writer)
        known.number = before.number + 1 if before else 1
        for link in links:
            if link in self.entries:
                self.entries[link].vouched = self.entries[link].linked = True
            elif self.partial and (before is None or known.number <= UNDER_WAY):
                if before and (writer, link) not in self.excused:
                    self.doubts.append((link, known, before))
                self.excused.add((writer, link))
            else:
                self.open.setdefault(link, []).append((known.revision, "", before))

    def replay(self, known: Entry, entry: Line) -> None:
        """The chains of the keys."""
        for key, seen in entry.get("saw", {}).items():
            there = self.state[key][0] if key in self.state else None
            if there and seen == there.hash:
                there.vouched = True
            elif there and seen is None:
                there.undone = True
                said = "it saw nothing there: the entry that deleted it is missing"
                self.say("completeness", known.revision, key, said)
            elif self.before_gap(key, seen, there):
                self.state[key] = (Entry(0, "", str(seen)), "")
            elif seen in self.entries:
                self.say("integrity", known.revision, key, "it saw an older state: one was moved")
            elif seen not in (None, "blind"):
                self.open.setdefault(seen, []).append((known.revision, key, there))
        self.state |= {key: (known, digest) for key, digest in entry.get("put", {}).items()}
        for key in entry.get("deleted", []):
            self.state.pop(key, None)
            self.gone.add(key)

    def before_gap(self, key: str, seen: str | None, there: Entry | None) -> bool:
        """Whether what was seen may be from before the beginning or a gap."""
        if seen in (None, "blind") or there or not self.partial or key in self.gone:
            return False
        older = self.entries.get(str(seen))
        if older and older.revision <= self.lost:
            older.vouched = True
        return not older or older.revision <= self.lost

    def compare(self, changed: set[str]) -> None:
        """The items with what the entries left; not those that changed while they were read."""
        for key in self.items.keys() | self.state.keys():
            item, (wrote, digest) = self.items.get(key), self.state.get(key, (None, ""))
            if wrote and not item:
                wrote.undone = True
            if key in changed:
                continue
            if not item:
                self.say("completeness", 0, key, "an entry wrote it, and it is not there")
            elif wrote:
                self.compare_one(key, item, wrote, digest)
            elif not self.excuse(key, item):
                self.say("completeness", 0, key, "no entry wrote what stands here")

    def excuse(self, key: str, item: Line) -> bool:
        """Whether an item may have no entry: an older one, or a fact of the engine."""
        older = self.partial and key not in self.gone and 0 < item["revision"] <= self.lost
        ours = key in ("meta/sealed", "meta/checkpoint")
        return older or (key.startswith("meta/") and not ours and not item["hash"])

    def compare_one(self, key: str, item: Line, wrote: Entry, digest: str) -> None:
        if item["hash"] == wrote.hash and (not wrote.id or item["entry"] == wrote.id):
            wrote.vouched = True
            if wrote.revision and (item["digest"], item["revision"]) != (digest, wrote.revision):
                self.say("integrity", 0, key, f"it is not what revision {wrote.revision} wrote")
        elif item["entry"] == wrote.id:
            self.told.add(item["hash"])
            self.say("integrity", wrote.revision, "", f"it is not the entry that wrote {key}")
        elif item["hash"] in self.entries or not wrote.revision:
            self.say("integrity", 0, key, "it is not as the last entry left it")
        else:
            self.say("completeness", 0, key, "the entry that wrote it is missing")

    def close(self) -> None:
        """Links that led nowhere when they were met."""
        for link, known, before in self.doubts:
            if known.linked and not before.linked:
                self.open.setdefault(link, []).append((known.revision, "", before))
        for link in self.open.keys() - self.told:
            each = self.open[link]
            revision, _, instead = ([one for one in each if one[1]] or each)[0]
            if link in self.entries:
                for one in each:
                    self.say("integrity", one[0], "", "it links an entry that stands behind it")
            elif not instead or instead.vouched or instead.undone:
                self.say("completeness", revision, "", "it links an entry that is missing")
            elif not any(instead.revision < one < revision for one in self.unread):
                said = f"revision {revision} links another: it was changed, or one is missing"
                self.say("integrity", instead.revision, "", said)

    def end(self, line: Line) -> None:
        """The last line was read."""
        if mark_of(line["ends"])[0] != self.at or line["items"] != len(self.items):
            self.say("completeness", self.at, "", "lines of this file are missing")
        self.compare(set(line["changed"]))
        self.close()
        for mark, name, _ in self.marks:
            self.say("truncation", mark[0], "", f"{name} is here, and the record ends before it")

    def verdicts(self) -> dict[str, str]:
        good = {
            "integrity": "ok",
            "completeness": "ok" if self.covered else "unproven",
            "truncation": "ok" if self.anchored else "unproven",
        }
        return good | {verdict: "bad" for verdict, *_ in self.found}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raw(line: Line) -> bytes:
    """The bytes of an entry as they were stored."""
    return line["entry"].encode() if "entry" in line else base64.b64decode(line["base64"])


def parsed(data: bytes) -> Line | None:
    """An entry, if its parts are what they should be."""
    kinds = {"id": str, "writer": str, "on": int, "saw": dict, "put": dict}
    kinds |= {"after": list, "deleted": list}
    try:
        entry = json.loads(data)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(entry, dict) and all(
        isinstance(entry.get(name, kind()), kind) for name, kind in kinds.items()
    )
    return entry if sound else None


def mark_of(found: Line) -> Mark:
    return found.get("revision", 0), found.get("entries", 0), found.get("digest", "")


def lines_of(path: str) -> Iterator[Line]:
    """The lines of an export, which must have its head and its end."""
    line: Line = {}
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file):
            line = json.loads(text)
            if not number and line.get("interlock") != 1:
                raise ValueError(f"{path} is not an export that this checker knows")
            yield line
    if "ends" not in line:
        raise ValueError(f"{path} was cut before its end")


def anchors_of(path: str) -> list[Line]:
    """The anchors of a file; a last line that was cut while it was written is left out."""
    found: list[Line] = []
    with open(path, encoding="utf-8") as file:
        for text in file:
            try:
                found += [json.loads(text)] if text.strip() else []
            except ValueError:
                if text.endswith("\n"):
                    raise
    return found


def check(path: str, anchors: list[Line]) -> Check:
    lines = lines_of(path)
    checking = Check(next(lines), anchors)
    for line in lines:
        if "mark" in line:
            checking.marks.append((mark_of(line["mark"]), line["name"], False))
            checking.meet(checking.at)
        elif "missing" in line:
            checking.missing(line)
        elif "changed" in line and "ends" not in line:
            checking.say("integrity", 0, line["changed"], "it is not as it was sealed")
        elif "forgotten" in line:
            checking.forgotten(line["forgotten"])
        elif "key" in line:
            checking.items[line["key"]] = line
        elif "ends" in line:
            checking.end(line)
        else:
            checking.entry(line)
    return checking


def compare(path: str, other: str, checking: Check) -> None:
    """Where two exports part; one that the first has in full is as good as an anchor."""
    ours, theirs = (
        {line["revision"]: sha(raw(line)) for line in lines_of(each) if "id" in line}
        for each in (path, other)
    )
    begins, common = max(min(ours, default=0), min(theirs, default=0)), 0
    for revision in sorted(each for each in ours.keys() | theirs.keys() if each >= begins):
        if revision > max(theirs, default=0):
            break  # ours goes on
        if ours.get(revision) != theirs.get(revision):
            said = (
                f"{other} has another entry here, or one more; {common} is the last that both have"
            )
            checking.say("truncation", revision, "", said)
            return
        common = revision
    checking.anchored = max(checking.anchored, common)


def place(finding: tuple[str, int, str, str]) -> tuple[bool, str, int, str]:
    """Where a finding is told: a segment first, since it explains what comes behind it."""
    verdict, revision, key, _ = finding
    changed = verdict == "integrity" and key.startswith("segments/")
    return not changed, verdict, revision, key


def main() -> int:
    parser = argparse.ArgumentParser(description="Check an export of a record of Interlock.")
    parser.add_argument("export")
    parser.add_argument("--anchor", help="a file of anchors")
    parser.add_argument("--against", help="another export: an older one, or that of a copy")
    words = parser.parse_args()
    try:
        anchors: list[Line] = []
        if words.anchor:
            anchors = anchors_of(words.anchor)
        if words.against:  # of a part: its beginning has to be met too
            anchors.append(next(lines_of(words.against))["begins"])
        checking = check(words.export, anchors)
        if words.against:
            compare(words.export, words.against, checking)
    except UNREADABLE as error:
        sys.stderr.write(f"this cannot be checked: {error!r}\n")
        return 2
    for name, word in checking.verdicts().items():
        print(f"{name:<13} {word}")
    print(f"{checking.read} entries, revision {checking.first} to {checking.at}")
    for verdict, revision, key, said in sorted(checking.found, key=place):
        print(f"{verdict} at {f'revision {revision}' if revision else key}: {said}")
    return int("bad" in checking.verdicts().values())


if __name__ == "__main__":
    sys.exit(main())
