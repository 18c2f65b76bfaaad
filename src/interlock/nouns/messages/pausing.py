"""Pausing somebody who sends too much, and letting it send again."""

from __future__ import annotations

from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.messages import decode, send_rules
from interlock.nouns.messages.message import PausedAgent, Resumed, UnknownAgent
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, ReadOp, Runner


def pause(runner: Runner, actor: Actor, agent: str, reason: str) -> Op[PausedAgent | UnknownAgent]:
    """Let an agent send nothing from now on."""

    def deciding() -> DecideOp[PausedAgent | UnknownAgent]:
        standing = yield from _standing(agent)
        return send_rules.pause(standing, agent, actor.agent, reason, runner.clock.wall())

    done: Decided[PausedAgent | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def resume(runner: Runner, actor: Actor, agent: str) -> Op[Resumed | UnknownAgent]:
    """Let an agent send again."""

    def deciding() -> DecideOp[Resumed | UnknownAgent]:
        return send_rules.resume((yield from _standing(agent)), agent)

    done: Decided[Resumed | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def _standing(agent: str) -> ReadOp[send_rules.Standing]:
    """Whether somebody is known here, and paused."""
    mailbox, key = keys.mailbox(agent), keys.paused(agent)
    snapshot = yield (mailbox, key)
    before = decode.paused(snapshot[key])
    return send_rules.Standing(known=snapshot[mailbox] is not None, paused=before)
