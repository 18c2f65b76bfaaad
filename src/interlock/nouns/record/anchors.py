"""Anchors: marks of the record, kept out of reach of a person who can change the store.

``anchor`` adds the current mark to a place, and ``verify_with_anchors`` holds the record to the
marks of places.  A record that contradicts itself is not anchored: an anchor would make it look
sound.

A place is a file with one line for each anchor, or a ref of the current git repository
(``git:REF``), where each anchor is a commit on top of the last; the work tree and the index are not
touched.  A line is
``{"anchor":1,"at":...,"revision":...,"entries":...,"digest":...}``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from interlock import git_command
from interlock.check_record import DigestMark, ExpectedMark
from interlock.core import codec
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote
from interlock.errors import BadInput, StoreBusy, StoreDamaged, StoreUnsuitable
from interlock.nouns.record.noun import Anchored, Verified
from interlock.nouns.record.verify import verify, verify_and_roll
from interlock.runtime.monitoring import store_id
from interlock.runtime.runner import Runner
from interlock.runtime.verdict import Verdict, remember_verdict
from interlock.steps import InThread, Op
from interlock.store import Capabilities

if TYPE_CHECKING:
    import subprocess

FORMAT = 1
GIT = "git:"
_FOLDER = "refs/interlock/"
_FILE = "anchors"
_BEGINS = b'{"anchor":'
_NOBODY = {"NAME": "interlock", "EMAIL": "interlock@localhost"}


class AnchorLine(Struct, frozen=True, kw_only=True):
    """A mark with the moment at which it was made."""

    anchor: int = FORMAT
    at: float
    revision: int
    entries: int
    digest: str

    @property
    def mark(self) -> DigestMark:
        """The mark that the record must meet."""
        return DigestMark(self.revision, self.entries, self.digest)


def verify_with_anchors(
    capabilities: Capabilities, anchors: Sequence[str], against: str
) -> Op[Verified]:
    """Read the whole record, and judge it by the anchors in these places too."""
    marks: list[ExpectedMark] = []
    for place in map(_anchor_place, anchors):
        found = yield InThread(place.read)
        if not found:
            raise BadInput(
                f"{place.name} has no anchor; make one: interlock record anchor {quote(place.name)}"
            )
        marks.extend(_expected_marks(place, found))
    found = yield from verify(capabilities, marks, against)
    remember_verdict((yield from store_id()), Verdict(at=time.time(), intact=bool(found)))
    return found


def anchor(runner: Runner, name: str) -> Op[Anchored]:
    """Add the current mark to a place, if the record meets the place's anchors."""
    place = _anchor_place(name)
    before = yield InThread(place.read)
    rolling, found = yield from verify_and_roll(runner.capabilities, _expected_marks(place, before))
    _refuse(found, place)
    if not rolling.known:
        raise StoreUnsuitable(
            "the beginning of the record was trimmed away and no checkpoint stands for it;"
            " run 'interlock maintain', then anchor again"
        )
    if before and not rolling.compared:
        raise StoreUnsuitable(
            f"no anchor in {place.name} speaks about an entry that is still here, so one more"
            " would prove nothing about them; find out who dropped the entries, keep the place"
            " as it is, and anchor to a new one"
        )
    mark = rolling.mark
    if not before or before[-1].mark != mark:
        made = AnchorLine(at=round(runner.clock.wall(), 3), **mark._asdict())
        yield InThread(lambda: place.add(made))
    return Anchored(place=place.name, **mark._asdict())


def _anchor_place(name: str) -> AnchorPlace:
    if not name:
        raise BadInput("where to? name a file, or git:REF")
    return AnchorGitRef(name) if name.startswith(GIT) else AnchorFile(name)


def _expected_marks(place: AnchorPlace, anchors: Sequence[AnchorLine]) -> tuple[ExpectedMark, ...]:
    return tuple(
        ExpectedMark(each.mark, f"the anchor in {foreign(place.name)}", outside=True)
        for each in anchors
    )


def _refuse(found: Verified, place: AnchorPlace) -> None:
    met = found.anchored
    spoilt = {finding.verdict: finding for finding in reversed(found.findings)}
    if (wrong := spoilt.get("integrity")) is not None:
        raise StoreDamaged(
            f"the record contradicts itself at {wrong.revision or wrong.key}: it is not anchored;"
            " run 'interlock record verify'"
        )
    if (wrong := spoilt.get("truncation")) is not None:
        since = f"since revision {met}, whose anchor it meets" if met else "or it is another store"
        raise StoreDamaged(
            f"the record does not meet the anchor at revision {wrong.revision} in {place.name}:"
            f" it was cut or changed, {since}; run"
            f" {command(f'interlock record verify --anchor {quote(place.name)}')}"
        )
    if (wrong := spoilt.get("completeness")) is not None:
        raise StoreDamaged(
            f"something is missing from the record at {wrong.revision or wrong.key}: it is not"
            " anchored; run 'interlock record verify'"
        )


