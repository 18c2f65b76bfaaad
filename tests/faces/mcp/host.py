"""A host: it starts the real server as a process, and speaks to it over pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tests.faces.shell import COMMAND, PATIENCE, Shell


class Host:
    """One server; its messages are read in a thread, each line of its output being one."""

    def __init__(
        self, shell: Shell, *options: str, command: Callable[[], list[str]] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command() if command else [*COMMAND, "mcp", *options],
            cwd=shell.folder,
            env=shell.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.errors: list[bytes] = []
        self._heard = SimpleQueue[Any]()
        self._kept: dict[object, Any] = {}
        self._number = 0
        for work in (self._listen, self._listen_for_errors):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(json.loads(line))

    def _listen_for_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def say(self, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.write(json.dumps(message).encode() + b"\n")

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.write(json.dumps(message).encode() + b"\n")
        return self._number

    def answer(self, id_: object) -> Any:
        """The answer to a request, whenever it comes."""
        while id_ not in self._kept:
            found = self._heard.get(timeout=PATIENCE)
            self._kept[found["id"]] = found
        return self._kept.pop(id_)

    def ask(self, method: str, **params: Any) -> Any:
        return self.answer(self.begin(method, **params))

    def begin_call(self, tool: str, **arguments: Any) -> int:
        return self.begin("tools/call", name=tool, arguments=arguments)

    def call(self, tool: str, **arguments: Any) -> str:
        """What a tool says."""
        found = self.answer(self.begin_call(tool, **arguments))
        text = found["result"]["content"][0]["text"]
        assert isinstance(text, str)
        return text

    def end(self) -> int:
        """Close the input, and wait for the end of the server."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


NOISY = """
import os, subprocess, sys
from interlock.faces.cli import main
from interlock.nouns.grants import text
told = text.TEXTS["LockAcquired"]
def noisy(outcome, paint):
    print("printed")
    sys.stdout.flush()
    os.write(1, b"written\\n")
    subprocess.run(["echo", "echoed"], check=True)
    assert sys.stdin.read() == "", "the messages of the host are not for tools"
    return told(outcome, paint)
text.TEXTS["LockAcquired"] = noisy
sys.argv = ["interlock", "mcp"]
main.main()
"""


def noisy() -> list[str]:
    """A server in which the text of an outcome prints, writes, and runs a program that does."""
    return [sys.executable, "-c", NOISY]
