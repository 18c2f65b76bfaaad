from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlock.store import Change, Put, Resync, Store
from interlock.stores import open_store
from interlock.testing.conformance import Conformance, Place
from interlock.testing.conformance.place import PATIENCE, gather, write
from interlock.testing.servers import EtcdServer


class EtcdPlace(Place):
    """A namespace of its own on a server that others use too."""

    def __init__(self, server: EtcdServer, url: str) -> None:
        super().__init__(lambda: open_store(url))
        self._server = server
        for lease in server.call("/v3/lease/leases").get("leases", ()):
            # What an earlier test left behind would move the revision when it lapses.
            server.call("/v3/lease/revoke", {"ID": lease["ID"]})

    def trim(self, store: Store, revision: int) -> None:
        self._server.call("/v3/kv/compaction", {"revision": revision, "physical": True})


class TestEtcdStore(Conformance):
    @pytest.fixture
    def place(self, etcd_server: EtcdServer, etcd_url: str) -> Iterator[Place]:
        place = EtcdPlace(etcd_server, etcd_url)
        yield place
        place.close()

    def test_forgotten_history_is_a_resync_never_a_gap(self, place: Place, store: Store) -> None:
        """Like the suite's, but etcd can still tell the very revision that it is compacted to."""
        old = write(store, Put("p/1", b""))
        write(store, Put("p/2", b""))
        last = write(store, Put("p/2", b""))
        place.trim(store, last)
        for after in (0, old):
            watch = store.watch("p/", after)
            assert watch.take(PATIENCE) == [Resync(store.read().revision)]
            write(store, Put("p/3", b""))
            assert [change.key for change in gather(watch, bool)] == ["p/3"]
            watch.close()
        watch = store.watch("p/", last - 1)
        assert gather(watch, bool)[0] == Change(last, "p/2")
