"""What happens in the demo, in order, and what was measured on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

import interlock
from interlock.demo.crew import Crew, Member, names
from interlock.demo.plan import CAPACITY, LAST, MODULES, SEMAPHORE, TRAP, Step, abilities, publish
from interlock.demo.protocol import Failed, Job, Said
from interlock.demo.tally import Tally
from interlock.nouns.grants.semaphore_service import SemaphoreView

FRAME = 0.1
PATIENCE = 60.0
TRIES = 3
LEAVING = 5.0
"""Seconds in which everybody goes who was asked to by a message; it takes milliseconds."""


class Screen(Protocol):
    """Where the demo is shown."""

    leisure: float

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""

    def draw(self, crew: Crew, tally: Tally) -> None:
        """Show how things stand; called many times a second."""


@dataclass(slots=True)
class Build:
    """One time at work in slots, by the monotonic clock."""

    agent: str
    slots: int
    took: float
    done: float | None = None


@dataclass(slots=True)
class Seen:
    """What the demo saw with its own eyes."""

    builds: list[Build] = field(default_factory=list)
    victim: str = ""
    pid: int = 0
    token: int = 0
    slots: int = 0
    killed: float = 0.0
    heir: str = ""
    attempt: int = 0
    heir_token: int = 0
    task_moved: float = 0.0
    slots_moved: float = 0.0
    meanwhile: int = 0
    late: str = ""
    heard: dict[str, float] = field(default_factory=dict)
    """How long after the alert each agent heard of it."""
    answer: str = ""
    answered: float = 0.0
    """Seconds between a question and its answer."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Why each agent went."""

    def at_work(self, moment: float) -> int:
        """How many slots were at work at a moment; those of the dead until it died."""
        return sum(b.slots for b in self.builds if b.took <= moment < self._until(b))

    def _until(self, build: Build) -> float:
        """When a build was over: what was cut short counts as never begun, but for the last one."""
        if build.done is not None:
            return build.done
        its = [b for b in self.builds if b.agent == self.victim and b.took < self.killed]
        return self.killed if its and build is its[-1] else build.took


