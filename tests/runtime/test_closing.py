from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import until_asleep

import interlock
from interlock import aio
from interlock.errors import BadInput, Lapsed, StoreClosed
from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.store import Store
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore


def test_closing_ends_though_the_keeper_was_woken_at_that_very_moment(tmp_path: Path) -> None:
    """Python 3.11 forgets that a task was cancelled if what it waits for happens just then."""

    async def open_and_close(number: int) -> None:
        fleet = await aio.connect(str(tmp_path / f"{number}.db"), agent="ada")
        await fleet.locks.acquire("merge")
        fleet._nudge.set()
        await asyncio.wait_for(fleet.close(), 20)

    async def main() -> None:
        for number in range(5):
            await open_and_close(number)

    asyncio.run(main())


def test_a_program_that_ends_without_closing_ends_though_the_keeper_was_woken_just_then() -> None:
    async def main() -> bool:
        fleet = await aio.connect(agent="ada", store=MemoryStore())
        await asyncio.sleep(0)
        keeper = fleet._tasks[0]
        fleet._nudge.set()
        keeper.cancel()  # once, as asyncio.run does
        await asyncio.wait({keeper}, timeout=5)
        ended = keeper.done()
        await fleet.close()
        return ended

    assert asyncio.run(main())


def interrupted(_: ClientHousekeeping, __: Actor) -> Op[None]:
    yield from ()
    raise KeyboardInterrupt


def test_who_is_interrupted_at_its_end_lets_go_of_the_store_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientHousekeeping, "run", interrupted)
    fleet = interlock.connect("memory:", agent="ada", join=False)
    fleet.context.housekeeping.due = True
    with pytest.raises(KeyboardInterrupt):
        fleet.close()
    with pytest.raises(StoreClosed):
        fleet.store.read()


def test_who_is_cancelled_at_its_end_lets_go_of_the_store_all_the_same() -> None:
    async def main() -> None:
        fleet = await aio.connect("memory:", agent="ada")
        closing = asyncio.create_task(fleet.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        with pytest.raises(StoreClosed):
            fleet.store.read()

    asyncio.run(main())


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store("memory:" if request.param == "memory" else str(tmp_path / "store.db"))
    yield opened
    opened.close()


def test_a_client_closes_no_store_that_its_caller_opened(store: Store) -> None:
    with interlock.connect(agent="ada", store=store) as first:
        interlock.connect(agent="bea", store=first.store).close()
        assert isinstance(first.locks.acquire("merge"), interlock.Acquired)
    assert store.read().revision > 0


def test_an_async_client_closes_no_store_that_its_caller_opened(store: Store) -> None:
    async def main() -> None:
        async with await aio.connect(agent="ada", store=store) as first:
            await (await aio.connect(agent="bea", store=first.store)).close()
            assert isinstance(await first.locks.acquire("merge"), interlock.Acquired)

    asyncio.run(main())
    assert store.read().revision > 0


REFUSED = (
    {"session": "ses_00000000000000000000000000000000"},
    {"agent": "bea", "key": "no such key"},
)


@pytest.mark.parametrize("options", REFUSED)
def test_a_client_that_is_refused_closes_no_store_that_its_caller_opened(
    store: Store, options: dict[str, str]
) -> None:
    async def connect_async() -> None:
        await aio.connect(store=store, **options)  # type: ignore[arg-type]

    with interlock.connect(agent="ada", store=store) as first:
        with pytest.raises((BadInput, Lapsed)):
            interlock.connect(store=store, **options)  # type: ignore[arg-type]
        with pytest.raises((BadInput, Lapsed)):
            asyncio.run(connect_async())
        assert isinstance(first.locks.acquire("merge"), interlock.Acquired)


def test_a_closed_client_is_refused_though_others_go_on_with_its_store(store: Store) -> None:
    fleet = interlock.connect(agent="ada", store=store, join=False)
    events = fleet.tasks.subscribe()
    fleet.close()
    calls: tuple[Callable[[], object], ...] = (
        lambda: fleet.locks.acquire("merge", ttl=30),
        fleet.tasks.list,
        lambda: events.take(0),
    )
    for call in calls:
        with pytest.raises(StoreClosed, match="this client was closed"):
            call()
    assert fleet.store is store


def test_the_end_of_a_client_ends_what_waits_in_other_threads(store: Store) -> None:
    raised: list[type[BaseException]] = []

    def run(call: Callable[[], object]) -> None:
        with pytest.raises((StoreClosed, Lapsed)) as found:
            call()
        raised.append(found.type)

    with interlock.connect(agent="bea", store=store) as other:
        other.locks.acquire("merge")
        fleet = interlock.connect(agent="ada", store=store)
        events = fleet.tasks.subscribe()
        calls: tuple[Callable[[], object], ...] = (
            lambda: fleet.locks.acquire("merge", wait=600),
            lambda: fleet.tasks.next(wait=600),
            events.take,
            lambda: list(fleet.observe()),
        )
        heard = fleet.tasks.subscribe(callback=print)
        assert heard._thread is not None
        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            until_asleep(thread)
        fleet.close()
        for thread in (*threads, heard._thread):
            thread.join(60)
            assert not thread.is_alive()
        assert len(raised) == len(calls)


def test_a_client_is_closed_in_its_own_event_loop() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    fleet = asyncio.run_coroutine_threadsafe(aio.connect("memory:", agent="ada"), loop).result(60)
    with pytest.raises(
        BadInput, match=r"close it there, as with asyncio\.run_coroutine_threadsafe"
    ):
        asyncio.run(fleet.close())
    assert not fleet.closed
    asyncio.run_coroutine_threadsafe(fleet.close(), loop).result(60)
    asyncio.run(fleet.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_client_of_a_loop_that_was_closed_can_be_closed_in_another(store: Store) -> None:
    loop = asyncio.new_event_loop()
    fleet = loop.run_until_complete(aio.connect(agent="ada", store=store, join=False))
    loop.close()
    asyncio.run(fleet.close())
    assert fleet.closed
