"""The part of ``health`` and ``doctor`` that is about requests: none in a home that is no swarm.

Most homes are none, so ``problems.py``, and what it imports, is imported only where it is needed.
"""

from __future__ import annotations

from interlock.core import keys
from interlock.runtime.health import HealthCheck, Problem
from interlock.steps import Op, Read
from interlock.store import Finding


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Requests that need attention."""
    if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is None:
        return []
    from interlock.nouns.requests.problems import problems

    return (yield from problems(checkup))


def findings(now: float) -> Op[list[Finding]]:
    """How many requests there are, and where."""
    if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is None:
        return []
    from interlock.nouns.requests.problems import counts

    return [(yield from counts(now))]
