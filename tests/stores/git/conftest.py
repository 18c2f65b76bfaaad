from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.stores.git import GitStore
from interlock.testing.servers import GitHttpServer, ServerTrouble, SshServer
from interlock.testing.servers.git import end_connections

Opens = Callable[..., GitStore]


class Remote:
    """A bare repository on this disk that a test may do things to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            subprocess.run(["git", "init", "-q", "--bare", str(path)], check=True)

    @property
    def url(self) -> str:
        return f"git+file://{self.path}"

    def git(self, *args: str) -> str:
        command = ["git", f"--git-dir={self.path}", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def tree(self, lines: list[str]) -> str:
        """A tree with the entries of these lines, as ``ls-tree`` prints them."""
        command = ["git", f"--git-dir={self.path}", "mktree", "--missing"]
        given = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(command, input=given, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def head(self) -> str:
        return self.git("rev-parse", "refs/heads/interlock")

    def subjects(self) -> list[str]:
        return self.git("log", "--format=%s", "interlock").splitlines()

    def hook(self, name: str, script: str) -> Path:
        """A hook of the remote."""
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def cut(self, then: str) -> None:
        """End the next push without an answer, before its ref moves; then run a line of shell."""
        self.hook(
            "pre-receive",
            'mv "$0" "$0.used"\n'
            # The parent of receive-pack is the push, or a shell that the push started.
            "client=$(ps -o ppid= -p $PPID | tr -d ' ')\n"
            'case $(ps -o args= -p $client) in *"git push"*|*"push --porcelain"*) ;;'
            " *) client=$(ps -o ppid= -p $client | tr -d ' ');; esac\n"
            f"kill -9 $client\n{then}",
        )


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote.git")


@pytest.fixture
def host(remote: Remote, tmp_path: Path) -> Iterator[Opens]:
    """Opens a store object of a host, by the name of the host."""
    opened: list[GitStore] = []

    def opens(name: str = "a", **options: object) -> GitStore:
        url = str(options.pop("url", remote.url))
        given = {"min_ttl": 0.5, "patience": 10.0, **options}
        opened.append(GitStore(url, cache=f"{tmp_path}/{name}", **given))  # type: ignore[arg-type]
        return opened[-1]

    yield opens
    for store in opened:
        store.close()


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")
    os.environ.pop("GIT_DIR", None)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    server = SshServer(tmp_path / "ssh")
    try:
        server.start()
    except ServerTrouble as error:
        pytest.skip(str(error))
    monkeypatch.setenv("GIT_SSH_COMMAND", server.client_command())
    with tempfile.TemporaryDirectory(prefix="il", dir="/tmp") as folder:  # its path is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield server
        end_connections(folder)
    server.close()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[GitHttpServer]:
    server = GitHttpServer(tmp_path / "http")
    try:
        server.start()
    except ServerTrouble as error:
        pytest.skip(str(error))
    yield server
    server.close()
