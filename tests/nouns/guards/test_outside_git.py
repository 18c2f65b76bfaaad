"""Branches: whether they exist, are clean, are merged; in repositories as they come."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.faces.shell import gone
from tests.nouns.guards.outside import HOST, WALL, Repository, look, value

from interlock.nouns.guards import outside_git
from interlock.nouns.guards.condition import BranchNeed, CleanNeed, MergedNeed, OutsideNeed
from interlock.nouns.guards.outside import observe
from interlock.nouns.guards.outside_git import is_branch_name
from interlock.testing.clock import FakeClock

GIT = shutil.which("git") or "git"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One commit on main."""
    made = Repository(tmp_path / "repository")
    made.commit()
    return made


@pytest.fixture
def unmerged(repository: Repository) -> Repository:
    """One more commit on topic."""
    repository("checkout", "-q", "-b", "topic")
    repository.commit("b.txt")
    repository("checkout", "-q", "main")
    return repository


def wrap(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script before git, which runs git at its end."""
    wrapper = folder / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n{script}\nexec {GIT} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")


def test_a_branch_exists_or_not(repository: Repository) -> None:
    seen = look(BranchNeed("main"), repository.path)
    head = repository("rev-parse", "HEAD")
    assert (seen.value, seen.host, seen.at) == (True, HOST, WALL)
    assert seen.says == f"branch main ({head[:12]}) exists"
    assert len(seen.digest) == 64
    missing = look(BranchNeed("topic"), repository.path)
    assert (missing.value, missing.says) == (False, "there is no branch topic")


def test_the_digest_of_a_branch_changes_with_its_commit(repository: Repository) -> None:
    before = look(BranchNeed("main"), repository.path)
    assert look(BranchNeed("main"), repository.path) == before
    repository.commit("b.txt")
    assert look(BranchNeed("main"), repository.path).digest != before.digest


STRANGE = ("-x", "--all", "ä/ö", "a\u2028b", "@", "HEAD", "(detached)", "a'b", "$(id)", "%00")
REFUSED = (
    "m*", "ma?n", "ma[i]n", "a b", "", ".", "..", "main^", "main~0", "@{0}", "x.lock", "a\n",
    "main/", "/main", "a\0b", "\udc80", "\udfff", "a" * 1001,
)  # fmt: skip


def test_a_branch_with_a_strange_name_is_found(repository: Repository) -> None:
    repository.branches(*STRANGE)
    needs: list[OutsideNeed] = [BranchNeed(name) for name in STRANGE]
    needs += [MergedNeed(name, "main") for name in STRANGE]
    needs += [CleanNeed(name) for name in STRANGE]
    needs += [MergedNeed("main", name) for name in STRANGE[:4]]
    seen = observe(needs, repository.path, host=HOST, clock=FakeClock())
    assert {need: found for need, found in seen.items() if found.value is not True} == {}


def test_a_name_that_no_branch_can_have_is_no_branch(repository: Repository) -> None:
    needs: list[OutsideNeed] = [BranchNeed(name) for name in (*REFUSED, "refs/heads/main")]
    seen = observe(needs, repository.path, host=HOST, clock=FakeClock())
    assert {need: found for need, found in seen.items() if found.value is not False} == {}


def test_of_a_name_that_no_branch_can_have_nothing_is_known(repository: Repository) -> None:
    needs: list[OutsideNeed] = [MergedNeed(name, "main") for name in REFUSED]
    needs += [MergedNeed("main", name) for name in REFUSED]
    needs += [CleanNeed(name) for name in REFUSED]
    seen = observe(needs, repository.path, host=HOST, clock=FakeClock())
    assert {need: found for need, found in seen.items() if found.value is not None} == {}


def test_a_branch_is_not_the_folder_of_others(repository: Repository) -> None:
    repository.branches("topic/one")
    assert value(BranchNeed("topic"), repository.path) is False
    assert value(BranchNeed("topic/one"), repository.path) is True


@given(st.text("ab./@{}-*?[]\\^~: \x7f\tlock\u00e4", max_size=8))
@example("a.lock/b")
@example("a./b")
def test_names_are_judged_as_git_judges_them(name: str) -> None:
    done = subprocess.run([GIT, "check-ref-format", f"refs/heads/{name}"], check=False)
    assert is_branch_name(name) == (done.returncode == 0)


def test_a_branch_is_merged_or_not(unmerged: Repository) -> None:
    seen = look(MergedNeed("topic", "main"), unmerged.path)
    assert seen.value is False
    assert seen.says.startswith("branch topic has commits that are not in main (")
    unmerged("merge", "-q", "--no-ff", "-m", "merge", "topic")
    seen = look(MergedNeed("topic", "main"), unmerged.path)
    assert seen.value is True
    assert seen.says.startswith("branch topic is merged into main (")


def test_a_squash_merge_is_not_seen(unmerged: Repository) -> None:
    unmerged("merge", "-q", "--squash", "topic")
    unmerged("commit", "-q", "-m", "squashed")
    assert value(MergedNeed("topic", "main"), unmerged.path) is False


def test_it_is_unknown_whether_a_missing_branch_is_merged(repository: Repository) -> None:
    for need in (MergedNeed("gone", "main"), MergedNeed("main", "gone")):
        seen = look(need, repository.path)
        assert (seen.value, seen.says) == (None, "there is no branch gone")


def test_a_branch_can_be_merged_into_a_branch_of_a_remote(unmerged: Repository) -> None:
    unmerged("update-ref", "refs/remotes/origin/main", "topic")
    assert value(MergedNeed("topic", "origin/main"), unmerged.path) is True
    assert value(BranchNeed("origin/main"), unmerged.path) is False


def test_a_shallow_clone_does_not_know_what_is_not_merged(
    unmerged: Repository, tmp_path: Path
) -> None:
    unmerged("checkout", "-q", "topic")
    unmerged.commit("c.txt")
    source = unmerged.path.as_uri()
    unmerged("clone", "-q", "--depth=1", "--no-single-branch", source, str(tmp_path / "clone"))
    unmerged("branch", "-q", "main", "origin/main", path=tmp_path / "clone")
    seen = look(MergedNeed("main", "topic"), tmp_path / "clone")
    assert seen.value is None
    assert "shallow" in seen.says
    assert value(MergedNeed("main", "topic"), unmerged.path) is True


def test_twenty_branches_take_three_processes(
    unmerged: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(unmerged.branches(*(f"topic-{number}" for number in range(19))))
    wrap(tmp_path, monkeypatch, f"echo run >> {tmp_path}/runs")
    needs: list[OutsideNeed] = [BranchNeed(name) for name in [*names, "topic"]]
    needs += [MergedNeed(name, "main") for name in [*names, "topic"]]
    seen = observe(needs, unmerged.path, host=HOST, clock=FakeClock())
    assert [found.value for found in seen.values()] == [True] * 20 + [True] * 19 + [False]
    assert (tmp_path / "runs").read_text().count("run") <= 3
    (tmp_path / "runs").unlink()
    cleans = [CleanNeed(name) for name in [*names, "main"]]
    seen = observe(cleans, unmerged.path, host=HOST, clock=FakeClock())
    assert [found.value for found in seen.values()] == [True] * 20
    assert (tmp_path / "runs").read_text().count("run") <= 3


def test_many_branches_are_asked_in_parts(repository: Repository) -> None:
    present = list(repository.branches(*(f"present/{number}" for number in range(600))))
    absent = [f"absent/{'x' * 200}/{number}" for number in range(600)]
    needs: list[OutsideNeed] = [BranchNeed(name) for name in present + absent]
    needs += [MergedNeed(name, "main") for name in present]
    seen = observe(needs, repository.path, host=HOST, clock=FakeClock())
    assert [found.value for found in seen.values()] == [True] * 600 + [False] * 600 + [True] * 600


def test_a_branch_is_clean_or_not(repository: Repository) -> None:
    seen = look(CleanNeed("main"), repository.path)
    assert (seen.value, seen.says) == (True, f"worktree {repository.path} has no changes")
    (repository.path / "a.txt").write_text("changed")
    (repository.path / "new file").touch()
    seen = look(CleanNeed("main"), repository.path)
    assert seen.value is False
    assert seen.says == f"worktree {repository.path} has 2 changes: a.txt, 'new file'"


def test_a_setting_of_the_repository_does_not_hide_files(repository: Repository) -> None:
    repository("config", "status.showUntrackedFiles", "no")
    repository("config", "status.showStash", "true")
    assert value(CleanNeed("main"), repository.path) is True
    (repository.path / "new").touch()
    assert value(CleanNeed("main"), repository.path) is False


def test_a_branch_that_is_not_checked_out_is_clean(unmerged: Repository) -> None:
    (unmerged.path / "new").touch()
    seen = look(CleanNeed("topic"), unmerged.path)
    assert (seen.value, seen.says) == (True, "no worktree has branch topic checked out")


def test_a_branch_of_another_worktree_is_looked_at_there(
    unmerged: Repository, tmp_path: Path
) -> None:
    other = tmp_path / "other\nworktree"
    unmerged("worktree", "add", "-q", str(other), "topic")
    assert value(CleanNeed("topic"), unmerged.path) is True
    (other / "new").touch()
    assert value(CleanNeed("topic"), unmerged.path) is False
    assert value(CleanNeed("main"), unmerged.path) is True
    assert value(CleanNeed("main"), other) is True


def test_a_branch_is_clean_only_if_all_its_worktrees_are(
    repository: Repository, tmp_path: Path
) -> None:
    repository("worktree", "add", "-q", "--force", str(tmp_path / "second"), "main")
    assert value(CleanNeed("main"), repository.path) is True
    (tmp_path / "second" / "new").touch()
    assert value(CleanNeed("main"), repository.path) is False
    (repository.path / "new").touch()
    (tmp_path / "second" / "new").unlink()
    assert value(CleanNeed("main"), repository.path) is False


def test_a_detached_worktree_has_no_branch(repository: Repository) -> None:
    repository("checkout", "-q", "--detach")
    (repository.path / "new").touch()
    assert value(BranchNeed("main"), repository.path) is True
    assert value(CleanNeed("main"), repository.path) is True


def test_a_worktree_that_is_gone_is_unknown(unmerged: Repository, tmp_path: Path) -> None:
    unmerged("worktree", "add", "-q", str(tmp_path / "other"), "topic")
    shutil.rmtree(tmp_path / "other")
    seen = look(CleanNeed("topic"), unmerged.path)
    assert seen.value is None
    assert "is gone" in seen.says
    unmerged("worktree", "lock", str(tmp_path / "other"))
    assert value(CleanNeed("topic"), unmerged.path) is None
    assert value(BranchNeed("topic"), unmerged.path) is True


def test_a_worktree_that_changes_its_branch_meanwhile_is_unknown(
    unmerged: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = f'case "$*" in *" status "*) {GIT} checkout -q topic;; esac'
    wrap(tmp_path, monkeypatch, switch)
    seen = look(CleanNeed("main"), unmerged.path)
    assert seen.value is None
    assert "changed while" in seen.says


def test_a_status_that_could_not_see_everything_is_unknown(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warn = "warning: could not open directory 'secret/': Permission denied"
    wrap(tmp_path, monkeypatch, f'echo "{warn}" >&2')
    seen = look(CleanNeed("main"), repository.path)
    assert seen.value is None
    assert warn.replace("'", r"\x27") in seen.says


def test_a_branch_without_a_commit_does_not_exist_yet(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "new")
    assert value(BranchNeed("main"), repository.path) is False
    assert value(MergedNeed("main", "main"), repository.path) is None
    assert value(CleanNeed("main"), repository.path) is True
    (repository.path / "new").touch()
    assert value(CleanNeed("main"), repository.path) is False


def test_a_bare_repository_has_branches_and_nothing_to_change(
    unmerged: Repository, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    unmerged("clone", "-q", "--bare", str(unmerged.path), str(bare))
    assert value(BranchNeed("topic"), bare) is True
    assert value(MergedNeed("main", "topic"), bare) is True
    seen = look(CleanNeed("topic"), bare)
    assert seen.value is None
    assert "bare" in seen.says


def test_a_root_inside_of_a_repository_is_enough(repository: Repository) -> None:
    (repository.path / "inner").mkdir()
    assert value(BranchNeed("main"), repository.path / "inner") is True


@pytest.mark.parametrize("folder", ["", "missing"])
def test_without_a_repository_nothing_is_known(tmp_path: Path, folder: str) -> None:
    for need in (BranchNeed("main"), MergedNeed("topic", "main"), CleanNeed("main")):
        seen = look(need, tmp_path / folder)
        assert seen.value is None
        assert ("cannot be entered" if folder else "not a git repository") in seen.says


def test_a_repository_of_another_user_is_unknown_as_git_refuses_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap(tmp_path, monkeypatch, "export GIT_TEST_ASSUME_DIFFERENT_OWNER=1")
    seen = look(BranchNeed("main"), repository.path)
    assert seen.value is None
    assert "dubious ownership" in seen.says


def test_without_git_nothing_is_known(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = look(BranchNeed("main"), repository.path)
    assert (seen.value, seen.says) == (None, "git cannot be run: no such file or directory")


def test_a_git_that_hangs_is_ended(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_git, "GIT_SECONDS", 1.0)
    wrap(tmp_path, monkeypatch, f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    seen = look(BranchNeed("main"), repository.path)
    assert (seen.value, seen.says) == (None, "git for-each-ref did not end within 1 s")
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_filter_that_hangs_is_ended(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_git, "STATUS_SECONDS", 1.0)
    repository("config", "filter.slow.clean", f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    (repository.path / ".gitattributes").write_text("a.txt filter=slow\n")
    (repository.path / "a.txt").write_text("TEXT")
    seen = look(CleanNeed("main"), repository.path)
    assert (seen.value, seen.says) == (None, "git status did not end within 1 s")
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_broken_branch_is_unknown_and_spoils_no_other(repository: Repository) -> None:
    repository("branch", "broken")
    (repository.path / ".git/refs/heads/broken").write_text("garbage\n")
    seen = look(BranchNeed("broken"), repository.path)
    assert (seen.value, seen.says) == (None, "branch broken is broken")
    assert value(BranchNeed("main"), repository.path) is True


def test_the_environment_of_the_caller_does_not_change_the_repository(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    other.commit()
    other("branch", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    assert value(BranchNeed("elsewhere"), repository.path) is False
    assert value(CleanNeed("main"), repository.path) is True
    assert not (tmp_path / "trace").exists()


def test_looking_runs_neither_a_monitor_nor_a_hook_nor_a_fetch(
    unmerged: Repository, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    unmerged("config", "core.fsmonitor", str(evil))
    (unmerged.path / ".git/hooks").mkdir(exist_ok=True)
    shutil.copy(evil, unmerged.path / ".git/hooks/post-index-change")
    unmerged("update-index", "--refresh")
    (tmp_path / "ran").unlink(missing_ok=True)
    (unmerged.path / "a.txt").touch()
    assert value(CleanNeed("main"), unmerged.path) is True
    assert not (tmp_path / "ran").exists()


def test_looking_fetches_no_missing_commit(unmerged: Repository, tmp_path: Path) -> None:
    commit = unmerged("rev-parse", "topic")
    (unmerged.path / ".git/objects" / commit[:2] / commit[2:]).unlink()
    for setting in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.url", "ssh://nowhere.example/x"),
        ("remote.evil.promisor", "true"),
        ("core.sshCommand", f"touch {tmp_path}/ran;"),
    ):
        unmerged("config", *setting)
    assert value(MergedNeed("topic", "main"), unmerged.path) is None
    assert value(MergedNeed("main", "topic"), unmerged.path) is None
    assert value(BranchNeed("main"), unmerged.path) is True
    assert not (tmp_path / "ran").exists()
