"""RedisServer: Redis for one test."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from io import BufferedRWPair
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import quote, urlencode

from interlock.testing.servers.process import HOST, PROBE, Server, Tls, find, until, unverified_tls

Reply: TypeAlias = "int | str | list[Reply] | None"

_TIMEOUT = 5.0
_SLOTS = 16384

_TRIM = """
local before = tonumber(redis.call('HGET', KEYS[2], 'trimmed') or 0)
if tonumber(ARGV[1]) > before then
  redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2])
  redis.call('HSET', KEYS[2], 'trimmed', ARGV[1])
end
"""


class RedisError(Exception):
    """An error reply of Redis."""


class RedisServer(Server):
    """A ``redis-server`` on loopback, with data of its own in a folder.

    By default nothing acknowledged is lost: the append-only file is synced on every write.
    ``socket`` is the path of a Unix socket to listen on as well; ``replicaof`` makes it follow
    another one; ``cluster`` makes it a cluster of one, which owns all slots.
    ``extra`` are further options of the command line, like ``("--maxmemory", "1mb")``.
    """

    binary: ClassVar[str] = "redis-server"
    package: ClassVar[str] = "redis-server"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        appendonly: bool = True,
        fsync: Literal["always", "everysec", "no"] = "always",
        password: str = "",
        tls: Tls | None = None,
        socket: str = "",
        replicaof: RedisServer | None = None,
        cluster: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, tls=tls)
        self.appendonly = appendonly
        self.fsync = fsync
        self.password = password
        self.socket = socket
        self.replicaof = replicaof
        self.cluster = cluster
        self.extra = tuple(extra)

    @property
    def version(self) -> str:
        """The version that runs."""
        return self.info("server")["redis_version"]

    def url(self, ns: str = "interlock") -> str:
        """The store in the namespace ``ns``, as ``interlock.connect`` takes it."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        options = {"ns": ns, **(self.tls.options() if self.tls else {})}
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{login}{self.endpoint}/0?{urlencode(options, safe='/:@')}"

    def command(self, *words: str | bytes | int, timeout: float = _TIMEOUT) -> Reply:
        """Send one command on a connection of its own; an error reply is raised."""
        with socket.create_connection((HOST, self.port), timeout) as plain:
            if self.tls is None:
                return self._exchange(plain, words)
            with unverified_tls(self.tls).wrap_socket(plain) as secure:
                return self._exchange(secure, words)

    def trim_log(self, ns: str, revision: int) -> None:
        """Trim the log of a namespace up to a revision, as its bound does in time."""
        log, meta = f"{{{ns}}}:log", f"{{{ns}}}:meta"
        self.command("EVAL", _TRIM, 2, log, meta, revision, revision + 1)

    def info(self, section: str = "default") -> dict[str, str]:
        """What INFO says, by name."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def wait(self) -> None:
        """Wait until it answers; as a cluster, until it serves every slot."""
        super().wait()
        if self.cluster:
            if "cluster_slots_assigned:0" in str(self.command("CLUSTER", "INFO")):
                self.command("CLUSTER", "ADDSLOTSRANGE", 0, _SLOTS - 1)
            # Redis waits 2 s itself before a node that starts may write.
            until(lambda: "cluster_state:ok" in str(self.command("CLUSTER", "INFO")), "a cluster")

    def _command(self) -> list[str]:
        port, bus = (self._take_ports(2 if self.cluster else 1) * 2)[:2]
        options = {
            "bind": HOST,
            "port": port if self.tls is None else 0,
            "dir": self.folder,
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": self.fsync,
            "enable-debug-command": "local",
            "repl-diskless-sync-delay": 0,  # Instead of 5 s for more replicas to come.
        }
        if self.password:
            options |= {"requirepass": self.password, "masterauth": self.password}
        if self.socket:
            options["unixsocket"] = self.socket
        if self.tls is not None:
            options |= {
                "tls-port": port,
                "tls-ca-cert-file": self.tls.ca,
                "tls-cert-file": self.tls.cert,
                "tls-key-file": self.tls.key,
                "tls-auth-clients": "yes" if self.tls.clients else "no",
                "tls-replication": "yes",
            }
        if self.cluster:
            options |= {"cluster-enabled": "yes", "cluster-port": bus}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        if self.replicaof is not None:
            words += ["--replicaof", HOST, str(self.replicaof.port)]
        return [find(self.binary, self.package), *words, *self.extra]

    def _answers(self) -> bool:
        try:
            # Another server on the same port would answer, too.
            return (
                self.command("PING", timeout=PROBE) == "PONG"
                and int(self.info("server")["process_id"]) == self.pid
            )
        except (OSError, EOFError, RedisError):  # Not there yet, or still loading.
            return False

    def _exchange(self, connected: socket.socket, words: Sequence[str | bytes | int]) -> Reply:
        with connected.makefile("rwb") as stream:
            if self.password:
                _send(stream, ("AUTH", self.password))
                _receive(stream)
            _send(stream, words)
            return _receive(stream)


def _send(stream: BufferedRWPair, words: Sequence[str | bytes | int]) -> None:
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    stream.write(b"*%d\r\n" % len(encoded))
    stream.writelines(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
    stream.flush()


def _receive(stream: BufferedRWPair) -> Reply:
    """One reply of the protocol's second version."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    match kind:
        case b"+":
            return rest
        case b"-":
            raise RedisError(rest)
        case b":":
            return int(rest)
        case b"$" if rest == "-1":
            return None
        case b"$":
            return stream.read(int(rest) + 2)[:-2].decode(errors="surrogateescape")
        case b"*" if rest == "-1":
            return None
        case b"*":
            return [_receive(stream) for _ in range(int(rest))]
        case _:
            raise RedisError(f"not a reply: {line!r}")
