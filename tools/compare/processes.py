"""Runs the processes of a contender: all begin at one moment, and none outlives the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

from tools.compare.peer import NUMBER_BYTES, Job, Peer

ROOT = Path(__file__).parent.parent.parent
_POLL = 0.002
_PATIENCE = 60.0
"""Seconds without any progress after which a run has failed."""
_EACH = 0.01
"""Seconds more for each task that is published before a run."""
_TAIL = 3000


class CompareTrouble(Exception):
    """A contender did not do its work, or did it twice."""


def say(line: str) -> None:
    """Print progress or an error: stdout has the report alone."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What the processes of one run noted: for each, numbers and their moments."""

    begin: float
    notes: list[list[tuple[int, float]]]


class Runner:
    """Starts processes of contenders; ``peers`` is the Python of their environment."""

    def __init__(self, folder: str, peers: str) -> None:
        self.folder = folder
        self.peers = os.path.abspath(peers)

    def versions(self, kind: type[Peer]) -> dict[str, str]:
        """The versions of its packages."""
        found: dict[str, str] = self._alone(kind, self.job(kind, "", "versions"))
        return found

    def prepare(self, kind: type[Peer], place: str, method: str, count: int = 0) -> None:
        """Let one process of the contender do what comes before the run."""
        self._alone(kind, self.job(kind, place, method, count), _PATIENCE + count * _EACH)

    def job(self, kind: type[Peer], place: str, method: str, count: int = 0) -> Job:
        """The job of one process."""
        module = kind.__module__.rpartition(".")[2]
        shared = os.path.join(self.folder, "shared")
        return Job(
            peer=f"{module}.{kind.__name__}",
            place=place,
            method=method,
            shared=shared,
            count=count,
        )

    def together(
        self, kind: type[Peer], jobs: Sequence[Job], over: Callable[[int, float], bool]
    ) -> Ran:
        """Run the jobs from one moment on, until ``over(notes, seconds)``; returns the notes."""
        jobs = [replace(job, worker=worker) for worker, job in enumerate(jobs)]
        with ExitStack() as stack:
            shared = _shared_file(jobs[0].shared, len(jobs))
            stack.callback(os.close, shared)
            log = stack.enter_context(tempfile.TemporaryFile())
            workers = [stack.enter_context(_Worker(self._python(kind), job, log)) for job in jobs]
            for worker in workers:
                worker.wait_until_ready()
            begin = time.monotonic() + 0.05
            for worker in workers:
                worker.write(str(begin))
            self._watch(kind, workers, shared, lambda noted: over(noted, time.monotonic() - begin))
            for worker in workers:
                with suppress(BrokenPipeError):  # it has ended already
                    worker.write("stop")
            return Ran(begin=begin, notes=[worker.result() for worker in workers])

    def _watch(
        self,
        kind: type[Peer],
        workers: Sequence[_Worker],
        shared: int,
        over: Callable[[int], bool],
    ) -> None:
        noted, changed = -1, time.monotonic()
        while not over(now := _noted(shared, len(workers))):
            if now != noted:
                noted, changed = now, time.monotonic()
            if time.monotonic() - changed > _PATIENCE:
                raise CompareTrouble(f"{kind.title} made no progress after {noted:,} steps")
            for worker in workers:
                worker.check()
            time.sleep(_POLL)

    def _alone(self, kind: type[Peer], job: Job, patience: float = _PATIENCE) -> Any:  # noqa: ANN401 - what its method returns
        with ExitStack() as stack:
            stack.callback(os.close, _shared_file(job.shared, 1))
            log = stack.enter_context(tempfile.TemporaryFile())
            return stack.enter_context(_Worker(self._python(kind), job, log)).result(patience)

    def _python(self, kind: type[Peer]) -> str:
        return sys.executable if kind.ours else self.peers


class _Worker:
    """One process of a contender; the end of its block kills it."""

    def __init__(self, python: str, job: Job, log: IO[bytes]) -> None:
        self._job = job
        self._log = log
        own = ("INTERLOCK_", "PYTHON")
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [python, "-m", "tools.compare.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={name: v for name, v in os.environ.items() if not name.startswith(own)},
            start_new_session=True,  # Ctrl-C is for the process that kills this one
        )
        self.write(json.dumps(asdict(job)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def write(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait until it says so."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        if self._process.stdout.readline() != b"ready\n":
            self._failed()

    def check(self) -> None:
        """Fail if it ended by an error."""
        if self._process.poll():
            self._failed()

    def result(self, patience: float = _PATIENCE) -> Any:  # noqa: ANN401 - what its method returns
        """What it wrote, when it has ended."""
        try:
            output, _ = self._process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise CompareTrouble(f"{self._job.peer} does not end: {self._tail()}") from None
        if self._process.returncode:
            self._failed()
        # A library may have printed before it.
        return json.loads(output.splitlines()[-1])

    def _failed(self) -> None:
        raise CompareTrouble(f"{self._job.peer}.{self._job.method} failed:\n{self._tail()}")

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-_TAIL:]


def _shared_file(path: str, workers: int) -> int:
    """A counter, and how many notes each worker has."""
    shared = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.ftruncate(shared, NUMBER_BYTES * (1 + workers))
    return shared


def _noted(shared: int, workers: int) -> int:
    numbers = os.pread(shared, NUMBER_BYTES * workers, NUMBER_BYTES)
    places = range(0, NUMBER_BYTES * workers, NUMBER_BYTES)
    return sum(int.from_bytes(numbers[at : at + NUMBER_BYTES], "little") for at in places)
