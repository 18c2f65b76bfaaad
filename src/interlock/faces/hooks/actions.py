"""What happens at each event of a host.

start       the agent joins, and gets the primer
before      each file is reserved for the agent in its worktree, or the edit is refused
after       unread messages, a request to stop, and writes around the edit tool are reported
stop        waiting mail lets the agent go on; else what its edits reserved is released
end         the agent leaves, as does a sub-agent that stops

After tools, at a stop and at the end the tokens of its transcript are counted (``spending.py``).

A message that was shown is acknowledged at the next event of the same session: only then the host
has certainly passed it on.  ``notices.py`` says what is shown.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from interlock import store_location
from interlock.core.safe_text import foreign, one_line
from interlock.core.validate import quote, span
from interlock.errors import InterlockError, StoreMissing
from interlock.faces.hooks import hosts
from interlock.faces.hooks.event import HookEvent
from interlock.faces.hooks.hosts import HookAnswer, Host
from interlock.faces.hooks.spending import begin_counting, count_spending, over_budget
from interlock.nouns.reservations import pattern, repository
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.repository import ReservedRepository

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.hooks.notices import Notice
    from interlock.faces.hooks.state import HookState

EDIT_TTL = 600.0
"""Seconds that an edited file stays reserved, unless the agent stops or edits it again."""
SESSION_TTL = 3600.0
"""Seconds that an agent counts as alive after its last event: a tool may run for long."""
EDITING = "edits it"
"""The reason of reservations that the hook made."""
IN_A_ROW = 5
"""Times that mail keeps an agent from stopping before it may stop all the same."""


def act(host: Host, event: HookEvent) -> HookAnswer:
    """Carry an event out."""
    match event.means:
        case hosts.BEFORE:
            return before_edit(host, event)
        case hosts.START | hosts.SUB_START:
            return start(host, event)
        case hosts.END:
            return end(host, event)
        case hosts.STOP | hosts.SUB_STOP:
            return stop(host, event)
        case _:
            return after_tools(host, event)


def connected(host: Host, event: HookEvent, folder: str = "") -> Fleet | None:
    """A client for the agent of an event; None if there is no store for the folder."""
    from interlock.client import begun
    from interlock.core.wait import AGENT_CALLER

    try:
        place = store_location.find_store(folder or event.folder)
    except StoreMissing:
        return None
    store = store_location.open_place(place)
    caller = AGENT_CALLER + os.uname().nodename
    fleet = begun(store, event.agent(host), join=False, caller=caller)
    fleet.context.runner.via = "hook"
    return fleet


# Before an edit.


def before_edit(host: Host, event: HookEvent) -> HookAnswer:
    """Reserve each file for the agent, or refuse the edit."""
    if event.tool not in host.edits:
        return HookAnswer()
    if not event.paths:
        raise ValueError(f"the tool {event.tool} names no file that this version can find")
    by_place: dict[str, list[str]] = {}
    for whole in _written(event):
        by_place.setdefault(_existing(os.path.dirname(whole)), []).append(whole)
    places: dict[str, tuple[ReservedRepository, list[str]]] = {}
    for folder, paths in by_place.items():
        place = repository.find(folder)
        places.setdefault(place.root, (place, []))[1].extend(paths)
    for place, paths in places.values():
        refused = _reserve(host, event, place, paths)
        if refused is not None:
            return hosts.deny(host, event.named, refused)
    return HookAnswer()


def _written(event: HookEvent) -> list[str]:
    """The files that a tool writes; of a link also its target, which the tool may write instead."""
    paths = [os.path.normpath(os.path.join(event.folder, path)) for path in event.paths]
    return [each for path in paths for each in dict.fromkeys((path, _target(path)))]


def _target(path: str) -> str:
    return os.path.realpath(path) if os.path.islink(path) else path


def _existing(folder: str) -> str:
    """The nearest folder that exists: a new file may be in a new folder."""
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def _reserve(
    host: Host, event: HookEvent, place: ReservedRepository, paths: list[str]
) -> str | None:
    """Why the edit is refused; None if the files are the agent's now."""
    fleet = connected(host, event, place.root)
    if fleet is None:  # nothing can be reserved here
        return None
    with fleet:
        if said := over_budget(fleet):
            return said
        texts = [pattern.escaped(place.relative(path)) for path in dict.fromkeys(paths)]
        for begin in range(0, len(texts), r.PATTERNS):
            got = fleet.reservations.reserve(
                *texts[begin : begin + r.PATTERNS],
                ttl=EDIT_TTL,
                reason=EDITING,
                worktree=place.root,
                repository=place.name,
            )
            if isinstance(got, r.ReservationConflict):
                return _refusal(got, fleet.context.runner.clock.wall())
    return None


