"""Three agents in three worktrees land branches through a queue whose servers are killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.nouns.merges.repositories import TestRepository
from tests.processes.helpers import ProcessGroup, until

import interlock
from interlock.testing.audit import audit

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


def _ended(fleet: interlock.Fleet) -> int:
    listed = fleet.merges.list(all=True, limit=1000)
    return sum(each.state in ("merged", "bounced") for each in listed)
