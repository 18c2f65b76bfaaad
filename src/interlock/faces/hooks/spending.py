"""Counts what the agent of a hook spends, from the transcript that its host writes.

This is done after tools and at the end of a turn, never before an edit, and a part of a large
transcript is left for the next event.  The usage of a sub-agent counts for the agent of its
session: a limit is for both together.  It is booked to the task that the agent works on, if it is
one.  Limits refuse claims (``nouns/budgets/``) and edits (``over_budget``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from interlock.core import codec, keys
from interlock.errors import BadInput
from interlock.faces.hooks.hosts import AFTER, Host

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.hooks.event import HookEvent
    from interlock.faces.hooks.state import HookState

PORTIONS = 4
"""Parts of a transcript that one hook reads, of 8 MB each."""
PAUSE = 60.0
"""Seconds between two counts during a turn, in a fleet without limits."""
CONTINUED = ("fork", "resume")
"""Starts of a session whose transcript has what an earlier session spent."""
_CLAIMS = 200


class _Worker(Struct):
    """What a hook needs of the owner of a task; its noun would be one more import."""

    agent: str = ""


_OWNER = codec.Decoder(_Worker)


def count_spending(fleet: Fleet, host: Host, event: HookEvent, state: HookState) -> str:
    """Count what the transcript has beyond its counted part; returns why it cannot be read."""
    runner = fleet.context.runner
    if not _has_transcript(host, event):
        return ""
    from interlock.steps import drive

    limited, now = drive(runner.has_budget(), fleet.store), runner.clock.wall()
    if event.means == AFTER and not limited and 0 <= now - state.counted < PAUSE:
        return ""
    from interlock.nouns.budgets.service import count_transcript

    state.counted = now
    actor, task = fleet.context.me().actor, current_task(fleet)
    payer, path = _payer(host, event), event.transcript
    counting = count_transcript(runner, actor, payer, task, path, portions=PORTIONS)
    try:
        drive(counting, fleet.store)
    except BadInput as unreadable:
        return f"its spending is not counted: {unreadable}"
    return ""


def begin_counting(fleet: Fleet, host: Host, event: HookEvent) -> None:
    """Count nothing of what an earlier session spent, whose transcript this one continues."""
    if event.source not in CONTINUED or not _has_transcript(host, event):
        return
    from interlock.nouns.budgets.service import skip_transcript
    from interlock.steps import drive

    actor, payer = fleet.context.me().actor, _payer(host, event)
    skipping = skip_transcript(fleet.context.runner, actor, payer, event.transcript)
    try:
        drive(skipping, fleet.store)
    except BadInput:  # the next count says so
        return


def over_budget(fleet: Fleet) -> str:
    """Why the agent may spend no more; costs a read only if the fleet has a budget."""
    from interlock.steps import drive

    if not drive(fleet.context.runner.has_budget(), fleet.store):
        return ""
    said = fleet.budgets.exceeded(task=current_task(fleet) or None)
    return f"interlock: {said}. End for now, and say so; an operator may raise it." if said else ""


def current_task(fleet: Fleet) -> str:
    """The task that the agent works on; empty if it has none, or several."""
    from interlock.runtime.reads import looked_up
    from interlock.steps import Read, drive
    from interlock.store import Range

    agent = fleet.context.me().actor.agent

    def reading() -> Any:  # noqa: ANN401 - an operation
        page = Range(keys.CLAIMS, limit=_CLAIMS)
        tasks = {keys.claim_of(item.key)[1] for item in (yield Read(page)).ranges[page]}
        owners = yield from looked_up([keys.owner(task) for task in tasks])
        workers = {task: _OWNER.read_if_present(owners[keys.owner(task)]) for task in tasks}
        return [task for task, worker in workers.items() if worker and worker.agent == agent]

    found = drive(reading(), fleet.store)
    return found[0] if len(found) == 1 else ""


def _has_transcript(host: Host, event: HookEvent) -> bool:
    """Whether there is one: a host writes it late, and some sessions have none."""
    return host.transcripts and bool(event.transcript) and os.path.exists(event.transcript)


def _payer(host: Host, event: HookEvent) -> str:
    """The agent of the session."""
    return event._replace(agent_id="").agent(host)
