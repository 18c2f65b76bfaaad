"""Waiting for results at the asker: one follower of the bus for all callers of a process.

A caller that waits watches nothing by itself.  One of them leads (``runtime/leader.py``): it
watches the folder of our results on the bus, takes in those that are waited for, many with one
commit, and wakes their callers with the findings.

Another process of the swarm may be quicker: it commits the finding before it deletes the result
from the bus.  So a result that was seen and is gone is at home, and its caller looks there.

A request may also end at home alone: it is cancelled, or a person gives it to another swarm.  Each
such commit writes ``meta/request-cancelled``.  Most results come within milliseconds, so only while
a wait **lasts** is this key watched, in a background thread or task of the client.  It wakes the
callers whose requests are over, and they look at home.  (To watch the requests themselves took a
new watch of all of them for each that began or ended.)  While the bus is away, another process that
reaches it may take in the results: then all requests of the home are watched, by one watch for all
waits of this process.

A caller looks at home from time to time all the same, the less often the more of them wait: in a
process with thousands these looks alone would be its work, just when it is behind.

**Nothing is missed.**  A caller that sends is on the list before its request is posted, so its
result cannot come earlier; ``since`` is the revision of the bus after which it can come.  The watch
begins at the lowest of these.  A caller whose own is below the beginning of a watch that is open
reads its result once before it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.errors import BusTrouble, InterlockError, StoreTrouble
from interlock.nouns.requests.exchange import decode_request
from interlock.nouns.requests.request import RequestFinding
from interlock.runtime.leader import Bell, GroupMember, LeaderGroup
from interlock.runtime.reads import looked_up, readable
from interlock.steps import NextChanges, Op, OpenWatch, Pause, Read
from interlock.store import Change, Resync, Snapshot, Watch

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.incoming import Incoming
    from interlock.nouns.requests.result_intake import ResultIntake
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

UNKNOWN = -1
LASTS = 0.25
"""Seconds after which a wait is watched at home, too."""
SLICE = 0.25
"""Seconds at most until a leader notices that it is settled, or other waits are watched."""
MANY = 100
"""Waits of one process, above which each of them looks at home less often."""
IDLE = 3600.0


_GOING_ON = ("open", "escalated")


class ResultWait(GroupMember):
    """A caller that waits for the result of a request.

    It is settled when there is a finding, or when it has to look at home.
    """

    def __init__(self, request: str) -> None:
        super().__init__()
        self.request = request
        self.since = UNKNOWN
        self.lasts = False
        self.finding: RequestFinding | None = None


class ResultWaits:
    """All callers of one process that wait for results; its methods are generators for a driver."""

    def __init__(self, home: Home, incoming: Incoming, intake: ResultIntake) -> None:
        self._home = home
        self._incoming = incoming
        self._intake = intake
        self._group = LeaderGroup[ResultWait]()
        self._guard = threading.Lock()
        self._waiting: dict[str, list[ResultWait]] = {}
        self._watch: Watch | None = None
        self._watched: tuple[str, str] = ("", "")
        """The bus and the swarm that the watch is for."""
        self._after: int | None = None
        """Where the watch begins that is open, or is being opened."""
        self._bell = Bell()
        self.start: Callable[[], object] | None = None
        """Starts the thread or the task that runs ``watch_home``, if the client has one."""
        intake.answered = self.answered

    def add(self, request: str) -> ResultWait:
        """Put a caller on the list; ``remove`` always follows."""
        wait = ResultWait(request)
        with self._guard:
            self._waiting.setdefault(request, []).append(wait)
        return wait

    def remove(self, wait: ResultWait) -> None:
        """Take a caller off the list; the last one closes the watch."""
        watch: Watch | None = None
        with self._guard:
            left = [each for each in self._waiting.get(wait.request, ()) if each is not wait]
            if left:
                self._waiting[wait.request] = left
            else:
                self._waiting.pop(wait.request, None)
            if not self._waiting:
                watch, self._watch, self._after = self._watch, None, None
        if watch is not None:
            watch.close()

    def look(self, actor: Actor, request: str) -> Op[None]:
        """Take in a result that is on the bus."""
        own = yield from self._home.own()
        yield from self._take_in(actor, own, [request])

    def answered(self, finding: RequestFinding) -> None:
        """A finding is committed by this process: wake those that wait for it."""
        with self._guard:
            waiting = self._waiting.get(finding.request, ())
        for each in waiting:
            each.finding = finding
            each.settle()

    def begin(self, actor: Actor, wait: ResultWait) -> Op[bool]:
        """See that nothing is missed from now on; whether home has to be looked at again for that.

        A result that is on the bus already is taken in.
        """
        own = yield from self._home.own()
        looked = False
        while wait.since == UNKNOWN or self._began_after(wait):
            looked = True
            yield from self._look(actor, own, wait)
        return looked

    def attend(self, actor: Actor, wait: ResultWait, left: Callable[[], float]) -> Op[None]:
        """Wait until a caller has its finding, has to look at home, or no time is left."""
        own = yield from self._home.own()
        yield from self._group.attend(wait, lambda: self._lead(actor, own, wait, left), left)

    def patience(self) -> float:
        """How many times as long as usual a caller waits before it looks again."""
        with self._guard:
            return max(1.0, len(self._waiting) / MANY)

    def keep_on(self, wait: ResultWait) -> None:
        """A wait lasts: see to it that an end of its request at home ends it."""
        wait.lasts = True
        if self.start is not None:
            self.start()
            self._bell.ring()

    def watch_home(self, stopped: Callable[[], bool]) -> Op[None]:
        """End waits whose requests end at home, until the client is closed."""
        while not stopped():
            if not self._any_lasts():
                yield from self._bell.sleep(IDLE)
                continue
            try:
                yield from self._watch_ends(stopped)
            except InterlockError:  # those that wait look at home themselves, from time to time
                yield Pause(SLICE)

    def stop(self) -> None:
        """Wake ``watch_home``, which ends."""
        self._bell.ring()

    def _any_lasts(self) -> bool:
        """Whether a caller has waited for a while."""
        with self._guard:
            waits = [each for some in self._waiting.values() for each in some]
        return any(each.lasts and not each.settled for each in waits)

    def _watch_ends(self, stopped: Callable[[], bool]) -> Op[None]:
        """Look at home for the requests that may have ended there, as long as a wait lasts."""
        away = bool(self._home.bus.trouble)
        scope = keys.REQUESTS if away else keys.REQUEST_CANCELLED
        snapshot: Snapshot = yield Read(keys.REQUEST_CANCELLED)
        yield from self._end_waits(self._requests())
        watch: Watch = yield OpenWatch(scope, snapshot.revision)
        try:
            while not stopped() and self._any_lasts() and bool(self._home.bus.trouble) == away:
                changes = yield NextChanges(watch, SLICE)
                if away:
                    yield from self._end_waits(self._waited_for(keys.REQUESTS, changes))
                elif changes:
                    yield from self._end_waits(self._requests())
        finally:
            watch.close()

    def _requests(self) -> list[str]:
        """The requests that are waited for."""
        with self._guard:
            return list(self._waiting)

    def _end_waits(self, requests: Iterable[str]) -> Op[None]:
        """Wake the callers whose requests are over at home."""
        for key, item in (yield from looked_up(map(keys.request, requests))).items():
            found = readable(decode_request, item)
            if found is None or found.state not in _GOING_ON:
                with self._guard:
                    waits = self._waiting.get(keys.id_of(key), ())
                for each in waits:
                    each.settle()

    def _began_after(self, wait: ResultWait) -> bool:
        """Whether the watch that is open may have begun too late for a caller."""
        with self._guard:
            late = self._after is not None and self._after > wait.since
            return late and not wait.settled

    def _look(self, actor: Actor, own: OwnSwarm, wait: ResultWait) -> Op[None]:
        """Take a result in that is on the bus already."""

        def work(_runner: Runner) -> Op[Snapshot]:
            snapshot: Snapshot = yield Read(keys.bus_result(own.name, wait.request), longest=0)
            return snapshot

        snapshot = yield from self._home.bus.on(own, work)
        wait.since = snapshot.revision
        if any(snapshot.items.values()):
            yield from self._take_in(actor, own, [wait.request])

    def _lead(
        self, actor: Actor, own: OwnSwarm, wait: ResultWait, left: Callable[[], float]
    ) -> Op[None]:
        """Follow the bus for all callers, until our own has its finding."""
        watch = yield from self._opened(own)
        folder = keys.bus_result(own.name)
        while not wait.settled and (seconds := left()) > 0:
            try:
                # A bell cannot wake a thread from a watch, so it looks whether it is settled.
                changes = yield NextChanges(watch, min(seconds, SLICE) if wait.lasts else seconds)
            except StoreTrouble as error:  # the watch is one of the bus
                self._close(watch)
                raise BusTrouble(f"the bus does not answer: {error}", error) from error
            yield from self._take_in(actor, own, self._waited_for(folder, changes))

    def _waited_for(self, folder: str, changes: Sequence[Change | Resync]) -> list[str]:
        """The requests whose results have changed, of those that are waited for."""
        with self._guard:
            waiting = list(self._waiting)
            if any(isinstance(each, Resync) for each in changes):
                return waiting
            keys_ = [each.key for each in changes if isinstance(each, Change)]
            changed = dict.fromkeys(key.removeprefix(folder) for key in keys_)
            return [request for request in changed if request in self._waiting]

    def _take_in(self, actor: Actor, own: OwnSwarm, requests: Iterable[str]) -> Op[None]:
        """Take in these results; those that are gone from the bus are at home."""
        wanted = list(requests)
        if not wanted:
            return
        asked = [keys.bus_result(own.name, request) for request in wanted]
        found = (yield from self._incoming.at(own, asked)).results
        yield from self._intake.take(actor, own, found)
        there = {keys.id_of(each.key) for each in found}
        with self._guard:
            gone = [
                wait
                for request in wanted
                if request not in there
                for wait in self._waiting.get(request, ())
            ]
        for wait in gone:
            wait.settle()

    def _opened(self, own: OwnSwarm) -> Op[Watch]:
        """The watch of our results, from the revision on that all callers need."""
        wanted = own.bus_id, own.name
        with self._guard:
            if self._watch is not None and self._watched == wanted:
                return self._watch
            before, self._watch = self._watch, None
            known = [each.since for some in self._waiting.values() for each in some]
            after = self._after = min(each for each in known if each != UNKNOWN)
        if before is not None:
            before.close()

        def work(_runner: Runner) -> Op[Watch]:
            opened: Watch = yield OpenWatch(keys.bus_result(own.name), after)
            return opened

        try:
            watch = yield from self._home.bus.on(own, work)
        except BaseException:
            with self._guard:
                self._after = None
            raise
        with self._guard:
            self._watch, self._watched = watch, wanted
        return watch

    def _close(self, watch: Watch) -> None:
        with self._guard:
            if self._watch is watch:
                self._watch = self._after = None
        watch.close()
