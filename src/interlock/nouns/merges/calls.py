"""The calls of merges: arguments are validated, and the service carries them out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import validate
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, Unavailable
from interlock.nouns.guards.outside_git import is_branch_name
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.merge import Merge
from interlock.nouns.reservations.repository import find
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.steps import InThread, Op

if TYPE_CHECKING:
    from interlock.nouns.grants.lock import LockBusy
    from interlock.nouns.merges.repository import MergeRepository
    from interlock.nouns.merges.service import MergeService
    from interlock.nouns.reservations.repository import ReservedRepository

Folder = str | os.PathLike[str]


class MergeCalls(Calls[D]):
    """Merge queues: branches, by id or by name."""

    @cached_property
    def _service(self) -> MergeService:
        from interlock.nouns.merges.service import MergeService

        return MergeService(self.context.runner)

    @call
    def submit(
        self,
        branch: str | None = None,
        *,
        into: str = "main",
        remote: str | None = None,
        repository: Folder = ".",
        wait: float | str = 0,
        override: str = "",
        given: Given = (),
    ) -> Op[core.SubmitOutcome]:
        """Queue a branch, by default the one that is checked out, to be merged ``into`` a target.

        What is merged is its commit of this moment; the queue keeps that, so the branch may move on
        or be deleted.  A branch that waits already gets its new commit in its old place.  With a
        ``remote`` the commit is pushed there, for a server that has no access to this repository.
        With a ``wait`` the outcome is the end of the merge; it is false if that does not come in
        time.  A branch that changes files which another agent has reserved is bounced; ``override``
        is a reason to merge it all the same, which is recorded.
        """
        patience = validate.wait_time(wait)
        target, away = branch_name(into, "target"), _remote(remote)
        git = _repository(repository)
        name, commit = yield InThread(partial(_found, git, branch, target))
        yield InThread(partial(_keep, git, commit, away))
        place: ReservedRepository = yield InThread(partial(find, git.folder))
        identity = self._identity(given)
        fresh = Merge(
            branch=name,
            into=target,
            commit=commit,
            by=identity.actor.agent,
            at=self.context.runner.clock.wall(),
            trace=self.context.purpose,
            override=validate.text(override, "override", validate.REASON_LIMIT).strip(),
            repository=place.name,
        )
        id_ = self.context.runner.new_id("mrg")
        queued = yield from self._fenced(identity, self._service.submit(identity.actor, id_, fresh))
        if not isinstance(queued, core.MergeSubmitted):
            return queued
        if queued.before:
            yield from _forget(git, queued.before, away, place.name)
        if patience:
            ended = yield from self._service.wait(queued.merge, patience)
            if ended is not None and ended.state != "waiting":
                return _end_of(queued.merge, ended)
        from interlock.nouns.merges.service import read_queue

        waiting = (yield from read_queue(fresh.queue)).waiting
        number = next((n for n, each in enumerate(waiting, 1) if each.id == queued.merge), 0)
        if not patience:
            return replace(queued, place=number)
        return core.MergeUnfinished(
            merge=queued.merge,
            branch=name,
            into=target,
            commit=queued.commit,
            before=max(number - 1, 0),
        )

    @call
    def cancel(
        self, merge: str, reason: str = "", *, into: str = "", given: Given = ()
    ) -> Op[core.CancelOutcome]:
        """Take a branch out of the queue, by its name or the id of its merge.

        A branch that lands at this moment is refused; one that is being tested is not merged.
        """
        said = validate.text(reason, "reason", validate.REASON_LIMIT)
        name, target = merge_name(merge), branch_name(into, "target") if into else ""
        identity = self._identity(given)
        id_ = yield from self._service.find(name, target, find().name)
        if not id_:
            return core.UnknownMerge(unknown=(name,))
        return (yield from self._fenced(identity, self._service.cancel(identity.actor, id_, said)))

    @call
    def list(
        self,
        *,
        into: str | None = None,
        all: bool = False,  # noqa: A002 - the word that people use
        limit: int = core.LISTED,
    ) -> Op[core.MergeList]:
        """The branches that wait, in their order; with ``all`` also those that left the queue."""
        from interlock.nouns.merges.views import list_merges

        return list_merges(
            self.context.runner,
            "" if into is None else branch_name(into, "target"),
            validate.integer(limit, "limit", 1, core.MOST),
            ended=validate.flag(all, "all"),
        )

    @call
    def show(self, merge: str) -> Op[core.MergeView | core.UnknownMerge]:
        """One merge, by its id or by its branch: its place, what it waits for, how it ended."""
        from interlock.nouns.merges.views import show_merge

        return show_merge(self.context.runner, merge_name(merge))

    @call
    def serve(
        self,
        target: str = "main",
        *,
        command: Iterable[str] = (),
        guard: str | Iterable[str] = (),
        remote: str | None = None,
        batch: int = core.BATCH,
        timeout: float | str | None = None,
        keep_branches: bool = False,
        drain: bool = False,
        unguarded: bool = False,
        repository: Folder = ".",
        say: Callable[[str], None] | None = None,
        told: Callable[[core.MergeDone | core.MergeBounced], None] | None = None,
    ) -> Op[core.MergesServed | core.MergesHeld | LockBusy]:
        """Merge the branches of a queue one after the other, as long as the guard passes.

        The ``command`` and the guards of the store run in a folder of their own, on the very commit
        that the target is to become.  Without any of them nothing would be tested, so that is
        refused unless it is ``unguarded``.  One server at a time serves a target: another one
        waits, and takes over when the first one ends.  With ``drain`` it ends when nothing waits
        any more; if branches wait and none can be merged, the outcome is false and has the reason.
        ``told`` is called with each end of a merge, and ``say`` with what the server does.
        """
        from interlock.nouns.merges.checking import LIMIT, MergeGuard
        from interlock.nouns.merges.endings import ServeOptions
        from interlock.nouns.merges.server import MergeServer

        self.context.joined_identity()
        words = tuple(validate.require_text(word, "command") for word in command)
        names = (guard,) if isinstance(guard, str) and guard else tuple(guard)
        _require_test(words, names, unguarded=validate.flag(unguarded, "unguarded"))
        git = _repository(repository)
        yield InThread(git.common)
        place: ReservedRepository = yield InThread(partial(find, git.folder))
        options = ServeOptions(
            target=branch_name(target, "target"),
            repository=place.name,
            guard=MergeGuard(
                command=words,
                guards=validate.names(names, "guard", 16),
                limit=LIMIT if timeout is None else validate.duration(timeout, "timeout"),
            ),
            remote=_remote(remote),
            batch=validate.integer(batch, "batch", 1, core.MOST_BATCH),
            keep_branches=validate.flag(keep_branches, "keep_branches"),
            drain=validate.flag(drain, "drain"),
        )
        quiet: Callable[[object], None] = lambda _said: None  # noqa: E731 - short
        server = MergeServer(self.context, git, options, say or quiet, told or quiet)
        try:
            return (yield from server.serve())
        except Unavailable as busy:
            return busy.outcome  # type: ignore[return-value]  # of this very lock


def merge_name(text: str) -> str:
    """The id of a merge, or a branch."""
    name = validate.name(text, "merge")
    if name.startswith("merge/"):
        raise BadInput(f"a merge goes by its id or its branch; drop 'merge/' from {name!r}")
    return name


def branch_name(text: str, what: str = "branch") -> str:
    """The name of a branch, without refs/heads/."""
    name = validate.name(text, what)
    if name.startswith("refs/") or not is_branch_name(name):
        raise BadInput(f"{name!r:.60} is no name of a branch; write it as 'git branch' does")
    return name


def _remote(name: str | None) -> str:
    if name is None:
        return ""
    found = validate.text(name, "remote", validate.REASON_LIMIT)
    if not found or found.startswith("-"):
        raise BadInput("the remote is empty or looks like an option; name one, like origin")
    return found


def _require_test(command: Iterable[str], guards: Iterable[str], *, unguarded: bool) -> None:
    """Refuse a server that would merge what nothing has tested, unless that is wanted."""
    tested = bool(command or guards)
    if tested and unguarded:
        raise BadInput("a server with a test is not unguarded; drop the test, or --unguarded")
    if not tested and not unguarded:
        raise BadInput(
            "nothing would test the branches; name a program (-- make test) or a guard (--guard"
            " NAME), or say --unguarded to merge them without a test"
        )


def _repository(folder: Folder) -> MergeRepository:
    from interlock.nouns.merges.repository import MergeRepository

    if not os.path.isdir(folder):
        raise BadInput(f"{os.fspath(folder)!r:.80} is no folder; name one of the repository")
    return MergeRepository(folder)


def _found(git: MergeRepository, branch: str | None, target: str) -> tuple[str, str]:
    """The branch to submit, and its commit."""
    git.common()
    name = git.current_branch() if branch is None else branch_name(branch)
    if not name:
        raise BadInput("no branch is checked out here; name the one to submit")
    if name == target:
        raise BadInput(f"{name!r} is the target itself; name another branch, or another --into")
    if not (commit := git.commit_of(branch_name(name))):
        raise BadInput(f"there is no branch {name!r} here; 'git branch' lists them")
    return name, commit


def _keep(git: MergeRepository, commit: str, remote: str) -> None:
    from interlock.nouns.merges.git_process import GitFailed

    try:
        git.keep(commit, remote)
    except GitFailed as failed:
        where = f"at {foreign(remote)}" if remote else "in this repository"
        raise BadInput(f"the commit cannot be kept {where}: {failed}; check that first") from None


def _forget(git: MergeRepository, commit: str, remote: str, repository: str) -> Op[None]:
    """Stop keeping a commit that another submit replaced, unless another merge waits for it."""
    from interlock.nouns.merges.service import read_in_use

    if commit in (yield from read_in_use(repository)).commits:
        return
    yield InThread(partial(git.forget, {}, (commit,)))
    if remote:
        yield InThread(partial(git.forget_remote, remote, {}, {commit}))


def _end_of(id_: str, merge: Merge) -> core.SubmitOutcome:
    where = {"merge": id_, "branch": merge.branch, "into": merge.into}
    match merge.state:
        case "merged":
            return core.MergeDone(**where, commit=merge.commit, merged_as=merge.merged_as)
        case "bounced":
            return core.MergeBounced(
                **where, cause=merge.cause, reason=merge.reason, files=merge.files
            )
        case _:
            from interlock.nouns.merges.rules import QueuedMerge, cancelled

            return cancelled(QueuedMerge(id=id_, merge=merge))
