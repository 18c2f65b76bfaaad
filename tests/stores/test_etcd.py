from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest

from interlock.store import Store
from interlock.stores import open_store
from interlock.testing.conformance import Conformance, MovableConformance, Place
from interlock.testing.servers import EtcdServer, ServerTrouble


class Servers:
    """One server for all these tests, until a test makes it forget its history."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self.server = EtcdServer(factory.mktemp("etcd")).start()
        self._numbers = itertools.count(1)

    def place(self) -> EtcdPlace:
        return EtcdPlace(self, self.server.url(f"test{next(self._numbers)}"))

    def renew(self) -> None:
        self.server.close()
        self.server = EtcdServer(self._factory.mktemp("etcd")).start()


class EtcdPlace(Place):
    """A namespace of its own."""

    def __init__(self, servers: Servers, url: str) -> None:
        super().__init__(lambda: open_store(url))
        self._servers = servers
        self._trimmed = False

    def trim(self, store: Store, revision: int) -> None:
        self._trimmed = True
        body = {"revision": revision, "physical": True}
        self._servers.server.call("/v3/kv/compaction", body)

    def end(self) -> None:
        """Leave nothing that would change the revision of a later test when it lapses."""
        self.close()
        if self._trimmed:
            self._servers.renew()
            return
        server = self._servers.server
        for lease in server.call("/v3/lease/leases").get("leases", ()):
            with suppress(ServerTrouble):  # lapsed this moment
                server.call("/v3/lease/revoke", {"ID": lease["ID"]})


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory)
    yield servers
    servers.server.close()


class TestEtcdStore(Conformance, MovableConformance):
    @pytest.fixture
    def place(self, servers: Servers) -> Iterator[Place]:
        place = servers.place()
        yield place
        place.end()
