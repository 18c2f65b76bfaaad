"""``interlock selftest``: processes claim the same tasks by name; each task must have one winner.

Each racer is a process with a session of its own.  For each task all racers claim at once, and the
next task follows when all have answered, so that no racer runs ahead and wins without a contest.
A loser must name the winner.  Afterwards each winner completes its tasks.  Tasks that were
published and not raced for are completed, too, so that nothing is left to do.

    race("redis://localhost", processes=8, tasks=1000).ok

The ids are ``selftest/{random}/{number}``, and the tasks require an ability that no worker has:
no other task is touched, and no other worker gets one of these.
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
from interlock.nouns.tasks.task_outcomes import Claimed, Taken, TaskCompleted

PROCESSES = 8
TASKS = 1000
REQUIRES = "interlock:selftest"
_FAREWELL = 15.0
_BLOCK = 100
"""Tasks that are published at a time: a race that ends early leaves few to clear away."""


class Raced(Struct, frozen=True, kw_only=True, tag_field="outcome", tag="raced"):
    """The result of a race, in numbers of tasks and answers.

    ``winners`` counts tasks with one winner, ``doubles`` with several, and ``nobody`` with none;
    ``misled`` counts answers that name another agent than the winner, and ``completed`` tasks that
    their winners completed.
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
        """Whether each task had one winner, which all others named, and which completed it."""
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
    """Let processes race for each of the tasks, or until the time is over."""
    where = f"selftest/{os.urandom(4).hex()}"
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        racers = [stack.enter_context(_racer(url, where, number)) for number in range(processes)]
        for racer in racers:
            racer.answer()
        began = time.monotonic()
        for answers in _rounds(racers, tasks, began + seconds):
            counts += _judged([racer.name for racer in racers], answers)
        took = time.monotonic() - began
        counts["completed"] = sum(map(int, _request(racers, ["complete 0"] * processes)))
    return _result(counts, processes, round(took, 3), where)


class _Racer:
    """One process: a request is a line on its stdin, an answer a line on its stdout."""

    def __init__(self, name: str, to: IO[str], by: IO[str]) -> None:
        self.name = name
        self._to = to
        self._by = by

    def request(self, line: str) -> None:
        """Send a request."""
        with suppress(BrokenPipeError):  # it has ended; answer() raises
            self._to.write(line + "\n")
            self._to.flush()

    def answer(self) -> str:
        """Its next answer."""
        line = self._by.readline()
        if not line:
            raise StoreTrouble(f"{self.name} did not get to the end; it says why above")
        return line.strip()

    def end(self) -> None:
        """Close its stdin: it completes the tasks that it published, and ends."""
        with suppress(OSError):
            self._to.close()


@contextmanager
def _racer(url: str, where: str, number: int) -> Iterator[_Racer]:
    """A racer that ends with the block."""
    import subprocess

    name = f"racer:{number}"
    process = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-m", "interlock.testing.selftest", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        racer = _Racer(name, process.stdin, process.stdout)
        try:
            racer.request(url)  # not as an argument, which every process of this machine can read
            racer.request(where)
            yield racer
        except BaseException:
            racer.end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_FAREWELL)
            process.kill()
            raise


def _request(racers: Sequence[_Racer], requests: Sequence[str]) -> list[str]:
    """Send a request to each racer, then wait for all answers."""
    for racer, request in zip(racers, requests, strict=True):
        racer.request(request)
    return [racer.answer() for racer in racers]


def _share(verb: str, racers: Sequence[_Racer], numbers: range) -> None:
    """Divide the numbers among the racers."""
    shares = (numbers[first :: len(racers)] for first in range(len(racers)))
    _request(racers, [f"{verb} {each.start} {each.stop} {each.step}" for each in shares])


def _rounds(racers: Sequence[_Racer], tasks: int, ends: float) -> Iterator[list[str]]:
    """For each task the answers of all racers."""
    for first in range(0, tasks, _BLOCK):
        block = range(first, min(first + _BLOCK, tasks))
        _share("publish", racers, block)
        for number in block:
            if number and time.monotonic() > ends:  # one at least
                _share("clear", racers, range(number, block.stop))
                return
            yield _request(racers, [f"claim {number} {number + 1}"] * len(racers))


def _judged(names: Sequence[str], answers: Sequence[str]) -> Counter[str]:
    """The counts of one task; an answer is the name of the agent that has it."""
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
    """The requests that a racer carries out."""

    def __init__(self, fleet: Fleet) -> None:
        self._tasks = fleet.tasks
        self._won: dict[str, int | None] = {}
        self._published: list[str] = []

    def publish(self, ids: Sequence[str]) -> object:
        """Publish these, with a requirement that keeps other workers from claiming them."""
        self._published += ids
        return sum(bool(self._tasks.publish(task, requires=[REQUIRES])) for task in ids)

    def claim(self, ids: Sequence[str]) -> object:
        """Claim a task; the answer is the agent that has it."""
        outcome = self._tasks.claim(ids[0])
        if isinstance(outcome, Claimed):
            self._won[ids[0]] = outcome.token
        return outcome.holder if isinstance(outcome, Claimed | Taken) else "-"

    def complete(self, _: Sequence[str] = ()) -> object:
        """Complete the tasks that this racer won, which ends the race."""
        self._published.clear()
        done = [self._tasks.complete(task, token=token) for task, token in self._won.items()]
        self._won.clear()
        return sum(isinstance(outcome, TaskCompleted) for outcome in done)

    def clear(self, ids: Sequence[str]) -> object:
        """Complete tasks that were not raced for."""
        claims = [self._tasks.claim(task) for task in ids]
        for claim in claims:
            if isinstance(claim, Claimed):
                self._tasks.complete(claim.task, token=claim.token)
        return len(claims)

    def finish(self) -> None:
        """Leave no task to do, also if the race was aborted."""
        left = tuple(self._published)
        self.complete()
        self.clear(left)


def _run(name: str) -> None:
    """Carry out requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    url, where = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    with connect(url, agent=name) as fleet:
        contender = _Contender(fleet)
        _answer("ready")
        for line in sys.stdin:
            verb, *numbers = line.split()
            ids = [f"{where}/{number:06d}" for number in range(*map(int, numbers))]
            _answer(getattr(contender, verb)(ids))
        contender.finish()


def _answer(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        _run(sys.argv[1])
    except InterlockError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
