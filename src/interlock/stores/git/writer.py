"""A commit is confirmed by a push.

    begin, run the works in the replica, write one batch and one git commit, push it
    landed    commit the replica
    lost      another host was faster: roll back, fetch, replay, run the works again
    else      roll back, and raise

A push without an answer is settled while the transaction stays open (``publisher.py``).  If the
remote stays silent the callers get OutcomeUnknown.  Their next commit settles it: that is pushed on
the same old head, so only one of the two can land.

A group that writes nothing is confirmed by a look: its works saw the newest state.

Turns.  Compare-and-swap alone starves: the winner knows the head and wins again.  So the winner
waits for 1.5 push times for each other host that committed lately, and a loser waits by its
distance from the last committer in the ring of hosts.  Jobs gather while it waits, and share the
next push.  This state is kept in the replica, since all processes of a host compete as one.

A host that has not committed yet is unknown to the winner.  So after eight commits in a row a host
leaves room for the fetch and the push of a host that loses all the time.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import apsw

from interlock.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreMissing,
    StoreTrouble,
)
from interlock.store import Txn, View
from interlock.stores.git.beats import (
    SPACING,
    Beats,
    BeatWork,
    a_beat,
    a_beginning,
    an_end,
    news,
)
from interlock.stores.git.publisher import MoveRefused, Publisher, PushUnknown
from interlock.stores.git.repository import (
    HEAD,
    NONE,
    CopyBroken,
    PushAnswer,
    RefMove,
    Repository,
)
from interlock.stores.sqlite.connection import NANO, WriteJob
from interlock.stores.sqlite.files import FULL, full
from interlock.stores.sqlite.writer import WriteQueue, Writer, fail_jobs

if TYPE_CHECKING:
    from interlock.stores.git.replica import MadeCommit, Position, ReplicaConnection

ACTIVE, ACTIVE_IN_PUSHES = 6 * NANO, 60
"""Nanoseconds, and push times, for which a host that committed counts as one that competes."""
STEP_BACK = 1.5
"""Push times that the winner waits, for each host that competes."""
MANY_WINS, ROOM = 8, 4
"""After so many commits in a row a host waits for so many push times."""
LONGEST_TURN = 20.0
_FIRST_PUSH = 20_000_000
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


class GitWriter(Writer):
    """Runs groups of jobs in the replica, each confirmed by the remote."""

    waits = True

    def __init__(
        self,
        engine: ReplicaConnection,
        write_queue: WriteQueue,
        patience: float,
        repository: Repository,
        reply: float,
    ) -> None:
        super().__init__(engine, write_queue, patience)
        self._replica = engine
        self._repository = repository
        self.publisher = Publisher(repository, reply)
        self.beats = Beats(engine, repository)

    @property
    def host(self) -> str:
        """The name of this host among those that share the remote."""
        return self._replica.host

    def delay(self, jobs: Sequence[WriteJob]) -> float:
        """Seconds until it is the turn of this host to push."""
        if all(isinstance(job.work, FollowWork) for job in jobs):
            return 0.0
        beating = all(isinstance(job.work, BeatWork) for job in jobs)
        with self.using:
            turn = self._replica.recall("turn")
            if beating and self.beats.allowed():
                if not self._repository.address.pace:
                    turn = self._replica.recall("beaten") + int(SPACING * NANO)
                elif self.beats.lately(_now()):
                    turn = 0
        left = (turn - _now()) / NANO
        longest = max(LONGEST_TURN, 2 * self._repository.address.pace)
        return left if left < longest else 0.0  # else the clock was another one

    def note_beats(self, refs: dict[str, str], began: int, *, anyway: bool = False) -> None:
        """Note what a look showed about the beats of other hosts."""
        if anyway or news(self._replica, refs, began):
            self._replica.begin_replay(10.0)
            self.beats.note(refs, began)
            self._replica.commit()

    def look(self, ends: float, *, anyway: bool = False) -> str:
        """Look at the remote, note its beats; returns the commit that the branch is at."""
        began = _now()
        refs = self.publisher.look(ends)
        self.note_beats(refs, began, anyway=anyway)
        return refs.get(self._repository.address.ref, "")

    def follow(self, ends: float, work: FollowWork | None = None) -> None:
        """Bring the replica to the head of the branch; the caller has the write lock."""
        if work is not None and work.refs is not None:
            self.note_beats(work.refs, work.began)
            if work.refs.get(self._repository.address.ref) == self._replica.read_position().head:
                return
        shallow = not self._repository.commit_of(HEAD)
        head = self.publisher.fetch(ends, shallow=shallow)
        self._replica.catch_up(head)
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
                self._repository.rebuild()
                self.follow(ends)
                self._carry_out(jobs, ends)
        except apsw.BusyError:
            engine.rollback()
            self._write_queue.reopen_if_removed()
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

    def _sync(self, jobs: Sequence[WriteJob]) -> None:  # noqa: ARG002 - the remote has them
        """Notice a cache that is gone: what landed at the remote stands, and later calls fail."""
        self._replica.files.recheck(self._replica.db)

    def _carry_out(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Do what the jobs need: a fetch, a beat, or a push."""
        if all(isinstance(job.work, FollowWork) for job in jobs):
            for job in jobs:
                self.follow(ends, cast("FollowWork", job.work))
        elif not self._beat(jobs, ends):
            self._confirmed(jobs, ends)

    def _confirmed(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Run the jobs again and again until the remote confirms what they decided."""
        engine = self._replica
        fresh = False
        engine.refused = []
        while True:
            self._run_all(jobs, ends)
            made = engine.make_commit()
            if made is None:
                engine.rollback()
                if fresh or not self._behind(ends):
                    return
                self.follow(ends)
            elif self._push(made, jobs, ends):
                return
            fresh = True

    def _run_all(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Begin the transaction, and run the works in it."""
        engine, beats = self._replica, self.beats
        engine.begin(max(0.0, ends - time.monotonic()))
        if (engine.ended or engine.near_checkpoint()) and beats.blind(engine.start):
            engine.rollback()
            self.look(ends, anyway=True)
            engine.begin(max(0.0, ends - time.monotonic()))
        for job in jobs:
            engine.run(job)
            if isinstance(job.work, BeatWork) and job.txn is not None and beats.allowed():
                engine.let_beat(job.work.alive)

    def _push(self, made: MadeCommit, jobs: Sequence[WriteJob], ends: float) -> bool:
        """Push the commit of the open transaction; False if the works have to run again."""
        engine, began = self._replica, _now()
        branch = RefMove(self._repository.address.ref, engine.position.head, made.commit)
        beats, extras = self._beat_moves(made)
        moves = [branch, *beats]
        try:
            found = self.publisher.publish(moves, lambda head: engine.holds(head, made), ends)
        except MoveRefused:
            engine.rollback()
            if not extras:
                raise
            engine.refused.append(extras[0])  # perhaps it takes the batch alone
            return False
        except PushUnknown as error:
            self._note_unknown(str(error), jobs)
            raise
        if found.landed:
            self._land(made.position, _now() - began, jobs, beats)
            return True
        engine.rollback()
        if beats:
            self._find_own_ref(ends)
        elif found.head:
            engine.catch_up(found.head)
            self._pack(engine.position.batch)
        else:
            self.follow(ends)
        self._step_back(ends)
        return False

    def _beat_moves(self, made: MadeCommit) -> tuple[list[RefMove], list[str]]:
        """The beat refs that the push of a commit moves, and what of it the remote may refuse.

        Those of the hosts whose keys it ends; the own one, if keys of this host begin to beat; with
        a checkpoint, those of hosts that are gone.
        """
        engine, beats, repository = self._replica, self.beats, self._repository
        extras = ["whole_history"] if engine.begins_history else []
        places = {host: an_end(repository, made.commit) for host in sorted(engine.ended)}
        if engine.beating and beats.at(engine.host) == NONE:
            places[engine.host] = a_beginning(repository, made.commit)
            extras.append("no_beats")
        elif made.full and not extras and engine.takes("whole_refs"):
            gone = [host for host in beats.gone(engine.start) if host not in places]
            places |= dict.fromkeys(gone, NONE)
            extras += ["whole_refs"] if gone else []
        moves = [RefMove(beats.ref_of(host), beats.at(host), to) for host, to in places.items()]
        return moves, extras

    def _find_own_ref(self, ends: float) -> None:
        """Follow the branch after a lost push, and learn where the ref of this host is.

        The fetch begins after the look, so it brings the end that moved the ref.
        """
        began = _now()
        refs = self.publisher.look(ends)
        self.note_beats(refs, began, anyway=True)
        self.follow(ends)
        own = self.beats.ref_of(self.host)
        self.beats.keep(own, refs.get(own, NONE))

    def _note_unknown(self, said: str, jobs: Sequence[WriteJob]) -> None:
        """Give each job with a transaction an unknown outcome; the others just fail."""
        for job in jobs:
            if job.txn is not None and job.error is None:
                job.error = OutcomeUnknown(said, job.txn.id)

    def _beat(self, jobs: Sequence[WriteJob], ends: float) -> bool:
        """Renew by a beat of this host; False if the jobs are more than that, or it cannot be."""
        engine, beats = self._replica, self.beats
        while all(isinstance(job.work, BeatWork) for job in jobs) and beats.allowed():
            engine.begin_replay(max(0.0, ends - time.monotonic()))
            works = [cast("BeatWork", job.work) for job in jobs]
            if engine.mark or engine.own_dead() or not all(beats.renews(work) for work in works):
                break
            if beats.at(engine.host) == NONE:
                break
            if not any(work.alive for work in works):  # which a look has to confirm
                break
            answer = self._push_beat(works)
            if answer.kind == "landed":
                engine.commit()
                return True
            engine.rollback()
            if answer.kind == "refused":
                self._note_no_beats(answer)
                break
            if time.monotonic() > ends:
                raise self.publisher.given_up(answer)
            self._find_own_ref(ends)
        engine.rollback()
        return False

    def _push_beat(self, works: Sequence[BeatWork]) -> PushAnswer:
        """Push a beat, and renew in the open transaction; within the pace the last beat counts."""
        engine, beats, pace = self._replica, self.beats, int(self._repository.address.pace * NANO)
        began, answer = beats.lately(engine.start), PushAnswer("landed")
        if not began:
            began, number = engine.start, beats.next_number()
            new = a_beat(self._repository, number)
            own = beats.ref_of(engine.host)
            answer = self.publisher.push_once(RefMove(own, beats.at(engine.host), new))
            beats.keep(own, new)
            engine.remember("beaten", began)
            engine.remember("beats", number)
            engine.remember("turn", max(engine.recall("turn"), _now() + pace if pace else 0))
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
        _log.warning("%s %s", self._repository.shown, _REFUSALS[what])
        self._replica.remember(what, self._replica.position.batch + 1)

    def _behind(self, ends: float) -> bool:
        """Whether the branch has moved since the replica followed it."""
        began = _now()
        if self.look(ends) != self._replica.read_position().head:
            return True
        self._replica.looked = began
        return False

    def _land(
        self, position: Position, took: int, jobs: Sequence[WriteJob], beats: Sequence[RefMove]
    ) -> None:
        """The push landed: commit the replica, and let other hosts go first.

        What goes wrong from here on must not look as if nothing had happened: the works would run
        again.  A replica that could not commit fetches the batch like one of another host.
        """
        try:
            self._keep_landed(position, took, beats)
            self._replica.commit()
        except apsw.Error as error:
            self._replica.rollback()
            self._note_unknown(str(self._replica.translated(error, self._replica.db)), jobs)
            return
        try:
            self._repository.keep(position.head)
        except OSError as error:
            _log.warning("the copy of %s is behind (%s)", self._repository.shown, error)
        self._pack(position.batch)

    def _keep_landed(self, position: Position, took: int, beats: Sequence[RefMove]) -> None:
        """Note in the transaction what the push changed."""
        engine, pace = self._replica, int(self._repository.address.pace * NANO)
        now = _now()
        others, wins = len(self._competing(now)), engine.recall("wins") + 1
        push = engine.recall("push") or _FIRST_PUSH
        push = (push * 7 + min(took, 4 * push)) // 8
        if engine.begins_history:
            engine.remember("whole_history", 0)
        if engine.refused:  # the push landed without this, and not with it
            self._keep_refusal(engine.refused[-1])
        engine.advance(position)
        for move in beats:
            self.beats.keep(move.ref, move.new)
        engine.remember("push", push)
        engine.remember("last", engine.host)
        engine.remember("wins", wins)
        room = ROOM * push if wins % MANY_WINS == 0 else 0
        engine.remember("turn", now + max(int(STEP_BACK * push) * others, room, pace))

    def _pack(self, batch: int) -> None:
        """Pack the copy now and then; each host counts for itself, also one that only reads."""
        with suppress(apsw.Error):  # a full disk: another time
            before = self._replica.recall("packed")
            if batch // _PACKED > before // _PACKED:
                self._replica.remember("packed", batch)
                self._repository.pack(whole=batch // _PACKED_WHOLE > before // _PACKED_WHOLE)

    def _step_back(self, ends: float) -> None:
        """After a loss: wait by the distance from the last committer, so that hosts alternate."""
        if time.monotonic() > ends:
            raise StoreBusy(
                f"other hosts were faster at {self._repository.shown} for {self._patience:g} s;"
                " retry, or let fewer hosts write at once"
            )
        engine = self._replica
        push = engine.recall("push") or _FIRST_PUSH
        hosts = sorted({*self._competing(_now()), engine.host})
        last = engine.read_last()
        before = hosts.index(last) if last in hosts else 0
        distance = (hosts.index(engine.host) - before) % len(hosts)
        wait = max(push * max(0, distance - 1), int(self._repository.address.pace * NANO)) / NANO
        time.sleep(min(wait * random.uniform(0.9, 1.1), max(0.0, ends - time.monotonic())))  # noqa: S311 - spreading, not hiding

    def _competing(self, now: int) -> list[str]:
        """The other hosts that committed lately."""
        since = now - max(ACTIVE, ACTIVE_IN_PUSHES * self._replica.recall("push"))
        rows = self._replica.db.execute("SELECT host FROM peer WHERE seen > ?", (since,))
        return [str(row[0]) for row in rows.fetchall()]


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
