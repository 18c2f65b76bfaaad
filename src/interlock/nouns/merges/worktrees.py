"""Worktrees of agents: one folder for a branch, made for a program and removed when it is merged.

A worktree is in ``.interlock/worktrees/BRANCH`` of the main worktree, which git ignores.  Nothing
is lost by its removal: it is removed only if no file is changed or new, its branch is checked out,
and the target contains the branch.  The branch itself is deleted only if it was made here.

A commit may bring a link in the place of each of these folders, so that the files of a branch would
land anywhere.  So none of them may be one, and no link is followed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from msgspec import Struct

from interlock.core import keys
from interlock.core.safe_text import foreign, printable, quoted
from interlock.core.validate import quote
from interlock.errors import BadInput
from interlock.nouns.merges.calls import branch_name
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.repository import HEADS, MergeRepository
from interlock.nouns.reservations.repository import find

_FOLDERS = (".interlock", "worktrees")
_MADE = "interlock"
"""The setting ``branch.NAME.interlock`` says that the branch was made for a worktree here."""


class AgentWorktree(Struct, frozen=True, kw_only=True):
    """A worktree: its folder and its branch; ``made`` if it was not there before."""

    path: str
    branch: str
    made: bool = False


def lock_name(branch: str, folder: str) -> str:
    """The lock of the program in a worktree; BadInput if the folder is in no repository."""
    MergeRepository(folder).common()
    return f"worktree/{find(folder).name}/{branch}"


def make(branch: str, folder: str = ".") -> AgentWorktree:
    """The worktree of a branch; both are made if they are missing.  BadInput if that cannot be."""
    name = branch_name(branch)
    repository = MergeRepository(folder)
    common = repository.common()
    main = os.path.dirname(common) if os.path.basename(common) == ".git" else common
    path = os.path.join(main, *_FOLDERS, keys.encode(name))
    _make_folders(path)
    try:
        found = repository.refs(name)
        if found.checkout:
            if os.path.realpath(found.checkout) != os.path.realpath(path):
                raise BadInput(
                    f"branch {name!r} is checked out in {found.checkout}; go there, or name"
                    " another branch"
                )
            if os.path.isdir(path):
                return AgentWorktree(path=path, branch=name)
        if found.base:
            repository.git("worktree", "add", "-q", "--force", path, name)
        else:
            repository.git("worktree", "add", "-q", "--force", "-b", name, path, "HEAD")
            repository.git("config", f"branch.{name}.{_MADE}", "made")
    except GitFailed as failed:
        raise BadInput(f"no worktree for {quoted(name)} can be made: {failed}") from None
    return AgentWorktree(path=path, branch=name, made=True)


def _make_folders(path: str) -> None:
    """Make the folders above a worktree, in which git sees nothing."""
    above = os.path.dirname(path)
    own = os.path.dirname(above)
    try:
        for folder in (own, above):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            _require_folder(folder)
        with suppress(FileNotFoundError):
            _require_folder(path)
        with suppress(FileExistsError), open(os.path.join(own, ".gitignore"), "x") as file:
            file.write("*\n")
    except OSError as error:
        raise BadInput(
            f"{printable(str(error.filename))} cannot be made ({error.strerror}); correct that"
        ) from None


def _require_folder(path: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise BadInput(
            f"{printable(path)} is a link or a file, which a commit can bring, where worktrees"
            f" need a folder; remove it: rm {quote(path)}"
        )


def remove(tree: AgentWorktree, into: str, folder: str) -> str:
    """Remove a worktree if that loses nothing; returns why it stays, or an empty text."""
    repository, inside = MergeRepository(folder), MergeRepository(tree.path)
    try:
        if inside.current_branch() != tree.branch:
            return f"it does not have {foreign(tree.branch)} checked out"
        if changes := inside.git("status", "--porcelain", "--untracked-files=normal").splitlines():
            return f"it has {len(changes)} changed or new files, such as {changes[0][3:]}"
        commit = repository.commit_of(tree.branch)
        target = repository.commit_of(into)
        if not target:
            return (
                f"there is no branch {foreign(into)}, into which {foreign(tree.branch)} could be"
                " merged"
            )
        if repository.git("rev-list", "-n1", commit, f"^{target}"):
            return f"{foreign(tree.branch)} is not merged into {foreign(into)}"
        made = _made_here(repository, tree.branch)
        repository.git("worktree", "remove", tree.path)
        if made and tree.branch != into:
            repository.git("update-ref", "-d", HEADS + tree.branch, commit)
            repository.git("config", "--unset", f"branch.{tree.branch}.{_MADE}")
    except (GitFailed, BadInput) as failed:
        return str(failed)
    return ""


def _made_here(repository: MergeRepository, branch: str) -> bool:
    try:
        return bool(repository.git("config", "--get", f"branch.{branch}.{_MADE}"))
    except GitFailed:
        return False
