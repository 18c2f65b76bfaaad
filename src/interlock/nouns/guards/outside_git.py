"""Branches of the repository that the root is in, by the plumbing of git.

One process lists all branches that are asked about, one for each branch that others may be merged
into says which of them are, one for each worktree says whether it is clean.  One more is needed if
a branch is not merged, and one to list the worktrees.

- A branch is merged if every commit of it is in the other one.  A squash merge or a rebase makes
  new commits, so it is not seen.  The other one may be a remote-tracking branch, ``origin/main``:
  then the answer is as old as the last fetch.
- A branch is clean if no worktree that has it checked out has changes or untracked files.

``git status`` can run programs that the configuration of the repository names: filters, a file
system monitor.  So ``branch_clean`` counts as a command, and needs the permission for one.  The
monitor, hooks and the fetching of missing objects are turned off; filters cannot be.

Names never become options or patterns of git: each is passed as ``refs/heads/NAME``, and a name
that git does not allow for a branch is not passed at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from interlock import git_command
from interlock.nouns.guards.condition import BranchNeed, CleanNeed, MergedNeed
from interlock.nouns.guards.sighting import (
    Sighting,
    in_parallel,
    last_line,
    shown,
    sighting,
    unknown,
)
from interlock.runtime.processes.supervised import MOST, Ended, Supervision

GitNeed: TypeAlias = BranchNeed | CleanNeed | MergedNeed

GIT_SECONDS = 15.0
"""How long one process of git may take."""
STATUS_SECONDS = 30.0
"""How long the status of one worktree may take."""
SECONDS = 120.0
"""How long all of it may take."""

_NAMES = 400
_LONGEST = 1000
_OID = 12
_CHANGES = 3
_HEADS, _REMOTES = "refs/heads/", "refs/remotes/"
# The rules of git-check-ref-format(1).
_NOT_A_NAME = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|^\.|^/|/$|\.$|\.lock(?:/|$)", re.ASCII
)
_IGNORED = re.compile(rb"^warning: ignoring (?:broken ref|dangling symref) (.+)$", re.MULTILINE)
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_KEPT = ("PATH", "HOME", "XDG_CONFIG_HOME")


class GitTrouble(Exception):
    """Git cannot answer; the text says why."""


class Refs(Struct, frozen=True, kw_only=True):
    """The references that exist, with their commits, and those that git cannot read."""

    commits: dict[str, str]
    broken: frozenset[str]

    def target(self, name: str) -> str:
        """The full name of the branch that others may be merged into, local or remote."""
        names = (_HEADS + name, _REMOTES + name)
        return next((ref for ref in names if ref in self.commits), "")

    def missing(self, branch: str) -> str:
        """Why there is no commit of a branch; empty if there is one."""
        if _HEADS + branch in self.commits:
            return ""
        if _HEADS + branch in self.broken:
            return f"branch {shown(branch)} is broken"
        if not is_branch_name(branch):
            return f"git does not allow {shown(branch) or 'an empty name'} for a branch"
        return f"there is no branch {shown(branch)}"


class Worktree(Struct, frozen=True, kw_only=True):
    """A worktree of the repository: its folder, and the branch that it has checked out."""

    path: str = ""
    branch: str = ""
    bare: bool = False
    prunable: bool = False


class Git:
    """Runs git in a folder, with a clean environment."""

    def __init__(self, root: str, supervision: Supervision) -> None:
        self._root = root
        self._supervision = supervision
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._environment = {"PATH": os.defpath, **kept, **_ENVIRONMENT}

    def run(
        self, *words: str, folder: str = "", seconds: float | None = None, cut: bool = False
    ) -> Ended:
        """Run git; an output that is too long is an error, unless it may be ``cut``."""
        folder, seconds = folder or self._root, seconds or GIT_SECONDS
        ended = self._supervision.run(
            git_command.command(*words, folder=folder, bare=True),
            folder=folder,
            environment=self._environment,
            seconds=seconds,
            kept=MOST,
            joined=False,
        )
        if not (ended.how == "ended" and ended.status == 0) and not (
            cut and ended.how == "too much"
        ):
            raise GitTrouble(_reason(words[0], folder, seconds, ended))
        return ended

    def refs(self, names: Iterable[str]) -> Refs:
        """Which of these references exist: one process for some hundred of them."""
        form = "--format=%(refname)%00%(objectname)"
        commits: dict[str, str] = {}
        broken: set[str] = set()
        for part in _parts(sorted(names)):
            ended = self.run("for-each-ref", form, *part)
            lines = _lines(ended)
            commits.update((ref, oid) for ref, _, oid in (line.partition("\0") for line in lines))
            broken.update(os.fsdecode(ref) for ref in _IGNORED.findall(ended.err.head))
        return Refs(commits=commits, broken=frozenset(broken))

    def merged(self, names: Iterable[str], commit: str) -> set[str]:
        """Which of these references are merged into a commit."""
        found: set[str] = set()
        for part in _parts(sorted(names)):
            ended = self.run("for-each-ref", f"--merged={commit}", "--format=%(refname)", *part)
            found.update(_lines(ended))
        return found

    def require_history(self, commits: Iterable[str]) -> None:
        """Raises GitTrouble if one of these commits, or an older one, is missing in this clone."""
        for part in _parts(sorted(commits)):
            present = (f"{commit}^{{commit}}" for commit in part)
            ended = self.run("rev-parse", "--is-shallow-repository", *present)
            if ended.out.head.startswith(b"true"):
                raise GitTrouble("this clone is shallow, so it may lack the merge")

    def worktrees(self) -> list[Worktree]:
        """All worktrees of the repository; several can have one branch."""
        data = os.fsdecode(self.run("worktree", "list", "--porcelain", "-z").out.head)
        return [_worktree(record.split("\0")) for record in data.split("\0\0") if record]

    def changes(self, worktree: Worktree) -> tuple[list[str], bytes]:
        """What has changed in a worktree, and all that git said about it.

        Raises GitTrouble if it does not have its branch checked out any more.
        """
        ended = self.run(
            "status",
            "--porcelain=v2",
            "--branch",
            "--no-ahead-behind",
            "--no-renames",
            "--untracked-files=normal",
            "-z",
            folder=worktree.path,
            seconds=STATUS_SECONDS,
            cut=True,
        )
        records = os.fsdecode(ended.out.head).split("\0")
        if f"# branch.head {worktree.branch}" not in records:
            raise GitTrouble(f"worktree {shown(worktree.path)} changed while it was looked at")
        found = [_changed(record) for record in records if record and record[:2] != "# "]
        if not found and b"could not open" in ended.err.head:
            raise GitTrouble(f"git status says: {last_line(ended.err.head)}")
        return found, ended.out.head


def look(
    needs: Collection[GitNeed], root: str, supervision: Supervision
) -> dict[GitNeed, Sighting]:
    """Answer all needs about branches."""
    git = Git(root, supervision)
    seen: dict[GitNeed, Sighting] = {}
    try:
        refs = git.refs(_names(needs))
    except GitTrouble as trouble:
        return dict.fromkeys(needs, unknown(str(trouble)))
    seen |= {need: _exists(need, refs) for need in needs if isinstance(need, BranchNeed)}
    merges: dict[str, list[MergedNeed]] = {}
    for need in needs:
        if isinstance(need, MergedNeed):
            merges.setdefault(need.into, []).append(need)
    works: list[Callable[[], dict[GitNeed, Sighting]]] = [
        partial(_merged, git, refs, into, group) for into, group in merges.items()
    ]
    if cleans := [need for need in needs if isinstance(need, CleanNeed)]:
        works.append(partial(_clean, git, refs, cleans))
    for part in in_parallel([(work, SECONDS) for work in works]):
        seen |= part or {}
    return seen | _doubted(git, refs, seen)


def is_branch_name(name: str) -> bool:
    """Whether git allows the name for a branch, and Interlock its length."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _LONGEST and _NOT_A_NAME.search(name) is None


