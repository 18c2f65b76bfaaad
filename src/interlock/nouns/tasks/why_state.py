"""Tasks as they stand at this moment, with what that depends on, for whoever explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.driving import Op
from interlock.errors import StoreDamaged
from interlock.nouns.tasks import decode, progress_rules
from interlock.nouns.tasks.task import BATCH, Claim, Due, Spec, Status
from interlock.runtime.gather import looked_up
from interlock.runtime.runner import Runner
from interlock.store import Item

T = TypeVar("T")

DAMAGED = "damaged"
_SPECIFIED = ("blocked", "pending")


class Looked(Struct, frozen=True, kw_only=True):
    """A task, as far as its state makes it matter.

    ``left`` is how long its claim lives at least, or until it may begin.  ``damage`` says what of
    it cannot be read.
    """

    task: str
    status: Status | None
    spec: Spec | None = None
    claim: Claim | None = None
    token: int = 0
    alive: bool = False
    left: float | None = None
    damage: str = ""

    @property
    def state(self) -> str:
        """How it stands."""
        if self.damage:
            return DAMAGED
        return "unknown" if self.status is None else self.status.state

    @property
    def how(self) -> Status:
        """How it stands; only of one that is there."""
        assert self.status is not None  # noqa: S101 - whoever asks has looked at the state
        return self.status

    @property
    def what(self) -> Spec:
        """What it is; only where that was asked for."""
        assert self.spec is not None  # noqa: S101 - written with the status, and never changed
        return self.spec

    @property
    def hangs(self) -> bool:
        """Whether it waits for another task."""
        return self.state == "blocked" and not self.batch

    @property
    def batch(self) -> bool:
        """Whether this is no task, but the batch of an import."""
        return self.task.startswith(BATCH)


def look(
    runner: Runner, tasks: Iterable[str], *, states_of: tuple[str, ...] = _SPECIFIED
) -> Op[dict[str, Looked]]:
    """These tasks; what they are only in the states where that is asked for."""
    base = yield from runner.base()
    named = list(dict.fromkeys(tasks))
    items = yield from looked_up(map(keys.status, named))
    damage: dict[str, str] = {}
    found = {task: _read(decode.status, items[keys.status(task)], task, damage) for task in named}
    more = yield from looked_up(_particulars(found, states_of))
    specs = {task: _read(decode.spec, more.get(keys.data(task)), task, damage) for task in named}
    claims = {task: _read(decode.claim, more.get(keys.owner(task)), task, damage) for task in named}
    dues = {
        task: _read(decode.due, more.get(each.due), task, damage)
        for task, each in found.items()
        if each is not None
    }
    wanted = [key for claim in claims.values() if claim for key in claim.live]
    wanted += [due.rest for due in dues.values() if due and due.rest]
    live = yield from looked_up(wanted, times=True)
    now = runner.clock.wall()
    return {
        task: Looked(
            task=task,
            status=status,
            spec=specs[task],
            claim=claims[task],
            token=0 if (owner := more.get(keys.owner(task))) is None else base + owner.revision,
            alive=_alive(live, claims[task]),
            left=_left(live, status, claims[task], dues.get(task), now),
            damage=damage.get(task, ""),
        )
        for task, status in found.items()
    }


def _read(
    read: Callable[[Item | None], T | None], item: Item | None, task: str, damage: dict[str, str]
) -> T | None:
    """What an item says; of what cannot be read, that."""
    try:
        return read(item)
    except StoreDamaged as error:
        damage[task] = str(error)
        return None


def _particulars(found: Mapping[str, Status | None], states_of: tuple[str, ...]) -> list[str]:
    wanted = []
    for task, status in found.items():
        if status is None:
            continue
        if status.state == "running":
            wanted.append(keys.owner(task))
        if status.state in states_of:
            wanted.append(keys.data(task))
        if status.due:
            wanted.append(status.due)
    return wanted


def _alive(live: Mapping[str, Item | None], claim: Claim | None) -> bool:
    return claim is not None and all(live[key] is not None for key in claim.live)


def _left(
    live: Mapping[str, Item | None],
    status: Status | None,
    claim: Claim | None,
    due: Due | None,
    now: float,
) -> float | None:
    if status is not None and status.due:
        if due is None or not due.rest:
            return max(0.0, progress_rules.moment(status.due) - now)
        return _least(live, (due.rest,)) or 0.0
    return None if claim is None else _least(live, claim.live)


def _least(live: Mapping[str, Item | None], names: Iterable[str]) -> float | None:
    found = [live[name] for name in names]
    return min([i.expires_in for i in found if i and i.expires_in is not None], default=None)
