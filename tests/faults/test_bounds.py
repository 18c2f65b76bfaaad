"""A network that is cut, slow or half open, and a server that hangs.

A call is carried out right, or fails with one clear line in the promised time; no call hangs, and
the first call after the fault succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.faults.setup import WAYS, Client, Setup, settle
from tests.processes import checks

from interlock.errors import OutcomeUnknown, StoreAway, StoreTrouble
from interlock.nouns.grants.lock import LockAcquired, LockBusy, LockReleased
from interlock.store import LOG, VOID, Conflict, Put, void
from interlock.stores.network import PATIENCE, REPLY
from interlock.testing.conformance.place import txn

BUSY = 20.0
"""Seconds that a busy machine may add; who hangs takes longer."""
HASTE = 2.0
"""How long these clients try; the rest of the time is what a silence takes."""
ONE_MORE = REPLY + BUSY
"""The last question is asked when the patience is nearly over, and answered by silence."""


def _timed(call: Callable[..., Any], *arguments: Any, **terms: Any) -> tuple[float, Any]:
    """How long it took, and what came of it."""
    began = time.monotonic()
    try:
        found = call(*arguments, **terms)
    except StoreTrouble as trouble:
        found = trouble
    return time.monotonic() - began, found


def test_calls_into_the_void_end_in_time_and_work_at_once_when_it_is_over(setup: Setup) -> None:
    """Both directions are swallowed; what every call may cost is measured."""
    bob, proxy, store = setup.client("bob"), setup.proxy(), setup.store()
    bob.acquire("taken")

    def client(agent: str) -> tuple[Client, ...]:
        both = tuple(setup.client(f"{agent}-{way}", proxy, way, ttl=90) for way in WAYS)
        for each in both:
            each.fleet.store.patience = HASTE
            each.fleet.context.no_retry = True  # else waits would go on
        return both

    readers, takers, givers, waiters, watchers = map(
        client, ("reader", "taker", "giver", "waiter", "watcher")
    )
    for giver in givers:
        assert isinstance(giver.acquire(giver.fleet.session), LockAcquired)
    watches = [each.fleet.store.watch("locks/", store.read().revision) for each in watchers]
    asleep = [each.falls_asleep() for each in waiters]
    waits = [setup.begin(_timed, each.acquire, "taken", wait=80) for each in waiters]
    settle(lambda: all(sleeps() for sleeps in asleep), "waiters")
    proxy.half_open()
    reads = [setup.begin(_timed, each.show, "taken") for each in readers]
    takes = [setup.begin(_timed, each.acquire, "free") for each in takers]
    gives = [setup.begin(_timed, each.release, each.fleet.session) for each in givers]
    sees = [
        setup.begin(_timed, each.take, watch, None)
        for each, watch in zip(watchers, watches, strict=True)
    ]
    for took, found in _results(reads):
        assert isinstance(found, StoreAway), found
        assert took < HASTE + ONE_MORE
    for took, found in _results(sees) + _results(waits):
        assert isinstance(found, StoreAway), found
        assert took < 2 * REPLY + HASTE + ONE_MORE
    for took, found in _results(takes) + _results(gives):
        assert isinstance(found, OutcomeUnknown | StoreAway), found
        assert "\n" not in str(found)
        assert took < REPLY + HASTE + ONE_MORE
    proxy.heal()
    for reader in readers:
        took, found = _timed(reader.show, "taken")
        assert took < BUSY
        assert found.holder == "bob"
    # A grant without a waiting caller is released, and no thread is left.
    settle(lambda: bob.show("free").state == "free", "the grant is released")
    settle(lambda: bob.show("taken").waiters == (), "who waited has left")
    for giver in givers:
        assert bob.show(giver.fleet.session).state in ("free", "held")
        took, _ = _timed(giver.release, giver.fleet.session)
        assert took < BUSY
        assert bob.show(giver.fleet.session).state == "free"
    checks.sound(setup.url, heads=10)


def _results(futures: list[Future[tuple[float, Any]]]) -> list[tuple[float, Any]]:
    return [future.result(80) for future in futures]


def test_a_slow_way_is_slow_and_nothing_else(setup: Setup) -> None:
    """200 ms in each direction, for a whole session's life."""
    bob = setup.client("bob")

    def lives(way: Any, lock: str) -> None:
        proxy = setup.proxy()
        ada = setup.client("ada", proxy, way)
        proxy.delay(0.2)
        took, got = _timed(ada.acquire, lock)
        assert isinstance(got, LockAcquired)
        assert 0.4 <= took < 0.4 * 2 + BUSY
        assert isinstance(bob.acquire(lock), LockBusy)
        waits = setup.begin(bob.acquire, lock, wait=30)
        settle(lambda: bob.show(lock).waiters == ("bob",), "a waiter")
        assert isinstance(ada.release(lock), LockReleased)
        token = waits.result().token
        assert token > got.token
        waits = setup.begin(ada.acquire, lock, wait=30)
        settle(lambda: bob.show(lock).waiters == ("ada",), "a waiter")
        bob.release(lock, token=token)
        assert waits.result().token > token
        assert ada.fleet.trouble == ""
        assert ada.leave().released == (lock,)

    for life in [setup.begin(lives, way, f"lock-{way}") for way in WAYS]:
        life.result(60)
    checks.sound(setup.url, heads=4)


