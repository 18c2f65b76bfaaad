"""Repositories for tests of merge queues, made by one git each, and what happened to their refs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

IDENTITY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
}


class TestRepository:
    """A repository with the branch ``main``, which has a file ``base``."""

    __test__ = False

    def __init__(self, folder: Path, *, bare: bool = True, branch: str = "main") -> None:
        self.folder = folder
        kind = ["--bare"] if bare else []
        self._git("init", "-q", "-b", branch, *kind, os.fspath(folder), folder=folder.parent)
        if not bare:
            (folder / ".git/info/exclude").write_text(".interlock\n")
        self.git("config", "user.name", "test")
        self.git("config", "user.email", "test@localhost")
        self.git("config", "core.logAllRefUpdates", "always")
        self.branch(branch, {"base": "base\n"}, onto="")
        if not bare:
            self.git("reset", "-q", "--hard")

    def git(self, *words: str, given: str = "") -> str:
        """What git prints."""
        return self._git(*words, given=given, folder=self.folder)

    def _git(self, *words: str, given: str = "", folder: Path) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**os.environ, **IDENTITY},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def branch(self, name: str, files: Mapping[str, str], onto: str = "main") -> str:
        """A new commit with these files on a branch that begins at another one; its id."""
        lines = [f"commit refs/heads/{name}", "committer test <test@localhost> 1700000000 +0000"]
        lines += [f"data {len(name)}", name]
        if onto:
            lines.append(f"from refs/heads/{onto}^0")
        for path, text in files.items():
            lines += [f"M 100644 inline {path}", f"data {len(text.encode())}", text]
        self.git("fast-import", "--quiet", "--force", given="\n".join((*lines, "")))
        return self.at(name)

    def at(self, name: str) -> str:
        """The commit of a branch; empty if there is none."""
        return self.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{name}")

    def branches(self) -> set[str]:
        """All branches."""
        return set(self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def kept(self) -> set[str]:
        """The commits that the queue keeps."""
        said = self.git("for-each-ref", "--format=%(objectname)", "refs/interlock/merges")
        return set(said.split())

    def has(self, commit: str, branch: str = "main") -> bool:
        """Whether a branch contains a commit."""
        said = self.git("for-each-ref", f"--contains={commit}", f"refs/heads/{branch}")
        return bool(said)

    def files(self, commit: str = "main") -> set[str]:
        """The files of a commit."""
        return set(self.git("ls-tree", "-r", "--name-only", commit).split())

    def tips(self, branch: str = "main") -> list[str]:
        """All commits that a branch has pointed to, the first one first."""
        return self.git("reflog", "show", "--format=%H", branch).split()[::-1]
