"""A rebase of the branch of a folder, done elsewhere, and carried over when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress

from interlock.core.safe_text import printable
from interlock.errors import BadInput
from interlock.nouns.branches.branch import RebaseBlocked, RebaseConflict, Rebased
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.repository import HEADS, MergeRepository
from interlock.nouns.merges.store_files import named_store_files

REBASES = "refs/interlock/rebases/"
FETCHED = "refs/interlock/fetched/"


def rebase(folder: str, onto: str, remote: str) -> Rebased | RebaseConflict | RebaseBlocked:
    """Rebase the branch that a folder has checked out; on any refusal the folder is as it was."""
    repository = MergeRepository(folder)
    repository.common()
    branch = repository.current_branch()
    if not branch:
        raise BadInput(
            "no branch is checked out here, or a rebase of git is not finished;"
            " finish it, or run 'git rebase --abort'"
        )
    if branch == onto and not remote:
        raise BadInput(f"{branch!r} is checked out here; rebase another branch, or name a remote")
    try:
        root = repository.git("rev-parse", "--show-toplevel").rstrip("\n")
    except GitFailed as failed:  # a bare repository
        raise BadInput(f"there are no files to rebase here ({failed}); go to a worktree") from None
    _finish(repository, branch, root)
    target = _target(repository, onto, remote)
    before = repository.commit_of(branch)
    if not repository.git("rev-list", "-n1", target, f"^{before}"):
        return Rebased(branch=branch, onto=onto, before=before, after=before, already=True)
    try:
        made = _rebased(repository, before, target)
    except GitFailed as failed:
        raise BadInput(
            f"{branch!r} cannot be rebased: {failed}; repair that, and run it again"
        ) from None
    if isinstance(made, tuple):
        files, reason = made
        return RebaseConflict(branch=branch, onto=onto, files=files, reason=reason)
    if found := repository.new_store_files(before, made):
        return RebaseBlocked(
            branch=branch,
            onto=onto,
            reason=f"{onto} has {named_store_files(found)}; let a commit delete them there first",
        )
    if why := repository.unsafe_to_follow(root, before, made):
        return RebaseBlocked(
            branch=branch, onto=onto, reason=f"{why}; commit or stash your changes first"
        )
    _carry_over(repository, branch, root, before, made)
    return Rebased(branch=branch, onto=onto, before=before, after=made)


def branch_here(folder: str) -> str:
    """The branch that a folder has checked out."""
    repository = MergeRepository(folder)
    repository.common()
    return repository.current_branch()


def _target(repository: MergeRepository, onto: str, remote: str) -> str:
    """The commit to rebase onto; of a remote, as it is there now."""
    try:
        if remote:
            ref = FETCHED + onto
            words = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", remote)
            repository.git(*words, f"+{HEADS}{onto}:{ref}")
            return repository.git("rev-parse", ref).strip()
    except GitFailed as failed:
        raise BadInput(f"{onto!r} cannot be fetched from {remote}: {failed}; check it") from None
    if not (commit := repository.commit_of(onto)):
        raise BadInput(f"there is no branch {onto!r} here; name another one with --onto")
    return commit


def _rebased(
    repository: MergeRepository, commit: str, target: str
) -> str | tuple[tuple[str, ...], str]:
    """The rebased commit; or the files of the conflict, and what git says.

    GitFailed if git cannot rebase for another reason: it knows no name of the user, say.
    """
    folder = tempfile.mkdtemp(prefix="interlock-rebase-")
    path = os.path.join(folder, "tree")
    try:
        repository.git("worktree", "add", "-q", "--force", "--detach", path, commit)
        try:
            repository.git("rebase", "-q", "--no-autostash", target, folder=path)
        except GitFailed as failed:
            said = repository.git("diff", "--name-only", "--diff-filter=U", "-z", folder=path)
            if files := tuple([printable(name) for name in said.split("\0") if name]):
                return files, str(failed)
            raise
        return repository.git("rev-parse", "HEAD", folder=path).strip()
    finally:
        with suppress(GitFailed):
            repository.git("worktree", "remove", "--force", "--force", path)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(GitFailed):
            repository.git("worktree", "prune")


def _carry_over(
    repository: MergeRepository, branch: str, root: str, before: str, after: str
) -> None:
    lines = (
        f"update {REBASES}{branch} {before}",
        f"update {HEADS}{branch} {after} {before}",
        "",
    )
    try:
        repository.git("update-ref", "--stdin", given="\n".join(lines))
    except GitFailed as failed:
        raise BadInput(f"{branch!r} moved while it was rebased ({failed}); run it again") from None
    _finish(repository, branch, root)


def _finish(repository: MergeRepository, branch: str, root: str) -> None:
    """Let the folder follow a branch that a rebase has moved; one before may have been killed."""
    said = repository.git("for-each-ref", "--format=%(objectname)", REBASES + branch).strip()
    if not said:
        return
    if why := repository.follow(root, said, repository.commit_of(branch)):
        raise BadInput(
            f"{branch!r} is rebased, and this folder cannot follow ({why}); save your changes,"
            f" then run it again; the old commit is {said[:12]}"
        )
    repository.git("update-ref", "-d", REBASES + branch, said)
