"""Several commits in one request: each is judged, answered and refused by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget

from interlock import aio
from interlock.errors import OutcomeUnknown, StoreFull, StoreMoving, StoreRefused
from interlock.nouns.grants.lock import LockGranted
from interlock.store import LOG, Check, Committed, Conflict, Put, StoreMark, Txn, void
from interlock.stores import open_store, open_store_async
from interlock.stores.network import REPLY
from interlock.stores.redis import RedisStore, async_connections
from interlock.stores.redis.scripts import CommitPacker, pack, packed_commit
from interlock.testing.conformance.place import committed, txn, write
from interlock.testing.servers import RedisServer
from interlock.testing.servers.proxy import Proxy

START = 4_000_000_000_000_000
"""A revision far ahead of the clock: so the next ones are START + 1, START + 2, ..."""
_KEYS = ("a", "a/b", "tasks/x", "live/s", "live/t")


class Twin:
    """A namespace whose revisions follow from the commits alone, and what became of each."""

    def __init__(self, store: RedisStore, bound: int) -> None:
        self.store = store
        self.answers: list[Any] = []
        self._commits = CommitPacker(store._tail, bound)
        self._ask("UNLINK", *store.keys.values())
        self._ask("HSET", store.keys["meta"], "rev", str(START))
        self._listener = store.transport.dial()
        self._listener.exchange(pack(("PSUBSCRIBE", store.channel_prefix + b"*")))

    def send(self, changes: Sequence[Txn], latest: int) -> None:
        """Send these commits with one request."""
        commits = [packed_commit(each) for each in changes]
        request = self._commits.request(commits, latest, whole=True)
        reply = self._raw(request)
        several = len(changes) > 1 and not isinstance(reply, ReplyError)
        answers = reply if several else [reply] * len(changes)
        self.answers += [str(each) if isinstance(each, ReplyError) else each for each in answers]

    def set_format(self, text: str) -> None:
        """Make it a store with a format, or one that a mark closes to commits."""
        self._ask("HSET", self.store.keys["meta"], "format", text)

    def dump(self) -> list[object]:
        """Everything that is stored, and all that was told to watches."""
        keys = self.store.keys
        hashes = [self._ask("HGETALL", keys[name]) for name in ("items", "ids", "meta")]
        found: list[object] = [dict(zip(each[::2], each[1::2], strict=True)) for each in hashes]
        sets = [keys[name] for name in ("index", "live", "refused")]
        found += [self._ask("ZRANGE", key, "0", "-1", "WITHSCORES") for key in sets]
        return [*found, self._ask("XRANGE", keys["log"], "-", "+"), self._told()]

    def _told(self) -> list[tuple[bytes, bytes]]:
        prefix = self.store.channel_prefix
        self._ask("PUBLISH", prefix + b"end", "")
        found: list[tuple[bytes, bytes]] = []
        while (message := self._listener.receive())[2] != prefix + b"end":
            found.append((message[2].removeprefix(prefix), message[3]))
        self.store.transport.drop(self._listener)
        return [each for each in found if each[0] != b"?"]  # tried once for all of them

    def _ask(self, *words: str | bytes) -> Any:
        return self._raw(pack(words))

    def _raw(self, request: bytes) -> Any:
        connection, _ = self.store.transport._take(REPLY)
        reply = connection.exchange(request)
        self.store.transport._give(connection)
        return reply


@pytest.fixture
def twins(
    redis_url: str, opened: Callable[[str], RedisStore]
) -> Callable[[int], tuple[Twin, Twin]]:
    stores = opened(redis_url + "-1"), opened(redis_url + "-2")
    return lambda bound: (Twin(stores[0], bound), Twin(stores[1], bound))


_keys = st.sampled_from(_KEYS)
_values = st.sampled_from([b"", b"1", b'{"a":1}', b"{}", b"x" * 40])
_checks = st.builds(
    Check,
    _keys | st.integers(0, 9).map(lambda number: f"{LOG}txn_{number}"),
    st.sampled_from(["absent", "exists", "at", "has"]),
    revision=st.integers(START + 1, START + 8),
    value=_values,
)
_plain = st.builds(Put, _keys.filter(lambda key: not key.startswith("live/")), _values)
_living = st.builds(
    Put,
    st.sampled_from(["live/s", "live/t"]),
    _values,
    st.sampled_from([0.000001, 0.000003, 30.0, None]),
)


@st.composite
def _changes(draw: st.DrawFn) -> Txn:
    quiet = draw(st.booleans())
    puts = {put.key: put for put in draw(st.lists(_plain | _living, max_size=3))}
    return Txn(
        id=f"txn_{draw(st.integers(0, 9))}",
        entry=b"" if quiet else b'{"verb":"test"}',
        hash="" if quiet else "#",
        quiet=quiet,
        checks=tuple(draw(st.lists(_checks, max_size=2))),
        puts=tuple(puts.values()),
        deletes=tuple(
            [key for key in draw(st.lists(_keys, max_size=2, unique=True)) if key not in puts]
        ),
        reads=tuple(draw(st.lists(_keys, max_size=2, unique=True))),
        signals=tuple(draw(st.lists(st.sampled_from(["a", "bell/x"]), max_size=1))),
        ends=draw(st.booleans()),
        longest=draw(st.none() | st.just(10)),
    )


@given(
    changes=st.lists(_changes(), min_size=2, max_size=12),
    patience=st.sampled_from([1_000_000, 1_000_000, 3, -1]),
    marked=st.sampled_from([None, None, None, 0, 1]),
    used=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=budget(150))
def test_commits_of_one_request_are_judged_as_if_each_were_sent_by_itself(
    twins: Callable[[int], tuple[Twin, Twin]],
    changes: list[Txn],
    patience: int,
    marked: int | None,
    used: bool,
) -> None:
    """Later ones see what earlier ones wrote; liveness expires between two of them."""
    alone, together = twins(1000)
    if used:
        alone.set_format("2")
        together.set_format("2")
    groups = [list(group) for _, group in groupby(changes, lambda each: each.makes_room)]
    for number, group in enumerate(groups):
        if marked == number:
            alone.set_format('{"state":"moved"}')
            together.set_format('{"state":"moved"}')
        for each in group:
            alone.send([each], START + patience)
        together.send(group, START + patience)
    assert together.answers == alone.answers
    assert together.dump() == alone.dump()


def test_a_request_trims_no_more_than_its_commits_would(
    twins: Callable[[int], tuple[Twin, Twin]],
) -> None:
    alone, together = twins(10)
    old = [txn(id_=f"old_{number}") for number in range(90)]
    young = [
        txn(id_=f"new_{number}", checks=(Check(f"{LOG}old_1", "exists"),)) for number in (1, 2)
    ]
    for twin in (alone, together):
        twin.send(old, START + 1000)
        twin._ask("HSET", twin.store.keys["meta"], "rev", str(START + 200_000_000))
    alone.send(young[:1], START + 200_001_000)
    together.send(young, START + 200_001_000)
    assert [each[0] for each in together.answers[-2:]] == [1, 1], "trimmed after the last of them"
    assert len(alone.dump()[-2]) == 91 - 81  # type: ignore[arg-type]
    assert len(together.dump()[-2]) == 92 - 82  # type: ignore[arg-type]


async def _all(store: RedisStore, *changes: Txn) -> list[Any]:
    """Commit in one iteration of the loop; all but the first of them share requests."""
    await store.read_async()
    return await asyncio.gather(*map(store.commit_async, changes), return_exceptions=True)


def test_commits_of_one_iteration_share_requests(
    redis_server: RedisServer, store: RedisStore
) -> None:
    changes = [txn(Put(f"p/{number}", b""), reads=(f"p/{number}",)) for number in range(64)]
    asyncio.run(_all(store, txn()))
    before = _scripts(redis_server)
    answers = asyncio.run(_all(store, *changes))
    revisions = [committed(each).revision for each in answers]
    assert sorted(set(revisions)) == revisions, "in their order"
    assert [tuple(each.items) for each in answers] == [each.reads for each in changes]
    alone, read = 1, 1
    shared = -(-63 // async_connections.MOST)
    assert _scripts(redis_server) - before == alone + read + shared


def _scripts(server: RedisServer) -> int:
    stats = server.info("commandstats").get("cmdstat_evalsha", "calls=0,")
    return int(stats.partition("=")[2].partition(",")[0])


def test_of_commits_that_want_the_same_the_first_one_has_it(store: RedisStore) -> None:
    changes = [txn(Put("a", b""), checks=(Check("a", "absent"),)) for _ in range(40)]
    first, *others = asyncio.run(_all(store, *changes))
    assert isinstance(first, Committed)
    for other, change in zip(others, changes[1:], strict=True):
        assert isinstance(other, Conflict)
        item = other.items["a"]
        assert item is not None
        assert (item.revision, item.entry) == (first.revision, changes[0].id)
        assert other.items[LOG + change.id] is None


def test_a_commit_that_cannot_be_packed_harms_no_other(store: RedisStore) -> None:
    wrong = txn(Put("\ud800", b""))
    answers = asyncio.run(_all(store, txn(), txn(Put("a", b"")), wrong, txn(Put("b", b""))))
    assert [type(each) for each in answers] == [
        Committed,
        Committed,
        UnicodeEncodeError,
        Committed,
    ]


def test_a_cancelled_commit_shifts_no_answer(store: RedisStore) -> None:
    async def main() -> None:
        await store.read_async()
        changes = [txn(Put(f"p/{n}", b""), reads=(f"p/{n}",)) for n in range(50)]
        tasks = [asyncio.ensure_future(store.commit_async(each)) for each in changes]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait(tasks)
        for number, task in enumerate(tasks):
            assert task.cancelled() == (number % 3 == 0)
            assert task.cancelled() or tuple(committed(task.result()).items) == (f"p/{number}",)

    asyncio.run(main())


def test_a_server_that_forgot_the_script_gets_it_again(
    redis_server: RedisServer, store: RedisStore
) -> None:
    async def main() -> list[Any]:
        await store.read_async()
        redis_server.command("SCRIPT", "FLUSH")
        return await asyncio.gather(*(store.commit_async(txn()) for _ in range(40)))

    assert {type(each) for each in asyncio.run(main())} == {Committed}


def test_a_store_that_moved_refuses_each_of_them(store: RedisStore) -> None:
    write(store, Put("a", b""))
    assert store.set_mark(StoreMark(state="moving", place="elsewhere", move="mov_1"), None)
    answers = asyncio.run(_all(store, *(txn() for _ in range(20))))
    assert {type(each) for each in answers} == {StoreMoving}


def test_a_full_server_refuses_each_that_begins_something_and_lets_go(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly=False) as server:
        store = open_store(server.url())
        assert isinstance(store, RedisStore)
        keys = [f"p/{number}" for number in range(20)]
        write(store, *(Put(key, bytes(50_000)) for key in keys))
        for _ in range(20):  # refused before, and to be forgotten: a deletion that is no excuse
            store.commit(txn(checks=(Check("p/1", "absent"),)))
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        begins = [txn(Put(f"q/{number}", b"")) for number in range(20)]
        ends = [txn(deletes=(key,)) for key in keys[:5]]
        refused = [txn(Put("q", b""), checks=(Check("q", "exists"),)) for _ in range(5)]
        mixed = [each for some in zip(refused, begins, ends, strict=False) for each in some]
        answers = asyncio.run(_all(store, *mixed, *begins[5:]))
        kinds = [type(each) for each in answers]
        assert kinds == [Conflict, StoreFull, Committed] * 5 + [StoreFull] * 15
        found = store.read(*(f"q/{number}" for number in range(20)), *keys).items
        assert [key for key, item in found.items() if item is not None] == keys[5:]
        store.close()


def test_a_missing_right_refuses_only_the_commits_that_need_it(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password="geheim", appendonly=False) as server:
        server.command("ACL", "SETUSER", "ada", "on", ">pw", "~*", "&*", "+@all")
        store = open_store(f"redis://ada:pw@{server.endpoint}")
        assert isinstance(store, RedisStore)
        write(store, Put("a", b"1"), Put("b", b"1"))
        server.command("ACL", "SETUSER", "ada", "-zrem")
        plain = [txn(Put(f"p/{number}", b"")) for number in range(6)]
        needs = [txn(Put("a", b"2"), deletes=("b",)) for _ in range(6)]
        mixed = [each for pair in zip(plain, needs, strict=True) for each in pair]
        answers = asyncio.run(_all(store, *mixed))
        assert [type(each) for each in answers] == [Committed, StoreRefused] * 6
        assert all("forbids this user zrem;" in str(each) for each in answers[1::2])
        found = store.read("a", "b", *(LOG + each.id for each in needs)).items.values()
        assert [item and item.value for item in found] == [b"1", b"1", *[None] * 6]
        store.close()


def test_what_commits_beside_a_refused_one_outlives_a_kill(tmp_path: Path) -> None:
    """A refusal is not written to the disk, and the commits of the same request are."""
    with RedisServer(tmp_path) as server:
        store = open_store(server.url())
        assert isinstance(store, RedisStore)
        write(store, Put("a", b""))
        refused = [txn(Put("b", b""), checks=(Check("a", "absent"),)) for _ in range(4)]
        others = [txn(Put(f"p/{number}", b"")) for number in range(4)]
        mixed = [each for pair in zip(refused, others, strict=True) for each in pair]
        answers = asyncio.run(_all(store, *mixed))
        assert [type(each) for each in answers] == [Conflict, Committed] * 4
        server.kill()
        server.start()
        store.close()
        store = open_store(server.url())
        found = store.read(*(f"p/{n}" for n in range(4)), *(LOG + each.id for each in others))
        assert None not in found.items.values()
        assert found.revision == answers[-1].revision
        store.close()


@pytest.mark.parametrize("happened", [True, False])
def test_a_cut_leaves_each_of_them_unknown_and_its_void_settles_it(
    redis_server: RedisServer, redis_url: str, *, happened: bool
) -> None:
    """The request with several commits is lost, or its reply; earlier and later ones go through."""

    async def main() -> None:
        with Proxy("127.0.0.1", redis_server.port) as proxy:
            store = await open_store_async(proxy.through(redis_url))
            await store.commit_async(txn())
            proxy.on_request(
                lambda data: ("drop reply" if happened else "cut") if b"p/20" in data else None
            )
            changes = [txn(Put(f"p/{number}", b"")) for number in range(40)]
            commits = [store.commit_async(each) for each in changes]
            answers = await asyncio.gather(*commits, return_exceptions=True)
            proxy.on_request(None)
            unknown = [each for each in answers if isinstance(each, OutcomeUnknown)]
            assert len(unknown) > 1
            names = {each.txn for each in unknown}
            for change, answer in zip(changes, answers, strict=True):
                assert (change.id in names) == (not isinstance(answer, Committed))
                settled = await store.commit_async(void(change.id))
                if isinstance(answer, Committed):
                    assert isinstance(settled, Conflict)
            items = (await store.read_async(*(each.puts[0].key for each in changes))).items
            there = {key for key, item in items.items() if item is not None}
            assert happened == ("p/20" in there)
            for change, answer in zip(changes, answers, strict=True):
                if isinstance(answer, Committed):
                    assert change.puts[0].key in there
            await store.close_async()

    asyncio.run(main())


def test_locks_in_flight_survive_cut_connections(redis_server: RedisServer, redis_url: str) -> None:
    """Each acquire settles its own commit, and what it returns is what the store has."""

    async def main() -> None:
        with Proxy("127.0.0.1", redis_server.port) as proxy:
            async with await aio.connect(proxy.through(redis_url), agent="ada") as fleet:
                await fleet.locks.acquire("first")
                requests = 0

                def judge(_: bytes) -> Any:
                    nonlocal requests
                    requests += 1
                    return {2: "drop reply", 5: "cut"}.get(requests)

                proxy.on_request(judge)
                got: dict[str, object] = {}
                for turn in range(4):
                    names = [f"lock{turn}.{number}" for number in range(40)]
                    outcomes = await asyncio.gather(*map(fleet.locks.acquire, names))
                    got |= dict(zip(names, outcomes, strict=True))
                proxy.on_request(None)
                assert requests > 5
                for name, outcome in got.items():
                    assert isinstance(outcome, LockGranted)
                    assert (await fleet.locks.show(name)).token == outcome.token
                verified = await fleet.record.verify()
                assert not verified.findings, verified

    asyncio.run(main())
