"""The setup of tests of faults: an engine, proxies in front of it, clients of both kinds.

A client is blocking or async, with the same methods: every call blocks the test, and ``begin`` runs
a call beside it.  So each test is written once.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import interlock
from interlock import aio
from interlock.core import keys
from interlock.store import VOID, Log, Scope, Store, Watch, scopes
from interlock.stores import open_store
from interlock.stores.redis import RedisStore
from interlock.testing.servers import EtcdServer, RedisServer, until
from interlock.testing.servers.proxy import Proxy, Verdict

T = TypeVar("T")
Way: TypeAlias = Literal["blocking", "async"]

WAYS: tuple[Way, ...] = ("blocking", "async")
PATIENCE = 60.0
"""No call takes this long, under any fault."""
THREADS = ("faults-loop", "faults-beside")
_HANDLED = re.compile(r'grpc_server_handled_total\{.*grpc_method="Txn".*\}')
_namespaces = itertools.count(1)


class Redis:
    """What differs between engines: Redis."""

    name: ClassVar[str] = "redis"
    least: ClassVar[float] = 0.5
    """The shortest ttl that it accepts."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def handled(self) -> int:
        """How many scripts it has run."""
        stats = self.server.info("commandstats")
        return sum(
            int(stats[name].partition("calls=")[2].partition(",")[0])
            for name in ("cmdstat_eval", "cmdstat_evalsha")
            if name in stats
        )

    def trim_history(self, store: Store, revision: int) -> None:
        """Delete the history up to a revision."""
        assert isinstance(store, RedisStore)
        self.server.trim_log(store.namespace, revision)


class Etcd:
    """What differs between engines: etcd."""

    name: ClassVar[str] = "etcd"
    least: ClassVar[float] = 2.0

    def __init__(self, server: EtcdServer) -> None:
        self.server = server

    def handled(self) -> int:
        """How many transactions it has answered."""
        metrics = self.server.metrics().items()
        return sum(int(value) for name, value in metrics if _HANDLED.fullmatch(name))

    def trim_history(self, _store: Store, revision: int) -> None:
        """Delete the history up to a revision."""
        self.server.call("/v3/kv/compaction", {"revision": revision, "physical": True})


Engine: TypeAlias = Redis | Etcd


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=THREADS[0], daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """The result, for a caller that may block."""
        coroutine: Coroutine[Any, Any, T] = _awaited(work)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def close(self) -> None:
        """End it, and everything that still runs in it."""
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


class Client:
    """One agent, connected in one of the two ways."""

    def __init__(self, loop: Loop | None, fleet: Any) -> None:
        self.fleet = fleet
        self._loop = loop

    def falls_asleep(self) -> Callable[[], bool]:
        """Whether a wait that begins after this call sleeps by now.

        That other clients see it in the queue is not enough: its reply may still be on the way.
        """
        store, asleep = self.fleet.store, threading.Event()
        watch: Callable[[Scope, int], Watch] = store.watch

        def noted(scope: Scope, after: int) -> Watch:
            if any(each.startswith(keys.WAKE) for each in scopes(scope)):
                asleep.set()
            return watch(scope, after)

        store.watch = noted
        return asleep.is_set

    def do(self, call: Callable[[Any], Any]) -> Any:
        """The result of a call on the fleet, awaited if the client is async."""
        found = call(self.fleet)
        return found if self._loop is None else self._loop.run(found)

    def acquire(self, name: str, **terms: Any) -> Any:
        return self.do(lambda fleet: fleet.locks.acquire(name, **terms))

    def release(self, name: str, **terms: Any) -> Any:
        return self.do(lambda fleet: fleet.locks.release(name, **terms))

    def show(self, name: str) -> Any:
        return self.do(lambda fleet: fleet.locks.show(name))

    def leave(self) -> Any:
        return self.do(lambda fleet: fleet.agents.leave())

    def beat(self) -> Any:
        return self.do(lambda fleet: fleet.agents.beat())

    def read(self, *refs: Any) -> Any:
        return self._store("read", *refs)

    def commit(self, txn: Any) -> Any:
        return self._store("commit", txn)

    def take(self, watch: Any, timeout: float | None) -> Any:
        return (
            watch.take(timeout) if self._loop is None else self._loop.run(watch.take_async(timeout))
        )

    def close(self) -> None:
        self.do(lambda fleet: fleet.close())

    def _store(self, name: str, *arguments: Any) -> Any:
        suffix = "" if self._loop is None else "_async"
        return self.do(lambda fleet: getattr(fleet.store, name + suffix)(*arguments))


