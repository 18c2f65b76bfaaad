"""How a commit wakes the processes that watch its keys, and only those.

Beside the file is a folder.  A process that watches binds one datagram socket in it, and for each
watch it creates an empty file named ``{socket}={scope}={scope}...``, or a few of them if the scopes
are too many for one name.  A process that committed lists the folder, looks up the keys that it
changed, and sends one datagram to each socket that is marked with one, without ever blocking.

The waits of a session come one after the other, so its signals have a folder (``WAKE_SESSION``):
one mark names the folder, and stays for the next wait.

A datagram is a ``Notice``: the revisions of the commits, what they changed that concerns the
receiver, and what they wrote, unless that is long.  A receiver that knows all commits before them
reads no log, nor does a waiter for a signal.  Where that is not possible, it is one byte: read it.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from interlock.clock import milliseconds
from interlock.descriptors import is_refused
from interlock.errors import StoreUnsuitable
from interlock.store import TOLD, WAKE_SESSION, Put
from interlock.stores.sqlite.files import make_side_folder
from interlock.thread_calls import from_handler

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
_LONGEST_DATAGRAM = 16_384
LONGEST_VALUES = 4_096
"""Bytes that a datagram has at most with values: what waits in sockets counts for its sender."""
_SKIPPED = 256
"""Commits of one process that its listener knows without a datagram, at most."""
_KEPT = 64
"""Marks that stay without a watch."""
MANY = 4
"""So many datagrams at once may be all that there was room for."""
LOOK = b"!"
"""The datagram whose receiver reads the log."""


class CommitNote(Struct, frozen=True, gc=False):
    """What a notifier has to know about one commit: the lines of its log row, and its puts."""

    revision: int
    entry: str
    lines: list[str]
    puts: tuple[Put, ...]
    durable: bool = True


class NoticeRow(Struct, frozen=True, array_like=True, gc=False):
    """The lines of a log row that concern the receiver, and what the commit wrote."""

    revision: int
    lines: list[str] = []
    written: dict[str, bytes] = {}

    @property
    def signals(self) -> dict[str, int] | None:
        """The signals among them; None if there is more than signals."""
        found = {}
        for line in self.lines:
            if line[0] != "!":
                return None
            found[line[1:]] = self.revision
        return found


class Notice(Struct, frozen=True, array_like=True, gc=False):
    """A datagram about commits: when it was sent, and a row for each of them.

    ``sent`` is in nanoseconds of the clock that all processes of a boot share.
    """

    sent: int
    rows: list[NoticeRow]


_encode = msgspec.msgpack.Encoder().encode


@cache
def _decoder() -> msgspec.msgpack.Decoder[Notice]:
    """Made with the first socket: a command that waits for nothing needs none."""
    return msgspec.msgpack.Decoder(Notice)


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

    def notify(self, commits: Sequence[CommitNote]) -> None:
        """Wake every process that watches a key which these changed."""
        try:
            with self.lock:
                if watched := self._list():
                    self._notify(watched, commits)
        except OSError as error:
            if from_handler(error):
                raise
            # The commit stands without the folder; the backstop wakes the watchers.
            self.trouble = f"{self.folder} cannot be read ({error.strerror or error})"

    def _notify(self, watched: dict[str, set[str]], commits: Sequence[CommitNote]) -> None:
        concerned = self._concerned(watched, commits)
        revisions = [commit.revision for commit in commits]
        for name, idle in self.here.items():
            if name not in concerned:
                idle.skip(revisions)
        for name, rows in concerned.items():
            ours = self.here.get(name)
            if ours is not None and ours.answer():
                continue
            datagram = _datagram(commits, rows)
            if not self.send(name, datagram):
                self._forget_folder()  # if it was created again, our handle leads nowhere
                if not self.send(name, datagram):
                    self._clear(name)

    def _concerned(
        self, watched: dict[str, set[str]], commits: Sequence[CommitNote]
    ) -> dict[str, dict[int, list[str]]]:
        """The sockets to notify, each with the lines that concern it, by their revisions."""
        # Most of what a commit writes is in folders that no process watches.
        tops, everything = self._tops, "" in self._tops
        found: dict[str, dict[int, list[str]]] = {}
        for commit in commits:
            for line in ("=" + commit.entry, *commit.lines):
                if everything or line[1 : line.find("/") + 1] in tops:
                    names: dict[str, None] = {}
                    for scope in around(line[1:]):
                        names.update(dict.fromkeys(watched.get(scope, ())))
                    for name in names:
                        found.setdefault(name, {}).setdefault(commit.revision, []).append(line)
        return found

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
            if is_refused(error):
                raise
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
        folder = os.fstat(self._handle if self._handle >= 0 else self._open())
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

    def send(self, name: str, datagram: bytes = LOOK) -> bool:
        """Send a datagram to a socket; False if its process is gone.  Called under the lock."""
        try:
            try:
                (self._sender or self._open_sender()).sendto(datagram, self.address(name))
            except BlockingIOError:
                # The receiver has more than it reads, or we have: what others did not read counts
                # for our socket, too.
                with suppress(BlockingIOError):
                    self._open_sender().sendto(LOOK, self.address(name))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            if from_handler(error):
                raise
            self.trouble = f"another process could not be woken ({error.strerror or error})"
        return True

    def _open_sender(self) -> socket.socket:
        import socket

        if self._sender is not None:
            self._sender.close()
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        return self._sender

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
        """How many watches need each mark; none, if it only stays for the next one."""
        self.answer: Callable[[], bool] = lambda: False
        """Whether the listener knows already, since the commit was in its own event loop."""
        self.skipped: set[int] = set()
        """Commits of this process that its listener was not notified of."""
        _decoder()  # not when the first datagram comes, which wakes a waiter
        import select
        import socket

        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            os.fchmod(self.socket.fileno(), 0o600)
            self.socket.bind(notifier.address(name))
        except OSError:
            self.socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        notifier.here[name] = self

    def listen(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        """Ask to be notified of these scopes; returns the marks that do."""
        marks = tuple(self._marked(scopes))
        for mark in marks:
            if mark not in self._marks:
                self._make(mark)
            self._marks[mark] = self._marks.get(mark, 0) + 1
        return marks

    def unlisten(self, marks: tuple[str, ...], *, keep: bool) -> bool:
        """Remove these marks, unless another watch here needs them; whether they stay.

        Those of a signal are to ``keep``, for the next wait.
        """
        stays = keep and len(self._marks) <= _KEPT
        for mark in marks:
            self._marks[mark] -= 1
            if not self._marks[mark] and not stays:
                del self._marks[mark]
                self._notifier.remove(mark)
        return stays

    def mark_again(self) -> None:
        """Make the marks again, if another program removed them."""
        for mark in self._marks:
            self._make(mark)

    def _make(self, mark: str) -> None:
        path = f"{self._notifier.folder}/{mark}"
        with suppress(OSError):  # no folder any more: the backstop serves
            os.close(os.open(path, _NEW_MARK, 0o600))

    def skip(self, revisions: list[int]) -> None:
        """These commits of this process concern no watch here."""
        if len(self.skipped) > _SKIPPED:
            self.skipped.clear()  # then the log is read
        self.skipped.update(revisions)

    def wake(self) -> None:
        """Notify it ourselves."""
        with self._notifier.lock:
            self._notifier.send(self._name)

    def wait(self, timeout: float) -> bool:
        """Whether a datagram came within so many seconds; one thread at a time may ask."""
        if self.socket.fileno() < 0:  # closed this moment
            return False
        return bool(self._poll.poll(milliseconds(timeout)))

    def drain(self) -> list[bytes]:
        """Receive all datagrams that were sent to it."""
        found: list[bytes] = []
        try:
            while datagram := self.socket.recv(_LONGEST_DATAGRAM):
                found.append(datagram)
        except BlockingIOError:
            pass
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


@lru_cache(maxsize=64)
def _spelled(scope: str) -> str:
    """A scope within the name of a file; a session spells the same one for each of its waits."""
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


def signal_folder(scopes: tuple[str, ...]) -> str | None:
    """The folder of the signal that these scopes name, if its mark is that of the folder."""
    scope = scopes[0]
    if len(scopes) > 1 or scope[-1:] == "/" or not scope.startswith(WAKE_SESSION):
        return None
    return scope[: scope.rfind("/") + 1]


def _datagram(commits: Sequence[CommitNote], concerned: Mapping[int, list[str]]) -> bytes:
    """The datagram for a socket that these lines of the commits concern."""
    rows, room = [], LONGEST_VALUES
    for commit in commits:
        lines = concerned.get(commit.revision, [])
        if not commit.durable or (lines and lines[0][0] == "="):  # a watch wants the entry itself
            return LOOK
        written: dict[str, bytes] = {}
        if any(line.startswith(TOLD, 1) for line in lines):
            kept = {put.key: put.value for put in commit.puts if put.ttl is None}
            room -= sum(map(len, kept.values()))
            written = kept if room > 0 else {}
        rows.append(NoticeRow(commit.revision, lines, written))
    datagram = _encode(Notice(time.clock_gettime_ns(time.CLOCK_MONOTONIC), rows))
    return datagram if len(datagram) < _LONGEST_DATAGRAM else LOOK


def notices_of(datagrams: list[bytes]) -> list[Notice] | None:
    """What datagrams say about commits; None if the log is to be read."""
    if not datagrams or len(datagrams) >= MANY or LOOK in datagrams:
        return None
    try:
        decode = _decoder().decode
        notices = [decode(each) for each in datagrams]
    except msgspec.MsgspecError:  # an odd datagram
        return None
    odd = any("" in row.lines for notice in notices for row in notice.rows)
    return None if odd else notices


def around(key: str) -> list[str]:
    """The scopes that cover a key: the key itself, everything, and each folder around it."""
    found = [key, ""]
    end = key.find("/") + 1
    while end:
        found.append(key[:end])
        end = key.find("/", end) + 1
    return found