class Play:
    """The script."""

    def __init__(
        self,
        fleet: interlock.Fleet,
        crew: Crew,
        screen: Screen,
        job: Job,
        steps: tuple[Step, ...],
    ) -> None:
        self.seen = Seen()
        self._fleet = fleet
        self._crew = crew
        self._screen = screen
        self._job = job
        self._steps = steps
        self._tally = Tally()
        self._read = 0
        self._trapped: Said | None = None

    def perform(self, workers: int) -> Seen:
        """From the first process to the last."""
        self._everybody_joins(workers)
        self._one_dies_in_the_middle()
        self._another_takes_over()
        self._the_dead_reports()
        self._all_is_done()
        return self.seen

    def _everybody_joins(self, workers: int) -> None:
        for number, name in enumerate(names(workers)):
            self._crew.start(replace(self._job, agent=name, can=abilities(number)))
        publish(self._fleet, self._steps)
        self._screen.note(
            f"{len(self._steps)} tasks published: fetch;"
            f" lint, build, test, merge {len(MODULES)} modules; ship"
        )
        self._until(lambda: self._all("ready"), "all agents have joined")
        self._screen.note(f"{workers} agents claim what is ready and what they can do")
        self._crew.tell("go")

    def _one_dies_in_the_middle(self) -> None:
        """Kill one that certainly works on the task: it says so, and the store agrees."""
        for _ in range(TRIES):
            self._until(lambda: self._trapped is not None, f"somebody is at {TRAP}")
            said, self._trapped = self._trapped, None
            assert said is not None  # noqa: S101 - just awaited
            victim = next(m for m in self._crew.members.values() if m.state == "staying")
            self._screen.note(
                f"{victim.name} is in the middle of {TRAP}, in {said.slots} of {CAPACITY} slots"
            )
            self._watch(1.0)
            if self._holds(victim, said):
                return self._kill(victim, said)
        raise Failed(f"nobody could keep {TRAP}; is this machine overloaded?")

    def _holds(self, victim: Member, said: Said) -> bool:
        """Whether the store agrees that it lives, and has the task and the slots."""
        slots = self._fleet.semaphores.show(SEMAPHORE)
        assert isinstance(slots, SemaphoreView)  # noqa: S101 - the first build made it
        owns = [each.holder for each in slots.holders if each.state == "held"]
        mine = self._tally.work.get(victim.name) == said.task
        return victim.state == "staying" and mine and victim.name in owns

    def _kill(self, victim: Member, said: Said) -> None:
        seen = self.seen
        seen.victim, seen.pid = victim.name, victim.pid
        seen.token, seen.slots = said.token, said.slots
        seen.killed = time.monotonic()
        self._crew.kill(victim.name)
        self._crew.tell("free")
        self._screen.note(
            f"kill -9 {victim.pid}: {victim.name} is dead and gave nothing back;"
            f" its TTL is {self._job.ttl:g} s"
        )

    def _another_takes_over(self) -> None:
        seen, before = self.seen, len(self._tally.completed)
        self._until(lambda: bool(seen.task_moved), f"somebody took over {TRAP}", self._job.ttl)
        seen.meanwhile = len(self._tally.completed) - before
        after = f"{seen.task_moved:.2f} s after the kill"
        self._screen.note(f"{seen.heir} has {TRAP}, {after}, as attempt {seen.attempt}")
        self._until(lambda: bool(seen.slots_moved), "its slots moved on", self._job.ttl)

    def _the_dead_reports(self) -> None:
        """What the dead agent would say if it had only been asleep."""
        seen = self.seen
        with interlock.connect(self._crew.store, seen.victim, join=False) as zombie:
            outcome = zombie.tasks.complete(TRAP, token=seen.token)
        seen.late = str(outcome.__struct_config__.tag)
        self._screen.note(f"a late 'it is done' with the token of {seen.victim}: {seen.late}")

    def _all_is_done(self) -> None:
        everything = len(self._steps)
        self._until(lambda: self._tally.count("complete") == everything, "all tasks are complete")
        self._screen.note(f"all {everything} tasks are complete")
        self._everybody_leaves([m for m in self._crew.members.values() if m.state != "killed"])

    def _everybody_leaves(self, alive: list[Member]) -> None:
        """Whoever deployed told the others, and is told by us; that may miss who joins just now."""
        last = next(deed.agent for deed in self._tally.completed if deed.task == LAST)
        self._fleet.messages.stop(last, "you were the last")
        self._until(lambda: all(m.name in self.seen.heard for m in alive), "all heard the alert")
        ends = time.monotonic() + LEAVING
        self._until(lambda: _gone(alive) or time.monotonic() > ends, "everybody has left")
        if left := [member.name for member in alive if member.state != "done"]:
            self._crew.tell("stop", left)
            self._until(lambda: _gone(alive), "everybody has left")
        asked = sum(" asked: " in why for why in self.seen.stopped.values())
        self._screen.note(f"asked to stop by a message, {asked} of {len(alive)} agents have left")

    def _all(self, state: str) -> bool:
        return all(member.state == state for member in self._crew.members.values())

    def _watch(self, seconds: float) -> None:
        """Let people watch for a while."""
        ends = time.monotonic() + seconds * self._screen.leisure
        while (left := ends - time.monotonic()) > 0:
            self._step(left)

    def _until(self, true: Callable[[], bool], what: str, longer: float = 0.0) -> None:
        ends = time.monotonic() + PATIENCE + longer
        while not true():
            left = ends - time.monotonic()
            if left <= 0:
                raise Failed(f"waited {PATIENCE + longer:g} s in vain until {what}")
            self._step(left)

    def _step(self, left: float) -> None:
        for member, said in self._crew.hear(min(left, FRAME)):
            self._heard(member, said)
        lines = self._fleet.record.log(after=self._read, limit=1000, last=False)
        self._read = max([self._read, *(line.revision for line in lines)])
        self._tally.read(lines)
        self._screen.draw(self._crew, self._tally)

    def _heard(self, member: Member, said: Said) -> None:
        seen = self.seen
        after_kill = said.at - seen.killed if seen.killed else 0.0
        instead = said.task == TRAP and after_kill > 0 and member.name != seen.victim
        match said.state:
            case "working" if instead and not seen.heir:
                seen.heir, seen.attempt = member.name, said.attempt
                seen.heir_token, seen.task_moved = said.token, after_kill
            case "building":
                seen.builds.append(Build(member.name, said.slots, said.at))
                if instead and not seen.slots_moved:
                    seen.slots_moved = after_kill
            case "built":
                build = next(b for b in reversed(seen.builds) if b.agent == member.name)
                build.done = said.at
            case "staying":
                self._trapped = said
            case "heard":
                seen.heard.setdefault(member.name, said.seconds)
            case "answered" if not seen.answered:
                seen.answer, seen.answered = said.text, said.seconds
            case "done":
                seen.stopped[member.name] = said.text
            case _:
                pass


def _gone(members: list[Member]) -> bool:
    return all(member.state == "done" for member in members)
