"""GitStore: a SQLite replica whose commit is confirmed by a push."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlencode

import apsw

from interlock.errors import (
    OutcomeUnknown,
    StoreAway,
    StoreDamaged,
    StoreMissing,
    StoreReadOnly,
    StoreRefused,
    StoreTrouble,
)
from interlock.store import Capabilities, Finding, Put, Ref, Snapshot, StoreMark
from interlock.stores.git import checkpoint, replica
from interlock.stores.git.address import GitAddress, parse
from interlock.stores.git.beats import BeatWork, beating_hosts, news
from interlock.stores.git.follower import Follower, FollowWork
from interlock.stores.git.looks import GitFeed, LookAhead, SharedLook
from interlock.stores.git.objects import FILE, TreeEntry
from interlock.stores.git.publisher import Publisher
from interlock.stores.git.repository import NONE, RefMove, Repository, one_of_a_kind
from interlock.stores.git.writer import GitWriter
from interlock.stores.sqlite import schema
from interlock.stores.sqlite.connection import ReadConnection, WriteConnection
from interlock.stores.sqlite.store import SQLiteStore
from interlock.stores.sqlite.writer import WriteQueue, Writer

if TYPE_CHECKING:
    pass

A = TypeVar("A")
T = TypeVar("T")

CACHE_FORMAT = "v1"
"""Part of the path: another version of Interlock has a cache of its own, and counts as a host."""
LEAST_TTLS = ((0.15, 2.0), (0.5, 10.0), (math.inf, 30.0))
"""The shortest ttl for a push that takes up to so many seconds: a few values, so hosts agree."""
_PATIENCE, _PATIENCE_IN_LATENCIES = 15.0, 60
_REPLY, _REPLY_IN_LATENCIES = 10.0, 40
_COMMANDS_IN_A_COMMIT = 3
"""What a commit costs in looks, until the first push is measured."""
_QUICK_LOOK = 0.1
_GLANCES = 10
"""Of so many looks while a watch waits, one is git's own."""
_LONGEST_HOST = 40


