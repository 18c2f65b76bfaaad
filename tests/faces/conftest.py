from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.http.served import Served, served
from tests.faces.shell import Here, Shell


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Shell]:
    """A shell where there is no store yet."""
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def shell(bare: Shell) -> Shell:
    """A shell where ``interlock init`` was run."""
    assert bare.run("init").status == 0
    return bare


@pytest.fixture
def ada(shell: Shell) -> Shell:
    """A shell where an agent said who she is."""
    shell.exported["INTERLOCK_AGENT"] = "ada"
    return shell


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """A store and an agent, where commands are run in this very process."""
    shell = Here(tmp_path, monkeypatch, capsys)
    assert shell.run("init").status == 0
    shell.exported["INTERLOCK_AGENT"] = "ada"
    return shell


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A store that the servers of all tests here share."""
    shell = Shell(tmp_path_factory.mktemp("home"))
    assert shell.run("init").status == 0
    assert shell.run("task", "add", "before", "--agent", "ada").status == 0
    yield shell
    shell.close()


@pytest.fixture(scope="session")
def up(home: Shell) -> Iterator[Served]:
    """A server on this machine, which wants the token of its user."""
    with served(home, "--as", "maria") as server:
        yield server


@pytest.fixture(scope="session")
def closed(home: Shell) -> Iterator[Served]:
    """A server that wants a token of the store with each request."""
    with served(home, "--require-token") as server:
        yield server


@pytest.fixture(scope="session")
def tokens(home: Shell) -> dict[str, str]:
    """A token for each role; it speaks for an agent of the name of its role."""
    made = {}
    for role in ("read", "act", "admin"):
        done = home.run("up", "--token", role, "--as", role, "--json")
        made[role] = done.json["token"]
    return made
