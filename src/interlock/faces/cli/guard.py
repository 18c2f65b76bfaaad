"""Commands about guards that may do without a store: check, allow and deny."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.errors import StoreMissing
from interlock.faces.cli import command
from interlock.faces.cli.command import answer
from interlock.nouns.guards import requests

if TYPE_CHECKING:
    from interlock.faces.cli.parse import Parsed
    from interlock.nouns.guards.requests import GuardsToCheck
    from interlock.nouns.guards.results import GuardCheck, NoGuard


def check(parsed: Parsed) -> int:
    """Check conditions; a store is opened only if one of them asks for it."""
    command.stoppable()  # so that commands of the conditions end with this one
    asked = requests.asked_in_shell(parsed.request)
    return answer(parsed, _checked(parsed, asked))


def _checked(parsed: Parsed, asked: GuardsToCheck) -> GuardCheck | NoGuard:
    from interlock.steps import drive

    if asked.uses_store:
        from interlock.faces.cli.connect import connected

        try:
            fleet = connected(parsed)
        except StoreMissing:
            if asked.needs_store or parsed.common.store:
                raise
        else:
            with fleet:
                return drive(requests.check(fleet.context.runner, asked), fleet.store)
    return drive(requests.check(None, asked), None)


def allow(parsed: Parsed) -> int:
    """Put the definitions of a file on the list of this host."""
    return answer(parsed, requests.allow(parsed.request))


def deny(parsed: Parsed) -> int:
    """Take the definitions of a file off the list of this host."""
    return answer(parsed, requests.deny(parsed.request))
