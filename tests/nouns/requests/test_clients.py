"""Both clients, the commands and real stores: two homes and a bus, with keys in files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import until

import interlock
from interlock import aio, guard
from interlock.core import keys, signing
from interlock.core.decision import Decision, Write
from interlock.errors import StoreAway
from interlock.nouns.requests.incoming import Incoming
from interlock.nouns.requests.send_service import TEND_EVERY
from interlock.nouns.requests.serving import RequestReply, ServedRequest
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.head import ListedKey
from interlock.nouns.swarms.link import SwarmLink
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.nouns.swarms.results import Discovered
from interlock.nouns.swarms.swarm import OwnSwarm, Peer, PeerKey
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.steps import Read, drive
from interlock.store import Ref, Snapshot
from interlock.stores.memory import MemoryStore

NAMES = ("north", "south")


def put(fleet: interlock.Fleet, key: str, value: object) -> None:
    def deciding() -> DecideOp[None]:
        yield (key,)
        puts = (Write(key, value),)
        return Decision(outcome=None, verb="test.put", thing="test", puts=puts)

    drive(fleet.context.runner.change(deciding, Actor("test")), fleet.store)


def set_up(homes: dict[str, str], bus: str) -> None:
    """Two swarms that trust each other."""
    signers = {}
    for name in homes:
        key_files.create(name)
        signers[name] = key_files.load(name)
    public = {name: signing.to_base64(each.public_key) for name, each in signers.items()}
    for name, url in homes.items():
        with interlock.connect(url) as fleet:
            own = OwnSwarm(
                name=name,
                bus=bus,
                bus_shown=bus,
                bus_id=drive(fleet.context.bus.reach(bus), fleet.store),
                key=name,
                keys=(ListedKey(public=public[name]),),
                registered=0.0,
            )
            put(fleet, keys.OWN_SWARM, own)
            for other in homes.keys() - {name}:
                key = PeerKey(
                    fingerprint=signers[other].fingerprint,
                    how="pinned",
                    since=0.0,
                    public=public[other],
                )
                put(fleet, keys.peer(other), Peer(swarm=other, keys=(key,)))


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    found = {name: f"{tmp_path}/{name}.db" for name in NAMES}
    set_up(found, f"{tmp_path}/bus.db")
    return found


@pytest.fixture
def served(homes: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Serves in a thread until the test ends."""
    stops: list[Callable[[], None]] = []

    def begin(handler: Callable[[ServedRequest], object], concurrency: int = 1) -> None:
        ready = threading.Event()
        fleets: list[interlock.Fleet] = []

        def serve() -> None:
            with interlock.connect(homes["south"], agent="bob") as fleet:
                fleets.append(fleet)
                ready.set()
                fleet.requests.serve(
                    handler, can=["sum"], concurrency=concurrency, stop_on_signals=False
                )

        thread = threading.Thread(target=serve)
        thread.start()
        assert ready.wait(10)

        def stop() -> None:
            with interlock.connect(homes["south"], agent="boss") as boss:
                boss.messages.stop("bob", "the test is over")
            thread.join(20)
            assert not thread.is_alive()

        stops.append(stop)

    yield begin
    for stop in stops:
        stop()


