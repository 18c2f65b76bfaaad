"""Homes and a bus in one process, with one clock: for the tests of swarms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

import pytest

import interlock
from interlock.client import Fleet
from interlock.client_context import Context
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import StoreAway
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.bus import Bus
from interlock.nouns.swarms.calls import KeyCalls, SwarmCalls
from interlock.nouns.swarms.results import (
    Discovered,
    SwarmAllowed,
    SwarmNotSynced,
    SwarmRegistered,
    SwarmSynced,
    SwarmView,
)
from interlock.nouns.swarms.swarm import (
    Floor,
    OwnSwarm,
    Peer,
    decode_floor,
    decode_own,
    decode_peer,
)
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op, drive
from interlock.store import Answer, Committed, Put, Ref, Snapshot, Store, Txn
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock
from interlock.testing.faults import Crash, Fault, FaultyStore
from interlock.testing.testbed import Stepper

T = TypeVar("T")
S = TypeVar("S", bound="CrashScene")


class BusConnection(FaultyStore):
    """The bus as one home reaches it: it can be cut, and closing it closes nothing else."""

    cut = False

    @cached_property
    def posted(self) -> list[Txn]:
        """What this home has committed on the bus."""
        return []

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        self._pass()
        return super().read(*refs, times=times, fresh=fresh, longest=longest)

    def commit(self, txn: Txn) -> Answer:
        self._pass()
        answer = super().commit(txn)
        if isinstance(answer, Committed):
            self.posted.append(txn)
        return answer

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        self._pass()
        return super().renew(puts)

    def close(self) -> None:
        """The bus belongs to the test."""

    def _pass(self) -> None:
        if self.cut:
            raise StoreAway("the bus is cut off; wait")


class SameStore(FaultyStore):
    """A home as another process has it; closing it closes nothing else."""

    def close(self) -> None:
        """The home belongs to the test."""


class OneBus:
    """Opens the connection of one home, whatever the URL."""

    def __init__(self, connection: Store) -> None:
        self._connection = connection

    def place(self, url: str) -> tuple[str, str]:
        return url, url

    def blocking(self, url: str, *, create: bool) -> Store:
        return self._connection

    async def awaited(self, url: str, *, create: bool) -> Store:
        return self._connection


class Swarms:
    """Homes by name, each with a key of its own, and one bus."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = MemoryStore(self.clock)
        self.homes: dict[str, Fleet] = {}
        self.connections: dict[str, BusConnection] = {}
        self.tampered = False
        """Whether something was written on the bus beside its record."""
        self._numbers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fleet in self.homes.values():
            fleet.close()

    def home(self, name: str, store: Store | None = None) -> Fleet:
        """A home with an agent that is able to translate; it is not registered yet."""
        if name not in self.homes:
            home = store or MemoryStore(self.clock)
            fleet = interlock.connect(
                store=home, agent=f"{name}-bot", clock=self.clock, ttl=30 * 86400
            )
            fleet.agents.status("idle", can=["translate"])
            self.connections[name] = BusConnection(self.bus, sleep=self.clock.advance)
            self.connect_bus(fleet.context, self.connections[name])
            self.homes[name] = fleet
        return self.homes[name]

    @staticmethod
    def connect_bus(context: Context, connection: Store) -> None:
        context.__dict__["bus"] = Bus(context.runner, OneBus(connection), context.settings)

    def register(self, name: str, key: str = "") -> SwarmRegistered:
        found = self.home(name).swarms.register(name, bus="memory:bus", key=made_key(key or name))
        assert isinstance(found, SwarmRegistered), found
        return found

    def pair(self) -> tuple[Fleet, Fleet]:
        """Two swarms that allow each other, by pinned keys, and have read each other's entry."""
        prints = {name: self.register(name).fingerprint for name in ("shop", "bank")}
        for name, other in (("shop", "bank"), ("bank", "shop")):
            found = self.homes[name].swarms.allow(other, key=prints[other])
            assert isinstance(found, SwarmAllowed), found
            assert found.entry == 1
        return self.homes["shop"], self.homes["bank"]

    def sync(self, name: str, *, force: bool = True) -> SwarmSynced:
        found = self.homes[name].swarms.sync(force=force)
        assert isinstance(found, SwarmSynced), found
        return found

    def unsynced(self, name: str, *, force: bool = True) -> SwarmNotSynced:
        """A pass that could not do all."""
        found = self.homes[name].swarms.sync(force=force)
        assert isinstance(found, SwarmNotSynced), found
        assert not found
        return found

    def on_bus(self, key: str) -> bytes | None:
        """What stands on the bus."""
        item = self.bus.read(key)[key]
        return None if item is None else item.value

    def put_on_bus(self, key: str, value: bytes) -> None:
        """Write as anyone with the bus's credentials can."""
        self._numbers += 1
        self.tampered = True
        self.bus.commit(Txn(id=f"txn_{self._numbers}", puts=(Put(key, value),), quiet=True))

    def delete_on_bus(self, key: str) -> None:
        """Delete as anyone with the bus's credentials can."""
        self._numbers += 1
        self.tampered = True
        self.bus.commit(Txn(id=f"txn_{self._numbers}", deletes=(key,), quiet=True))


