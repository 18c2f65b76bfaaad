"""The commits of a batch, made by one git that stays open, since the start of a git is what costs.

    with CommitWriter(repository) as writer:
        tip = writer.commit(tree, (base, branch), "Merge branch")

``hash-object`` reads the path of a file, writes its content as an object, and prints its name: by
then other processes find the commit.  It checks the form of what it writes.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Self, cast

from interlock.nouns.merges.repository import SECONDS, GitFailed, reason_of

if TYPE_CHECKING:
    from interlock.nouns.merges.repository import CommitIdentity, MergeRepository

_WORDS = ("hash-object", "-t", "commit", "-w", "--no-filters", "--stdin-paths")


class CommitWriter:
    """Makes commits; of one thread."""

    def __init__(self, repository: MergeRepository) -> None:
        self._repository = repository

    def __enter__(self) -> Self:
        self._git = self._repository.start(_WORDS)
        self._file = tempfile.NamedTemporaryFile(prefix="interlock-")  # noqa: SIM115 - see __exit__
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        for end in (self._git.stdin, self._git.stdout, self._git.stderr):
            cast("IO[bytes]", end).close()
        try:
            self._git.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._git.kill()
            self._git.wait()

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit, and return its name."""
        lines = [f"tree {tree}", *[f"parent {each}" for each in dict.fromkeys(parents)]]
        by = self._repository.identity()
        lines += [f"author {_signed(by.author)}", f"committer {_signed(by.committer)}", "", message]
        self._write(os.fsencode("\n".join(lines)))
        name = self._answer()
        if not name:
            raise GitFailed(self._failure())
        return name

    def _write(self, content: bytes) -> None:
        try:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(content)
            self._file.flush()
            asked = os.fsencode(f'"{_quoted(self._file.name)}"\n')
            cast("IO[bytes]", self._git.stdin).write(asked)
        except OSError as error:  # no room, or git has ended
            raise GitFailed(f"no commit can be made: {error.strerror}") from None

    def _answer(self) -> str:
        """The line that git prints; empty if it ends."""
        pipe, ends = cast("IO[bytes]", self._git.stdout), time.monotonic() + SECONDS
        said, events = b"", select.poll()
        events.register(pipe, select.POLLIN)
        while not said.endswith(b"\n"):
            if not events.poll(max(ends - time.monotonic(), 0.0) * 1000):
                self._git.kill()
                raise GitFailed(f"git hash-object did not answer within {SECONDS:g} s")
            part = os.read(pipe.fileno(), 4096)
            if not part:
                return ""
            said += part
        return said.decode("ascii", "replace").strip()

    def _failure(self) -> str:
        said = os.fsdecode(cast("IO[bytes]", self._git.stderr).read())
        return reason_of("hash-object", self._git.wait(), said)


def _signed(by: CommitIdentity) -> str:
    """A name with a date: that of this moment, unless the environment sets one."""
    if by.date:
        return f"{by.name} {by.date}"
    now = time.time()
    minutes = time.localtime(now).tm_gmtoff // 60
    sign = "-" if minutes < 0 else "+"
    return f"{by.name} {int(now)} {sign}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
