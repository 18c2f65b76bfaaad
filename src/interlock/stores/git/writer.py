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
waits for two push times for each other host that committed lately, and a loser waits by its
distance from the last committer in the ring of hosts.  Jobs gather while it waits, and share the
next push.  This state is kept in the replica, since all processes of a host compete as one.  They
stand in line for it.  While the first waits for the turn, the replica is free for readers
and for beats, which need no turn (``follower.py``).

With a reader at the remote (``remote_reader.py``) a host sees the commits of others while it waits,
and each says again when its turn is.  It asks before a push, too: what is lost is not begun.

A host that has not committed yet is unknown to the winner.  So after eight commits in a row a host
leaves room for the fetch and the push of a host that loses all the time.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress

import apsw

from interlock.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreTrouble,
)
from interlock.stores.git.beats import BeatWork, a_beginning, an_end
from interlock.stores.git.follower import LONGEST_TURN, Follower
from interlock.stores.git.publisher import MoveRefused, PushUnknown
from interlock.stores.git.replica import MadeCommit, Position, ReplicaConnection, monotonic
from interlock.stores.git.repository import NONE, RefMove
from interlock.stores.sqlite.connection import NANO, WriteJob
from interlock.stores.sqlite.writer import WriteQueue

ACTIVE, ACTIVE_IN_PUSHES = 6 * NANO, 60
"""Nanoseconds, and push times, for which a host that committed counts as one that competes."""
STEP_BACK = 2
"""Push times that the winner waits, for each host that competes."""
PATIENT = 3
"""Times as long that a host waits if it notices the commits of others while it does."""
MANY_WINS, ROOM = 8, 4
"""After so many commits in a row a host waits for so many push times."""
_FIRST_PUSH = 20_000_000
_log = logging.getLogger("interlock")


