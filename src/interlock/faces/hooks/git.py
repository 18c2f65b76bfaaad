"""Git hooks: a commit or a push with files that another agent has reserved is refused.

``interlock hook git pre-commit`` and ``pre-push`` are called by scripts in the hooks folder of git
(``git rev-parse --git-path hooks``), which run the hook that was there before them.  A person, or
an agent, overrides a refusal with a reason, which is recorded: INTERLOCK_OVERRIDE='the reason'.

A commit or a push with files of a store is refused, too, with or without a store and an override.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from interlock import git_command
from interlock.core.safe_text import foreign, one_line, printable
from interlock.core.validate import span
from interlock.errors import BadInput, InterlockError, StoreMissing
from interlock.faces.hooks.actions import EDITING
from interlock.faces.hooks.tree_files import read_bytes
from interlock.nouns.merges.store_files import (
    RAW,
    TrackedFile,
    changed_files,
    listed_files,
    named_store_files,
    store_files,
    store_part,
    way_out,
)

if TYPE_CHECKING:
    from interlock.nouns.reservations import reservation as r

NAMES = ("pre-commit", "pre-push")
MARK = "# written by 'interlock setup git'"
BEFORE = ".before-interlock"
_SCRIPT = """#!/bin/sh
{mark}; 'interlock setup git --remove' takes it away
input=$(cat)
printf '%s\\n' "$input" | {command} hook git {name} || exit $?
if [ -x "$0{before}" ]; then
  printf '%s\\n' "$input" | "$0{before}" "$@"
fi
"""
_PATIENCE = 60.0
"""Seconds for one git."""


class HookFile(NamedTuple):
    """The change of one file of git's hooks: its old and its new text.

    ``source`` is a file that is moved here as it is, with its permissions.
    """

    path: str
    old: str | None
    new: str | None
    source: str = ""


def git_hooks(root: str, command: str, notes: list[str], *, remove: bool) -> Iterator[HookFile]:
    """The changes of git's hooks; a hook that was there before is moved aside, and back."""
    folder = git_answer(root, "rev-parse", "--git-path", "hooks")
    if not folder:
        raise BadInput(
            f"{printable(root)} is in no git repository, so nothing was changed;"
            " run it inside of one"
        )
    if not remove and (tracked := tracked_store_files(root)):
        notes.append(
            f"git tracks {named_store_files(tracked)}; take them out: {way_out(tracked)}; then"
            " commit that"
        )
    folder = os.path.join(root, folder)
    managed = git_answer(root, "config", "core.hooksPath")
    for name in NAMES:
        path = os.path.join(folder, name)
        old, earlier = read_hook(path), read_hook(path + BEFORE)
        ours = old is not None and MARK in old
        if remove:
            if ours:
                aside = "" if earlier is None else path + BEFORE
                yield HookFile(path, old, earlier, aside)
                if aside:
                    yield HookFile(aside, earlier, None)
            continue
        if managed and not ours:
            notes.append(
                f"core.hooksPath is {foreign(managed)}: its hooks belong to another tool;"
                f" add this line to its {name} hook: {command} hook git {name}"
            )
            continue
        if old is not None and not ours:
            yield HookFile(path + BEFORE, earlier, old, path)
        yield HookFile(path, old, script(command, name))


def script(command: str, name: str) -> str:
    """The hook of this name that ``setup git`` writes."""
    return _SCRIPT.format(mark=MARK, command=command, name=name, before=BEFORE)


def run(name: str) -> int:
    """Check a commit or a push; returns the exit status."""
    try:
        return _check(name)
    except StoreMissing:
        return 0  # nothing can be reserved here
    except (InterlockError, OSError) as error:
        if os.environ.get("INTERLOCK_OVERRIDE"):
            return 0
        from interlock.faces.hooks.hosts import FOR_A_PERSON

        way = "to go on without the check: git commit --no-verify, or git push --no-verify"
        if isinstance(error, FOR_A_PERSON):
            way = "ask the person you work for"
        sys.stderr.write(
            f"interlock: cannot check whether files are reserved: {one_line(str(error))};\n{way}\n"
        )
        return 1


def agent_here() -> str:
    """The agent that runs this command, as its hooks name it; empty if it is unknown.

    A sub-agent runs commands under the name of its agent.
    """
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
    from interlock.faces.hooks.notices import given_reason
    from interlock.nouns.reservations import repository

    lines = "" if name == "pre-commit" or sys.stdin.isatty() else sys.stdin.read()
    changed = _staged() if name == "pre-commit" else _pushed(lines)
    if of_store := changed.of_store:
        sys.stderr.write(
            f"interlock: this {name[4:]} has {named_store_files(of_store)}\n"
            f"leave them out: {way_out(of_store)}"
            + ("\n" if name == "pre-commit" else ", then commit that\n")
        )
        return 1
    if not (paths := changed.paths):
        return 0
    place, agent = repository.find(), agent_here()
    store = store_location.open_place(store_location.find_store())
    with begun(store, agent or "person", join=False) as fleet:
        fleet.context.runner.via = "hook"
        every = fleet.reservations.conflicts(paths, agent=agent, worktree=place.root)
        found = [each for each in every if not _own(each, agent)]
        if not found:
            return 0
        if reason := os.environ.get("INTERLOCK_OVERRIDE", "").strip():
            fleet.reservations.override(*[each.witness for each in found], reason=reason)
            sys.stderr.write(f"interlock: overridden and recorded: {foreign(one_line(reason))}\n")
            return 0
        now = fleet.context.runner.clock.wall()
        said = [line for each in found for line in (_said(each, now), *given_reason(each.reason))]
    sys.stderr.write(
        f"interlock: this {name[4:]} has files that another agent has reserved:\n"
        + "\n".join(said)
        + "\nleave them out (git restore --staged FILE), or ask the holder (interlock query ...);\n"
        "to override it, with a reason that is recorded: INTERLOCK_OVERRIDE='WHY' git ...\n"
        + ("" if agent else "if one of them is you: INTERLOCK_AGENT='YOUR NAME' git ...\n")
    )
    return 1