def _names(needs: Collection[GitNeed]) -> set[str]:
    names = {_HEADS + need.branch for need in needs if is_branch_name(need.branch)}
    targets = {need.into for need in needs if isinstance(need, MergedNeed)}
    return names | {
        above + into for into in targets if is_branch_name(into) for above in (_HEADS, _REMOTES)
    }


def _exists(need: BranchNeed, refs: Refs) -> Sighting:
    ref = _HEADS + need.branch
    if reason := refs.missing(need.branch):
        return unknown(reason) if ref in refs.broken else sighting(False, reason, b"absent")
    commit = refs.commits[ref]
    return sighting(True, f"branch {_at(need.branch, commit)} exists", f"{ref} {commit}".encode())


def _merged(
    git: Git, refs: Refs, into: str, needs: Sequence[MergedNeed]
) -> dict[GitNeed, Sighting]:
    """Which branches are merged into one other."""
    target = refs.target(into)
    if not target:
        return dict.fromkeys(needs, unknown(refs.missing(into)))
    commit = refs.commits[target]
    present = [need for need in needs if not refs.missing(need.branch)]
    seen: dict[GitNeed, Sighting] = {
        need: unknown(refs.missing(need.branch)) for need in needs if need not in present
    }
    try:
        found = git.merged((_HEADS + need.branch for need in present), commit) if present else set()
    except GitTrouble as trouble:
        return seen | dict.fromkeys(present, unknown(str(trouble)))
    for need in present:
        ref = _HEADS + need.branch
        merged = f"is merged into {_at(into, commit)}"
        unmerged = f"has commits that are not in {_at(into, commit)}"
        seen[need] = sighting(
            ref in found,
            f"branch {shown(need.branch)} {merged if ref in found else unmerged}",
            f"{ref} {refs.commits[ref]} {target} {commit} {ref in found}".encode(),
        )
    return seen


