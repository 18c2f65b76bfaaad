"""A folder that a commit brings, and that git takes for a bare repository with programs to run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_HOOKS = (
    "applypatch-msg", "post-checkout", "post-index-change", "post-merge", "post-rewrite",
    "pre-commit", "pre-push", "pre-rebase", "reference-transaction",
)  # fmt: skip


class HostileFolder:
    """The folder ``vendor/lib`` of a work tree; each program that its config names leaves a mark.

    The folder has files, an index, attributes and the same remote as the work tree, so that all
    commands of git find something to do.
    """

    def __init__(self, work_tree: Path, origin: str = "") -> None:
        self.folder = work_tree / "vendor/lib"
        self._marks = work_tree.parent / "marks"
        self.folder.mkdir(parents=True)
        self._git("init", "-q", "--bare", "-b", "main", ".")
        for setting, value in {
            "core.bare": "false",
            "core.worktree": str(self.folder),
            "user.name": "mallory",
            "user.email": "mallory@localhost",
            **({"remote.origin.url": origin} if origin else {}),
        }.items():
            self._git("config", setting, value)
        (self.folder / ".gitattributes").write_text("*.txt filter=x diff=x merge=x\n")
        (self.folder / "a.txt").write_text("a\n")
        self._git("add", ".gitattributes", "a.txt")
        self._git("commit", "-qm", "one")
        self._git("branch", "side")
        for setting in (
            "core.fsmonitor", "core.pager", "core.editor", "core.askPass", "core.sshCommand",
            "core.alternateRefsCommand", "core.gitProxy", "credential.helper", "diff.external",
            "diff.x.command", "diff.x.textconv", "filter.x.clean", "filter.x.smudge",
            "gpg.program", "merge.x.driver", "sequence.editor",
        ):  # fmt: skip
            self._git("config", setting, self._program(setting))
        for setting in ("commit.gpgSign", "filter.x.required"):
            self._git("config", setting, "true")
        (self.folder / "hooks").mkdir(exist_ok=True)
        for name in _HOOKS:
            hook = self.folder / "hooks" / name
            hook.write_text(f"#!/bin/sh\n{self._program(f'hook {name}')}\n")
            hook.chmod(0o755)
        (self.folder / "a.txt").write_text("b\n")
        self._check_armed()

    def marks(self) -> str:
        """The programs that ran."""
        return self._marks.read_text() if self._marks.exists() else ""

    def _program(self, name: str) -> str:
        return f"echo {name} >> {self._marks}; cat #"

    def _check_armed(self) -> None:
        """A plain git runs them, else a test would prove nothing."""
        subprocess.run(["git", "status"], cwd=self.folder, capture_output=True, check=False)
        assert {"core.fsmonitor", "filter.x.clean"} <= set(self.marks().split("\n"))
        self._marks.unlink()

    def _git(self, *words: str) -> None:
        known = {"PATH": os.environ["PATH"], "HOME": os.devnull, "GIT_DIR": "."}
        subprocess.run(["git", *words], cwd=self.folder, env=known, check=True, capture_output=True)
