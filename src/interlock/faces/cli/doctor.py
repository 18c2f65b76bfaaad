"""``doctor``: check everything that Interlock depends on, and say what to fix.

A client can make the checks of an open store; this module has those that come before.
"""

from __future__ import annotations

from collections.abc import Iterator

from interlock import store_location
from interlock.drivers import drive
from interlock.errors import InterlockError
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import CommandIdentity, opened, shown
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.doctor import Diagnosis, Examination, ok, python, trouble
from interlock.store import Finding


def doctor(parsed: Parsed) -> int:
    """Every check; a check may rely on those before it."""
    return answer(parsed, Diagnosis(checks=tuple(_checks(parsed))))


def _checks(parsed: Parsed) -> Iterator[Finding]:
    yield python()
    try:
        given = CommandIdentity(parsed.common).store
        found = store_location.StoreLocation(given, "--store") if given else store_location.locate()
        yield ok("store", f"{shown(found.url)} (from {found.how})")
        with opened(given, create=False) as fleet:  # a check creates no store
            yield from drive(Examination(fleet.context).inside(), fleet.store)
    except InterlockError as error:
        yield trouble("store", error)
