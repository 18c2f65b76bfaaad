"""The checks of ``doctor``: the engine's own, and the checks that every store shares.

A check is a generator of findings.  A check that fails with an InterlockError reports that error
as a finding.
"""

from __future__ import annotations

import sys

from interlock.client_context import Context
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.validate import span
from interlock.errors import InterlockError, StoreDamaged
from interlock.nouns.agents.views import list_agents
from interlock.nouns.fleet.noun import Diagnosis
from interlock.nouns.grants import views
from interlock.nouns.record.seal_service import Sealing
from interlock.nouns.record.verify import verify
from interlock.nouns.requests.health import findings as request_findings
from interlock.nouns.swarms.views import key_findings, swarm_findings
from interlock.runtime.attempt import DecideOp
from interlock.runtime.health import remedy
from interlock.runtime.history import EVERYTHING, search
from interlock.runtime.identity import Actor
from interlock.runtime.integrity import unreadable
from interlock.runtime.reads import fresh_once
from interlock.runtime.runner import Runner
from interlock.steps import Op, StandingMark, StoreCall
from interlock.store import FAILOVER, Capabilities, Finding, StoreMark

LEAST_PYTHON = (3, 11)
EARLIEST = 1_704_067_200.0  # 2024
MAY_BE_AHEAD = 5.0
MOST_SHOWN = 3


def diagnose(context: Context) -> Op[Diagnosis]:
    """Every check of one client at one store; a check may rely on those before it."""
    found = [python()]
    try:
        found += yield from examine_store(context)
    except InterlockError as error:
        found.append(error_finding("store", error))
    return Diagnosis(checks=tuple(found))


def examine_store(context: Context) -> Op[list[Finding]]:
    """The checks of an open store."""
    found: list[Finding] = list((yield StoreCall("examine")))
    mark: StoreMark | None = yield StandingMark()
    if mark is not None:
        fact = f"this store {mark.words}, and accepts no changes"
        return [*found, bad("moved", fact, remedy(mark))]
    if all(each.verdict != "bad" for each in found):
        # With a bad finding the write would fail for the same reason, after a long wait.
        found.append((yield from _writing(context.runner)))
    checks: dict[str, Op[list[Finding]]] = {
        "integrity": _integrity(),
        "record": Sealing(context.runner, context.settings).findings(),
        "clock": _clock(context.runner),
        "stale grants": _stale_grants(context.runner),
        "lapsed sessions": _lapsed_sessions(context.runner),
        "swarm": swarm_findings(context),
        "requests": request_findings(context.runner.clock.wall()),
        "keys": key_findings(context.runner.clock.wall),
    }
    if any(each.name == FAILOVER for each in found):
        checks["losses"] = _losses(context.runner.capabilities)
    for name, check in checks.items():
        try:
            found += yield from fresh_once(check)
        except StoreDamaged as error:  # an unreadable item ends its own check only
            found.append(error_finding(name, error))
    return found


def _writing(runner: Runner) -> Op[Finding]:
    """Try a commit, which alone shows a full disk; it is not recorded, and its key expires."""
    key = keys.live(runner.new_id("doc"))

    def deciding() -> DecideOp[str]:
        yield (key,)
        put = Write(key, "doctor", runner.capabilities.min_ttl)
        return Decision(outcome="written", puts=(put,), quiet=True)

    began = runner.clock.monotonic()
    try:
        yield from runner.change(deciding, Actor())
    except InterlockError as error:
        return error_finding("writing", error)
    took = (runner.clock.monotonic() - began) * 1000
    return ok("writing", f"a commit took {took:.1f} ms")


def _integrity() -> Op[list[Finding]]:
    wrong = yield from unreadable()
    found = [error_finding("integrity", error) for error in wrong[:MOST_SHOWN]]
    if len(wrong) > MOST_SHOWN:
        found.append(bad("integrity", f"{len(wrong) - MOST_SHOWN} more cannot be read"))
    return found or [ok("integrity", "all items can be read")]


def _losses(capabilities: Capabilities) -> Op[list[Finding]]:
    """What a failover lost, as far as the record shows it: entries that later ones name."""
    found = yield from verify(capabilities)
    if found:
        return [ok("losses", "the record misses no entry that another one names")]
    says = [each.says for each in found.findings[:MOST_SHOWN]]
    more = len(found.findings) + found.more - len(says)
    fact = "; ".join(says) + (f"; and {more} more" if more else "")
    return [
        bad(
            "losses", fact, "run 'interlock record verify', and do again what is lost and still due"
        )
    ]


def _clock(runner: Runner) -> Op[list[Finding]]:
    now = runner.clock.wall()
    last = yield from search(EVERYTHING, limit=1)
    ahead = last[-1].at - now if last else 0.0
    if now < EARLIEST:
        return [warn("clock", "it shows a year before 2024", "set the clock")]
    if ahead > MAY_BE_AHEAD:
        fact = f"the newest entry is {span(ahead)} in the future"
        return [warn("clock", fact, "set the clock; the order of events does not depend on it")]
    return [ok("clock", "plausible")]


def _stale_grants(runner: Runner) -> Op[list[Finding]]:
    found = [lock.lock for lock in (yield from views.locks(runner)) if _is_stale(lock)]
    for each in (yield from views.semaphores(runner)):
        found += [f"sem/{each.semaphore}"] if any(map(_is_stale, each.holders)) else []
    return [_left_over("stale grants", found)]


def _lapsed_sessions(runner: Runner) -> Op[list[Finding]]:
    agents = yield from list_agents(runner)
    found = [agent.agent for agent in agents if agent.state == "lapsed"]
    return [_left_over("lapsed sessions", found)]


def python() -> Finding:
    """Whether this version of Python is supported."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        return bad("python", version, "install Python 3.11 or newer")
    return ok("python", version)


def ok(name: str, fact: str) -> Finding:
    """A check that passed."""
    return Finding(verdict="ok", name=name, fact=fact)


def warn(name: str, fact: str, remedy: str) -> Finding:
    """A check that passed, with something to fix."""
    return Finding(verdict="warn", name=name, fact=fact, remedy=remedy)


def bad(name: str, fact: str, remedy: str = "") -> Finding:
    """A check that failed."""
    return Finding(verdict="bad", name=name, fact=fact, remedy=remedy)


def error_finding(name: str, error: InterlockError) -> Finding:
    """An InterlockError as a finding."""
    return bad(name, *str(error).split("; ", 1))


def _is_stale(each: object) -> bool:
    return getattr(each, "state", "") == "stale"


def _left_over(name: str, found: list[str]) -> Finding:
    if not found:
        return ok(name, "none")
    some = ", ".join(found[:MOST_SHOWN]) + (" ..." if len(found) > MOST_SHOWN else "")
    return warn(name, f"{len(found)} ({some})", "run 'interlock maintain'")
