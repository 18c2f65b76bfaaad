"""What fails in the background is said once, and keeps nothing else from being done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.helpers import until

import interlock
from interlock import aio
from interlock.core import keys
from interlock.errors import StoreDamaged, StoreFull
from interlock.nouns.grants.handover import PendingRelease
from interlock.nouns.grants.held_grant import HeldPools, take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.tasks.held_claim import HeldClaim, claim_for_block
from interlock.runtime.keeper import Lease
from interlock.runtime.setbacks import FIRST, LONGEST
from interlock.steps import Op
from interlock.store import Put, Store, Txn
from interlock.testing.testbed import Client, Testbed

TTL = 60.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    near = request.param == "near"
    return stage.client("ada", ttl=TTL) if near else stage.remote("ada", ttl=TTL)


def damage(store: Store, key: str) -> None:
    store.commit(Txn(id=f"damage {key}", puts=(Put(key, b"garbage"),), quiet=True))


def session_lease(client: Client) -> Lease:
    lease = client.context.session_lease
    assert lease is not None
    return lease


def lock(client: Client, name: str, on_lost: Callable[[], None] | None = None) -> HeldPools:
    terms = GrantTerms(wait=0, ttl=None, max_hold=None, metadata=None, given=())
    return client.run(take(client.context, LockTarget(name), on_lost, terms))


def pending(client: Client, name: str, error: Exception | None = None) -> list[str]:
    """Have the keeper release something, which may fail; each attempt is in the list."""
    attempts: list[str] = []

    def run() -> Op[None]:
        attempts.append(name)
        yield from ()
        if error is not None:
            raise error

    client.context.grants.add_pending(PendingRelease(name, f"lock/{name}", run))
    return attempts


def beat(stage: Testbed, client: Client, after: float = 0.0) -> None:
    stage.clock.advance(after)
    client.run(client.context.keeper.beat())
    client.context.keeper._setbacks.end_pass()


def test_a_damaged_claim_is_lost_and_all_else_goes_on(
    stage: Testbed, ada: Client, caplog: pytest.LogCaptureFixture
) -> None:
    ada.run(ada.tasks.publish("bad"))
    claim: HeldClaim = ada.run(claim_for_block(ada.context, "bad", ttl=None, wait=0))
    held = lock(ada, "merge")
    damage(stage.store, keys.owner("bad"))
    released = pending(ada, "other")
    ada.context.housekeeping.due = True
    ends = session_lease(ada).ends
    beat(stage, ada, after=TTL / 2)
    assert claim.lost(), "nobody knows any more whose it is"
    assert not held.lost()
    assert session_lease(ada).ends > ends
    assert released == ["other"]
    assert not ada.context.grants.pending
    assert not ada.context.housekeeping.due
    assert not ada.context.keeper.trouble
    assert not caplog.messages


def test_a_release_that_fails_is_said_once_and_keeps_no_other_waiting(
    stage: Testbed, ada: Client, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = ada.context.keeper
    failing = pending(ada, "bad", StoreDamaged("it does not read as a lock"))
    also = pending(ada, "worse", ValueError("unforeseen"))
    released = pending(ada, "good")
    for _ in range(4):
        ada.run(keeper.run_due())
        stage.clock.advance(LONGEST)
    assert released == ["good"]
    assert min(len(failing), len(also)) > 1, "they are tried again"
    said = "pending releases failed, and will be tried again: it does not read as a lock"
    assert caplog.messages == [said]
    assert keeper.trouble == "pending releases: it does not read as a lock"
    ada.context.grants.pending.clear()
    stage.clock.advance(TTL / 2)
    ada.run(keeper.run_due())
    assert not keeper.trouble


def test_on_a_full_store_one_release_is_tried_at_a_time(stage: Testbed, ada: Client) -> None:
    attempts = [pending(ada, f"n{number}", StoreFull("no room")) for number in range(5)]
    ada.run(ada.context.keeper.run_due())
    assert sum(map(len, attempts)) == 1, "each takes the turn of another process"
    for _ in range(9):
        stage.clock.advance(LONGEST)
        ada.run(ada.context.keeper.run_due())
    assert all(attempts), "each has its turn"


def test_what_fails_is_tried_again_after_pauses_that_grow(stage: Testbed, ada: Client) -> None:
    keeper = ada.context.keeper
    pending(ada, "bad", StoreDamaged("it does not read as a lock"))
    pauses = []
    for _ in range(6):
        ada.run(keeper.run_due())
        pauses.append(round(keeper.wait(), 3))
        stage.clock.advance(keeper.wait())
    assert pauses[0] >= FIRST
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST


def test_a_renewal_that_failed_is_tried_again_before_its_lease_ends(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=0.5)
    keeper = ada.context.keeper
    pending(ada, "bad", StoreDamaged("it does not read as a lock"))
    for _ in range(8):
        ada.run(keeper.run_due())
        stage.clock.advance(keeper.wait())
    assert session_lease(ada).alive()


def test_a_listener_that_raises_keeps_no_other_from_being_notified(
    stage: Testbed, ada: Client, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail() -> None:
        raise ValueError("unforeseen")

    held = [lock(ada, "first", fail), lock(ada, "second", lambda: told.append("second"))]
    for name in ("first", "second"):
        damage(stage.store, keys.lock(name))
    released = pending(ada, "other")
    beat(stage, ada)
    assert [each.lost() for each in held] == [True, True]
    assert (told, released) == (["second"], ["other"])
    assert caplog.text.count("ValueError: unforeseen") == 1
    listeners = session_lease(ada).listeners
    listeners[:] = [fail, lambda: told.append("session")]
    stage.clock.advance(TTL)
    ada.context.keeper.expire()
    assert told[-1] == "session"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def test_a_loop_of_a_client_begins_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    failed, went_on = [0], threading.Event()

    def work(_: Callable[[], bool]) -> Op[None]:
        yield from ()
        failed[0] += 1
        if failed[0] <= 2:
            raise ValueError("unforeseen")
        went_on.set()

    with interlock.connect(url, agent="ada") as fleet:
        fleet.keep_doing("a-loop", work)
        assert went_on.wait(60)
    assert caplog.messages == ["a-loop failed, and begins again: ValueError('unforeseen')"]


def test_a_loop_of_an_async_client_begins_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    failed = [0]

    def work(_: Callable[[], bool]) -> Op[None]:
        yield from ()
        failed[0] += 1
        if failed[0] <= 2:
            raise ValueError("unforeseen")

    async def main() -> None:
        async with await aio.connect(url, agent="ada") as fleet:
            fleet.keep_doing("a-loop", work)
            await fleet._doing["a-loop"]

    asyncio.run(main())
    assert failed == [3]
    assert caplog.messages == ["a-loop failed, and begins again: ValueError('unforeseen')"]


def test_a_listener_for_events_that_meets_damage_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[object] = []
    with (
        interlock.connect(url, agent="ada") as fleet,
        fleet.tasks.subscribe(callback=heard.append) as events,
    ):
        take_next, failing = events.take, threading.Event()

        def take(timeout: float | None = None) -> object:
            if not failing.is_set():
                failing.set()
                raise ValueError("unforeseen")
            return take_next(timeout)

        monkeypatch.setattr(events, "take", take)
        assert failing.wait(60)
        fleet.tasks.publish("build")
        until(lambda: heard)
    assert "interlock-events failed, and begins again: ValueError('unforeseen')" in caplog.messages