class Process:
    """A process of a home across a network, without a thread that would outlive it."""

    def __init__(self, swarms: Swarms, home: Store, agent: str) -> None:
        self.home = SameStore(home, sleep=swarms.clock.advance)
        self.bus = BusConnection(swarms.bus, sleep=swarms.clock.advance)
        self.context = Context(self.home, agent, "", Runner(self.home, clock=swarms.clock))
        swarms.connect_bus(self.context, self.bus)
        self.swarms = SwarmCalls(self.context)
        self.keys = KeyCalls(self.context)
        self.messages = MessageCalls(self.context)

    def run(self, op: Op[T]) -> T:
        return drive(op, self.home)

    def sync(self) -> SwarmSynced:
        done = self.run(self.swarms.sync(force=True))
        assert isinstance(done, SwarmSynced)
        return done


class CrashScene:
    """Shop and bank know each other; ``struck`` is a process of the bank that will fail."""

    def __init__(self, swarms: Swarms) -> None:
        self.swarms = swarms
        self.shop, self.bank = swarms.pair()
        self.prepare()
        self.struck = self.process("struck")

    def prepare(self) -> None:
        """What was before; for scenes that need more."""

    def process(self, agent: str) -> Process:
        return Process(self.swarms, self.bank.store, agent)

    def audited(self) -> None:
        for store in (self.bank.store, self.shop.store, self.swarms.bus):
            assert audit(store) == []


def struck_at_every_commit(
    make: Callable[[Swarms], S],
    place: str,
    faults: Sequence[Fault],
    act: Callable[[S], None],
    finish: Callable[[S, bool], None],
) -> int:
    """Let a process fail at each commit of an act; returns how many commits it had at least.

    ``finish`` gets the scene, and whether the process crashed.
    """
    folder, commits = os.environ[key_files.FOLDER], []
    with pytest.MonkeyPatch.context() as patch:
        for fault in faults:
            for commit in count():
                patch.setenv(key_files.FOLDER, f"{folder}/{fault}{commit}")
                with Swarms() as swarms:
                    scene = make(swarms)
                    struck = scene.struck.home if place == "home" else scene.struck.bus
                    struck.script([None] * commit + [fault])
                    crashed = False
                    try:
                        act(scene)
                    except Crash:
                        crashed = True
                    drawn = bool(struck.drawn)
                    finish(scene, crashed)
                if not crashed and not drawn:
                    commits.append(commit)
                    break
    return min(commits)


def paused_at_every_step(
    make: Callable[[Swarms], S], begin: Callable[[S], Op[T]]
) -> Iterator[tuple[S, Stepper[T]]]:
    """A new scene for each step at which a slow operation of the struck process may pause."""
    folder = os.environ[key_files.FOLDER]
    with pytest.MonkeyPatch.context() as patch:
        for before in count():
            patch.setenv(key_files.FOLDER, f"{folder}/{before}")
            with Swarms() as swarms:
                scene = make(swarms)
                slow = Stepper(begin(scene), scene.struck.home, swarms.clock)
                for _ in range(before):
                    slow.go()
                over = slow.done
                yield scene, slow
            if over:
                assert before > 5
                return


def write(home: Fleet, key: str, value: object) -> None:
    """Write an item of a home, with its entry in the record."""

    def deciding() -> DecideOp[None]:
        yield (key,)
        puts = (Write(key, value),)
        return Decision(outcome=None, verb="test.write", thing="swarm/test", puts=puts)

    drive(home.context.runner.change(deciding, Actor()), home.store)


def made_key(name: str) -> str:
    if name not in [file.name for file in key_files.listed()]:
        key_files.create(name)
    return name


def peer_of(home: Fleet, name: str) -> Peer:
    item = home.store.read(keys.peer(name))[keys.peer(name)]
    assert item is not None
    return decode_peer(item)


def floor_of(home: Fleet, name: str) -> Floor:
    item = home.store.read(keys.floor(name))[keys.floor(name)]
    assert item is not None
    return decode_floor(item)


def own_of(home: Fleet) -> OwnSwarm:
    item = home.store.read(keys.OWN_SWARM)[keys.OWN_SWARM]
    assert item is not None
    return decode_own(item)


def view_of(home: Fleet, name: str) -> SwarmView:
    """How ``swarm list`` shows a swarm."""
    found = home.swarms.list()
    assert found
    return next(each for each in found if each.swarm == name)


def met(first: Fleet, second: Fleet, bus: str) -> None:
    """Both register, allow each other and find each other's agents."""
    prints = {}
    for fleet, name in ((first, "shop"), (second, "bank")):
        found = fleet.swarms.register(name, bus=bus, key=made_key(name))
        assert isinstance(found, SwarmRegistered), found
        assert found.trouble == ""
        prints[name] = found.fingerprint
    for fleet, other in ((first, "bank"), (second, "shop")):
        allowed = fleet.swarms.allow(other, key=prints[other])
        assert isinstance(allowed, SwarmAllowed), allowed
        assert allowed.entry is not None
    for fleet, other in ((first, "bank"), (second, "shop")):
        answer = fleet.swarms.discover("translate")
        assert isinstance(answer, Discovered)
        assert [(each.swarm, each.agent) for each in answer] == [(other, f"{other}-bot")]
