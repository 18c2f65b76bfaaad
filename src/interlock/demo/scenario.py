"""What happens in the demo, in order: processes start, one is killed, its task moves on, all end.

The demo measures what it observes itself.  Everything that can be counted in the record is counted
there (results.py): a worker's own reports prove nothing.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

import interlock
from interlock.demo.display import Plain
from interlock.demo.results import DemoTaskHistory
from interlock.demo.worker import (
    CAPACITY,
    LAST,
    LEAVING,
    MODULES,
    SEMAPHORE,
    STORE,
    TRAP,
    DemoFailed,
    PlannedTask,
    WorkerJob,
    WorkerReport,
    abilities,
    agent_names,
)
from interlock.nouns.grants.semaphore import SemaphoreView

FRAME = 0.1
PATIENCE = 60.0
TTLS = 10
"""How many ttls it waits for one thing on a slow store, where a ttl is long."""
TRIES = 3
STOPPING = 5.0
"""Seconds in which all agents leave that a message asked to stop; it takes milliseconds."""
RETRIES = 100
"""On a machine that stalls for long, many agents lose a task through no fault of their own."""
MESSAGES = ("heard", "answered")
"""Reports about messages, which do not change the state of a worker."""


@dataclass(slots=True)
class WorkerProcess:
    """One worker, as far as the demo knows."""

    name: str
    process: subprocess.Popen[bytes]
    errors: str
    state: str = "starting"
    rest: bytes = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class WorkerPool:
    """All worker processes: started, and ended one by one."""

    def __init__(self, folder: str, store: str) -> None:
        self.store = store
        self.workers: dict[str, WorkerProcess] = {}
        self._folder = folder
        self._selector = selectors.DefaultSelector()

    def start(self, job: WorkerJob) -> None:
        """Start a process; it reports ``ready`` when it has joined."""
        errors = os.path.join(self._folder, f"{job.agent}.err")
        with open(errors, "wb") as file:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "interlock.demo.worker",
                    msgspec.json.encode(job).decode(),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, STORE: self.store},
                start_new_session=True,  # a Ctrl-C is for the demo, which ends its workers itself
            )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        worker = self.workers[job.agent] = WorkerProcess(job.agent, process, errors)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def order(self, order: str, agents: Sequence[str] = ()) -> None:
        """Give an order to these agents, or to all."""
        for worker in self.workers.values():
            if (worker.name in agents or not agents) and worker.process.stdin is not None:
                with suppress(BrokenPipeError):  # it died, which reports() notices
                    os.write(worker.process.stdin.fileno(), order.encode() + b"\n")

    def reports(self, timeout: float) -> Iterator[tuple[WorkerProcess, WorkerReport]]:
        """The reports of the workers; wait at most this long for the first."""
        for key, _ in self._selector.select(timeout):
            worker: WorkerProcess = key.data
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fileobj)
                self._check_end(worker)
            *lines, worker.rest = (worker.rest + data).split(b"\n")
            for line in lines:
                report = msgspec.json.decode(line, type=WorkerReport)
                if worker.state != "killed" and report.state not in MESSAGES:
                    worker.state = report.state
                yield worker, report

    def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        worker = self.workers[name]
        worker.state = "killed"
        worker.process.kill()
        worker.process.wait()

    def close(self) -> None:
        """End all workers: politely first, so that they leave nothing in the store."""
        ends = time.monotonic() + LEAVING
        for worker in self.workers.values():
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        for worker in self.workers.values():
            try:
                worker.process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.process.stdout is not None:
                worker.process.stdout.close()
        self._selector.close()

    def _check_end(self, worker: WorkerProcess) -> None:
        status = worker.process.wait()
        if worker.state in ("killed", "done"):
            return
        with open(worker.errors, encoding="utf-8", errors="replace") as file:
            *_, why = ("it said nothing", *filter(None, map(str.strip, file)))
        raise DemoFailed(f"{worker.name} (pid {worker.pid}) ended with status {status}: {why}")


@dataclass(slots=True)
class Build:
    """One build in slots, by the monotonic clock."""

    agent: str
    slots: int
    began: float
    done: float | None = None


@dataclass(slots=True)
class Observations:
    """What the demo observed and measured itself."""

    builds: list[Build] = field(default_factory=list)
    victim: str = ""
    pid: int = 0
    token: int = 0
    slots: int = 0
    killed_at: float = 0.0
    successor: str = ""
    attempt: int = 0
    successor_token: int = 0
    task_moved: float = 0.0
    slots_moved: float = 0.0
    meanwhile: int = 0
    late_done: str = ""
    alert_delays: dict[str, float] = field(default_factory=dict)
    """Seconds between the alert and its receipt, for each agent."""
    answer: str = ""
    answer_delay: float = 0.0
    stop_reasons: dict[str, str] = field(default_factory=dict)

    def busy_slots(self, moment: float) -> int:
        """How many slots were in use at a moment; the victim's until it was killed."""
        return sum(b.slots for b in self.builds if b.began <= moment < self._end_of(b))

    def _end_of(self, build: Build) -> float:
        """When a build ended; one that was cut short by a lost session counts as never begun."""
        if build.done is not None:
            return build.done
        victims = [b for b in self.builds if b.agent == self.victim and b.began < self.killed_at]
        return self.killed_at if victims and build is victims[-1] else build.began


