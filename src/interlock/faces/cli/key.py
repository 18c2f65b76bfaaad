"""Commands about keys, which are files of this user: a store is used if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.errors import StoreMissing
from interlock.faces.cli.command import answer
from interlock.nouns.swarms import key_service

if TYPE_CHECKING:
    from interlock.faces.cli.parse import Parsed


def new(parsed: Parsed) -> int:
    """Make a key."""
    return answer(parsed, key_service.create(parsed.request.name))


def list_keys(parsed: Parsed) -> int:
    """The keys of this user."""
    return answer(parsed, key_service.list_keys())


def rotate(parsed: Parsed) -> int:
    """Replace a key, also in the swarm of the store that is here."""
    from interlock.faces.cli.connect import connected

    try:
        fleet = connected(parsed)
    except StoreMissing:
        if parsed.common.store:
            raise
        return answer(parsed, key_service.rotate_file(parsed.request.name))
    with fleet:
        return answer(parsed, fleet.keys.rotate(parsed.request.name))
