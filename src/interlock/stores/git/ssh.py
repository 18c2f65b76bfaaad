"""The ssh connection to a remote: kept for a minute, so that each command of git need not log in.

A login takes ten times as long as a push.  The user's own ssh command and configuration are used,
with a connection that all processes of the host share (``ControlMaster``); the first command opens
it, and it closes by itself a minute after the last one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import subprocess
from contextlib import suppress
from urllib.parse import unquote

from interlock import git_command

_KEPT = 60
_LONGEST = 85
"""Bytes of the path of a socket: ssh adds some, and the system takes about a hundred."""
_REMOTE = re.compile(r"ssh://([^@/]+@)?(?:\[([^]/]+)\]|([^]:@/[]+))(?::(\d+))?(/[^~\n].*)")
SHORTEST = "/tmp"  # noqa: S108 - what is made there is checked
"""Where the connection is shared if the folders of the user have long paths."""


def command(remote: str, cache: str, environment: dict[str, str]) -> str:
    """The ssh command for git: the user's own, with a connection that is kept."""
    given = environment.get("GIT_SSH_COMMAND") or _configured(environment) or "ssh"
    options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15"]
    if path := _socket(remote, cache, given):
        options += ["ControlMaster=auto", f"ControlPath={path}", f"ControlPersist={_KEPT}"]
    return " ".join([given, *(f"-o {shlex.quote(option)}" for option in options)])


def at_server(remote: str, ssh: str, command: str) -> list[str]:
    """What runs a command with the path of the remote, as git runs its own there.

    Empty if the URL is one that git reads in a way of its own.
    """
    found = _REMOTE.fullmatch(unquote(remote))
    if found is None:
        return []
    user, host, name, port, path = found.groups()
    where = f"{user or ''}{host or name}"
    if where.startswith("-"):
        return []
    quoted = path.replace("'", "'\\''").replace("!", "'\\!'")
    options = ["-p", port] if port else []
    return ["sh", "-c", f'{ssh} "$@"', ssh, *options, where, command.format(f"'{quoted}'")]


def _configured(environment: dict[str, str]) -> str:
    found = subprocess.run(  # noqa: S603 - git, without a shell
        git_command.command("config", "core.sshCommand"),
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip()


def _socket(remote: str, cache: str, given: str) -> str:
    """Where the connection is shared; empty if no path for it is short enough."""
    name = hashlib.sha256(f"{remote}\n{given}".encode()).hexdigest()[:12]
    for folder in (os.environ.get("XDG_RUNTIME_DIR", ""), cache):
        path = f"{folder}/interlock-{name}"
        if folder.startswith("/") and len(path) <= _LONGEST and os.access(folder, os.W_OK):
            return path
    folder = f"{SHORTEST}/interlock-{os.geteuid()}"
    return f"{folder}/{name}" if own_folder(folder) else ""


def own_folder(folder: str) -> bool:
    """Whether this user alone can put a socket there: ssh would trust that of another user."""
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return mine and not stat.S_IMODE(found.st_mode) & 0o077
    return False
