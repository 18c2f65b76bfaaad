"""Random programs under random faults.

Clients take, wait for, hold and release locks while their connections and their server fail.  Then
the faults end, and the answers that the clients got are checked against the record.  The seed
decides what each client draws; the scheduler of the machine decides the rest.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from tests.faults.setup import WAYS, Client, Setup, Way
from tests.processes import checks

from interlock.core import keys
from interlock.errors import Lapsed, Lost, OutcomeUnknown, StoreAway, Unavailable
from interlock.nouns.grants.lock import LockBusy, LockGranted, LockReleased
from interlock.testing.servers.proxy import Proxy

LOCKS = ("a", "b")
TTL = 4.0
LONGEST_WAIT = 3.0
LONGEST_FAULT = 1.2


class HeldSpan(NamedTuple):
    """A time in which an agent could rely on a lock."""

    token: int
    begin: float
    end: float
    who: str


class Agent:
    """One client after the other under one name, behind one proxy."""

    def __init__(self, setup: Setup, seed: str, way: Way, name: str, over: threading.Event) -> None:
        self.proxy = setup.proxy()
        self.name = name
        self.stays: list[tuple[str, HeldSpan]] = []
        self.tokens: list[tuple[str, int]] = []
        self.released: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.connections = 0
        self._scene = setup
        self._random = Random(seed)
        self._way = way
        self._over = over

    def run(self) -> None:
        """Do what is drawn, until the end."""
        client = self._connected()
        while not self._over.is_set():
            if self._draws(client) == "lapsed" or self._random.random() < 0.03:
                client.close()
                client = self._connected()
        for lock in LOCKS:  # each lock must be free in the end
            self._acquire_at_the_end(client, lock)

    def _connected(self) -> Client:
        while True:
            with suppress(StoreAway, OutcomeUnknown):
                self.connections += 1
                return self._scene.client(self.name, self.proxy, self._way, ttl=TTL)

    def _draws(self, client: Client) -> str:
        lock = self._random.choice(LOCKS)
        wait = self._random.choice((0.0, 0.2, LONGEST_WAIT))
        rest = self._random.uniform(0, 0.03)
        act = self._bare if self._random.random() < 0.5 else self._block
        try:
            word = act(client, lock, wait, rest)
        except (StoreAway, OutcomeUnknown, Lost, Lapsed, Unavailable) as error:
            word = error.code
        self.outcomes[word] += 1
        return word

    def _bare(self, client: Client, lock: str, wait: float, rest: float) -> str:
        got = client.acquire(lock, wait=wait)
        if isinstance(got, LockBusy):
            return "busy"
        lease = client.fleet.context.session_lease
        begin = time.monotonic()
        self._got(lock, got)
        time.sleep(rest)
        self._stayed(lock, got.token, begin, lease.alive)
        gave = client.release(lock, token=got.token)
        if isinstance(gave, LockReleased):
            self.released[client.fleet.session, f"lock/{lock}"] += 1
        return "bare"

    def _block(self, client: Client, lock: str, wait: float, rest: float) -> str:
        block = client.fleet.lock(lock, wait=wait)
        if self._way == "async":

            async def holds() -> None:
                async with block as held:
                    self._got(lock, held.outcome)
                    begin = time.monotonic()
                    await asyncio.sleep(rest)
                    self._stayed(lock, held.token, begin, lambda: not held.lost)

            client.do(lambda _: holds())
        else:
            with block as held:
                self._got(lock, held.outcome)
                begin = time.monotonic()
                time.sleep(rest)
                self._stayed(lock, held.token, begin, lambda: not held.lost)
        return "block"

    def _got(self, lock: str, grant: LockGranted) -> None:
        self.tokens.append((lock, grant.token or 0))

    def _stayed(self, lock: str, token: int, begin: float, kept: Callable[[], bool]) -> None:
        """Note the time in which this agent could rely on the lock."""
        end = time.monotonic()
        if kept():
            self.stays.append((lock, HeldSpan(token, begin, end, self.name)))

    def _acquire_at_the_end(self, client: Client, lock: str) -> None:
        while True:
            try:
                got = client.acquire(lock, wait=30)
            except Lapsed:
                client = self._connected()
                continue
            assert isinstance(got, LockGranted), f"{self.name} waited in vain for {lock}: {got}"
            client.release(lock, token=got.token)
            return


class FaultInjector:
    """The faults, one after the other."""

    def __init__(self, setup: Setup, proxies: list[Proxy], seed: str) -> None:
        self.drawn: Counter[str] = Counter()
        self._scene = setup
        self._proxies = proxies
        self._random = Random(seed)

    def inject(self) -> None:
        """One fault, from its start to its end."""
        proxy = self._random.choice(self._proxies)
        lasts = self._random.uniform(0.05, LONGEST_FAULT)
        faults = {
            "cut once": self._cut_once,
            "drop": self._drop,
            "slow": self._slow,
            "cut": self._cut,
            "half open": self._half_open,
            "late": self._late,
            "kill": self._kill,
            "freeze": self._freeze,
        }
        weights = (4, 6, 2, 2, 2, 4, 1, 1)
        (name,) = self._random.choices(tuple(faults), weights)
        self.drawn[name] += 1
        faults[name](proxy, lasts)
        proxy.heal()
        time.sleep(self._random.uniform(0, 0.1))

    def _cut_once(self, proxy: Proxy, _lasts: float) -> None:
        proxy.cut_once()

    def _drop(self, proxy: Proxy, _lasts: float) -> None:
        proxy.drop_replies(self._random.randint(1, 3))
        time.sleep(0.1)

    def _slow(self, proxy: Proxy, lasts: float) -> None:
        proxy.delay(self._random.uniform(0.01, 0.2))
        time.sleep(lasts)

    def _cut(self, proxy: Proxy, lasts: float) -> None:
        proxy.cut()
        time.sleep(lasts / 4)

    def _half_open(self, proxy: Proxy, lasts: float) -> None:
        proxy.half_open()
        time.sleep(lasts)

    def _late(self, proxy: Proxy, lasts: float) -> None:
        """A request arrives when its sender has given up long ago."""
        strikes = [self._random.randint(1, 4)]

        def judge_(data: bytes) -> Any:
            if b"txn_" not in data:
                return None
            strikes[0] -= 1
            return "hold" if strikes[0] == 0 else None

        proxy.on_request(judge_)
        time.sleep(0.1)
        proxy.cut_once()
        time.sleep(lasts / 4)
        proxy.on_request(None)

    def _kill(self, _proxy: Proxy, lasts: float) -> None:
        self._scene.server.kill()
        time.sleep(lasts / 4)
        self._scene.server.start()

    def _freeze(self, _proxy: Proxy, lasts: float) -> None:
        self._scene.server.freeze()
        time.sleep(lasts)
        self._scene.server.thaw()


def run_random_faults(setup: Setup, seed: int, seconds: float, agents: int = 4) -> str:
    """Run clients under faults, and check the answers; returns the events in a line."""
    over = threading.Event()
    clients = [
        Agent(setup, f"{seed}/{number}", WAYS[number % 2], f"agent-{number}", over)
        for number in range(agents)
    ]
    injector = FaultInjector(setup, [each.proxy for each in clients], f"{seed}/weather")
    runs = [setup.begin(each.run) for each in clients]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not any(run.done() for run in runs):
        injector.inject()
    over.set()
    healed = time.monotonic()
    for run in runs:
        run.result(60)
    took = time.monotonic() - healed
    _judge(setup, clients)
    outcomes = sum((each.outcomes for each in clients), Counter[str]())
    return f"seed {seed}: {dict(injector.drawn)}, {dict(outcomes)}, at rest after {took:.1f} s"


def _judge(setup: Setup, clients: list[Agent]) -> None:
    log = checks.read_log(setup.url)
    granted = {
        (key, revision)
        for revision, entry in log.items()
        if any(event.name == "lock:acquired" for event in entry.events)
        for key in entry.put
    }
    granted_to = [each for agent in clients for each in agent.tokens]
    assert len(granted_to) == len(set(granted_to)), "a token was given twice"
    for lock, token in granted_to:
        assert (keys.lock(lock), token) in granted, f"{token} of {lock} is not in the record"
    stays: dict[str, list[HeldSpan]] = {lock: [] for lock in LOCKS}
    for agent in clients:
        for lock, stay in agent.stays:
            stays[lock].append(stay)
    for some in stays.values():
        for before, after in pairwise(sorted(some)):
            assert before.end <= after.begin, f"{before} and {after} at once"
    released = Counter(
        (entry.session, entry.thing) for entry in log.values() if entry.verb == "lock.release"
    )
    for agent in clients:
        for what, many in agent.released.items():
            assert released[what] >= many, f"{agent.name} got more releases than the record has"
    checks.sound(setup.url, heads=100)
