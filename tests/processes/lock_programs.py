"""Programs that use locks; the words of a process name one and give its arguments.

A program notes every answer of the store in a file of its own, one line at a time, so that no
answer is lost when it is killed.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import interlock
from interlock.clock import SystemClock
from interlock.errors import InterlockError, Lapsed, Lost, StoreTrouble, Unavailable
from interlock.store import Store
from interlock.stores import is_git, is_network
from interlock.stores.sqlite import SQLiteStore


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def wait() -> str:
    return sys.stdin.readline().strip()


class Notes:
    """A file that survives its writer."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def opened(url: str, patience: float) -> Store:
    """The store of a URL, with less patience than usual."""
    if is_git(url):
        from interlock.stores.git import GitStore

        return GitStore(url, patience=patience)
    if not is_network(url):
        return SQLiteStore(url, patience=patience)
    from interlock.stores.address import parse

    address = parse(url)
    if address.engine == "redis":
        from interlock.stores.redis import RedisStore

        redis = RedisStore(address, patience=patience)
        redis.open()
        return redis
    from interlock.stores.etcd import EtcdStore

    etcd = EtcdStore(address, patience=patience)
    etcd.open()
    return etcd


def askew(seconds: str, name: str, *arguments: str) -> None:
    """Run another program, on a machine whose clock is wrong."""
    SystemClock.wall = staticmethod(lambda: time.time() + float(seconds))
    globals()[name](*arguments)


def through_trouble(name: str, *arguments: str) -> None:
    """Run another program; do not log that the engine is unreachable."""
    logging.getLogger("interlock").addHandler(logging.NullHandler())
    globals()[name](*arguments)


def fast_asleep(name: str, *arguments: str) -> None:
    """Run another program, whose waits are ended by notifications alone."""
    from interlock.nouns.grants import pool_wait

    pool_wait._SLEEP = pool_wait._LONGEST_SLEEP = 600.0
    globals()[name](*arguments)


ENOUGH = 3
"""How many grants each process gets, also if the machine stalls until the end."""


def fight(url: str, notes: str, locks: str, terms: str) -> None:
    """Take one of the locks, again and again, until the given time, and at least ENOUGH times."""
    dice = random.Random(os.getpid())
    book = Notes(notes)
    names = locks.split(",")
    session, ttl, think = map(float, terms.split(","))
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=session)
    say("ready")
    ends, kept = float(wait()), 0
    while time.monotonic() < ends or kept < ENOUGH:
        try:
            kept += _take_once(fleet, book, dice.choice(names), ttl, dice.random() * think)
        except Lapsed:
            fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=session)
        except (Unavailable, Lost, StoreTrouble) as error:
            book.write("no", type(error).__name__)
    say("over")


def _take_once(fleet: interlock.Fleet, book: Notes, name: str, ttl: float, think: float) -> bool:
    """Whether the holder could rely on the lock."""
    asked = time.monotonic()
    held = fleet.lock(name, ttl=ttl, wait=5).__enter__()
    begin = time.monotonic()
    book.write("got", name, held.token, fleet.session, asked, begin)
    if think:
        time.sleep(think)
    end, kept = time.monotonic(), not held.lost
    book.write("had", name, held.token, begin, end, "kept" if kept else "lost")
    outcome = held.release()
    book.write("gave", name, held.token, type(outcome).__name__, fleet.session)
    return kept


def share(url: str, notes: str, weights: str, terms: str) -> None:
    """Take slots of one semaphore, again and again, until the given time, and ENOUGH times."""
    dice = random.Random(os.getpid())
    book = Notes(notes)
    session, ttl, think = map(float, terms.split(","))
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=session)
    say("ready")
    ends, often = float(wait()), 0
    while time.monotonic() < ends or often < ENOUGH:
        weight, asked = int(dice.choice(weights.split(","))), time.monotonic()
        try:
            held = fleet.slots("builds", weight=weight, ttl=ttl, wait=20).__enter__()
            begin = time.monotonic()
            book.write("got", "builds", held.token, fleet.session, asked, begin)
            time.sleep(dice.random() * think)
            end, kept = time.monotonic(), not held.lost
            book.write("had", "builds", held.token, begin, end, "kept" if kept else "lost", weight)
            often += kept
            held.release()
        except Lapsed:
            fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=session)
        except (Unavailable, Lost, StoreTrouble) as error:
            book.write("no", type(error).__name__)
    say("over")