def _doubted(git: Git, refs: Refs, seen: dict[GitNeed, Sighting]) -> dict[GitNeed, Sighting]:
    """A branch that does not seem to be merged is unknown if commits are missing."""
    unmerged = [
        need
        for need, found in seen.items()
        if isinstance(need, MergedNeed) and found.value is False
    ]
    try:
        git.require_history({refs.commits[_HEADS + need.branch] for need in unmerged})
    except GitTrouble as trouble:
        return {need: unknown(f"{seen[need].says}; but {trouble}") for need in unmerged}
    return {}


def _clean(git: Git, refs: Refs, needs: Sequence[CleanNeed]) -> dict[GitNeed, Sighting]:
    """Which branches have no changes in their worktrees."""
    try:
        worktrees = git.worktrees()
    except GitTrouble as trouble:
        return dict.fromkeys(needs, unknown(str(trouble)))
    branches = {need.branch for need in needs}
    looked = [found for found in worktrees if found.branch in branches]
    states = in_parallel([(partial(_state, git, found), SECONDS) for found in looked])
    seen: dict[GitNeed, Sighting] = {}
    for need in needs:
        found = [
            state or unknown("git status did not end in time")
            for worktree, state in zip(looked, states, strict=True)
            if worktree.branch == need.branch
        ]
        seen[need] = _worst(found) if found else _not_checked_out(need, refs, worktrees)
    return seen


def _state(git: Git, worktree: Worktree) -> Sighting:
    """Whether one worktree is clean."""
    path = shown(worktree.path)
    if worktree.prunable:
        return unknown(f"worktree {path} of branch {shown(worktree.branch)} is gone")
    try:
        changes, said = git.changes(worktree)
    except GitTrouble as trouble:
        return unknown(str(trouble))
    if not changes:
        return sighting(True, f"worktree {path} has no changes", said)
    some = ", ".join(map(shown, changes[:_CHANGES])) + (", ..." if changes[_CHANGES:] else "")
    number = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    return sighting(False, f"worktree {path} has {number}: {some}", said)


def _worst(states: Sequence[Sighting]) -> Sighting:
    """Of several worktrees with one branch the one that is not clean, or not known."""
    order = (False, None, True)
    return min(states, key=lambda state: order.index(state.value))


def _not_checked_out(need: CleanNeed, refs: Refs, worktrees: Sequence[Worktree]) -> Sighting:
    if reason := refs.missing(need.branch):
        return unknown(reason)
    if all(worktree.bare for worktree in worktrees):
        return unknown("the repository is bare: there is no worktree that could have changes")
    says = f"no worktree has branch {shown(need.branch)} checked out"
    return sighting(True, says, f"{need.branch} {refs.commits[_HEADS + need.branch]}".encode())


def _parts(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """Not too many names for one command line."""
    return (names[begin : begin + _NAMES] for begin in range(0, len(names), _NAMES))


def _lines(ended: Ended) -> list[str]:
    return [line for line in os.fsdecode(ended.out.head).split("\n") if line]


def _worktree(record: Sequence[str]) -> Worktree:
    said = dict(line.partition(" ")[::2] for line in record)
    return Worktree(
        path=said.get("worktree", ""),
        branch=said.get("branch", "").removeprefix(_HEADS),
        bare="bare" in said,
        prunable="prunable" in said,
    )


def _changed(record: str) -> str:
    """The path in a record of ``git status``; its kind decides how many fields precede it."""
    fields = {"1": 8, "2": 9, "u": 10, "?": 1, "!": 1}.get(record[0], 1)
    return record.split(" ", fields)[-1]


def _at(branch: str, commit: str) -> str:
    return f"{shown(branch)} ({commit[:_OID]})"


def _reason(name: str, folder: str, seconds: float, ended: Ended) -> str:
    match ended.how:
        case "no folder":
            return f"folder {shown(folder)} cannot be entered: {ended.says}"
        case "not started":
            return f"git cannot be run: {ended.says}"
        case "late":
            return f"git {name} did not end within {seconds:g} s"
        case "too much":
            return f"git {name} wrote more than {MOST >> 20} MiB"
        case "stopped":
            return f"git {name} was stopped"
        case "ended":
            lines = ended.err.head.split(b"\n")
            fatal = next((line for line in lines if line.startswith(b"fatal: ")), ended.err.head)
            said = last_line(fatal).removeprefix("fatal: ") or f"status {ended.status}"
            return f"git {name} failed: {said}"
