"""The command that keeps a swarm on its bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.errors import BadInput
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import connected, staying
from interlock.faces.cli.streams import follow
from interlock.nouns.swarms.results import NotRegistered

if TYPE_CHECKING:
    from interlock.faces.cli.parse import Parsed


def sync(parsed: Parsed) -> int:
    """One pass; with ``--follow`` one after the other, and a line for each that has news."""
    request = parsed.request
    if not request.follow:
        with connected(parsed) as fleet:
            return answer(parsed, fleet.swarms.sync(force=request.force))
    if request.force:
        raise BadInput("--follow signs our entry when it is due; leave --force out")
    with staying(parsed) as fleet:
        first = fleet.swarms.sync()
        if isinstance(first, NotRegistered):
            return answer(parsed, first)
        answer(parsed, first)
        return follow(parsed, fleet.swarms.keep)
