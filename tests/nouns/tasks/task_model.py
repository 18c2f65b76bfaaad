"""Tasks as a person would describe them: a few dictionaries, no store, no indexes, no commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

LONGEST_REST = 4.5


class Held(Struct):
    """A claim: whose, and until when if it has a ttl of its own."""

    task: str
    token: int
    agent: str
    session: str
    ttl: float | None
    ends: float


class Job(Struct, kw_only=True):
    """A task; ``at`` is what its publisher's clock said, ``early`` that it has an appointment."""

    name: str
    at: float
    priority: int
    requires: frozenset[str]
    needs: tuple[str, ...]
    not_before: float | None
    deadline: float | None
    retries: int
    backoff: float
    guarded: bool = False
    state: str = "pending"
    attempts: int = 0
    held: Held | None = None
    early: bool = False
    rests_until: float = 0.0
    cancelled: bool = False
    ended: Held | None = None
    newest: int = 0
    number: int = 0
    named: int = 0
    """The number of the youngest task when it was edited last: it may be needed."""


class Times(Struct):
    """What time it is: by the engine, and by the clock on the wall."""

    monotonic: float
    wall: float


class Model:
    """All tasks, and who is alive."""

    def __init__(self, times: Callable[[], Times], rest: Callable[[float], float]) -> None:
        self.jobs: dict[str, Job] = {}
        self.lives_until: dict[str, float] = {}
        self.closed = False
        """Whether the guard of guarded tasks does not pass."""
        self._published = 0
        self.done: list[str] = []
        """Tasks that were complete and are deleted."""
        self._times = times
        self._rest = rest

    def alive(self, held: Held) -> bool:
        ends = self.lives_until[held.session] if held.ttl is None else held.ends
        return ends > self._times().monotonic

    def publish(self, job: Job) -> None:
        self._published += 1
        job.number = self._published
        self.jobs[job.name] = job
        self._place(job)

    def is_due(self, job: Job) -> bool:
        now = self._times()
        early = job.early and now.wall < (job.not_before or 0.0)
        return not early and job.rests_until <= now.monotonic

    def too_late(self, job: Job) -> bool:
        begun = job.attempts > 0
        return job.deadline is not None and job.deadline <= self._times().monotonic and not begun

    def kept(self, job: Job) -> bool:
        """Whether nothing but its guard keeps a task from being begun."""
        return job.state == "pending" and job.guarded and self.closed and self.is_due(job)

    def ready(self, able: Iterable[str]) -> list[Job]:
        """Tasks that may begin, best first; also late ones, until a worker finds them."""
        fit = [job for job in self.jobs.values() if job.state == "pending"]
        fit = [job for job in fit if job.requires <= set(able) and self.is_due(job)]
        fit = [job for job in fit if not self.kept(job)]
        return sorted(fit, key=lambda job: (job.priority, job.at))

    def lost(self) -> list[Job]:
        """Running tasks whose worker is gone."""
        running = [job for job in self.jobs.values() if job.held is not None]
        return [job for job in running if job.held and not self.alive(job.held)]

    def begin(self, job: Job, held: Held) -> None:
        assert job.state == "pending"
        assert held.token > job.newest, "a later claim has a higher token"
        job.state, job.held, job.newest, job.early = "running", held, held.token, False

    def release(self, job: Job) -> None:
        job.state, job.held, job.rests_until = "pending", None, 0.0

    def complete(self, job: Job) -> int:
        """How many others may begin now; the guards of others are checked afterwards."""
        assert job.held is not None
        job.ended = job.held
        job.state, job.held = "complete", None
        free = [each for each in self.jobs.values() if each.state == "blocked" and self._met(each)]
        for each in free:
            self._place(each)
        return len([each for each in free if each.early or not each.guarded])

    def fail(self, job: Job, *, retry: bool = True) -> None:
        held, job.held = job.held, None
        job.attempts += 1
        job.ended = held
        if not retry or job.attempts > job.retries:
            job.state = "dead" if retry else "failed"
            return
        job.state = "pending"
        rest = min(job.backoff * 2.0 ** (job.attempts - 1), LONGEST_REST)
        job.rests_until = self._times().monotonic + self._rest(rest) if rest else 0.0

    def expire(self, job: Job) -> None:
        job.state = "dead"

    def cancel(self, job: Job) -> None:
        job.state, job.held, job.cancelled, job.ended = "failed", None, True, None

    def retry(self, job: Job) -> None:
        if job.deadline is not None and job.deadline <= self._times().monotonic:
            job.deadline = None
        self._place(job)
        job.attempts, job.rests_until, job.cancelled, job.ended = 0, 0.0, False, None

    def edit(self, job: Job, *, priority: int, requires: frozenset[str]) -> None:
        """Its worker gets it as it is then."""
        job.priority, job.requires = priority, requires
        job.needs, job.named = self.standing(job, job.needs), self._published

    def edit_terms(
        self, job: Job, *, guarded: bool, not_before: float | None, deadline: float | None
    ) -> None:
        """A moment that is yet to come counts more than a rest; without one, a rest goes on."""
        moved, wall = not_before != job.not_before, self._times().wall
        if job.state == "pending" and moved:
            job.early = not_before is not None and not_before > wall
            job.rests_until = 0.0 if job.early else job.rests_until
        job.guarded, job.not_before, job.deadline = guarded, not_before, deadline
        job.needs, job.named = self.standing(job, job.needs), self._published

    def set_needs(self, job: Job, needs: tuple[str, ...]) -> None:
        """It needs these tasks, which exist; those that it needed before are still meant."""
        job.needs, job.named = needs, self._published
        was, met = job.state, self._met(job)
        if was == "blocked" and met:
            self._place(job)
        elif was == "pending" and not met:
            job.state, job.early, job.rests_until = "blocked", False, 0.0

    def leads_back(self, job: Job, needs: Iterable[str]) -> bool:
        """Whether a task would wait for itself with these needs."""
        left, known = list(needs), set[str]()
        while left:
            name = left.pop()
            if name == job.name:
                return True
            need = self.jobs.get(name)
            if need is None or name in known or need.state in ("complete", "dropped"):
                continue
            known.add(name)
            left += [each for each in need.needs if self.is_meant(need, each)]
        return False

    def standing(self, job: Job, needs: Iterable[str]) -> tuple[str, ...]:
        """The needs of these that are meant, or were complete and are deleted."""
        return tuple(each for each in needs if each not in self.jobs or self.is_meant(job, each))

    def is_meant(self, job: Job, need: str) -> bool:
        """Whether a task of this id is the one that a task needs."""
        return need in self.jobs and self._meant(job, self.jobs[need])

    def drop(self, job: Job) -> None:
        """It never began and never will; it needs nothing any more."""
        assert not job.attempts
        job.state, job.needs, job.ended = "dropped", (), None

    def again(self, job: Job) -> None:
        """A new task has the id of one that ended, and its dependents wait for it."""
        before = self.jobs[job.name]
        job.number, job.newest = before.number, before.newest
        self.jobs[job.name] = job
        job.named = self._published
        self._place(job)

    def forget(self, job: Job) -> None:
        """It had ended; its dependents do not wait for it any more."""
        assert job.state in ("complete", "failed", "dead", "dropped"), job
        del self.jobs[job.name]
        if job.state == "complete":
            self.done.append(job.name)
            return
        open_ = [each for each in self.jobs.values() if each.state != "complete"]
        needed = [each.name for each in open_ if job.name in each.needs and self._meant(each, job)]
        assert not needed, "what failed stays while it is needed"

    def _meant(self, job: Job, need: Job) -> bool:
        """A task needs a task that existed before it, not a later one of the same id."""
        return need.number < job.number or need.number <= job.named

    def _place(self, job: Job) -> None:
        job.state = "pending" if self._met(job) else "blocked"
        named = job.state == "pending" and job.not_before is not None
        job.early = named and (job.not_before or 0.0) > self._times().wall

    def _met(self, job: Job) -> bool:
        needs = [self.jobs[need] for need in job.needs if need in self.jobs]
        return all(need.state == "complete" for need in needs if self._meant(job, need))
