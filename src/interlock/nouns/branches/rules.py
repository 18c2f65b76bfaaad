"""Decisions about branches: a move is announced, a conflict is reported."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw

from interlock.core import codec
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.nouns.branches import branch as core
from interlock.nouns.branches.branch import WatchedBranch
from interlock.nouns.messages.message import StoredMessage
from interlock.nouns.messages.send_rules import notice_writes


def announce(
    key: str,
    before: WatchedBranch | None,
    move: core.BranchUpdated,
    sender: str,
    *,
    now: float,
    old: tuple[str, ...] = (),
) -> Decision[core.BranchUpdated | None]:
    """Store where a branch is, and alert all subscribers if it moved since the last time.

    ``old`` are keys of earlier versions, which end with this.
    """
    after = WatchedBranch(commit=move.after, at=now, moves=before.moves + 1 if before else 0)
    if before is None or (old and before.commit == move.after):
        return Decision(
            outcome=None,
            verb="branch.watch",
            thing=f"branch/{move.branch}",
            puts=(Write(key, after if before is None else before),),
            deletes=old,
        )
    if before.commit == move.after:
        return Decision(outcome=None)
    id_ = f"msg_{codec.digest(f'{key} {after.moves} {move.after}'.encode())[:32]}"
    alert = StoredMessage(
        id=id_,
        kind="alert",
        sender=sender,
        at=round(now, 3),
        type=move.alert,
        data=Raw(codec.encode(_data(move))),
    )
    return Decision(
        outcome=move,
        verb="branch.move",
        thing=f"branch/{move.branch}",
        puts=(Write(key, after), *notice_writes(alert, (sender,))),
        deletes=old,
        events=(
            Event("branch:moved", sender, details=_data(move)),
            Event("message:sent", sender, f"message/{id_}"),
        ),
    )


def _data(move: core.BranchUpdated) -> dict[str, object]:
    said: dict[str, object] = {
        "branch": move.branch,
        "repository": move.repository,
        "before": move.before,
        "after": move.after,
        "commits": move.commits,
        "forced": move.forced,
        "remote": move.remote,
    }
    return {name: value for name, value in said.items() if value}


def report_conflict(
    conflict: core.RebaseConflict, agent: str, to: str, id_: str, *, now: float
) -> Decision[core.RebaseConflict]:
    """Send the files of a conflict to an agent, and record it."""
    return Decision(
        outcome=conflict,
        verb="branch.rebase",
        thing=f"branch/{conflict.branch}",
        puts=tuple(_message(conflict, agent, to, id_, now)),
        events=(Event("branch:conflict", agent),),
        reason=f"{conflict.onto}: {', '.join(conflict.files)}"[:1000],
    )


def _message(
    conflict: core.RebaseConflict, agent: str, to: str, id_: str, now: float
) -> Iterable[Write]:
    data = {
        "branch": conflict.branch,
        "onto": conflict.onto,
        "files": conflict.files,
        "reason": conflict.reason,
    }
    message = StoredMessage(
        id=id_,
        kind="mail",
        sender=agent,
        at=round(now, 3),
        to=(to,),
        type="rebase",
        subject=f"conflict: {foreign(conflict.branch)} onto {foreign(conflict.onto)}"[:200],
        data=Raw(codec.encode(data)),
    )
    return notice_writes(message, (agent,))


def record_rebase(done: core.Rebased, agent: str) -> Decision[core.Rebased]:
    """Record that a branch was rebased."""
    return Decision(
        outcome=done,
        verb="branch.rebase",
        thing=f"branch/{done.branch}",
        events=(Event("branch:rebased", agent),),
    )
