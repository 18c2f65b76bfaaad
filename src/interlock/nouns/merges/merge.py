"""Merges: a branch waits in the queue of its target, and is merged when its guard passes.

    submit ──> waiting ──conclude──> merged       the target contains the commit
                 │  ^
                 │  └─ resubmit                   another commit, in the same place
                 ├──bounce──> bounced             conflict, failed guard, a commit that is missing
                 └──cancel──> cancelled

A target is a branch of a repository, which has the name that its reservations have, and its queue
is ``REPOSITORY:TARGET``; those of earlier versions had no repository, and the next server takes
what is its own out of them.

A merge is one item, and while it waits it has an entry in the queue of its target.  The revision
that created the entry is its place: first come, first served, by the order of the store and not by
the clocks of hosts.  Nothing moves an entry, so what is tried again keeps its place.

What is merged is the *commit* of the branch when it was submitted.  A ref of the queue
(``refs/interlock/merges/COMMIT``) keeps it, so a branch may be moved, renamed or deleted.

One server at a time has the lock ``merge/QUEUE``; each of its commits checks its token.  It tries
the first few entries as one batch (``MergeTarget.attempt``):

    testing ──land──> landing ──the ref moves──> conclude
       │                │
       └────────────────┴──> the next attempt     the target moved, a merge was cancelled, a crash

``landing`` is written before the ref moves.  The ref moves only from the commit that the batch was
built on (compare and swap), and of a local target only for the server with the newest token, since
git checks a ref with that token in the same transaction.  From ``landing`` on a merge cannot be
cancelled.

Whether something is merged is decided by the ref alone: before each attempt the server looks which
of the waiting commits the target contains, and concludes those.  So a server that is killed between
any two steps leaves nothing half merged: either the ref moved, and the next server concludes, or it
did not, and the next one builds it again.  The attempt stays until the folder that has the target
checked out has followed; nothing else is merged before that.  A branch is deleted after the
conclusion, and only if it is still where it was submitted, waits for no other target, and is none.

A guard that fails is run a second time.  Then the longest prefix of the batch that passes is found
by halving (``rules.PrefixSearch``): that prefix is merged, the next branch is bounced to its author
with the reason, and all others stay in their places.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always

MergeState: TypeAlias = Literal["waiting", "merged", "bounced", "cancelled"]
"""The state of a stored merge."""
ShownState: TypeAlias = Literal["waiting", "testing", "landing", "merged", "bounced", "cancelled"]
"""The state for display: of the batch that is tried now, too."""
STATES: tuple[ShownState, ...] = (
    "waiting", "testing", "landing", "merged", "bounced", "cancelled",
)  # fmt: skip
BounceCause: TypeAlias = Literal["conflict", "failed", "missing", "reserved"]
TRANSITIONS: dict[str, dict[MergeState, MergeState]] = {
    "resubmit": {"waiting": "waiting"},
    "conclude": {"waiting": "merged"},
    "bounce": {"waiting": "bounced"},
    "cancel": {"waiting": "cancelled"},
}
"""What each decision does to a merge; it is refused in every other state."""
BATCH, MOST_BATCH = 10, 25
"""Branches in one attempt, by default and at most: one commit concludes all of them."""
LISTED, MOST = 100, 10_000
FILES = 50
"""The most files that a bounce names."""
REPLACED = 20
"""The most replaced commits that a merge remembers."""
REASON = 4000
"""The most characters of the reason of a bounce."""


def queue_name(repository: str, target: str) -> str:
    """The queue of a target: no name of a branch has a colon."""
    return f"{repository}:{target}" if repository else target


def parts_of_queue(queue: str) -> tuple[str, str]:
    """The repository and the target of a queue."""
    repository, _, target = queue.rpartition(":")
    return repository, target


class Merge(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A branch that was submitted: its ``commit`` is to be merged ``into`` the target.

    ``merged_as`` is the commit of the target that was seen to contain it.
    """

    branch: str
    into: str
    commit: str
    by: str
    at: float
    state: MergeState = "waiting"
    ended: float | None = None
    ended_by: str = ""
    merged_as: str = ""
    cause: BounceCause | Literal[""] = ""
    reason: str = ""
    files: tuple[str, ...] = ()
    trace: str = ""
    override: str = ""
    """Why it may change files that other agents have reserved."""
    replaced: tuple[str, ...] = ()
    """The last commits that another submit replaced, which need not be kept any more."""
    repository: str = ""
    """The repository of the target; empty in merges of earlier versions."""

    @property
    def queue(self) -> str:
        """The queue in which it waits."""
        return queue_name(self.repository, self.into)


class WaitingMerge(Struct, frozen=True, kw_only=True, gc=False):
    """The entry of a merge in the queue of its target, by its branch."""

    merge: str


