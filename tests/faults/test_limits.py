"""A call has one limit while the engine does not answer, however many requests it makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.setup import WAYS, Client, Setup, Way, settle

from interlock.errors import OutcomeUnknown, StoreAway, StoreTrouble
from interlock.steps import UNDER_WAY
from interlock.stores.network import REPLY

BUSY = 3.0
"""Seconds that a busy machine may add; each further request would take longer."""
PATIENCE = REPLY + 1.0
"""A request is given up, and there is hardly time for another one."""
WAIT = 2.0


def _timed(call: Callable[..., Any], *arguments: Any, **terms: Any) -> tuple[float, Any]:
    began = time.monotonic()
    try:
        found = call(*arguments, **terms)
    except StoreTrouble as trouble:
        found = trouble
    return time.monotonic() - began, found


def _clients(setup: Setup, proxy: Any, way: Way, *names: str) -> list[Client]:
    clients = [setup.client(f"{name}-{way}", proxy, way, ttl=90) for name in names]
    for each in clients:
        each.show("taken")
    return clients


@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_within_its_patience_settling_included(setup: Setup, way: Way) -> None:
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("taken")
    taker, giver, reader = _clients(setup, proxy, way, "taker", "giver", "reader")
    giver.acquire("held")
    for each in (taker, giver, reader):
        each.fleet.store.patience = PATIENCE
    proxy.half_open()
    calls = [
        setup.begin(_timed, taker.acquire, "free"),
        setup.begin(_timed, giver.release, "held"),
        setup.begin(_timed, reader.show, "taken"),
    ]
    for call in calls:
        took, found = call.result(80)
        assert isinstance(found, OutcomeUnknown | StoreAway), found
        assert took < PATIENCE + BUSY, found
    proxy.heal()
    settle(lambda: bob.show("free").state == "free", "the grant is released")


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_ends_at_its_limit_or_with_the_request_that_is_under_way(
    setup: Setup, way: Way
) -> None:
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("taken")
    early, late, queued = _clients(setup, proxy, way, "early", "late", "queued")
    asleep = queued.falls_asleep()
    waits = setup.begin(_timed, queued.acquire, "taken", wait=REPLY + WAIT)
    settle(asleep, "a waiter")
    proxy.half_open()
    first = setup.begin(_timed, early.acquire, "taken", wait=WAIT)
    settle(lambda: late.fleet.trouble and early.fleet.trouble, "trouble")
    second = setup.begin(_timed, late.acquire, "taken", wait=WAIT)
    for call, limit in ((first, WAIT), (second, WAIT), (waits, REPLY + WAIT)):
        took, found = call.result(80)
        assert isinstance(found, OutcomeUnknown | StoreAway), found
        assert took < limit + UNDER_WAY + BUSY, found
    proxy.heal()
    settle(lambda: bob.show("taken").waiters == (), "who waited has left")


@pytest.mark.parametrize("way", WAYS)
def test_an_operation_that_goes_on_after_an_outage_waits_for_slow_answers_again(
    setup: Setup, way: Way
) -> None:
    """Its time was over; the engine is back, and takes longer than the last request had."""
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("taken")
    (waiter,) = _clients(setup, proxy, way, "waiter")
    waiter.fleet.store.patience = 2.0
    proxy.half_open()
    waits = setup.begin(waiter.acquire, "taken", wait=60)
    settle(lambda: waiter.fleet.trouble, "trouble")
    time.sleep(1.0)  # it has given up once by now, as a silence takes longer than its patience
    bob.release("taken")
    proxy.heal()
    proxy.delay(0.3)
    assert waits.result(60).token