class GitStore(SQLiteStore):
    """A branch of a git remote, for hosts that share nothing else."""

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        cache: str = "",
        min_ttl: float | None = None,
        patience: float | None = None,
    ) -> None:
        self.address = parse(url)
        self.url = url
        """With which any process finds the store; it may hold a password."""
        self.where = self.address.shown
        folder = _cache_folder(self.address, cache)
        _refuse_foreign(folder)
        self.repository = Repository(f"{folder}/repository.git", self.address)
        self._min_ttl = min_ttl
        self._patience = patience
        self._latency = 0.0
        self._glances = 0
        self._first_look: dict[str, str] | None = None
        path = f"{folder}/replica.db"
        if not os.path.exists(path):
            self._make(folder, create=create)
        try:
            super().__init__(path)
        except StoreDamaged:
            replica.discard(folder)
            self._make(folder, create=create)
            super().__init__(path)
        try:
            self._settle_in(create=create)
            self.mark_at_opening = self._ask(lambda reader: reader.standing()[1])
        except BaseException:
            self.close()
            raise

    # ---- opening

    def _make(self, folder: str, *, create: bool) -> None:
        """Make the cache, once the remote is known to be there and to be a store."""
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(
                f"{folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME"
            ) from None
        self.repository.ensure()
        self._first_look = self._timed_look()
        if self.address.ref not in self._first_look and not create:
            raise StoreMissing(
                f"{self.address.shown} has no branch {self.address.branch};"
                f" make it: interlock init --store {shlex.quote(self.address.shown)}; or name"
                " another"
            )

    def _timed_look(self) -> dict[str, str]:
        """Look, and measure it: again if it was slow, since the first one may have to log in."""
        found, took = self._time_one_look()
        if took > _QUICK_LOOK:
            found, took = self._time_one_look()
        self._latency = max(0.001, took * _COMMANDS_IN_A_COMMIT)
        return found

    def _time_one_look(self) -> tuple[dict[str, str], float]:
        began = time.monotonic()
        return self.repository.look(_REPLY * 3), time.monotonic() - began

    def _settle_in(self, *, create: bool) -> None:
        """Follow the branch for the first time; make it if it is not there."""
        if self._ask_head():
            self.repository.known = True
            return
        refs = self._first_look if self._first_look is not None else self._timed_look()
        if self.address.ref not in refs:
            if not create:
                raise StoreMissing(f"{self.address.shown} has no branch {self.address.branch}")
            self._create_branch()
        self._follower.run(FollowWork())
        self.repository.known = True

    def _create_branch(self) -> None:
        """Push the first commit, which says what the branch is; another host may be faster."""
        repository = self.repository
        blob = repository.write("blob", replica.marker())
        tree = repository.write_tree({replica.MARKER: TreeEntry(FILE, replica.MARKER, blob)})
        commit = repository.write_commit(tree, "", one_of_a_kind("Begin a store of Interlock"))
        move = RefMove(self.address.ref, NONE, commit)
        answer = repository.push(move, limit=_REPLY * 3)
        if answer.kind == "refused":
            raise StoreRefused(
                f"{self.address.shown} does not let you make the branch {self.address.branch}"
                f" ({answer.said}); let this user push to it, or name another: ?branch="
            )
        if answer.kind in ("unsent", "unknown"):
            raise repository.trouble(answer.said)
        if answer.kind == "locked" and self.address.ref not in repository.look(_REPLY * 3):
            raise self._git.publisher.given_up(answer, move.ref)

    def _declare(self, kind: str) -> Capabilities:  # noqa: ARG002 - the remote keeps it
        latency = max(self._measured(), self.address.pace)
        return Capabilities(
            engine="git",
            durability="power loss" if self.repository.syncs() else "process",
            clock="each host",
            push=False,
            transacts=True,
            one_machine=False,
            consecutive=True,
            latency=latency,
            min_ttl=self._least_ttl(latency) if self._min_ttl is None else self._min_ttl,
            max_operations=100_000,
            max_value=5 * 256 * 1024,
            max_bytes=32 << 20,
            grain=0.0,
            gathered=f"{os.path.dirname(self.path)}/refused",
        )

    def _least_ttl(self, latency: float) -> float:
        if self.address.file and not self.address.pace:
            return LEAST_TTLS[0][1]
        return next(ttl for limit, ttl in LEAST_TTLS if latency <= limit)

    def _measured(self) -> float:
        """Seconds that a push of this host takes, as its replica remembers."""
        with suppress(apsw.Error):
            db = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY)
            try:
                row = db.execute("SELECT value FROM replica WHERE name = 'push'").fetchone()
                if row is not None:
                    return float(row[0]) / 1e9
            finally:
                db.close()
        return self._latency or 0.02

    def _open(self, patience: float) -> None:  # noqa: ARG002 - it follows the latency
        latency = self.capabilities.latency
        self._reply = max(_REPLY, _REPLY_IN_LATENCIES * latency)
        if self._patience is None:
            self._patience = max(_PATIENCE, _PATIENCE_IN_LATENCIES * latency)
        super()._open(self._patience)
        self._shared = SharedLook(self._look)
        feed = GitFeed(
            self._notifier,
            self._later,
            self._data_version,
            self._check,
            same_files=self._same_files,
            committed=self._committed,
        )
        folder = self._notifier.folder
        pace = self.address.pace
        self._ahead = LookAhead(f"{folder}/look", self._glance, feed.waiting, pace)
        feed.ahead, self._made_feed = self._ahead, feed

    def _begin_boot(self, db: apsw.Connection) -> None:
        name = socket.gethostname().partition(".")[0][:_LONGEST_HOST] or "host"
        replica.establish(db, schema.boot_id(), f"{name}-{os.urandom(4).hex()}")

    def _make_writer(self, db: apsw.Connection, patience: float) -> tuple[WriteConnection, Writer]:
        engine = replica.ReplicaConnection(
            db, self.path, self._notifier.notify, self._files, self.repository
        )
        folder = self._notifier.folder
        publisher = Publisher(self.repository, self._reply, f"{folder}/away")
        follower = Follower(engine, self._write_queue, patience, self.repository, publisher)
        line, queue = WriteQueue(folder, "push-"), WriteQueue(folder)
        self._git = GitWriter(engine, line, queue, patience, follower)
        self._follower = follower
        return engine, self._git

    def _make_reader(self, db: apsw.Connection) -> ReadConnection:
        return replica.ReplicaReader(db)

    # ---- the waist

    @property
    def outage(self) -> str:
        """Why the remote does not answer, and since when; empty while it does."""
        return super().outage or self._git.publisher.outage

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """All the refs at one revision; a fresh read looks at the remote first."""
        self._check()
        if fresh:
            self._refresh()
        return super().read(*refs, times=times, longest=longest)

    async def read_async(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """Read in an event loop; a thread looks at the remote."""
        if not fresh:
            return self.read(*refs, times=times, fresh=False, longest=longest)
        return await asyncio.to_thread(self.read, *refs, times=times, longest=longest)

    async def _in_loop(self, method: Callable[[A], T], argument: A) -> T:
        return await asyncio.to_thread(method, argument)

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive."""
        work = BeatWork(puts)
        self._check()
        try:
            self._follower.run(work)
            if not work.beaten:
                self._git.run(work)
        except OutcomeUnknown as error:
            raise StoreAway(str(error)) from error
        return work.alive

    async def renew_async(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Renew in an event loop."""
        work = BeatWork(puts)
        self._check()
        try:
            await self._follower.run_async(work)
            if not work.beaten:
                await self._git.run_async(work)
        except OutcomeUnknown as error:
            raise StoreAway(str(error)) from error
        return work.alive

    def mark(self) -> StoreMark | None:
        """Why it accepts no commits."""
        self._refresh()
        return super().mark()

    def wall(self) -> None:  # type: ignore[override]
        """The hosts of a remote share no clock."""

    def info(self) -> dict[str, object]:
        """Facts about this store for a person."""
        found = super().info()
        position, facts = self._ask(replica.read_facts)
        push = facts.get("push")
        return {
            "engine": "git",
            "remote": self.address.shown,
            "branch": self.address.branch,
            "commit": position.head,
            "batch": position.batch,
            "host": self._git.host,
            "history": "whole: the remote forbids to shorten it"
            if facts.get("whole_history")
            else f"begins again after {checkpoint.HISTORY:,} batches, {checkpoint.LARGE >> 20} MB"
            f" or {checkpoint.OLD / 86_400:.0f} days",
            "beats": _beats(facts),
            "push_ms": round(push / 1e6, 1) if isinstance(push, int) else None,
            "durability": self.capabilities.durability,
            "min_ttl": self.capabilities.min_ttl,
            "cache": os.path.dirname(self.path),
            "cache_bytes": folder_size(os.path.dirname(self.path)),
            **{name: found[name] for name in ("format", "revision", "items", "entries", "trimmed")},
            **{name: found[name] for name in ("mark",) if name in found},
        }

    def examine(self) -> list[Finding]:
        """What is well and what is not with git, the remote and the cache."""
        from interlock.stores.git.examine import findings

        return list(findings(self))

    def close(self) -> None:
        """Close the replica; acknowledged commits are at the remote."""
        if not self._closed and self._pid == os.getpid():
            self._ahead.close()
        super().close()
        if self._pid == os.getpid():
            self.repository.close()

    def rest(self) -> bool:
        """Close all connections for the moment of a fork; False if we could not stop in time."""
        rests = super().rest()
        if rests:
            self.repository.leave_remote()
        return rests

    def abandon(self) -> None:
        """After a fork, in the child: drop the resources of the parent."""
        super().abandon()
        self._git.abandon()
        self.repository.abandon()

    # ---- looks

    def _look(self) -> dict[str, str]:
        publisher = self._git.publisher
        return publisher.look(publisher.gives_up(self._patience or 0.0))

    def _refresh(self) -> None:
        """See that the replica has all that the branch has at this moment."""
        began = replica.monotonic()
        refs = self._shared.refs()
        if refs.get(self.address.ref) == self._ask_head():
            self._follower.note_newest(began)
        self._follow(refs, began)

    def _follow(self, refs: dict[str, str], began: int) -> None:
        """Bring the replica to where a look saw the branch, and note what it says of beats."""
        if refs.get(self.address.ref) != self._ask_head() or self._ask(
            lambda reader: news(reader, refs, began)
        ):
            self._follower.run(FollowWork(refs, began))

    def _glance(self) -> None:
        """See what is new, as far as the process that is kept at the remote knows, if there is one.

        It knows the refs of hosts by the branch: a host begins to beat with a commit.
        """
        began = replica.monotonic()
        hosts = self._ask(beating_hosts)
        refs = self.repository.glance(self._ask_head(), self._reply / 4, hosts)
        self._glances = (self._glances + 1) % _GLANCES if refs else 0
        if self._glances:
            self._follow(refs, began)
        else:
            self._refresh()

    def _ask_head(self) -> str:
        def head(reader: ReadConnection) -> str:
            found = reader.db.execute("SELECT value FROM replica WHERE name = 'head'").fetchone()
            return "" if found is None else str(found[0])

        return self._ask(head)


def _beats(facts: dict[str, object]) -> str:
    if facts.get("no_beats"):
        return "in the history: the remote takes no refs of hosts"
    return "as refs; the remote lets none be deleted" if facts.get("whole_refs") else "as refs"


def folder_size(folder: str) -> int:
    """Bytes of all files under a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _cache_folder(address: GitAddress, cache: str) -> str:
    """One folder for each remote and branch, shared by all processes of the user on this host."""
    top = cache or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not top.startswith("/"):
        raise StoreMissing("there is no home folder for the cache; set XDG_CACHE_HOME to one")
    what = hashlib.sha256(f"{address.remote}\n{address.branch}".encode()).hexdigest()[:16]
    return f"{top}/interlock/git/{CACHE_FORMAT}/{what}"


def _refuse_foreign(folder: str) -> None:
    """Raise if the cache is that of another user, whose git configuration would be used, too."""
    with suppress(OSError):
        owner = os.stat(folder).st_uid
        if owner != os.geteuid():
            raise StoreRefused(
                f"{folder} is the cache of another user ({owner}); set XDG_CACHE_HOME to a folder"
                " of yours"
            )


@contextmanager
def temporary_branch(url: str, purpose: str) -> Iterator[str]:
    """A store on a new branch of the same remote; the branch is deleted in the end."""
    base, _, query = url.partition("?")
    options = dict(parse_qsl(query)) | {"branch": f"{purpose}-{os.urandom(4).hex()}"}
    temporary = f"{base}?{urlencode(options)}"
    address = parse(temporary)
    try:
        yield temporary
    finally:
        folder = _cache_folder(address, "")
        with suppress(StoreTrouble):
            Repository(f"{folder}/repository.git", address).delete_branch(_REPLY * 3)
        shutil.rmtree(folder, ignore_errors=True)
