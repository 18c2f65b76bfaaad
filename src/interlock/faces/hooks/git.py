"""Git hooks: a commit or a push with files that another agent has reserved is refused.

``interlock hook git pre-commit`` and ``pre-push`` are called by scripts in the hooks folder of git
(``git rev-parse --git-path hooks``), which run the hook that was there before them.  A person, or
an agent, overrides a refusal with a reason, which is recorded: INTERLOCK_OVERRIDE='the reason'.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from interlock.core.safe_text import one_line
from interlock.core.validate import span
from interlock.errors import InterlockError, StoreMissing

NAMES = ("pre-commit", "pre-push")
_MARK = "# written by 'interlock setup git'"
_BEFORE = ".before-interlock"
_SCRIPT = """#!/bin/sh
{mark}; 'interlock setup git --remove' takes it away
input=$(cat)
printf '%s\\n' "$input" | {command} hook git {name} || exit $?
if [ -x "$0{before}" ]; then
  printf '%s\\n' "$input" | "$0{before}" "$@"
fi
"""
_NOTHING = "0" * 40


def git_hooks(
    root: str, command: str, notes: list[str], *, remove: bool
) -> Iterator[tuple[str, str | None, str | None]]:
    """The changes of git's hooks: path, old text, new text."""
    folder = _git(root, "rev-parse", "--git-path", "hooks").strip()
    if not folder:
        notes.append("this is no git repository; run it inside of one")
        return
    folder = os.path.join(root, folder)
    managed = _git(root, "config", "core.hooksPath").strip()
    for name in NAMES:
        path = os.path.join(folder, name)
        old, earlier = _read(path), _read(path + _BEFORE)
        ours = old is not None and _MARK in old
        if remove:
            if ours:
                yield path, old, earlier
                if earlier is not None:
                    yield path + _BEFORE, earlier, None
            continue
        if managed and not ours:
            notes.append(
                f"core.hooksPath is {managed}: its hooks belong to another tool;"
                f" add this line to its {name} hook: {command} hook git {name}"
            )
            continue
        script = _SCRIPT.format(mark=_MARK, command=command, name=name, before=_BEFORE)
        if old is not None and not ours:
            yield path + _BEFORE, earlier, old
        yield path, old, script


def run(name: str) -> int:
    """Check a commit or a push; returns the exit status."""
    try:
        return _check(name)
    except StoreMissing:
        return 0  # nothing can be reserved here
    except (InterlockError, OSError, subprocess.SubprocessError) as error:
        if os.environ.get("INTERLOCK_OVERRIDE"):
            return 0
        sys.stderr.write(
            f"interlock: cannot check whether files are reserved: {error};\n"
            "to go on without the check: git commit --no-verify, or git push --no-verify\n"
        )
        return 1


def agent_here() -> str:
    """The agent that runs this command, as its hooks name it; empty for a person."""
    from interlock.faces.hooks.event import HookEvent
    from interlock.faces.hooks.hosts import HOSTS

    if name := os.environ.get("INTERLOCK_AGENT"):
        return name
    for variable, host in (("CLAUDE_CODE_SESSION_ID", "claude"), ("CODEX_THREAD_ID", "codex")):
        if session := os.environ.get(variable):
            return HookEvent("", "", session, "").agent(HOSTS[host])
    return ""


def _check(name: str) -> int:
    from interlock import store_location
    from interlock.client import begun
    from interlock.nouns.reservations import repository
    from interlock.stores import open_store

    lines = "" if name == "pre-commit" or sys.stdin.isatty() else sys.stdin.read()
    paths = _staged() if name == "pre-commit" else _pushed(lines)
    if not paths:
        return 0
    place, agent = repository.find(), agent_here()
    store = open_store(store_location.find_store(), create=False)
    with begun(store, agent or "person", join=False) as fleet:
        fleet.context.runner.via = "hook"
        found = fleet.reservations.conflicts(paths, agent=agent, worktree=place.root)
        if not found:
            return 0
        if reason := os.environ.get("INTERLOCK_OVERRIDE", "").strip():
            fleet.reservations.override(*[each.witness for each in found], reason=reason)
            sys.stderr.write(f"interlock: overridden and recorded: {one_line(reason)}\n")
            return 0
        now = fleet.context.runner.clock.wall()
        said = [
            f"  {one_line(each.witness)}: reserved by {one_line(each.holder)}"
            f"{f' ({one_line(each.reason)})' if each.reason else ''} since {span(now - each.since)}"
            for each in found
        ]
    sys.stderr.write(
        f"interlock: this {name[4:]} has files that another agent has reserved:\n"
        + "\n".join(said)
        + "\nleave them out (git restore --staged FILE), or ask the holder (interlock query ...);\n"
        "to override it, with a reason that is recorded: INTERLOCK_OVERRIDE='WHY' git ...\n"
    )
    return 1


def _staged() -> list[str]:
    return _names("diff", "--cached", "--name-only", "-z", "--no-renames")


def _pushed(lines: str) -> list[str]:
    found: dict[str, None] = {}
    for line in lines.splitlines():
        words = line.split()
        if len(words) != 4 or set(words[1]) == {"0"}:  # noqa: PLR2004 - a deleted branch has no files
            continue
        _, local, _, remote = words
        if set(remote) == {"0"} or not _git(".", "cat-file", "-e", remote, quiet=True):
            log = ("log", "--name-only", "-z", "--no-renames", "--format=", local, "--not")
            names = _names(*log, "--remotes")
        else:
            names = _names("diff", "--name-only", "-z", "--no-renames", f"{remote}..{local}")
        found |= dict.fromkeys(names)
    return list(found)


def _names(*words: str) -> list[str]:
    return [name for name in _git(".", *words).split("\0") if name.strip("\n")]


def _git(folder: str, *words: str, quiet: bool = False) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", "-C", folder, *words],  # noqa: S607
        capture_output=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        return ""
    return "yes" if quiet else done.stdout.decode("utf-8", "surrogateescape")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None
