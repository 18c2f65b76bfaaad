"""What a plain name stands for."""

from __future__ import annotations

from interlock.core import keys
from interlock.core.task import BATCH
from interlock.driving import Op
from interlock.errors import BadInput
from interlock.services import states
from interlock.services.steps import Read
from interlock.store import Snapshot


def named(name: str) -> Op[str]:
    """A task of this name, or else a lock; if there are both, somebody has to choose."""
    task, lock = keys.status(name), keys.lock(name)
    snapshot: Snapshot = yield Read(task, lock)
    if snapshot[task] is None or name.startswith(BATCH):
        return f"lock/{name}"
    pool = states.pool(snapshot[lock], 0)
    if pool is not None and (pool.grants or pool.waiters):
        raise BadInput(f"{name!r} is a task and a lock; ask for 'task/{name}' or for 'lock/{name}'")
    return f"task/{name}"
