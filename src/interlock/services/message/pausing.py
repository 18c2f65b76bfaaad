"""Pausing somebody who sends too much, and letting it send again."""

from __future__ import annotations

from interlock.core import keys, post
from interlock.core.message import PausedAgent, Resumed, UnknownAgent
from interlock.driving import Op
from interlock.services.message import states
from interlock.services.runner import Deciding, Done, Reading, Runner, Who


def pause(runner: Runner, who: Who, agent: str, reason: str) -> Op[PausedAgent | UnknownAgent]:
    """Let an agent send nothing from now on."""

    def deciding() -> Deciding[PausedAgent | UnknownAgent]:
        standing = yield from _standing(agent)
        return post.pause(standing, agent, who.agent, reason, runner.clock.wall())

    done: Done[PausedAgent | UnknownAgent] = yield from runner.change(deciding, who)
    return done.outcome


def resume(runner: Runner, who: Who, agent: str) -> Op[Resumed | UnknownAgent]:
    """Let an agent send again."""

    def deciding() -> Deciding[Resumed | UnknownAgent]:
        return post.resume((yield from _standing(agent)), agent)

    done: Done[Resumed | UnknownAgent] = yield from runner.change(deciding, who)
    return done.outcome


def _standing(agent: str) -> Reading[post.Standing]:
    """Whether somebody is known here, and paused."""
    mailbox, key = keys.mailbox(agent), keys.paused(agent)
    snapshot = yield (mailbox, key)
    before = states.paused(snapshot[key])
    return post.Standing(known=snapshot[mailbox] is not None, paused=before)
