"""One git: its start, its end, and its reason in a line if it fails.

``subprocess.run`` with a time limit asks again and again, with pauses, whether a process has ended.
Pauses of a millisecond are a third of what a short git takes, so the limit here is one of the wait
for output: at its end git closes that, and ends.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, cast

from interlock import git_command
from interlock.core.safe_text import printable

SECONDS = 300.0
"""How long one git may take; a fetch or a push of a large repository needs minutes."""
_CHUNK = 1 << 16
_SETTINGS = (
    "-c", "push.recurseSubmodules=no", "-c", "fetch.recurseSubmodules=no",
    "-c", "advice.detachedHead=false",
)  # fmt: skip


class GitFailed(Exception):
    """Git could not do it; the text is its reason."""


def start(
    words: Sequence[str], folder: str, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A git that runs, with pipes that are not buffered."""
    try:
        return subprocess.Popen(  # noqa: S603 - git, without a shell
            git_command.command(*_SETTINGS, *words, folder=folder, bare=True),
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at the server does not cut a push
        )
    except FileNotFoundError as error:
        what = "git is not installed" if error.filename == "git" else "the folder is gone"
        raise GitFailed(what) from None
    except OSError as error:
        raise GitFailed(f"git {words[0]} cannot be run: {error.strerror}") from None


def ended(running: subprocess.Popen[bytes], what: str, given: str = "") -> tuple[int, str, str]:
    """The status and the output of a git, at its end; it is killed if that does not come."""
    with running:
        try:
            out, err = _exchange(running, os.fsencode(given))
        except TimeoutError:
            running.kill()
            raise GitFailed(f"git {what} did not end within {SECONDS:g} s") from None
        except BaseException:
            running.kill()
            raise
    return running.returncode, os.fsdecode(out), os.fsdecode(err)


def _exchange(running: subprocess.Popen[bytes], given: bytes) -> tuple[bytes, bytes]:
    """Give git its input, and return all that it prints; TimeoutError if that takes too long."""
    to, out, err = pipes(running)
    parts: dict[int, list[bytes]] = {out.fileno(): [], err.fileno(): []}
    events, ends, left = select.poll(), time.monotonic() + SECONDS, memoryview(given)
    for end in (opened := set(parts)):
        events.register(end, select.POLLIN)
    if left:
        os.set_blocking(to.fileno(), False)
        events.register(to, select.POLLOUT)
    else:
        to.close()
    while opened:
        ready = events.poll(max(ends - time.monotonic(), 0.0) * 1000)
        if not ready:
            raise TimeoutError
        for end, _ in ready:
            if end not in parts:
                left = _written(end, left)
                if not left:
                    events.unregister(end)
                    to.close()
            elif data := os.read(end, _CHUNK):
                parts[end].append(data)
            else:
                events.unregister(end)
                opened.discard(end)
    return b"".join(parts[out.fileno()]), b"".join(parts[err.fileno()])


def _written(end: int, data: memoryview) -> memoryview:
    """What is left of an input; nothing if git does not read it."""
    try:
        return data[os.write(end, data) :]
    except BlockingIOError:
        return data
    except OSError:
        return data[:0]


def pipes(running: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    """The input, the output and the errors of a git."""
    return cast(
        "tuple[IO[bytes], IO[bytes], IO[bytes]]", (running.stdin, running.stdout, running.stderr)
    )


def reason_of(what: str, status: int, err: str) -> str:
    """Why git failed, in a line."""
    lines = [line.strip() for line in err.split("\n") if line.strip()]
    marked = [line for line in lines if line.startswith(("fatal: ", "error: ", "remote: error:"))]
    said = (marked or lines or [f"status {status}"])[0]
    for word in ("fatal: ", "error: "):
        said = said.removeprefix(word)
    return printable(f"git {what} failed: {said}")
