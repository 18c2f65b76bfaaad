"""etcd: fresh namespaces of a server or cluster, and the bare stubs of gRPC for the floor.

The floor is one transaction that compares one key and puts two, with the same bytes as a commit,
through the blocking stub or that of ``grpc.aio``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, ClassVar

import grpc
import grpc.aio

from interlock.bench.engine import ACQUIRE, ENTRY, HASH, AsyncFloor, FloorCommit, NetworkEngine
from interlock.stores.address import Address, parse
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.encoding import wrapped
from interlock.stores.etcd.server import get

_SERVED = re.compile(r'grpc_server_msg_received_total\{.*grpc_method="(\w+)".*\} (\S+)')
_ID = f"txn_{0:026d}"
_WRAPPED = wrapped(ENTRY, _ID, HASH, quiet=False)
_PATIENCE = 30.0


class EtcdEngine(NetworkEngine):
    """An etcd server, or one member of a cluster."""

    targets: ClassVar[Mapping[str, str]] = {
        "acquire": "at most 1.3",
        "acquire-async": "at most 1.3",
        "read-first": "at most 2.5",
        "in-flight": "at least 0.60",
        "claim": "at most 1.3",
        "claim-async": "at most 1.3",
        "tasks-in-flight": "",
        "drain": "",
        "told": "p95 at most 5 ms",
        "alert": "at most 1.3",
        "messages-in-flight": "",
        "heard-here": "p95 at most 2 ms",
        "heard": "p95 at most 5 ms",
        "query": "p95 at most 10 ms",
        "flooded": "at most 2",
        "requests": "",
        "requests-in-flight": "",
        "handoff": "at most 3",
        "publish": "at most 1.5",
        "idle": "nothing but keep-alives",
    }
    idle: ClassVar[frozenset[str]] = frozenset(("LeaseKeepAlive",))

    def floor(self, location: str = "") -> EtcdFloor:
        """A bare stub."""
        return EtcdFloor(self.address, location or self.floor_location())

    async def floor_async(self) -> AsyncEtcdFloor:
        """A bare stub in an event loop."""
        return AsyncEtcdFloor(self.address, self.floor_location())

    def wake_up(self, url: str) -> EtcdWakeUp:
        """A key of its own beside the store."""
        return EtcdWakeUp(self.address, parse(url).namespace)

    def served(self) -> dict[str, float]:
        """The messages of each method, including those within streams."""
        lines = get(self.address, 0, "/metrics").decode().splitlines()
        found = [match.groups() for line in lines if (match := _SERVED.match(line))]
        return {method: float(count) for method, count in found}

    def wipe(self) -> None:
        """Delete everything under the namespaces that were used."""
        stub = EtcdStub(grpc, self.address)
        everything = _Delete(f"{self.root}/".encode(), f"{self.root}0".encode())
        try:
            stub.method("KV/DeleteRange", rpc.DeleteRangeResponse)(everything, **stub.extra)
        finally:
            stub.channel.close()


class _Delete:
    """A request to delete a range; the store itself deletes nothing but single keys."""

    def __init__(self, key: bytes, end: bytes) -> None:
        parts = (b"\x0a", bytes((len(key),)), key, b"\x12", bytes((len(end),)), end)
        self._bytes = b"".join(parts)

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages call it
        return self._bytes


class EtcdStub:
    """A channel, and the metadata that authenticates its calls."""

    def __init__(self, kind: Any, address: Address) -> None:  # noqa: ANN401 - grpc or grpc.aio
        self.address = address
        host, port = address.hosts[0]
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address.tls:
            files = [_file(address.options.get(name)) for name in ("ca", "key", "cert")]
            credentials = grpc.ssl_channel_credentials(*files)
            self.channel = kind.secure_channel(target, credentials)
        else:
            self.channel = kind.insecure_channel(target)
        self.extra: dict[str, Any] = {}
        if address.user and kind is grpc:
            login = rpc.AuthenticateRequest(name=address.user, password=address.password)
            token = self.method("Auth/Authenticate", rpc.AuthenticateResponse)(login).token
            self.extra = {"metadata": (("token", token),)}

    def method(self, path: str, answer: Any) -> Any:  # noqa: ANN401 - gRPC's have no types
        """A plain call."""
        return self.channel.unary_unary(
            f"/etcdserverpb.{path}",
            request_serializer=_serialized,
            response_deserializer=answer.FromString,
        )


class EtcdFloor(EtcdStub):
    """One transaction at a time."""

    def __init__(self, address: Address, namespace: str) -> None:
        super().__init__(grpc, address)
        self._prefix = f"{namespace}/".encode()
        self._txn = self.method("KV/Txn", rpc.TxnResponse)

    def commit(self, *names: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this for all of the names, one after the other."""
        for name in names:
            self._txn(_request(self._prefix, name, kind), **self.extra)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class AsyncEtcdFloor(EtcdStub, AsyncFloor):
    """Any number of transactions at once."""

    def __init__(self, address: Address, namespace: str) -> None:
        blocking = EtcdStub(grpc, address)
        blocking.channel.close()
        super().__init__(grpc.aio, address)
        self.extra = blocking.extra
        self._prefix = f"{namespace}/".encode()
        self._txn = self.method("KV/Txn", rpc.TxnResponse)

    async def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this."""
        await self._txn(_request(self._prefix, name, kind), **self.extra)

    async def aclose(self) -> None:
        """Close the channel."""
        await self.channel.close()


class EtcdWakeUp(EtcdStub):
    """A put, and a stream that watches the key."""

    def __init__(self, address: Address, namespace: str) -> None:
        super().__init__(grpc, address)
        self._key = f"{namespace}/wake".encode()
        self._put = self.method("KV/Put", rpc.PutResponse)
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._events: Any = None

    def send(self) -> None:
        """Put the key."""
        self._put(rpc.PutRequest(key=self._key, value=_WRAPPED), **self.extra)

    def wait(self) -> None:
        """Wait for the next put."""
        if self._events is None:
            watch = self.channel.stream_stream(
                "/etcdserverpb.Watch/Watch",
                request_serializer=_serialized,
                response_deserializer=rpc.WatchResponse.FromString,
            )
            create = rpc.WatchCreateRequest(key=self._key)
            self._requests.put(rpc.WatchRequest(create=create))
            self._events = watch(iter(self._requests.get, None), **self.extra)
            next(self._events)
        next(self._events)

    def close(self) -> None:
        """Close the channel."""
        self._requests.put(None)
        self.channel.close()


def _request(prefix: bytes, name: str, kind: FloorCommit) -> rpc.TxnRequest:
    entry = b"%blog/txn_%026d" % (prefix, hash((name, kind.entry)))
    absent = rpc.Compare(key=entry, target=rpc.Compare.CREATE, create_revision=0)
    puts = [(entry, wrapped(kind.entry, _ID, HASH, quiet=False))]
    for key, value in kind.puts:
        puts.append((prefix + key.format(name).encode(), wrapped(value, _ID, HASH, quiet=False)))
    deleted = [prefix + key.format(name).encode() for key in kind.deletes]
    return rpc.TxnRequest(
        compare=[absent],
        success=[
            *(rpc.RequestOp(put=rpc.PutRequest(key=key, value=value)) for key, value in puts),
            *(rpc.RequestOp(delete_range=rpc.DeleteRangeRequest(key=key)) for key in deleted),
        ],
    )


def _serialized(message: Any) -> bytes:  # noqa: ANN401 - any message
    return message.SerializeToString()  # type: ignore[no-any-return]


def _file(path: str | None) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()
