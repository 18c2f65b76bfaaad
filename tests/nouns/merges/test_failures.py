"""A merge queue when git fails, names are odd, folders are locked, or others use the same refs."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.nouns.merges.queue_bed import NO_BAD_FILE, QueueBed
from tests.nouns.merges.repositories import TestRepository

from interlock.nouns.merges import batch, repository
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.repository import MergeRepository
from interlock.nouns.merges.reserved_files import BatchFiles
from interlock.nouns.merges.service import MergeService


def test_a_commit_that_only_the_local_branch_has_is_not_merged_at_the_remote(
    queue: QueueBed, tmp_path: Path
) -> None:
    origin = queue.repository
    commit = origin.branch("a", {"a": "a"})
    origin.git("clone", "-q", str(origin.folder), f"{tmp_path}/server")
    clone = TestRepository(tmp_path / "server", bare=False, branch="scratch")
    clone.git("update-ref", "refs/heads/main", commit)
    queue.submit("a")
    origin.git("update-ref", "-d", f"refs/interlock/merges/{commit}")
    queue.serve("false", remote="origin", repository=clone.folder)
    assert queue.states() == {"a": "bounced"}
    assert origin.branches() == {"main", "a"}
    queue.submit("a")
    origin.git("update-ref", "-d", f"refs/interlock/merges/{commit}")
    queue.serve("true", remote="origin", repository=clone.folder)
    assert queue.states()["a"] == "merged"
    assert origin.has(commit)


def test_a_commit_is_kept_and_a_branch_stays_while_another_queue_needs_it(queue: QueueBed) -> None:
    git, client = queue.repository, queue.server
    git.git("branch", "release", "main")
    git.branch("develop", {"d": "d"})
    first, second = git.branch("a", {"a": "a"}), git.branch("x", {"x": "x"})
    for name, into in (("a", "main"), ("a", "release"), ("develop", "main"), ("x", "develop")):
        queue.submit(name, into=into)
    queue.serve("sh", "-c", "test ! -e a")  # a fails
    assert git.kept() == {first, second}
    assert git.branches() == {"main", "release", "develop", "a", "x"}
    assert git.has(git.at("develop"))
    for target in ("release", "develop"):
        client.run(
            client.fleet.merges.serve(target, unguarded=True, drain=True, repository=git.folder)
        )
    assert git.files("release") == {"base", "a"}
    assert git.files("develop") == {"base", "d", "x"}
    assert git.branches() == {"main", "release", "develop"}
    assert git.kept() == set()


# The folder of the target.


@pytest.fixture
def locked(checked_out: QueueBed, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock that another git takes in the folder of the target when that has moved first."""
    lock = checked_out.repository.folder / ".git/index.lock"
    move, first = MergeRepository.move, [lock]

    def moved(self: MergeRepository, *words: str) -> str:
        said = move(self, *words)
        while first:
            first.pop().touch()
        return said

    monkeypatch.setattr(MergeRepository, "move", moved)
    monkeypatch.setattr(repository, "LOCKED", 0.0)
    return lock


def test_nothing_ends_and_nothing_lands_until_the_folder_of_the_target_has_followed(
    checked_out: QueueBed, locked: Path
) -> None:
    git, queue = checked_out.repository, checked_out
    for name in ("a", "bad"):
        git.branch(name, {name: name})
        queue.submit(name)
    before = git.at("main")
    for _ in range(2):
        queue.serve(*NO_BAD_FILE)
        assert git.tips()[:-1] == [before]
        assert set(queue.states().values()) == {"waiting"}
    assert f"run 'git read-tree -m -u {before[:12]} {git.at('main')[:12]}' there" in queue.held()
    locked.unlink()
    assert git.git("diff", "--cached", "--name-only") == "a"  # a commit would take the merge back
    queue.serve(*NO_BAD_FILE)
    assert queue.states() == {"a": "merged", "bad": "bounced"}
    assert git.git("status", "--porcelain") == ""
    assert (git.folder / "a").exists()


def test_the_folder_that_has_the_target_when_it_lands_follows_and_no_other(
    checked_out: QueueBed, tmp_path: Path
) -> None:
    git, queue = checked_out.repository, checked_out
    git.branch("a", {"a": "a"})
    queue.submit("a")
    here, there = shlex.quote(str(git.folder)), shlex.quote(f"{tmp_path}/tree")
    leave = f"git -C {here} checkout -q -b other; git -C {here} worktree add -q {there} main"
    queue.serve("sh", "-c", f"test -e {there} || {{ {leave}; }}")
    assert queue.states() == {"a": "merged"}
    assert (tmp_path / "tree/a").exists()
    assert not (git.folder / "a").exists()
    for folder in (git.folder, tmp_path / "tree"):
        assert git.git("-C", str(folder), "status", "--porcelain") == ""


