"""Work that is finished while the store is away is kept, in whatever form it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.processes.helpers import until
from tests.processes.lock_programs import opened

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.core.safe_text import foreign
from interlock.errors import Lost, OutcomeUnknown, StoreAway, StoreTrouble
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.task_view import TaskView
from interlock.stores.sqlite.writer import WriteQueue
from interlock.testing.servers import EtcdServer, GitHttpServer, RedisServer


class HeldFile:
    """A file whose turn to write another process keeps, as one that is stopped does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: WriteQueue | None = None

    def url(self, _name: str) -> str:
        return str(self._path)

    def kill(self) -> None:
        """Keep the turn."""
        self._queue = WriteQueue(f"{self._path}-bells")
        self._queue.enter()

    def restart(self) -> None:
        """Pass it on."""
        if self._queue is not None:
            self._queue.close()


Engine = RedisServer | EtcdServer | GitHttpServer | HeldFile
AnyClaim = Claim | AsyncClaim
Finish = Callable[[AnyClaim], None]
PATIENCE = 60.0
TTL = 120.0


def loop(fleet: interlock.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False)
    for claim in worker:
        worker.stop()
        with claim:
            finish(claim)


def failing(fleet: interlock.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False)
    for claim in worker:
        worker.stop()
        with claim:
            finish(claim)
            raise ValueError("it does not work")


def hold(fleet: interlock.Fleet, finish: Finish) -> None:
    with fleet.tasks.hold() as claim:
        finish(claim)


def hold_after_a_call(fleet: interlock.Fleet, finish: Finish) -> None:
    with fleet.tasks.hold() as claim:
        finish(claim)
        with pytest.raises(StoreTrouble):
            claim.complete("of the call")


def serve(fleet: interlock.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False)

    def handle(claim: Claim) -> str:
        finish(claim)
        worker.stop()
        return "done"

    worker.serve(handle)


def threads(fleet: interlock.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False, concurrency=2)

    def handle(claim: Claim) -> str:
        finish(claim)
        worker.stop()
        return "done"

    worker.serve(handle)


async def aio_loop(fleet: aio.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False)
    async for claim in worker:
        worker.stop()
        async with claim:
            finish(claim)


async def aio_hold(fleet: aio.Fleet, finish: Finish) -> None:
    async with fleet.tasks.hold() as claim:
        finish(claim)


async def aio_program(fleet: aio.Fleet, finish: Finish) -> None:
    """As ``task run`` does."""
    async with fleet.tasks.hold() as claim:
        finish(claim)
        assert await claim.conclude({"status": 0})


async def aio_failed_program(fleet: aio.Fleet, finish: Finish) -> None:
    async with fleet.tasks.hold() as claim:
        finish(claim)
        assert await claim.conclude_failed("it ended with status 1")


async def aio_serve(fleet: aio.Fleet, finish: Finish) -> None:
    worker = fleet.tasks.work(stop_on_signals=False, concurrency=3)

    async def handle(claim: AsyncClaim) -> str:
        finish(claim)
        worker.stop()
        return "done"

    await worker.serve(handle)


BLOCKING = (loop, failing, hold, hold_after_a_call, serve, threads)
ASYNC = (aio_loop, aio_hold, aio_program, aio_failed_program, aio_serve)
FAILS = (failing, aio_failed_program)


class Outage:
    """A server that dies as the work is finished, and comes back when its end has met trouble."""

    def __init__(self, server: Engine) -> None:
        self._server = server
        self.claims: list[AnyClaim] = []

    def finish(self, claim: AnyClaim) -> None:
        """The work is finished, in the moment in which the store is lost."""
        self.claims.append(claim)
        self._server.kill()

    @contextmanager
    def over_after_trouble(self) -> Iterator[None]:
        def watch() -> None:
            until(lambda: self.claims and self.claims[0].troubled)
            self._server.restart()

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        thread.join(PATIENCE)


def run(form: Callable[..., object], url: str, finish: Finish) -> None:
    """Work in this form until its end."""
    store = opened(url, patience=0.3)
    if form in BLOCKING:
        with closing(store), interlock.connect(agent="ada", store=store, ttl=TTL) as fleet:
            form(fleet, finish)
        return

    async def main(body: Callable[[aio.Fleet, Finish], Awaitable[None]]) -> None:
        try:
            async with await aio.connect(agent="ada", store=store, ttl=TTL) as fleet:
                await body(fleet, finish)
        finally:
            await store.close_async()

    asyncio.run(asyncio.wait_for(main(form), PATIENCE))  # type: ignore[arg-type]


