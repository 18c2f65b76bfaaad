"""Runs a command at a terminal, as a person who answers yes: ``python person.py COMMAND...``."""

from __future__ import annotations

import os
import pty
import sys

QUESTION = b"[y/N] "


def at_a_terminal(command: list[str], answer: str = "y") -> tuple[int, str]:
    """The exit status of a command at a terminal of its own, and what stands there in the end."""
    child, terminal = pty.fork()
    if not child:
        try:
            os.execvp(command[0], command)  # noqa: S606
        finally:
            os._exit(127)
    shown = b""
    while True:
        try:
            got = os.read(terminal, 4096)
        except OSError:  # its other end is closed
            break
        if not got:
            break
        asked = shown.count(QUESTION)
        shown += got
        for _ in range(shown.count(QUESTION) - asked):
            os.write(terminal, answer.encode() + b"\n")
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, shown.decode(errors="replace").replace("\r\n", "\n")


if __name__ == "__main__":
    ended, text = at_a_terminal(sys.argv[1:])
    sys.stdout.write(text)
    sys.exit(ended)
