"""A renewal that arrives too late: the store has the session, its owner gave it up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.faults.setup import Client, Setup, Way, settle

from interlock.errors import Lapsed, Lost
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTerms

WAYS: tuple[Way, ...] = ("blocking", "async")


def lost(setup: Setup, way: Way) -> Client:
    """A client that gave its session up though the store still has it."""
    proxy = setup.proxy()
    ada = setup.client("ada", proxy, way, ttl=setup.engine.least)
    lease = ada.fleet.context.session_lease
    proxy.hold_requests()
    settle(lambda: not lease.alive(), "the lease given up")
    ada.fleet.context.keeper.expire()  # as the watchdog of a block does
    proxy.release_requests()
    return ada


@pytest.mark.parametrize("way", WAYS)
def test_who_gave_its_session_up_takes_nothing_by_it(setup: Setup, way: Way) -> None:
    ada = lost(setup, way)
    with pytest.raises(Lapsed, match="connect again"):
        ada.acquire("merge")
    assert setup.client("bob").show("merge").state == "free"


@pytest.mark.parametrize("way", WAYS)
def test_a_block_whose_session_is_lost_does_not_begin(setup: Setup, way: Way) -> None:
    ada = lost(setup, way)

    async def enter(fleet: Any) -> None:
        async with fleet.lock("merge"):
            raise AssertionError("inside, with nothing to rely on")

    def enter_blocking(fleet: Any) -> None:
        with fleet.lock("merge", interrupt=True):
            raise AssertionError("inside, with nothing to rely on")

    with pytest.raises(Lapsed):
        ada.do(enter_blocking if way == "blocking" else enter)


def test_a_grant_that_was_lost_on_the_way_is_given_back(setup: Setup) -> None:
    ada = setup.client("ada")
    context = ada.fleet.context
    terms = GrantTerms(wait=0, ttl=None, max_hold=None, metadata=None, given=())

    def lapsing() -> None:
        taking = take(context, LockTarget("merge"), None, terms)
        answer: Any = None
        while True:
            answer = taking.send(answer).perform(context.store)
            context.session_lease.lose()  # it expires while the reply is on its way

    with pytest.raises(Lost):
        lapsing()
    assert setup.client("bob").show("merge").state == "free"