class GitWriter(Follower):
    """Runs groups of jobs in the replica, each confirmed by the remote; always in its thread.

    ``line`` is the queue of the processes of this host that want to push.
    """

    def __init__(
        self,
        engine: ReplicaConnection,
        line: WriteQueue,
        write_queue: WriteQueue,
        patience: float,
        follower: Follower,
    ) -> None:
        super().__init__(engine, line, patience, follower.repository, follower.publisher)
        self._follower = follower
        self._replica_queue = write_queue
        self.using = follower.using

    def close(self) -> bool:
        """Finish what is under way."""
        idle = super().close() and self._follower.close()
        if idle:
            self._replica_queue.close()
        return idle

    def abandon(self) -> None:
        """After a fork, in the child."""
        self._write_queue.close()
        self._replica_queue.close()

    def _reopen_queues(self) -> None:
        super()._reopen_queues()
        self._replica_queue.reopen_if_removed()

    def delay(self, jobs: Sequence[WriteJob]) -> float:  # noqa: ARG002 - it is that of the host
        """Seconds until it is the turn of this host to push."""
        with self.using:
            return self._left(self._replica.recall("turn"))

    def _at_once(self, jobs: Sequence[WriteJob]) -> bool:  # noqa: ARG002
        """Leave it to the thread, which nothing interrupts in a push."""
        return False

    def _take_turn(self, jobs: list[WriteJob]) -> None:
        """Wait in line, then for the turn of the host, and only then at the replica."""
        self._write_queue.enter()
        try:
            latest = time.monotonic() + PATIENT * self.delay(())
            while not self._closed and (delay := self.delay(())) > 0:
                if time.monotonic() > latest:  # others do not wait for their turns
                    break
                self._wait(delay)
            self._replica_queue.enter()
            try:
                if self._closed:
                    return
                self.stuck = ""
                jobs.extend(self._next_batch())
                if jobs:
                    self._run_gathered(jobs)
            finally:
                self._replica_queue.leave()
        finally:
            self._write_queue.leave()

    def _carry_out(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Run the jobs until the remote confirms them."""
        self._confirmed(jobs, ends)

    def _confirmed(self, jobs: Sequence[WriteJob], ends: float) -> None:
        """Run the jobs again and again until the remote confirms what they decided."""
        engine = self._replica
        fresh = False
        engine.refused = []
        while True:
            if self._overtaken(ends):
                continue
            self._run_all(jobs, ends)
            made = engine.make_commit()
            if made is None:
                engine.rollback()
                if fresh or not self._behind(ends):
                    return
                self.follow(ends)
                fresh = True
            elif self._push(made, jobs, ends):
                return

    def _overtaken(self, ends: float) -> bool:
        """Whether another host was faster, if that is known before a push; then its batch is here.

        A push that is lost takes far longer than to ask the process that is kept at the remote.
        """
        mine = self._replica.read_position().head
        if not self._competing(monotonic()) or self.publisher.peek(mine) in ("", mine):
            return False
        if not self._follow_from(mine, ends):
            return False
        self._step_back(ends)
        return True

    def _follow_from(self, mine: str, ends: float) -> bool:
        """Follow the branch from where it was; False if the reader was wrong: it has no news."""
        if self._replica.read_position().head == mine:  # else another thread was faster
            self.follow(ends, seen="")
        if self._replica.read_position().head != mine:
            return True
        self.repository.reader.distrust()
        return False

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
        engine, began = self._replica, monotonic()
        branch = RefMove(self.repository.address.ref, engine.position.head, made.commit)
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
            self._land(made.position, monotonic() - began, jobs, beats)
            return True
        engine.rollback()
        if beats:
            self._find_own_ref(ends)
        elif found.head:
            engine.catch_up(found.head)
            self._pack(engine.position.batch)
        else:
            self.follow(ends, seen="")
        self._step_back(ends)
        return False

    def _beat_moves(self, made: MadeCommit) -> tuple[list[RefMove], list[str]]:
        """The beat refs that the push of a commit moves, and what of it the remote may refuse.

        Those of the hosts whose keys it ends; the own one, if keys of this host begin to beat; with
        a checkpoint, those of hosts that are gone.
        """
        engine, beats, repository = self._replica, self.beats, self.repository
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

    def _note_unknown(self, said: str, jobs: Sequence[WriteJob]) -> None:
        """Give each job with a transaction an unknown outcome; the others just fail."""
        for job in jobs:
            if job.txn is not None and job.error is None:
                job.error = OutcomeUnknown(said, job.txn.id)

    def _behind(self, ends: float) -> bool:
        """Whether the branch has moved since the replica followed it."""
        began = monotonic()
        if self.look(ends) != self._replica.read_position().head:
            return True
        self.note_newest(began)
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
            self.repository.keep(position.head)
        except OSError as error:
            _log.warning("the copy of %s is behind (%s)", self.repository.shown, error)
        self._pack(position.batch)

    def _keep_landed(self, position: Position, took: int, beats: Sequence[RefMove]) -> None:
        """Note in the transaction what the push changed."""
        engine, pace = self._replica, int(self.repository.address.pace * NANO)
        moment = monotonic()
        others, wins = len(self._competing(moment)), engine.recall("wins") + 1
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
        engine.remember("turn", moment + max(STEP_BACK * push * others, room, pace))

    def _step_back(self, ends: float) -> None:
        """After a loss: wait by the distance from the last committer, so that hosts alternate."""
        if time.monotonic() > ends:
            raise StoreBusy(
                f"other hosts were faster at {self.repository.shown} for {self._patience:g} s;"
                " retry, or let fewer hosts write at once"
            )
        wait = max(self._ring_time(), int(self.repository.address.pace * NANO)) / NANO
        wait *= random.uniform(0.9, 1.1)  # noqa: S311 - spreading, not hiding
        self._pause(min(wait, max(0.0, ends - time.monotonic())))

    def _ring_time(self) -> int:
        """Nanoseconds that the hosts before this one need, counted from the last committer."""
        engine = self._replica
        hosts = sorted({*self._competing(monotonic()), engine.host})
        last = engine.read_last()
        before = hosts.index(last) if last in hosts else 0
        distance = (hosts.index(engine.host) - before) % len(hosts)
        push = engine.recall("push") or _FIRST_PUSH
        return push * max(0, distance - 1) * (PATIENT if self.repository.reader.kept else 1)

    def _pause(self, seconds: float) -> None:
        """Wait, and let others use the replica; no longer than until another host commits."""
        mine, step = self._replica.read_position().head, self._step()
        self._replica_queue.leave()
        self.using.release()
        try:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, step))
                if self.publisher.peek(mine) not in ("", mine):
                    break
            self._replica_queue.enter()
        finally:
            self.using.acquire()

    def _step(self) -> float:
        """Seconds between two looks of the reader while this host waits."""
        if not self.repository.reader.kept:
            return LONGEST_TURN
        return (self._replica.recall("push") or _FIRST_PUSH) / NANO / 2

    def _wait(self, delay: float) -> None:
        """Wait for the turn of this host; if another one commits, that says when its turn is."""
        with self.using:
            mine, step = self._replica.read_position().head, self._step()
        self._arrived.acquire(timeout=min(delay, step))  # so that it notices a close
        if step > delay or self._closed or self.publisher.peek(mine) in ("", mine):
            return
        self._replica_queue.enter()
        try:
            with self.using, suppress(StoreTrouble, OSError, apsw.Error):  # the push meets it
                if self._follow_from(mine, time.monotonic()):
                    self._replica.remember("turn", monotonic() + self._ring_time())
        finally:
            self._replica_queue.leave()

    def _competing(self, now: int) -> list[str]:
        """The other hosts that committed lately."""
        since = now - max(ACTIVE, ACTIVE_IN_PUSHES * self._replica.recall("push"))
        rows = self._replica.db.execute("SELECT host FROM peer WHERE seen > ?", (since,))
        return [str(row[0]) for row in rows.fetchall()]
