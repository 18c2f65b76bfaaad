"""Reads the branch at the remote through one process that is kept there.

A fetch of git starts a process here, a session of ssh, a shell and two processes at the remote, to
bring a few small objects; and while hosts compete, each fetches for every commit of the others.  So
a process that fetches often keeps a ``git cat-file --batch`` at the remote, and reads from it where
the branch is, and the objects that are new (``news.py``).

This is only a shorter way.  Any answer that is not as expected ends the reader, and git itself is
asked: a server that runs nothing but git's own services, a reader that ended, a history that does
not lead to the commit that is here, many or large objects.  Only git itself says that there is no
news, or what is wrong: a reader stays in the repository that it was opened in, also if that is
moved away.

A server limits the sessions of one ssh connection (to 10 by default), and the pushes of a host need
some of them.  So only a few processes of a host have a reader, and only while they use it.  With a
pace there is none: that is for services that limit what they are asked.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from interlock import git_command
from interlock.stores.git import objects
from interlock.stores.git.news import News, NotForUs
from interlock.stores.git.reader import GitObject, ObjectReader
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.stores.git.repository import Repository

T = TypeVar("T")

OFTEN = 10.0
"""Seconds between two uses that are worth a reader."""
IDLE = 30.0
"""Seconds after which a reader that is not used is closed."""
PAUSE = 60.0
"""Seconds without a reader after one that did not begin to answer, or was late."""
READERS = 4
"""Processes of a host that have a reader at the same time."""
_LARGEST, _MOST_REFS = 1 << 20, 256
_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
"""Else git would fetch a missing object from where the configuration of the remote says, even by a
command that it names."""


class RemoteReader:
    """The reader of one store object; it is opened and closed as it is used."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._lock = threading.Lock()
        self._reader: ObjectReader | None = None
        self._slot = -1
        self._used = self._not_before = float("-inf")
        self._ended = threading.Event()

    def refs(self, base: str, names: Sequence[str], limit: float) -> dict[str, str]:
        """Where the branch and other refs are; nothing if there is no reader, or no answer."""
        if len(names) >= _MOST_REFS:
            return {}
        try:
            found = self._use(lambda reader, ends: self._ask(reader, ends, *names), base, limit)
        except TimeoutError:
            return {}
        refs = (self._repository.address.ref, *names)
        return {ref: each.oid for ref, each in zip(refs, found or (), strict=False) if each}

    def bring(self, base: str, seen: str, limit: float) -> str:
        """Bring what the branch has beyond a commit; returns where it is, or nothing.

        If a look has ``seen`` the branch at a commit, that has to be on the way.  Raises
        TimeoutError if the remote does not answer.
        """
        news = self._use(lambda reader, ends: self._news(reader, ends, base), base, limit)
        if news is None or not (seen == "" or news.has(seen)):
            return ""
        news.write()
        return news.head

    @property
    def kept(self) -> bool:
        """Whether there is a reader at this moment."""
        return self._reader is not None

    def close(self) -> None:
        """End the reader, if there is one, also in the middle of an answer."""
        if reader := self._reader:
            reader.kill()
        with self._lock:
            self._stop()

    def drop(self) -> None:
        """After a fork, in the child: the reader is that of the parent."""
        if self._reader is not None:
            self._reader.drop()
        if self._slot >= 0:
            os.close(self._slot)
        self._reader, self._slot = None, -1

    def _use(self, ask: Callable[[ObjectReader, float], T], base: str, limit: float) -> T | None:
        """What a reader says; None if there is none, it does not know, or others use it for long.

        The limit is that of the wait for others, and then that of the answer: a remote that answers
        in time is not late because others were.
        """
        if not self._lock.acquire(timeout=max(0.0, limit)):
            return None
        ends = time.monotonic() + limit
        try:
            reader = self._reader or self._start(base, ends)
            return None if reader is None else ask(reader, ends)
        except NotForUs:  # it has answered all questions
            return None
        except TimeoutError:
            self._stop(PAUSE)
            raise
        except (OSError, ValueError):
            self._stop()
            return None
        except BaseException:  # it may be in the middle of an answer
            self._stop()
            raise
        finally:
            self._used = time.monotonic()
            self._lock.release()

    def _ask(self, reader: ObjectReader, ends: float, *names: str) -> list[GitObject | None]:
        """The commits of the branch and of other refs."""
        ref = self._repository.address.ref
        found = reader.ask([ref, *names], limit=_left(ends), largest=_LARGEST)
        if found[0] is None:
            raise NotForUs("no branch")
        _check(*found)
        return found

    def _news(self, reader: ObjectReader, ends: float, base: str) -> News | None:
        (head,) = self._ask(reader, ends)
        if head is None or head.oid == base:
            return None
        news = News(self._repository, base, head)
        while names := news.wanted():
            news.take(names, reader.ask(names, limit=_left(ends), largest=news.room))
        return news

    def _start(self, base: str, ends: float) -> ObjectReader | None:
        """Open a reader, if it is worth it, and see that it is in the right repository."""
        now = time.monotonic()
        if now - self._used > OFTEN or now < self._not_before:
            return None
        command = self._command(_left(ends))
        if not command or not self._take_slot():
            self._not_before = now + PAUSE
            return None
        given = dict(self._repository.environment())
        given |= {"GIT_CEILING_DIRECTORIES": os.path.dirname(self._repository.address.file)}
        given |= _NO_FETCH
        given.pop("GIT_DIR", None)
        self._not_before = now + PAUSE  # unless it answers
        self._reader = ObjectReader(command, given)
        self._ended = threading.Event()
        background(self._close_when_idle, "interlock-reader").start()
        (found,) = self._reader.ask([base], limit=_left(ends), largest=_LARGEST)
        _check(found)
        if found is None or found.oid != base:
            raise ValueError("another repository")
        self._not_before = now
        return self._reader

    def _command(self, limit: float) -> list[str]:
        """The command that starts a reader; empty if the remote takes none."""
        address, run = self._repository.address, self._repository.run
        if address.pace or address.remote.startswith("http"):
            return []
        said = run("ls-remote", "--get-url", address.remote, limit=limit).out.decode().strip()
        if said != address.remote:  # the user's configuration leads elsewhere
            return []
        if address.file:
            return git_command.command("-C", address.file, "cat-file", "--batch", bare=True)
        from interlock.stores.git.ssh import at_server

        ssh = self._repository.environment()["GIT_SSH_COMMAND"]
        variables = " ".join([f"{name}={value}" for name, value in _NO_FETCH.items()])
        return at_server(address.remote, ssh, f"env {variables} git -C {{}} cat-file --batch")

    def _take_slot(self) -> bool:
        """Be one of the few processes of the host that have a reader."""
        folder = os.path.dirname(self._repository.path)
        for number in range(READERS):
            path = f"{folder}/reader-{number}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._slot = fd
                return True
            os.close(fd)
        return False

    def _stop(self, pause: float = 0.0) -> None:
        self._not_before = max(self._not_before, time.monotonic() + pause)
        reader, self._reader = self._reader, None
        if reader is not None:
            self._ended.set()
            reader.close()
        if self._slot >= 0:
            os.close(self._slot)
        self._slot = -1

    def distrust(self) -> None:
        """Do without a reader for a while: git itself says something else."""
        with self._lock:
            self._stop(PAUSE)

    def _close_when_idle(self) -> None:
        ended = self._ended
        left = IDLE
        while not ended.wait(left):
            with self._lock:
                left = self._used + IDLE - time.monotonic()
                if left <= 0 and not ended.is_set():
                    self._stop()


def _check(*found: GitObject | None) -> None:
    """Raise unless these objects have their ids."""
    if any(each and objects.id_of(each.kind, each.data) != each.oid for each in found):
        raise ValueError("an object with another id")


def _left(ends: float) -> float:
    """Seconds until then."""
    return max(0.0, ends - time.monotonic())
