from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.stores.etcd.etcds import calls, leases, opened

import interlock
from interlock.store import Answer, Check, Committed, Conflict, Put, Range, Txn
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd.channel import GRANT, RequestBatch
from interlock.stores.etcd.server import fixed_in
from interlock.stores.network import REPLY, SendRequest
from interlock.testing.conformance.place import committed, fresh, refused, txn, write
from interlock.testing.servers import EtcdServer, until
from interlock.testing.servers.etcd import coded

KEY = "live/ses_1"


def test_the_lease_of_a_commit_that_conflicts_is_revoked(
    store: EtcdStore, server: EtcdServer
) -> None:
    before = leases(server)
    change = txn(Put(KEY, b"", ttl=600), checks=(Check("a", "exists"),))
    refused(store.commit(change))
    until(lambda: leases(server) <= before, "the lease revoked")


@pytest.mark.parametrize("grants", [1, 2])  # the key's own lease, then the one of signals
def test_the_leases_of_a_commit_that_is_interrupted_before_it_is_sent_are_revoked(
    store: EtcdStore, server: EtcdServer, grants: int
) -> None:
    before = leases(server)
    op = store._commit(txn(Put(KEY, b"", ttl=600), signals=("wake/a",)))
    answer: Any = None
    while grants:
        step = op.send(answer)
        assert isinstance(step, SendRequest)
        answer = step.perform(store.transport)
        grants -= isinstance(step.request, tuple) and step.request[0] == GRANT
    with pytest.raises(KeyboardInterrupt):
        op.throw(KeyboardInterrupt())
    until(lambda: leases(server) <= before, "the leases revoked")


def test_the_lease_of_a_deleted_key_is_revoked(store: EtcdStore, server: EtcdServer) -> None:
    before = leases(server)
    write(store, Put(KEY, b"", ttl=600))
    assert leases(server) > before
    write(store, deletes=(KEY,))
    until(lambda: leases(server) <= before, "the lease revoked")


def test_a_renewal_keeps_the_lease_and_writes_nothing(
    store: EtcdStore, server: EtcdServer, url: str
) -> None:
    write(store, Put(KEY, b"me", ttl=600))
    revision, made, before = store.read().revision, leases(server), calls(server)
    other = opened(url)
    for each in (store, store, other):
        answer = committed(each.commit(_renewal(600)))
        assert answer.revision == revision
        item = answer.items[KEY]
        assert item is not None
        assert item.value == b"me"
    other.close()
    assert store.read().revision == revision
    assert leases(server) == made
    after = calls(server)
    assert after["LeaseKeepAlive"] - before.get("LeaseKeepAlive", 0) == 3
    assert after["LeaseGrant"] == before["LeaseGrant"]


def test_a_renewal_for_another_time_takes_another_lease(
    store: EtcdStore, server: EtcdServer
) -> None:
    before = leases(server)
    created = write(store, Put(KEY, b"me", ttl=600))
    committed(store.commit(_renewal(100)))
    item = store.read(KEY, times=True)[KEY]
    assert item is not None
    assert item.created == created
    assert 90 < (item.expires_in or 0) <= 100
    until(lambda: len(leases(server) - before) == 1, "the first lease revoked")


def test_what_another_put_is_not_renewed_when_it_was_deleted_though_its_lease_lives(
    store: EtcdStore, server: EtcdServer, url: str
) -> None:
    write(store, Put(KEY, b"me", ttl=600))
    server.call("/v3/kv/deleterange", {"key": coded(store.namespace.key(KEY))})
    other = opened(url)
    assert other.commit(_renewal(600)) == Conflict({KEY: None})
    other.close()


def test_what_another_deleted_is_not_renewed(
    store: EtcdStore, server: EtcdServer, url: str
) -> None:
    before = leases(server)
    write(store, Put(KEY, b"me", ttl=600))
    other = opened(url)
    write(other, deletes=(KEY,))
    until(lambda: leases(server) <= before, "the lease revoked")
    other.close()
    assert store.commit(_renewal(600)) == Conflict({KEY: None})
    assert store.commit(_renewal(600)) == Conflict({KEY: None})


@pytest.mark.parametrize("known", [True, False])
def test_what_another_puts_again_is_not_kept_alive_by_a_lease_that_it_no_longer_has(
    store: EtcdStore, url: str, known: bool
) -> None:
    """Nobody may be told that a renewal worked while the key comes nearer to its end."""
    write(store, Put(KEY, b"me", ttl=60))
    other = opened(url)
    other.transport.send_unawaited = lambda requests: []  # type: ignore[method-assign]  # no courtesy arrives
    checks = (Check(KEY, "exists"),) if known else ()
    committed(other.commit(txn(Put(KEY, b"me", ttl=60), checks=checks)))
    other.close()
    put = time.monotonic()
    until(lambda: _left(store) < 58, "some time of it gone")
    for _ in range(10):
        sent = time.monotonic()
        if isinstance(store.commit(_renewal(60)), Committed):
            left = _left(store)  # first: it was true before, and so it ends no later than this
            ends = time.monotonic() + left
            assert ends >= sent + 60 - store.capabilities.grain, f"it was put {sent - put} s ago"
            return
    raise AssertionError("it is never renewed")


