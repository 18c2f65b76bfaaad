"""Beats: a host shows that it lives by moving a ref, which adds nothing to the history.

Each host has one ref at the remote, ``refs/interlock/live/{branch}/{host}``, and moves it through
64 commits that all hosts have alike, in their order.  One beat renews all keys that its host
renews: the first renewal of a key is a batch that names it (``beats``), the later ones are beats.

begun     The push of the first such batch also makes the ref.  So a host with keys that beat has
          one, and where it was deleted no beat lands.
renewed   The host moves its ref from where it left it.  If another host ended or deleted one of its
          keys in between, the ref is elsewhere: the push is lost, and the host reads why.  It takes
          the new place of its ref from a look only after a fetch that began later: the fetch
          brings the end that moved it, and a look does not read all refs at one moment.
ended     A host that saw no beat for the ttl ends the key with one atomic push, which also moves
          the ref of the dead host.  If that host beats first, the push is lost, and the key lives.
          So of a beat and an end exactly one happens.  An end moves the ref to a commit of its own,
          where no beat leads: git answers a push to where a ref is already without comparing.
gone      A checkpoint deletes the refs of hosts without liveness keys that have written nothing
          for an hour.  A host that returns finds its ref elsewhere, as above, and begins again.
at home   The processes of one host share a clock: the host itself ends the key of a process that no
          longer renews, with its next batch or in place of its next beat.

A host that looks rarely could miss 64 beats and take the ref for one that never moved.  So a host
beats at most five times a second, and a host that has not looked for ``BLIND`` seconds takes every
other host for alive at this moment.

The processes of a host share its beats: a renewal within a moment after the beat of another process
is as good as that beat, and not as a new one.  The moment is less than half the time by which a
holder stops before its lease ends (``margin``); with a pace it is the pace, which the margin
follows, and then a beat of the same process counts, too.  That another host deleted a key shows
with the next beat.

Where the remote takes no such refs, or no atomic pushes, renewals stay in batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.stores.derived import RenewalWork
from interlock.stores.git.objects import encode_commit
from interlock.stores.git.repository import NONE, Repository
from interlock.stores.sqlite.connection import NANO, ReadConnection

if TYPE_CHECKING:
    from interlock.stores.git.replica import ReplicaConnection

NUMBER = 64
SPACING = 0.2
"""Seconds between two beats of a host, at least."""
BLIND = 12.0
"""Seconds without a look after which nothing is known about the beats of others."""
GONE = 3600 * NANO
"""Time without a batch of a host after which a checkpoint deletes its ref, if nothing needs it."""
GONE_AT_ONCE = 100
SHARED, SHARED_IN_TTLS = 1.0, 0.05
"""Seconds, and ttls, for which a beat of another process is as good as one of its own."""
_NOTED = 3 * NANO
"""A look is noted if the one noted before is older than this: not every look is worth a write."""
_BY = "interlock <interlock@localhost> 0 +0000"
_BEATING = "SELECT key, ttl FROM life WHERE host = ? AND beat = 1"
_EXTEND = """UPDATE item
  SET expires = max(expires, ?1 + (SELECT ttl FROM life WHERE life.key = item.key))
  WHERE key IN (SELECT key FROM life WHERE host = ?2 AND beat = 1)"""
_LATER = "UPDATE item SET expires = max(expires, ?) WHERE key = ?"
_DELAYED = "UPDATE life SET lag = ? WHERE host = ? AND beat = 1"
_LOOKED = "SELECT name, value FROM replica WHERE name IN ('host', 'beats_looked')"
_SEEN = "INSERT OR REPLACE INTO beat VALUES (?, ?)"
_OTHERS = "SELECT host, oid FROM beat WHERE host != (SELECT value FROM replica WHERE name = 'host')"
_OTHERS_BEATING = """SELECT DISTINCT host FROM life
  WHERE beat = 1 AND host != (SELECT value FROM replica WHERE name = 'host')"""
_GONE = """SELECT host FROM beat WHERE host != ?
  AND host NOT IN (SELECT host FROM life) AND host NOT IN (SELECT host FROM peer WHERE seen > ?)
  ORDER BY host LIMIT ?"""


class BeatWork(RenewalWork):
    """A renewal: a beat of the host if it can be (``beaten``), else the work of a transaction."""

    beaten = False


def a_beat(repository: Repository, number: int) -> str:
    """The commit of a beat."""
    return _commit(repository, f"Beat {number}\n")


def a_beginning(repository: Repository, commit: str) -> str:
    """A commit that says with which commit of the branch a host begins to beat.

    It is the place of no other push, so a beat that expects it never finds it twice.
    """
    return _commit(repository, f"Begin with {commit}\n")


def an_end(repository: Repository, commit: str) -> str:
    """A commit that says which commit of the branch ended keys of a host."""
    return _commit(repository, f"End by {commit}\n")


def _commit(repository: Repository, message: str) -> str:
    return repository.write("commit", encode_commit(repository.write_tree({}), "", _BY, message))


class Beats:
    """What a replica knows of the beats of all hosts; used inside its transactions."""

    def __init__(self, engine: ReplicaConnection, repository: Repository) -> None:
        self._engine = engine
        self._repository = repository
        self._own = random.getrandbits(63)
        """Distinguishes the beats of this process from those of others."""

    def at(self, host: str) -> str:
        """Where the ref of a host was when it was last seen."""
        row = self._engine.db.execute("SELECT oid FROM beat WHERE host = ?", (host,)).fetchone()
        return NONE if row is None else str(row[0])

    def ref_of(self, host: str) -> str:
        """The ref that a host moves."""
        return self._repository.address.live + host

    def keep(self, ref: str, oid: str) -> None:
        """Note where a push of this host left a ref."""
        host = ref.rpartition("/")[2]
        if oid == NONE:
            self._engine.db.execute("DELETE FROM beat WHERE host = ?", (host,))
        else:
            self._engine.db.execute(_SEEN, (host, oid))

    def gone(self, now: int) -> list[str]:
        """Hosts whose refs show nothing any more."""
        bindings = (self._engine.host, now - GONE, GONE_AT_ONCE)
        return [str(row[0]) for row in self._engine.db.execute(_GONE, bindings).fetchall()]

    def next_number(self) -> int:
        """The beat after the last one of this host.

        It is not the one where the ref is: an earlier push without an answer may have left it
        there, and that began too long ago to count as a renewal at this moment.
        """
        number = (self._engine.recall("beats") + 1) % NUMBER
        there = self.at(self._engine.host) == a_beat(self._repository, number)
        return (number + 1) % NUMBER if there else number

    def lately(self, now: int, works: Iterable[BeatWork]) -> int:
        """When this host began its last beat, if that is as good as another one now; else 0.

        That one shows all keys of the host to the others, so these live for their ttl from then on.
        """
        beaten, moment = self._engine.recall("beaten"), self._repository.address.pace
        if self._engine.recall("beater") != self._own:
            ttls = [put.ttl or 0.0 for work in works for put in work.puts]
            moment = max(moment, min([SHARED, *(SHARED_IN_TTLS * ttl for ttl in ttls)]))
        return beaten if 0 <= now - beaten < moment * NANO else 0

    def note_beat(self, began: int, number: int) -> None:
        """Note the beat that this process pushes."""
        for name, value in (("beaten", began), ("beats", number), ("beater", self._own)):
            self._engine.remember(name, value)

    def allowed(self) -> bool:
        """Whether the remote takes beats, as far as is known."""
        return self._engine.takes("no_beats")

    def blind(self, now: int) -> bool:
        """Whether this host has not looked for so long that others may have beaten unseen."""
        return now - self._engine.recall("beats_looked") > self._bound()

    def note(self, refs: dict[str, str], began: int) -> None:
        """Extend the keys of the hosts whose refs have moved since the last look.

        The ttl starts now, and not when the look began: the beat may have come in between.
        """
        engine, execute, now = self._engine, self._engine.db.execute, self._engine.start
        before = engine.recall("beats_looked")
        blind = began - before > self._bound()
        known, seen = _known(engine), _seen(refs)
        seen.pop(engine.host, None)
        for host in known.keys() - seen.keys():
            execute("DELETE FROM beat WHERE host = ?", (host,))
        for host, oid in seen.items():
            if blind or known.get(host) != oid:
                execute(_SEEN, (host, oid))
                execute(_EXTEND, (now, host))
                execute(_DELAYED, (now - before, host))
        engine.remember("beats_looked", began)

    def renews(self, work: BeatWork) -> bool:
        """Whether a beat renews all of this: all hosts know these keys, values and ttls."""
        engine = self._engine
        items = engine.items([put.key for put in work.puts])
        alive = [put for put in work.puts if items[put.key] is not None]
        work.alive = frozenset([put.key for put in alive])
        rows = engine.db.execute(_BEATING, (engine.host,)).fetchall()
        beating = {str(key): ttl for key, ttl in rows}
        return all(
            beating.get(put.key) == int((put.ttl or 0) * NANO)
            and put.value == getattr(items[put.key], "value", None)
            for put in alive
        )

    def extend(self, work: BeatWork, start: int) -> None:
        """Start the ttl of the renewed keys again, here."""
        execute = self._engine.db.execute
        for put in work.puts:
            if put.key in work.alive and put.ttl is not None:
                expires = start + int(put.ttl * NANO)
                execute(_LATER, (expires, put.key))

    def _bound(self) -> int:
        return int(max(BLIND, self._repository.address.pace * NUMBER * 0.9) * NANO)


def news(reader: ReadConnection, refs: dict[str, str], began: int) -> bool:
    """Whether a look shows anything about beats that has to be noted: a reader need not wait else.

    That a look took place is worth noting only if there are other hosts with beats.
    """
    facts = {str(name): value for name, value in reader.db.execute(_LOOKED)}
    seen = _seen(refs)
    seen.pop(facts["host"], None)
    if _known(reader) != seen:
        return True
    return bool(seen) and began - int(facts.get("beats_looked", 0)) > _NOTED


def beating_hosts(reader: ReadConnection) -> list[str]:
    """The other hosts whose refs say something, as far as the branch says."""
    return sorted({*_known(reader), *(str(row[0]) for row in reader.db.execute(_OTHERS_BEATING))})


def _known(reader: ReadConnection) -> dict[str, str]:
    return {str(host): str(oid) for host, oid in reader.db.execute(_OTHERS)}


def _seen(refs: dict[str, str]) -> dict[str, str]:
    beating = [ref for ref in refs if not ref.startswith("refs/heads/")]
    return {ref.rpartition("/")[2]: refs[ref] for ref in beating}
