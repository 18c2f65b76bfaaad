"""Private keys of this user: OpenSSH files of Ed25519 keys in a folder of their own.

    $INTERLOCK_KEYS_DIR, or
    $XDG_DATA_HOME/interlock/keys, or
    ~/.local/share/interlock/keys

``ops`` is the current key of that name, and ``ops@20261116T135105Z`` one that it replaced at that
time: ``rotate`` keeps it, since it signs together with its successor while both are valid.  The
age of a key is that of its file.

A file counts only if it is a regular file of this user without any right for others; links are not
followed.  ``ssh-keygen`` reads these files, and files that it made can be used here.  A file with a
passphrase is refused: an ssh-agent signs with such a key (``ssh_agent.py``), so that no passphrase
passes through a program of an agent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from msgspec import Struct

from interlock.core import signing, validate
from interlock.core.safe_text import foreign, foreign_names, printable, quoted
from interlock.core.signing import FINGERPRINT_MARK, KeySigner, Signer
from interlock.errors import BadInput, InterlockError, NotAllowed
from interlock.runtime import user_files

FOLDER = "INTERLOCK_KEYS_DIR"
"""The environment variable that names another folder for keys."""
ROTATE_AFTER = 90 * 86400.0
"""Seconds after which a key should be replaced."""

_LARGEST = 1 << 16
_PUBLIC = ".pub"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(@[0-9]{8}T[0-9]{6}Z)?")
_ANY_RIGHT_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFile(Struct, frozen=True, kw_only=True):
    """A key of this user; ``problem`` says why it cannot be used, and what to do."""

    name: str
    path: str
    created: float
    fingerprint: str = ""
    public_key: str = ""
    problem: str = ""

    @property
    def retired(self) -> bool:
        """Whether another key has taken its place."""
        return "@" in self.name

    def age(self, now: float) -> float:
        """Seconds since it was created."""
        return max(now - self.created, 0.0)

    def overdue(self, now: float) -> bool:
        """Whether it should have been replaced by now."""
        return not self.retired and self.age(now) > ROTATE_AFTER


def place() -> str:
    """The folder of the keys."""
    return user_files.place(FOLDER, "keys")


def create(name: str) -> KeyFile:
    """Make a key; a name that is taken is refused."""
    _require_name(name)
    with _changing() as folder:
        if _exists(folder, name):
            raise BadInput(
                f"there is a key {name} already; choose another name, or replace that key with"
                f" {validate.command(f'interlock key rotate {validate.quote(name)}')}"
            )
        user_files.write_whole(folder, name, _new_key())
        return _listed(folder, name)


def rotate(name: str, now: float) -> tuple[KeyFile, KeyFile]:
    """Replace a key; returns the new key, and the old one under its new name.

    A crash in between leaves the old key in its place, or the new one with the old one kept.
    """
    _require_name(name)
    with _changing() as folder:
        _read(name, folder)
        old = f"{name}@{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        try:
            os.link(name, old, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise NotAllowed(f"{name} was rotated within this second; look at 'key list'") from None
        user_files.write_whole(folder, name, _new_key())
        return _listed(folder, name), _listed(folder, old)


def listed() -> list[KeyFile]:
    """All keys by name, with retired ones behind their successors."""
    with _reading() as folder:
        if folder is None:
            return []
        return [_listed(folder, name) for name in _names(folder)]


def load(name: str) -> KeySigner:
    """The key of this name, or in the file at this path (with a ``/``)."""
    if "/" in name:
        with _refusing(name):
            return _signer(_read(name)[0], name)
    if not _FILE.fullmatch(name):
        raise BadInput(f"{quoted(name)} is not the name of a key; 'interlock key list' shows them")
    with _reading() as folder:
        if folder is None:
            raise _unknown(name, [])
        return _signer(_read(name, folder)[0], os.path.join(place(), name))


def signer(named: str) -> Signer:
    """The signer for what a caller names: a key, a path, or the fingerprint of an agent's key."""
    if named.startswith(FINGERPRINT_MARK):
        from interlock.nouns.swarms.ssh_agent import agent_signer

        return agent_signer(named)
    return load(named)