def _refusal(got: r.ReservationConflict, now: float) -> str:
    """The words of a refusal: the holder, since when, its reason, and what to do."""
    from interlock.faces.hooks.notices import MOST, given_reason

    ends = "" if got.expires_in is None else f", for at most {span(got.expires_in)} more"
    first = (
        f"interlock: {foreign(got.witness)} is reserved by {foreign(got.holder)}"
        f" since {span(now - got.since)} ago{ends}."
    )
    then = "Do not write it in another way. Edit another file first"
    wait = (
        f"{then}, or wait for it: interlock reserve {quote(one_line(got.witness))} --on-conflict"
        " queue"
    )
    ask = f"{wait}; or ask: interlock query {quote(one_line(got.holder))} 'When are you done?'"
    head = "\n".join([first, *given_reason(got.reason)])
    fitting = [each for each in (ask, wait, then) if len(f"{head}\n{each}".encode()) <= MOST]
    return "\n".join([head, *fitting[:1]])


# Start and end.


def start(host: Host, event: HookEvent) -> HookAnswer:
    """Join, and give the model the primer."""
    fleet = connected(host, event)
    if fleet is None:
        return HookAnswer()
    from interlock.faces.hooks.primer import primer

    with fleet:
        join(fleet, host, event)
        begin_counting(fleet, host, event)
        if event.means == hosts.SUB_START:
            name = event.agent(host)
            text = f"You are agent {foreign(name)} of Interlock; what others reserved is refused."
            return hosts.context(host, event.named, text)
        return hosts.context(host, event.named, primer(fleet, host.name))


def join(fleet: Fleet, host: Host, event: HookEvent) -> None:
    """Begin the session of this agent, or renew it."""
    from interlock.steps import drive

    context, session = fleet.context, event.session_id
    renewed = drive(context.sessions.beat(session), fleet.store)
    if renewed or os.environ.get("INTERLOCK_SESSION") == session:
        return
    agent = context.me().actor.agent
    parent = os.getppid()
    op = context.sessions.join(
        agent,
        ttl=SESSION_TTL,
        session=session,
        pid=parent,
        listed=True,
        trace=context.trace,
        metadata={"host": host.name, "session": event.session},  # to wake it
    )
    drive(op, fleet.store)


def end(host: Host, event: HookEvent) -> HookAnswer:
    """Leave, and release everything; a session around this one ends by itself."""
    fleet = connected(host, event)
    if fleet is None:
        return HookAnswer()
    from interlock.faces.hooks.state import HookState

    with fleet, HookState(event) as state:
        _leave(fleet, repository.find(_existing(event.folder)), event)
        error = count_spending(fleet, host, event, state)
        state.remove()
    return HookAnswer(err=error)


def _leave(fleet: Fleet, place: ReservedRepository, event: HookEvent) -> None:
    """End the session of the agent, and what it reserved; a named one may have other sessions."""
    from interlock.runtime.identity import Actor
    from interlock.steps import drive

    named = os.environ.get("INTERLOCK_AGENT") and not event.agent_id
    _release_edits(fleet, place, all_=not named)
    session = event.session_id
    if os.environ.get("INTERLOCK_SESSION") != session:
        actor = Actor(fleet.context.me().actor.agent, session)
        drive(fleet.context.sessions.leave(actor), fleet.store)


