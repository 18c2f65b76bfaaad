from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.shell import Shell


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
