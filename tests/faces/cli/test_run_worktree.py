"""``run`` with a worktree, a restart policy and a log, and ``merge`` and ``rebase`` at a shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.faces.shell import Shell, until
from tests.nouns.merges.repositories import TestRepository


@pytest.fixture
def repository(tmp_path: Path) -> TestRepository:
    return TestRepository(tmp_path / "shop", bare=False)


@pytest.fixture
def shop(bare: Shell, repository: TestRepository, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{repository.folder.parent}/cache")
    bare.folder = repository.folder
    bare.exported["INTERLOCK_AGENT"] = "ada"
    assert bare.run("init").status == 0
    return bare


def test_a_worktree_is_removed_when_it_is_clean_and_merged_and_not_before(
    shop: Shell, repository: TestRepository
) -> None:
    commit = "pwd; echo x > new; git add new; git commit -q -m new; echo late > loose; exit 3"
    ran = shop.run("run", "--worktree", "feat/a", "--", "sh", "-c", commit)
    tree = Path(ran.out.strip())
    assert ran.status == 3
    assert tree == repository.folder / ".interlock/worktrees/feat%2Fa"
    assert "stays: it has 1 changed or new files, such as loose" in ran.err
    assert repository.git("status", "--porcelain") == ""
    ran = shop.run("run", "--worktree", "feat/a", "--", "rm", "loose")
    assert "stays: feat/a is not merged into main" in ran.err
    assert shop.run("merge", "submit", "feat/a").status == 0
    (repository.folder / "new").write_text("in the way\n")
    held = shop.run("merge", "serve", "--drain", "--", "test", "-e", "new")
    assert held.status == 1
    assert "held main: 0 merged, 0 bounced" in held.out
    assert "would overwrite changes" in held.err
    (repository.folder / "new").unlink()
    assert shop.run("merge", "serve", "--drain", "--", "test", "-e", "new").status == 0
    ran = shop.run("run", "--worktree", "feat/a", "--", "true")
    assert (ran.status, "is removed" in ran.err) == (0, True)
    assert not tree.exists()
    assert repository.branches() == {"main"}
    assert (repository.folder / "new").read_text() == "x\n"


def test_one_program_at_a_time_has_a_worktree(shop: Shell, tmp_path: Path) -> None:
    wait = f"echo here; until test -e {tmp_path}/end; do sleep 0.05; done"
    first = shop.start("run", "--worktree", "a", "--", "sh", "-c", wait)
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    second = shop.run("run", "--agent", "bob", "--worktree", "a", "--", "true")
    assert second.status == 1
    assert "ada" in second.out
    words = ("run", "--agent", "bob", "--worktree", "a", "--wait", "1m")
    third = shop.start(*words, "--", "git", "status", "-sb")
    until(lambda: "bob" in shop.run("lock", "show", "worktree/shop/a").out)
    (tmp_path / "end").touch()
    assert "is removed" in first.communicate(timeout=60)[1]
    out, err = third.communicate(timeout=60)  # in a worktree that is there
    assert (third.returncode, out) == (0, "## a\n"), err
    blocked = shop.run("run", "--worktree", "main", "--", "true")
    assert (blocked.status, "is checked out in" in blocked.err) == (2, True)


def test_a_program_that_fails_starts_again_until_it_succeeds(shop: Shell) -> None:
    script = "echo x >> n; test $(wc -l < n) -ge 3"
    words = ("run", "--restart", "failure", "--backoff", "10ms", "--log")
    ran = shop.run(*words, "--", "sh", "-c", f"echo try; {script}", input="")
    assert ran.status == 0
    assert ran.out == "try\n" * 3
    assert [line for line in shop.run("agent", "log", "ada").out.split() if line] == ["try"] * 3
    missing = shop.run(*words, "--", "no-such-program")
    assert missing.status == 127
    assert shop.run("run", "--restart", "maybe", "--", "true").status == 2


def test_a_stop_message_ends_a_program_for_good(shop: Shell) -> None:
    words = ("run", "--restart", "always", "--backoff", "10ms")
    running = shop.start(*words, "--", "sh", "-c", "echo run; sleep 1000")
    assert running.stdout is not None
    assert running.stdout.readline() == "run\n"
    until(lambda: shop.run("stop", "ada", "enough", "--agent", "bob").status == 0)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (143, "")
    assert "bob asked" in err


def test_commands_say_what_to_do_outside_of_a_repository(shop: Shell, tmp_path: Path) -> None:
    shop.exported["INTERLOCK_STORE"] = str(shop.folder / ".interlock/store.db")
    shop.folder = tmp_path
    for words in (
        ("merge", "submit", "a"),
        ("rebase",),
        ("merge", "serve", "--drain", "--", "true"),
    ):
        ran = shop.run(*words)
        assert ran.status == 2
        assert "is in no git repository" in ran.err
        assert "run it inside of one" in ran.err


def test_a_conflict_of_a_rebase_has_status_1_and_names_the_files(
    shop: Shell, repository: TestRepository
) -> None:
    repository.branch("a", {"f": "a\n"})
    repository.branch("main", {"f": "main\n"})
    subprocess.run(["git", "reset", "-q", "--hard"], cwd=repository.folder, check=True)
    repository.git("worktree", "add", "-q", f"{repository.folder}-a", "a")
    shop.folder = Path(f"{repository.folder}-a")
    status, answer = shop.json("rebase", "--onto", "main")
    assert (status, answer["outcome"], answer["files"]) == (1, "rebase_conflict", ["f"])


@pytest.mark.parametrize(
    ("place", "to"),
    [
        (".interlock/worktrees", "home"),
        (".interlock", "home"),
        (".interlock/worktrees/feat", "home"),
        (".interlock/worktrees", "missing"),
        (".interlock/worktrees/feat", "missing"),
    ],
)
def test_no_link_of_a_commit_leads_a_worktree_out_of_its_folder(
    bare: Shell, repository: TestRepository, tmp_path: Path, place: str, to: str
) -> None:
    home = tmp_path / "home"
    (home / "worktrees").mkdir(parents=True)
    before = listing(home)
    bring_link(repository, place, tmp_path / to)
    bare.folder = repository.folder
    bare.exported.update(INTERLOCK_AGENT="ada", INTERLOCK_STORE=f"{tmp_path}/store.db")
    assert bare.run("init").status == 0
    ran = bare.run("run", "--worktree", "feat", "--", "touch", "here")
    assert ran.status == 2
    assert "is a link or a file, which a commit can bring" in ran.err
    assert f"rm {repository.folder / place}" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert listing(home) == before
    assert not (tmp_path / "missing").exists()
    assert repository.branches() == {"main"}
    (repository.folder / place).unlink()
    assert bare.run("run", "--worktree", "feat", "--", "true").status == 0


def test_a_link_in_the_place_of_a_worktree_that_is_there_is_not_followed(
    shop: Shell, repository: TestRepository, tmp_path: Path
) -> None:
    assert shop.run("run", "--worktree", "feat", "--", "touch", "loose").status == 0
    trees = repository.folder / ".interlock/worktrees"
    trees.rename(tmp_path / "moved")
    trees.symlink_to(tmp_path / "moved")
    before = listing(tmp_path / "moved")
    ran = shop.run("run", "--worktree", "feat", "--", "touch", "here")
    assert (ran.status, f"rm {trees}" in ran.err) == (2, True)
    assert listing(tmp_path / "moved") == before


def test_a_folder_that_a_commit_brought_becomes_no_worktree(
    bare: Shell, repository: TestRepository, tmp_path: Path
) -> None:
    files = {f".interlock/worktrees/feat/{name}": "evil\n" for name in ("Makefile", "x/y")}
    repository.branch("main", files)
    repository.git("reset", "-q", "--hard")
    bare.folder = repository.folder
    bare.exported.update(INTERLOCK_AGENT="ada", INTERLOCK_STORE=f"{tmp_path}/store.db")
    assert bare.run("init").status == 0
    ran = bare.run("run", "--worktree", "feat", "--", "touch", "here")
    assert (ran.status, "already exists" in ran.err) == (2, True)
    assert not (repository.folder / ".interlock/worktrees/feat/here").exists()


BAD_NAMES = ("..", "../x", "a/../../x", "/abs", "-x", ".git", ".gitignore", "a/.git", "x.lock", "")


@pytest.mark.parametrize("name", [*BAD_NAMES, "a\\..", "HEAD"])
def test_a_worktree_has_the_name_of_a_branch(
    shop: Shell, repository: TestRepository, name: str
) -> None:
    before = listing(repository.folder.parent)
    ran = shop.run("run", f"--worktree={name}", "--", "touch", "here")
    assert ran.status == 2, ran
    after = listing(repository.folder.parent)
    assert {each for each in after - before if "store.db" not in each} <= {
        "shop/.interlock/worktrees"
    }


def bring_link(repository: TestRepository, place: str, to: Path) -> None:
    """A commit on main with a link, checked out."""
    path = repository.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    repository.git("add", "-f", place)
    repository.git("commit", "-q", "-m", "link")


def listing(folder: Path) -> set[str]:
    """All below a folder but what is in git folders."""
    found = {os.fspath(path.relative_to(folder)) for path in folder.rglob("*")}
    return {each for each in found if ".git/" not in each}
