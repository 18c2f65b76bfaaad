"""An outage that lasts longer than a session ends no loop: each goes on, and where it was."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.processes.helpers import store_times, until
from tests.processes.lock_programs import opened

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.core.outcomes import Acquired
from interlock.errors import StoreTrouble
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.store import Resync
from interlock.testing.servers import EtcdServer, GitHttpServer, RedisServer

Engine = RedisServer | EtcdServer | GitHttpServer
Heard = queue.SimpleQueue[object]
PATIENCE = 60.0
STOP = "that is all"
READY = "it listens"


def work(fleet: interlock.Fleet, heard: Heard) -> None:
    worker = fleet.tasks.work(can=["work"], stop_on_signals=False)
    for claim in worker:
        with claim:
            pass
        if claim.data == STOP:
            worker.stop()
        heard.put(claim.data)


def recv(fleet: interlock.Fleet, heard: Heard) -> None:
    with fleet.messages.recv() as messages:
        for message in messages:
            message.ack()
            heard.put(message.data)
            if message.data == STOP:
                return


def subscribe(fleet: interlock.Fleet, heard: Heard) -> None:
    with fleet.tasks.subscribe(prefix="heard/") as events:
        heard.put(READY)
        for event in events:
            heard.put(event.data)
            if event.data == STOP:
                return


def observe(fleet: interlock.Fleet, heard: Heard) -> None:
    with fleet.observe(nouns=["lock"]) as events:
        heard.put(READY)
        for event in events:
            if event.event == "lock:acquired" and event.thing in ("lock/before", "lock/after"):
                heard.put({"lock/before": "before", "lock/after": STOP}[event.thing])
                if event.thing == "lock/after":
                    return


def follow(fleet: interlock.Fleet, heard: Heard) -> None:
    with fleet.record.follow() as lines:
        for line in lines:
            assert not isinstance(line, Resync)
            if line.verb == "lock.acquire" and line.thing in ("lock/before", "lock/after"):
                heard.put({"lock/before": "before", "lock/after": STOP}[line.thing])
                if line.thing == "lock/after":
                    return


def wait_for_mail(fleet: interlock.Fleet, heard: Heard) -> None:
    heard.put("before")
    fleet.messages.wait()
    heard.put(STOP)


def wait_for_work(fleet: interlock.Fleet, heard: Heard) -> None:
    heard.put("before")
    claimed = fleet.tasks.next(can=["next"], wait=PATIENCE)
    assert isinstance(claimed, Claimed)
    heard.put(claimed.data)


def wait_for_a_lock(fleet: interlock.Fleet, heard: Heard) -> None:
    heard.put("before")
    with fleet.lock("taken") as held:
        held.check()
        heard.put(STOP)


LOOPS = {
    each.__name__: each
    for each in (
        *(work, recv, subscribe, observe, follow),
        *(wait_for_mail, wait_for_work, wait_for_a_lock),
    )
}


def tell(boss: interlock.Fleet, name: str, what: str, token: int | None) -> None:
    """Have something come for a loop."""
    word = "before" if what != STOP else "after"
    match name:
        case "work":
            boss.tasks.publish(f"work/{word}", what, requires=["work"])
        case "recv":
            boss.messages.send("recv", what)
        case "subscribe":
            boss.tasks.publish(f"heard/{word}", what, requires=["nobody"])
        case "observe" | "follow":
            boss.locks.acquire(word)
        case "wait_for_mail" if what == STOP:
            boss.messages.send(name, what)
        case "wait_for_work" if what == STOP:
            boss.tasks.publish("next/after", what, requires=["next"])
        case "wait_for_a_lock" if what == STOP:
            boss.locks.release("taken", token=token)


@contextmanager
def running(url: str, name: str) -> Iterator[tuple[interlock.Fleet, Heard]]:
    """A loop in a thread, with a client of its own."""
    heard: Heard = queue.SimpleQueue()
    store = opened(url, patience=0.5)
    ttl = store_times(url).ttl
    with closing(store), interlock.connect(agent=name, store=store, ttl=ttl) as fleet:

        def run() -> None:
            try:
                LOOPS[name](fleet, heard)
            except BaseException as error:  # noqa: BLE001 - the test compares it
                heard.put(repr(error))

        thread = threading.Thread(target=run, name=f"loop-{name}", daemon=True)
        thread.start()
        yield fleet, heard
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.proof_on("etcd")
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_goes_on_where_it_was_after_an_outage_longer_than_its_session(
    server: Engine, name: str
) -> None:
    url = server.url("loops")
    with interlock.connect(url, agent="boss", join=False) as boss:
        taken = boss.locks.acquire("taken", ttl=600)
        assert isinstance(taken, Acquired)
    with running(url, name) as (fleet, heard):
        session, lease = fleet.session, fleet.context.session_lease
        assert lease is not None
        if name in ("subscribe", "observe"):
            assert heard.get(timeout=PATIENCE) == READY
        with interlock.connect(url, agent="boss", join=False) as boss:
            tell(boss, name, "before", taken.token)
        assert heard.get(timeout=PATIENCE) == "before"
        server.kill()
        until(lambda: lease.lost)
        server.restart()
        until(lambda: not fleet.trouble)
        with interlock.connect(url, agent="boss", join=False) as boss:
            tell(boss, name, STOP, taken.token)
            assert heard.get(timeout=PATIENCE) == STOP
            if name in ("work", "recv", "wait_for_work", "wait_for_a_lock"):
                assert fleet.session != session
        with suppress(queue.Empty):
            raise AssertionError(f"it received another one: {heard.get(timeout=0.05)!r}")


async def aio_work(fleet: aio.Fleet, heard: Heard) -> None:
    worker = fleet.tasks.work(can=["work"], stop_on_signals=False)
    async for claim in worker:
        async with claim:
            pass
        if claim.data == STOP:
            worker.stop()
        heard.put(claim.data)


async def aio_serve(fleet: aio.Fleet, heard: Heard) -> None:
    worker = fleet.tasks.work(can=["work"], stop_on_signals=False, concurrency=3)

    async def handle(claim: AsyncClaim) -> None:
        await claim.complete()
        heard.put(claim.data)
        if claim.data == STOP:
            worker.stop()

    await worker.serve(handle)


async def aio_recv(fleet: aio.Fleet, heard: Heard) -> None:
    async with fleet.messages.recv() as messages:
        async for message in messages:
            await message.ack()
            heard.put(message.data)
            if message.data == STOP:
                return


async def aio_subscribe(fleet: aio.Fleet, heard: Heard) -> None:
    async with await fleet.tasks.subscribe(prefix="heard/") as events:
        heard.put(READY)
        async for event in events:
            heard.put(event.data)
            if event.data == STOP:
                return


async def aio_wait_for_a_lock(fleet: aio.Fleet, heard: Heard) -> None:
    heard.put("before")
    async with fleet.lock("taken") as held:
        await held.check()
        heard.put(STOP)


ASYNC = {
    "work": aio_work,
    "serve": aio_serve,
    "recv": aio_recv,
    "subscribe": aio_subscribe,
    "wait_for_a_lock": aio_wait_for_a_lock,
}


@contextmanager
def running_async(url: str, name: str) -> Iterator[tuple[aio.Fleet, Heard]]:
    """The same in an event loop, in a thread."""
    heard: Heard = queue.SimpleQueue()
    came: queue.SimpleQueue[aio.Fleet] = queue.SimpleQueue()

    async def main() -> None:
        store = opened(url, patience=0.5)
        fleet = await aio.connect(agent=name, store=store, ttl=store_times(url).ttl)
        async with fleet:
            came.put(fleet)
            try:
                await ASYNC[name](fleet, heard)
            except BaseException as error:  # noqa: BLE001 - the test compares it
                heard.put(repr(error))
        await store.close_async()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="loop", daemon=True)
    thread.start()
    yield came.get(timeout=PATIENCE), heard
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_loop_goes_on_likewise(server: Engine, name: str) -> None:
    url = server.url("loops")
    kind = "work" if name == "serve" else name
    with interlock.connect(url, agent="boss", join=False) as boss:
        taken = boss.locks.acquire("taken", ttl=600)
        assert isinstance(taken, Acquired)
    with running_async(url, name) as (fleet, heard):
        lease = fleet.context.session_lease
        assert lease is not None
        if name == "subscribe":
            assert heard.get(timeout=PATIENCE) == READY
        with interlock.connect(url, agent="boss", join=False) as boss:
            tell(boss, kind, "before", taken.token)
        assert heard.get(timeout=PATIENCE) == "before"
        server.freeze()
        until(lambda: lease.lost)
        server.thaw()
        until(lambda: not fleet.trouble)
        with interlock.connect(url, agent="boss", join=False) as boss:
            tell(boss, kind, STOP, taken.token)
            assert heard.get(timeout=PATIENCE) == STOP
        with suppress(queue.Empty):
            raise AssertionError(f"it received another one: {heard.get(timeout=0.05)!r}")


def test_a_wait_with_a_limit_keeps_to_it_in_an_outage(server: Engine) -> None:
    url = server.url("limit")
    with interlock.connect(url, agent="boss", join=False, caller="another program") as boss:
        boss.locks.acquire("taken", ttl=600)
    store = opened(url, patience=0.3)
    ttl = store_times(url).ttl
    with closing(store), interlock.connect(agent="ada", store=store, ttl=ttl) as fleet:
        began = time.monotonic()
        threading.Timer(0.2, server.kill).start()
        with pytest.raises(StoreTrouble):
            fleet.locks.acquire("taken", wait=2)
        assert time.monotonic() - began >= 2
        server.restart()


def test_without_retries_a_wait_ends_with_the_error(server: Engine) -> None:
    url = server.url("limit")
    store = opened(url, patience=0.3)
    with closing(store), interlock.connect(agent="ada", store=store, no_retry=True) as fleet:
        server.kill()
        with pytest.raises(StoreTrouble):
            fleet.tasks.next(wait=PATIENCE)
        with pytest.raises(StoreTrouble):
            next(iter(fleet.tasks.work(stop_on_messages=False)))
        with pytest.raises(StoreTrouble):
            next(iter(fleet.messages.recv()))
        server.restart()


@pytest.mark.proof
def test_commands_that_wait_go_on_after_an_outage(
    server: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = server.url("commands")

    def begin(*words: str) -> subprocess.Popen[bytes]:
        name = tmp_path / f"{words[0]}-{words[1]}"
        command = [sys.executable, "-m", "interlock", *words, "--json", "--store", url]
        with name.with_suffix(".out").open("w") as out, name.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
        request.addfinalizer(process.wait)
        request.addfinalizer(process.kill)  # the last is the first
        return process

    def said(name: str) -> str:
        return (tmp_path / f"{name}.out").read_text()

    with interlock.connect(url, agent="boss", join=False) as boss:
        taken = boss.locks.acquire("taken", ttl=600)
        assert isinstance(taken, Acquired)
        begin("task", "watch")
        begin("record", "log", "--follow")
        begin("subscribe", "built", "--follow", "--agent", "bob")
        waits = [
            begin("task", "next", "--can", "special", "--wait", "5m", "--agent", "cleo"),
            begin("lock", "acquire", "taken", "--wait", "5m", "--agent", "dan"),
            begin("wait", "--timeout", "5m", "--agent", "eve"),
        ]
        strict = begin("agent", "log", "eve", "--follow", "--no-retry")
        until(lambda: boss.locks.show("taken").waiters)
        until(lambda: len([each for each in boss.agents.list() if each.state == "alive"]) >= 2)

        def heard() -> bool:  # they listen from some moment on
            boss.tasks.publish(requires=["nobody"])
            return "published" in said("task-watch") and "published" in said("record-log")

        until(heard)
    server.kill()
    assert strict.wait(PATIENCE) == 4  # after ten seconds
    server.restart()
    with interlock.connect(url, agent="boss", join=False) as boss:
        boss.tasks.publish("after", requires=["special"])
        boss.messages.alert("built", {"n": 1})
        boss.messages.send("eve", "hello")
        boss.locks.release("taken", token=taken.token)
        assert [each.wait(PATIENCE) for each in waits] == [0, 0, 0]
        until(lambda: '"after"' in said("task-watch") and "after" in said("record-log"))
        until(lambda: '"n":1' in said("subscribe-built"))
    assert said("task-watch").count('"event":"published","task":"after"') == 1
