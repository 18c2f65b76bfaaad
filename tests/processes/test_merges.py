"""Three agents in three worktrees land branches through a queue whose servers are killed."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.faces.shell import PATIENCE, Shell
from tests.nouns.merges.repositories import TestRepository
from tests.processes.helpers import ProcessGroup, until

import interlock
from interlock.nouns.merges import merge as core
from interlock.testing.audit import audit
from interlock.testing.servers import RedisServer

AUTHORS = ("ada", "bob", "eve")


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.merge_programs") as everybody:
        yield everybody


@pytest.mark.parametrize(
    ("branches", "kills"), [(2, 2), pytest.param(20, 12, marks=pytest.mark.proof)]
)
def test_every_landed_commit_passed_its_guard_though_servers_are_killed(
    tmp_path: Path,
    programs: ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
    branches: int,
    kills: int,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    url, passed = f"{tmp_path}/store.db", tmp_path / "passed"
    git = TestRepository(tmp_path / "repository")
    passed.touch()
    first = git.at("main")
    for name in AUTHORS:
        git.git("worktree", "add", "-q", "--detach", f"{tmp_path}/{name}", "main")
    with interlock.connect(url, agent="test") as fleet:
        authors = [
            programs.start("author", url, f"{tmp_path}/{name}", name, branches) for name in AUTHORS
        ]
        chance, servers = random.Random(7), []
        for _ in range(kills):
            servers.append(programs.start("server", url, git.folder, passed))
            standby = programs.start("server", url, git.folder, passed)
            before = len(fleet.record.log(limit=100_000))
            more = chance.randrange(1, 8)
            until(lambda: len(fleet.record.log(limit=100_000)) >= before + more)  # noqa: B023
            servers[-1].kill()
            standby.kill()
        programs.start("server", url, git.folder, passed)
        for process in authors:
            assert process.remaining_lines()[-1] == "end"
        total = branches * len(AUTHORS)
        until(lambda: _ended(fleet) == total, 240.0)
        listed = fleet.merges.list(all=True, limit=1000)
    ends = {each.branch: each.state for each in listed}
    for name in AUTHORS:
        for number in range(branches):
            assert ends[f"{name}-{number}"] == ("bounced" if number % 5 == 4 else "merged")
    for each in listed:
        assert git.has(each.commit) == (each.state == "merged")
    assert set(git.tips()[1:]) <= set(passed.read_text().split()), "an untested commit landed"
    assert git.tips()[0] == first
    until(lambda: not git.kept())
    assert {name for name in git.branches() if ends.get(name) == "merged"} == set()
    with interlock.connect(url) as fleet:
        assert audit(fleet.store) == []


def test_a_server_waits_for_a_store_that_is_killed_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    git = TestRepository(tmp_path / "repository")
    shell = Shell(Path(git.folder))
    with RedisServer(tmp_path / "redis") as redis, closing(shell):
        url = redis.url("merges")
        shell.exported["INTERLOCK_STORE"] = url
        server = shell.start(
            "merge", "serve", "--agent", "queue", "--ttl", "2s", "--", "true"
        )  # fmt: skip
        assert server.stderr is not None
        assert "there was no store" in server.stderr.readline()
        assert "serving main" in server.stderr.readline()
        _land(git, url, "before")
        redis.kill()
        while "does not answer" not in (said := server.stderr.readline()):  # it says that it waits
            assert said, "it has ended"
        redis.restart()
        _land(git, url, "after")
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 143
    assert {"before", "after"} <= git.files()


def _land(git: TestRepository, url: str, name: str) -> None:
    git.branch(name, {name: name})
    with interlock.connect(url, agent="ada") as fleet:
        done = fleet.merges.submit(name, repository=git.folder, wait=60)
        assert isinstance(done, core.MergeDone), done


def _ended(fleet: interlock.Fleet) -> int:
    listed = fleet.merges.list(all=True, limit=1000)
    return sum(each.state in ("merged", "bounced") for each in listed)
