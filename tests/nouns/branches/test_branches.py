"""Branches that are watched, and worktrees that follow them, with real repositories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.nouns.merges.repositories import IDENTITY, TestRepository

from interlock.core import codec, keys
from interlock.errors import BadInput
from interlock.nouns.branches import branch as core
from interlock.nouns.branches import rebase
from interlock.nouns.merges.repository import MergeRepository
from interlock.store import Put, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Testbed


class BranchBed:
    """A repository with a worktree of the branch ``feature``, and a watcher."""

    def __init__(self, folder: Path) -> None:
        self.bed = Testbed()
        self.git = TestRepository(folder / "repository")
        self.git.branch("feature", {"mine": "mine\n"})
        self.tree = folder / "tree"
        self.git.git("worktree", "add", "-q", str(self.tree), "feature")
        self.ada = self.bed.client("ada", ttl=10_000_000.0)
        self.watcher = self.bed.client("watcher", ttl=10_000_000.0)

    def look(self, client: Client | None = None, **more: Any) -> int:
        client = client or self.watcher
        more = {"repository": self.git.folder, **more}
        watching = client.fleet.branches.watch(once=True, **more)
        return client.run(watching).moves

    def rebase(self, client: Client | None = None, **more: Any) -> Any:
        client = client or self.ada
        return client.run(client.fleet.branches.rebase(folder=self.tree, **more))

    def mail(self) -> list[Any]:
        return list(self.ada.run(self.ada.messages.inbox()).messages)

    def status(self) -> str:
        return self.git.git("-C", str(self.tree), "status", "--porcelain", "--branch")


@pytest.fixture
def stage(tmp_path: Path) -> BranchBed:
    return BranchBed(tmp_path)


def test_each_move_is_announced_once_also_one_that_no_watcher_saw(stage: BranchBed) -> None:
    stage.ada.run(stage.ada.messages.subscribe("main_updated"))
    other = stage.bed.client("other")
    assert stage.look() == 0
    before = stage.git.at("main")
    for name in ("x", "y"):
        stage.git.branch("main", {name: name})
    assert [stage.look(other), stage.look(), stage.look(other)] == [1, 0, 0]
    told = [each.data for each in stage.mail()]
    assert told == [
        {
            "branch": "main",
            "repository": "repository",
            "before": before,
            "after": stage.git.at("main"),
            "commits": 2,
        }
    ]
    stage.git.git("update-ref", "refs/heads/main", before)
    assert stage.look() == 1
    assert stage.mail()[-1].data["forced"]
    assert audit(stage.bed.store) == []


def test_one_watcher_looks_for_the_fleet_and_another_takes_over(stage: BranchBed) -> None:
    first, second = stage.watcher, stage.bed.client("second", ttl=10_000_000.0)
    watching = first.start(first.fleet.branches.watch(repository=stage.git.folder))
    waiting = second.start(second.fleet.branches.watch(repository=stage.git.folder))
    assert waiting.asleep
    view = second.run(second.locks.show("watch/repository/main"))
    assert (view.holder, view.waiters) == ("watcher", ("second",))
    watching.interrupt(KeyboardInterrupt())
    waiting.run()
    assert second.run(second.locks.show("watch/repository/main")).holder == "second"


def test_branches_of_two_repositories_are_watched_apart(stage: BranchBed, tmp_path: Path) -> None:
    other = TestRepository(tmp_path / "other")
    for _ in range(2):
        assert (stage.look(), stage.look(repository=other.folder)) == (0, 0)
    other.branch("main", {"x": "x"})
    assert (stage.look(), stage.look(repository=other.folder)) == (0, 1)


def test_a_move_since_an_earlier_version_looked_is_announced(
    stage: BranchBed, tmp_path: Path
) -> None:
    old = keys.watched_branch("main")
    stage.git.branch("main", {"mine": "x"})
    before = core.WatchedBranch(commit=stage.git.at("main"), at=1.0, moves=3)
    stage.bed.store.commit(Txn(id="txn_old", quiet=True, puts=(Put(old, codec.encode(before)),)))
    other = TestRepository(tmp_path / "other", branch="main")
    assert stage.look(repository=other.folder) == 0  # it was not this one
    stage.git.branch("main", {"x": "x"})
    assert stage.look() == 1
    assert stage.look() == 0
    assert stage.bed.store.read(old)[old] is None


def test_a_branch_that_rests_is_looked_at_less_often() -> None:
    wait, waits = 1.0, []
    for moved in (False, False, False, True, False):
        wait = core.pace(wait, 1.0, 2.0, moved=moved)
        waits.append(wait)
    assert waits == [1.5, 2.0, 2.0, 1.0, 1.5]


def test_a_rebase_keeps_changes_that_it_does_not_touch(stage: BranchBed) -> None:
    stage.git.branch("main", {"theirs": "x"})
    (stage.tree / "mine").write_text("not committed\n")
    (stage.tree / "new").write_text("new\n")
    done = stage.rebase()
    assert isinstance(done, core.Rebased)
    assert stage.git.files("feature") == {"base", "mine", "theirs"}
    assert (stage.tree / "theirs").read_text() == "x"
    assert (stage.tree / "mine").read_text() == "not committed\n"
    assert stage.status().split("\n")[1:] == [" M mine", "?? new"]
    assert stage.rebase().already


def test_a_conflict_leaves_the_folder_as_it_was_and_is_a_message_with_its_files(
    stage: BranchBed,
) -> None:
    before = stage.git.at("feature")
    stage.git.branch("main", {"mine": "theirs\n"})
    done = stage.rebase(report="lead")
    assert isinstance(done, core.RebaseConflict)
    assert done.files == ("mine",)
    assert stage.git.at("feature") == before
    assert stage.status() == "## feature"
    lead = stage.bed.client("lead")
    told = lead.run(lead.messages.inbox()).messages[0]
    assert (told.type, told.data["files"]) == ("rebase", ["mine"])
    assert stage.git.git("worktree", "list").count("\n") == 1


def test_changes_that_would_be_lost_block_a_rebase(stage: BranchBed) -> None:
    before = stage.git.at("feature")
    stage.git.branch("main", {"base": "changed\n"})
    (stage.tree / "base").write_text("mine\n")
    assert isinstance(stage.rebase(), core.RebaseBlocked)
    assert stage.git.at("feature") == before
    assert (stage.tree / "base").read_text() == "mine\n"


def test_a_rebase_that_was_killed_before_its_folder_followed_is_finished_by_the_next(
    stage: BranchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.git.branch("main", {"theirs": "x"})

    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MergeRepository, "follow", killed)
        with pytest.raises(KeyboardInterrupt):
            stage.rebase()
    assert not (stage.tree / "theirs").exists()
    assert stage.rebase().already
    assert (stage.tree / "theirs").read_text() == "x"
    assert stage.status() == "## feature"
    assert stage.git.git("for-each-ref", rebase.REBASES) == ""


def test_a_rebase_of_the_user_that_is_not_finished_is_left_alone(stage: BranchBed) -> None:
    stage.git.git("-C", str(stage.tree), "checkout", "-q", "--detach")
    with pytest.raises(BadInput, match="not finished"):
        stage.rebase()


def test_a_worktree_in_which_another_agent_works_is_not_rebased(stage: BranchBed) -> None:
    stage.git.branch("main", {"theirs": "x"})
    stage.ada.run(stage.ada.locks.acquire("worktree/repository/feature"))
    other = stage.bed.client("bob")
    blocked = stage.rebase(other)
    assert isinstance(blocked, core.RebaseBlocked)
    assert "ada works" in blocked.reason
    assert stage.rebase().branch == "feature"  # she may herself


def test_a_branch_of_a_remote_is_watched_and_rebased_onto(stage: BranchBed, tmp_path: Path) -> None:
    origin = TestRepository(tmp_path / "origin.git")
    stage.git.git("push", "-q", "--force", str(origin.folder), "main:main")
    where = str(origin.folder)
    assert stage.look(remote=where) == 0
    origin.branch("main", {"far": "x"})
    assert stage.look(remote=where) == 1
    assert isinstance(stage.rebase(remote=where), core.Rebased)
    assert (stage.tree / "far").read_text() == "x"
    with pytest.raises(BadInput, match="does not answer"):
        stage.look(remote=f"{tmp_path}/nowhere")


def test_what_is_no_conflict_is_refused_with_the_reason_of_git(
    stage: BranchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.git.branch("main", {"theirs": "x"})
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    for name in ("name", "email"):
        stage.git.git("config", "--unset", f"user.{name}")
    stage.git.git("config", "user.useConfigOnly", "true")
    with pytest.raises(BadInput, match="cannot be rebased: git rebase failed: no email was given"):
        stage.rebase()
    assert stage.mail() == []
    with pytest.raises(BadInput, match="go to a worktree"):
        rebase.rebase(str(stage.git.folder), "feature", "")


def test_a_conflict_in_a_file_with_any_name_is_reported(stage: BranchBed) -> None:
    name = '"x\\377\\t!"'
    stage.git.branch("feature", {name: "mine\n"}, onto="feature")
    stage.git.git("-C", str(stage.tree), "reset", "-q", "--hard")
    stage.git.branch("main", {name: "theirs\n"})
    assert stage.rebase().files == (r"x\udcff\t!",)


def test_a_rebase_brings_no_files_of_a_store_into_a_folder(stage: BranchBed) -> None:
    stage.git.branch("main", {".interlock/config.toml": "store = 'elsewhere'\n"})
    blocked = stage.rebase()
    assert isinstance(blocked, core.RebaseBlocked)
    assert "main has files of a store of Interlock" in blocked.reason
    assert not (stage.tree / ".interlock").exists()
    stage.git.branch("main", {"other": "x\n"}, onto="main~1")
    assert isinstance(stage.rebase(), core.Rebased)
