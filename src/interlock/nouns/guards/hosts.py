"""Which hosts may look at the outside for a guard, and which look.

No host can read the list of another.  So that each can say which of them could answer, a host
leaves a note in the store when it allows a guard, and when it looks:

    live/allows/{guard}/{host}         lives for a month
    live/looks/{guard}/{host}/{root}   a poller of the host looks for gates (``poller.py``)

A note permits nothing.  A host is live while an agent has a live session there, or a poller looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.nouns.guards.gates import OBSERVED, GateFact
from interlock.nouns.guards.results import AllowingHost
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.reads import OWN_OPERATIONS, every, looked_up
from interlock.runtime.runner import Runner
from interlock.steps import Op

NOTED = 30 * 24 * 3600.0
"""Seconds that a host counts as one that allows a guard, unless it looks again."""
_NAMED = 3


def announce(runner: Runner, digests: Iterable[str]) -> Op[None]:
    """Note that this host allows these guards."""
    notes = list(map(allowing_note, digests))
    most = runner.capabilities.max_operations - OWN_OPERATIONS
    for start in range(0, len(notes), most):
        yield from runner.change(partial(_noting, notes[start : start + most]), Actor())


def _noting(notes: Sequence[Write]) -> DecideOp[str]:
    yield from ()
    return Decision(outcome="noted", puts=tuple(notes), quiet=True)


def allowing_note(digest: str) -> Write:
    """The note that this host allows a guard."""
    return Write(keys.allows(digest, host_name()), {}, NOTED)


def allowing_hosts(
    digests: Iterable[str], *, own: bool = False
) -> Op[dict[str, tuple[AllowingHost, ...]]]:
    """The hosts that allow each of these guards, the live ones first; ``own`` adds this one."""
    asked = list(dict.fromkeys(digests))
    notes = yield from every(*map(keys.allows, asked))
    named = {keys.allows_of(each.key) for each in notes}
    looking = {keys.looks_of(each.key) for each in (yield from every(*map(keys.looks, asked)))}
    named |= looking
    if not own:
        named = {(key, host) for key, host in named if host != host_name()}
    live = (yield from _live_hosts()) if named else frozenset()
    live |= {host for _, host in looking}
    found: dict[str, tuple[AllowingHost, ...]] = {}
    for key, host in sorted(named, key=lambda each: (each[1] not in live, each)):
        looks = (key, host) in looking
        each = AllowingHost(host=host, live=host in live, looks=looks)
        found[key] = (*found.get(key, ()), each)
    return found


def _live_hosts() -> Op[frozenset[str]]:
    from interlock.nouns.agents.views import all_sessions

    sessions = yield from all_sessions()
    alive = yield from looked_up(keys.live(each.id) for each in sessions)
    return frozenset(each.host for each in sessions if alive[keys.live(each.id)] is not None)


def who_looks(facts: Iterable[GateFact]) -> Op[tuple[str, ...]]:
    """For a gate that waits for what hosts see: the hosts that look, or what to do if none does."""
    digests = [each.fact.removeprefix(OBSERVED) for each in facts if each.fact.startswith(OBSERVED)]
    if not digests:
        return ()
    hosts = yield from allowing_hosts(digests, own=True)
    return tuple(dict.fromkeys(_who_looks(hosts.get(each, ())) for each in digests))


def _who_looks(hosts: Sequence[AllowingHost]) -> str:
    looking = [each.host for each in hosts if each.looks]
    if looking:
        return f"{few_hosts(looking)} look{'s' * (len(looking) == 1)} at it again and again"
    start = "run 'interlock maintain --guards'"
    if hosts:
        may = few_hosts([each.host for each in hosts])
        return f"no host looks at it again; {start} on {may}, which may look"
    allow = "a person has to allow it, then run 'interlock maintain --guards'"
    return f"no live host may look; {allow} on a host that has the files"


def few_hosts(hosts: Sequence[str]) -> str:
    """The names of some hosts, for a person."""
    named = [foreign(host) for host in hosts[:_NAMED]]
    more = [f"{len(hosts) - _NAMED} more"] if len(hosts) > _NAMED else []
    return f"host{'s' * (len(hosts) > 1)} {', '.join([*named, *more])}"
