"""Who is one caller and who is two: no false refusals, and no missed ones, in one process."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing.pool
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock import aio, aio_tasks
from interlock.core.outcomes import Acquired, Deadlock
from interlock.errors import Deadlocked
from interlock.runtime import callers


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def waiting(fleet: interlock.client.Fleet, lock: str, number: int = 1) -> None:
    until(lambda: len(fleet.locks.show(lock).waiters) >= number)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def test_a_thread_that_waits_for_its_own_lock_is_refused(path: str) -> None:
    with interlock.connect(path, agent="ada") as ada:
        block = ada.lock("a")
        with ada.lock("a"), pytest.raises(Deadlocked, match="ada -> ada; release what you hold"):
            block.__enter__()


def test_a_thread_that_waits_for_its_own_lock_under_another_name_is_refused(path: str) -> None:
    with interlock.connect(path, agent="ada") as ada, interlock.connect(path, agent="bob") as bob:
        ada.locks.acquire("a")
        refused = bob.locks.acquire("a", wait=30)
        assert refused == interlock.LockDeadlock(lock="a", cycle=("bob", "ada"))
        said = "bob -> ada -> bob; ada holds it in this same thread, which .*; use another thread"
        with pytest.raises(Deadlocked, match=said):
            bob.lock("a", wait=30).__enter__()
        ada.tasks.publish("t")
        ada.tasks.claim("t")
        with pytest.raises(Deadlocked, match="ada holds it in this same thread"):
            bob.tasks.hold("t", wait=30).__enter__()


def test_one_task_of_two_names_is_told_that_it_waits_for_itself(path: str) -> None:
    async def main() -> None:
        async with (
            await aio.connect(path, agent="ada") as ada,
            await aio.connect(path, agent="bob") as bob,
            ada.lock("a"),
        ):
            with pytest.raises(Deadlocked, match="ada holds it in this same task"):
                await bob.lock("a", wait=30).__aenter__()

    asyncio.run(main())


def test_who_holds_under_another_name_than_it_waits_under_is_named_in_a_larger_circle(
    path: str,
) -> None:
    # A name of its own: this thread may remember a lock that another test left in another store.
    with (
        interlock.connect(path, agent="ada") as ada,
        interlock.connect(path, agent="bob") as bob,
        interlock.connect(path, agent="cy") as cy,
    ):
        ada.locks.acquire("a")
        had = threading.Event()

        def other() -> object:
            cy.locks.acquire("of-cy")
            had.set()
            return cy.locks.acquire("a", wait=30)

        thread, found = in_thread(other)
        had.wait()
        waiting(ada, "a")
        with pytest.raises(Deadlocked, match="bob -> cy -> ada -> bob; release what you hold"):
            bob.lock("of-cy", wait=30).__enter__()
        ada.locks.release("a")
        thread.join()
        assert isinstance(found[0], Acquired)


def test_threads_of_one_client_wait_for_each_other_without_a_fuss(path: str) -> None:
    with interlock.connect(path, agent="ada") as ada:
        ada.locks.acquire("a")
        thread, found = in_thread(lambda: ada.locks.acquire("a", wait=30))
        waiting(ada, "a")
        ada.locks.release("a")
        thread.join()
        assert isinstance(found[0], Acquired)


def test_threads_of_one_client_that_cross_are_refused(path: str) -> None:
    with interlock.connect(path, agent="ada") as ada:
        ada.locks.acquire("a")

        def other() -> object:
            ada.locks.acquire("b")
            got = ada.locks.acquire("a", wait=30)
            ada.locks.release("b")
            return got

        thread, found = in_thread(other)
        waiting(ada, "a")
        assert isinstance(ada.locks.acquire("b", wait=30), Deadlock)
        ada.locks.release("a")
        thread.join()
        assert isinstance(found[0], Acquired)


def test_a_client_for_each_agent_in_one_thread_still_finds_the_circle(path: str) -> None:
    """The thread holds under one name and waits under the other: it is one all the same."""
    with interlock.connect(path, agent="ada") as ada, interlock.connect(path, agent="eve") as eve:
        ada.locks.acquire("a")

        def other() -> object:
            with interlock.connect(path, agent="bob") as bob:
                bob.locks.acquire("b")
                return bob.locks.acquire("a", wait=30)

        thread, found = in_thread(other)
        waiting(ada, "a")
        assert isinstance(eve.locks.acquire("b", wait=30), Deadlock)
        ada.locks.release("a")
        thread.join()
        assert isinstance(found[0], Acquired)


def test_a_job_may_give_back_what_another_job_of_the_pool_took(path: str) -> None:
    """The thread that took it waits for somebody who waits for it, and is not in the way."""
    with (
        interlock.connect(path, agent="ada") as ada,
        interlock.connect(path, agent="bob") as bob,
        ThreadPoolExecutor(1) as pool,
    ):
        token = getattr(pool.submit(ada.locks.acquire, "a").result(), "token", 0)
        bob.locks.acquire("b")
        waits = pool.submit(ada.locks.acquire, "b", wait=30)
        waiting(bob, "b")
        thread, found = in_thread(lambda: bob.locks.acquire("a", wait=30))
        waiting(bob, "a")
        ada.locks.release("a", token=token)
        thread.join()
        assert isinstance(found[0], Acquired)
        bob.locks.release("b")
        assert isinstance(waits.result(), Acquired)


def test_a_thread_of_another_kind_of_pool_is_nobody_too() -> None:
    with multiprocessing.pool.ThreadPool(1) as pool:
        assert pool.apply(callers.current) is None


def test_a_thread_of_a_pool_is_nobody_from_its_first_moment_on() -> None:
    """An executor lists its threads only after they began."""
    for _ in range(50):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(callers.current).result() is None


def test_nothing_is_kept_of_a_task_that_is_over() -> None:
    """A worker has many tasks in its life; a task that was dropped is over, too."""

    async def name() -> str:
        caller = callers.current()
        assert caller is not None
        return caller.name

    async def known() -> int:
        names = await asyncio.gather(*(name() for _ in range(50)))
        assert len(set(names)) == 50
        await asyncio.sleep(0)  # the loop has dropped them
        gc.collect()
        return len(callers._tasks)

    before = len(callers._tasks)
    assert asyncio.run(known()) <= before + 1


def test_every_task_and_thread_has_a_name_of_its_own_and_keeps_it() -> None:
    async def names() -> list[str]:
        async def name() -> str:
            first = callers.current()
            await asyncio.sleep(0)
            assert first is callers.current() is not None
            assert first is not None
            return first.name

        return [
            await name(),
            *await asyncio.gather(name(), name()),
            *[await asyncio.to_thread(bare)],
        ]

    def bare() -> str:
        return "" if callers.current() is None else "somebody"

    one, two, three, pooled = asyncio.run(names())
    assert len({one, two, three}) == 3
    assert pooled == ""


def test_tasks_that_wait_for_each_other_are_refused_only_if_they_cross(path: str) -> None:
    async def main() -> None:
        async with await aio.connect(path, agent="ada") as ada:
            await ada.locks.acquire("a")
            crossing = asyncio.Event()

            async def child() -> object:
                async with ada.lock("b"):
                    crossing.set()
                    return await ada.locks.acquire("a", wait=30)

            async with asyncio.TaskGroup() as group:
                waits = group.create_task(child())
                await crossing.wait()
                assert isinstance(await ada.locks.acquire("c", wait=30), Acquired)
                refused = await ada.locks.acquire("b", wait=30)
                if not isinstance(refused, Deadlock):  # we came first: then the child is refused
                    await ada.locks.release("b")
                await ada.locks.release("a")
            assert [isinstance(each, Deadlock) for each in (refused, waits.result())].count(
                True
            ) == 1

    asyncio.run(main())


def test_a_child_that_waits_for_what_its_parent_has_is_not_refused(path: str) -> None:
    """The parent may give it back at any time: only a task that sleeps in a queue is stuck."""

    async def main() -> None:
        async with await aio.connect(path, agent="ada") as ada, asyncio.TaskGroup() as group:
            held = await ada.locks.acquire("a")
            children = [group.create_task(ada.locks.acquire("a", wait=30)) for _ in range(3)]
            for _ in range(3):
                await asyncio.sleep(0)
            for child in [None, *children]:
                got = held if child is None else await child
                assert isinstance(got, Acquired)
                await ada.locks.release("a", token=got.token)

    asyncio.run(main())


def test_two_processes_that_resume_one_session_are_two(path: str) -> None:
    with interlock.connect(path, agent="ada") as ada:
        joined = ada.agents.join()
        one = interlock.connect(path, session=joined.session)
        two = interlock.connect(path, session=joined.session)
        first, second = callers.LocalCaller("p1.1"), callers.LocalCaller("p2.1")
        one.context.grants.current_caller = lambda: first
        two.context.grants.current_caller = lambda: second
        one.semaphores.acquire("s", capacity=1)
        two.locks.acquire("b")
        thread, found = in_thread(lambda: two.several.acquire("sem/s", "lock/c", wait=30))
        until(lambda: two.semaphores.show("s").waiters)  # type: ignore[union-attr]
        one.semaphores.release("s")
        thread.join()
        assert isinstance(found[0], Acquired)
        one.close()
        two.close()


def holds_and_waits(path: str, begun: threading.Event, task: str) -> object:
    """Bob has a lock, and waits for a task when somebody works on it."""
    with interlock.connect(path, agent="bob") as bob:
        bob.locks.acquire("b")
        begun.wait(30)
        return bob.tasks.claim(task, wait=30)


def test_a_loop_over_claims_is_in_a_circle_with_who_waits_for_its_task(path: str) -> None:
    begun = threading.Event()
    with interlock.connect(path, agent="ada") as ada:
        ada.tasks.publish("t")
        thread, found = in_thread(lambda: holds_and_waits(path, begun, "t"))
        until(lambda: ada.locks.show("b").holder == "bob")
        for claim in ada.tasks.work():
            begun.set()
            with claim:
                found.append(ada.locks.acquire("b", wait=30))
            break
        thread.join()
    assert [isinstance(each, Deadlock) for each in found].count(True) == 1, found


def test_a_handler_of_an_event_loop_is_in_a_circle_with_who_waits_for_its_task(path: str) -> None:
    """The worker claims in one task of the loop, and the handler runs in another."""
    begun = threading.Event()

    async def main(found: list[Any]) -> None:
        async with await aio.connect(path, agent="ada") as ada:
            worker = ada.tasks.work(concurrency=2, stop_on_signals=False)

            async def handle(claim: aio_tasks.Claim) -> None:
                if claim.task == "t":
                    begun.set()
                    found.append(await ada.locks.acquire("b", wait=30))
                    worker.stop()

            await worker.serve(handle)

    with interlock.connect(path, agent="eve") as eve:
        eve.tasks.publish("t")
        eve.tasks.publish("u")
        thread, found = in_thread(lambda: holds_and_waits(path, begun, "t"))
        until(lambda: eve.locks.show("b").holder == "bob")
        asyncio.run(main(found))
        thread.join()
    assert [isinstance(each, Deadlock) for each in found].count(True) == 1, found


HALF = """
import importlib.machinery, sys, threading
import interlock