class Scenario:
    """The script of the demo."""

    def __init__(
        self,
        fleet: interlock.Fleet,
        pool: WorkerPool,
        screen: Plain,
        job: WorkerJob,
        tasks: tuple[PlannedTask, ...],
    ) -> None:
        self.observed = Observations()
        self._fleet = fleet
        self._pool = pool
        self._screen = screen
        self._job = job
        self._tasks = tasks
        self._history = DemoTaskHistory()
        self._read_up_to = 0
        self._trapped: WorkerReport | None = None

    def run(self, workers: int) -> Observations:
        """From the first process to the last."""
        self._start_workers(workers)
        self._kill_one_at_work()
        self._await_successor()
        self._complete_with_the_old_token()
        self._await_all_tasks()
        self._await_all_workers()
        return self.observed

    def _start_workers(self, workers: int) -> None:
        for number, name in enumerate(agent_names(workers)):
            self._pool.start(replace(self._job, agent=name, can=abilities(number)))
        self._publish()
        self._screen.note(
            f"{len(self._tasks)} tasks published: fetch;"
            f" lint, build, test, merge {len(MODULES)} modules; ship"
        )
        self._until(
            lambda: all(worker.state == "ready" for worker in self._pool.workers.values()),
            "all agents have joined",
        )
        self._screen.note(f"{workers} agents claim what is ready and what they can do")
        self._pool.order("go")

    def _publish(self) -> None:
        """Publish all tasks in one commit, which a slow store shows."""
        plan = [
            {
                "id": task.task,
                "data": msgspec.to_builtins(task.work),
                "needs": task.needs,
                "requires": task.requires,
                "priority": task.priority,
                "retries": RETRIES,
                "backoff": 0,
            }
            for task in self._tasks
        ]
        if not self._fleet.tasks.publish_all(plan):
            raise DemoFailed("the tasks of the demo were there already")

    def _kill_one_at_work(self) -> None:
        """Kill a worker that certainly works on the trap: it reports so, and the store agrees."""
        for _ in range(TRIES):
            self._until(lambda: self._trapped is not None, f"an agent is at {TRAP}")
            report, self._trapped = self._trapped, None
            assert report is not None  # noqa: S101 - just awaited
            victim = next(w for w in self._pool.workers.values() if w.state == "staying")
            slots = f"in {report.slots} of {CAPACITY} slots"
            self._screen.note(f"{victim.name} is in the middle of {TRAP}, {slots}")
            self._watch(1.0)
            if self._holds(victim, report):
                return self._kill(victim, report)
        raise DemoFailed(f"no agent could keep {TRAP}; is this machine overloaded?")

    def _holds(self, victim: WorkerProcess, report: WorkerReport) -> bool:
        """Whether the victim is alive, and has the task and the slots by the store."""
        slots = self._fleet.semaphores.show(SEMAPHORE)
        assert isinstance(slots, SemaphoreView)  # noqa: S101 - the first build made it
        holders = [each.holder for each in slots.holders if each.state == "held"]
        owns = self._history.current.get(victim.name) == report.task
        return victim.state == "staying" and owns and victim.name in holders

    def _kill(self, victim: WorkerProcess, report: WorkerReport) -> None:
        observed = self.observed
        observed.victim, observed.pid = victim.name, victim.pid
        observed.token, observed.slots = report.token, report.slots
        observed.killed_at = time.monotonic()
        self._pool.kill(victim.name)
        self._pool.order("free")
        self._screen.note(
            f"kill -9 {victim.pid}: {victim.name} is dead and gave nothing back;"
            f" its TTL is {self._job.ttl:g} s"
        )

    def _await_successor(self) -> None:
        observed, before = self.observed, len(self._history.completed)
        ttl = self._job.ttl
        self._until(lambda: bool(observed.task_moved), f"another agent took over {TRAP}", ttl)
        observed.meanwhile = len(self._history.completed) - before
        after = f"{observed.task_moved:.2f} s after the kill"
        self._screen.note(
            f"{observed.successor} has {TRAP}, {after}, as attempt {observed.attempt}"
        )
        self._until(lambda: bool(observed.slots_moved), "its slots moved on", ttl)

    def _complete_with_the_old_token(self) -> None:
        """Do what the dead agent would do if it had only been asleep."""
        observed = self.observed
        with interlock.connect(self._pool.store, observed.victim, join=False) as zombie:
            outcome = zombie.tasks.complete(TRAP, token=observed.token)
        observed.late_done = str(outcome.__struct_config__.tag)
        self._screen.note(
            f"a late 'it is done' with the token of {observed.victim}: {observed.late_done}"
        )

    def _await_all_tasks(self) -> None:
        count = len(self._tasks)
        self._until(lambda: self._history.count("complete") == count, "all tasks are complete")
        self._screen.note(f"all {count} tasks are complete")

    def _await_all_workers(self) -> None:
        """The agent that deployed asked the others to stop, and we ask it.

        An agent that joins again at this moment may miss that; it is stopped by an order.
        """
        alive = [worker for worker in self._pool.workers.values() if worker.state != "killed"]
        last = next(event.agent for event in self._history.completed if event.task == LAST)
        self._fleet.messages.stop(last, "you were the last")
        self._until(
            lambda: all(w.name in self.observed.alert_delays for w in alive), "all heard the alert"
        )

        def gone() -> bool:
            return all(worker.state == "done" for worker in alive)

        ends = time.monotonic() + STOPPING
        self._until(lambda: gone() or time.monotonic() > ends, "all agents have left")
        if left := [worker.name for worker in alive if worker.state != "done"]:
            self._pool.order("stop", left)
            self._until(gone, "all agents have left")
        asked = sum(" asked: " in why for why in self.observed.stop_reasons.values())
        self._screen.note(f"asked to stop by a message, {asked} of {len(alive)} agents have left")

    def _watch(self, seconds: float) -> None:
        """Give people time to watch."""
        ends = time.monotonic() + seconds * self._screen.leisure
        while (left := ends - time.monotonic()) > 0:
            self._step(left)

    def _until(self, true: Callable[[], bool], what: str, longer: float = 0.0) -> None:
        longest = max(PATIENCE, TTLS * self._job.ttl) + longer
        ends = time.monotonic() + longest
        while not true():
            left = ends - time.monotonic()
            if left <= 0:
                raise DemoFailed(f"waited {longest:g} s in vain until {what}")
            self._step(left)

    def _step(self, left: float) -> None:
        for worker, report in self._pool.reports(min(left, FRAME)):
            self._observe(worker, report)
        lines = self._fleet.record.log(after=self._read_up_to, limit=1000, last=False)
        self._read_up_to = max([self._read_up_to, *(line.revision for line in lines)])
        self._history.read(lines)
        self._screen.draw(self._pool, self._history)

    def _observe(self, worker: WorkerProcess, report: WorkerReport) -> None:
        observed = self.observed
        after_kill = report.at - observed.killed_at if observed.killed_at else 0.0
        takes_over = report.task == TRAP and after_kill > 0 and worker.name != observed.victim
        match report.state:
            case "working" if takes_over and not observed.successor:
                observed.successor, observed.attempt = worker.name, report.attempt
                observed.successor_token, observed.task_moved = report.token, after_kill
            case "building":
                observed.builds.append(Build(worker.name, report.slots, report.at))
                if takes_over and not observed.slots_moved:
                    observed.slots_moved = after_kill
            case "built":
                build = next(b for b in reversed(observed.builds) if b.agent == worker.name)
                build.done = report.at
            case "staying":
                self._trapped = report
            case "heard":
                observed.alert_delays.setdefault(worker.name, report.seconds)
            case "answered" if not observed.answer_delay:
                observed.answer, observed.answer_delay = report.text, report.seconds
            case "done":
                observed.stop_reasons[worker.name] = report.text
            case _:
                pass
