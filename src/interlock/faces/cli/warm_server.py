"""``interlock warm``: a process that carries out the commands of its user without their start.

``warm.py`` says how a command is handed over.  This process imports the modules of commands and
forks: the child waits for the next command and carries it out.  As soon as it has one, this process
forks again, so that no command waits for a fork.  It opens no store and starts no thread, since it
forks.  It ends when it was not used for a while, when its code was changed, or when a user ends it.

    the warm process === a line for each child === the child, which accepts commands
                     <-- DECLINED: still waiting, BEGUN: fork again, closed: end ---
                     --- closed: end ---------------------------------------------->
"""

from __future__ import annotations

import gc
import os
import pkgutil
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple, NoReturn, TypeAlias

import interlock
from interlock import registry
from interlock.core import validate
from interlock.errors import BadInput, StoreTrouble
from interlock.faces.cli import warm
from interlock.faces.cli.command import note, write
from interlock.faces.cli.main import carry_out
from interlock.faces.cli.parse import Parsed, split
from interlock.nouns.fleet.server_noun import WarmRequest

_PARTS = ("nouns", "runtime", "core", "faces", "stores", "client")
_APART = (
    "faces.cli.warm_server", "faces.http", "faces.mcp", "faces.page", "faces.tui",
    "runtime.tracing", "stores.etcd", "stores.git", "stores.redis",
)  # fmt: skip
"""What is not imported: programs of their own, and engines across a network."""
_FILES = 4
"""The standard files of a command, and its folder."""
_NUMBER = 4
"""The bytes of a file, and of each credential."""
_CREDENTIALS = 3 * _NUMBER
_SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_CONFINED = ("Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "CapEff:")
_LIMITED = ("Max cpu time", "Max file size", "Max data size", "Max address space")
_Own: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The stamp of the warm process, and its confinement."""
_MASK = 0o777
_LOOK = 1.0
"""Seconds between two looks at the files of the code."""
_LONGEST = 2_000_000.0
"""Seconds: what the system's poll can wait for is 24 days, and a longer limit is none."""
_PATIENCE = 5.0
"""Seconds in which a command sends its request, which it does at once."""


def serve(parsed: Parsed) -> int:
    """Carry out commands until a user ends it."""
    request = parsed.request
    assert isinstance(request, WarmRequest)  # noqa: S101 - as it is declared
    if not hasattr(socket, "SO_PEERCRED") or not os.path.isdir("/proc/self/ns"):
        raise BadInput("a warm process needs Linux; commands work without it")
    path, idle = warm.socket_path(), validate.wait_time(request.idle)
    if request.stop:
        return _stop(path)
    listener = _listen(path)
    try:
        _import_all()
        code = LoadedCode()
        write(f"commands are carried out by process {os.getpid()}; Ctrl-C ends it\n".encode())
        gc.collect()
        gc.freeze()  # else the first collection of each child would copy all pages
        _fork_for_commands(listener, idle, code)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
        with suppress(OSError):
            os.unlink(path)
    return 0


def _stop(path: str) -> int:
    pid = _owner(path)
    if pid is None:
        note("there is no warm process")
        return 1
    os.kill(pid, signal.SIGINT)
    return 0


def _owner(path: str) -> int | None:
    """The warm process that listens there, if it is one of this user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(path)
        except OSError:
            return None
        found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if warm.peer_uid(line) != os.geteuid():
            return None
    return int.from_bytes(found[:4], sys.byteorder)


def _listen(path: str) -> socket.socket:
    if (pid := _owner(path)) is not None:
        raise BadInput(f"process {pid} is warm already; end it with: interlock warm --stop")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        raise StoreTrouble(
            f"{path}: {error.strerror}; set XDG_RUNTIME_DIR to your folder"
        ) from None
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener


def _import_all() -> None:
    """Import what commands import; what is not installed here is left out."""
    for found in pkgutil.walk_packages(interlock.__path__, "interlock."):
        name = found.name.removeprefix("interlock.")
        if name.startswith(_PARTS) and not name.startswith(_APART):
            with suppress(ImportError):
                import_module(found.name)
    tuple(registry.nouns())
    if len(os.listdir("/proc/self/task")) > 1:
        raise StoreTrouble("a module started a thread, so this process cannot fork; commands work")


class LoadedCode:
    """The files of the imported code, and when each was changed."""

    def __init__(self) -> None:
        files = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
        self.files = {file: _changed(file) for file in files if file}
        self._looked = time.monotonic()

    def is_old(self) -> bool:
        """Whether a file has changed since; it looks only if the last look was a while ago.

        A child inherits the time of the look of its parent, which looks before each fork: so a
        change is noticed though no child waits for long.
        """
        if time.monotonic() - self._looked <= _LOOK:
            return False
        if any(_changed(file) != then for file, then in self.files.items()):
            return True
        self._looked = time.monotonic()
        return False


def _changed(file: str) -> int:
    """When a file was changed; 0 if it is gone."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _fork_for_commands(listener: socket.socket, idle: float, code: LoadedCode) -> None:
    """Keep a child ready for the next command, until none came for so long or the code changed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children
    for signum in warm.SIGNALS:  # a shell ignores some behind &
        signal.signal(signum, signal.default_int_handler)
    own = (warm.stamp(), confinement(os.getpid()))
    while not code.is_old():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # What the handler of a signal raises in a hook of the fork, Python ignores.
            signal.pthread_sigmask(signal.SIG_BLOCK, warm.SIGNALS)
            if not os.fork():
                ours.close()
                _serve_one(listener, theirs, own, code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, warm.SIGNALS)
            theirs.close()
            if not _has_begun(ours, idle):
                return


def _has_begun(child: socket.socket, idle: float) -> bool:
    """Wait until the child has a command; False if it found none for so long, or has ended."""
    child.settimeout(idle if idle < _LONGEST else None)
    try:
        while (said := child.recv(1)) == warm.DECLINED:
            pass
    except TimeoutError:
        return False
    return said == warm.BEGUN


def _serve_one(
    listener: socket.socket, parent: socket.socket, own: _Own, code: LoadedCode
) -> NoReturn:
    """In the child: carry out one command; also a failure ends it here, so it never forks."""
    status = warm.KILLED
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, warm.SIGNALS)
        found = _accepted(listener, parent, own, code)
        listener.close()
        parent.close()
        if found is not None:
            status = _carry_out(*found)
    finally:
        os._exit(status)


def _accepted(
    listener: socket.socket, parent: socket.socket, own: _Own, code: LoadedCode
) -> tuple[socket.socket, list[int], CommandRequest] | None:
    """Wait for a command; None when the warm process has ended, or its code was changed."""
    events = select.poll()
    events.register(listener, select.POLLIN)
    events.register(parent, select.POLLIN)
    while True:
        if any(file == parent.fileno() for file, _ in events.poll()):
            return None
        if code.is_old():
            return None  # the command is refused, and carried out by itself
        line, _ = listener.accept()
        with suppress(OSError, BadRequest):
            if (found := _received_command(line, own)) is not None:
                parent.sendall(warm.BEGUN)
                return line, *found
        line.close()
        parent.sendall(warm.DECLINED)


def _received_command(line: socket.socket, own: _Own) -> tuple[list[int], CommandRequest] | None:
    """The files and the request of a command; None if it has to start by itself."""
    if warm.peer_uid(line) != os.geteuid():
        return None
    _ask(line)
    head, files, pid = _received_head(line)
    try:
        request = decoded(head, _received(line, head))
        same = (request.stamp, confinement(pid)) == own
        if same and len(files) == _FILES and _is_short(request.argv):
            files, taken = [], files
            return taken, request
        line.sendall(warm.DECLINED)
        return None
    finally:
        for file in files:
            os.close(file)


def _ask(line: socket.socket) -> None:
    """Let the command send its request, to which the system adds the credentials of its sender.

    A request that was sent before may come from a process that has ended, whose pid another one
    has now.
    """
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    line.setblocking(False)
    with suppress(BlockingIOError):
        line.recv(1)
        raise BadRequest("it came before it was asked for")
    line.settimeout(_PATIENCE)
    line.sendall(warm.READY)


def _received_head(line: socket.socket) -> tuple[bytes, list[int], int]:
    """The head of a request, its files, and the process that sent it; the system names that."""
    room = socket.CMSG_SPACE(_FILES * _NUMBER) + socket.CMSG_SPACE(_CREDENTIALS)
    head, found, _, _ = line.recvmsg(warm.HEAD, room)
    given = {kind: data for level, kind, data in found if level == socket.SOL_SOCKET}
    files = given.get(socket.SCM_RIGHTS, b"")
    sender = given.get(socket.SCM_CREDENTIALS, b"")[:_NUMBER]
    return (
        head,
        [_integer(files[at : at + _NUMBER]) for at in range(0, len(files), _NUMBER)],
        _integer(sender),
    )


def _integer(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


def confinement(pid: int) -> tuple[str, ...]:
    """What a process may do; OSError if it has ended, or is hidden from this one."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        found = [line for line in status if line.startswith(_CONFINED)]
    with open(f"/proc/{pid}/limits", encoding="ascii") as limits:
        found += [line for line in limits if line.startswith(_LIMITED)]
    return (*[os.readlink(f"/proc/{pid}/ns/{kind}") for kind in _SPACES], *found)


class BadRequest(Exception):
    """What came over the line is no request of a command."""


class CommandRequest(NamedTuple):
    """A command that is to be carried out."""

    stamp: tuple[str, ...]
    argv: tuple[str, ...]
    environment: dict[str, str]
    mask: int
    ignored: tuple[int, ...]


def decoded(head: bytes, texts: bytes) -> CommandRequest:
    """The request of these bytes; BadRequest if they are anything else."""
    size, stamps, words, variables, mask, bits = _numbers(head)
    parts = texts.split(b"\0")
    if len(texts) != size or parts.pop() or len(parts) != stamps + words + variables:
        raise BadRequest("the texts are not as many as the head says")
    if mask > _MASK or bits >> len(warm.SIGNALS):
        raise BadRequest("no such mask, or no such signal")
    found = [part.decode("utf-8", "surrogateescape") for part in parts]
    pairs = [text.partition("=") for text in found[stamps + words :]]
    if not all(name and equals for name, equals, _ in pairs):
        raise BadRequest("a variable has no name")
    return CommandRequest(
        stamp=tuple(found[:stamps]),
        argv=tuple(found[stamps : stamps + words]),
        environment={name: value for name, _, value in pairs},
        mask=mask,
        ignored=tuple(each for n, each in enumerate(warm.SIGNALS) if bits >> n & 1),
    )


def _numbers(head: bytes) -> list[int]:
    if len(head) != warm.HEAD:
        raise BadRequest("the head is too short")
    starts = range(0, warm.HEAD, warm.LENGTH)
    return [int.from_bytes(head[at : at + warm.LENGTH], "big") for at in starts]


def _received(line: socket.socket, head: bytes) -> bytes:
    """The texts behind a head."""
    size = _numbers(head)[0]
    if size > warm.LARGEST:
        raise BadRequest("the request is too large")
    parts: list[bytes] = []
    while size:
        part = line.recv(min(size, 1 << 20))
        if not part:
            raise BadRequest("the request is cut off")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _is_short(argv: Sequence[str]) -> bool:
    """Whether a command is a request and an outcome; all others start by themselves."""
    try:
        operation = registry.find(split(argv)[0])
    except Exception:  # noqa: BLE001 - help, or a mistake: the command says which
        return False
    return not operation.in_shell


def _become(line: socket.socket, files: Sequence[int], request: CommandRequest) -> None:
    """In the child: take over the place of the command."""
    import fcntl

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in warm.SIGNALS:
        usual = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, signal.SIG_IGN if signum in request.ignored else usual)
    os.setsid()  # signals of the terminal of the warm process are not meant for it
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    os.fchdir(files[3])
    os.umask(request.mask)
    _take_environment(request.environment)
    time.tzset()
    line.setblocking(True)
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    line.sendall(warm.BEGUN + os.getpid().to_bytes(warm.LENGTH, "big"))


def _take_environment(wanted: dict[str, str]) -> None:
    """Change the variables that differ: to set them all takes a tenth of the time of a command."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _carry_out(line: socket.socket, files: Sequence[int], request: CommandRequest) -> int:
    """In the child: be the command; returns its exit status."""
    _become(line, files, request)
    sys.argv[1:] = request.argv
    status = carry_out(request.argv)
    line.sendall(bytes([status]))
    return status
