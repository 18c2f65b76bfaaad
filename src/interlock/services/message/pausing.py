"""Pausing somebody who sends too much, and letting it send again."""

from __future__ import annotations

from interlock.core import keys, post
from interlock.core.message import PausedAgent, Resumed
from interlock.driving import Op
from interlock.services.message import states
from interlock.services.runner import Deciding, Done, Runner, Who


def pause(runner: Runner, who: Who, agent: str, reason: str) -> Op[PausedAgent]:
    """Let an agent send nothing from now on."""
    key = keys.paused(agent)

    def deciding() -> Deciding[PausedAgent]:
        before = states.paused((yield (key,))[key])
        return post.pause(before, agent, who.agent, reason, runner.clock.wall())

    done: Done[PausedAgent] = yield from runner.change(deciding, who)
    return done.outcome


def resume(runner: Runner, who: Who, agent: str) -> Op[Resumed]:
    """Let an agent send again."""
    key = keys.paused(agent)

    def deciding() -> Deciding[Resumed]:
        return post.resume(states.paused((yield (key,))[key]), agent)

    done: Done[Resumed] = yield from runner.change(deciding, who)
    return done.outcome
