"""The folder in which guards of a merge queue run: a worktree with one commit, and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from interlock.core.safe_text import foreign
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.repository import MergeRepository
from interlock.steps import InThread, Op


class GuardFolder:
    """A detached worktree of its own, made when it is first needed."""

    def __init__(self, repository: MergeRepository, target: str, token: int) -> None:
        from interlock.core import codec, keys

        self._repository = repository
        cache = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(cache):
            cache = os.path.join(os.path.expanduser("~"), ".cache")
        digest = codec.digest(os.fsencode(repository.common()))[:12]
        self._above = os.path.join(cache, "interlock", "merges", digest)
        self._prefix = keys.encode(target) + "@"
        self.path = os.path.join(self._above, f"{self._prefix}{token}")
        self._made = False
        self._fresh = False
        """Whether nothing but git has written there."""

    def check_out(self, commit: str) -> None:
        """Have this commit there, and nothing else: no file of an earlier one is left.

        If that fails, the folder is made again, once: a git that was killed there leaves its lock,
        and a guard may have changed anything.  GitFailed if it cannot be had at all.
        """
        try:
            self._check_out(commit)
        except (GitFailed, OSError):
            self._remove(self.path)
            self._made = False
            try:
                self._check_out(commit)
            except OSError as error:
                said = f"{foreign(self.path)} cannot be made ({error.strerror})"
                raise GitFailed(f"{said}; set XDG_CACHE_HOME to a folder with room") from None

    @contextmanager
    def being_made(self, commit: str) -> Iterator[None]:
        """A block beside which the folder is made, if there is none: that writes every file."""
        if self._made:
            yield
            return
        thread = threading.Thread(target=self._make, args=(commit,))
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _make(self, commit: str) -> None:
        with suppress(GitFailed, OSError):  # the check out makes it again, or says why it cannot
            self._add(commit)

    def _add(self, commit: str) -> None:
        os.makedirs(self._above, mode=0o700, exist_ok=True)
        self._made, self._fresh = True, False
        self._repository.git("worktree", "add", "-q", "--force", "--detach", self.path, commit)
        self._fresh = True

    def _check_out(self, commit: str) -> None:
        git = self._repository.git
        if self._made:
            git("checkout", "-q", "--force", "--detach", commit, folder=self.path)
            if not self._fresh:
                git("clean", "-qffdx", folder=self.path)
        else:
            self._add(commit)
        self._fresh = False
        if os.path.exists(os.path.join(self.path, ".gitmodules")):
            git("submodule", "-q", "update", "--init", "--recursive", "--force", folder=self.path)
            clean = ("foreach", "--recursive", "git clean -qffdx")  # it enters no submodule itself
            git("submodule", "-q", *clean, folder=self.path)

    def remove_others(self) -> None:
        """Remove the folders of earlier servers, which were killed."""
        with suppress(OSError):  # there are none, or the next check out says what is wrong
            for name in os.listdir(self._above):
                path = os.path.join(self._above, name)
                if name.startswith(self._prefix) and path != self.path:
                    self._remove(path)

    def removing(self) -> Op[None]:
        """Remove it."""
        if self._made:
            self._made = False
            yield InThread(partial(self._remove, self.path))

    def _remove(self, path: str) -> None:
        import shutil

        try:
            self._repository.git("worktree", "remove", "--force", "--force", path)
        except GitFailed:  # it is not one of its worktrees any more, or never was
            shutil.rmtree(path, ignore_errors=True)
            with suppress(GitFailed):
                self._repository.git("worktree", "prune")
