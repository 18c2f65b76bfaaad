"""Changes of reserved files that did not go through the edit tool.

The hook after an edit notes how the file looks (``interlock-edits`` in the git folder of the
worktree: a line of JSON for each edit).  After other tools, ``git status`` names the changed files.
One that another agent has reserved, and that looks different from the last edit of its holder, was
written around the edit tool: by this agent's shell command, by a person, or by a program.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from interlock import git_command

MOST = 500
"""Changed files that are looked at."""
_LARGEST = 256 * 1024
_PATIENCE = 8.0
"""Seconds for ``git status``."""


def note_edits(root: str, agent: str, paths: Iterable[str]) -> None:
    """Note how files look after an edit, for the hooks of other agents."""
    lines = [json.dumps([path, agent, look(root, path)]) for path in paths]
    file = _file(root)
    if not lines:
        return
    with suppress(OSError):
        if os.path.getsize(file) > _LARGEST:
            os.replace(file, f"{file}.old")
    with suppress(OSError), open(file, "a", encoding="utf-8") as out:
        out.write("".join(f"{line}\n" for line in lines))


def edited(root: str) -> dict[str, tuple[str, list[int]]]:
    """The last edit of each file: the agent, and how the file looked after it."""
    found: dict[str, tuple[str, list[int]]] = {}
    file = _file(root)
    for each in (f"{file}.old", file):
        with suppress(OSError), open(each, encoding="utf-8") as lines:
            for line in lines:
                with suppress(ValueError):  # a line that is being written
                    path, agent, looked = json.loads(line)
                    found[path] = (agent, looked)
    return found


def changed(root: str) -> list[str]:
    """The files that differ from the last commit, and new ones, as git names them.

    TimeoutError if git needs too long.
    """
    if not git_command.root_of(root):  # a bare repository has no files
        return []
    words = ("--no-optional-locks", "status", "--porcelain=v1", "-z", "-uall")
    try:
        done = subprocess.run(  # noqa: S603
            git_command.command(*words, folder=root),
            cwd=root,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            env=git_command.environment(),
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"git status takes longer than {_PATIENCE:g} s") from None
    if done.returncode:
        return []
    found: list[str] = []
    parts = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    while parts:
        entry = parts.pop(0)
        if not entry:
            continue
        found.append(entry[3:])
        if entry[0] in "RC" and parts:  # the old name follows
            found.append(parts.pop(0))
    return found[:MOST]


def look(root: str, path: str) -> list[int]:
    """How a file looks: when it was written, and its size; empty if it is gone."""
    try:
        found = os.stat(os.path.join(root, path), follow_symlinks=False)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size]


def _file(root: str) -> str:
    own, _ = git_command.git_folders(os.path.join(root, ".git"))
    return os.path.join(own, "interlock-edits")
