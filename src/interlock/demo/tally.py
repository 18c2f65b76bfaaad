"""What the record says of the tasks: who claimed, lost and completed which, in order.

Nothing here comes from the workers: what they say of themselves proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from interlock.core.log import Line
from interlock.demo.plan import Step

STATES = {
    "task:published": "waiting",
    "task:claimed": "running",
    "task:released": "waiting",
    "task:reclaimed": "waiting",
    "task:failed": "waiting",
    "task:completed": "complete",
}


class Deed(Struct, frozen=True):
    """Something that happened to a task, and whose it was."""

    task: str
    agent: str
    revision: int


@dataclass(slots=True)
class Tally:
    """How the tasks stand, as far as the record was read."""

    states: dict[str, str] = field(default_factory=dict)
    work: dict[str, str] = field(default_factory=dict)
    """The task of each agent that has one."""
    deeds: dict[str, list[Deed]] = field(default_factory=lambda: {name: [] for name in STATES})

    def read(self, lines: Iterable[Line]) -> Tally:
        """Know these entries, too."""
        for line in lines:
            for event in line.events:
                if event.name in STATES:
                    task = (event.thing or line.thing).removeprefix("task/")
                    self._note(event.name, Deed(task, event.agent, line.revision))
        return self

    @property
    def claimed(self) -> list[Deed]:
        """Every claim."""
        return self.deeds["task:claimed"]

    @property
    def reclaimed(self) -> list[Deed]:
        """Every claim that lapsed, by whom it was lost."""
        return self.deeds["task:reclaimed"]

    @property
    def failed(self) -> list[Deed]:
        """Every attempt that was broken off, as by who lost its slots in the middle of it."""
        return self.deeds["task:failed"]

    @property
    def completed(self) -> list[Deed]:
        """Every completion; one for each task, if all is well."""
        return self.deeds["task:completed"]

    def count(self, state: str) -> int:
        """How many tasks stand like this."""
        return sum(each == state for each in self.states.values())

    def done_by(self) -> Counter[str]:
        """How many tasks each agent completed."""
        return Counter(deed.agent for deed in self.completed)

    def done_once(self, steps: Iterable[Step]) -> bool:
        """Whether each task was completed, and none twice."""
        return sorted(deed.task for deed in self.completed) == sorted(s.task for s in steps)

    def in_order(self, steps: Iterable[Step]) -> bool:
        """Whether nobody had a task before all that it needs was complete."""
        needs = {step.task: step.needs for step in steps}
        done = {deed.task: deed.revision for deed in self.completed}
        return all(
            need in done and done[need] < deed.revision
            for deed in self.claimed
            for need in needs[deed.task]
        )

    def _note(self, event: str, deed: Deed) -> None:
        self.deeds[event].append(deed)
        self.states[deed.task] = STATES[event]
        if event == "task:claimed":
            self.work[deed.agent] = deed.task
        elif self.work.get(deed.agent) == deed.task:
            del self.work[deed.agent]
