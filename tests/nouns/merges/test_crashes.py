"""A merge server dies between any two steps, or its network fails at any commit.

Whatever happens, the next server ends every merge, says "merged" of what the target contains and of
nothing else, lets nothing reach the target that did not pass its guard, and leaves no refs behind.
The guard is a function here; that real ones run in a folder of their own is tested elsewhere.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext, suppress
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.merges.repositories import TestRepository

from interlock.errors import OutcomeUnknown
from interlock.nouns.merges.checking import CandidateVerdict, MergeGuard
from interlock.nouns.merges.guard_folder import GuardFolder
from interlock.nouns.merges.merge import Merge
from interlock.nouns.merges.service import MergeService
from interlock.steps import Op
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Stepper, Testbed

HOUR = 3600.0


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A quick guard, which fails if there is a file ``bad``; the commits that passed it."""
    found: set[str] = set()

    def check_out(folder: GuardFolder, commit: str) -> None:
        said = folder._repository.git("ls-tree", "--name-only", commit)
        folder.path = commit if "bad" not in said.split() else ""

    def check(_guard: MergeGuard, _runner: Any, folder: str, *_: Any) -> Op[CandidateVerdict]:
        yield from ()
        found.add(folder)
        return CandidateVerdict(passed=bool(folder), reason="" if folder else "there is a bad file")

    monkeypatch.setattr(GuardFolder, "being_made", lambda *_: nullcontext())
    monkeypatch.setattr(GuardFolder, "check_out", check_out)
    monkeypatch.setattr(MergeGuard, "check", check)
    return found


class CrashBed:
    """Three branches, the second of which fails, in a repository whose target is checked out."""

    def __init__(self, template: TestRepository, folder: Path) -> None:
        self.bed = Testbed()
        shutil.copytree(template.folder, folder)
        self.git = copy(template)
        self.git.folder = folder
        self.author = author = self.bed.client("ada", ttl=None)
        self.commits = {name: self.git.at(name) for name in ("a", "bad", "c")}
        service, actor = MergeService(author.runner), author.context.me().actor
        for name, commit in self.commits.items():
            merge = Merge(
                branch=name,
                into="main",
                commit=commit,
                by="ada",
                at=1.0,
                repository=folder.name,
            )
            author.run(service.submit(actor, author.runner.new_id("mrg"), merge))

    def serving(self, client: Client) -> Op[Any]:
        return client.fleet.merges.serve(
            "main", command=["guard"], drain=True, repository=self.git.folder
        )

    def finish(self, passed: set[str]) -> None:
        """The next server does the rest, and everything is as it must be."""
        self.bed.clock.advance(HOUR)
        heir = self.bed.client("heir", ttl=1_000_000.0)
        heir.run(self.serving(heir))
        listed = self.author.run(self.author.fleet.merges.list(all=True))
        ends = {each.branch: each.state for each in listed}
        assert ends == {"a": "merged", "bad": "bounced", "c": "merged"}
        for name, commit in self.commits.items():
            assert self.git.has(commit) == (ends[name] == "merged")
        tips = self.git.tips()
        assert set(tips[1:]) <= passed  # the first one was there before
        assert self.git.branches() == {"main", "bad"}
        assert self.git.kept() == set()
        assert self.git.git("status", "--porcelain") == ""
        told = self.author.run(self.author.messages.inbox()).messages
        assert sorted(each.data["branch"] for each in told) == ["a", "bad", "c"]
        assert audit(self.bed.store) == []


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestRepository:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    repository = TestRepository(tmp_path / "template", bare=False)
    for name in ("a", "bad", "c"):
        commit = repository.branch(name, {name: name})
        repository.git("update-ref", f"refs/interlock/merges/{commit}", commit)
    return repository


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.proof)])
def test_a_server_that_is_killed_after_any_step_leaves_nothing_half_merged(
    tmp_path: Path, template: TestRepository, passed: set[str], every: int
) -> None:
    for number in count(1, every):
        stage = CrashBed(template, tmp_path / str(number))
        server = stage.bed.client("queue")
        serving = Stepper(stage.serving(server), server.store, stage.bed.clock)
        for _ in range(number):
            serving.go()
        if serving.done:
            break
        stage.finish(passed)
    assert number > 20


@pytest.mark.parametrize(
    "fault",
    [
        "lost reply",
        pytest.param("late arrival", marks=pytest.mark.proof),
        pytest.param("conflict", marks=pytest.mark.proof),
        pytest.param("crash before", marks=pytest.mark.proof),
        pytest.param("crash after", marks=pytest.mark.proof),
    ],
)
def test_a_network_that_fails_at_any_commit_loses_no_merge_and_doubles_none(
    tmp_path: Path, template: TestRepository, passed: set[str], fault: Fault
) -> None:
    for number in count():
        stage = CrashBed(template, tmp_path / str(number))
        server = stage.bed.remote("queue", ttl=1000.0)
        server.network.script([None] * number + [fault])
        with suppress(Crash, OutcomeUnknown):
            server.run(stage.serving(server))
        struck = bool(server.network.drawn)
        server.network.deliver()
        server.network.revive()
        stage.finish(passed)
        if not struck:
            break
    assert number > 5
