"""Pages of the documentation, parsed and run.

The first line of a block says how it is treated:

  ```console           One real bash for the whole page runs the lines that start with ``$ `` in
                       order, in a folder of its own, with this Interlock on the PATH; a line that
                       starts with ``> `` continues the one before it.  The lines below a command
                       are its output, stdout and stderr together.
                       It must end with status 0, or with N if ``[exit N]`` is below it.
                       ``make X`` is run as ``interlock X``, which is what the Makefile does.
  ```python            Run as a script, in the same folder; a ``text`` block right below it is its
                       output.
  ```LANGUAGE name=F   Not run but saved as F, for the commands that follow.
  ```text              A picture, or the output of the block before it.

Two comments, which a reader of the page does not see:

  <!-- until: CMD -->  Wait until CMD succeeds, for a command before that is still running.
  <!-- any: A B -->    In the next block the words A and B match any word.

A page starts its own servers, as its reader does.  The ports of Redis and etcd that it names
(``PORTS``) are replaced by free ones in all that is run and saved; redis-cli and etcdctl, which
use the usual ports by default, get the free ones too.  A token that a page shows and then uses is
replaced by the real one.

The test compares shown and real output after it replaced numbers, ids, times and columns (see
``alike``); ``...`` matches anything, and any number of lines if it is a line of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Self

from tests.schemas import check_output

from interlock.testing.servers.process import Port, find

ROOT = Path(__file__).parent.parent.parent
HOME = "/home/ada"
"""The pages say that they are in the folder ``shop`` there; the real one is made to look so."""
HOST = "laptop"
PATIENCE = 30.0
LANGUAGES = ("console", "python", "text", "toml", "conf")
PORTS = ("6379", "6380", "2379", "2380", "7700")
SERVERS = {"redis-server": "redis-server", "etcd": "etcd-server"}

_FENCE = re.compile(r"^```(?P<language>\w*)(?: name=(?P<name>\S+))?$")
_COMMENT = re.compile(r"^<!-- (?P<word>until|any): (?P<rest>.*) -->$")
_EXIT = re.compile(r"\[exit (\d+)\]")
_TOKEN = re.compile(r'\btoken(?:":|,)?\s*(\d+)')
_CARRIED = re.compile(r"(?<=--token )\d+")
_PORT = re.compile(rf"(?<![\d.])(?:{'|'.join(PORTS)})(?!\d)")


@dataclass
class Command:
    """A command of a page, and its shown output."""

    line: int
    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status that the page says."""
        found = _EXIT.fullmatch(self.shown[-1]) if self.shown else None
        return int(found[1]) if found else 0

    @property
    def output(self) -> str:
        """The output that the page shows."""
        return "\n".join(line for line in self.shown if not _EXIT.fullmatch(line))


@dataclass
class Block:
    """A fenced block, or (``until``) a comment that acts like one."""

    line: int
    language: str
    text: str
    name: str = ""
    any: frozenset[str] = frozenset()
    below: bool = False
    """Whether nothing but blank lines stands between it and the block before."""

    def commands(self) -> Iterator[Command]:
        """The commands of a console block."""
        found: Command | None = None
        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            if line.startswith("$ "):
                if found is not None:
                    yield found
                found = Command(number, line[2:])
                continue
            assert found is not None, f"line {number}: output without a command"
            if line.startswith("> ") and not found.shown:
                found.text += "\n" + line[2:]
            else:
                found.shown.append(line)
        if found is not None:
            yield found


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    found: list[Block] = []
    wild: frozenset[str] = frozenset()
    below = False
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if comment := _COMMENT.match(line):
            if comment["word"] == "until":
                found.append(Block(number, "until", comment["rest"]))
            else:
                wild = frozenset(comment["rest"].split())
        elif line.startswith("```"):
            fence = _FENCE.match(line)
            assert fence, f"line {number}: {line!r} is not a fence that this test knows"
            body: list[str] = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner)
            text = "\n".join(body) + "\n"
            name = fence["name"] or ""
            found.append(Block(number, fence["language"], text, name, wild, below))
            wild, below = frozenset(), True
        elif line:
            below = False
    return found