def test_a_folder_that_was_deleted_does_not_hold_the_queue(queue: QueueBed, tmp_path: Path) -> None:
    git = queue.repository
    git.git("worktree", "add", "-q", f"{tmp_path}/tree", "main")
    shutil.rmtree(tmp_path / "tree")
    git.branch("a", {"a": "a"})
    queue.submit("a")
    assert queue.serve().merged == 1


def test_another_git_in_the_folder_of_the_target_is_waited_for(
    checked_out: QueueBed, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, queue = checked_out.repository, checked_out
    monkeypatch.setattr(repository, "LOCKED", 60.0)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: locked.unlink())
    monkeypatch.setattr(repository, "time", clock)
    git.branch("a", {"a": "a"})
    queue.submit("a")
    assert queue.serve("true").merged == 1
    assert git.git("status", "--porcelain") == ""


def test_an_interrupt_does_not_separate_a_move_from_its_folder() -> None:
    done = []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        batch._to_the_end(work)
    assert done


# Names that git allows.


def test_files_with_any_name_land_and_are_compared_with_reservations(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = queue.repository
    monkeypatch.chdir(git.folder)
    holder = queue.bed.client("bob", ttl=10_000_000.0)
    assert holder.run(holder.fleet.reservations.reserve("deep/*"))
    odd = ["!x", '"tab\\there"', '"not\\377utf8"', "/".join(["l" * 200] * 6), "**", "[a"]
    git.branch("odd", dict.fromkeys(odd, "x"))
    for number, name in enumerate(odd):
        deep = name.replace('"', '"deep/', 1) if name.startswith('"') else f"deep/{name}"
        git.branch(f"deep{number}", {deep.removesuffix('"') + '"' * ('"' in name): "x"})
        queue.submit(f"deep{number}")
    git.branch("strange", {"x": "x"}, onto="")
    for name in ("odd", "strange"):
        queue.submit(name)
    queue.serve("true")
    ends = queue.states()
    assert ends.pop("odd") == "merged"
    assert "unrelated histories" in queue.show("strange").reason
    assert set(ends.values()) == {"bounced"}
    assert {queue.show(name).cause for name in ends} == {"reserved", "conflict"}


def test_a_conflict_in_a_file_with_any_name_bounces_its_branch(queue: QueueBed) -> None:
    git, name = queue.repository, '"x\\377\\t!"'
    for branch in ("a", "b"):
        git.branch(branch, {name: f"{branch}\n"})
        queue.submit(branch)
    queue.serve()
    assert queue.show("b").files == (r"x\udcff\t!",)
    assert r"x\udcff\t!" in queue.show("b").reason


# Git fails, and no branch is to blame.


def test_a_lock_that_a_killed_git_left_in_the_folder_of_the_guard_blames_no_branch(
    queue: QueueBed,
) -> None:
    for name in ("a", "b", "c"):
        queue.repository.branch(name, {name: name})
        queue.submit(name)
    leave = 'test -e b || : > "$(git rev-parse --git-dir)/index.lock"'
    assert queue.serve("sh", "-c", leave, batch=1).merged == 3


def test_a_disk_that_has_no_room_and_an_object_that_is_missing_hold_the_queue(
    queue: QueueBed, tmp_path: Path
) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    git.branch("main", {"m": "m"})  # so that git has to read both trees
    queue.submit("a")
    (tmp_path / "cache").write_text("in the way")
    queue.serve("true")
    assert queue.states() == {"a": "waiting"}
    assert "cannot be made (Not a directory); set XDG_CACHE_HOME" in queue.held()
    (tmp_path / "cache").unlink()
    tree = git.git("rev-parse", "a^{tree}")
    stored = git.folder / "objects" / tree[:2] / tree[2:]
    stored.rename(tmp_path / "tree")
    queue.serve("true")
    assert queue.states() == {"a": "waiting"}
    assert "git merge-tree failed" in queue.held()
    (tmp_path / "tree").rename(stored)
    queue.serve("true")
    assert queue.states() == {"a": "merged"}


def test_a_fence_that_an_older_server_wrote_too_late_is_written_again(
    queue: QueueBed, tmp_path: Path
) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    queue.submit("a")
    old = git.git("hash-object", "-w", "--stdin", given="merge server, token 0\n")
    write = f"git -C {shlex.quote(str(git.folder))} update-ref refs/interlock/servers/main {old}"
    mark = shlex.quote(f"{tmp_path}/mark")
    queue.serve("sh", "-c", f"test -e {mark} || {{ touch {mark}; {write}; }}")
    assert queue.states() == {"a": "merged"}


# Other agents act during a test.


def test_a_branch_that_is_submitted_again_during_its_test_lands_with_its_new_commit(
    queue: QueueBed,
) -> None:
    git = queue.repository
    old = git.branch("a", {"old": "x"})
    queue.submit("a")

    def again() -> None:
        git.branch("a", {"new": "x"})
        assert queue.submit("a").before == old
        assert git.kept() == {git.at("a")}
        git.git("update-ref", f"refs/interlock/merges/{old}", old)  # as if it was killed before

    queue.during_test(again)
    assert git.files() == {"base", "new"}
    assert git.kept() == set()


def test_a_reservation_that_is_made_during_the_test_stops_the_landing(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = queue.repository
    monkeypatch.chdir(git.folder)
    git.branch("a", {"f": "x"})
    git.branch("b", {"g": "x"})
    for name in ("a", "b"):
        queue.submit(name)
    holder = queue.bed.client("bob", ttl=10_000_000.0)
    reserve: Callable[..., Any] = holder.fleet.reservations.reserve
    # One for another worktree is no concern of a merge.
    assert holder.run(reserve("g", worktree="/another/worktree"))
    queue.during_test(lambda: holder.run(reserve("f")))
    assert queue.states() == {"a": "bounced", "b": "merged"}
    assert queue.show("a").cause == "reserved"


def test_a_reservation_between_the_last_comparison_and_the_landing_stops_it(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = queue.repository
    monkeypatch.chdir(git.folder)
    git.branch("a", {"f": "x"})
    git.branch("b", {"g": "x"})
    for name in ("a", "b"):
        queue.submit(name)
    holder = queue.bed.client("bob", ttl=10_000_000.0)
    reserve: Callable[..., Any] = holder.fleet.reservations.reserve
    land, wanted = MergeService.land, ["other", "f"]
    landings: list[int] = []

    def landing(self: MergeService, *words: Any) -> Any:
        landings.append(1)
        if wanted:  # the first one concerns no branch, the second one does
            assert holder.run(reserve(wanted.pop(0)))
        return (yield from land(self, *words))

    monkeypatch.setattr(MergeService, "land", landing)
    queue.serve("true")
    assert queue.states() == {"a": "bounced", "b": "merged"}
    assert queue.show("a").cause == "reserved"
    assert len(landings) == 3


@pytest.mark.parametrize("before", [[], ["elsewhere"]])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("files", [1, 30])
def test_reservations_of_other_files_without_a_pause_do_not_hold_a_landing_up(
    queue: QueueBed,
    monkeypatch: pytest.MonkeyPatch,
    before: list[str],
    *,
    remote: bool,
    files: int,
) -> None:
    git = queue.repository
    monkeypatch.chdir(git.folder)
    git.branch("a", {f"a{number}": "x" for number in range(files)})
    queue.submit("a")
    if remote:
        queue.server = queue.bed.remote("remote", ttl=10_000_000.0)
    holder = queue.bed.client("bob", ttl=10_000_000.0)
    for path in before:
        assert holder.run(holder.fleet.reservations.reserve(path))
    land, landings = MergeService.land, list[int]()

    def landing(self: MergeService, *words: Any) -> Any:
        landings.append(1)
        assert len(landings) <= 2, "it starts again and again"
        assert holder.run(holder.fleet.reservations.reserve(f"other{len(landings)}"))
        return (yield from land(self, *words))

    monkeypatch.setattr(MergeService, "land", landing)
    assert queue.serve().merged == 1
    assert len(landings) == (1 if before else 2)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("files", [1, 30])
def test_a_reservation_that_the_landing_commit_reads_itself_stops_it(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch, *, remote: bool, files: int
) -> None:
    """Also one that is granted after a wait, and one between that read and the commit."""
    git = queue.repository
    monkeypatch.chdir(git.folder)
    for name in ("a", "b", "c"):
        git.branch(name, {f"{name}{number}": "x" for number in range(files)})
        queue.submit(name)
    if remote:
        queue.server = queue.bed.remote("remote", ttl=10_000_000.0)
    holder, waiter = (queue.bed.client(name, ttl=10_000_000.0) for name in ("bob", "eve"))
    reserve: Callable[..., Any] = holder.fleet.reservations.reserve
    assert holder.run(reserve("b0", worktree="/another/worktree"))
    assert not waiter.run(waiter.fleet.reservations.reserve("b0", on_conflict="queue"))
    land, compare, landings = MergeService.land, BatchFiles.conflict, list[int]()

    def landing(self: MergeService, *words: Any) -> Any:
        landings.append(1)
        if len(landings) == 1:
            assert holder.run(holder.fleet.reservations.unreserve("b0"))  # eve has it now
        elif len(landings) == 2:
            assert holder.run(reserve("other"))
        return (yield from land(self, *words))

    def comparing(self: BatchFiles, *words: Any) -> Any:
        found = yield from compare(self, *words)
        if len(landings) == 2 and remote and not found:
            holder.run(reserve("c0"))
        return found

    monkeypatch.setattr(MergeService, "land", landing)
    monkeypatch.setattr(BatchFiles, "conflict", comparing)
    queue.serve()
    assert queue.states() == {"a": "merged", "b": "bounced", "c": "bounced" if remote else "merged"}
    assert queue.show("b").cause == "reserved"


# Several repositories in one store.


def test_targets_of_two_repositories_have_queues_and_servers_of_their_own(
    queue: QueueBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, other = queue.repository, TestRepository(tmp_path / "other")
    ids = {}
    for each in (git, other):
        each.branch("a", {each.folder.name: "x"})
        ids[each.folder.name] = queue.submit("a", repository=each.folder).merge
    author, server = queue.author, queue.server
    serving = server.start(server.fleet.merges.serve("main", unguarded=True, repository=git.folder))
    assert queue.serve(repository=other.folder, client=queue.bed.client("second")).merged == 1
    assert (git.files(), other.files()) == ({"base", "repository"}, {"base", "other"})
    serving.interrupt(KeyboardInterrupt())
    for folder in (other.folder, git.folder):
        monkeypatch.chdir(folder)
        assert queue.show("a").merge == ids[folder.name]
        assert queue.show("a").repository == folder.name
        why = author.run(author.fleet.why("merge/main"))
        assert why.thing == f"merge/{folder.name}:main"


def test_a_queue_of_an_earlier_version_is_taken_over_in_its_order(
    queue: QueueBed, tmp_path: Path
) -> None:
    git, other = queue.repository, TestRepository(tmp_path / "other")
    other.branch("far", {"far": "x"})
    author = queue.author
    service, actor = MergeService(author.runner), author.context.me().actor
    for name, commit in (
        ("z", git.branch("z", {"z": "z"})),
        ("far", other.at("far")),
        ("a", git.branch("a", {"a": "a"})),
    ):
        merge = core.Merge(branch=name, into="main", commit=commit, by="ada", at=1.0)
        author.run(service.submit(actor, author.runner.new_id("mrg"), merge))
    assert queue.serve(batch=1).merged == 2
    assert queue.states() == {"z": "merged", "a": "merged", "far": "waiting"}
    assert git.git("log", "--first-parent", "--format=%s", "-2", "main").split("\n") == [
        "Merge a into main", "Merge z into main",
    ]  # fmt: skip
    assert queue.serve(repository=other.folder).merged == 1


def test_a_wait_that_runs_out_is_no_success(queue: QueueBed) -> None:
    queue.repository.branch("a", {"a": "a"})
    outcome = queue.submit("a", wait=5)
    assert isinstance(outcome, core.MergeUnfinished)
    assert (bool(outcome), outcome.exit_status, outcome.before) == (False, 1, 0)


def test_no_file_of_an_earlier_candidate_is_left_in_a_submodule(
    queue: QueueBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    git, part = queue.repository, TestRepository(tmp_path / "part")
    module = f'[submodule "s"]\n\tpath = s\n\turl = {part.folder}\n'
    git.branch("main", {".gitmodules": module})
    head = "commit refs/heads/main\ncommitter t <t@t> 1 +0000\ndata 1\ns\nfrom refs/heads/main^0\n"
    git.git("fast-import", "--quiet", given=f"{head}M 160000 {part.at('main')} s\n")
    for name in ("a", "b"):
        git.branch(name, {name: name})
        queue.submit(name)
    assert queue.serve("sh", "-c", "test -e s/base && mkdir s/left", batch=1).merged == 2
