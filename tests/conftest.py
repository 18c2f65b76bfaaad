"""The servers that tests share: one of each kind for a worker, and a fresh namespace for a test.

A test that kills, freezes or reconfigures a server starts one of its own.

Everyday all searches of Hypothesis take the same ways, so that what fails is what was changed;
``make proof`` runs them all as well, and searches farther and elsewhere each time.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import hypothesis_settings

from interlock.faces.cli.connect import OF_AGENTS
from interlock.runtime import keeper
from interlock.testing.servers import EtcdServer, RedisServer

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup: what tests start inherits it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Many processes start, and five workers read all tests: none shall compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What `make test` unpacked is used where PATH has no such program.
_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
os.environ["PATH"] = f"{os.environ['PATH']}:{_cache}/interlock/servers/bin"
# Tests may run inside of a session, or of a coding agent.
for _name in ("INTERLOCK_AGENT", "INTERLOCK_SESSION", *OF_AGENTS):
    os.environ.pop(_name, None)
# Who runs the tests may sign all commits, with a key that asks.
os.environ |= {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "commit.gpgSign",
    "GIT_CONFIG_VALUE_0": "false",
}
# What tests allow is on a list of their own, also for the processes that they start.
_state = tempfile.TemporaryDirectory(prefix="interlock-tests-")
os.environ["XDG_STATE_HOME"] = _state.name
pytest.register_assert_rewrite("interlock.testing.conformance")

_numbers = itertools.count(1)

with_git = pytest.mark.parametrize("url", ["sqlite", "redis", "etcd", "git"], indirect=True)
"""Runs a test on each engine, git included, also in ``make test``."""
without_git = pytest.mark.parametrize("url", ["sqlite", "redis", "etcd"], indirect=True)
"""Runs a test that needs a quick engine."""


def pytest_configure(config: pytest.Config) -> None:
    hypothesis_settings.go(everyday=_everyday(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        searches = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if (searches and not _everyday(config)) or _left_to_proof(item):
            item.add_marker("proof")


def _left_to_proof(item: pytest.Item) -> bool:
    """Whether a test with the mark ``proof_on`` is the one on that engine."""
    mark, call = item.get_closest_marker("proof_on"), getattr(item, "callspec", None)
    return mark is not None and call is not None and mark.args[0] in call.id.split("-")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays: no collection of garbage shall go through it again and again."""
    gc.collect()
    gc.freeze()


def _everyday(config: pytest.Config) -> bool:
    return "not proof" in str(config.getoption("markexpr"))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    # The machine outlives the tests, so no sync proves anything; a sync takes as long as a test.
    with RedisServer(tmp_path_factory.mktemp("redis"), fsync="no") as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    # It is alone, so its election decides only how often it wakes, in each worker all the time.
    with EtcdServer(tmp_path_factory.mktemp("etcd"), election=1.0) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """A namespace of its own on the shared Redis."""
    return redis_server.url(f"test{next(_numbers)}")


@pytest.fixture
def etcd_url(etcd_server: EtcdServer) -> str:
    """A namespace of its own on the shared etcd."""
    return etcd_server.url(f"test{next(_numbers)}")


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of this process beat ten times as often as they must.

    Who waits for a beat then needs no session so short that a machine which stands still ends it.
    """
    monkeypatch.setattr(keeper, "BEATS_PER_TTL", 10 * keeper.BEATS_PER_TTL)


@pytest.fixture
def git_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A branch of a remote on this disk; the processes of the test are one host."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    subprocess.run(["git", "init", "-q", "--bare", f"{tmp_path}/fleet.git"], check=True)
    return f"git+file://{tmp_path}/fleet.git"


@pytest.fixture(params=["sqlite", "redis", "etcd", pytest.param("git", marks=pytest.mark.proof)])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store on each engine that real processes can share.

    On git a test takes ten times as long, so ``make proof`` runs it there, unless it has the mark
    ``with_git``.
    """
    find: Callable[[str], object] = request.getfixturevalue
    if request.param == "sqlite":
        return str(find("tmp_path")) + "/store.db"
    return str(find(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", "redis", "etcd"])
def places(request: pytest.FixtureRequest) -> Callable[[], str]:
    """An empty store of an engine, another one each time."""
    numbers = itertools.count()
    if request.param == "sqlite":
        folder = request.getfixturevalue("tmp_path")
        return lambda: f"{folder}/{next(numbers)}.db"
    server = request.getfixturevalue(f"{request.param}_server")
    name = uuid.uuid4().hex
    return lambda: str(server.url(f"{name}-{next(numbers)}"))
