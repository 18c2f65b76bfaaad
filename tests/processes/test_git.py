"""Build servers that share nothing but a git remote: real processes, each with its own cache."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import checks
from tests.processes.helpers import ProcessGroup

import interlock
from interlock.stores import open_store

SERVERS = 5


@pytest.fixture
def servers() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.git_programs") as everybody:
        yield everybody


@pytest.fixture
def git_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/watcher")
    subprocess.run(["git", "init", "-q", "--bare", f"{tmp_path}/fleet.git"], check=True)
    return f"git+file://{tmp_path}/fleet.git"


def raced(url: str, servers: ProcessGroup, tmp_path: Path, tasks: int, seconds: float) -> list[int]:
    """All servers do tasks at once; how many each did."""
    with interlock.connect(url, agent="planner") as fleet:
        fleet.tasks.publish_all([{"id": f"t{number}"} for number in range(tasks)])
    crew = [
        servers.start("drain", url, tmp_path / f"s{number}", f"s{number}", seconds)
        for number in range(SERVERS)
    ]
    for actor in crew:
        assert actor.read_line() == "ready"
    for actor in crew:
        actor.write_line()
    shares = [int(actor.read_line(seconds + 60)) for actor in crew]
    for actor in crew:
        actor.finish()
    checks.sound(url)
    ends = [line.thing for line in checks.read_log(url).values() if line.verb == "task.complete"]
    assert len(ends) == len(set(ends)) == sum(shares), "one winner for each task"
    return shares


def test_five_servers_do_every_task_once(
    git_url: str, servers: ProcessGroup, tmp_path: Path
) -> None:
    shares = raced(git_url, servers, tmp_path, 10, 60)
    assert sum(shares) == 10


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_five_servers_race_for_ten_minutes_and_share_fairly(
    git_url: str, servers: ProcessGroup, tmp_path: Path
) -> None:
    seconds, tasks = 600.0, 10_000
    shares = raced(git_url, servers, tmp_path, tasks, seconds)
    assert sum(shares) > 600
    assert min(shares) >= 0.7 * sum(shares) / len(shares), shares


def test_the_lock_of_a_killed_server_is_free_after_its_ttl(
    git_url: str, servers: ProcessGroup, tmp_path: Path
) -> None:
    with interlock.connect(git_url, agent="bob") as bob:
        ttl = bob.store.capabilities.min_ttl
        holder = servers.start("hold", git_url, tmp_path / "a", ttl)
        assert holder.read_line().startswith("LockAcquired")
        assert not bob.locks.acquire("deploy")
        time_left = time.monotonic() + 1.2 * ttl  # it beats, and stays the holder
        while time.monotonic() < time_left:
            assert not bob.locks.acquire("deploy")
        killed = time.monotonic()
        holder.kill()
        assert bob.locks.acquire("deploy", wait=60)
        assert time.monotonic() - killed < ttl + 10
    checks.sound(git_url)


def test_a_server_that_is_stopped_for_longer_than_its_ttl_finds_its_lock_gone(
    git_url: str, servers: ProcessGroup, tmp_path: Path
) -> None:
    with interlock.connect(git_url, agent="bob") as bob:
        ttl = bob.store.capabilities.min_ttl
        holder = servers.start("hold", git_url, tmp_path / "a", ttl)
        assert holder.read_line().startswith("LockAcquired")
        holder.freeze()
        assert bob.locks.acquire("deploy", wait=60)
        holder.thaw()
        holder.write_line()
        assert holder.read_line() in ("LockFenced", "LockNotOwner")
    checks.sound(git_url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_second_user_is_told_to_use_a_cache_of_its_own(
    servers: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        remote, cache, own = (f"{folder}/{name}" for name in ("fleet.git", "cache", "own"))
        subprocess.run(["git", "init", "-q", "--bare", "--shared=all", remote], check=True)
        trusts = f"[safe]\n\tdirectory = {remote}\n"  # as git wants it of another user's repository
        Path(folder, ".gitconfig").write_text(trusts, encoding="ascii")
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        open_store(f"git+file://{remote}").close()
        os.mkdir(own)
        opened = f"chmod a+rwx {folder} {own}; chmod -R a+rwX {remote}"
        subprocess.run(["sh", "-c", opened], check=True)
        other = servers.start("another_user", f"git+file://{remote}", cache, own)
        assert "is the cache of another user" in (said := other.read_line())
        assert "set XDG_CACHE_HOME" in said
        assert other.read_line() == "committed"
        other.finish()