def _said(each: r.ReservationOverlap, now: float) -> str:
    by = f"reserved by {foreign(each.holder)} since {span(now - each.since)}"
    return f"- {foreign(each.witness)}: {by}"


def _own(each: r.ReservationOverlap, agent: str) -> bool:
    """Whether a reservation is that of the caller.

    Most hosts do not say in the environment which session runs a command.  Without a name, files
    that are being edited in this worktree may be the caller's own, and it has to be able to commit
    them.
    """
    if not agent:
        return each.reason == EDITING
    return each.holder.startswith(f"{agent}/")


class _Changed(NamedTuple):
    """The paths that a commit or a push changes, and the files of a store that it brings.

    A store that it deletes is among neither: that may be the very store that cannot be opened.
    """

    paths: list[str]
    of_store: tuple[str, ...]


def _staged() -> _Changed:
    files = list(changed_files(_printed("diff", "--cached", "--no-ext-diff", *RAW)))
    return _Changed(_outside_stores(files), store_files(_printed, files))


def _pushed(lines: str) -> _Changed:
    """The files of the commits that no branch of a remote has yet, as far as we know them.

    What a merge brought along from such a branch was checked when it got there; of a merge count
    the files that it changed itself.
    """
    found: dict[str, None] = {}
    of_store: list[str] = []
    for line in lines.splitlines():
        words = line.split()
        if len(words) != 4 or set(words[1]) == {"0"}:  # noqa: PLR2004 - a deleted branch has no files
            continue
        _, local, _, remote = words
        known = [] if set(remote) == {"0"} or not _has_commit(remote) else [remote]
        log = ("log", "-c", "--root", "--no-ext-diff", *RAW, "--format=", local)
        files = list(changed_files(_printed(*log, "--not", *known, "--remotes", "--")))
        found |= dict.fromkeys(_outside_stores(files))
        of_store += _stores_pushed(local, known, files)
    return _Changed(list(found), tuple(of_store))


def _stores_pushed(local: str, known: list[str], files: Sequence[TrackedFile]) -> tuple[str, ...]:
    """The files of a store that a branch has at its end: beyond the remote, or by new commits.

    A merge may bring them from a branch of the remote.
    """
    if known:
        return store_files(
            _printed, changed_files(_printed("diff-tree", "-r", *RAW, *known, local))
        )
    if not store_files(_printed, files):
        return ()
    paths = {each.path for each in files}
    last = listed_files(_printed("ls-tree", "-r", "-z", "--full-tree", local))
    return store_files(_printed, [each for each in last if each.path in paths])


def _outside_stores(files: Iterable[TrackedFile]) -> list[str]:
    return [each.path for each in files if not store_part(each.path)]


def tracked_store_files(root: str) -> tuple[str, ...]:
    """The files of a store that git tracks in a worktree."""
    return store_files(
        partial(_printed, folder=root), listed_files(git_answer(root, "ls-files", "-s", "-z"))
    )


def _printed(*words: str, given: str = "", folder: str = ".") -> str:
    return os.fsdecode(run_git(folder, *words, given=os.fsencode(given)))


def _has_commit(name: str) -> bool:
    try:
        run_git(".", "cat-file", "-e", name)
    except GitRefused:
        return False
    return True


class GitRefused(OSError):
    """Git could not do it; the text is its reason."""


def run_git(folder: str, *words: str, given: bytes = b"") -> bytes:
    """What git prints, in the environment of a hook, whose index may be that of one commit.

    GitRefused with its reason if it fails: no answer is not an empty one.
    """
    named = "GIT_DIR" in os.environ  # perhaps by a path that begins in this folder
    place = "" if named else folder
    try:
        done = subprocess.run(  # noqa: S603
            git_command.command(*words, folder=place, bare=not named, hooks=True),
            cwd=folder,
            input=given,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitRefused(f"git {words[0]} takes longer than {_PATIENCE:g} s") from None
    if done.returncode:
        said = one_line(done.stderr.decode("utf-8", "replace"))[:200]
        raise GitRefused(f"git {words[0]} ended with {done.returncode}: {said}")
    return done.stdout


def git_answer(folder: str, *words: str) -> str:
    """What git says of a folder; empty if it is in no repository, or there is no git."""
    try:
        return os.fsdecode(run_git(folder, *words)).strip()
    except OSError:
        return ""


def read_hook(path: str) -> str | None:
    """The text of a hook; None if there is none."""
    try:
        data = read_bytes(path)
        return None if data is None else data.decode("utf-8", "surrogateescape")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error}; correct it, then run setup again"
        ) from None
