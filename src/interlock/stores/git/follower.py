"""What needs no turn: readers that follow the branch, and the beats of the host.

The processes of a host do this one after the other (``WriteQueue``), like all that writes to the
replica.  None of them waits here for the turn of the host: a process that waits to push leaves the
queue to the others (``writer.py``), and so does one that waits to beat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

import apsw

from interlock.errors import StoreMissing, StoreTrouble
from interlock.store import Txn, View
from interlock.stores.git.beats import SPACING, Beats, BeatWork, a_beat, news
from interlock.stores.git.publisher import Publisher
from interlock.stores.git.replica import ReplicaConnection, monotonic
from interlock.stores.git.repository import HEAD, NONE, CopyBroken, PushAnswer, RefMove, Repository
from interlock.stores.sqlite.connection import NANO, WriteJob
from interlock.stores.sqlite.files import FULL, full
from interlock.stores.sqlite.writer import BATCH, WriteQueue, Writer, fail_jobs

LONGEST_TURN = 20.0
_PACKED, _PACKED_WHOLE = 400, 8_000
"""Batches after which the copy in the cache is packed, and freed of what no commit needs."""
_REFUSALS = {
    "no_beats": "takes no refs of hosts; renewals go into its history",
    "whole_refs": "lets no refs be deleted; those of hosts that are gone stay there",
    "whole_history": "lets no new history begin; it grows",
}
_log = logging.getLogger("interlock")


class FollowWork:
    """The work of a reader that needs the newest state: it writes nothing, and waits for no turn.

    ``refs`` are the refs of the remote by a look that began at ``began``, if there was one.
    """

    def __init__(self, refs: dict[str, str] | None = None, began: int = 0) -> None:
        self.refs = refs
        self.began = began

    def __call__(self, view: View) -> Txn | None:
        """Nothing to write."""


class Follower(Writer):
    """Brings the replica to the head of the branch, and beats."""

    waits = True

    def __init__(
        self,
        engine: ReplicaConnection,
        write_queue: WriteQueue,
        patience: float,
        repository: Repository,
        publisher: Publisher,
    ) -> None:
        super().__init__(engine, write_queue, patience)
        self._replica = engine
        self.repository = repository
        self.publisher = publisher
        self.beats = Beats(engine, repository)
        self._fetching = 0
        """When the last fetch of this object began."""

    def _deadline(self) -> float:
        return min(super()._deadline(), self.publisher.gives_up(self._patience))

    def _held_up(self) -> StoreTrouble:
        return self.publisher.trouble or super()._held_up()

    @property
    def host(self) -> str:
        """The name of this host among those that share the remote."""
        return self._replica.host

    def delay(self, jobs: Sequence[WriteJob]) -> float:
        """Seconds until these jobs may run; a reader never waits."""
        if all(isinstance(job.work, FollowWork) for job in jobs):
            return 0.0
        works = [job.work for job in jobs if isinstance(job.work, BeatWork)]
        with self.using:
            if not self.beats.allowed() or self.beats.lately(monotonic(), works):
                return 0.0
            if self.repository.address.pace:
                return self._left(self._replica.recall("turn"))
            return self._left(self._replica.recall("beaten") + int(SPACING * NANO))

    def _left(self, moment: int) -> float:
        """Seconds until a moment."""
        left = (moment - monotonic()) / NANO
        longest = max(LONGEST_TURN, 2 * self.repository.address.pace)
        return left if left < longest else 0.0  # else the clock was another one

    def _take_turn(self, jobs: list[WriteJob]) -> None:
        """Run what may run now; wait for the rest without the queue."""
        delay = 0.0
        self._write_queue.enter()
        try:
            if self._closed:
                return
            self.stuck = ""
            delay = self.delay(tuple(self._queue))
            jobs.extend(self._ready(beats=delay <= 0))
            if jobs:
                self._run_gathered(jobs)
        finally:
            self._write_queue.leave()
        if not jobs:
            self._arrived.acquire(timeout=max(0.0, delay))

    def _ready(self, *, beats: bool) -> list[WriteJob]:
        """Take the jobs that may run from the queue; readers first, and apart from beats."""
        with self._queueing:
            found = [job for job in self._queue if isinstance(job.work, FollowWork)][:BATCH]
            if beats and not found:
                found = list(self._queue)[:BATCH]
            for job in found:
                self._queue.remove(job)
        return found

    def note_beats(self, refs: dict[str, str], began: int, *, anyway: bool = False) -> None:
        """Note what a look showed about the beats of other hosts."""
        if anyway or news(self._replica, refs, began):
            self._replica.begin_replay(10.0)
            self.beats.note(refs, began)
            self._replica.commit()

    def note_newest(self, began: int) -> None:
        """Note that the replica had all that the branch had when git looked."""
        self._replica.looked = max(self._replica.looked, began)

    def look(self, ends: float, *, anyway: bool = False) -> str:
        """Look at the remote, note its beats; returns the commit that the branch is at."""
        began = monotonic()
        refs = self.publisher.look(ends)
        self.note_beats(refs, began, anyway=anyway)
        return refs.get(self.repository.address.ref, "")

    def follow(
        self, ends: float, work: FollowWork | None = None, *, seen: str | None = None
    ) -> None:
        """Bring the replica to the head of the branch; the caller has the write lock.

        ``seen`` is as for ``Repository.fetch``; a work with a look knows it.
        """
        if work is not None and work.refs is not None:
            self.note_beats(work.refs, work.began)
            if work.refs.get(self.repository.address.ref) == self._replica.read_position().head:
                return
            if self._fetching > work.began:  # another reader's fetch has brought it
                return
            seen = work.refs.get(self.repository.address.ref)
        began = monotonic()
        shallow = not self.repository.commit_of(HEAD)
        head = self.publisher.fetch(ends, shallow=shallow, seen=seen)
        self._replica.catch_up(head)
        self._fetching = began
        self._pack(self._replica.position.batch)

    def _group(self, jobs: Sequence[WriteJob], wait: float) -> bool:
        """Run all jobs in one transaction that the remote confirms; False if SQLite was busy."""
        engine = self._replica
        ends = time.monotonic() + wait if wait else min(job.ends for job in jobs)
        try:
            try:
                self._carry_out(jobs, ends)
            except CopyBroken as error:
                engine.rollback()
                _log.warning("%s; it is made again", error)
                self.repository.rebuild()
                self.follow(ends)
                self._carry_out(jobs, ends)
        except apsw.BusyError:
            engine.rollback()
            self._reopen_queues()
            return False
        except StoreTrouble as error:
            engine.rollback()
            fail_jobs([job for job in jobs if job.error is None], error)
        except OSError as error:
            engine.rollback()
            if error.errno in FULL:
                fail_jobs(jobs, full(engine.files.path))
            elif engine.files.recheck(engine.db):
                fail_jobs(jobs, StoreMissing(engine.files.gone))
            else:
                raise
        except Exception as error:  # noqa: BLE001 - the engine's own, or a value it cannot take
            engine.rollback()
            self._alone(jobs, error)
        except BaseException:
            engine.rollback()
            raise
        return True

    def _reopen_queues(self) -> None:
        self._write_queue.reopen_if_removed()

    def _sync(self, jobs: Sequence[WriteJob]) -> None:  # noqa: ARG002 - the remote has them
        """Notice a cache that is gone: what landed at the remote stands, and later calls fail."""
        self._replica.files.recheck(self._replica.db)

    def _beat(self, works: Sequence[BeatWork], ends: float) -> None:
        """Renew by a beat of this host, if it can be."""
        engine, beats = self._replica, self.beats
        while beats.allowed():
            engine.begin_replay(max(0.0, ends - time.monotonic()))
            if engine.mark or engine.own_dead() or not all(beats.renews(work) for work in works):
                break
            if beats.at(engine.host) == NONE:
                break
            if not any(work.alive for work in works):  # which a look has to confirm
                break
            answer = self._push_beat(works)
            if answer.kind == "landed":
                engine.commit()
                for work in works:
                    work.beaten = True
                return
            engine.rollback()
            if answer.kind == "refused":
                self._note_no_beats(answer)
                break
            if time.monotonic() > ends:
                raise self.publisher.given_up(answer, beats.ref_of(engine.host))
            self._find_own_ref(ends)
        engine.rollback()

    def _push_beat(self, works: Sequence[BeatWork]) -> PushAnswer:
        """Push a beat, and renew in the open transaction; within the pace the last beat counts."""
        engine, beats, pace = self._replica, self.beats, int(self.repository.address.pace * NANO)
        began, answer = beats.lately(engine.start, works), PushAnswer("landed")
        if not began:
            began, number = engine.start, beats.next_number()
            new = a_beat(self.repository, number)
            own = beats.ref_of(engine.host)
            answer = self.publisher.push_once(RefMove(own, beats.at(engine.host), new))
            beats.keep(own, new)
            beats.note_beat(began, number)
            engine.remember("turn", max(engine.recall("turn"), monotonic() + pace if pace else 0))
        for work in works:
            beats.extend(work, began)
        return answer

    def _note_no_beats(self, answer: PushAnswer) -> None:
        """Renew in batches from now on, if the remote takes no such refs; else raise."""
        if not answer.of_ref:
            raise self.publisher.refusal(answer)
        self._keep_refusal("no_beats")

    def _keep_refusal(self, what: str) -> None:
        """Do without what the remote refused."""
        _log.warning("%s %s", self.repository.shown, _REFUSALS[what])
        self._replica.remember(what, self._replica.position.batch + 1)

    def _find_own_ref(self, ends: float) -> None:
        """Follow the branch after a lost push, and learn where the ref of this host is.

        The fetch begins after the look, so it brings the end that moved the ref.
        """
        began = monotonic()
        refs = self.publisher.look(ends)
        self.note_beats(refs, began, anyway=True)
        self.follow(ends)
        own = self.beats.ref_of(self.host)
        self.beats.keep(own, refs.get(own, NONE))

    def _pack(self, batch: int) -> None:
        """Pack the copy now and then; each host counts for itself, also one that only reads."""
        with suppress(apsw.Error):  # a full disk: another time
            before = self._replica.recall("packed")
            if batch // _PACKED > before // _PACKED:
                self._replica.remember("packed", batch)
                self.repository.pack(whole=batch // _PACKED_WHOLE > before // _PACKED_WHOLE)

    def _carry_out(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Do what the jobs need: a fetch, or a beat."""
        for job in jobs:
            if isinstance(job.work, FollowWork):
                self.follow(ends, job.work)
        works = [job.work for job in jobs if isinstance(job.work, BeatWork)]
        if works:
            self._beat(works, ends)
