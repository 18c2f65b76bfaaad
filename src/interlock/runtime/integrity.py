"""What of a store does not read as what it should be.

Whatever meets such an item goes on without it, if it can; here all of them are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from interlock.core import keys
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.agents.reports import able_of, report
from interlock.nouns.messages.decode import examine as examine_message
from interlock.nouns.messages.presence import liveness_key
from interlock.nouns.tasks.decode import examine as examine_task
from interlock.runtime import decode
from interlock.runtime.steps import Read
from interlock.store import Item, Range

_MOST, _FEW = 200, 16
_LARGE = 1_000_000
"""Items at once; behind a page of more bytes than this comes a smaller one."""

_CHECKS: dict[str, Callable[[Item], object]] = {
    **dict.fromkeys(keys.POOLS, lambda item: decode.pool(item, 0)),
    keys.SESSIONS: decode.session,
    keys.DEATHS: decode.death,
    keys.BROKEN: decode.broken,
    **dict.fromkeys(keys.TASK_FOLDERS, examine_task),
    **dict.fromkeys(keys.MESSAGE_FOLDERS, examine_message),
    keys.SERVING: liveness_key,
    keys.WAITS: decode.listed_wait,
    keys.REPORTS: report,
    keys.ABLE: able_of,
}


KINDS = tuple(_CHECKS)


def unreadable(kinds: Iterable[str] = KINDS, most: int | None = None) -> Op[list[StoreDamaged]]:
    """What is wrong with each item that does not read as what it should be.

    At most so many of each kind are looked at.
    """
    found: list[Item] = []
    for prefix in kinds:
        found += yield from broken(prefix, most)
    return [wrong for item in found if (wrong := damage(item)) is not None]


def broken(prefix: str, most: int | None = None) -> Op[list[Item]]:
    """The items of a kind that cannot be read, among the first of them."""
    found: list[Item] = []
    seen, page = 0, Range(prefix, limit=_MOST)
    while most is None or seen < most:
        items: tuple[Item, ...] = (yield Read(page)).ranges[page]
        found += [item for item in items if damage(item) is not None]
        seen += len(items)
        if len(items) < page.limit:
            break
        large = sum(len(item.value) for item in items) > _LARGE
        page = Range(prefix, items[-1].key, _FEW if large else _MOST)
    return found


def damage(item: Item) -> StoreDamaged | None:
    """What is wrong with an item; None if it can be read."""
    check = next((each for prefix, each in _CHECKS.items() if item.key.startswith(prefix)), None)
    try:
        if check is not None:
            check(item)
    except StoreDamaged as error:
        return error
    return None
