"""Commands about guards that may do without a store: check, allow, deny and permissions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from interlock.errors import StoreMissing, StoreTrouble
from interlock.faces.cli import command
from interlock.faces.cli.command import answer
from interlock.nouns.guards import requests
from interlock.nouns.guards.hosts import announce
from interlock.nouns.guards.observations import withdraw
from interlock.runtime.identity import Actor

if TYPE_CHECKING:
    from interlock.core.outcomes import NoGuard
    from interlock.faces.cli.parse import Parsed
    from interlock.nouns.guards.requests import GuardsToCheck
    from interlock.nouns.guards.results import GuardCheck
    from interlock.runtime.runner import Runner
    from interlock.steps import Op

T = TypeVar("T")


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
    """Put the definitions of a file on the list of this host, and note it in the store."""
    from interlock.faces.cli.allow import refuse_coding_agent

    refuse_coding_agent()
    allowed = requests.allow(parsed.request)
    with suppress(StoreTrouble):  # it says so again when it looks
        _in_store(parsed, partial(announce, digests=[each.digest for each in allowed.guards]))
    return answer(parsed, allowed)


def deny(parsed: Parsed) -> int:
    """Take definitions off the list of this host, and what it saw for them out of the store."""
    from interlock.nouns.guards.noun import GuardsDenied

    named = requests.deny(parsed.request.file)
    withdrawn, left = 0, ""
    try:
        found = _in_store(parsed, partial(withdraw, denied=named, actor=Actor()))
        withdrawn = found or 0
    except StoreTrouble as error:
        left = str(error)
    guards = tuple(named.values())
    outcome = GuardsDenied(file=parsed.request.file, guards=guards, withdrawn=withdrawn, left=left)
    return answer(parsed, outcome)


def permissions(parsed: Parsed) -> int:
    """The list of this host."""
    return answer(parsed, requests.permissions())


def _in_store(parsed: Parsed, work: Callable[[Runner], Op[T]]) -> T | None:
    """The outcome of a work in the store; None if there is no store."""
    from interlock.faces.cli.connect import connected
    from interlock.steps import drive

    try:
        fleet = connected(parsed)
    except StoreMissing:
        if parsed.common.store:
            raise
        return None
    with fleet:
        return drive(work(fleet.context.runner), fleet.store)
