from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import ProcessGroup

from interlock.testing.servers import EtcdServer, RedisServer
from interlock.testing.servers.proxy import Proxy


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.lock_programs") as everybody:
        yield everybody


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture(params=[RedisServer, EtcdServer], ids=["redis", "etcd"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | EtcdServer]:
    """A server of one's own, to be killed and frozen."""
    with request.param(tmp_path / "server") as started:
        yield started


@pytest.fixture
def proxy(server: RedisServer | EtcdServer) -> Iterator[Proxy]:
    """Stands before the server."""
    with Proxy("127.0.0.1", server.port) as started:
        yield started
