"""A race: real processes claim the same tasks by name, and each task must have one winner.

Each racer is a process with a session of its own.  For each task all are told to go at once, and
the next one comes when all have answered, so that nobody runs ahead of the others and wins what
nobody contests.  A loser must name the winner.  Afterwards every winner completes what it won, and
what was published and not raced for is completed, too, so that nothing is left to do.

    race("redis://localhost", processes=8, tasks=1000).ok

The ids are ``selftest/{some letters}/{number}``: nobody else's tasks are touched, and no worker
that asks for the next task is given one of these.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from msgspec import Struct

from interlock.client import Fleet, connect
from interlock.errors import InterlockError, StoreTrouble
from interlock.nouns.tasks.task import Claimed, Completed, Taken

PROCESSES = 8
TASKS = 1000
REQUIRES = "interlock:selftest"
_FAREWELL = 15.0
_BLOCK = 100
"""So many tasks are published at a time: a race that ends early leaves few to clear away."""


class Raced(Struct, frozen=True, kw_only=True, tag_field="outcome", tag="raced"):
    """How a race went.

    ``winners`` is the number of tasks that exactly one had, ``doubles`` of those that several had,
    ``nobody`` of those that none had, ``misled`` that of answers that named somebody who had not
    won, ``completed`` that of tasks that their winners completed.
    """

    verdict: str
    processes: int
    tasks: int
    winners: int
    doubles: int
    nobody: int
    misled: int
    completed: int
    seconds: float
    where: str

    @property
    def ok(self) -> bool:
        """Whether each task had one winner, whom all others named, and who completed it."""
        return self.verdict == "ok"

    def __bool__(self) -> bool:
        """Whether no promise was broken."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """1 if a promise was broken."""
        return 0 if self.ok else 1


def race(
    url: str, *, processes: int = PROCESSES, tasks: int = TASKS, seconds: float = float("inf")
) -> Raced:
    """Let processes race for each of so many tasks, or for as many as the time is good for."""
    where = f"selftest/{os.urandom(4).hex()}"
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        racers = [stack.enter_context(_racer(url, where, number)) for number in range(processes)]
        for racer in racers:
            racer.hear()
        began = time.monotonic()
        for answers in _rounds(racers, tasks, began + seconds):
            counts += _judged([racer.name for racer in racers], answers)
        took = time.monotonic() - began
        counts["completed"] = sum(map(int, _ask(racers, ["complete 0"] * processes)))
    return _result(counts, processes, round(took, 3), where)


class _Racer:
    """One process, spoken to by lines."""

    def __init__(self, name: str, to: IO[str], by: IO[str]) -> None:
        self.name = name
        self._to = to
        self._by = by

    def tell(self, line: str) -> None:
        """Say a line to it."""
        with suppress(BrokenPipeError):  # then it has ended, and does not answer
            self._to.write(line + "\n")
            self._to.flush()

    def hear(self) -> str:
        """Its answer."""
        line = self._by.readline()
        if not line:
            raise StoreTrouble(f"{self.name} did not get to the end; it says why above")
        return line.strip()

    def hang_up(self) -> None:
        """It takes back what it published, and ends."""
        with suppress(OSError):
            self._to.close()


@contextmanager
def _racer(url: str, where: str, number: int) -> Iterator[_Racer]:
    """A racer that is there until the end of the block, and not longer."""
    import subprocess

    name = f"racer:{number}"
    process = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "interlock.testing.selftest", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        racer = _Racer(name, process.stdin, process.stdout)
        try:
            racer.tell(url)  # not as an argument, which everybody on this machine can read
            racer.tell(where)
            yield racer
        except BaseException:
            racer.hang_up()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_FAREWELL)
            process.kill()
            raise


def _ask(racers: Sequence[_Racer], words: Sequence[str]) -> list[str]:
    """Say something to each of them at once, and wait for all answers."""
    for racer, each in zip(racers, words, strict=True):
        racer.tell(each)
    return [racer.hear() for racer in racers]


def _share(verb: str, racers: Sequence[_Racer], numbers: range) -> None:
    """Let each do its part."""
    parts = (numbers[place :: len(racers)] for place in range(len(racers)))
    _ask(racers, [f"{verb} {part.start} {part.stop} {part.step}" for part in parts])


def _rounds(racers: Sequence[_Racer], tasks: int, ends: float) -> Iterator[list[str]]:
    """For each task what each of them was told."""
    for first in range(0, tasks, _BLOCK):
        block = range(first, min(first + _BLOCK, tasks))
        _share("publish", racers, block)
        for number in block:
            if number and time.monotonic() > ends:  # one at least
                _share("clear", racers, range(number, block.stop))
                return
            yield _ask(racers, [f"claim {number} {number + 1}"] * len(racers))


def _judged(names: Sequence[str], answers: Sequence[str]) -> Counter[str]:
    """What is to be counted of one task; an answer is the name of who has it."""
    winners = [name for name, answer in zip(names, answers, strict=True) if answer == name]
    named = winners[0] if len(winners) == 1 else None
    misled = sum(answer != named for answer in answers) if named else 0
    kind = {0: "nobody", 1: "winners"}.get(len(winners), "doubles")
    return Counter({"tasks": 1, kind: 1, "misled": misled})


def _result(counts: Counter[str], processes: int, seconds: float, where: str) -> Raced:
    tasks = counts["tasks"]
    right = tasks == counts["winners"] == counts["completed"] and not counts["misled"]
    return Raced(
        verdict="ok" if right and tasks else "bad",
        processes=processes,
        tasks=tasks,
        winners=counts["winners"],
        doubles=counts["doubles"],
        nobody=counts["nobody"],
        misled=counts["misled"],
        completed=counts["completed"],
        seconds=seconds,
        where=where,
    )


# ---- Inside of a racer --------------------------------------------------------------------------


class _Contender:
    """What a racer does when it is told to: each answer is one line."""

    def __init__(self, fleet: Fleet) -> None:
        self._tasks = fleet.tasks
        self._won: dict[str, int | None] = {}
        self._published: list[str] = []

    def publish(self, ids: Sequence[str]) -> object:
        """Put these where everybody finds them, and nobody gets them who asks for the next."""
        self._published += ids
        return sum(bool(self._tasks.publish(task, requires=[REQUIRES])) for task in ids)

    def claim(self, ids: Sequence[str]) -> object:
        """Who has it, as far as we are told."""
        outcome = self._tasks.claim(ids[0])
        if isinstance(outcome, Claimed):
            self._won[ids[0]] = outcome.token
        return outcome.holder if isinstance(outcome, Claimed | Taken) else "-"

    def complete(self, _: Sequence[str] = ()) -> object:
        """Whatever we won; with that the race is over."""
        self._published.clear()
        done = [self._tasks.complete(task, token=token) for task, token in self._won.items()]
        self._won.clear()
        return sum(isinstance(outcome, Completed) for outcome in done)

    def clear(self, ids: Sequence[str]) -> object:
        """Do what nobody raced for."""
        claims = [self._tasks.claim(task) for task in ids]
        for claim in claims:
            if isinstance(claim, Claimed):
                self._tasks.complete(claim.task, token=claim.token)
        return len(claims)

    def end(self) -> None:
        """Leave nothing behind that is still to be done, also if the race was broken off."""
        left = tuple(self._published)
        self.complete()
        self.clear(left)


def _run(name: str) -> None:
    """Do what one is told, until nobody tells anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us hangs up
    url, where = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    with connect(url, agent=name) as fleet:
        contender = _Contender(fleet)
        _say("ready")
        for line in sys.stdin:
            verb, *numbers = line.split()
            ids = [f"{where}/{number:06d}" for number in range(*map(int, numbers))]
            _say(getattr(contender, verb)(ids))
        contender.end()


def _say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        _run(sys.argv[1])
    except InterlockError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