def parse_anchors(text: bytes, name: str) -> tuple[AnchorLine, ...]:
    """The anchors of a file; a last line that was cut while it was written is left out."""
    found: list[AnchorLine] = []
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            anchor = msgspec.json.decode(line, type=AnchorLine) if line else None
        except codec.UNREADABLE:
            begins = line.startswith(_BEGINS) or _BEGINS.startswith(line)
            if number == len(lines) and begins:
                break
            raise BadInput(f"line {number} of {name} is not an anchor; name another file") from None
        if anchor is not None and anchor.anchor > FORMAT:
            raise BadInput(f"{name} was written by a later version; update Interlock")
        if anchor is not None:
            found.append(anchor)
    return tuple(found)


class AnchorFile:
    """A file of lines, for its owner alone."""

    def __init__(self, path: str) -> None:
        self.name = path

    def read(self) -> tuple[AnchorLine, ...]:
        """All anchors, the oldest first; none if the place is new."""
        try:
            with open(self.name, "rb") as file:
                return parse_anchors(file.read(), self.name)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise BadInput(f"{self.name}: {error.strerror}; name another file") from None

    def add(self, anchor: AnchorLine) -> None:
        """One more line, on the disk when this returns."""
        try:
            self._add(codec.encode(anchor) + b"\n")
        except OSError as error:
            raise BadInput(f"{self.name}: {error.strerror}; name another file") from None

    def _add(self, line: bytes) -> None:
        with open(os.open(self.name, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # so that two writers do not mix their lines
            text = file.read()
            if text and not text.endswith(b"\n"):
                whole = text[: text.rfind(b"\n") + 1]
                if len(parse_anchors(text, self.name)) > len(parse_anchors(whole, self.name)):
                    line = b"\n" + line  # only its end is missing
                else:  # it was cut while it was written
                    file.truncate(len(whole))
            file.seek(0, os.SEEK_END)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(os.path.dirname(os.path.abspath(self.name)), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class AnchorGitRef:
    """A ref of the current git repository: a commit for each anchor."""

    def __init__(self, name: str) -> None:
        ref = name.removeprefix(GIT)
        self.name = name
        self._ref = ref if ref.startswith("refs/") else _FOLDER + ref
        self._old = ""

    def read(self) -> tuple[AnchorLine, ...]:
        """All anchors."""
        self._git("check-ref-format", self._ref)
        self._git("rev-parse", "--git-dir")
        found = self._try("rev-parse", "--verify", "--quiet", self._ref + "^{commit}")
        self._old = found.stdout.decode().strip() if found.returncode == 0 else ""
        if not self._old:
            return ()
        return parse_anchors(self._git("cat-file", "blob", f"{self._old}:{_FILE}"), self.name)

    def add(self, anchor: AnchorLine) -> None:
        """Add a commit, unless another process added one since the read."""
        before = self._git("cat-file", "blob", f"{self._old}:{_FILE}") if self._old else b""
        lines = before + codec.encode(anchor) + b"\n"
        blob = self._git("hash-object", "-w", "--stdin", given=lines).decode().strip()
        tree = self._git("mktree", given=f"100644 blob {blob}\t{_FILE}\n".encode()).decode().strip()
        parents = ("-p", self._old) if self._old else ()
        words = f"Anchor the record at revision {anchor.revision}\n"
        made = self._git("commit-tree", tree, *parents, given=words.encode(), signed=True)
        commit = made.decode().strip()
        if self._try("update-ref", self._ref, commit, self._old or "0" * len(commit)).returncode:
            raise StoreBusy(f"another process moved {self._ref} just now; anchor again")

    def _git(self, *words: str, given: bytes = b"", signed: bool = False) -> bytes:
        done = self._try(*words, given=given, signed=signed)
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split()) or "it says no more"
            raise BadInput(f"{self.name}: git {words[0]} failed ({said}); name a file instead")
        return done.stdout

    def _try(
        self, *words: str, given: bytes = b"", signed: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        import subprocess  # only a git ref needs it

        environment = dict(os.environ)
        if signed and self._try("var", "GIT_COMMITTER_IDENT").returncode:
            for role in ("AUTHOR", "COMMITTER"):  # a machine without a git identity
                environment |= {f"GIT_{role}_{field}": _NOBODY[field] for field in _NOBODY}
        try:
            return subprocess.run(  # noqa: S603 - no shell, and the ref is checked
                git_command.command(*words, folder=os.curdir, bare=True),
                input=given,
                capture_output=True,
                check=False,
                env=environment,
            )
        except FileNotFoundError:
            raise BadInput("there is no git here; name a file instead") from None


AnchorPlace: TypeAlias = AnchorFile | AnchorGitRef
"""Where anchors are kept."""
