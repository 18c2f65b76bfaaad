"""What is sent, delivered and answered, told to the log of the program, for those who listen.

``interlock -v`` does, and whoever sets the logger ``interlock`` to INFO.  A program that never
imports ``logging`` pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from interlock.nouns.messages.message import Received, Sent

if TYPE_CHECKING:
    import logging


def sent(sender: str, outcome: Sent) -> None:
    """A message is durable."""
    if _is_heard():
        what = f"{outcome.kind} {outcome.type}".strip()
        _tell("%s sent %s (%s) to %s", sender, outcome.message, what, _names(outcome.to) or "all")


def asked(sender: str, query: str, to: str) -> None:
    """A question is put."""
    _tell("%s asked %s (%s)", sender, to, query)


def delivered(agent: str, messages: Iterable[Received]) -> None:
    """Messages were given to the program of an agent."""
    for each in messages if _is_heard() else ():
        _tell("%s was given %s (%s) from %s", agent, each.id, each.kind, each.sender)


def received(agent: str, ids: Iterable[str]) -> None:
    """An agent acknowledged messages."""
    for each in ids if _is_heard() else ():
        _tell("%s acknowledged %s", agent, each)


def timed_out(sender: str, query: str, to: str, timeout: float) -> None:
    """Nobody answered a question in time: a warning, since its asker goes on without an answer.

    A shell shows the outcome anyway, so there it is told only to a log that was set up (``-v``).
    """
    import logging

    if not _Shell.here or logging.getLogger().handlers:
        said = "%s had no answer to %s from %s within %g s"
        logging.getLogger("interlock").warning(said, sender, query, to, timeout)


def at_a_shell() -> None:
    """What is warned of here is an outcome that the command shows."""
    _Shell.here = True


class _Shell:
    here = False


def replied(agent: str, query: str, to: str) -> None:
    """A question was answered."""
    _tell("%s answered %s of %s", agent, query, to)


def _is_heard() -> bool:
    """Whether anybody listens: asked for every message, so as cheaply as can be.

    A module that is there may be half imported by another thread; the import waits for that.
    """
    if "logging" not in sys.modules:
        return False
    import logging

    return _logger().isEnabledFor(logging.INFO)


def _tell(said: str, *words: str) -> None:
    if _is_heard():
        _logger().info(said, *words)


@cache
def _logger() -> logging.Logger:
    import logging

    return logging.getLogger("interlock")


def _names(to: Iterable[str]) -> str:
    return ", ".join(to).replace("*", "all")