class Setup:
    """One namespace of an engine, and everything that a test opened there."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.server = engine.server
        self.url = engine.server.url(f"faults{next(_namespaces)}")
        self._proxies: list[Proxy] = []
        self._clients: list[Client] = []
        self._stores: list[Store] = []
        self._begun: list[Future[Any]] = []
        self._loop: Loop | None = None
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.server.running:
            self.server.restart()
        elif self.server.frozen:
            self.server.thaw()
        for proxy in self._proxies:
            proxy.on_request(None)
            proxy.heal()
        for client in self._clients:
            client.close()
        for future in self._begun:
            future.exception(PATIENCE)
        if self._loop is not None:
            self._loop.close()
        for store in self._stores:
            store.close()
        for proxy in self._proxies:
            proxy.close()

    def proxy(self) -> Proxy:
        """A proxy in front of the engine."""
        self._proxies.append(Proxy("127.0.0.1", self.server.port))
        return self._proxies[-1]

    def client(
        self, agent: str | None, proxy: Proxy | None = None, way: Way = "blocking", **options: Any
    ) -> Client:
        """An agent, connected directly or through a proxy."""
        url = self.url if proxy is None else proxy.through(self.url)
        if way == "blocking":
            client = Client(None, interlock.connect(url, agent, **options))
        else:
            with self._guard:
                self._loop = self._loop or Loop()
            fleet = self._loop.run(aio.connect(url, agent, **options))
            client = Client(self._loop, fleet)
        self._clients.append(client)
        return client

    def store(self) -> Store:
        """A store, connected directly."""
        self._stores.append(open_store(self.url))
        return self._stores[-1]

    def begin(self, call: Callable[..., T], *arguments: Any, **terms: Any) -> Future[T]:
        """Run a call beside the test."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*arguments, **terms))
            except BaseException as error:  # noqa: BLE001 - raised by result()
                future.set_exception(error)

        threading.Thread(target=run, name=THREADS[1], daemon=True).start()
        self._begun.append(future)
        return future

    def restart(self) -> None:
        """Kill -9, and start again."""
        self.server.restart()


class _Constant:
    """Whether a number has not changed for a while; it is asked again and again."""

    def __init__(self, read: Callable[[], int], seconds: float = 0.1) -> None:
        self._read = read
        self._seconds = seconds
        self._last, self._since = -1, 0.0

    def __call__(self) -> bool:
        now, last = time.monotonic(), self._read()
        if last != self._last:
            self._last, self._since = last, now
        return now - self._since >= self._seconds


class RequestFault:
    """A fault for the first request that contains all of these words; other requests pass.

    ``lost`` holds all replies from then on, until ``lose`` closes the connections: the requests
    have happened by then, and their replies are lost.
    """

    def __init__(self, proxy: Proxy, verdict: Verdict | Literal["lost"], *words: bytes) -> None:
        self.happened = threading.Event()
        self._proxy = proxy
        self._verdict = verdict
        self._words = words
        proxy.on_request(self._judge)

    def wait(self) -> None:
        """Wait for that request; for one that is held, until no more of it comes.

        A client may send a request in several parts, and the server handles only a complete one.
        """
        assert self.happened.wait(PATIENCE), f"no request with {self._words}"
        if self._verdict == "hold":
            until(_Constant(lambda: self._proxy.counts.held_requests), "the rest of the request")

    def _judge(self, data: bytes) -> Verdict:
        if self.happened.is_set() or VOID in data or not all(word in data for word in self._words):
            return None
        self.happened.set()
        if self._verdict == "lost":
            self._proxy.hold_replies()
            return None
        return self._verdict

    def lose(self) -> None:
        """Close the connections whose replies are held."""
        self._proxy.cut_once()
        self._proxy.heal()


def voids(store: Store) -> int:
    """How many commits were settled by a void."""
    ref = Log(limit=10_000)
    return sum(item.value == VOID for item in store.read(ref).ranges[ref])


def settle(condition: Callable[[], object], what: str, timeout: float = 60.0) -> None:
    """Wait until the condition holds."""
    until(condition, what, timeout)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
