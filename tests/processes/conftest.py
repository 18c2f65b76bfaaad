from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import ProcessGroup

from interlock.testing.servers import EtcdServer, GitHttpServer, RedisServer, ServerTrouble
from interlock.testing.servers.proxy import Proxy


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.lock_programs") as everybody:
        yield everybody


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture(
    params=[
        pytest.param(RedisServer, id="redis"),
        pytest.param(EtcdServer, id="etcd"),
        pytest.param(GitHttpServer, id="git", marks=pytest.mark.proof),
    ]
)
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisServer | EtcdServer | GitHttpServer]:
    """A server of one's own, to be killed and frozen."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    started = request.param(tmp_path / "server")
    try:
        started.start()
    except ServerTrouble as error:
        if request.param is GitHttpServer:
            pytest.skip(str(error))
        raise
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def proxy(server: RedisServer | EtcdServer | GitHttpServer) -> Iterator[Proxy]:
    """Stands before the server."""
    with Proxy("127.0.0.1", server.port) as started:
        yield started
