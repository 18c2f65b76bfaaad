"""The calls of branches: watch one, and rebase a worktree."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, InterlockError
from interlock.nouns.branches import branch as core
from interlock.nouns.branches import rules
from interlock.nouns.branches.branch import BranchUpdated, WatchedBranch
from interlock.nouns.merges.calls import branch_name
from interlock.nouns.reservations.repository import find
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.runtime.identity import Actor
from interlock.steps import InThread, NextChanges, Op, OpenWatch, Read

if TYPE_CHECKING:
    from interlock.nouns.grants.held_grant import HeldPools
    from interlock.nouns.merges.repository import MergeRepository
    from interlock.store import Item

_WATCHED = codec.Decoder(WatchedBranch)
_TICK = 0.5


def decode_watched(item: Item | None) -> WatchedBranch | None:
    """A watched branch."""
    return _WATCHED.read_if_present(item)


class BranchCalls(Calls[D]):
    """Branches of the repository: watched for all agents, and followed by worktrees."""

    @call
    def watch(
        self,
        branch: str = "main",
        *,
        remote: str | None = None,
        least: float | str | None = None,
        most: float | str | None = None,
        once: bool = False,
        repository: str | os.PathLike[str] = ".",
        told: Callable[[BranchUpdated], None] | None = None,
    ) -> Op[core.BranchWatched]:
        """Alert all subscribers of ``BRANCH_updated`` when a branch moves, here or at a remote.

        One watcher does it for the whole fleet: others wait for its lock, and take over.  The time
        between two looks grows from ``least`` to ``most`` while the branch rests.  With ``once`` it
        looks once, and does not wait for the lock.
        """
        from interlock.nouns.merges.repository import MergeRepository

        name, away = branch_name(branch), remote or ""
        quick, slow = (core.REMOTE_LEAST, core.REMOTE_MOST) if away else (core.LEAST, core.MOST)
        terms = (
            quick if least is None else validate.duration(least, "least"),
            slow if most is None else validate.duration(most, "most"),
        )
        git = MergeRepository(repository)
        yield InThread(git.common)
        watcher = _Watcher(self, git, name, away, told or (lambda _move: None))
        if once:
            yield from watcher.look()
        else:
            self.context.joined_identity()
            outage = self.context.outage(f"the watch of {foreign(name)}")
            yield from outage.through(lambda _left: watcher.run(*terms), validate.FOREVER)
        return core.BranchWatched(branch=name, moves=watcher.moves)

    @call
    def rebase(
        self,
        onto: str = "main",
        *,
        remote: str | None = None,
        report: str | None = None,
        folder: str | os.PathLike[str] = ".",
        given: Given = (),
    ) -> Op[core.RebaseOutcome]:
        """Rebase the branch that a folder has checked out ``onto`` a target, here or at a remote.

        The rebase is done in another folder, and carried over when it is complete: a conflict
        leaves this one as it was, and goes to ``report``, or to the caller, as a message with the
        files.  Changes that are not committed stay, unless they would be overwritten.
        """
        from interlock.nouns.branches import rebase

        target, identity = branch_name(onto, "target"), self._identity(given)
        actor = identity.actor
        to = validate.agent_name(report) if report else actor.agent
        here = os.fspath(folder)
        name: str = yield InThread(partial(rebase.branch_here, here))
        if other := (yield from self._worker_in(name, here, actor.agent)):
            return core.RebaseBlocked(
                branch=name,
                onto=target,
                reason=f"{foreign(other)} works in the worktree of {foreign(name)}; ask it to run"
                " this itself",
            )
        done: core.RebaseOutcome = yield InThread(
            partial(rebase.rebase, here, target, remote or "")
        )
        return (yield from self._fenced(identity, self._record(actor, done, to)))

    def _record(self, actor: Actor, done: core.RebaseOutcome, to: str) -> Op[core.RebaseOutcome]:
        """Record a rebase, and send the files of a conflict."""
        runner = self.context.runner
        id_, now = runner.new_id("msg"), runner.clock.wall()

        def deciding() -> DecideOp[core.RebaseOutcome]:
            yield ()
            match done:
                case core.RebaseConflict():
                    return rules.report_conflict(done, actor.agent, to, id_, now=now)
                case core.Rebased(already=False):
                    return rules.record_rebase(done, actor.agent)
                case _:
                    return Decision(outcome=done)

        return (yield from runner.change(deciding, actor)).outcome

    def _worker_in(self, branch: str, folder: str, agent: str) -> Op[str]:
        """Another agent whose program runs in the worktree of this branch."""
        from interlock.nouns.grants import views
        from interlock.nouns.merges.worktrees import lock_name

        if not branch:
            return ""
        lock: str = yield InThread(partial(lock_name, branch, folder))
        found = yield from views.lock(self.context.runner, lock)
        return found.holder if found.state == "held" and found.holder != agent else ""


class _Watcher:
    """One watch of a branch."""

    def __init__(
        self,
        calls: BranchCalls[D],
        git: MergeRepository,
        branch: str,
        remote: str,
        told: Callable[[BranchUpdated], None],
    ) -> None:
        self._context = calls.context
        self._git = git
        self._branch = branch
        self._remote = remote
        self._told = told
        self._repository = find(git.folder).name
        self._where = f"{remote}/{branch}" if remote else branch
        self._key = keys.watched_branch(self._where, self._repository)
        self.moves = 0
        self._patient = False
        """Whether a remote that does not answer is looked at again later."""

    def run(self, least: float, most: float) -> Op[None]:
        """Look again and again, with the lock; begin again if that is lost."""
        self._patient = True
        from interlock.nouns.grants.held_grant import take
        from interlock.nouns.grants.lock import LockTarget
        from interlock.nouns.grants.request import GrantTerms

        target = LockTarget(f"watch/{self._repository}/{self._where}")
        while True:
            terms = GrantTerms(wait=validate.FOREVER)
            held = yield from take(self._context, target, None, terms)
            if self._context.client is not None:
                self._context.client.keep()
            try:
                yield from self._look_again(held, least, most)
            except GeneratorExit:
                raise
            except BaseException:
                yield from held.end()
                raise
            yield from held.end()

    def _look_again(self, held: HeldPools, least: float, most: float) -> Op[None]:
        """Look until the lock is lost."""
        clock, wait = self._context.runner.clock, least
        watch = yield OpenWatch(self._key, (yield Read(self._key)).revision)
        try:
            while not held.lost():
                moved = yield from self.look()
                wait = core.pace(wait, least, most, moved=moved)
                ends = clock.monotonic() + wait
                while not held.lost() and (left := ends - clock.monotonic()) > 0:
                    yield NextChanges(watch, min(left, _TICK))
        finally:
            watch.close()

    def look(self) -> Op[bool]:
        """Look once; True if the branch moved."""
        actor, runner = self._context.me().actor, self._context.runner

        def deciding() -> DecideOp[BranchUpdated | None]:
            before, old = yield from self._last_announced()
            move = self._move(before.commit if before else "", now)
            return rules.announce(
                self._key, before, move, actor.agent, now=runner.clock.wall(), old=old
            )

        now: str = yield InThread(self._commit)
        if not now:
            return False
        moved: BranchUpdated | None = (yield from runner.change(deciding, actor)).outcome
        if moved is not None:
            self.moves += 1
            self._told(moved)
        return moved is not None

    def _last_announced(self) -> ReadOp[tuple[WatchedBranch | None, tuple[str, ...]]]:
        """The branch as it was last announced, and the key of an earlier version that says so.

        Those had no repository, so the commit says whether it is this one.
        """
        old = keys.watched_branch(self._where)
        items = (yield (self._key, old)).items
        before, earlier = decode_watched(items[self._key]), decode_watched(items[old])
        if before is None and earlier is not None and self._git.has(earlier.commit):
            return earlier, (old,)
        return before, ()

    def _commit(self) -> str:
        """Where the branch is; empty if there is none, or a watch has to wait for a remote."""
        from interlock.nouns.merges.git_process import GitFailed
        from interlock.nouns.merges.repository import HEADS

        if not self._remote:
            return self._local_commit()
        try:
            said = self._git.git("ls-remote", self._remote, HEADS + self._branch)
        except GitFailed as failed:
            if self._patient:
                return ""
            raise BadInput(f"{self._remote} does not answer: {failed}; check its address") from None
        return said.split("\t")[0]

    def _local_commit(self) -> str:
        from interlock.nouns.merges.git_process import GitFailed

        try:
            found = self._git.commit_of(self._branch)
            gone = "" if found or self._git.exists() else "the repository is gone"
        except GitFailed as failed:
            found, gone = "", str(failed)
        if gone:
            raise BadInput(f"{self._git.folder}: {gone}; put it back, or watch another one")
        return found

    def _move(self, before: str, after: str) -> BranchUpdated:
        from interlock.nouns.merges.git_process import GitFailed

        commits, forced = 0, False
        try:
            if before and self._git.has(before) and self._git.has(after):
                commits = int(self._git.git("rev-list", "--count", after, f"^{before}"))
                forced = bool(self._git.git("rev-list", "-n1", before, f"^{after}"))
        except (GitFailed, InterlockError):
            pass
        return BranchUpdated(
            branch=self._branch,
            repository=self._repository,
            alert=f"{self._branch}_updated",
            before=before,
            after=after,
            commits=commits,
            forced=forced,
            remote=self._remote,
        )
