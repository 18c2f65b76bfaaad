"""EtcdServer and EtcdCluster: etcd for one test."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlencode

from interlock.testing.servers.process import (
    HOST,
    PROBE,
    PortTaken,
    Server,
    ServerTrouble,
    Tls,
    find,
    until,
    unverified_tls,
)

_TIMEOUT = 5.0
_TRIES = 10


class EtcdServer(Server):
    """An ``etcd`` on loopback, with data of its own in a folder.

    ``election`` is how long a follower waits for its leader before it stands for election; alone
    it is only the time that a start takes, which with etcd's default is a second.
    With ``auth``, a name and a password, it accepts no other client.
    ``extra`` are further options of the command line, like ``("--max-txn-ops", "256")``.
    """

    binary: ClassVar[str] = "etcd"
    package: ClassVar[str] = "etcd-server"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        tls: Tls | None = None,
        auth: tuple[str, str] | None = None,
        name: str = "alone",
        election: float = 0.1,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, tls=tls)
        self.election = election
        self.name = name
        self.extra = tuple(extra)
        self.auth: tuple[str, str] | None = None
        self._wanted_auth = auth
        self._peers: Sequence[EtcdServer] = (self,)
        self._token = secrets.token_hex(8)

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(json.loads(self._http("GET", "/version"))["etcdserver"])

    def url(self, ns: str = "interlock") -> str:
        """The store in the namespace ``ns``, as ``interlock.connect`` takes it."""
        return etcd_url([self], ns)

    def metrics(self) -> dict[str, float]:
        """Its metrics, by name and labels as Prometheus reads them."""
        lines = self._http("GET", "/metrics").decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def call(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Call etcd's JSON gateway, as in ``call("/v3/kv/put", {"key": coded("a"), ...})``."""
        headers = {}
        if self.auth is not None:
            name, password = self.auth
            login = {"name": name, "password": password}
            answer = json.loads(self._http("POST", "/v3/auth/authenticate", login))
            headers["Authorization"] = str(answer["token"])
        found: dict[str, Any] = json.loads(self._http("POST", path, body or {}, headers))
        return found

    def enable_auth(self, user: str, password: str) -> None:
        """Accept only clients with this name and password; the user may do everything."""
        if self.auth is not None:
            raise ServerTrouble(f"etcd has its users already: {self.auth[0]}")
        self.call("/v3/auth/role/add", {"name": "root"})
        for name in dict.fromkeys(("root", user)):  # etcd wants a root in any case.
            self.call("/v3/auth/user/add", {"name": name, "password": password})
            self.call("/v3/auth/user/grant", {"user": name, "role": "root"})
        self.call("/v3/auth/enable")
        self.auth = (user, password)

    def wait(self) -> None:
        """Wait until it answers, which takes a leader, and create its users."""
        super().wait()
        if self._wanted_auth is not None and self.auth is None:
            self.enable_auth(*self._wanted_auth)

    def join(self, peers: Sequence[EtcdServer], token: str) -> None:
        """Make it a member of a cluster; called before it is started."""
        self._peers, self._token = peers, token

    @property
    def peer_url(self) -> str:
        """Where its peers find it."""
        return f"http://{HOST}:{self._take_ports(2)[1]}"

    def _command(self) -> list[str]:
        port, _ = self._take_ports(2)
        url = f"{'http' if self.tls is None else 'https'}://{HOST}:{port}"
        options = {
            "name": self.name,
            "data-dir": os.path.join(self.folder, "data"),
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{peer.name}={peer.peer_url}" for peer in self._peers),
            "initial-cluster-token": self._token,
            "heartbeat-interval": str(round(self.election * 100)),
            "election-timeout": str(round(self.election * 1000)),
            "logger": "zap",
            "log-level": "warn",
        }
        if self.tls is not None:
            options |= {"cert-file": self.tls.cert, "key-file": self.tls.key}
            if self.tls.clients:
                options |= {"trusted-ca-file": self.tls.ca, "client-cert-auth": "true"}
        words = [f"--{name}={value}" for name, value in options.items()]
        return [find(self.binary, self.package), *words, *self.extra]

    def _answers(self) -> bool:
        try:
            return bool(json.loads(self._http("GET", "/health", timeout=PROBE))["health"] == "true")
        except (OSError, http.client.HTTPException, ServerTrouble):  # Not there, or no leader.
            return False

    def _http(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> bytes:
        connection = (
            http.client.HTTPConnection(HOST, self.port, timeout=timeout)
            if self.tls is None
            else http.client.HTTPSConnection(
                HOST, self.port, timeout=timeout, context=unverified_tls(self.tls)
            )
        )
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), dict(headers or {})
            )
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise ServerTrouble(f"etcd answered {response.status} to {path}: {answer.decode()}")
        return answer


class EtcdCluster:
    """A cluster of etcd servers, in ``members``.

    ``election`` is longer than for one server alone: a busy machine shall not depose a leader.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        members: int = 3,
        tls: Tls | None = None,
        election: float = 0.4,
        extra: Sequence[str] = (),
    ) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        self.members = [
            EtcdServer(
                os.path.join(self.folder, f"m{n}"),
                name=f"m{n}",
                tls=tls,
                election=election,
                extra=extra,
            )
            for n in range(members)
        ]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start all members and wait until each of them answers."""
        for left in reversed(range(_TRIES)):
            token = secrets.token_hex(8)
            for member in self.members:
                member.join(self.members, token)
            try:
                for member in self.members:
                    member.launch()
                for member in self.members:
                    member.wait()
            except PortTaken:
                self.close()
                if not left:
                    raise
                # The members that started have stored their addresses.
                for member in self.members:
                    member.folder += "-again"
            except BaseException:
                self.close()
                raise
            else:
                break
        return self

    def url(self, ns: str = "interlock") -> str:
        """The store in the namespace ``ns``, with all members as its endpoints."""
        return etcd_url(self.members, ns)

    def leader(self, timeout: float = 20.0) -> EtcdServer:
        """The member that leads; waits for an election if there is none."""
        found: list[EtcdServer] = []

        def elected() -> bool:
            found[:] = [member for member in self.members if _leads(member)]
            return len(found) == 1

        until(elected, "a leader of etcd", timeout)
        return found[0]

    def followers(self) -> list[EtcdServer]:
        """The members that run and do not lead."""
        leader = self.leader()
        return [member for member in self.members if member.running and member is not leader]

    def close(self) -> None:
        """Kill all members and give up their ports.  Their folders stay."""
        for member in self.members:
            member.close()


def etcd_url(members: Sequence[EtcdServer], ns: str) -> str:
    """One URL for all of them."""
    tls, auth = members[0].tls, members[0].auth
    login = f"{quote(auth[0], safe='')}:{quote(auth[1], safe='')}@" if auth else ""
    options = "?" + urlencode(tls.options(), safe="/") if tls else ""
    places = ",".join(member.endpoint for member in members)
    return f"{'etcds' if tls else 'etcd'}://{login}{places}/{ns}{options}"


def coded(text: str | bytes) -> str:
    """Bytes, as the JSON gateway writes them."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _leads(member: EtcdServer) -> bool:
    if not member.running or member.frozen:
        return False
    try:
        return member.metrics().get("etcd_server_is_leader") == 1
    except (OSError, http.client.HTTPException):
        return False
