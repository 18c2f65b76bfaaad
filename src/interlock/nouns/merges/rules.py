"""Decisions about merges: submit, cancel, and those of the server of a target.

Those of the server get the items of the store and the findings of a look at git as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.merge import Merge, MergeAttempt, MergeTarget, WaitingMerge
from interlock.nouns.messages.message import StoredMessage
from interlock.nouns.messages.send_rules import notice_writes


class PrefixSearch(Struct, frozen=True, kw_only=True):
    """The search for the longest prefix of a batch that passes its guard.

    ``passed`` branches are known to pass, ``failed`` are known to fail; 0 stands for none yet.  All
    of them are tested first; then the middle between the two, until they are neighbours.
    """

    size: int
    passed: int = 0
    failed: int = 0

    @property
    def next(self) -> int:
        """How many branches to test next; 0 if the search is over."""
        if not self.failed:
            return 0 if self.passed == self.size else self.size
        return (self.passed + self.failed) // 2 if self.failed - self.passed > 1 else 0

    def after(self, tested: int, *, passed: bool) -> PrefixSearch:
        """The search after this number of branches was tested."""
        return replace(self, passed=tested) if passed else replace(self, failed=tested)

    @property
    def culprit(self) -> int | None:
        """Which branch fails, from 0 on; None if all pass."""
        return self.failed - 1 if self.failed else None


class Bounce(Struct, frozen=True, kw_only=True):
    """Why a merge leaves the queue without being merged."""

    cause: core.BounceCause
    reason: str
    files: tuple[str, ...] = ()


class QueuedMerge(Struct, frozen=True, kw_only=True):
    """A waiting merge with its id."""

    id: str
    merge: Merge


def submit(
    id_: str, fresh: Merge, waiting: QueuedMerge | None, target: MergeTarget
) -> Decision[core.SubmitOutcome]:
    """Queue a branch; if it waits already, with its new commit in its old place.

    A test of its old commit comes to nothing: ``land`` compares.
    """
    if waiting is None:
        return _submitted(id_, fresh, "merge:submitted", "")
    before = waiting.merge
    if before.commit == fresh.commit:
        return Decision(outcome=_queued(waiting.id, before, already=True))
    if shown_state(waiting, target) == "landing":
        return Decision(
            outcome=core.MergeBusy(
                merge=waiting.id, branch=before.branch, into=before.into, state="landing"
            )
        )
    replaced = (*before.replaced, before.commit)[-core.REPLACED :]
    after = replace(fresh, at=before.at, replaced=replaced)
    return _submitted(waiting.id, after, "merge:resubmitted", before.commit)


def _submitted(id_: str, merge: Merge, event: str, before: str) -> Decision[core.SubmitOutcome]:
    entry = (
        ()
        if before
        else (Write(keys.merge_waiting(merge.queue, merge.branch), WaitingMerge(merge=id_)),)
    )  # an entry that is written once keeps its place
    return Decision(
        outcome=_queued(id_, merge, before=before),
        verb="merge.submit",
        thing=f"merge/{id_}",
        puts=(Write(keys.merge(id_), merge), *entry),
        events=(Event(event, merge.by, details=_details(merge)),),
        trace=merge.trace,
    )


def _queued(
    id_: str, merge: Merge, *, already: bool = False, before: str = ""
) -> core.MergeSubmitted:
    return core.MergeSubmitted(
        merge=id_,
        branch=merge.branch,
        into=merge.into,
        commit=merge.commit,
        already=already,
        before=before,
    )


def cancel(
    found: QueuedMerge, target: MergeTarget, agent: str, reason: str, now: float
) -> Decision[core.CancelOutcome]:
    """Take a branch out of the queue, unless it lands at this moment."""
    merge = found.merge
    where = {"merge": found.id, "branch": merge.branch, "into": merge.into}
    if merge.state == "cancelled":
        return Decision(outcome=replace(cancelled(found), already=True))
    if merge.state != "waiting":
        return Decision(outcome=core.MergeOver(**where, state=merge.state))
    if shown_state(found, target) == "landing":
        return Decision(outcome=core.MergeBusy(**where, state="landing"))
    after = replace(merge, state="cancelled", ended=now, ended_by=agent, reason=reason)
    return Decision(
        outcome=cancelled(QueuedMerge(id=found.id, merge=after)),
        verb="merge.cancel",
        thing=f"merge/{found.id}",
        puts=(Write(keys.merge(found.id), after),),
        deletes=(keys.merge_waiting(merge.queue, merge.branch),),
        events=(Event("merge:cancelled", merge.by, details=_details(after)),),
        reason=reason,
        trace=merge.trace,
    )


def cancelled(found: QueuedMerge) -> core.MergeCancelled:
    """The outcome of a merge that was cancelled."""
    merge = found.merge
    return core.MergeCancelled(
        merge=found.id,
        branch=merge.branch,
        into=merge.into,
        by=merge.ended_by,
        reason=merge.reason,
    )


def shown_state(found: QueuedMerge, target: MergeTarget) -> core.ShownState:
    """The state of a merge for display: whether the server tries it now."""
    attempt = target.attempt
    if found.merge.state != "waiting" or attempt is None or found.id not in attempt.merges:
        return found.merge.state
    return "landing" if attempt.landing else "testing"


# Decisions of the server; ``name`` is that of the queue.


def adopt(found: QueuedMerge, repository: str) -> Decision[bool]:
    """Move a branch from a queue of earlier versions, without a repository, to that of its own."""
    before = found.merge
    after = replace(before, repository=repository)
    return Decision(
        outcome=True,
        verb="merge.submit",
        thing=f"merge/{found.id}",
        puts=(
            Write(keys.merge(found.id), after),
            Write(keys.merge_waiting(after.queue, after.branch), WaitingMerge(merge=found.id)),
        ),
        deletes=(keys.merge_waiting(before.queue, before.branch),),
    )


def open_target(
    name: str, target: MergeTarget, server: MergeTarget, agent: str
) -> Decision[MergeTarget]:
    """Begin to serve a target; the attempt of an earlier server stays until git was looked at."""
    after = replace(
        target, server=server.server, guard=server.guard, remote=server.remote, since=server.since
    )
    return Decision(
        outcome=after,
        verb="merge.serve",
        thing=f"merge/{name}",
        puts=(Write(keys.merge_target(name), after),),
        events=(Event("merge:served", agent),),
    )


MergeToBounce: TypeAlias = tuple[QueuedMerge, Bounce]
LandResult: TypeAlias = Literal["landing", "changed", "uncompared"] | MergeToBounce


def begin(name: str, target: MergeTarget, attempt: MergeAttempt) -> Decision[MergeTarget]:
    """Try a batch."""
    after = replace(target, attempt=attempt, held="", since=attempt.since)
    return Decision(
        outcome=after,
        verb="merge.test",
        thing=f"merge/{name}",
        puts=(Write(keys.merge_target(name), after),),
    )


def land(
    name: str,
    target: MergeTarget,
    attempt: MergeAttempt,
    batch: Sequence[QueuedMerge],
    stored: Mapping[str, Merge | None],
    *,
    compared: bool,
    reserved: MergeToBounce | None = None,
) -> Decision[LandResult]:
    """Say that the ref is about to move; ``batch`` may be a prefix of the tested one.

    It is ``changed`` if a merge of it changed since, or another server took over: nothing may land
    then.  It is ``uncompared`` if it was not ``compared`` with the newest reservations; a branch
    that conflicts with one is ``reserved``, and has to be bounced.
    """
    tested = target.attempt
    if tested is None or (tested.token, tested.base) != (attempt.token, attempt.base):
        return Decision(outcome="changed")
    if any(stored[each.id] != each.merge for each in batch):
        return Decision(outcome="changed")
    if not compared:
        return Decision(outcome="uncompared")
    if reserved is not None:
        return Decision(outcome=reserved)
    after = replace(target, attempt=replace(attempt, landing=True))
    return Decision(
        outcome="landing",
        verb="merge.land",
        thing=f"merge/{name}",
        puts=(Write(keys.merge_target(name), after),),
    )


def conclude(
    name: str,
    target: MergeTarget,
    contained: Sequence[QueuedMerge],
    tip: str,
    *,
    now: float,
    notices: Sequence[str],
) -> Decision[int]:
    """End the merges whose commits the target was seen to contain, and notify their authors."""
    done = [each for each in contained if each.merge.state == "waiting"]
    if not done:
        return Decision(outcome=0)
    puts: list[Write] = []
    for each, notice in zip(done, notices, strict=False):
        after = replace(each.merge, state="merged", ended=now, merged_as=tip)
        puts += (Write(keys.merge(each.id), after), *_notice(each.id, after, notice, now))
    cleared = replace(target, attempt=None, held="", last=tip, since=now)
    return Decision(
        outcome=len(done),
        verb="merge.complete",
        thing=f"merge/{name}",
        puts=(*puts, Write(keys.merge_target(name), cleared)),
        deletes=tuple([keys.merge_waiting(name, each.merge.branch) for each in done]),
        events=tuple(
            [_event("merge:merged", each, replace(each.merge, merged_as=tip)) for each in done]
        ),
    )


def bounce(
    name: str, target: MergeTarget, found: QueuedMerge, why: Bounce, *, now: float, notice: str
) -> Decision[bool]:
    """Take a branch out of the queue that cannot be merged, and send its author the reason."""
    if found.merge.state != "waiting":
        return Decision(outcome=False)
    after = replace(
        found.merge,
        state="bounced",
        ended=now,
        cause=why.cause,
        reason=why.reason,
        files=why.files,
    )
    cleared = replace(target, attempt=None, held="", since=now)
    return Decision(
        outcome=True,
        verb="merge.bounce",
        thing=f"merge/{name}",
        puts=(
            Write(keys.merge(found.id), after),
            Write(keys.merge_target(name), cleared),
            *_notice(found.id, after, notice, now),
        ),
        deletes=(keys.merge_waiting(name, found.merge.branch),),
        events=(_event("merge:bounced", found, after),),
        reason=after.reason[:1000],
    )


def hold(
    name: str, target: MergeTarget, reason: str, *, agent: str, now: float, moved: bool
) -> Decision[bool]:
    """Say why nothing can be merged now; the same reason is written once.

    If the target may have ``moved``, an attempt that lands stays until its folder has followed.
    """
    before = target.attempt
    attempt = before if moved and before is not None and before.landing else None
    if target.held == reason and before == attempt:
        return Decision(outcome=False)
    after = replace(target, attempt=attempt, held=reason, since=now)
    return Decision(
        outcome=True,
        verb="merge.block",
        thing=f"merge/{name}",
        puts=(Write(keys.merge_target(name), after),),
        events=(Event("merge:held", agent),),
        reason=reason[:1000],
    )


MoveResult = Literal["merged", "again", "held"]


def after_move(tip: str, base: str, now: str, error: str, *, contained: bool) -> MoveResult:
    """What a look at the target says about an attempt to move it from ``base`` to ``tip``.

    The look decides, not the answer of git: a push whose connection broke may have moved it.
    """
    if contained or now == tip:
        return "merged"
    return "held" if now == base and error else "again"


def _event(word: str, found: QueuedMerge, merge: Merge) -> Event:
    return Event(word, merge.by, f"merge/{found.id}", merge.trace, details=_details(merge))


def _details(merge: Merge) -> dict[str, str]:
    said = {
        "branch": merge.branch,
        "into": merge.into,
        "commit": merge.commit,
        "merged_as": merge.merged_as,
        "cause": merge.cause,
        "override": merge.override,
    }
    return {name: value for name, value in said.items() if value}


def _notice(id_: str, merge: Merge, message: str, now: float) -> Iterable[Write]:
    """A message to the author, in the commit that ends the merge."""
    data = {
        "merge": id_,
        "outcome": merge.state,
        "branch": merge.branch,
        "into": merge.into,
        "commit": merge.commit,
        "merged_as": merge.merged_as,
        "cause": merge.cause,
        "reason": merge.reason,
        "files": merge.files,
    }
    told = StoredMessage(
        id=message,
        kind="mail",
        sender=f"merge/{merge.into}",
        at=round(now, 3),
        to=(merge.by,),
        type="merge",
        subject=f"{merge.state}: {foreign(merge.branch)} into {foreign(merge.into)}"[:200],
        thread=id_,
        data=Raw(codec.encode({key: value for key, value in data.items() if value})),
        trace=merge.trace,
    )
    return notice_writes(told)
