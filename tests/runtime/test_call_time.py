"""All requests of a call share its time, those of its parts included, and of no other call."""

from __future__ import annotations

import asyncio

from interlock.steps import CALL, CallTime, InThread, On, Op, drive, drive_apart, drive_async


def _time() -> Op[CallTime | None]:
    yield from ()
    return CALL.get()


def _nested() -> Op[tuple[CallTime | None, CallTime | None]]:
    inner = yield On(None, _time())  # type: ignore[arg-type]  # no step needs a store
    return CALL.get(), inner


def test_an_operation_within_a_call_has_the_time_of_the_call() -> None:
    for outer, inner in (drive(_nested(), None), asyncio.run(drive_async(_nested(), None))):
        assert outer is not None
        assert inner is outer
        assert outer.over
    assert CALL.get() is None


def test_a_task_that_outlives_its_call_has_a_time_of_its_own() -> None:
    async def main() -> None:
        begun: list[asyncio.Task[CallTime | None]] = []

        def starting() -> Op[CallTime | None]:
            begun.append(asyncio.create_task(drive_apart(_time(), None)))
            yield InThread(lambda: None)
            return CALL.get()

        outer = await drive_async(starting(), None)
        apart = await begun[0]
        assert apart is not None
        assert apart is not outer

    asyncio.run(main())


def test_a_task_that_outlives_its_call_has_a_new_time_for_each_later_operation() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def later() -> CallTime | None:
            await ended.wait()
            return await drive_async(_time(), None)

        def starting() -> Op[tuple[CallTime | None, asyncio.Task[CallTime | None]]]:
            task = asyncio.create_task(later())
            yield InThread(lambda: None)
            return CALL.get(), task

        outer, task = await drive_async(starting(), None)
        ended.set()
        assert await task is not outer

    asyncio.run(main())
