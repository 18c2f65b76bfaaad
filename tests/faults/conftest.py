from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.setup import THREADS, Engine, Etcd, Redis, Setup

from interlock.testing.servers import EtcdServer, RedisServer, until

_KINDS: dict[str, tuple[Any, Any]] = {
    "redis": (Redis, RedisServer),
    "etcd": (Etcd, EtcdServer),
}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Neither of the test nor of a client that was closed; earlier tests may have left some."""
    before = set(threading.enumerate())
    yield

    def ours() -> list[str]:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        return [name for name in names if name.startswith(("interlock", "proxy", *THREADS))]

    until(lambda: not ours(), "the end of all threads")


@pytest.fixture(params=["redis", "etcd"])
def shared(request: pytest.FixtureRequest) -> Engine:
    """The server that tests share; the faults are in front of it."""
    kind, _ = _KINDS[request.param]
    engine: Engine = kind(request.getfixturevalue(f"{request.param}_server"))
    return engine


@pytest.fixture(params=["redis", "etcd"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A server to be killed and frozen."""
    kind, server = _KINDS[request.param]
    with server(tmp_path / "server") as started:
        yield kind(started)


@pytest.fixture
def setup(shared: Engine) -> Iterator[Setup]:
    """An empty namespace on a server that stays well."""
    with Setup(shared) as setup:
        yield setup


@pytest.fixture
def rough(own: Engine) -> Iterator[Setup]:
    """An empty namespace on a server of one's own."""
    with Setup(own) as setup:
        yield setup
