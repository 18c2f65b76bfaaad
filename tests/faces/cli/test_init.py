"""Where a store is made, and how it is found."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faces.shell import COMMAND, Shell

import interlock
from interlock import store_location
from interlock.runtime import user_files


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_init_makes_a_folder_for_its_owner_only(bare: Shell) -> None:
    status, answer = bare.json("init")
    folder = bare.folder / ".interlock"
    assert (status, answer) == (0, {"outcome": "created", "store": str(folder / "store.db")})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "store.db").stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_second_init_changes_nothing(shell: Shell) -> None:
    status, answer = shell.json("init")
    assert (status, answer["outcome"]) == (0, "exists")


def test_init_makes_the_file_that_is_named(bare: Shell) -> None:
    path = bare.folder / "deep" / "er.db"
    made = {"outcome": "created", "store": str(path)}
    assert bare.json("init", "--store", str(path)) == (0, made)
    there = {"outcome": "exists", "store": str(path), "warning": ""}
    assert bare.json("init", "--store", f"sqlite://{path}") == (0, there)
    assert not (bare.folder / ".interlock").exists()


def test_what_is_said_of_a_store_that_is_not_there_makes_it(bare: Shell) -> None:
    path = bare.folder / "our stores" / "one.db"
    said = bare.run("lock", "list", "--store", str(path)).err
    assert f"there is no store at {path}; make one: interlock init --store" in said
    remedy = shlex.split(said.partition("make one: interlock ")[2].partition(";")[0])
    assert bare.run(*remedy).status == 0
    assert bare.run("lock", "list", "--store", str(path)).status == 0


@pytest.mark.parametrize("words", ["lock acquire x", "task add t", "agent join", "merge serve"])
def test_a_mistyped_store_is_not_made(shell: Shell, words: str) -> None:
    path = shell.folder / "tipo.db"
    said = shell.run(*words.split(), "--unguarded" if "merge" in words else "-q",
                     "--agent", "ada", "--store", str(path))  # fmt: skip
    assert said.status == 4
    assert f"there is no store at {path}; make one: interlock init --store" in said.err
    assert not path.exists()


def test_init_in_a_folder_below_says_whose_store_it_shares(shell: Shell) -> None:
    (shell.folder / "part").mkdir()
    said = subprocess.run(
        [*COMMAND, "init"], cwd=shell.folder / "part", env=shell.environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"shares the store of {shell.folder}; for one of its own:" in said.stderr
    assert shell.run("init").err == ""


def test_without_a_store_it_says_what_to_do(bare: Shell) -> None:
    for words in (("lock", "list"), ("lock", "acquire", "x", "--agent", "ada"), ("store", "info")):
        status, answer = bare.json(*words)
        assert (status, answer["error"]) == (4, "store_missing")
        assert "interlock init" in answer["message"]
    bare.exported["INTERLOCK_STORE"] = str(bare.folder / "none.db")
    assert bare.json("lock", "list")[1]["error"] == "store_missing"


def test_a_mere_name_is_no_store_whoever_says_it(bare: Shell) -> None:
    for words in (("init",), ("lock", "list"), ("lock", "acquire", "x", "--agent", "ada")):
        status, answer = bare.json(*words, "--store", "eve")
        assert (status, answer["error"]) == (2, "bad_input")
        assert answer["message"].endswith("for a file of that name write ./eve")
    bare.exported["INTERLOCK_STORE"] = "eve"
    assert bare.json("lock", "list")[1]["error"] == "bad_input"
    assert list(bare.folder.iterdir()) == []
    bare.exported["INTERLOCK_STORE"] = "./eve"
    assert bare.json("init")[0] == 0


def test_what_is_said_of_bytes_that_are_no_store_makes_one(bare: Shell) -> None:
    (bare.folder / "g.db").write_bytes(b"\xff\x00garbage" * 1000)
    failed = bare.run("init", "--store", "g.db")
    assert failed.status == 4
    moved, _, begun = failed.err.strip().partition(" (mv ")[2].partition("), then restore a copy")
    init = begun.partition("or start over: ")[2].split()
    assert init[:3] == ["interlock", "init", "--store"]
    subprocess.run(["mv", *moved.split()], check=True)
    assert bare.run(*init[1:]).out.startswith("created ")
    assert (bare.folder / "g.db.damaged").exists()


def test_the_store_of_another_user_is_told_with_its_owner(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(user_files, "require_own", lambda descriptor, *_: os.fstat(descriptor))
    with pytest.raises(interlock.NotAllowed) as caught:
        store_location.locate(str(shell.folder))
    assert f".interlock/store.db belongs to user {owner}, who" in str(caught.value)
    assert str(caught.value).endswith("; name a store of your own with --store PATH")


def test_sibling_worktrees_meet_in_one_store(bare: Shell) -> None:
    main = bare.folder / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "start")
    git(main, "worktree", "add", "-q", "../left")
    git(main, "worktree", "add", "-q", "../right")
    left, right = Shell(bare.folder / "left"), Shell(bare.folder / "right" / "deep")
    right.folder.mkdir()
    assert left.json("init")[1]["store"] == str(main / ".interlock" / "store.db")
    left.run("lock", "acquire", "merge", "--agent", "ada")
    status, answer = right.json("lock", "acquire", "merge", "--agent", "bob")
    assert (status, answer["holder"]) == (1, "ada")
    found = right.run("doctor").out
    assert "main worktree" in found
    status_of_git = subprocess.run(
        ["git", "status", "--porcelain"], cwd=main, check=True, capture_output=True, text=True
    )
    assert status_of_git.stdout == ""


def test_a_repository_inside_a_folder_with_a_store_is_on_its_own(shell: Shell) -> None:
    inner = Shell(shell.folder / "inner")
    inner.folder.mkdir()
    assert inner.json("lock", "list")[0] == 0, "a plain folder belongs to the store above it"
    git(inner.folder, "init", "-q")
    assert inner.json("lock", "list")[1]["error"] == "store_missing"


def test_a_store_that_may_not_be_written_is_trouble_of_the_store() -> None:
    # pytest's own folders are closed to others, so this one stands elsewhere.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder.chmod(0o755)
    try:
        shell = Shell(folder)
        store = ("--store", str(folder / "s.db"))
        assert shell.run("init", *store).status == 0
        # Nobody may write: neither its owner, who may be us, nor others, whom root becomes.
        (folder / "s.db").chmod(0o444)
        folder.chmod(0o555)
        done = _without_rights(shell, "lock", "acquire", "x", "--agent", "ada", *store)
        assert done.returncode == 4
        assert done.stderr.startswith("interlock: ")
        assert done.stderr.count("\n") == 1
        done = _without_rights(shell, "init")
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    finally:
        folder.chmod(0o755)
        subprocess.run(["rm", "-rf", folder], check=True)


WITHOUT_RIGHTS = """
import os, sys
import interlock.client, interlock.stores.sqlite, interlock.runtime.text
import interlock.faces.cli.connect, interlock.faces.cli.fleet
from interlock import registry
from interlock.faces.cli.command import run
registry.operations(); import interlock.nouns.grants.calls
if os.getuid() == 0:  # only now: Python itself may be readable by root alone
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


