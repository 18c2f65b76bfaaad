"""How a commit wakes the processes that watch its keys, and only those.

Beside the file is a folder.  A process that watches binds one datagram socket in it, and for each
watch it creates an empty file named ``{socket}={scope}={scope}...``, or a few of them if the scopes
are too many for one name.  A process that committed lists the folder, looks up the keys that it
changed, and sends one datagram to each socket that is marked with one, without ever blocking.

A datagram is one byte: its receiver reads the log.  If all that concerns the receiver are signals,
it names them and their revision instead, and a waiter for such a signal needs no log.

Why no wake-up is lost: the watcher creates its socket first and reads afterwards, the committer
commits first and lists afterwards.  A full socket needs no further datagram, since its reader has
yet to wake, and reads the log if it finds many.  For a committer that is killed between commit and
notification, and for a sandbox that forbids sockets, there is the slow backstop in watch.py.

A socket whose process is dead refuses the byte; the sender deletes its files.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.errors import StoreUnsuitable
from interlock.stores.sqlite.files import make_side_folder

if TYPE_CHECKING:
    import socket

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MARK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_PATH = 100
_LONGEST_SCOPE = 180
_LONGEST_NAME = 200
_OURS = r"(?s:[0-9]+-[0-9a-f]{8}(=.*)?)"
"""The names of sockets and marks.  A text: where nothing waits, a command need not compile it."""
_UNSPELLED = r"[\\=]"
"""What a name has a meaning for."""
_TICK = 100_000_000
_SECOND = 1_000_000_000
_LONGEST_WORD = 400
MANY = 4
"""So many datagrams at once may be all that there was room for."""
LOOK = b"!"
"""The datagram whose receiver reads the log."""


class Signal(str):
    """The key of a signal, with the revision of the commit that sent it."""

    __slots__ = ("revision",)

    revision: int

    @classmethod
    def of(cls, key: str, revision: int) -> Signal:
        """A signal of a commit."""
        signal = cls(key)
        signal.revision = revision
        return signal


class Notifier:
    """The folder of notification sockets of one store, seen from one process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.trouble = ""
        self.lock = threading.Lock()
        """Guards the attributes that follow: several threads may commit and notify at once."""
        self._handle = -1
        self._sender: socket.socket | None = None
        self._names: frozenset[str] = frozenset()
        self._watched: dict[str, set[str]] = {}
        self._tops: set[str] = set()
        """The uppermost folders of the watched scopes; the empty one covers all."""
        self._changed = -1
        self.here: dict[str, NotifySocket] = {}
        """The sockets of this process, by name."""

    def notify(self, touched: Iterable[str]) -> None:
        """Wake every process that watches one of these keys."""
        try:
            with self.lock:
                self._notify(touched)
        except OSError as error:
            # The commit stands without the folder; the backstop wakes the watchers.
            self.trouble = f"{self.folder} cannot be read ({error.strerror or error})"

    def _notify(self, touched: Iterable[str]) -> None:
        watched = self._list()
        if not watched:
            return
        # Most of what a commit writes is in folders that no process watches.
        tops = self._tops
        seen = {
            scope
            for key in touched
            if key[: key.find("/") + 1] in tops or "" in tops
            for scope in _around(key)
        }
        scopes: dict[str, list[str]] = {}
        for scope in seen & watched.keys():
            for name in watched[scope]:
                scopes.setdefault(name, []).append(scope)
        for name, some in scopes.items():
            ours = self.here.get(name)
            if ours is not None and ours.answer():
                continue
            word = _word(some, touched)
            if not self.send(name, word):
                self._forget_folder()  # if it was created again, our handle leads nowhere
                if not self.send(name, word):
                    self._clear(name)

    def open_socket(self) -> NotifySocket | None:
        """A socket of our own; None where sockets are forbidden, and ``trouble`` says why."""
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        try:
            make_side_folder(self.folder)  # an operator may have deleted it
            with self.lock:
                return NotifySocket(self, name)
        except StoreUnsuitable as error:
            self.trouble = str(error)
        except OSError as error:
            self.trouble = f"local sockets do not work here ({error.strerror or error})"
        return None

    def address(self, name: str) -> str:
        """A path to a socket that is short enough to bind and to send to; asked under the lock."""
        path = f"{self.folder}/{name}"
        if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
            return path
        return f"/proc/self/fd/{self._open()}/{name}"

    def _open(self) -> int:
        if self._handle < 0:
            self._handle = os.open(self.folder, _FOLDER)
        return self._handle

    def close(self) -> None:
        """Close the folder."""
        with self.lock:
            if self._sender is not None:
                self._sender.close()
            self._sender = None
            self._forget_folder()

    def _list(self) -> dict[str, set[str]]:
        """Which sockets to notify for which scope, as the marks in the folder say.

        Listing costs more than asking when the folder last changed, so the list is kept as long
        as that stays the same.  It is kept only if the folder had been still for a while when it
        was made: two changes within one tick of the file system's clock look the same.
        """
        folder = os.fstat(self._open())
        if not folder.st_nlink:  # removed, and perhaps created again
            self._forget_folder()
            folder = os.fstat(self._open())
        changed = folder.st_mtime_ns
        if changed != self._changed:
            now = time.time_ns()
            self._note(frozenset(os.listdir(self.folder)))
            # Nothing below a second: a file system that may not know smaller parts of one.
            tick = _TICK if changed % _SECOND else 2 * _SECOND
            self._changed = changed if now - changed > tick else -1
        return self._watched

    def _note(self, names: frozenset[str]) -> None:
        """Note which files are new and which are gone: with every wait two of many change."""
        for name in self._names - names:
            socket, scopes = _parsed(name)
            for scope in scopes:
                if found := self._watched.get(scope):
                    found.discard(socket)
                    if not found:
                        del self._watched[scope]
        for name in names - self._names:
            socket, scopes = _parsed(name)
            for scope in scopes:
                self._watched.setdefault(scope, set()).add(socket)
        self._tops = {scope[: scope.find("/") + 1] for scope in self._watched}
        self._names = names

    def send(self, name: str, word: bytes = LOOK) -> bool:
        """Send a datagram to a socket; False if its process is gone.  Called under the lock."""
        try:
            if self._sender is None:
                import socket

                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            self._sender.sendto(word, self.address(name))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            self.trouble = f"another process could not be woken ({error.strerror or error})"
        return True

    def _clear(self, name: str) -> None:
        """Take the files of a dead process away."""
        for mark in self._names:
            if mark.partition("=")[0] == name and re.fullmatch(_OURS, mark):
                self.remove(mark)

    def _forget_folder(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def remove(self, name: str) -> None:
        """Take a file of the folder away, if it is still there."""
        with suppress(OSError):
            os.unlink(f"{self.folder}/{name}")


class NotifySocket:
    """One socket for all watches of a store object."""

    def __init__(self, notifier: Notifier, name: str) -> None:
        self._notifier = notifier
        self._name = name
        self._marks: dict[str, int] = {}
        self.answer: Callable[[], bool] = lambda: False
        """Whether the listener knows already, since the commit was in its own event loop."""
        import socket

        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            os.fchmod(self.socket.fileno(), 0o600)
            self.socket.bind(notifier.address(name))
        except OSError:
            self.socket.close()
            raise
        notifier.here[name] = self

    def listen(self, scopes: tuple[str, ...]) -> None:
        """Ask to be notified of these scopes."""
        for mark in self._marked(scopes):
            self._marks[mark] = self._marks.get(mark, 0) + 1
            if self._marks[mark] == 1:
                path = f"{self._notifier.folder}/{mark}"
                with suppress(OSError):  # no folder any more: the backstop serves
                    os.close(os.open(path, _NEW_MARK, 0o600))

    def unlisten(self, scopes: tuple[str, ...]) -> None:
        """Remove the marks of these scopes that no other watch here needs."""
        for mark in self._marked(scopes):
            self._marks[mark] -= 1
            if not self._marks[mark]:
                del self._marks[mark]
                self._notifier.remove(mark)

    def wake(self) -> None:
        """Notify it ourselves."""
        with self._notifier.lock:
            self._notifier.send(self._name)

    def drain(self) -> list[bytes]:
        """Receive all datagrams that were sent to it."""
        found: list[bytes] = []
        with suppress(BlockingIOError):
            while word := self.socket.recv(_LONGEST_WORD):
                found.append(word)
        return found

    def close(self) -> None:
        """Remove it, and wake its listener."""
        import socket

        self._notifier.here.pop(self._name, None)

        with suppress(OSError):  # where that is not possible, the backstop wakes
            self.socket.shutdown(socket.SHUT_RD)
        self.socket.close()
        for name in (*self._marks, self._name):
            self._notifier.remove(name)

    def _marked(self, scopes: tuple[str, ...]) -> Iterator[str]:
        """The names of the files that ask for these scopes, as many scopes in each as fit."""
        mark = self._name
        for spelled in dict.fromkeys(map(_spelled, scopes)):
            if mark != self._name and len(f"{mark}={spelled}".encode()) > _LONGEST_NAME:
                yield mark
                mark = self._name
            mark += f"={spelled}"
        yield mark


def _spelled(scope: str) -> str:
    """A scope within the name of a file."""
    fits = scope.encode()[:_LONGEST_SCOPE].decode(errors="ignore")
    fits = re.split(_UNSPELLED, fits, maxsplit=1)[0]
    if fits != scope:  # a folder around it, then: a notification too many is harmless
        fits = fits[: fits.rfind("/") + 1]
    return fits.replace("/", "\\")


def _parsed(name: str) -> tuple[str, list[str]]:
    """The socket and the scopes that a file of the folder names; none for one of another form."""
    if "=" not in name or not re.fullmatch(_OURS, name):
        return "", []
    socket, *marked = name.split("=")
    return socket, [spelled.replace("\\", "/") for spelled in marked]


def _word(scopes: list[str], touched: Iterable[str]) -> bytes:
    """The datagram for a socket that listens to these scopes."""
    signals = [each for each in touched if type(each) is Signal and each in scopes]
    if {*scopes} != {*signals}:
        return LOOK
    word = "\n".join(f"{each.revision} {each}" for each in signals).encode()
    return word if len(word) < _LONGEST_WORD else LOOK


def signals_of(words: list[bytes]) -> dict[str, int] | None:
    """The signals that datagrams name, each with its revision; None if the log is to be read."""
    if not words or len(words) >= MANY or LOOK in words:
        return None
    found: dict[str, int] = {}
    try:
        for line in b"\n".join(words).decode().split("\n"):
            revision, _, key = line.partition(" ")
            found[key] = int(revision)
    except ValueError:  # an odd datagram
        return None
    return found


def _around(key: str) -> Iterator[str]:
    """The scopes that cover a key: everything, each folder around it, and the key itself."""
    yield ""
    yield key
    end = key.find("/") + 1
    while end:
        yield key[:end]
        end = key.find("/", end) + 1
