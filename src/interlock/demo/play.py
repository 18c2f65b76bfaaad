"""What happens in the demo, in order, and what was measured on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

import interlock
from interlock.demo.crew import Crew, Member, names
from interlock.demo.ledger import Ledger
from interlock.demo.protocol import Failed, Job, Said
from interlock.demo.worker import STAYS
from interlock.services.semaphore import Shown

FRAME = 0.1
NOTE = 68
PACE = 0.05
PATIENCE = 20.0
TRIES = 3


class Screen(Protocol):
    """Where the demo is shown."""

    leisure: float

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""

    def draw(self, crew: Crew) -> None:
        """Show how things stand; called many times a second."""


@dataclass(slots=True)
class Turn:
    """One time in the critical section, by the monotonic clock."""

    agent: str
    token: int
    took: float
    reclaimed_from: str = ""
    wrote: float | None = None


@dataclass(slots=True)
class Build:
    """One time at work in slots, by the monotonic clock."""

    agent: str
    weight: int
    took: float
    done: float | None = None


@dataclass(slots=True)
class Seen:
    """What the demo saw with its own eyes."""

    turns: list[Turn] = field(default_factory=list)
    builds: list[Build] = field(default_factory=list)
    victim: str = ""
    pid: int = 0
    token: int = 0
    count: int = 0
    killed: float = 0.0
    heir: Turn | None = None
    late_file: str = ""
    late_store: str = ""

    def at_work(self, moment: float, *, without: str = "") -> int:
        """How many slots were at work at a moment; those of the dead until it died."""
        return sum(
            build.weight
            for build in self.builds
            if build.agent != without and build.took <= moment < self._until(build)
        )

    def built_instead(self, capacity: int) -> Build | None:
        """The first build that had no room while the dead one's slots were taken."""
        lost = sum(b.weight for b in self.builds if b.agent == self.victim and b.done is None)
        for build in self.builds:
            beside = self.at_work(build.took, without=self.victim)
            if build.took > self.killed > 0 and beside + lost > capacity:
                return build
        return None

    def _until(self, build: Build) -> float:
        """When a build was over: what was cut short counts as never begun."""
        if build.done is not None:
            return build.done
        died = build.agent == self.victim and self.killed > build.took
        return self.killed if died else build.took