class MergeAttempt(Struct, frozen=True, kw_only=True, gc=False):
    """The batch that the server tries: these merges, on ``base``; ``tip`` is to be the target."""

    merges: tuple[str, ...]
    base: str
    tip: str
    token: int
    since: float
    landing: bool = False


class MergeTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The target of a queue: its server, what that tries now, and what keeps all of it.

    ``held`` says why nothing can be merged, although no branch is to blame: the target is checked
    out in a folder with changes, or the remote does not answer.
    """

    server: str = ""
    guard: str = ""
    remote: str = ""
    attempt: MergeAttempt | None = None
    held: str = ""
    since: float = 0.0
    last: str = ""
    """The commit of the target after the last merge."""


# Outcomes.


class MergeSubmitted(Success, frozen=True, kw_only=True, tag="submitted"):
    """The branch waits in the queue; ``place`` is 1 for the next one.

    ``already`` if this very commit waited before, ``before`` is the commit that it replaced.
    """

    merge: str
    branch: str
    into: str
    commit: str
    place: int = 0
    already: bool = False
    before: str = ""


class MergeUnfinished(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """The branch was submitted, and not merged in time: it waits, behind ``before`` others."""

    merge: str
    branch: str
    into: str
    commit: str
    before: int


class MergeBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """The branch lands at this moment, with an earlier commit: it stays as it is."""

    merge: str
    branch: str
    into: str
    state: ShownState


class MergeDone(Success, frozen=True, kw_only=True, tag="merged"):
    """The target contains the commit; ``merged_as`` is the commit of the target that was seen."""

    merge: str
    branch: str
    into: str
    commit: str
    merged_as: str = ""


class MergeBounced(Refusal, frozen=True, kw_only=True, tag="bounced"):
    """The branch was not merged, and left the queue: the ``reason`` says why."""

    of_lines: ClassVar[tuple[str, ...]] = ("reason",)
    merge: str
    branch: str
    into: str
    cause: BounceCause | Literal[""]
    reason: str
    files: tuple[str, ...] = ()


class MergeCancelled(item_outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The branch left the queue; ``already`` if it did so before."""

    merge: str
    branch: str
    into: str
    already: bool = False
    by: str = ""
    reason: str = ""


class MergeOver(Refusal, frozen=True, kw_only=True, tag="over"):
    """It was merged or bounced before, so it cannot be cancelled."""

    merge: str
    branch: str
    into: str
    state: MergeState


class UnknownMerge(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """There is no merge of this id, and none of this branch waits."""

    what: Literal["merge"] = always("merge")


class MergesServed(Success, frozen=True, kw_only=True, tag="served"):
    """What a server did until its end."""

    target: str
    merged: int = 0
    bounced: int = 0


class MergesHeld(Refusal, frozen=True, kw_only=True, tag="held"):
    """Branches wait, and none of them can be merged now: the ``reason`` says what to repair."""

    own_words = ("reason",)

    target: str
    reason: str
    merged: int = 0
    bounced: int = 0


ServeOutcome: TypeAlias = MergesServed | MergesHeld
SubmitOutcome: TypeAlias = (
    MergeSubmitted
    | MergeUnfinished
    | MergeBusy
    | MergeDone
    | MergeBounced
    | MergeCancelled
    | outcomes.GivenFenced
)
CancelOutcome: TypeAlias = (
    MergeCancelled | MergeBusy | MergeOver | UnknownMerge | outcomes.GivenFenced
)


class ListedMerge(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A merge for display; ``place`` is that in the queue, 1 for the next one."""

    of_lines: ClassVar[tuple[str, ...]] = ("reason",)
    merge: str
    branch: str
    into: str
    state: ShownState
    commit: str
    by: str
    at: float
    place: int = 0
    ended_at: float | None = None
    merged_as: str = ""
    cause: BounceCause | Literal[""] = ""
    reason: str = ""
    files: tuple[str, ...] = ()
    repository: str = ""


class MergeView(ListedMerge, frozen=True, kw_only=True, omit_defaults=True):
    """One merge, with what its target says; ``server`` is the agent that serves it now."""

    own_words = ("held",)

    server: str = ""
    guard: str = ""
    held: str = ""
    ended_by: str = ""
    trace: str = ""


class MergeTargetView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The target of a queue for display; without a ``server``, nothing is merged."""

    own_words = ("held",)

    target: str
    waiting: int
    repository: str = ""
    server: str = ""
    guard: str = ""
    remote: str = ""
    testing: tuple[str, ...] = ()
    landing: bool = False
    held: str = ""
    last: str = ""


class MergeList(Listing[ListedMerge], frozen=True, kw_only=True):
    """Merges: those that wait in their order, then those that ended, the last one first."""

    listed: ClassVar[str] = "merges"

    merges: tuple[ListedMerge, ...]
    targets: tuple[MergeTargetView, ...] = ()
