"""A merge queue with a real repository: what lands, what bounces, and what stays as it was."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.nouns.merges.queue_bed import NO_BAD_FILE, QueueBed
from tests.nouns.merges.repositories import TestRepository

from interlock.errors import BadInput
from interlock.nouns.merges import merge as core
from interlock.testing.audit import audit


def test_the_longest_prefix_lands_the_culprit_bounces_and_the_rest_follows(
    queue: QueueBed, tmp_path: Path
) -> None:
    git = queue.repository
    for name in ("a", "b", "bad", "c"):
        git.branch(name, {name: name})
        queue.submit(name)
    served = queue.serve(*NO_BAD_FILE)
    assert (served.merged, served.bounced) == (3, 1)
    assert git.files() == {"base", "a", "b", "c"}
    assert git.branches() == {"main", "bad"}
    assert git.kept() == set()
    assert queue.mail() == [
        ("a", "merged"), ("b", "merged"), ("bad", "bounced"), ("c", "merged"),
    ]  # fmt: skip
    bounced = queue.show("bad")
    assert bounced.cause == "failed"
    assert bounced.reason.endswith("ended with status 1\nout of the guard")
    assert not list((tmp_path / "cache").rglob("main@*"))
    assert audit(queue.bed.store) == []


def test_branches_are_merged_in_the_order_in_which_they_came(queue: QueueBed) -> None:
    git = queue.repository
    names = ["z", "y", "x", "w", "v"]
    for name in names:
        git.branch(name, {name: name})
        queue.submit(name)
    git.branch("z", {"more": "z"}, onto="z")
    assert queue.submit("z").place == 1  # it keeps its place with its new commit
    queue.serve(batch=2)
    subjects = git.git("log", "--first-parent", "--format=%s", "main").split("\n")
    assert subjects[:5] == [f"Merge {name} into main" for name in reversed(names)]
    assert "more" in git.files()


def test_a_guard_that_fails_once_is_tried_once_more(queue: QueueBed, tmp_path: Path) -> None:
    queue.repository.branch("a", {"a": "a"})
    queue.submit("a")
    mark = shlex.quote(f"{tmp_path}/mark")
    served = queue.serve("sh", "-c", f"test -e {mark} || {{ touch {mark}; exit 1; }}")
    assert (served.merged, served.bounced) == (1, 0)


def test_a_target_that_fails_by_itself_is_named_in_the_reason(queue: QueueBed) -> None:
    queue.repository.branch("a", {"a": "a"})
    queue.submit("a")
    queue.serve("false")
    assert queue.show("a").reason.startswith("main itself does not pass, also without this branch")


def test_a_conflict_bounces_with_its_files_and_the_branch_stays(queue: QueueBed) -> None:
    git = queue.repository
    git.branch("a", {"base": "one\n"})
    git.branch("b", {"base": "two\n"})
    for name in ("a", "b"):
        queue.submit(name)
    queue.serve()
    assert queue.states() == {"a": "merged", "b": "bounced"}
    assert queue.show("b").files == ("base",)
    assert git.branches() == {"main", "b"}


def test_renames_merge_and_unrelated_histories_bounce(queue: QueueBed) -> None:
    git = queue.repository
    text = "".join(f"line {n}\n" for n in range(20))
    git.branch("main", {"old": text})
    git.git("symbolic-ref", "HEAD", "refs/heads/nowhere")
    git.branch("edits", {"old": text + "more\n"})
    lines = "commit refs/heads/renames\ncommitter t <t@t> 1 +0000\ndata 1\nr\n"
    git.git("fast-import", "--quiet", given=f"{lines}from refs/heads/main^0\nR old new\n")
    git.branch("strange", {"x": "x"}, onto="")
    for name in ("renames", "edits", "strange"):
        queue.submit(name)
    queue.serve()
    assert queue.states() == {"renames": "merged", "edits": "merged", "strange": "bounced"}
    assert git.git("show", "main:new").endswith("more")
    assert "unrelated histories" in queue.show("strange").reason


def test_what_was_submitted_lands_though_its_branch_moves_or_is_deleted(queue: QueueBed) -> None:
    git = queue.repository
    for name in ("gone", "moved"):
        git.branch(name, {name: name})
        queue.submit(name)
    git.git("update-ref", "-d", "refs/heads/gone")
    later = git.branch("moved", {"later": "x"}, onto="moved")
    git.git("gc", "-q", "--prune=now")
    queue.serve()
    assert git.files() == {"base", "gone", "moved"}
    assert git.at("moved") == later  # it has more than what was merged


def test_a_commit_that_the_target_contains_is_merged_without_another_commit(
    queue: QueueBed,
) -> None:
    git = queue.repository
    commit = git.branch("a", {"a": "a"})
    queue.submit("a")
    git.git("update-ref", "refs/heads/main", commit)  # by hand
    queue.serve("false")
    assert queue.states() == {"a": "merged"}
    assert git.at("main") == commit


def test_a_target_that_moves_meanwhile_is_built_on_again(queue: QueueBed, tmp_path: Path) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    hand = git.branch("hand", {"hand": "x"})
    queue.submit("a")
    mark = tmp_path / "mark"
    move = f"git -C {git.folder} update-ref refs/heads/main {hand}"
    queue.serve("sh", "-c", f"echo $INTERLOCK_MERGE_BASE >> {mark}; test -e hand || {move}")
    assert git.files() == {"base", "hand", "a"}
    assert mark.read_text().split() == [git.tips()[0], hand]


def test_a_target_that_was_set_back_by_force_is_built_on_as_it_is(
    queue: QueueBed, tmp_path: Path
) -> None:
    git = queue.repository
    first = git.at("main")
    git.branch("main", {"lost": "x"})
    git.branch("a", {"a": "a"}, onto="main")
    commit = git.branch("b", {"b": "b"}, onto="main")
    queue.submit("b")
    back = f"git -C {git.folder} update-ref refs/heads/main {first}"
    queue.serve("sh", "-c", f"test -e {tmp_path}/mark || {{ touch {tmp_path}/mark; {back}; }}")
    assert git.has(commit)
    assert queue.states() == {"b": "merged"}


def test_a_checked_out_target_follows_and_keeps_other_changes(checked_out: QueueBed) -> None:
    git = checked_out.repository
    (git.folder / "mine").write_text("untracked\n")
    git.branch("a", {"a": "a"})
    checked_out.submit("a")
    checked_out.serve("true")
    assert (git.folder / "a").read_text() == "a"
    assert git.git("status", "--porcelain") == "?? mine"


def test_a_checked_out_target_with_changes_that_would_be_lost_holds_the_queue(
    checked_out: QueueBed,
) -> None:
    git, queue = checked_out.repository, checked_out
    before = git.at("main")
    (git.folder / "base").write_text("mine\n")
    git.branch("a", {"base": "theirs\n"})
    queue.submit("a")
    said: list[str] = []
    first, outcome = (queue.serve("true", say=said.append) for _ in range(2))
    assert isinstance(outcome, core.MergesHeld)
    assert outcome == first
    assert (bool(outcome), outcome.exit_status, outcome.merged) == (False, 1, 0)
    # The reason is said again, though the store has it.
    assert said.count(f"nothing can be merged: {outcome.reason}") == 2
    assert git.at("main") == before
    assert (git.folder / "base").read_text() == "mine\n"
    listed = queue.author.run(queue.author.fleet.merges.list())
    assert "would overwrite changes" in listed.targets[0].held
    assert outcome.reason == listed.targets[0].held
    git.git("checkout", "-q", "--", "base")
    assert isinstance(queue.serve("true"), core.MergesServed)
    assert (git.folder / "base").read_text() == "theirs\n"
    assert queue.states() == {"a": "merged"}


def test_a_branch_that_is_checked_out_is_merged_and_not_deleted(
    checked_out: QueueBed, tmp_path: Path
) -> None:
    git = checked_out.repository
    git.branch("a", {"a": "a"})
    git.git("worktree", "add", "-q", f"{tmp_path}/tree", "a")
    (tmp_path / "tree/a").write_text("dirty\n")
    checked_out.submit("a")
    checked_out.serve()
    assert git.at("a")
    assert (tmp_path / "tree/a").read_text() == "dirty\n"
    assert checked_out.states() == {"a": "merged"}


def test_a_cancelled_branch_does_not_land_though_it_is_tested(queue: QueueBed) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    queue.submit("a")
    author = queue.author
    assert queue.during_test(lambda: author.run(author.fleet.merges.cancel("a", "no")))
    assert queue.states() == {"a": "cancelled"}
    assert git.files() == {"base"}
    assert git.kept() == set()


def test_a_remote_target_is_pushed_with_a_lease(queue: QueueBed, tmp_path: Path) -> None:
    origin = queue.repository
    for clone in ("author", "server"):
        origin.git("clone", "-q", str(origin.folder), f"{tmp_path}/{clone}")
    theirs = TestRepository(tmp_path / "author", bare=False, branch="scratch")
    theirs.git("update-ref", "refs/heads/main", theirs.git("rev-parse", "origin/main"))
    for name in ("a", "bad"):
        theirs.branch(name, {name: name})
        theirs.git("push", "-q", "origin", f"{name}:{name}")
        queue.submit(name, remote="origin", repository=theirs.folder)
    served = queue.serve(*NO_BAD_FILE, remote="origin", repository=tmp_path / "server")
    assert (served.merged, served.bounced) == (1, 1)
    assert origin.files() == {"base", "a"}
    assert origin.branches() == {"main", "bad"}
    assert origin.kept() == set()


def test_a_remote_that_is_away_holds_the_queue(queue: QueueBed, tmp_path: Path) -> None:
    queue.repository.branch("a", {"a": "a"})
    queue.submit("a")
    queue.serve(remote=f"{tmp_path}/nowhere.git")
    listed = queue.author.run(queue.author.fleet.merges.list())
    assert "nowhere.git" in listed.targets[0].held
    assert queue.states() == {"a": "waiting"}


def test_a_server_goes_on_when_its_remote_is_back(queue: QueueBed, tmp_path: Path) -> None:
    git, away = queue.repository, tmp_path / "origin.git"
    git.branch("a", {"a": "a"})
    queue.submit("a")
    said: list[str] = []
    serve = queue.server.fleet.merges.serve
    serving = queue.server.start(
        serve("main", unguarded=True, remote=str(away), repository=git.folder, say=said.append)
    )
    serving.run()
    assert queue.states() == {"a": "waiting"}
    assert [text for text in said if "nothing can be merged" in text and "origin.git" in text]
    git.git("clone", "-q", "--bare", str(git.folder), str(away))
    queue.bed.clock.advance(6)
    serving.run()
    assert queue.states() == {"a": "merged"}


def test_a_commit_of_another_repository_bounces(
    queue: QueueBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_REPOSITORY", "shop")
    other = TestRepository(tmp_path / "other")
    other.branch("a", {"a": "other"})
    queue.submit("a", repository=other.folder)
    queue.serve()
    assert queue.show("a").cause == "missing"


def test_a_broken_submodule_bounces_its_branch(queue: QueueBed) -> None:
    git = queue.repository
    text = '[submodule "s"]\n\tpath = s\n\turl = ./nowhere.git\n'
    git.branch("sub", {".gitmodules": text})
    link = f"M 160000 {git.at('main')} s"
    head = "commit refs/heads/sub\ncommitter t <t@t> 1 +0000\ndata 1\ns\nfrom refs/heads/sub^0\n"
    git.git("fast-import", "--quiet", "--force", given=f"{head}{link}\n")
    git.branch("a", {"a": "a"})
    for name in ("sub", "a"):
        queue.submit(name)
    queue.serve("true")
    assert queue.states() == {"sub": "bounced", "a": "merged"}
    assert "cannot be checked out" in queue.show("sub").reason


def test_a_second_server_waits_and_an_old_one_can_no_longer_move_the_target(
    queue: QueueBed,
) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    queue.submit("a")
    first = queue.server
    serving = first.start(first.fleet.merges.serve("main", unguarded=True, repository=git.folder))
    second = queue.bed.client("other", ttl=10_000_000.0)
    busy = queue.serve(client=second)
    assert type(busy).__name__ == "LockBusy"
    assert busy.holder == "queue"
    # The first one is frozen; its lock is broken, and the second one serves.
    assert second.run(second.locks.break_("merge/repository:main", "frozen"))
    old = git.git("rev-parse", "refs/interlock/servers/main")
    git.branch("b", {"b": "b"})
    queue.submit("b")
    queue.serve(client=second)
    assert git.git("rev-parse", "refs/interlock/servers/main") != old
    git.branch("c", {"c": "c"})
    queue.submit("c")
    queue.bed.clock.advance(2)
    serving.run()  # it notices that its lock is gone, and acquires the lock again
    assert queue.states() == {"a": "merged", "b": "merged", "c": "merged"}
    assert git.files() == {"base", "a", "b", "c"}
    assert audit(queue.bed.store) == []


def test_a_zombie_cannot_move_the_target_in_git(queue: QueueBed) -> None:
    from interlock.nouns.merges.repository import MergeRepository

    git = queue.repository
    commit = git.branch("a", {"a": "a"})
    repository = MergeRepository(git.folder)
    old = repository.fence("main", 1)
    repository.fence("main", 2)
    assert repository.move("main", git.at("main"), commit, old)
    assert git.at("main") != commit


@pytest.mark.parametrize(
    ("branch", "says"),
    [
        ("nowhere", "there is no branch"),
        ("main", "is the target itself"),
        ("refs/heads/a", "no name of a branch"),
        ("a..b", "no name of a branch"),
    ],
)
def test_a_wrong_branch_is_refused_with_what_to_do(queue: QueueBed, branch: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        queue.submit(branch)


def test_a_folder_without_a_repository_is_refused(queue: QueueBed, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="in no git repository"):
        queue.submit("a", repository=tmp_path)


def test_a_missing_target_holds_the_queue_until_it_is_there(queue: QueueBed) -> None:
    git = queue.repository
    git.branch("a", {"a": "a"})
    queue.submit("a", into="release")
    client = queue.server
    serve = client.fleet.merges.serve
    client.run(serve("release", unguarded=True, drain=True, repository=git.folder))
    listed = queue.author.run(queue.author.fleet.merges.list())
    assert "there is no branch release here" in listed.targets[0].held
    git.git("branch", "release", "main")
    client.run(serve("release", unguarded=True, drain=True, repository=git.folder))
    assert queue.states() == {"a": "merged"}


def test_a_branch_that_changes_a_reserved_file_bounces_unless_its_author_holds_it(
    queue: QueueBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = queue.repository
    monkeypatch.chdir(git.folder)
    holder = queue.bed.client("bob", ttl=10_000_000.0)
    assert holder.run(holder.fleet.reservations.reserve("a/*", reason="rework"))
    for name in ("one", "two", "three"):
        git.branch(name, {f"a/{name}" if name != "three" else name: name})
    queue.submit("one")
    queue.submit("two", client=holder)
    queue.submit("three")
    queue.serve("true")
    assert queue.states() == {"one": "bounced", "two": "merged", "three": "merged"}
    assert "a/one (by bob, who says rework)" in queue.show("one").reason
    queue.submit("one", override="agreed with bob")
    queue.serve("true")
    assert git.has(git.at("one") or git.at("main"))
    assert "a/one" in git.files()


def test_a_guard_that_cannot_run_ends_the_server_and_blames_no_branch(queue: QueueBed) -> None:
    queue.repository.branch("a", {"a": "a"})
    queue.submit("a")
    with pytest.raises(BadInput, match="cannot be run"):
        queue.serve("/no/such/program")
    assert queue.states() == {"a": "waiting"}


def test_a_server_that_would_test_nothing_is_refused_unless_that_is_wanted(
    queue: QueueBed,
) -> None:
    queue.repository.branch("a", {"a": "a"})
    queue.submit("a")
    with pytest.raises(BadInput, match="nothing would test the branches; name a program"):
        queue.serve(unguarded=False)
    with pytest.raises(BadInput, match="is not unguarded"):
        queue.serve("true", unguarded=True)
    assert queue.serve(unguarded=True).merged == 1
