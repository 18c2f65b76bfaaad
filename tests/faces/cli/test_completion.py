"""Completion: scripts made of the declarations, run by a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.faces.shell import Here

import interlock
from interlock import registry
from interlock.faces.cli.completion import _SCRIPTS
from interlock.runtime.operation import fields

BIN = str(Path(sys.executable).parent)
TRY = """
source "$1"; shift
while IFS= read -r line; do
  eval "COMP_WORDS=($line)"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _interlock
  for each in "${COMPREPLY[@]}"; do printf '%s\\t' "$each"; done; printf '\\n'
done
"""


def completed(folder: Path, lines: Sequence[str]) -> list[list[str]]:
    """What a real bash offers at the end of each line."""
    script = folder / "interlock.bash"
    script.write_text(_SCRIPTS["bash"]())
    done = subprocess.run(
        ["bash", "--norc", "-c", TRY, "bash", str(script)],
        input="".join(f"{line}\n" for line in lines),
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "INTERLOCK_STORE": "store.db"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    return [line.split("\t")[:-1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", sorted(_SCRIPTS))
def test_every_operation_and_option_is_in_every_script(shell: str) -> None:
    script = _SCRIPTS[shell]()
    for operation in registry.operations():
        assert operation.name.rpartition(" ")[2] in script
        for field in fields(operation.request):
            if not field.positional:
                dashes = "-l " if shell == "fish" else "--"
                assert f"{dashes}{field.option[2:]}" in script, (operation.name, field.option)


def test_bash_completes_commands_verbs_and_options_without_starting_python(tmp_path: Path) -> None:
    found = completed(
        tmp_path,
        [
            "interlock heal",
            "interlock lock rel",
            "interlock --agent ada task cla",
            "interlock lock acquire merge --max",
            "interlock health --he",
            "interlock lock acquire merge --ttl ''",
            "interlock nonsense ''",
        ],
    )
    assert found == [
        ["health"], ["release"], ["claim"], ["--max-hold"], ["--held", "--help"], [], [],
    ]  # fmt: skip


def test_bash_asks_for_names_where_they_stand_and_quotes_them(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        for task in ("build", "test", "$(touch ran)", "a b", "b*"):
            fleet.tasks.publish(task)
        fleet.locks.acquire("merge")
        found = completed(
            tmp_path,
            [
                "interlock task claim bu",
                "interlock task claim '$'",
                "interlock lock show ''",
                "interlock send ad",
                "interlock task list --holder ''",
                "interlock why lock/",
                "interlock task import plan",
            ],
        )
    assert found == [
        ["build"], ["\\$\\(touch\\ ran\\)"], ["merge"], ["ada"], ["ada"], ["lock/merge"],
        ["plan.json"],
    ]  # fmt: skip
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_well_formed(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [program, "-n"], input=_SCRIPTS[shell](), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_names_are_none_without_a_store_and_mistakes_say_what_to_do(here: Here) -> None:
    assert here.run("completion", "--names", "lock").out == ""
    assert here.run("completion", "--names", "nonsense").out == ""
    assert here.run("completion", "--names", "lock", "--store", "/nowhere/x.db").status == 0
    wrong = here.run("completion", "tcsh")
    assert wrong.status == 2
    assert "choose of: bash, zsh, fish" in wrong.err
    assert "source <(interlock completion bash)" in here.run("completion").err
