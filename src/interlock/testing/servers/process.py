"""One server process: started, killed, frozen, restarted, and ended with the test run.

A guard runs between the test and the server: a shell of one line that starts the server and then
reads from a pipe, which only the test process can write to.  The pipe ends when the test process
closes it or dies, by any signal; then the guard kills the server.  (A signal at the parent's death
would come when the *thread* that started the server ends, and only on Linux.)
Guard and server have a session of their own, so that Ctrl-C reaches the test and not its servers.

A server that is killed and started again must find its port free.  So the test reserves a ``Port``
as long as its server may return, with a UDP socket of the same number: TCP ignores that socket,
every other test that reserves a port sees it, and it disappears with the process, however that
ends.  The ports are below the range that the system assigns to outgoing connections.  Such a
connection could take a port of that range while its server is down; worse, a client that retries
to connect to a port may be assigned that same port, and be connected to itself.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Self

HOST = "127.0.0.1"
PROBE = 0.5  # Another program on the port may accept the request and never answer.

_GUARD = '"$@" >>"$0" 2>&1 </dev/null & echo $!; read -r _; kill -9 $! 2>/dev/null; wait'
_START = 30.0
_STOP = 5.0
_SIGNAL = 30.0
_POLL, _LONGEST_POLL = 0.005, 0.03
_TRIES = 10
_TAIL = 4000
_LOWEST = 10_000
_EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
_EPHEMERAL_BY_DEFAULT = 32_768
_PORT_TRIES = 1000
_random = random.SystemRandom()  # Tests that seed the other one would all try the same ports.


class ServerTrouble(Exception):
    """A server is missing, did not start, or did not obey."""


class PortTaken(ServerTrouble):
    """Another program listens on the port of the server."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files for TLS; with ``clients`` the server asks for a certificate of the same authority."""

    ca: str
    cert: str
    key: str
    clients: bool = False

    def options(self) -> dict[str, str]:
        """The options of a URL that name these files."""
        mine = {"cert": self.cert, "key": self.key} if self.clients else {}
        return {"ca": self.ca, **mine}