class RecordSigner:
    """The key of INTERLOCK_KEY for the entries of a client, loaded when the first is written.

    A command that only reads neither needs the key nor pays for it.
    """

    def __init__(self, named: str) -> None:
        self._named = named

    @cached_property
    def _key(self) -> KeySigner:
        return record_signer(self._named)

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._key.public_key

    @property
    def fingerprint(self) -> str:
        """The name of the key."""
        return self._key.fingerprint

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of a signature over exactly this data."""
        return self._key.sign(data)


def record_signer(named: str) -> KeySigner:
    """The key that signs the entries of a client: its name, or a path.

    An ssh-agent is refused: entries are signed inside of transactions, and all other clients would
    wait for an agent that asks a person.
    """
    if named.startswith(FINGERPRINT_MARK):
        raise BadInput(
            "a key in an ssh-agent cannot sign the record: every commit would wait for the agent;"
            " name a key file of its own, made with 'interlock key new NAME'"
        )
    return load(named)


# ---- files --------------------------------------------------------------------------------------


def _listed(folder: int, name: str) -> KeyFile:
    path = os.path.join(place(), name)
    try:
        data, created = _read(name, folder)
        found = _signer(data, path)
    except InterlockError as error:
        when = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        return KeyFile(name=name, path=path, created=when, problem=str(error))
    return KeyFile(
        name=name,
        path=path,
        created=created,
        fingerprint=found.fingerprint,
        public_key=signing.public_line(found.public_key, name),
    )


def _names(folder: int) -> list[str]:
    """The files that should be keys; ``ssh-keygen`` leaves the public part in another one."""
    found = filter(_FILE.fullmatch, os.listdir(folder))
    return sorted(name for name in found if not name.endswith(_PUBLIC))


def _exists(folder: int, name: str) -> bool:
    """Whether there is a file; on some file systems ``Ops`` and ``ops`` are the same one."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(name: str, folder: int | None = None) -> tuple[bytes, float]:
    """The content of a key file and its time, if it is for this user alone."""
    path = name if folder is None else os.path.join(place(), name)
    shown = printable(path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise _unknown(name, [] if folder is None else _names(folder)) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise NotAllowed(f"{shown} is a link; name the file that it leads to") from None
    try:
        found = os.fstat(file)
        _require_private(found, shown)
        return os.read(file, _LARGEST), found.st_mtime
    finally:
        os.close(file)


def _require_private(found: os.stat_result, shown: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAllowed(f"{shown} is no file; name the file of a private key")
    if found.st_uid != os.geteuid():
        raise NotAllowed(
            f"{shown} belongs to user {found.st_uid}, who can sign with it too;"
            " make a key of your own with 'interlock key new NAME'"
        )
    if found.st_mode & _ANY_RIGHT_OF_OTHERS:
        raise NotAllowed(
            f"other users may have read the key {shown}; make another one, or if they have not,"
            f" run: chmod 600 {validate.quote(shown)}"
        )


def _signer(data: bytes, path: str) -> KeySigner:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    shown = printable(path)
    try:
        key = load_ssh_private_key(data, password=None)
    except TypeError:
        file = validate.quote(shown)
        raise NotAllowed(
            f"{shown} has a passphrase; add it to an ssh-agent with 'ssh-add {file}', then name"
            f" the key by the fingerprint that 'ssh-keygen -lf {file}' prints"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise NotAllowed(
            f"{shown} is not a private key in OpenSSH's format; remove it, and make a key with"
            " 'interlock key new NAME'"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise NotAllowed(
            f"{shown} is a key of another kind; Interlock signs with Ed25519:"
            " make a key with 'interlock key new NAME'"
        )
    return KeySigner(key)


def _new_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.endswith(_PUBLIC):
        raise BadInput(
            f"{quoted(name)} cannot name a key;"
            " take up to 64 letters, digits, '_', '.' and '-', beginning with a letter or digit"
        )


def _unknown(name: str, known: list[str]) -> BadInput:
    if "/" in name:
        return BadInput(f"there is no file {printable(name)}; name the file of a private key")
    close = validate.closest_names(name, known)
    meant = f"is it {foreign_names(close, ' or ')}? " if close else ""
    return BadInput(
        f"there is no key {foreign(name)} in {printable(place())}; {meant}"
        f"to make it, run: interlock key new {validate.quote(name)}"
    )


@contextmanager
def _reading() -> Iterator[int | None]:
    """The folder of the keys, open and trusted; None if there is none."""
    with _refusing(place()):
        try:
            folder = os.open(place(), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            yield None
            return
        try:
            user_files.require_own(folder, place(), "could exchange keys", FOLDER)
            yield folder
        finally:
            os.close(folder)


@contextmanager
def _changing() -> Iterator[int]:
    """The folder of the keys, created if it is missing; one process changes it at a time."""
    with _refusing(place()):
        user_files.make_folder(place())
    with _reading() as folder:
        if folder is None:
            raise NotAllowed(f"the folder {printable(place())} was removed; try it again")
        # Two rotations at once would each take the other's new key for the old one and lose it.
        fcntl.flock(folder, fcntl.LOCK_EX)  # ends when the folder is closed
        yield folder


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Errors of the file system as refusals."""
    try:
        yield
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise NotAllowed(
            f"the keys in {printable(path)} cannot be used: {what};"
            f" correct that, or name another folder with {FOLDER}"
        ) from None