def _without_rights(shell: Shell, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS, *words],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


ETCD = {"IF_ETCD_HOST": "127.0.0.1", "IF_ETCD_PORT": "1"}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("IF_ETCD_PORT",), "etcd://localhost:1/interlock (from IF_ETCD_PORT)"),
        (("IF_ETCD_HOST",), "etcd://127.0.0.1:2379/interlock (from IF_ETCD_HOST)"),
        (tuple(ETCD), "etcd://127.0.0.1:1/interlock (from IF_ETCD_HOST and IF_ETCD_PORT)"),
    ],
)
def test_the_environment_may_name_an_etcd(
    names: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INTERLOCK_STORE", *ETCD):
        monkeypatch.delenv(name, raising=False)
    assert store_location.from_environment() is None
    for name in names:
        monkeypatch.setenv(name, ETCD[name])
    there = store_location.locate()
    assert f"{there.url} (from {there.how})" == found
    monkeypatch.setenv("INTERLOCK_STORE", "s.db")
    assert store_location.locate() == store_location.StoreLocation("s.db", "INTERLOCK_STORE")


def test_an_etcd_in_the_environment_stands_above_the_folder(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    monkeypatch.setenv("IF_ETCD_HOST", "etcd.example")
    assert store_location.find_store(str(shell.folder)) == "etcd://etcd.example:2379/interlock"


@pytest.mark.parametrize("port", ["x", "0", "-1", "65536", "9" * 5000, "\u0663", "1/2"])
def test_a_wrong_port_is_one_clear_line(shell: Shell, port: str) -> None:
    shell.exported["IF_ETCD_PORT"] = port
    status, said = shell.json("lock", "list")
    assert (status, said["error"]) == (2, "bad_input")
    assert said["message"].startswith("IF_ETCD_PORT is ")
    assert len(said["message"]) < 300


@pytest.mark.parametrize("host", ["a b", "x/y", "me:secret@x", "?"])
def test_a_wrong_host_is_one_clear_line(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    monkeypatch.setenv("IF_ETCD_HOST", host)
    with pytest.raises(interlock.BadInput, match="IF_ETCD_HOST is "):
        store_location.locate()


def test_an_address_of_version_6_is_put_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    for host in ("::1", "[::1]"):
        monkeypatch.setenv("IF_ETCD_HOST", host)
        assert store_location.find_store() == "etcd://[::1]:2379/interlock"


@pytest.mark.parametrize("command", [("task", "run"), ("request", "serve")], ids=" ".join)
def test_a_worker_makes_no_file(bare: Shell, command: tuple[str, ...]) -> None:
    words = (*command, "--agent", "ada", "--store", "./other.db")
    done = bare.run(*words, "--", "true")
    assert (done.status, done.out) == (4, ""), done
    assert "there is no store at " in done.err
    assert list(bare.folder.iterdir()) == []
