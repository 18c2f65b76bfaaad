"""Log lines for messages that are sent, delivered and answered, on the logger ``interlock``.

They appear with ``interlock -v``, and if a program sets that logger to INFO. A program that never
imports ``logging`` pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from interlock.core.safe_text import foreign
from interlock.nouns.messages.message import Received, Sent

if TYPE_CHECKING:
    import logging


def sent(sender: str, outcome: Sent) -> None:
    """A message is durable."""
    if _is_heard():
        about = f" {foreign(outcome.type)}" if outcome.type else ""
        what, to = f"{outcome.kind}{about}", _names(outcome.to) or "all"
        _tell("%s sent %s (%s) to %s", foreign(sender), outcome.message, what, to)


def asked(sender: str, query: str, to: str) -> None:
    """A question was asked."""
    _tell("%s asked %s (%s)", foreign(sender), foreign(to), query)


def delivered(agent: str, messages: Iterable[Received]) -> None:
    """Messages were delivered to an agent."""
    for each in messages if _is_heard() else ():
        _tell(
            "%s was given %s (%s) from %s", *map(foreign, (agent, each.id, each.kind, each.sender))
        )


def received(agent: str, ids: Iterable[str]) -> None:
    """An agent acknowledged messages."""
    for each in ids if _is_heard() else ():
        _tell("%s acknowledged %s", foreign(agent), foreign(each))


def timed_out(sender: str, query: str, to: str, timeout: float) -> None:
    """A question timed out: a warning, since its asker continues without an answer.

    A command shows the outcome itself, so it logs this only if logging is configured (``-v``).
    """
    import logging

    if not _Shell.here or logging.getLogger().handlers:
        said = "%s had no answer to %s from %s within %g s"
        logging.getLogger("interlock").warning(said, *map(foreign, (sender, query, to)), timeout)


def at_a_shell() -> None:
    """Do not warn of outcomes that a command shows."""
    _Shell.here = True


class _Shell:
    here = False


def replied(agent: str, query: str, to: str) -> None:
    """A question was answered."""
    _tell("%s answered %s of %s", *map(foreign, (agent, query, to)))


def _is_heard() -> bool:
    """Whether INFO is enabled; called for every message, so it must be cheap.

    The module may be half imported by another thread; the import statement waits for that.
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
    return ", ".join(["all" if each == "*" else foreign(each) for each in to])
