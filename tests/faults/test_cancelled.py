"""A task is cancelled while its commit is under way: it leaves no trace, in any order."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.faults.setup import PATIENCE, Client, RequestFault, Setup, settle
from tests.processes import checks

from interlock import aio


class Acquiring:
    """A task that acquires, and can be cancelled from outside of its event loop."""

    def __init__(self, setup: Setup, ada: Client) -> None:
        self._now = threading.Event()
        self._cancelled = threading.Event()
        self._run = setup.begin(ada.do, self._acquires)

    def cancel(self) -> None:
        self._now.set()
        assert self._cancelled.wait(PATIENCE)

    def was_cancelled(self) -> bool:
        """How it ended."""
        return bool(self._run.result(PATIENCE))

    async def _acquires(self, fleet: aio.Fleet) -> bool:
        task = asyncio.create_task(fleet.locks.acquire("merge", wait=30))
        await asyncio.to_thread(self._now.wait)
        task.cancel()
        await asyncio.sleep(0)
        self._cancelled.set()
        await asyncio.wait([task])
        return task.cancelled()


def test_a_grant_whose_answer_was_lost_is_given_back(setup: Setup) -> None:
    bob, proxy = setup.client("bob"), setup.proxy()
    ada = setup.client("ada", proxy, "async")
    strike = RequestFault(proxy, "lost", b'"verb":"lock.acquire"')
    acquiring = Acquiring(setup, ada)
    strike.wait()
    settle(lambda: bob.show("merge").holder == "ada", "the grant whose reply was lost")
    acquiring.cancel()
    strike.lose()
    assert acquiring.was_cancelled()
    settle(lambda: bob.show("merge").state == "free", "the lock is free again")
    checks.sound(setup.url, heads=2)


@pytest.mark.parametrize("verb", ["lock.acquire", "lock.wait"])
def test_a_request_that_arrives_after_its_task_is_gone_is_refused(setup: Setup, verb: str) -> None:
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("merge" if verb == "lock.wait" else "other")
    ada = setup.client("ada", proxy, "async")
    strike = RequestFault(proxy, "hold", f'"verb":"{verb}"'.encode())
    acquiring = Acquiring(setup, ada)
    strike.wait()
    acquiring.cancel()
    proxy.cut_once()
    assert acquiring.was_cancelled()
    proxy.release_requests()
    # The server need not answer: what follows the request may be its cancellation.
    settle(lambda: all(link.client for link in tuple(proxy._links)), "the end of the late link")
    shown = bob.show("merge")
    assert (shown.holder, shown.waiters) == ("bob" if verb == "lock.wait" else "", ())
    checks.sound(setup.url, heads=2)