def _release_edits(fleet: Fleet, place: ReservedRepository, *, all_: bool = False) -> None:
    """End the reservations that the hook made; or all of the agent."""
    agent = fleet.context.me().actor.agent
    found = fleet.reservations.list(holder=agent, repository=place.name)
    mine = [each for each in found if all_ or each.reason == EDITING]
    for each in mine:
        if each.token is not None:
            fleet.reservations.unreserve(token=each.token, repository=place.name)


# After tools, and at the end of a turn.


def after_tools(host: Host, event: HookEvent) -> HookAnswer:
    """Note the edits; report a stop, unread messages, and writes around the edit tool."""
    from interlock.faces.hooks.notices import fitted, unread_messages
    from interlock.faces.hooks.state import HookState

    place = repository.find(_existing(event.folder))
    os.chdir(place.root)
    fleet = connected(host, event)
    if fleet is None:
        return HookAnswer()
    with fleet, HookState(event) as state:
        state.idle = False
        _note(fleet, place, event)
        _beat(fleet, host, event, state)
        _acknowledge(fleet, state)
        found, trouble = list(unread_messages(fleet, state)), ""
        if event.means == hosts.AFTER and not event.edits:
            trouble = _add_foreign_writes(found, fleet, place, state)
        error = _lines(trouble, count_spending(fleet, host, event, state))
        return hosts.context(host, event.named, fitted(found))._replace(err=error)


def stop(host: Host, event: HookEvent) -> HookAnswer:
    """Let the agent go on if mail waits, a few times in a row; else release what it edited.

    A sub-agent that stops is at its end.
    """
    from interlock.faces.hooks.notices import fitted, unread_messages
    from interlock.faces.hooks.state import HookState

    place = repository.find(_existing(event.folder))
    os.chdir(place.root)
    fleet = connected(host, event)
    if fleet is None:
        return HookAnswer()
    with fleet, HookState(event) as state:
        _beat(fleet, host, event, state)
        _acknowledge(fleet, state)
        state.stops = state.stops + 1 if event.again else 0
        found: list[Notice] = []
        trouble = ""
        if state.stops < IN_A_ROW:
            found += unread_messages(fleet, state, stops="never")
            if event.means == hosts.STOP:
                trouble = _add_foreign_writes(found, fleet, place, state)
        error = _lines(trouble, count_spending(fleet, host, event, state))
        state.idle = not found and event.means == hosts.STOP
        if found:
            return hosts.go_on(host, fitted(found))._replace(err=error)
        if event.means == hosts.SUB_STOP and event.agent_id:
            _leave(fleet, place, event)
            state.remove()
        else:
            _release_edits(fleet, place)
    return HookAnswer(err=error)


def _add_foreign_writes(
    found: list[Notice], fleet: Fleet, place: ReservedRepository, state: HookState
) -> str:
    """Add the writes around the edit tool; returns why that failed, which must hide no message."""
    from interlock.faces.hooks.notices import foreign_writes

    try:
        found += foreign_writes(fleet, place, state)
    except (InterlockError, OSError) as error:
        return f"interlock hook: writes around the edit tool were not looked for: {error}"
    return ""


def _lines(*errors: str) -> str:
    return "\n".join(filter(None, errors))


def _note(fleet: Fleet, place: ReservedRepository, event: HookEvent) -> None:
    from interlock.faces.hooks.writes import note_edits

    own = [place.relative(path) for path in _written(event) if place.contains(path)]
    note_edits(place.root, fleet.context.me().actor.agent, own)


def _beat(fleet: Fleet, host: Host, event: HookEvent, state: HookState) -> None:
    now = fleet.context.runner.clock.wall()
    if not 0 <= now - state.beat < SESSION_TTL / 60:
        state.beat = now
        join(fleet, host, event)


def _acknowledge(fleet: Fleet, state: HookState) -> None:
    """Acknowledge the messages that an earlier answer showed."""
    if state.shown:
        fleet.messages.ack(*state.shown)
        state.shown = []