def _left(store: EtcdStore) -> float:
    item = store.read(KEY, times=True)[KEY]
    assert item is not None
    assert item.expires_in is not None
    return item.expires_in


def test_what_is_put_again_with_a_longer_time_gets_it(store: EtcdStore, url: str) -> None:
    write(store, Put(KEY, b"me", ttl=5))
    other = opened(url)
    again = txn(Put(KEY, b"you", ttl=600), checks=(Check(KEY, "exists"),))
    committed(other.commit(again))
    other.close()
    item = store.read(KEY, times=True)[KEY]
    assert item is not None
    assert item.value == b"you"
    assert (item.expires_in or 0) > 500


def test_a_renewal_checks_what_it_is_told_to_check(store: EtcdStore) -> None:
    revision = write(store, Put(KEY, b"me", ttl=600), Put("locks/a", b"1"))
    assert isinstance(store.commit(_renewal(600, Check("locks/a", "at", revision))), Committed)
    items = refused(store.commit(_renewal(600, Check("locks/a", "at", revision - 1)))).items
    assert set(items) == {KEY, "locks/a"}


def test_what_is_renewed_lives_and_what_is_not_lapses(store: EtcdStore) -> None:
    sent = time.monotonic()
    write(store, Put(KEY, b"me", ttl=5), Put("live/other", b"", ttl=5))
    while store.read("live/other")["live/other"] is not None:
        assert isinstance(store.commit(_renewal(5)), Committed)
        time.sleep(0.1)
    assert time.monotonic() - sent >= 5
    assert store.read(KEY)[KEY] is not None
    late = txn(Put("live/other", b"", ttl=5), checks=(Check("live/other", "exists"),), quiet=True)
    assert store.commit(late) == Conflict({"live/other": None})


@pytest.mark.usefixtures("lively")
def test_an_idle_agent_costs_etcd_nothing_but_keep_alives(server: EtcdServer, url: str) -> None:
    watcher = opened(url)
    with interlock.connect(url, agent="ada", ttl=10):
        revision, before = watcher.read().revision, calls(server)
        until(
            lambda: calls(server).get("LeaseKeepAlive", 0) - before.get("LeaseKeepAlive", 0) >= 3,
            "three renewals",
        )
        after = calls(server)
        grown = {name for name, count in after.items() if count > before.get(name, 0)}
        assert grown == {"LeaseKeepAlive"}
        assert watcher.read().revision == revision
    watcher.close()


def test_signals_hang_on_one_lease_and_no_read_shows_them(
    store: EtcdStore, server: EtcdServer
) -> None:
    write(store, Put("wake/b", b""), Put("wake/d", b""), Put("wake/e", b""), signals=("wake/a",))
    made = leases(server)
    write(store, signals=("wake/b", "wake/c"))
    assert leases(server) == made
    page = Range("wake/", limit=2)
    assert [item.key for item in store.read(page).ranges[page]] == ["wake/b", "wake/d"]
    after = Range("wake/", after="wake/b")
    assert [item.key for item in store.read(after).ranges[after]] == ["wake/d", "wake/e"]
    assert store.read("wake/a")["wake/a"] is None
    key = store.namespace.signal("wake/c")
    (kv,) = server.call("/v3/kv/range", {"key": coded(key)})["kvs"]
    assert int(kv["lease"])


def test_a_lost_lease_of_signals_is_replaced(store: EtcdStore, server: EtcdServer) -> None:
    write(store, signals=("wake/a",))
    for lease in leases(server):
        server.call("/v3/lease/revoke", {"ID": lease})
    write(store, Put(KEY, b"", ttl=60), signals=("wake/a",))


def _renewal(ttl: float, *checks: Check) -> Txn:
    exists = Check(KEY, "exists")
    return txn(Put(KEY, b"me", ttl=ttl), checks=(exists, *checks), id_=fresh(), quiet=True)


def test_an_event_loop_grants_renews_and_asks_for_times_all_at_once(store: EtcdStore) -> None:
    keys = [f"live/{number}" for number in range(3)]

    async def main() -> None:
        puts = tuple(Put(key, b"me", ttl=100) for key in keys)
        revision = committed(await store.commit_async(txn(*puts))).revision
        checks = tuple(Check(key, "exists") for key in keys)
        renewal = txn(*puts, checks=checks, quiet=True)
        assert committed(await store.commit_async(renewal)).revision == revision
        page = Range("live/")
        found = (await store.read_async(page, times=True)).ranges[page]
        assert [item.key for item in found] == keys
        assert all(item.expires_in is not None and item.expires_in > 90 for item in found)
        committed(await store.commit_async(txn(deletes=tuple(keys))))
        refused(await store.commit_async(renewal))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("3.4.0", "3.4.31"),
        ("3.4.23+dfsg", "3.4.31"),
        ("3.4.30", "3.4.31"),
        ("3.4.31-rc.1", "3.4.31"),
        ("3.4.31", ""),
        ("3.4.31+dfsg-1", ""),
        ("3.4.37", ""),
        ("3.5.0-rc.1", "3.5.13"),
        ("3.5.12", "3.5.13"),
        ("3.5.13-rc.0", "3.5.13"),
        ("3.5.13", ""),
        ("3.5.21", ""),
        ("3.6.0-rc.1", ""),
        ("3.6.0", ""),
        ("3.10.1", ""),
        ("4.0.0", ""),
        ("unknown", ""),
    ],
)
def test_a_version_whose_former_leader_ends_renewed_leases_is_known(
    version: str, needed: str
) -> None:
    assert fixed_in(version) == needed


