"""A request that arrives when its sender has long settled what became of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.faults.setup import WAYS, Client, RequestFault, Setup, Way, settle, voids
from tests.processes import checks

from interlock.errors import OutcomeUnknown
from interlock.nouns.grants.lock import LockAcquired, LockBusy, LockReleased
from interlock.store import Log, Range, Store
from interlock.testing.servers.proxy import Proxy


def _picture(store: Store) -> tuple[object, ...]:
    """All that there is, and who lives; not when they renewed that, as they do at any time."""
    refs: list[Range | Log] = [Log(limit=10_000), Range("locks/"), Range("sessions/")]
    living = Range("live/")
    found = store.read(*refs, living).ranges
    alive = tuple((item.key, item.value) for item in found[living])
    return *((item.key, item.value, item.revision) for ref in refs for item in found[ref]), alive


def _release_late(setup: Setup, proxy: Proxy, *, after: int) -> None:
    """Release the held requests, and wait until the server has handled them."""
    proxy.release_requests()
    settle(lambda: setup.engine.handled() > after, "the late request")


@pytest.mark.parametrize("way", WAYS)
def test_an_acquire_that_arrives_late_is_refused(setup: Setup, way: Way) -> None:
    """Ada settles, acquires again and releases; then her first request finds the lock free."""
    store, proxy = setup.store(), setup.proxy()
    setup.client("bob").acquire("other")
    ada = setup.client("ada", proxy, way)
    strike = RequestFault(proxy, "hold", b'"verb":"lock.acquire"')
    got = setup.begin(ada.acquire, "merge")
    strike.wait()
    proxy.cut_once()
    assert isinstance(got.result(), LockAcquired)
    assert isinstance(ada.release("merge"), LockReleased)
    before = _picture(store)
    _release_late(setup, proxy, after=setup.engine.handled())
    assert _picture(store) == before
    assert store.read("locks/merge")["locks/merge"] is None
    assert voids(store) == 1
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_a_release_that_arrives_late_takes_nothing_from_the_next_holder(
    setup: Setup, way: Way
) -> None:
    store, proxy = setup.store(), setup.proxy()
    bob = setup.client("bob")
    ada = setup.client("ada", proxy, way)
    ada.acquire("merge")
    strike = RequestFault(proxy, "hold", b'"verb":"lock.release"')
    gave = setup.begin(ada.release, "merge")
    strike.wait()
    proxy.cut_once()
    assert isinstance(gave.result(), LockReleased)
    token = bob.acquire("merge").token
    before = _picture(store)
    _release_late(setup, proxy, after=setup.engine.handled())
    assert _picture(store) == before
    assert bob.show("merge").token == token
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_a_place_in_the_queue_that_is_asked_for_late_is_refused(setup: Setup, way: Way) -> None:
    store, proxy = setup.store(), setup.proxy()
    bob = setup.client("bob")
    ada = setup.client("ada", proxy, way)
    bob.acquire("merge")
    strike = RequestFault(proxy, "hold", b'"verb":"lock.wait"')
    got = setup.begin(ada.acquire, "merge", wait=0.3)
    strike.wait()
    proxy.cut_once()
    assert isinstance(got.result(), LockBusy)
    before = _picture(store)
    _release_late(setup, proxy, after=setup.engine.handled())
    assert _picture(store) == before
    assert bob.show("merge").waiters == ()
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_a_renewal_that_arrives_late_revives_nobody(setup: Setup, way: Way) -> None:
    store, proxy = setup.store(), setup.proxy()
    setup.client("bob")
    ada = setup.client("ada", proxy, way)
    live = f"live/{ada.fleet.session}"
    ada.beat()
    strike = RequestFault(proxy, "hold", live.encode())
    beat = setup.begin(ada.beat)
    strike.wait()
    proxy.cut_once()
    beat.result()
    ada.leave()
    before = _picture(store)
    _release_late(setup, proxy, after=setup.engine.handled())
    assert _picture(store) == before
    assert store.read(live)[live] is None
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_a_late_request_that_comes_before_its_void_has_happened_once(
    setup: Setup, way: Way
) -> None:
    store, first, second = setup.store(), setup.proxy(), setup.proxy()
    bob = setup.client("bob")
    bob.acquire("other")
    ada = setup.client("ada", first, way)
    strike = RequestFault(first, "hold", b'"verb":"lock.acquire"')
    got = setup.begin(ada.acquire, "merge")
    strike.wait()
    second.hold_requests()
    first.target = ("127.0.0.1", second.port)  # from here on: the void will be kept back there
    first.cut_once()
    settle(lambda: second.counts.held_requests, "the way of the void")
    assert not got.done()
    first.release_requests()
    settle(lambda: bob.show("merge").holder == "ada", "the late request")
    assert not got.done()
    second.release_requests()
    grant = got.result()
    assert isinstance(grant, LockAcquired)
    assert grant.token == bob.show("merge").token
    assert voids(store) == 0
    _one_grant(bob)
    checks.sound(setup.url)


def _one_grant(bob: Client) -> None:
    entries = bob.do(lambda fleet: fleet.record.log(limit=1000))
    assert [each.agent for each in entries if each.thing == "lock/merge"] == ["ada"]


TAKES: dict[str, Callable[[Any], Any]] = {
    "lock.acquire": lambda fleet: fleet.locks.acquire("x"),
    "sem.acquire": lambda fleet: fleet.semaphores.acquire("x", capacity=2),
    "task.claim": lambda fleet: fleet.tasks.claim("x"),
    "task.next": lambda fleet: fleet.tasks.next(),
}
THINGS = {"lock.acquire": "locks/x", "sem.acquire": "semaphores/x"}


def _lost_sight_of(setup: Setup, verb: str, way: Way) -> tuple[Client, Proxy, Proxy]:
    """Ada's request is on its way, she gave up on it, and the store is away from her.

    The first proxy keeps the request back; the second one, on the way of all that follows, is cut.
    """
    first, second = setup.proxy(), setup.proxy()
    setup.client("bob").do(lambda fleet: fleet.tasks.publish("x"))
    ada = setup.client("ada", first, way)
    ada.fleet.store.patience = 0.1
    strike = RequestFault(first, "hold", f'"verb":"{verb.replace("next", "claim")}"'.encode())
    got: Future[Any] = setup.begin(ada.do, TAKES[verb])
    strike.wait()
    second.cut()
    first.target = ("127.0.0.1", second.port)
    first.cut_once()
    with pytest.raises(OutcomeUnknown):
        got.result()
    ada.fleet.store.patience = 10.0
    return ada, first, second


def _held(store: Store, verb: str) -> bool:
    key = THINGS.get(verb, "tasks/x/owner")
    item = store.read(key)[key]
    return item is not None and b'"agent":"ada"' in item.value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", TAKES)
def test_a_request_that_arrives_after_its_caller_gave_up_grants_nothing(
    setup: Setup, verb: str, way: Way
) -> None:
    """The keeper places the void as soon as the store answers."""
    ada, first, second = _lost_sight_of(setup, verb, way)
    store = setup.store()
    second.heal()
    settle(lambda: not ada.fleet.context.grants.has_pending, "the keeper")
    assert voids(store) == 1
    _release_late(setup, first, after=setup.engine.handled())
    assert not _held(store, verb)
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", TAKES)
def test_a_request_that_commits_after_its_caller_gave_up_is_taken_back(
    setup: Setup, verb: str, way: Way
) -> None:
    ada, first, second = _lost_sight_of(setup, verb, way)
    store = setup.store()
    first.release_requests()
    settle(lambda: _held(store, verb), "the late request")
    second.heal()
    settle(lambda: not _held(store, verb), "the keeper")
    assert not ada.fleet.context.runner.settling.unsettled
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_the_next_change_is_sent_when_the_lost_request_can_no_longer_commit(
    setup: Setup, way: Way
) -> None:
    """A plain commit owes nothing, and yet it must not happen behind its caller's back."""
    first, second = setup.proxy(), setup.proxy()
    store = setup.store()
    ada = setup.client("ada", first, way)
    ada.fleet.store.patience = 0.1
    strike = RequestFault(first, "hold", b'"verb":"task.publish"')
    got = setup.begin(ada.do, lambda fleet: fleet.tasks.publish("x", {"n": 1}))
    strike.wait()
    second.cut()
    first.target = ("127.0.0.1", second.port)
    first.cut_once()
    with pytest.raises(OutcomeUnknown):
        got.result()
    second.heal()
    ada.fleet.store.patience = 10.0
    ada.do(lambda fleet: fleet.tasks.publish("x", {"n": 2}))
    assert voids(store) == 1
    _release_late(setup, first, after=setup.engine.handled())
    assert ada.do(lambda fleet: fleet.tasks.show("x")).data == {"n": 2}
    checks.sound(setup.url)


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["redis", "etcd"])
def test_a_gap_in_a_real_network_leaves_no_grant_that_its_session_does_not_know(
    engine: str, tmp_path: Path
) -> None:
    """The kernel delivers what it still has when the network comes back."""
    own = ["unshare", "--map-root-user", "--net"]
    if shutil.which("ip") is None or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("a network of one's own needs the tool ip and the right to make one")
    command = [
        *own,
        sys.executable,
        "-m",
        "tests.faults.network_gap",
        engine,
        str(tmp_path / "server"),
    ]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert told.stdout.split() == []
    assert "OutcomeUnknown" in told.stderr
