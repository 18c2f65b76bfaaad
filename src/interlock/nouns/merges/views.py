"""What list, show, why, health, history and maintain say about merges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.nouns.grants import views as grant_views
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.merge import Merge, MergeTarget
from interlock.nouns.merges.rules import QueuedMerge, shown_state
from interlock.nouns.merges.service import (
    MergeService,
    decode_merge,
    lock_name,
    read_queue,
)
from interlock.nouns.reservations.repository import find
from interlock.nouns.tasks.retention import retention_limits
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, readable
from interlock.runtime.runner import Runner
from interlock.runtime.why import Why
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context


def server_of(runner: Runner, queue: str) -> Op[str]:
    """The agent that serves a queue now; empty if none does."""
    found = yield from grant_views.lock(runner, lock_name(queue))
    return found.holder if found.state == "held" else ""


def list_merges(runner: Runner, into: str, limit: int, *, ended: bool) -> Op[core.MergeList]:
    """The queues of all targets or of one, and with ``ended`` what left them."""
    items = yield from every(keys.MERGE_TARGETS)
    entries = yield from every(keys.MERGES_WAITING)
    names = {keys.merge_target_of(item.key) for item in items}
    names |= {keys.merge_waiting_of(item.key)[0] for item in entries}
    found: list[core.ListedMerge] = []
    targets: list[core.MergeTargetView] = []
    for name in sorted(names):
        if into in ("", core.parts_of_queue(name)[1]):
            listed, target = yield from _queue(runner, name)
            found += listed
            targets.append(target)
    if ended:
        over = [each for each in (yield from _all()) if each.merge.state != "waiting"]
        over = [each for each in over if into in ("", each.merge.into)]
        found += [_listed(each, core.MergeTarget(), 0) for each in reversed(over)]
    return core.MergeList(merges=tuple(found[:limit]), targets=tuple(targets))


def _queue(runner: Runner, name: str) -> Op[tuple[list[core.ListedMerge], core.MergeTargetView]]:
    queue = yield from read_queue(name)
    server = yield from server_of(runner, name)
    target = queue.target if server else replace(queue.target, attempt=None)
    attempt = target.attempt
    listed = [_listed(each, target, place) for place, each in enumerate(queue.waiting, 1)]
    repository, branch = core.parts_of_queue(name)
    view = core.MergeTargetView(
        target=branch,
        repository=repository,
        waiting=len(queue.waiting),
        server=server,
        guard=target.guard,
        remote=target.remote,
        testing=() if attempt is None else attempt.merges,
        landing=attempt is not None and attempt.landing,
        held=target.held,
        last=target.last,
    )
    return listed, view


def _all() -> Op[list[QueuedMerge]]:
    items = yield from every(keys.MERGES)
    found = [(keys.merge_of(item.key), readable(decode_merge, item)) for item in items]
    return [QueuedMerge(id=id_, merge=merge) for id_, merge in found if merge is not None]


def _listed(found: QueuedMerge, target: MergeTarget, place: int) -> core.ListedMerge:
    merge = found.merge
    return core.ListedMerge(
        merge=found.id,
        branch=merge.branch,
        into=merge.into,
        state=shown_state(found, target),
        commit=merge.commit,
        by=merge.by,
        at=merge.at,
        place=place,
        ended_at=merge.ended,
        merged_as=merge.merged_as,
        cause=merge.cause,
        reason=merge.reason,
        files=merge.files,
        repository=merge.repository,
    )


def show_merge(runner: Runner, name: str) -> Op[core.MergeView | core.UnknownMerge]:
    """One merge, by its id or its branch."""
    id_ = yield from MergeService(runner).find(name, repository=find().name)
    key = keys.merge(id_)
    merge = decode_merge((yield Read(key))[key]) if id_ else None
    if merge is None:
        return core.UnknownMerge(unknown=(name,))
    queue = yield from read_queue(merge.queue)
    server = yield from server_of(runner, merge.queue)
    target = queue.target if server else replace(queue.target, attempt=None)
    place = next((n for n, each in enumerate(queue.waiting, 1) if each.id == id_), 0)
    waits = merge.state == "waiting"
    return core.MergeView(
        **asdict(_listed(QueuedMerge(id=id_, merge=merge), target, place)),
        server=server if waits else "",
        guard=target.guard if waits else "",
        held=target.held if waits else "",
        ended_by=merge.ended_by,
        trace=merge.trace,
    )


def why(context: Context, name: str) -> Op[Why]:
    """Explain what a merge, or the queue of a target, waits for."""
    found = yield from show_merge(context.runner, name)
    if isinstance(found, core.MergeView):
        return _why(found)
    if not (own := (yield from _queue_called(name))):
        return Why(
            thing=f"merge/{name}",
            blocked=False,
            because="there is no such merge, and no such target",
            clear="see 'interlock merge list --all'",
            state="unknown",
        )
    queue = yield from read_queue(own)
    server = yield from server_of(context.runner, own)
    said, clear = _queue_says(core.parts_of_queue(own)[1], server, queue.target)
    return Why(
        thing=f"merge/{own}",
        blocked=bool(queue.waiting) and bool(said),
        because=said or f"{len(queue.waiting)} branches wait, and {foreign(server)} merges them",
        clear=clear or "nothing is left to do",
        by=server,
        since=queue.target.since or None,
    )


def _queue_called(name: str) -> Op[str]:
    """The queue of this name, or of a target of this name, of this repository first."""
    names = [keys.merge_target_of(item.key) for item in (yield from every(keys.MERGE_TARGETS))]
    here = core.queue_name(find().name, name)
    found = [each for each in names if name in (each, core.parts_of_queue(each)[1])]
    return min(found, key=lambda each: (each != name, each != here, each), default="")


def _queue_says(target: str, server: str, state: MergeTarget) -> tuple[str, str]:
    """Why no branch of a queue is merged, and what to do about it; empty if all is well."""
    if not server:
        serve = f"interlock merge serve --target {quote(target)} -- make test"
        return f"no server merges into {foreign(target)}", serve
    return state.held, "remove that cause; the server notices it by itself" if state.held else ""


def _why(view: core.MergeView) -> Why:
    thing = f"merge/{view.merge}"
    base: dict[str, Any] = {"thing": thing, "state": view.state}
    again = f"repair it, then submit it again: interlock merge submit {quote(view.branch)}"
    match view.state:
        case "merged":
            said = (
                f"{foreign(view.branch)} is merged: {foreign(view.into)} contains it as of"
                f" {view.merged_as[:12]}"
            )
            return Why(**base, blocked=False, because=said, clear="nothing is left to do")
        case "bounced":
            return Why(
                **base,
                blocked=True,
                because=f"{foreign(view.branch)} was bounced:"
                f" {foreign(view.reason.partition(chr(10))[0])}",
                clear=again,
                by=view.by,
                since=view.ended_at,
            )
        case "cancelled":
            said = f"{foreign(view.ended_by)} cancelled it" + (
                f": {foreign(view.reason)}" if view.reason else ""
            )
            return Why(**base, blocked=True, because=said, clear=again, since=view.ended_at)
        case "testing" | "landing":
            said = f"{foreign(view.server)} is {view.state} it"
            return Why(**base, blocked=False, because=said, clear="wait for it", by=view.server)
        case "waiting":
            pass
    said, clear = _queue_says(view.into, view.server, MergeTarget(held=view.held))
    if not said:
        ahead = "it is next" if view.place <= 1 else f"{view.place - 1} branches are before it"
        said, clear = f"{ahead} in the queue of {foreign(view.into)}", "wait for it"
    return Why(**base, blocked=True, because=said, clear=clear, by=view.server, since=view.at)


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Queues that no server serves, or whose server is kept from merging, for too long."""
    entries = yield from checkup.read(keys.MERGES_WAITING)
    names = sorted({keys.merge_waiting_of(item.key)[0] for item in entries})
    now, found = checkup.runner.clock.wall(), list[Problem]()
    for name in names:
        queue = yield from read_queue(name)
        if not queue.waiting:
            continue
        server = yield from server_of(checkup.runner, name)
        first = queue.waiting[0].merge
        said, clear = _queue_says(core.parts_of_queue(name)[1], server, queue.target)
        since = queue.target.since if server and queue.target.held else first.at
        if said and now - since > checkup.patience.waiting:
            found.append(
                Problem(
                    kind="blocked" if server else "unattended",
                    says=f"merge/{foreign(name)}: {len(queue.waiting)} branches wait: {said}",
                    remedy=clear,
                    thing=f"merge/{name}",
                    agent=server or first.by,
                    since=since,
                )
            )
    return found


class MergeHistory(NounHistory):
    """Merges: submitted, resubmitted, merged, bounced, cancelled; ``says`` has the reason."""

    words = ("merge",)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        found = super()._event(line, event)
        if not event.name.startswith("merge:"):
            return found
        branch = event.details.get("branch", "")
        return replace(found, on=str(branch), says=line.reason)


class MergeHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about merges.

    A merge that ended is deleted when a task would be (the setting ``keep`` of tasks).
    """

    def expired(self, now: float) -> Op[list[Item]]:
        """The merges that ended long ago."""
        age = retention_limits(self.work.settings).age
        items = yield from every(keys.MERGES)
        found: dict[str, Merge | None] = {
            keys.merge_of(item.key): readable(decode_merge, item) for item in items
        }
        old = [
            item
            for item in items
            if (merge := found[keys.merge_of(item.key)]) is not None
            and merge.ended is not None
            and merge.ended < now - age
        ]
        return old