def test_an_old_server_of_its_own_is_not_warned_of(store: EtcdStore) -> None:
    """It has no former leader."""
    assert store.caution == ""
    assert [each.verdict for each in store.examine() if each.name == "etcd"] == ["ok"]


def test_where_leases_cannot_be_trusted_a_renewal_outlives_the_lease_before_it(
    store: EtcdStore, server: EtcdServer
) -> None:
    store._commits.fresh = True
    others = leases(server)
    write(store, Put(KEY, b"me", ttl=600))
    (first,) = leases(server) - others
    again, there = Put(KEY, b"me", ttl=600), (Check(KEY, "exists"),)
    committed(store.commit(txn(again, checks=there, quiet=True)))
    committed(store.commit(txn(again, checks=there)))
    until(lambda: first not in leases(server), "the first lease revoked, by us or a former leader")
    found = store.read(KEY, times=True)[KEY]
    assert found is not None
    assert found.expires_in is not None
    assert found.expires_in > 590
    until(lambda: len(leases(server) - others) == 1, "each lease gone when the next one came")
    write(store, deletes=(KEY,))
    until(lambda: leases(server) <= others, "the lease revoked")


@pytest.mark.parametrize(("ttl", "most"), [(2.0, 0.5), (10.0, 2.5), (30.0, REPLY)])
def test_a_renewal_is_waited_for_as_its_ttl_allows(url: str, ttl: float, most: float) -> None:
    """So there is time for a second try, whether the key is our own or was put by others."""
    first, second = opened(url), opened(url)
    write(first, Put(KEY, b"", ttl=ttl))
    for store in (first, second):
        waits: list[float] = []
        call = store.transport.call

        def noted(
            request: Any, within: float = REPLY, call: Any = call, waits: list[float] = waits
        ) -> Any:
            waits.append(request.within if isinstance(request, RequestBatch) else within)
            return call(request, within)

        store.transport.call = noted  # type: ignore[method-assign]
        renewal = txn(Put(KEY, b"", ttl=ttl), checks=(Check(KEY, "exists"),), quiet=True)
        committed(store.commit(renewal))
        assert waits
        assert max(waits) == most
        store.close()


def test_a_prepared_lease_is_the_one_of_the_next_commit(
    store: EtcdStore, server: EtcdServer
) -> None:
    before, made = leases(server), calls(server).get("LeaseGrant", 0)
    store.prepare((600.0,))
    until(lambda: len(leases(server) - before) == 1, "the lease")
    write(store, Put(KEY, b"", ttl=600))
    assert calls(server)["LeaseGrant"] == made + 1
    item = store.read(KEY, times=True)[KEY]
    assert item is not None
    assert 590 < (item.expires_in or 0) <= 600


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_commit_does_not_overtake_the_request_for_its_prepared_lease(
    store: EtcdStore, server: EtcdServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(request: tuple[str, Any]) -> None:
        time.sleep(0.2)
        store.transport.call(request)

    change = txn(Put(KEY, b"", ttl=600))
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(
            store.transport,
            "send_unawaited",
            lambda some: [pool.submit(late, each) for each in some],
        )
        before = calls(server)
        store.prepare((600.0,))
        if kind == "async":

            async def commits() -> Answer:
                return await store.commit_async(change)

            committed(asyncio.run(commits()))
        else:
            committed(store.commit(change))
        after = calls(server)
        assert [after[each] - before.get(each, 0) for each in ("LeaseGrant", "Txn")] == [1, 1]


def test_a_commit_whose_prepared_lease_never_came_about_gets_another_one(
    store: EtcdStore, server: EtcdServer
) -> None:
    before = leases(server)
    store.prepare((600.0,))
    until(lambda: len(leases(server) - before) == 1, "the lease")
    (lease,) = leases(server) - before
    server.call("/v3/lease/revoke", {"ID": lease})
    write(store, Put(KEY, b"", ttl=600), signals=("wake/a",))
    assert store.read(KEY)[KEY] is not None


def test_a_prepared_lease_that_is_not_used_at_once_is_revoked(
    store: EtcdStore, server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time has begun: a key that hung on it would expire too early."""
    before = leases(server)
    store.prepare((600.0,))
    store.prepare((600.0,))
    until(lambda: len(leases(server) - before) == 1, "the first one revoked")
    monkeypatch.setattr("interlock.stores.etcd.leases._PREPARED", -1.0)
    old = leases(server) - before
    write(store, Put(KEY, b"", ttl=600))
    until(lambda: not old & leases(server), "the second one revoked")
    assert store.read(KEY)[KEY] is not None
