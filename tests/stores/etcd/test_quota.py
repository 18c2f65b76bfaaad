from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.stores.etcd.etcds import opened

from interlock.errors import BadInput, StoreFull
from interlock.store import Check, Committed, Put, void
from interlock.stores.address import parse
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import server as etcd_server
from interlock.testing.conformance.place import committed, fresh, txn, write
from interlock.testing.servers import EtcdServer

MIB = 1 << 20


def test_a_database_that_is_nearly_full_begins_nothing_new_and_lets_everything_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_server, "_OFTEN", 0.0)
    with EtcdServer(tmp_path, extra=("--quota-backend-bytes", str(16 * MIB))) as server:
        store = opened(server.url())
        held = write(store, Put("locks/held", b"1"), Put("live/a", b"", ttl=60))
        with pytest.raises(StoreFull) as caught:
            _fill(store)
        message = str(caught.value)
        assert "of 16 MiB" in message
        assert "etcdctl defrag" in message
        assert "\n" not in message
        with pytest.raises(StoreFull):
            store.commit(txn(Put("locks/new", b""), checks=(Check("locks/new", "absent"),)))
        assert [f.verdict for f in store.examine() if f.name == "room"] == ["bad"]
        check = Check("locks/held", "at", held)
        assert isinstance(store.commit(txn(Put("locks/held", b"2"), checks=(check,))), Committed)
        write(store, Put("live/a", b"", ttl=60), quiet=True)
        write(store, deletes=("locks/held", "live/a"), signals=("wake/b",))
        assert isinstance(store.commit(void(fresh())), Committed)
        store.close()


def test_a_database_at_its_quota_is_full_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EtcdServer(tmp_path, extra=("--quota-backend-bytes", str(10 * MIB))) as server:
        store = opened(server.url() + "?quota=1GiB")  # more than it takes: etcd itself refuses
        with pytest.raises(StoreFull) as caught:
            _fill(store)
        assert "etcdctl defrag" in str(caught.value)
        monkeypatch.setattr(etcd_server, "_OFTEN", 0.0)
        with pytest.raises(StoreFull, match="NOSPACE"):
            write(store, Put("a", b""))
        assert [f.fact for f in store.examine() if f.name == "alarms"] == ["NOSPACE"]
        committed(store.commit(txn(deletes=("big",), quiet=True)))
        store.close()


def test_fast_writers_never_reach_the_quota_and_releases_always_go(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, extra=("--quota-backend-bytes", str(16 * MIB))) as server:
        store, *others = [opened(server.url()) for _ in range(4)]
        held = [write(store, Put(f"locks/{number}", b"1")) for number in range(100)]

        def fill(each: EtcdStore) -> StoreFull | None:
            for number in range(20_000):
                try:
                    write(each, Put(f"big/{id(each)}/{number}", bytes(16 << 10)))
                except StoreFull as full:
                    return full
            return None

        with ThreadPoolExecutor(len(others)) as threads:
            assert all(threads.map(fill, others))
        for number, revision in enumerate(held):
            check = Check(f"locks/{number}", "at", revision)
            committed(store.commit(txn(checks=(check,), deletes=(f"locks/{number}",))))
        size = store.info()["db_bytes"]
        assert isinstance(size, int)
        assert size < 16 * MIB
        assert [f.fact for f in store.examine() if f.name == "alarms"] == ["none"]
        for each in (store, *others):
            each.close()


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", MIB), ("8GiB", 8 << 30), ("512MB", 512 * MIB), ("2g", 2 << 30)]
)
def test_a_quota_is_read_as_people_write_it(text: str, size: int) -> None:
    store = EtcdStore(parse(f"etcd://localhost/test?quota={text}"))
    assert store.quota._limit == size
    store.close()


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "8XiB"])
def test_a_quota_that_is_no_size_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="8GiB"):
        EtcdStore(parse(f"etcd://localhost/test?quota={text}"))


def _fill(store: EtcdStore) -> None:
    for _ in range(150):
        write(store, Put("big", bytes(MIB // 4)))
        time.sleep(0.02)  # etcd counts ten times a second what it wrote
