"""What a name without a kind means: ``why merge``, ``record explain r1``.

A name may stand for a task, a pipeline and a lock at once; then the caller has to choose.  A
semaphore or a guard is meant only if none of these has the name, and a lock if nothing has it: any
name can be acquired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys, validate
from interlock.errors import BadInput
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.tasks.task import BATCH
from interlock.runtime.why import Why, explain_one
from interlock.steps import Op, Read
from interlock.store import Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context


def why(context: Context, name: str) -> Op[Why | None]:
    """Explain the thing of a name; None if it is no more than a lock that may be acquired."""
    thing = yield from thing_named(name)
    return None if thing.startswith("lock/") else (yield from explain_one(context, thing))


def thing_named(name: str) -> Op[str]:
    """The thing of a name, such as ``pipeline/r1``."""
    name = validate.name(name, "thing")
    own = {
        "task": keys.status(name),
        "pipeline": keys.pipeline(name),
        "lock": keys.lock(name),
        "sem": keys.semaphore(name),
        "guard": keys.guard(name),
        "schedule": keys.schedule(name),
    }
    snapshot: Snapshot = yield Read(*own.values())
    known = [kind for kind, key in own.items() if snapshot[key] is not None]
    pool = decode_pool(snapshot[own["lock"]], 0)
    idle = pool is None or not (pool.grants or pool.waiters)
    never = {"task"} if name.startswith(BATCH) else set[str]()
    never |= {"lock"} if idle else set()
    known = [kind for kind in known if kind not in never]
    first = [kind for kind in known if kind in ("task", "pipeline", "lock")]
    if len(first) > 1:
        both = " and a ".join(first)
        choose = " or for ".join(f"'{kind}/{name}'" for kind in first)
        raise BadInput(f"{name!r} is a {both}; ask for {choose}")
    return f"{[*first, *known, 'lock'][0]}/{name}"
