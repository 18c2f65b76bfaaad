"""Grouped commits: many transactions, one durable write.

A job is the work of one transaction.  When nothing else waits and the write lock is free, the
caller runs its job itself, with no hop to another thread: a hop costs more than the commit.
Otherwise the job goes to the one writer thread of this process, which waits for the lock in the
kernel and then runs all jobs that have gathered in one SQLite transaction.  In an event loop, jobs
that become ready in the same iteration of the loop are gathered first.  Each loop gathers its own
jobs, and only its own thread completes its futures: another thread would not wake the loop.

A call has one deadline, which its job carries: the queue, the lock and a busy engine share it.
After a call gave up, the next ones wait only for a moment until the thread has had the lock: the
cleanup of a caller must not wait as long a second time.

Inside a group each job has its own revision.  A job that raises has written nothing yet, since
its work only reads and returns; so the others are not touched.  If the engine fails, the whole
group is rolled back and each job runs again alone, so one bad job does not fail the others.

Callers get their answers when these are durable: after COMMIT the lock is released, then the log
is synchronised, together with the commits of others (``Wal``).

An exception may interrupt a caller anywhere (Ctrl-C, an alarm), also just as a lock was taken.  So
a lock is taken by ``with`` on the lock itself, which nothing can interrupt, or inside of the
``try`` whose ``finally`` releases it; the lock itself says whether it is held, not a flag.
(``with`` on a Condition runs Python, and can be interrupted.)

``WriteQueue`` is where processes wait for the write lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import apsw

from interlock.errors import (
    OutcomeUnknown,
    StoreAway,
    StoreBusy,
    StoreClosed,
    StoreMissing,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.store import Committed, Work
from interlock.stores.sqlite.connection import WriteConnection, WriteJob
from interlock.stores.sqlite.files import make_side_folder
from interlock.stores.sqlite.notify import CommitNote
from interlock.stores.sqlite.schema import found_no_room
from interlock.thread_calls import from_handler, in_call, one_call

if TYPE_CHECKING:
    import asyncio


BATCH = 128
PATIENCE = 10.0
SLOW = 0.005
MOMENT = 0.2
"""Seconds that a call waits for its turn when an earlier one gave up and none had a turn since."""
CLOSING = 1.0
"""Seconds that closing waits for what is under way."""


class Writer:
    """The only way to the write transaction for all threads and tasks of a store object.

    ``waits`` says that a group may wait for a network: an event loop never runs one itself then.
    """

    waits = False

    def __init__(
        self, engine: WriteConnection, write_queue: WriteQueue, patience: float = PATIENCE
    ) -> None:
        self._engine = engine
        self._write_queue = write_queue
        self._patience = patience
        self._right = threading.RLock()  # it knows its owner; no thread takes it twice, though
        self._owned: Callable[[], bool] = self._right._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition asks
        self.using = threading.Lock()
        """Held while the connection is in use; the right and the turn may be held for longer."""
        self._queueing = threading.RLock()  # a signal handler may close the store
        self._arrived = threading.Lock()
        """Released when the thread has something to do: a condition costs far more."""
        self._arrived.acquire()
        self._queue: deque[WriteJob] = deque()
        self._gathered: dict[asyncio.AbstractEventLoop, list[WriteJob]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self.stuck = ""
        """Why the last call that waited for its turn gave up; empty since the last turn."""
        self._slow = False

    def run(self, work: Work, *, whole: bool = False) -> Committed | None:
        """Commit, and return when it is durable."""
        job = WriteJob(work, self._deadline(), whole)
        with one_call():
            if not self._at_once((job,)):
                waiter = threading.Lock()
                waiter.acquire()
                job.waiter = waiter
                try:
                    self._hand_over((job,))
                    arrived = waiter.acquire(timeout=_time_left((job,)))
                except BaseException:
                    self._withdraw(job)
                    raise
                if not arrived:
                    if self._withdraw(job):
                        raise self._held_up()
                    waiter.acquire()
            return job.result()

    async def run_async(self, work: Work) -> Committed | None:
        """Run a job for an event loop; jobs of one iteration of the loop form a group."""
        import asyncio  # there already, since a loop runs; a command without one does not import it

        loop = asyncio.get_running_loop()
        job = WriteJob(work, self._deadline())
        job.future = loop.create_future()
        self._gather(job, loop)
        try:
            await job.future
        except BaseException:  # cancelled
            self._withdraw(job)
            raise
        if job.timer is not None:
            job.timer.cancel()  # the last of its group: all others were answered before
        return job.result()

    def close(self) -> bool:
        """Finish what is under way and stop the thread; False if it is stuck in the kernel."""
        with self._queueing:
            self._closed = True
            left = [*self._queue, *chain.from_iterable(tuple(self._gathered.values()))]
            self._queue.clear()
            self._gathered.clear()
            self._call()
        fail_jobs(left, StoreClosed("the store was closed before this commit; connect again"))
        _answer(left)
        # Who waited, waited enough; and inside of a call of this thread nothing can go on.
        ends = time.monotonic() + (0.0 if self.stuck or in_call() else CLOSING)
        if self._thread is not None:
            self._thread.join(timeout=max(0.0, ends - time.monotonic()))
        # For good: no commit may begin any more.  Not if we are called in the midst of one.
        left_time = max(0.0, ends - time.monotonic())
        idle = not self._owned() and self._right.acquire(timeout=left_time)
        if idle:
            self._write_queue.close()
        return idle

    def _deadline(self) -> float:
        return time.monotonic() + (min(self._patience, MOMENT) if self.stuck else self._patience)

    def _gather(self, job: WriteJob, loop: asyncio.AbstractEventLoop) -> None:
        """Add a job to those of this iteration of its loop; no other thread adds to them."""
        gathered = self._gathered.get(loop)
        if gathered is None:
            for other in [each for each in tuple(self._gathered) if each.is_closed()]:
                self._gathered.pop(other, None)
            gathered = self._gathered[loop] = []
            loop.call_soon(self._flush, loop)
        gathered.append(job)
        if self._closed:  # asked last: close() sets it first, then takes the jobs
            raise StoreClosed("this store was closed; connect again")

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.pop(loop, [])
        jobs, rest = gathered[:BATCH], gathered[BATCH:]
        if rest:
            self._gathered[loop] = rest
            loop.call_soon(self._flush, loop)
        if not jobs:
            return
        try:
            with one_call():
                # The loop may do a quick commit itself; a slow disk is left to the thread.
                started = time.monotonic()
                at_once = not (self._slow or self.waits) and self._at_once(jobs)
                self._slow = self._slow or _slow(started, jobs)
                if not at_once:
                    self._hand_over(jobs)
                    jobs[-1].timer = loop.call_later(_time_left(jobs), self._give_up, jobs)
                    return
        except Exception as error:  # noqa: BLE001 - there is no caller here: it goes to the jobs
            fail_jobs(jobs, error)
        _finish([job.future for job in jobs if job.future is not None])

    def _at_once(self, jobs: Sequence[WriteJob]) -> bool:
        """Run the jobs here and now if no other job waits, in this process or in another."""
        right, write_queue = self._right, self._write_queue
        if self._queue:
            return False
        try:
            if not right.acquire(blocking=False) or self._closed:
                return False
            try:
                if not write_queue.try_enter():
                    return False
                if self.delay(jobs) > 0:
                    write_queue.leave()
                    return False
                with self.using:
                    if ran := self._group(jobs, 0.0):
                        self.stuck = ""
                    write_queue.leave()
                    self._sync(jobs)
            except BaseException:
                write_queue.leave()
                raise
            touched = self._engine.take_touched()
        finally:
            try:  # noqa: SIM105 - entering suppress() could be interrupted, too
                right.release()
            except RuntimeError:  # another thread has it
                pass
        self._engine.notify(touched)
        return ran

    def delay(self, jobs: Sequence[WriteJob]) -> float:  # noqa: ARG002 - for engines with turns
        """Seconds that the owner of the write lock waits before it runs these jobs."""
        return 0.0

    def _hand_over(self, jobs: Sequence[WriteJob]) -> None:
        with self._queueing:
            if self._closed:
                raise StoreClosed("this store was closed; connect again")
            self._queue.extend(jobs)
            if self._thread is None or not self._thread.is_alive():
                from interlock.threads import background  # a short command starts none

                self._thread = background(self._serve, "interlock-writer")
                self._thread.start()
            self._call()

    def _serve(self) -> None:
        """The life of the writer thread: it always answers the jobs that wait."""
        while self._wait_for_jobs():
            with one_call():  # a finaliser may run in this thread, too
                self._serve_once()
        if self._right.acquire(blocking=False):  # else close() has it, and does this
            self._write_queue.close()
            self._right.release()

    def _serve_once(self) -> None:
        """Run the jobs that wait, and answer them."""
        jobs: list[WriteJob] = []
        touched: list[CommitNote] = []
        try:
            # The right first: the turn belongs to the process, so two threads would share it, and
            # the first to leave would leave for both.
            with self._right:
                self._take_turn(jobs)
                touched = self._engine.take_touched()
        except Exception as error:  # noqa: BLE001 - the callers wait for an answer
            if not jobs:  # else they ran, and have their answers
                jobs = self._next_batch()
                fail_jobs(jobs, error)
        _answer(jobs)
        with suppress(Exception):  # the backstop wakes the others
            self._engine.notify(touched)

    def _take_turn(self, jobs: list[WriteJob]) -> None:
        """Wait for the turn, and run everything that has gathered by then."""
        self._write_queue.enter()
        try:
            if self._closed:
                return
            self.stuck = ""
            if (delay := self.delay(tuple(self._queue))) > 0:
                time.sleep(delay)
            jobs.extend(self._next_batch())
            self._run_gathered(jobs)
        finally:
            self._write_queue.leave()

    def _run_gathered(self, jobs: list[WriteJob]) -> None:
        """Run these jobs; those that have to run again go back to the queue."""
        started = time.monotonic()
        try:
            with self.using:
                ran = self._group(jobs, _time_left(jobs))
                self._write_queue.leave()
                if ran:
                    self._sync(jobs)
                else:
                    jobs[:] = self._put_back(jobs)
        except Exception as error:  # noqa: BLE001 - the callers wait for an answer
            fail_jobs(jobs, error)
        self._slow = _slow(started, jobs)

    def _call(self) -> None:
        """Wake the thread, unless it is awake."""
        with suppress(RuntimeError):
            self._arrived.release()

    def _wait_for_jobs(self) -> bool:
        while not self._queue and not self._closed:
            self._arrived.acquire()
        return not self._closed

    def _next_batch(self) -> list[WriteJob]:
        with self._queueing:
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _withdraw(self, job: WriteJob) -> bool:
        """Take a job back that has not been begun; its work never runs then."""
        with self._queueing, suppress(ValueError):
            self._queue.remove(job)
            return True
        if job.future is not None:
            gathered = self._gathered.get(job.future.get_loop(), [])
            with suppress(ValueError):
                gathered.remove(job)
                return True
        return False

    def _put_back(self, jobs: Sequence[WriteJob]) -> list[WriteJob]:
        """Another program kept the engine busy: those whose time is up fail, the others go on."""
        now = time.monotonic()
        late = [job for job in jobs if job.ends <= now]
        with self._queueing:
            self._queue.extendleft(job for job in reversed(jobs) if job not in late)
        error = self._engine.translated(apsw.BusyError(), self._engine.db)
        self.stuck = str(error)
        fail_jobs(late, error)
        return late

    def _give_up(self, jobs: Sequence[WriteJob]) -> None:
        late = [job for job in jobs if self._withdraw(job)]
        if late:
            fail_jobs(late, self._held_up())
            _finish([job.future for job in late if job.future is not None])

    def _held_up(self) -> StoreTrouble:
        pid = self._write_queue.holder()
        self.stuck = f"the store was held up for {self._patience:g} s; retry"
        if pid is not None:
            self.stuck = (
                f"process {pid} has held the store up for {self._patience:g} s (is it stopped?);"
                f" let it go on with 'kill -CONT {pid}', or end it"
            )
        return StoreBusy(self.stuck)

    def _group(self, jobs: Sequence[WriteJob], wait: float) -> bool:
        """Run all jobs in one transaction; False if the engine was busy for that many seconds."""
        engine = self._engine
        try:
            engine.begin(wait)
            for job in jobs:
                engine.run(job)
            try:
                engine.commit()
            except apsw.Error as error:
                self._not_committed(jobs, error)
        except apsw.BusyError:
            engine.rollback()
            # With the lock no other process writes, unless our files are gone.
            self._write_queue.reopen_if_removed()
            return False
        except Exception as error:  # noqa: BLE001 - the engine's own, or a value it cannot take
            engine.rollback()
            self._alone(jobs, error)
            return True
        except BaseException:
            engine.rollback()
            raise
        return True

    def _sync(self, jobs: Sequence[WriteJob]) -> None:
        """Make what the jobs committed, and what they read, durable; others have the turn by now.

        First see that it is in the store that stands there: nothing else is acknowledged.  After
        the disk that would take longer, since this process has slept.
        """
        engine = self._engine
        try:
            engine.files.check(engine.db)
            engine.make_durable()
        except (StoreTrouble, apsw.Error) as error:
            if from_handler(error):
                raise
            engine.doubt_touched()
            trouble = engine.wal.trouble or str(error)
            gone = engine.files.recheck(engine.db) and StoreMissing(engine.files.gone)
            for job in jobs:
                if not isinstance(job.error, StoreTrouble):  # else it rests on nothing
                    unknown = None if job.txn is None else OutcomeUnknown(trouble, job.txn.id)
                    job.error = gone or unknown or StoreAway(trouble)

    def _not_committed(self, jobs: Sequence[WriteJob], error: apsw.Error) -> None:
        """COMMIT failed; after an error of the disk it is unknown what became of it."""
        engine = self._engine
        known = not isinstance(error, apsw.IOError) or found_no_room(error, engine.db)
        engine.rollback()
        if known:
            self._alone(jobs, error)
            return
        trouble = engine.translated(error, engine.db)
        for job in jobs:
            if isinstance(trouble, StoreMissing):
                job.error = trouble
            elif job.txn is not None:
                job.error = OutcomeUnknown(str(trouble), job.txn.id)
            elif len(jobs) == 1:
                job.error = trouble
            else:  # what it saw of the others' may never have been
                self._again(job)

    def _alone(self, jobs: Sequence[WriteJob], error: Exception) -> None:
        """After a failed group: each job by itself, so one bad job does not fail the others."""
        if len(jobs) == 1:
            if isinstance(error, apsw.Error):
                error = self._engine.translated(error, self._engine.db)
            fail_jobs(jobs, error)
            return
        for job in jobs:
            if job.error is None:
                self._again(job)

    def _again(self, job: WriteJob) -> None:
        if not self._group((job,), _time_left((job,))):
            fail_jobs((job,), self._engine.translated(apsw.BusyError(), self._engine.db))


def _slow(started: float, jobs: Sequence[WriteJob]) -> bool:
    return time.monotonic() - started > SLOW + 0.0002 * len(jobs)


def _time_left(jobs: Sequence[WriteJob]) -> float:
    """Seconds until the first deadline of these jobs."""
    first = min((job.ends for job in jobs), default=0.0)
    return max(0.0, first - time.monotonic())


def fail_jobs(jobs: Sequence[WriteJob], error: Exception) -> None:
    """Let all of these jobs end with an error."""
    for job in jobs:
        job.error = error


def _answer(jobs: Sequence[WriteJob]) -> None:
    """Answer the callers, each in its own thread."""
    futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in jobs:
        if job.waiter is not None:
            job.waiter.release()
        if job.future is not None:
            futures.setdefault(job.future.get_loop(), []).append(job.future)
    for loop, theirs in futures.items():
        with suppress(RuntimeError):  # the loop may be closed by now, and no task waits
            loop.call_soon_threadsafe(_finish, theirs)


def _finish(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


_LOCKS = "/proc/locks"
_MOUNTS = "/proc/self/mountinfo"


class WriteQueue:
    """Processes queue for the write lock in the kernel, in order, without sleeping.

    SQLite's own busy handler sleeps and polls: up to 100 ms are lost, and a process that comes at
    the right moment overtakes all others.  So no process asks SQLite before it is first here.
    The queue is two file locks, *gate* and *turn*: a process waits for the gate, then for the turn,
    and releases the gate only when it has the turn.  A process that just had the turn and wants it
    again waits at the gate behind the others.  The kernel keeps the waiters of a file lock in order
    and drops the locks of a killed process.

    A process that is stopped while it has the turn, or at the gate, blocks all others: the caller
    bounds its wait, and ``holder`` names the process.  One that only waits is never named.
    """

    def __init__(self, folder: str, name: str = "") -> None:
        self._folder = folder
        self._names = (f"{name}gate", f"{name}turn")
        self._gate, self._turn = map(self._open, self._names)
        # No Python inside: an interrupt (Ctrl-C) in between would keep the lock from all others.
        self.leave = partial(fcntl.flock, self._turn, fcntl.LOCK_UN)
        """Pass the turn to the next process; harmless if this one does not have it."""

    def try_enter(self) -> bool:
        """Take the turn if no process has it or waits for it."""
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def enter(self) -> None:
        """Wait for the turn, behind all processes that wait already."""
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def holder(self) -> int | None:
        """The other process that has the turn, where the system says so.

        If none has it, it is the process that was stopped at the gate.
        """
        try:
            with open(_LOCKS, encoding="ascii") as file:
                rows = [line.split() for line in file if "->" not in line]
            files = [_name(fd) for fd in (self._turn, self._gate)]
        except OSError:
            return None
        pids = {row[5]: int(row[4]) for row in rows}
        turn, gate = (pids.get(file) for file in files)
        if turn is not None:
            return turn if turn > 0 and turn != os.getpid() else None
        return gate if gate is not None and _is_stopped(gate) else None

    def reopen_if_removed(self) -> None:
        """If our files were removed, queue at the files that the other processes see now."""
        if os.fstat(self._turn).st_nlink and os.fstat(self._gate).st_nlink:
            return
        # In place: a thread that waits at the old files must not find another file there.
        with suppress(OSError, StoreUnsuitable):  # SQLite's own lock remains
            make_side_folder(self._folder)
            for fd, name in zip((self._gate, self._turn), self._names, strict=True):
                fresh = self._open(name)
                os.dup2(fresh, fd, inheritable=False)
                os.close(fresh)

    def close(self) -> None:
        """Leave the queue for good; also drops a turn that a parent of a fork had."""
        both, self._gate, self._turn = (self._gate, self._turn), -1, -1
        self.leave = partial(_nothing)
        for fd in both:
            if fd >= 0:
                os.close(fd)

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(f"{self._folder}/{name}", flags, 0o600)


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    return False


def _name(fd: int) -> str:
    """How /proc/locks names a file: device and inode."""
    found = os.fstat(fd)
    major, minor = _device(fd) or (os.major(found.st_dev), os.minor(found.st_dev))
    return f"{major:02x}:{minor:02x}:{found.st_ino}"


def _device(fd: int) -> tuple[int, int] | None:
    """The device of the mount: on Btrfs and on overlays, a file itself claims another one."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ", 3)
            if fields[0] == mount:
                major, minor = fields[2].split(":")
                return int(major), int(minor)
    return None


def _nothing() -> None: ...