@pytest.mark.proof_on("etcd")
@pytest.mark.parametrize("form", [*BLOCKING, *ASYNC], ids=lambda form: form.__name__)
def test_work_that_is_finished_in_an_outage_is_not_done_again(
    server: Engine, form: Callable[..., object]
) -> None:
    work_is_done_once(server, form)


@pytest.mark.parametrize("form", [*BLOCKING, *ASYNC], ids=lambda form: form.__name__)
def test_work_that_is_finished_while_a_file_is_held_up_is_not_done_again(
    tmp_path: Path, form: Callable[..., object]
) -> None:
    work_is_done_once(HeldFile(tmp_path / "store.db"), form)


def work_is_done_once(server: Engine, form: Callable[..., object]) -> None:
    url, outage = server.url("finished"), Outage(server)
    with interlock.connect(url, agent="boss", join=False) as boss:
        boss.tasks.publish("t", backoff=0)
    with outage.over_after_trouble():
        run(form, url, outage.finish)
    with interlock.connect(url, agent="boss", join=False) as boss:
        shown = boss.tasks.show("t")
        assert isinstance(shown, TaskView)
        ended = [line for line in boss.record.log(limit=100) if line.thing == "task/t"]
    (claim,) = outage.claims
    if form in FAILS:
        assert (shown.state, shown.attempts, claim.ended) == ("pending", 1, "failed")
    else:
        assert (shown.state, shown.attempts, claim.ended) == ("complete", 0, "completed")
    assert len([line for line in ended if line.verb == "task.claim"]) == 1
    assert "task.release" not in {line.verb for line in ended}


@pytest.mark.proof_on("etcd")
@pytest.mark.parametrize("form", [hold, aio_hold], ids=lambda form: form.__name__)
def test_the_end_of_a_block_waits_until_the_claim_is_lost_and_no_longer(
    server: Engine, form: Callable[..., object]
) -> None:
    url, outage = server.url("lost"), Outage(server)
    with interlock.connect(url, agent="boss", join=False) as boss:
        boss.tasks.publish("t", backoff=0)

    def lapse() -> None:
        until(lambda: outage.claims and outage.claims[0].troubled)
        lease = outage.claims[0].context.session_lease
        assert lease is not None
        lease.ends = -1e9

    thread = threading.Thread(target=lapse)
    thread.start()
    with pytest.raises(Lost, match=f"task {foreign('t')} "):
        run(form, url, outage.finish)
    thread.join(PATIENCE)
    server.restart()


@pytest.mark.proof_on("etcd")
def test_work_that_was_called_lost_is_not_completed_later(server: Engine) -> None:
    """The store is back when the error leaves the block, and would still take the end."""
    url, outage = server.url("lost"), Outage(server)
    with interlock.connect(url, agent="boss", join=False) as boss:
        boss.tasks.publish("t", backoff=0)

    async def program(fleet: aio.Fleet, finish: Finish) -> None:
        async with fleet.tasks.hold() as claim:
            finish(claim)
            lease = claim.context.session_lease
            assert lease is not None
            lease.ends = -1e9
            try:
                await claim.conclude()
            finally:
                server.restart()

    with pytest.raises(Lost):
        run(program, url, outage.finish)
    with interlock.connect(url, agent="boss", join=False) as boss:
        verbs = {line.verb for line in boss.record.log(thing="task/t")}
    assert "task.complete" not in verbs


@pytest.mark.proof_on("etcd")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_plain_call_says_whether_it_may_have_happened(
    server: RedisServer | EtcdServer | GitHttpServer, *, frozen: bool
) -> None:
    """A server that is dead gets nothing; one that is frozen may carry it out later."""
    if frozen and isinstance(server, GitHttpServer):
        pytest.skip("git sends nothing to a server that did not show its branch")
    url = server.url("plain")
    with (
        closing(opened(url, patience=0.3)) as store,
        interlock.connect(agent="ada", store=store, ttl=TTL) as ada,
    ):
        ada.tasks.publish("t", backoff=0)
        claimed = ada.tasks.next()
        assert isinstance(claimed, Claimed)
        if frozen:
            server.freeze()
        else:
            server.kill()
            with pytest.raises(StoreTrouble):
                ada.tasks.show("t")  # from here on the connection is known to be broken
        with pytest.raises(OutcomeUnknown if frozen else StoreAway):
            ada.tasks.complete("t", token=claimed.token)
        if frozen:
            server.thaw()
        else:
            server.restart()
        with interlock.connect(url, agent="boss", join=False) as boss:
            shown = boss.tasks.show("t")
            assert isinstance(shown, TaskView)
            assert shown.state in ({"running", "complete"} if frozen else {"running"})
