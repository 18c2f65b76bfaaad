"""Completion: scripts made of the declarations, run by a real bash."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
from tests.faces.shell import PATIENCE, Here

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
    done = subprocess.run(
        [_program(shell), "-n"],
        input=_SCRIPTS[shell](),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes_words_options_and_names(tmp_path: Path) -> None:
    fish = _program("fish")
    script = tmp_path / "interlock.fish"
    script.write_text(_SCRIPTS["fish"]())
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        fleet.tasks.publish("build")
        lines = [
            "interlock heal", "interlock lock rel", "interlock --agent ada task cla",
            "interlock lock acquire merge --max", "interlock task claim bu", "interlock nonsense x",
        ]  # fmt: skip
        asked = "; ".join(f"echo (complete -C '{line}' | cut -f1)" for line in lines)
        done = subprocess.run(
            [fish, "--no-config", "-c", f"source {script}; {asked}"],
            cwd=tmp_path,
            env=_environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["health", "release", "claim", "--max-hold", "build", ""]


def test_zsh_completes_words_options_and_names_in_a_terminal(tmp_path: Path) -> None:
    """Sourced, and as a function of fpath, whose first TAB has to offer, too."""
    zsh = _program("zsh")
    (tmp_path / "_interlock").write_text(_SCRIPTS["zsh"]())
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        fleet.tasks.publish("build")
        for begin in (
            "autoload -U compinit; compinit -u -D; source _interlock",
            "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D",
        ):
            with Terminal([zsh, "-f", "-i", "+m"], tmp_path) as terminal:
                terminal.write(f"unset zle_bracketed_paste; PS1=; {begin}; echo is''ready\n")
                terminal.until("isready")
                for typed, offered in (
                    ("interlock heal", "interlock health"),
                    ("interlock lock rel", "interlock lock release"),
                    ("interlock --agent ada task cla", "ada task claim"),
                    ("interlock lock acquire merge --max", "merge --max-hold"),
                    ("interlock task claim bu", "task claim build"),
                ):
                    terminal.write(f"{typed}\t")
                    terminal.until(offered)
                    terminal.write("\x15")


class Terminal:
    """A program at a terminal; what it prints is read until the awaited text is there."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._file, inner = pty.openpty()
        environment = {**_environment(folder), "TERM": "dumb"}
        self._process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self._said = ""

    def write(self, text: str) -> None:
        self._said = ""
        os.write(self._file, text.encode())

    def until(self, text: str) -> None:
        ends = time.monotonic() + PATIENCE
        while text not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x07\r]", "", self._said):
            ready, _, _ = select.select([self._file], [], [], max(0.0, ends - time.monotonic()))
            assert ready, (text, self._said)
            self._said += os.read(self._file, 65536).decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)


def _environment(folder: Path) -> dict[str, str]:
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "INTERLOCK_STORE": "store.db", "HOME": str(folder)}


def _program(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed; 'make test' gets it")
    return found


def test_names_are_none_without_a_store_and_mistakes_say_what_to_do(here: Here) -> None:
    assert here.run("completion", "--names", "lock").out == ""
    assert here.run("completion", "--names", "nonsense").out == ""
    assert here.run("completion", "--names", "lock", "--store", "/nowhere/x.db").status == 0
    wrong = here.run("completion", "tcsh")
    assert wrong.status == 2
    assert "choose of: bash, zsh, fish" in wrong.err
    assert "source <(interlock completion bash)" in here.run("completion").err
