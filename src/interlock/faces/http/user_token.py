"""The token of this user: every server on this machine that the user starts accepts it.

It is as good as the command line of the user, so its file is for this user alone.  It stays the
same when a server starts again, so that bookmarks and the settings of programs stay valid; to
replace it, remove the file and start the servers again.

    $INTERLOCK_SERVER_DIR/token, or
    $XDG_STATE_HOME/interlock/server/token, or
    ~/.local/state/interlock/server/token
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from interlock.core.safe_text import printable
from interlock.errors import NotAllowed
from interlock.runtime import user_files

FOLDER = "INTERLOCK_SERVER_DIR"
_FILE = "token"
_FORM = re.compile(r"il_user_[0-9a-f]{64}")
_LONGEST = 200
TICKET = 60.0
"""Seconds in which a ticket has to be used."""


class UserToken(NamedTuple):
    """A token, and why it is for one run of the server alone, if it is."""

    token: str
    unkept: str = ""


def path() -> str:
    """The file."""
    return os.path.join(user_files.place(FOLDER, "server", state=True), _FILE)


def made() -> UserToken:
    """The token of this user; made if there is none, by one process even if several start."""
    try:
        place = path()
    except NotAllowed as error:  # there is no folder for it
        return UserToken(_new(), str(error))
    try:
        user_files.make_folder(os.path.dirname(place))
        with _folder() as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)  # ends when the folder is closed
            token = _read(folder)
            if token is None:
                token = _new()
                user_files.write_whole(folder, _FILE, f"{token}\n".encode())
            return UserToken(token)
    except OSError as error:  # as in a container whose files cannot be changed
        why = (error.strerror or str(error)).lower()
        said = f"{printable(place)} cannot be written: {why}; name another folder with {FOLDER}"
        return UserToken(_new(), said)


def kept() -> str | None:
    """The token of this user, if there is one."""
    try:
        path()
    except NotAllowed:  # there is no folder for it
        return None
    try:
        with _folder() as folder:
            return _read(folder)
    except OSError:
        return None


def proof(token: str, url: str) -> str:
    """What only a holder of the token can say about the address of a server."""
    return _mac(token, f"server {url}")


def ticket(token: str, now: float) -> str:
    """What stands for the token in the address that a browser is started with, once.

    All users of a machine see the words with which its processes were started.
    """
    text = f"{now + TICKET:.0f}.{secrets.token_hex(8)}"
    return f"{text}.{_mac(token, f'ticket {text}')}"


def is_ticket(given: str, token: str, now: float) -> bool:
    """Whether this is a ticket of a holder of the token, and still valid."""
    text, _, said = given.rpartition(".")
    right = _mac(token, f"ticket {text}").encode()
    if not hmac.compare_digest(said.encode("utf-8", "replace"), right):
        return False
    return now < int(text.partition(".")[0])


def _mac(token: str, text: str) -> str:
    return hmac.digest(token.encode(), text.encode("utf-8", "replace"), "sha256").hex()


def _new() -> str:
    return f"il_user_{secrets.token_hex(32)}"


@contextmanager
def _folder() -> Iterator[int]:
    place = os.path.dirname(path())
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        user_files.require_own(folder, place, "could exchange the token", FOLDER)
        yield folder
    finally:
        os.close(folder)


def _read(folder: int) -> str | None:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        file = os.open(_FILE, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _wrong("it is a link") from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise _wrong("it is no file")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _wrong("other users may read it")
        token = os.read(file, _LONGEST).decode("ascii", "replace").strip()
    finally:
        os.close(file)
    if not _FORM.fullmatch(token):
        raise _wrong("there is something else in it")
    return token


def _wrong(why: str) -> NotAllowed:
    return NotAllowed(
        f"{printable(path())} cannot be the token of your servers: {why};"
        " remove it, and 'interlock up' makes a new one"
    )
