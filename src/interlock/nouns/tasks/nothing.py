"""What ``next`` says when it finds nothing: what is missing for what is ready, and what comes next.

Two reads: the sets of requirements and the first entries of the ``due`` index, then what they name.
A set is listed while no task of it is ready, too, so its first ready task is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.validate import ALL_ABILITIES, span
from interlock.nouns.tasks.ready_index import Abilities, all_abilities, rest_keys
from interlock.nouns.tasks.task import can_do
from interlock.nouns.tasks.task_outcomes import NoTask
from interlock.nouns.tasks.task_reader import decode_names, decode_spec
from interlock.runtime.reads import readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Ref, Snapshot

SETS = 64
"""The most sets of requirements that are looked at."""
DUE = 16
"""The first entries of the ``due`` index, of which the soonest that we can do is named."""


def explained(runner: Runner, abilities: Abilities, found: NoTask) -> Op[NoTask]:
    """The same outcome, with the abilities that are missing, and with what is ready next."""
    able = yield from all_abilities(abilities)
    found = replace(found, can=tuple(sorted(able)))
    sets, due = Range(keys.SETS, limit=SETS), Range(keys.DUE, limit=DUE)
    first: Snapshot = yield Read(sets, due)
    lacking = _lacking(first.ranges[sets], able)
    heads = {name: Range(keys.ready(name), limit=1) for name in lacking}
    later, rests = first.ranges[due], rest_keys(first.ranges[due])
    data = {
        item.key: keys.data(keys.task_in_index(item.key))
        for item in later
        if not keys.is_schedule_entry(item.key)
    }
    wanted: tuple[Ref, ...] = (*heads.values(), *rests.values(), *data.values())
    if not wanted and not later:
        return found
    then: Snapshot = (yield Read(*wanted, times=True)) if wanted else Snapshot(0, {}, {})
    missing = {each for name, head in heads.items() if then.ranges[head] for each in lacking[name]}
    mine = [item.key for item in later if _is_ours(item.key, data, then, able)]
    left = _seconds_left(mine, rests, then, runner.clock.wall())
    soonest = min(left, key=lambda key: left[key], default="")
    return _with_facts(found, tuple(sorted(missing)), soonest, left.get(soonest))


def _lacking(sets: Sequence[Item], able: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """The sets that we cannot do, each with the abilities that it lacks."""
    names = {item.key.removeprefix(keys.SETS): readable(decode_names, item) for item in sets}
    return {
        name: tuple([each for each in dict.fromkeys(needed) if each not in able])
        for name, needed in names.items()
        if needed and ALL_ABILITIES not in able and not able.issuperset(needed)
    }


def _is_ours(key: str, data: Mapping[str, str], snapshot: Snapshot, able: frozenset[str]) -> bool:
    """Whether we can do the task of an entry; what a schedule publishes is not looked at."""
    if key not in data:
        return True
    item = snapshot[data[key]]
    spec = None if item is None else readable(decode_spec, item)
    return spec is not None and can_do(able, spec.requires)


def _seconds_left(
    due: Iterable[str], rests: Mapping[str, str], snapshot: Snapshot, now: float
) -> dict[str, float]:
    """Seconds until each of these entries is due: a rest lives, else the wall clock says it."""
    found: dict[str, float] = {}
    for key in due:
        left = keys.due_at(key) - now
        if key in rests:
            rest = snapshot[rests[key]]
            left = 0.0 if rest is None else rest.expires_in or 0.0
        found[key] = max(left, 0.0)
    return found


def _with_facts(
    found: NoTask, missing: tuple[str, ...], soonest: str, left: float | None
) -> NoTask:
    reason, thing = found.reason, ""
    if missing:
        reason += f"; what is ready requires {foreign_names(missing)}"
    if soonest and left is not None:
        if keys.is_schedule_entry(soonest):
            name = keys.schedule_in_index(soonest)
            thing, says = f"schedule/{name}", f"schedule {foreign(name)} publishes the next one"
        else:
            name = keys.task_in_index(soonest)
            thing, says = f"task/{name}", f"task {foreign(name)} may begin"
        reason += f"; {says} in {span(left)}"
        left = round(left, 3)
    return replace(found, reason=reason, missing=missing, soonest=thing, begins_in=left)