def alike(text: str) -> str:
    """The text without everything that differs from run to run."""
    text = re.sub(r"\b(ses|grt|txn|trc|wtr|msg|qry|dec|mrg)_[0-9a-f]+", r"\1_#", text)
    text = re.sub(r"\b(?:[0-9a-f]{64}|[0-9a-f]{12})\b", "#", text)  # a digest, a short commit
    # A fingerprint may begin with a digit, which is no part of the number before the colon.
    text = re.sub(r"\bSHA256:[A-Za-z0-9+/]{43}", "SHA256:...", text)
    text = re.sub(r"\d+(?:[.,:]\d+)*", "#", text)
    text = re.sub(r"# (?:ms|s)\b", "# s", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def pattern(shown: str, wild: frozenset[str] = frozenset()) -> re.Pattern[str]:
    """The pattern that real output, made alike, has to match."""
    lines: list[str] = []
    for line in alike(shown).splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        parts = (re.escape(part) for part in line.split("..."))
        lines.append(".*".join(parts) + r"\n")
    text = "".join(lines)
    for word in wild:
        text = re.sub(rf"\b{re.escape(word)}\b", r"\\w+", text)
    return re.compile(text)


def matches(shown: str, real: str, wild: frozenset[str] = frozenset()) -> bool:
    """Whether real output is as the page shows it."""
    made = alike(real)
    return pattern(shown, wild).fullmatch(made + "\n" if made else "") is not None


class Shell:
    """One bash in a folder of its own, as a reader of the page has it."""

    def __init__(self, folder: Path, ports: dict[str, int] | None = None) -> None:
        self._ports = ports or {}
        self._tokens: dict[str, str] = {}
        self._folder = folder / "shop"
        self._folder.mkdir()
        self._out = folder / "out"
        foreign = ("INTERLOCK", "IF_ETCD", "ETCD", "XDG_DATA_HOME", "XDG_STATE_HOME")
        own = {key: os.environ[key] for key in os.environ if not key.startswith(foreign)}
        # Git must not read the settings of the user who runs the test.
        own |= {"HOME": str(folder), "GIT_CONFIG_GLOBAL": str(folder / "gitconfig")}
        own |= {"GIT_CONFIG_NOSYSTEM": "1", "NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb"}
        own |= {"PATH": search_path()}
        own |= {"PYTHONWARNINGS": "error", "TMPDIR": str(folder)}
        (folder / "gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.com\n")
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self._folder,
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that all that a page left running ends with it
        )
        # If this process dies, bash ends with its input, and ends the rest.
        setting = "trap 'kill -9 0' EXIT\n"
        if "6379" in self._ports:
            setting += f'redis-cli() {{ command redis-cli -p {self._ports["6379"]} "$@"; }}\n'
        if "2379" in self._ports:
            setting += f"export ETCDCTL_ENDPOINTS=127.0.0.1:{self._ports['2379']}\n"
        self._pipe(self._bash.stdin).write(setting)

    def run(self, command: str) -> tuple[int, str]:
        """The exit status of a command, and what it printed."""
        words, out = shlex.quote(self._real(command)), shlex.quote(str(self._out))
        self._pipe(self._bash.stdin).write(f"eval {words} </dev/null >{out} 2>&1\necho $?\n")
        self._pipe(self._bash.stdin).flush()
        status = self._pipe(self._bash.stdout).readline()
        assert status, f"the shell ended in: {command}"
        return int(status), self._seen(self._out.read_text())

    def learn(self, shown: str, real: str) -> None:
        """Note the real token for each token that the page shows and then uses.

        A token is a revision, and the number of renewals while a page runs depends on how long
        the page takes.
        """
        self._tokens.update(zip(_TOKEN.findall(shown), _TOKEN.findall(real), strict=False))

    def until(self, command: str) -> None:
        """Wait until a command succeeds."""
        ends = time.monotonic() + PATIENCE
        while self.run(command)[0] != 0:
            assert time.monotonic() < ends, f"this never succeeded: {command}"
            time.sleep(0.02)

    def save(self, name: str, text: str) -> None:
        """Save a file of the page."""
        (self._folder / name).write_text(self._real(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):  # for input that it did not read
            self._pipe(self._bash.stdin).close()
        self._pipe(self._bash.stdout).close()
        self._bash.wait()

    def _real(self, text: str) -> str:
        text = _CARRIED.sub(lambda found: self._tokens.get(found[0], found[0]), text)
        return _PORT.sub(lambda found: str(self._ports[found[0]]), text)

    def _seen(self, text: str) -> str:
        # The message of bash about a killed job depends on when bash notices it.
        text = re.sub(r"^bash: line \d+: .*\n", "", text, flags=re.MULTILINE)
        text = text.replace(os.path.realpath(self._folder.parent), HOME)
        for usual, real in self._ports.items():
            text = text.replace(str(real), usual)
        return re.sub(rf"\b{re.escape(os.uname().nodename)}(?=:\d|\)|, which)", HOST, text)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@contextmanager
def ports_for(page: str) -> Iterator[dict[str, int]]:
    """A free port for each usual one that a page names."""
    held = {usual: Port() for usual in sorted(set(_PORT.findall(page)))}
    try:
        yield {usual: port.number for usual, port in held.items()}
    finally:
        for port in held.values():
            port.close()


@cache
def search_path() -> str:
    """Where commands of a page are found: this Interlock first, the servers of the tests last."""
    servers = (os.path.dirname(find(*each)) for each in SERVERS.items())
    return ":".join((str(Path(sys.executable).parent), os.environ["PATH"], *servers))


def carry_out(page: str, folder: Path) -> None:
    """Run all blocks of a page, and compare their output with the page."""
    with ports_for(page) as ports, Shell(folder, ports) as shell:
        printed: str | None = None
        for block in blocks(page):
            match block.language:
                case "until":
                    shell.until(block.text)
                case "console":
                    for command in block.commands():
                        _console(shell, command, block.any)
                case "text" if printed is not None and block.below:
                    _compare(block.line, block.text, printed, block.any)
                case "python" if not block.name:
                    shell.save("block.py", block.text)
                    status, printed = shell.run("python block.py")
                    assert status == 0, f"line {block.line}: {printed}"
                    continue
                case _:
                    if block.name:
                        shell.save(block.name, block.text)
            printed = None


def _console(shell: Shell, command: Command, wild: frozenset[str]) -> None:
    status, real = shell.run(re.sub(r"^make (?=\w+$)", "interlock ", command.text))
    where = f"line {command.line}: {command.text}"
    assert status == command.status, f"{where}\nended with {status}:\n{real}"
    _check_json(command.text, real)
    _compare(command.line, command.output, real, wild)
    shell.learn(command.output, real)


def _check_json(text: str, real: str) -> None:
    """JSON of a command that stands alone is as the schema of the command says."""
    if text.startswith("interlock ") and not re.search(r"[|&;<>$`]", text):
        check_output(shlex.split(text)[1:], "\n".join(re.findall(r"(?m)^\{.*$", real)))


def _compare(line: int, shown: str, real: str, wild: frozenset[str]) -> None:
    assert matches(shown, real, wild), f"line {line}\nshows:\n{shown}\nbut it is:\n{real}"