class Play:
    """The script."""

    def __init__(
        self, fleet: interlock.Fleet, crew: Crew, screen: Screen, job: Job, workers: int
    ) -> None:
        self.seen = Seen()
        self._fleet = fleet
        self._crew = crew
        self._screen = screen
        self._job = job
        self._names = names(workers)
        self._staying: list[Said] = []

    def perform(self) -> Seen:
        """From the first process to the last."""
        self._everybody_joins()
        self._all_take_turns()
        self._one_dies_holding()
        self._another_takes_over()
        self._the_dead_writes()
        self._life_goes_on()
        return self.seen

    def _everybody_joins(self) -> None:
        for number, name in enumerate(self._names):
            self._crew.start(replace(self._job, agent=name, weight=2 - number % 2))
        self._until(lambda: self._all("ready"), "all workers have joined")

    def _all_take_turns(self) -> None:
        self._screen.note("all take turns: build in 1 or 2 slots, then count on under the lock")
        self._crew.tell("go")
        self._watch(2.5)
        self._until(lambda: self._had(2), "everybody had two turns")

    def _one_dies_holding(self) -> None:
        """Kill one that certainly holds: it says so, and the store agrees."""
        victim = self._crew.members[self._names[1]]
        self._crew.tell("stay", [victim.name])
        for _ in range(TRIES):
            self._until(lambda: victim.state == "staying", f"{victim.name} holds the lock")
            said = self._staying[-1]
            self._screen.note(
                f"{victim.name} has {STAYS} slots and the lock, and is in the middle ..."
            )
            self._watch(1.0)
            if self._holds(victim, said):
                break
        else:
            raise Failed(f"{victim.name} could not keep the lock; is this machine overloaded?")
        self._kill(victim, said)

    def _holds(self, victim: Member, said: Said) -> bool:
        """Whether the store agrees that it has both."""
        lock = self._fleet.locks.show(self._job.lock)
        slots = self._fleet.semaphores.show(self._job.semaphore)
        assert isinstance(slots, Shown)  # noqa: S101 - the first build made it
        owns = [each.holder for each in slots.holders if each.state == "held"]
        expected = ("held", victim.name, said.token)
        return (lock.state, lock.holder, lock.token) == expected and victim.name in owns

    def _kill(self, victim: Member, said: Said) -> None:
        seen = self.seen
        seen.victim, seen.pid, seen.token = victim.name, victim.pid, said.token
        seen.count = said.count
        seen.killed = time.monotonic()
        self._crew.kill(victim.name)
        self._screen.note(
            f"kill -9 {victim.pid}: {victim.name} is dead and gave nothing back;"
            f" its TTL is {self._job.ttl:g} s"
        )

    def _slots_move_on(self) -> None:
        seen, capacity = self.seen, self._job.capacity
        self._until(lambda: seen.built_instead(capacity) is not None, "its slots moved on")
        build = seen.built_instead(capacity)
        assert build is not None  # noqa: S101 - just awaited
        after = f"{build.took - seen.killed:.2f} s after the kill"
        self._screen.note(f"{build.agent} builds in slots that were {seen.victim}'s, {after}")

    def _another_takes_over(self) -> None:
        seen = self.seen
        self._until(lambda: self._later() is not None, "somebody took over", self._job.ttl)
        seen.heir = heir = self._later()
        assert heir is not None  # noqa: S101 - just awaited
        after = f"{heir.took - seen.killed:.2f} s after the kill"
        self._screen.note(
            _fitting(
                f"{heir.agent} has the lock, {after}, with the higher token {heir.token}",
                f"{heir.agent} has the lock, {after}, with token {heir.token}",
            )
        )
        self._until(self._written_since, f"{heir.agent} has written")
        self._slots_move_on()

    def _the_dead_writes(self) -> None:
        """What the dead worker would do if it had only been asleep."""
        seen, job = self.seen, self._job
        ledger = Ledger(job.ledger)
        accepted = ledger.write(seen.count + 1, token=seen.token, agent=seen.victim)
        seen.late_file = "accepted" if accepted else "refused"
        with interlock.connect(self._crew.store, seen.victim, join=False) as zombie:
            outcome = zombie.locks.heartbeat(job.lock, token=seen.token)
        seen.late_store = _refusal(outcome)
        met = f"file {seen.late_file}, Interlock {seen.late_store}"
        self._screen.note(
            _fitting(
                f"a late write of {seen.victim}, token {seen.token}: {met}",
                f"a late write of {seen.victim}: {met}",
            )
        )

    def _life_goes_on(self) -> None:
        self._watch(2.0)
        alive = [m for m in self._crew.members.values() if m.state != "killed"]
        most = {member.name: member.turns + 1 for member in alive}
        self._until(lambda: all(m.turns >= most[m.name] for m in alive), "everybody goes on")
        self._crew.tell("stop", [member.name for member in alive])
        self._until(lambda: all(m.state == "done" for m in alive), "everybody has left")

    def _all(self, state: str) -> bool:
        return all(member.state == state for member in self._crew.members.values())

    def _had(self, turns: int) -> bool:
        return all(member.turns >= turns for member in self._crew.members.values())

    def _later(self) -> Turn | None:
        return next((turn for turn in self.seen.turns if turn.took > self.seen.killed), None)

    def _written_since(self) -> bool:
        return any(turn.took > self.seen.killed and turn.wrote for turn in self.seen.turns)

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
        self._screen.draw(self._crew)

    def _heard(self, member: Member, said: Said) -> None:
        match said.state:
            case "holding":
                turn = Turn(member.name, said.token, said.at, said.reclaimed_from)
                self.seen.turns.append(turn)
            case "building":
                self.seen.builds.append(Build(member.name, said.weight, said.at))
            case "built":
                build = next(b for b in reversed(self.seen.builds) if b.agent == member.name)
                build.done = said.at
            case "wrote":
                turn = next(t for t in reversed(self.seen.turns) if t.token == said.token)
                turn.wrote = said.at
            case "staying":
                self._staying.append(said)
            case _:
                pass


def _fitting(*texts: str) -> str:
    """The first that fits on a line; tokens can be long."""
    return next((text for text in texts if len(text) <= NOTE), texts[-1])


def _refusal(outcome: object) -> str:
    match outcome:
        case interlock.Fenced():
            return "fenced"
        case interlock.NotOwner():
            return "not_owner"
        case _:
            return "accepted"


__all__ = ["PACE", "Build", "Play", "Screen", "Seen", "Turn"]