def test_a_blocking_client_serves_several_at_once_in_threads(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    together = threading.Barrier(3)

    def handler(request: ServedRequest) -> object:
        together.wait(20)
        return sum(request.payload)

    served(handler, 3)
    with interlock.connect(homes["north"], agent="ada") as fleet:
        ids = [f"r{number}" for number in range(3)]
        for number, id_ in enumerate(ids):
            fleet.requests.send("south", "can:sum", [number, 1], id=id_)
        found = [fleet.requests.result(id_, wait=20) for id_ in ids]
        assert [getattr(each, "result", None) for each in found] == [1, 2, 3]


def test_a_blocking_client_asks_and_another_serves(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    def handler(request: ServedRequest) -> object:
        if request.payload == "fail":
            raise ValueError("no number")
        return RequestReply(result=sum(request.payload), confidence=0.5, citations=("a",))

    served(handler)
    with interlock.connect(homes["north"], agent="ada") as fleet:
        found = fleet.requests.send("south", "can:sum", [1, 2], wait=20)
        assert isinstance(found, interlock.RequestAnswered)
        assert (found.result, found.executed_by) == (3, "bob")
        assert (found.confidence, found.citations) == (0.5, ("a",))
        failed = fleet.requests.send("south", "bob", "fail", wait=20, id="wrong")
        assert isinstance(failed, interlock.RequestFailed)
        assert failed.error == "ValueError: no number"
        assert fleet.requests.result("wrong") == failed
        listed = fleet.requests.list()
        assert [each.state for each in listed] == ["answered", "answered"]
        assert fleet.record.verify()
    with interlock.connect(homes["south"], agent="eve") as fleet:
        assert len(fleet.requests.list(received=True, swarm="north")) == 2


def online(home: str, ability: str) -> list[str]:
    """The agents that a swarm finds on the bus; waits until there is one."""

    def found() -> list[str]:
        with interlock.connect(home, agent="eve") as fleet:
            answer = fleet.swarms.discover(ability, fresh=True)
            assert isinstance(answer, Discovered)
            return [f"{each.agent}@{each.swarm}" for each in answer]

    agents: list[str] = until(found)
    return agents


def test_a_worker_that_serves_keeps_its_swarm_on_the_bus(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    served(lambda request: request.payload)
    assert online(homes["north"], "sum") == ["bob@south"]
    with interlock.connect(homes["north"], agent="ada") as fleet:
        found = fleet.requests.send("*", "can:sum", 7, wait=20)
        assert isinstance(found, interlock.RequestAnswered)
    with interlock.connect(homes["south"], agent="eve") as fleet:
        assert fleet.record.verify()


def test_of_many_that_send_at_once_one_looks_whether_the_receiver_is_listed(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    served(lambda request: request.payload)
    assert online(homes["north"], "sum") == ["bob@south"]
    with interlock.connect(homes["north"], agent="ada") as ada:
        own = drive(own_swarm(), ada.store)
        assert own is not None
        one, other = [ada.context.swarms.unlisted(own, "south", "can:sun") for _ in range(2)]
        looks_at = next(one)
        with pytest.raises(StopIteration, match=r"^$"):
            next(other)
        one.close()
        assert isinstance(looks_at, Read)


def test_an_async_worker_keeps_its_swarm_on_the_bus_and_another_goes_on_when_it_stops(
    homes: dict[str, str],
) -> None:
    async def handler(request: ServedRequest) -> object:
        return request.payload

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            serving: dict[str, asyncio.Task[None]] = {}
            for name in ("bob", "carl"):
                fleet = await stack.enter_async_context(
                    await aio.connect(homes["south"], agent=name)
                )
                work = fleet.requests.serve(handler, can=[f"{name}s"], stop_on_signals=False)
                serving[name] = asyncio.create_task(work)
                found = await asyncio.to_thread(online, homes["north"], f"{name}s")
                assert found == [f"{name}@south"]
            serving.pop("bob").cancel()
            dora = await stack.enter_async_context(await aio.connect(homes["south"], agent="dora"))
            await dora.agents.status("idle", can=["paint"])
            found = await asyncio.to_thread(online, homes["north"], "paint")
            assert found == ["dora@south"]
            serving["carl"].cancel()
            await asyncio.wait(serving.values())

    asyncio.run(scenario())


def test_a_worker_serves_on_while_its_swarm_cannot_be_kept_on_the_bus(
    homes: dict[str, str],
    served: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    take, errors = SwarmLink.take, [KeyError("what no one foresaw")]

    def fails_once(self: SwarmLink, timeout: float | None) -> Any:
        if errors:
            raise errors.pop()
        return take(self, timeout)

    monkeypatch.setattr(SwarmLink, "take", fails_once)
    served(lambda request: request.payload)
    assert online(homes["north"], "sum") == ["bob@south"]
    assert "the swarm is not kept on its bus" in caplog.text


def test_an_error_of_the_intake_is_logged_and_the_worker_goes_on(
    homes: dict[str, str],
    served: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    look, errors = Incoming.look, [KeyError("what no one foresaw")]

    def fails_once(self: Incoming, own: OwnSwarm) -> Any:
        if errors:
            raise errors.pop()
        return look(self, own)

    monkeypatch.setattr(Incoming, "look", fails_once)
    served(lambda request: sum(request.payload))
    with interlock.connect(homes["north"], agent="ada") as fleet:
        found = fleet.requests.send("south", "can:sum", [1, 2], wait=20)
    assert isinstance(found, interlock.RequestAnswered)
    assert "what no one foresaw" in caplog.text


def test_a_reply_that_cannot_be_sent_is_an_error_and_the_worker_goes_on(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    served(lambda request: RequestReply(result=1, confidence=request.payload))
    with interlock.connect(homes["north"], agent="ada") as fleet:
        failed = fleet.requests.send("south", "can:sum", 7, wait=20)
        assert isinstance(failed, interlock.RequestFailed)
        assert "confidence" in failed.error
        assert isinstance(
            fleet.requests.send("south", "can:sum", 0.5, wait=20), interlock.RequestAnswered
        )


def test_a_served_task_waits_for_evidence_that_is_checked_again(
    homes: dict[str, str], served: Callable[..., None]
) -> None:
    attempts: list[int] = []
    with interlock.connect(homes["south"], agent="boss") as boss:
        retried = guard.retry("50ms", 1000)
        calm = guard.named("calm", guard.lock_free("deploy"), on_failure=retried)
        boss.guards.define(calm)
        held = boss.locks.acquire("deploy")
        assert isinstance(held, interlock.Acquired)
        boss.tasks.publish("local", [1, 2], requires=["can:sum"], evidence="calm")

        def handler(request: ServedRequest) -> object:
            attempts.append(request.attempt)
            return sum(request.payload)

        served(handler)
        refused = until(lambda: boss.record.log(verb="task.complete", thing="task/local"))
        assert [entry.outcome for entry in refused][:1] == ["blocked"]
        boss.locks.release("deploy", token=held.token)
        until(lambda: getattr(boss.tasks.show("local"), "state", "") == "complete")
    assert attempts == [1]


def test_an_async_client_asks_many_at_once_and_another_serves_them_at_once(
    homes: dict[str, str],
) -> None:
    many = 50
    open_: list[str] = []
    most = 0

    async def scenario() -> list[Any]:
        nonlocal most
        all_here = asyncio.Event()

        async def handler(request: ServedRequest) -> object:
            nonlocal most
            open_.append(request.id)
            most = max(most, len(open_))
            if len(open_) == many:
                all_here.set()
            await asyncio.wait_for(all_here.wait(), 20)
            return sum(request.payload)

        async with (
            await aio.connect(homes["north"], agent="ada") as north,
            await aio.connect(homes["south"], agent="bob") as south,
        ):
            serving = asyncio.create_task(
                south.requests.serve(handler, can=["sum"], concurrency=many, stop_on_signals=False)
            )
            asked = [
                north.requests.send("south", "can:sum", [number, 1], wait=30)
                for number in range(many)
            ]
            found = await asyncio.gather(*asked)
            serving.cancel()
            await asyncio.wait((serving,))
            return found

    found = asyncio.run(scenario())
    assert [each.result for each in found] == [number + 1 for number in range(many)]
    assert most == many


def test_agents_of_one_process_share_a_bus_and_ask_in_their_own_names(
    homes: dict[str, str],
) -> None:
    async def handler(request: ServedRequest) -> object:
        return f"{request.from_agent}@{request.from_swarm}"

    async def scenario() -> list[Any]:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(await aio.connect(homes["north"], agent="a0"))
            agents = [first]
            for number in range(1, 4):
                fleet = await aio.connect(agent=f"a{number}", store=first.store)
                fleet.context.share_requests(first.context)
                agents.append(await stack.enter_async_context(fleet))
            south = await stack.enter_async_context(await aio.connect(homes["south"], agent="bob"))
            serving = asyncio.create_task(
                south.requests.serve(handler, can=["name"], concurrency=4, stop_on_signals=False)
            )
            asked = [fleet.requests.send("south", "can:name", wait=30) for fleet in agents]
            found = await asyncio.gather(*asked)
            serving.cancel()
            await asyncio.wait((serving,))
            return found

    found = asyncio.run(scenario())
    assert [each.result for each in found] == [f"a{number}@north" for number in range(4)]


def test_a_result_that_another_process_takes_in_meanwhile_ends_the_wait(
    homes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone from the bus when the asker has looked at home and not yet at the bus."""
    with (
        interlock.connect(homes["north"], agent="ada") as ada,
        interlock.connect(homes["north"], agent="eve") as eve,
        interlock.connect(homes["south"], agent="bob") as bob,
    ):
        sent = ada.requests.send("south", "bob", {"x": 1})
        assert isinstance(sent, interlock.RequestSent)
        bob.requests.tend()
        claimed = bob.tasks.next(can=["@bob"])
        assert isinstance(claimed, interlock.Claimed)
        bob.tasks.complete(claimed.task, token=claimed.token, result="done")
        bob.requests.tend()
        sender = ada.context.requests.sender
        look = sender._look

        def overtaken(request: str) -> Any:
            monkeypatch.setattr(sender, "_look", look)
            found = yield from look(request)
            eve.requests.tend()
            return found

        monkeypatch.setattr(sender, "_look", overtaken)
        began = time.monotonic()
        assert isinstance(ada.requests.result(sent.request, wait=60), interlock.RequestAnswered)
        assert time.monotonic() - began < 3


def ended_by_cancelling(home: str, waiting: Callable[[interlock.Fleet, str], object]) -> object:
    """What a wait returns whose request another process cancels after a while, and how soon."""
    found: list[object] = []
    with (
        interlock.connect(home, agent="ada") as ada,
        interlock.connect(home, agent="eve") as eve,
    ):
        sent = ada.requests.send("south", "bob", {"x": 1})
        assert isinstance(sent, interlock.RequestSent)
        thread = threading.Thread(target=lambda: found.append(waiting(ada, sent.request)))
        thread.start()
        watched = ada.context.requests.waits
        until(lambda: watched._any_lasts() or ada.context.bus.trouble)
        began = time.monotonic()
        assert eve.requests.cancel(sent.request, "no more")
        thread.join(20)
        assert time.monotonic() - began < TEND_EVERY - 1
    return found[0]


def test_a_cancel_by_another_process_ends_a_wait_at_once(homes: dict[str, str]) -> None:
    over = ended_by_cancelling(
        homes["north"], lambda ada, request: ada.requests.result(request, wait=60)
    )
    assert isinstance(over, interlock.RequestOver)
    assert over.reason == "no more"


def test_a_cancel_ends_a_wait_while_the_bus_is_away(
    homes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_BUS", homes["north"].replace("north", "nothing"))
    over = ended_by_cancelling(
        homes["north"], lambda ada, request: ada.requests.result(request, wait=60)
    )
    assert isinstance(over, interlock.RequestOver)


def test_a_cancel_ends_many_waits_of_an_event_loop(homes: dict[str, str]) -> None:
    async def scenario() -> list[Any]:
        async with (
            await aio.connect(homes["north"], agent="ada") as ada,
            await aio.connect(homes["north"], agent="eve") as eve,
        ):
            sent = [await ada.requests.send("south", "bob", number) for number in range(18)]
            ids = [each.request for each in sent if isinstance(each, interlock.RequestSent)]
            waits = [asyncio.create_task(ada.requests.result(each, wait=60)) for each in ids]
            watched = ada.context.requests.waits
            await asyncio.to_thread(until, watched._any_lasts)
            began = time.monotonic()
            for each in ids:
                await eve.requests.cancel(each)
            found = await asyncio.gather(*waits)
            assert time.monotonic() - began < TEND_EVERY - 1
            return found

    assert {type(each) for each in asyncio.run(scenario())} == {interlock.RequestOver}


@pytest.mark.parametrize("guards", [False, True])
def test_maintain_posts_takes_in_and_deletes_what_is_old(
    homes: dict[str, str], *, guards: bool
) -> None:
    terms: dict[str, Any] = {"guards": True, "timeout": 0} if guards else {}
    with (
        interlock.connect(homes["north"], agent="ada") as north,
        interlock.connect(homes["south"], agent="bob") as south,
    ):
        sent = north.requests.send("south", "bob", {"x": 1})
        assert isinstance(sent, interlock.RequestSent)
        south.maintain(**terms)
        claimed = south.tasks.next(can=["@bob"])
        assert isinstance(claimed, interlock.Claimed)
        south.tasks.complete(claimed.task, token=claimed.token, result="done")
        south.maintain(**terms)
        north.maintain(**terms)
        found = north.requests.result(sent.request)
        assert isinstance(found, interlock.RequestAnswered)
        assert found.result == "done"
        (mail,) = north.messages.inbox()
        assert mail.subject == f"success of {sent.request}"


COMMAND = [sys.executable, "-m", "interlock"]


def test_a_program_serves_requests_in_the_shell(homes: dict[str, str]) -> None:
    program = (
        'read x; test "$x" = \'"bad"\' && { echo broken; seq 5000 >&2; exit 3; }; echo "got $x"'
    )
    serve = ["--store", homes["south"], "--agent", "bob", "request", "serve"]
    with (
        subprocess.Popen(
            [*COMMAND, *serve, "--can", "echo", "--jobs", "2", "--", "sh", "-c", program],
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
        ExitStack() as stopping,
    ):
        stopping.callback(server.terminate)  # also if the test fails
        assert server.stderr is not None
        assert "serving as bob" in server.stderr.readline()
        send = [*COMMAND, "--store", homes["north"], "--agent", "ada", "request", "send", "south"]
        good = subprocess.run(
            [*send, "can:echo", "[7]", "--wait", "20s", "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert '"result":"got [7]"' in good.stdout
        assert online(homes["north"], "echo") == ["bob@south"]
        bad = subprocess.run(
            [*send, "bob", '"bad"', "--wait", "20s"], capture_output=True, text=True, check=False
        )
        said = bad.stdout + bad.stderr
        assert (bad.returncode, "status 3: broken: " in said) == (1, True)
        assert "4999\\n5000" in said or "4999\n  | 5000" in said
        assert "\n1000" not in said, "the end of a long standard error"
        assert "5000\n" in iter(server.stderr.readline, ""), "it is also on that of the server"
        misspelt = subprocess.run(
            [*send, "can:eco", "1"], capture_output=True, text=True, check=True
        )
        assert "did you mean can:echo?" in misspelt.stdout
        server.terminate()
        assert server.wait(20) == 0


class Flaky(MemoryStore):
    """A home that does not answer a number of times."""

    failures = 0

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        if self.failures:
            self.failures -= 1
            raise StoreAway("the store does not answer; wait")
        return super().read(*refs, times=times, fresh=fresh, longest=longest)


def test_a_wait_for_a_result_goes_on_through_an_outage_of_the_home() -> None:
    store = Flaky()
    with interlock.connect(store=store, agent="ada") as fleet:
        store.failures = 1
        with pytest.raises(StoreAway):
            fleet.requests.result("nightly")
        store.failures = 1
        assert isinstance(fleet.requests.result("nightly", wait=30), interlock.UnknownRequest)
