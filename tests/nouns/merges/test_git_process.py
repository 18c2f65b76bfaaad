"""The gits of a merge queue: their start, their end, and the one that makes the commits."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.merges.queue_bed import QueueBed
from tests.nouns.merges.repositories import IDENTITY, TestRepository

from interlock.nouns.merges import commits, git_process
from interlock.nouns.merges.commits import CommitWriter
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.repository import MergeRepository

DATE = "1700000000 -0330"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestRepository:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    return TestRepository(tmp_path / "repository")


def _fake_git(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir()
    fake = folder / "git"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_commits_are_those_that_git_makes(
    repository: TestRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'a "folder" with\na \\ line'
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", DATE)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Zoë")
    base, tree = repository.at("main"), repository.git("rev-parse", "main^{tree}")
    tip = base
    with CommitWriter(MergeRepository(repository.folder)) as writer:
        for message in ("a long message, of an author: \N{SNOWMAN}\n\nand more\n", "short\n"):
            words = ("commit-tree", tree, "-p", tip, "-F", "-")
            expected = repository.git(*words, given=message)
            tip = writer.commit(tree, (tip, tip), message)
            assert tip == expected
    assert os.listdir(folder) == []


def test_a_commit_has_the_time_of_its_moment(
    repository: TestRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = repository.git("rev-parse", "main^{tree}")
    with CommitWriter(MergeRepository(repository.folder)) as writer:
        made = []
        for now in (1_700_000_000.9, 1_800_000_000.0):
            monkeypatch.setattr("time.time", lambda now=now: now)
            made.append(writer.commit(tree, (), "m\n"))
    said = [repository.git("show", "-s", "--format=%at %ct %an", commit) for commit in made]
    assert said == ["1700000000 1700000000 test", "1800000000 1800000000 test"]


def test_a_user_whom_git_does_not_know_merges_under_a_name_of_ours(
    repository: TestRepository,
) -> None:
    repository.git("config", "--unset", "user.name")
    repository.git("config", "--unset", "user.email")
    repository.git("config", "user.useConfigOnly", "true")
    by = MergeRepository(repository.folder).identity()
    assert by.author.name == by.committer.name == "interlock <interlock@localhost>"


def test_a_commit_that_git_refuses_says_why_and_leaves_no_process(
    repository: TestRepository,
) -> None:
    with CommitWriter(MergeRepository(repository.folder)) as writer:
        with pytest.raises(GitFailed, match="git hash-object failed"):
            writer.commit("no tree", (), "m\n")
        with pytest.raises(GitFailed, match="git hash-object failed"):
            writer.commit(repository.git("rev-parse", "main^{tree}"), (), "m\n")
    assert writer._git.returncode


def test_a_commit_that_is_not_written_as_a_whole_is_not_made(
    repository: TestRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full takes a part."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: whole(file, data[:-3], at))
    tree = repository.git("rev-parse", "main^{tree}")
    with CommitWriter(MergeRepository(repository.folder)) as writer:
        with pytest.raises(GitFailed, match="no room"):
            writer.commit(tree, (), "message\n")
        monkeypatch.undo()
        made = writer.commit(tree, (), "m\n")
    assert repository.git("show", "-s", "--format=%B", made) == "m"


def test_a_commit_that_is_kept_between_two_listings_is_found_by_the_next_look(
    repository: TestRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, base = MergeRepository(repository.folder), repository.at("main")
    tip = repository.branch("a", {"a": "a"})
    both = git._both

    def second_before_first(first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
        earlier = both(first, second)[1]
        git.keep(tip)
        return git.git(*first), earlier

    assert not git.move("main", base, tip, git.fence("main", 1))
    monkeypatch.setattr(git, "_both", second_before_first)
    assert not git.refs("main").contained
    assert git.refs("main").contained == {tip}


def test_long_input_and_output_pass_at_the_same_time(repository: TestRepository) -> None:
    names = "".join(f"refs/heads/{'x' * 100}{n}\n" for n in range(20_000))
    said = MergeRepository(repository.folder).git("cat-file", "--batch-check", given=names)
    assert said.count(" missing\n") == 20_000


def test_input_that_git_does_not_read_is_no_failure(repository: TestRepository) -> None:
    said = MergeRepository(repository.folder).git("version", given="x" * 1_000_000)
    assert said.startswith("git version")


def test_a_git_that_does_not_end_is_killed(
    repository: TestRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_process, "SECONDS", 0.05)
    monkeypatch.setattr(commits, "SECONDS", 0.05)
    _fake_git(tmp_path / "bin", monkeypatch, "exec sleep 600")
    git = MergeRepository(repository.folder)
    with pytest.raises(GitFailed, match=r"git version did not end within 0\.05 s"):
        git.git("version")
    with CommitWriter(git) as writer:
        monkeypatch.setattr(git, "identity", _somebody)
        with pytest.raises(GitFailed, match="did not answer"):
            writer.commit("0" * 40, (), "m\n")


def _somebody() -> Any:
    from interlock.nouns.merges.repository import CommitIdentities, CommitIdentity

    return CommitIdentities(CommitIdentity("a <a>"), CommitIdentity("a <a>"))


def test_a_branch_that_merges_cleanly_costs_one_git(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        queue.repository.branch(f"b{number}", {f"f{number}": "x"})
        queue.submit(f"b{number}")
    started: list[str] = []
    start = git_process.start

    def counted(words: Any, *more: Any) -> subprocess.Popen[bytes]:
        started.append(words[0])
        return start(words, *more)

    monkeypatch.setattr(git_process, "start", counted)
    queue.serve("true", batch=10)
    assert set(queue.states().values()) == {"merged"}
    assert started.count("merge-tree") == 20
    assert len(started) - 20 <= 26, started
