"""The declaration of tasks: their keys, and what they add to other parts.

Their operations are in ``publish_noun.py``, ``claim_noun.py`` and ``view_noun.py``.
"""

from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.nouns.tasks import claim_noun, publish_noun, view_noun
from interlock.runtime.noun import KeyKind, Noun, Part

if TYPE_CHECKING:
    pass

NOUN = Noun(
    gates={"task": "interlock.nouns.tasks.gates:move_on"},
    gate_flags={"task": "interlock.nouns.tasks.task_reader:set_gated"},
    name="task",
    help="units of work, each claimed by one worker at a time and completed once",
    calls="interlock.nouns.tasks.calls:TaskCalls",
    blocking="interlock.client_tasks:Tasks",
    awaiting="interlock.aio_tasks:Tasks",
    keys=tuple(
        KeyKind(prefix=prefix, read="interlock.nouns.tasks.task_reader:examine", bulk=True)
        for prefix in keys.TASK_FOLDERS
    ),
    why={"task": "interlock.nouns.tasks.why:task"},
    health=Part(30, "interlock.nouns.tasks.health:health"),
    gauges="interlock.nouns.tasks.metrics:task_gauges",
    housekeeping=Part(10, "interlock.nouns.tasks.housekeeping:TaskHousekeepingPart"),
    history="interlock.nouns.tasks.history:TaskHistory",
    waits={keys.TASKS: "interlock.nouns.tasks.claim_wait:wait_targets"},
    proof="interlock.nouns.grants.pool_reader:claim_liveness",
    history_details="interlock.nouns.tasks.history:with_reason",
    texts=("interlock.nouns.tasks.text",),
    operations=(*publish_noun.OPERATIONS, *claim_noun.OPERATIONS, *view_noun.OPERATIONS),
)
