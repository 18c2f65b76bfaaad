from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
