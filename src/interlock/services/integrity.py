"""What of a store does not read as what it should be.

Whatever meets such an item goes on without it, if it can; here all of them are named.
"""

from __future__ import annotations

from collections.abc import Callable

from interlock.core import keys
from interlock.driving import Op
from interlock.errors import StoreDamaged
from interlock.services import states
from interlock.services.message.serving import alive_by
from interlock.services.message.states import examine as examine_message
from interlock.services.report import report
from interlock.services.steps import Read
from interlock.services.task.states import examine as examine_task
from interlock.store import Item, Range

PAGE = 200
"""Items at once: the data of tasks and messages may be large."""

_CHECKS: dict[str, Callable[[Item], object]] = {
    **dict.fromkeys(keys.POOLS, lambda item: states.pool(item, 0)),
    keys.SESSIONS: states.session,
    **dict.fromkeys(keys.WORK, examine_task),
    **dict.fromkeys(keys.POST, examine_message),
    keys.SERVING: alive_by,
    keys.WAITS: states.listed_wait,
    keys.REPORTS: report,
}


def unreadable() -> Op[list[StoreDamaged]]:
    """What is wrong with each lock, session, task or message that does not read as one."""
    found: list[StoreDamaged] = []
    for prefix in _CHECKS:
        page: Range | None = Range(prefix, limit=PAGE)
        while page is not None:
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            found += [wrong for item in items if (wrong := damage(item)) is not None]
            page = Range(prefix, items[-1].key, PAGE) if len(items) == PAGE else None
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
