"""``interlock top``: checks the terminal and the extra, then shows the screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.errors import BadInput
from interlock.faces.cli.connect import (
    CommandIdentity,
    hush,
    opened,
    person_name,
    proven_person,
    require_made,
    shown,
    url_of,
)
from interlock.faces.tui.views import VIEWS

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.cli.parse import Parsed
    from interlock.faces.tui.app import TopApp
    from interlock.nouns.fleet.monitor_noun import TopRequest

MISSING = "'interlock top' needs textual: pip install 'interlock[tui]' ('.[tui]' in a clone)"
LEAVE = 0.5
"""Seconds that the end waits for the reader to close its client; a store may never answer."""


def top(parsed: Parsed) -> int:
    """Show the screen until the person quits."""
    if not _is_terminal():
        raise BadInput(
            "'interlock top' needs a terminal; in a pipe use 'interlock health' or 'observe'"
        )
    app = made(parsed)
    app.run()
    app.reader.join(LEAVE)
    return 0


def made(parsed: Parsed) -> TopApp:
    """The screen for a command, with a client that was opened once, so that mistakes show first."""
    request: TopRequest = parsed.request
    if request.view not in VIEWS:
        raise BadInput(f"there is no view {request.view!r:.40}; choose of: {', '.join(VIEWS)}")
    try:
        from interlock.faces.tui.app import TopApp
    except ImportError as error:
        raise BadInput(f"{MISSING} ({error})") from None
    identity = CommandIdentity(parsed.common)
    agent = identity.agent or person_name()
    validate.own_agent_name(agent, proven=proven_person())
    every = max(0.2, validate.duration(request.every, "every"))
    hush()

    def opens() -> Fleet:
        return opened(
            identity.store, agent=agent, join=False, create=False, trace=identity.trace,
            key=identity.key,
        )  # fmt: skip

    with opens() as fleet:
        require_made(fleet.store)
        place = shown(url_of(fleet.store, identity.store))
    return TopApp(opens, place=place, agent=agent, view=request.view, every=every)


def _is_terminal() -> bool:
    return all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout))
