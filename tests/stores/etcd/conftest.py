from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.stores.etcd.etcds import opened

from interlock.stores.etcd import EtcdStore
from interlock.testing.servers import EtcdServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Not the one that all tests share: here its history is compacted and its leases revoked."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def url(server: EtcdServer) -> str:
    return server.url(f"test{next(_numbers)}")


@pytest.fixture
def store(url: str) -> Iterator[EtcdStore]:
    store = opened(url)
    yield store
    store.close()