def unverified_tls(tls: Tls) -> ssl.SSLContext:
    """A context that verifies no certificate: it only asks whether the test's server runs."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if tls.clients:
        made.load_cert_chain(tls.cert, tls.key)
    return made


def until(condition: Callable[[], object], what: str, timeout: float = _SIGNAL) -> None:
    """Wait until the condition holds, or raise TimeoutError with the name of the condition."""
    deadline, pause = time.monotonic() + timeout, _POLL
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}")
        time.sleep(pause)
        pause = min(1.2 * pause, _LONGEST_POLL)


class Port:
    """One port, reserved until ``close``."""

    def __init__(self) -> None:
        for _ in range(_PORT_TRIES):
            self.number = _random.randrange(_LOWEST, _highest())
            self._held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._held.bind((HOST, self.number))
                listener(self.number).close()
            except OSError:
                self._held.close()
            else:
                return
        raise OSError(f"no port is free on {HOST}")

    def close(self) -> None:
        """Give up the reservation."""
        self._held.close()


def listener(port: int) -> socket.socket:
    """A socket that is bound like a server binds its own, and does not listen yet."""
    bound = socket.socket()
    try:
        # Old connections in TIME_WAIT do not prevent the bind.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _highest() -> int:
    try:
        with open(_EPHEMERAL, encoding="ascii") as file:
            lowest = int(file.read().split()[0])
    except OSError:
        lowest = _EPHEMERAL_BY_DEFAULT
    # Some machines assign all ports, and leave none below.
    return lowest if lowest > _LOWEST + _PORT_TRIES else _EPHEMERAL_BY_DEFAULT


class Server:
    """A server process; subclasses add how their engine is started and probed."""

    binary: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, folder: str | os.PathLike[str], *, tls: Tls | None = None) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        self.tls = tls
        self.pid = 0
        self._ports: list[Port] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._logged = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where clients connect; it stays the same until ``close``."""
        if not self._ports:
            raise ServerTrouble(f"{self.binary} has no port before it is started")
        return self._ports[0].number

    @property
    def endpoint(self) -> str:
        """Host and port, as URLs write them."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process lives, frozen or not."""
        return self._guard is not None and bool(_states(self.pid) - {"Z", "X"})

    @property
    def frozen(self) -> bool:
        """Whether the process is stopped, with all of its threads."""
        return self._guard is not None and _states(self.pid) == {"T"}

    def start(self) -> Self:
        """Start it, on a free port the first time, and wait until it answers."""
        self._idle()
        give_up = self.kill if self._ports else self.close
        tries = 1 if self._ports else _TRIES
        while True:
            tries -= 1
            try:
                self.launch()
                self.wait()
            except BaseException as error:
                give_up()
                if not tries or not isinstance(error, PortTaken):
                    raise
            else:
                return self

    def launch(self) -> None:
        """Start it without waiting for its first answer."""
        self._idle()
        command = self._command()
        os.makedirs(self.folder, exist_ok=True)
        with open(self._log, "ab") as log:
            self._logged = log.tell()
        self._guard = subprocess.Popen(  # noqa: S603 - the binary that was asked for
            ["/bin/sh", "-c", _GUARD, self._log, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            # etcd takes every option from the environment too.
            env={name: v for name, v in os.environ.items() if not name.startswith("ETCD_")},
            start_new_session=True,
        )
        _started.add(self)
        assert self._guard.stdout is not None
        with self._guard.stdout as pid:
            self.pid = int(pid.readline())

    def wait(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            if not self.running:
                log = self.log()
                taken = "in use" in log
                raise (PortTaken if taken else ServerTrouble)(f"{self.binary} ended:\n{log}")
            return self._answers()

        try:
            until(answers, f"an answer of {self.binary}", _START)
        except TimeoutError as error:
            raise ServerTrouble(f"{error}\n{self.log()}") from None

    def kill(self) -> None:
        """Kill -9; the process has ended when this returns, and can be started again."""
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(_SIGNAL)
            _started.discard(self)

    def stop(self) -> None:
        """Ask it to end, and kill it after 5 s."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)
            with suppress(TimeoutError):
                until(lambda: not self.running, f"the end of {self.binary}", _STOP)
        self.kill()

    def restart(self) -> Self:
        """Start it again, killed before if it runs: the same port, the same data."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Stop it, as a machine that hangs: connections stay, and no request is answered."""
        os.kill(self._alive(), signal.SIGSTOP)
        until(lambda: self.frozen, f"{self.binary} frozen")

    def thaw(self) -> None:
        """Continue a frozen process."""
        os.kill(self._alive(), signal.SIGCONT)
        until(lambda: not self.frozen, f"{self.binary} thawed")

    def close(self) -> None:
        """Kill it and give up its ports.  Its folder stays."""
        self.kill()
        while self._ports:
            self._ports.pop().close()

    def log(self) -> str:
        """The end of its log since the last start."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            file.seek(self._logged)
            return file.read()[-_TAIL:]

    @property
    def _log(self) -> str:
        return os.path.join(self.folder, f"{self.binary}.log")

    def _idle(self) -> None:
        if self._guard is not None:
            raise ServerTrouble(f"{self.binary} was started already")

    def _alive(self) -> int:
        if not self.running:
            raise ServerTrouble(f"{self.binary} does not run")
        return self.pid

    def _take_ports(self, count: int) -> list[int]:
        while len(self._ports) < count:
            self._ports.append(Port())
        return [port.number for port in self._ports]

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


def find(binary: str, package: str) -> str:
    """The path of a server's binary: on PATH, or where the clone's ``make test`` unpacked it."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    unpacked = os.path.join(cache, "interlock", "servers", "bin", binary)
    system = os.path.join("/usr/sbin", binary)  # where some users do not look
    found = shutil.which(binary) or shutil.which(system) or shutil.which(unpacked)
    if found is None:
        raise ServerTrouble(
            f"no {binary} on PATH: install it (Debian: apt install {package}),"
            " or run `make test` in a clone of Interlock, which gets it"
        )
    return found


def _states(pid: int) -> set[str]:
    """The states of all threads, as ps names them; none if there is no such process."""
    if not os.path.isdir("/proc/self/task"):
        shown = subprocess.run(  # noqa: S603 - a number
            ["/bin/ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return set(shown.stdout.strip()[:1])
    states = set[str]()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            stat = f"/proc/{pid}/task/{thread}/stat"
            with suppress(FileNotFoundError, ProcessLookupError), open(stat, "rb") as file:
                # The name before it is in brackets and may hold anything.
                states.add(file.read().rpartition(b")")[2].split()[0].decode())
    return states


_started = set[Server]()


@atexit.register
def _end() -> None:
    for server in list(_started):
        server.close()


def _close_pipes_of_parent() -> None:
    """In the child of a fork: its copy of a guard's pipe would outlive the test."""
    for server in _started:
        guard, server._guard = server._guard, None  # noqa: SLF001
        if guard is not None and guard.stdin is not None:
            guard.stdin.close()
            guard.returncode = 0  # Not its child, so nothing to wait for.
    _started.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_pipes_of_parent)