def wait_together(url: str, ttl: str, *things: str) -> None:
    """Hold several things at once, print their token, and release them after a line."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=float(ttl))
    say("ready")
    with fleet.together(*things) as held:
        say(held.token, time.monotonic())
        wait()
    fleet.close()


def zombie(url: str, ttl: str) -> None:
    """Hold a lock, be stopped for too long, and then try everything that comes too late."""
    fleet = interlock.connect(url, agent="zombie", ttl=30)
    held = fleet.lock("merge", ttl=float(ttl)).__enter__()
    proof = held.check()
    say(held.token)
    wait()
    say("lost", held.lost)
    say("beat", type(fleet.locks.heartbeat("merge", token=held.token)).__name__)
    say("commit", type(fleet.locks.acquire("other", given=[proof])).__name__)
    say("release", type(fleet.locks.release("merge", token=held.token)).__name__)
    try:
        held.check()
        say("check", "worked")
    except Lost as error:
        say("check", type(error).__name__)
    fleet.close()


class Awake:
    """A thread that reads the clock all the time, and so knows how long its process stalled.

    A delay of another kind, such as a busy event loop, is not excused.
    """

    def __init__(self) -> None:
        self._longest = 0.0
        self._last = time.monotonic()
        threading.Thread(target=self._look, daemon=True).start()

    @property
    def stood(self) -> float:
        """The longest stall in seconds."""
        return max(self._longest, time.monotonic() - self._last)

    def _look(self) -> None:
        while True:
            time.sleep(0.001)
            before, self._last = self._last, time.monotonic()
            self._longest = max(self._longest, self._last - before)


def hold(url: str, lock: str, ttl: str, way: str) -> None:
    """Hold a lock, and print when the holder stopped, and the longest stall before that."""
    store = opened(url, patience=3)
    if way == "async":
        import asyncio

        asyncio.run(_hold_async(store, lock, float(ttl)))
        return
    fleet = interlock.connect(agent="holder", store=store, ttl=30)
    try:
        with fleet.lock(lock, ttl=float(ttl), interrupt=way == "interrupt") as held:
            say("held", held.token)
            awake = Awake()
            try:
                while way == "interrupt" or not held.lost:
                    time.sleep(0.001)  # an interrupt strikes between two calls, not inside one
            finally:
                say("stopped", time.monotonic(), awake.stood)
    except Lost as error:
        say("raised", type(error).__name__)
    fleet.store.close()


async def _hold_async(store: Store, lock: str, ttl: float) -> None:
    import asyncio

    from interlock import aio

    fleet = await aio.connect(agent="holder", store=store, ttl=30)
    try:
        async with fleet.lock(lock, ttl=ttl) as held:
            say("held", held.token)
            awake = Awake()
            try:
                await asyncio.sleep(60)
            finally:
                say("stopped", time.monotonic(), awake.stood)
    except Lost as error:
        say("raised", type(error).__name__)
    await store.close_async()


def acquire(url: str, lock: str, ttl: str, session: str = "1") -> None:
    """Wait for a lock, print when it came, and release it after a line."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=float(session))
    say("ready")
    with fleet.lock(lock, ttl=float(ttl)) as held:
        say(held.token, time.monotonic())
        wait()
    fleet.close()


def acquire_async(url: str, lock: str, ttl: str, session: str = "1") -> None:
    """Run ``acquire`` in an event loop."""
    import asyncio

    from interlock import aio

    async def main() -> None:
        async with await aio.connect(url, agent=f"a{os.getpid()}", ttl=float(session)) as fleet:
            say("ready")
            async with fleet.lock(lock, ttl=float(ttl)) as held:
                say(held.token, time.monotonic())
                await asyncio.to_thread(wait)

    asyncio.run(main())


def stop_with_the_lock(url: str, ttl: str) -> None:
    """Wait for a lock, and be stopped between its grant and the first instruction after it."""
    from interlock.nouns.grants.service import GrantService

    acquire = GrantService.acquire

    def late(*arguments: Any, **named: Any) -> Any:
        outcome = yield from acquire(*arguments, **named)
        GrantService.acquire = acquire  # type: ignore[method-assign]
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return outcome

    GrantService.acquire = late  # type: ignore[method-assign]
    fleet = interlock.connect(url, agent="late", ttl=30)
    try:
        with fleet.lock("merge", ttl=float(ttl)):
            say("inside")
    except Lost as error:
        say(type(error).__name__)
    fleet.close()


def stop_inside(path: str) -> None:
    """Be stopped in the middle of a commit."""
    store = SQLiteStore(path)
    store.transact(lambda _: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP))
    store.close()


def die_waiting(url: str, lock: str, ttl: str, step: str) -> None:
    """Wait for a lock, slots or several things (a+b), and be killed after the given step.

    A process that stalled for so long that it lost everything counts as killed.
    """
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=float(ttl))
    left = [int(step)]

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            last = left[0] == 0
            answer = call(*arguments, **named)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return wrapped

    store: Any = fleet.store
    watch = store.watch("wake/", 0)
    watch.close()
    type(watch).take = deadly(type(watch).take)
    changing = "transact" if store.capabilities.transacts else "commit"
    for name in ("read", changing, "watch"):
        setattr(store, name, deadly(getattr(store, name)))
    several = "/" in lock
    block = (
        fleet.together(*lock.split("+"), ttl=float(ttl))
        if several
        else fleet.lock(lock, ttl=float(ttl))
    )
    try:
        with block as held:
            say("got", held.token)
            left[0] = 0
        say("gave")
    except (Lapsed, Lost):
        os.kill(os.getpid(), signal.SIGKILL)


def busy(url: str, notes: str, ttl: str) -> None:
    """Change as much as possible until killed."""
    book = Notes(notes)
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=5)
    say("ready")
    dice = random.Random(os.getpid())
    lapsed = False
    while True:
        try:
            if lapsed:
                fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=5)
            lapsed = False
            _change_once(fleet, book, dice, float(ttl))
        except InterlockError as error:
            lapsed = lapsed or isinstance(error, Lapsed)
            book.write("no", type(error).__name__)


def _change_once(fleet: interlock.Fleet, book: Notes, dice: random.Random, ttl: float) -> None:
    name = f"n{dice.randrange(20)}"
    asked = time.monotonic()
    outcome = fleet.locks.acquire(name, ttl=ttl, metadata={"n": dice.random()})
    if isinstance(outcome, interlock.Acquired | interlock.Reclaimed):
        known = time.monotonic()
        book.write("got", name, outcome.token, fleet.session, asked, known)
        if dice.random() < 0.7:
            given = fleet.locks.release(name, token=outcome.token)
            book.write("gave", name, outcome.token, type(given).__name__, fleet.session)


def join(url: str, many: str, seconds: str) -> None:
    """One of many: take a lock that all want, as often as possible in the given time."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=30)
    say("ready")
    wait()
    ends = time.monotonic() + float(seconds)
    done = 0
    while time.monotonic() < ends:
        with fleet.lock(f"shared:{done % int(many)}"):
            done += 1
    say(done)
    fleet.close()


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
