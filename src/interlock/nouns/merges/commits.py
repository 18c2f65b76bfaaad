"""The commits of a batch, made by one git that stays open, since the start of a git is what costs.

    with CommitWriter(repository) as writer:
        tip = writer.commit(tree, (base, branch), "Merge branch")

``hash-object`` reads the path of a file, writes its content as an object, and prints its name: by
then other processes find the commit.  It checks the form of what it writes.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from interlock.nouns.merges.git_process import SECONDS, GitFailed, pipes, reason_of

if TYPE_CHECKING:
    from interlock.nouns.merges.repository import CommitIdentity, MergeRepository

_WORDS = ("hash-object", "-t", "commit", "-w", "--no-filters", "--stdin-paths")


class CommitWriter:
    """Makes commits; of one thread."""

    def __init__(self, repository: MergeRepository) -> None:
        self._repository = repository
        self._size = 0

    def __enter__(self) -> Self:
        self._git = self._repository.start(_WORDS)
        self._input, self._output, self._errors = pipes(self._git)
        try:
            self._file = tempfile.NamedTemporaryFile(prefix="interlock-", buffering=0)
        except OSError as error:
            self._end()
            raise GitFailed(f"no file can be made for a commit: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._end()

    def _end(self) -> None:
        for end in (self._input, self._output, self._errors):
            end.close()
        self._git.wait()  # at the end of its input it ends

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit, and return its name."""
        by = self._repository.identity()
        lines = [f"tree {tree}", *[f"parent {each}" for each in dict.fromkeys(parents)]]
        lines += [f"author {_signed(by.author)}", f"committer {_signed(by.committer)}", "", message]
        try:
            self._write(os.fsencode("\n".join(lines)))
        except OSError as error:  # no room, or git has ended
            raise GitFailed(self._failure() or f"no commit can be made: {error.strerror}") from None
        if not (name := self._answer()):
            raise GitFailed(self._failure())
        return name

    def _write(self, content: bytes) -> None:
        """Write the content to the file, and its path to git."""
        if len(content) < self._size:
            os.ftruncate(self._file.fileno(), 0)
        self._size = os.pwrite(self._file.fileno(), content, 0)
        if self._size < len(content):  # git would take the part for the whole commit
            raise GitFailed("no commit can be made: the disk has no room for its message")
        self._input.write(os.fsencode(f'"{_quoted(self._file.name)}"\n'))

    def _answer(self) -> str:
        """The line that git prints; empty if it ends."""
        said, events, ends = b"", select.poll(), time.monotonic() + SECONDS
        events.register(self._output, select.POLLIN)
        while not said.endswith(b"\n"):
            if not events.poll(max(ends - time.monotonic(), 0.0) * 1000):
                self._git.kill()
                raise GitFailed(f"git hash-object did not answer within {SECONDS:g} s")
            part = os.read(self._output.fileno(), 4096)
            if not part:
                return ""
            said += part
        return said.decode("ascii", "replace").strip()

    def _failure(self) -> str:
        """Why git has ended; empty if it has not."""
        ended = select.select([self._output], (), (), 0.0)[0]
        if not ended:
            return ""
        said = os.fsdecode(self._errors.read())
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