begun, go, heard = threading.Event(), threading.Event(), []

class Slow(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != {module!r}:
            return None
        spec = super().find_spec(name, path, target)
        real = spec.loader.exec_module
        def exec_module(module):
            begun.set()
            go.wait()
            real(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Slow)
with interlock.connect({path!r}, agent="ada") as fleet:
    fleet.messages.send("ada", "hi")
    fleet.locks.acquire("first")
    assert {module!r} not in sys.modules
    threading.Thread(target=lambda: __import__({module!r})).start()
    begun.wait()
    def act():
        try:
            fleet.messages.send("ada", "hi again")
            fleet.locks.acquire("second")
            heard.append("fine")
        except BaseException as error:
            heard.append(repr(error))
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(0.1)
    go.set()
    thread.join()
print(*heard)
"""


@pytest.mark.parametrize("module", ["logging", "asyncio"])
def test_a_module_that_another_thread_is_importing_is_waited_for(path: str, module: str) -> None:
    code = HALF.format(path=path, module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("fine", "")


def test_pending_grants_are_read_while_other_threads_connect() -> None:
    class Service:
        def pending_grants(self) -> frozenset[str]:
            return frozenset()

    over = threading.Event()

    def add() -> None:
        kept = []
        while not over.is_set():
            kept.append(Service())
            callers.add_grant_service(kept[-1])
            if len(kept) > 200:
                kept.clear()

    before = sys.getswitchinterval()
    thread = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            callers.pending_grants()  # other tests may have left some; it must not raise
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