def test_a_cut_in_the_middle_of_everything_is_survived(setup: Setup) -> None:
    """Connections are reset and refused while some work and others wait."""
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("taken")
    busy = [setup.client(f"busy-{way}", proxy, way) for way in WAYS]
    idle = [setup.client(f"idle-{way}", proxy, way) for way in WAYS]
    waits = [setup.begin(each.acquire, "taken", wait=50) for each in idle]
    settle(lambda: len(bob.show("taken").waiters) == 2, "waiters")
    tokens: dict[int, list[int]] = {0: [], 1: []}
    rounds = 0

    def take_in_turns(number: int) -> None:
        while rounds < 4:
            got = busy[number].acquire(f"lock-{number}")
            assert isinstance(got, LockAcquired)
            tokens[number].append(got.token or 0)
            assert isinstance(busy[number].release(f"lock-{number}"), LockReleased)

    work = [setup.begin(take_in_turns, number) for number in tokens]
    for rounds in range(1, 4):
        known = [len(some) for some in tokens.values()]
        settle(
            lambda known=known: all(  # type: ignore[misc]
                len(now) > before + 3 for now, before in zip(tokens.values(), known, strict=True)
            ),
            "some work",
        )
        proxy.cut()
        settle(lambda: all(each.fleet.trouble for each in busy), "trouble")
        if rounds == 3:
            bob.release("taken")
        proxy.heal()
    rounds = 4
    for each in work:
        each.result(60)
    settle(lambda: any(wait.done() for wait in waits), "the first who waited")
    first = next(client for client, wait in zip(idle, waits, strict=True) if wait.done())
    first.release("taken")
    grants = [wait.result(30) for wait in waits]
    assert all(isinstance(grant, LockAcquired) for grant in grants)
    for some in tokens.values():
        assert some == sorted(set(some))
    assert all(each.fleet.trouble == "" for each in busy)
    checks.sound(setup.url, heads=2)


def test_a_frozen_server_is_noticed_by_everybody_and_does_no_harm_when_it_goes_on(
    rough: Setup,
) -> None:
    """A late commit counts once, or was settled before."""
    clients = [rough.client(f"ada-{way}", None, way, ttl=60) for way in WAYS]
    others = [rough.client(f"bob-{way}", None, way, ttl=60) for way in WAYS]
    thirds = [rough.client(f"cleo-{way}", None, way, ttl=60) for way in WAYS]
    for each in (*clients, *others):  # their connections stand
        each.show("merge")
        each.fleet.store.patience = 3 * BUSY  # so that they outlast it, however late it is over
    watches = [each.fleet.store.watch("locks/", each.read().revision) for each in others]
    for each, watch in zip(others, watches, strict=True):
        assert each.take(watch, 0.1) == []  # from here on they listen
    sees = [rough.begin(each.take, watch, 40) for each, watch in zip(others, watches, strict=True)]
    raw = [txn(Put(f"raw/{number}", b"")) for number, _ in enumerate(thirds)]
    began = time.monotonic()
    rough.server.freeze()
    commits = [
        rough.begin(_timed, each.commit, change) for each, change in zip(thirds, raw, strict=True)
    ]
    gets = [rough.begin(_timed, each.acquire, each.fleet.session) for each in clients]
    for took, found in _results(commits):
        assert isinstance(found, OutcomeUnknown), found
        assert took < 5 + BUSY
    settle(lambda: all(each.fleet.trouble for each in (*clients, *others)), "trouble")
    noticed = time.monotonic() - began
    assert noticed < 5 + BUSY, noticed
    assert not any(future.done() for future in (*gets, *sees))
    rough.server.thaw()
    grants = []
    for took, got in _results(gets):
        assert took < 2 * REPLY + PATIENCE + BUSY
        assert isinstance(got, LockAcquired), got
        grants.append(got.token)
    seen = [change.revision for changes in (each.result(30) for each in sees) for change in changes]
    assert set(seen) <= set(grants)
    for client, change in zip(thirds, raw, strict=True):
        (put,) = change.puts
        answer = client.commit(void(change.id))
        happened = isinstance(answer, Conflict) and _stands(answer, LOG + change.id)
        assert (client.read(put.key)[put.key] is not None) == happened
    for client, token in zip(clients, grants, strict=True):
        assert client.show(client.fleet.session).token == token
    entries = clients[0].do(lambda fleet: fleet.record.log(limit=1000))
    assert sum(each.verb == "lock.acquire" for each in entries) == len(grants)


def _stands(answer: Conflict, entry: str) -> bool:
    item = answer.items[entry]
    return item is not None and item.value != VOID
