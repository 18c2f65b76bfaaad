"""A server that is hostile or broken: a message that it announces is not waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from interlock.stores.address import parse
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import STATUS
from interlock.stores.etcd.transport import EtcdTransport
from interlock.stores.network import LARGEST_REPLY, Unanswered

HEADERS, SETTINGS, DATA = 1, 4, 0
ANSWER = b"\x88\x0f\x10\x10application/grpc"
"""The headers of an answer: :status 200 and content-type."""


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """A frame of HTTP/2."""
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


@contextmanager
def announcing(size: int) -> Iterator[str]:
    """A server that announces a message of this size to each call; its URL."""
    message = b"\0" + size.to_bytes(4, "big") + b"x" * 1000
    answer = frame(HEADERS, ANSWER, flags=4, stream=1) + frame(DATA, message, stream=1)

    def serve(connected: socket.socket) -> None:
        with connected, suppress(OSError):
            connected.sendall(frame(SETTINGS, b"") + frame(SETTINGS, b"", flags=1))
            seen = b""
            while b"/etcdserverpb." not in seen:
                seen += connected.recv(65536)
            connected.sendall(answer)
            while connected.recv(65536):
                pass

    threads: list[threading.Thread] = []
    open_: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    open_.append(connected)
                    threads.append(threading.Thread(target=serve, args=(connected,)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"etcd://127.0.0.1:{listening.getsockname()[1]}/x"
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for connected in open_:
            with suppress(OSError):  # it ended before
                connected.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_message_that_is_too_large_is_no_answer(*, in_loop: bool) -> None:
    async def call_async(url: str) -> None:
        transport = EtcdTransport(parse(url))
        try:
            await transport.call_async((STATUS, rpc.StatusRequest()))
        finally:
            await transport.close_async()

    def call(url: str) -> None:
        transport = EtcdTransport(parse(url))
        try:
            transport.call((STATUS, rpc.StatusRequest()))
        finally:
            transport.close()

    with announcing(2_000_000_000) as url, pytest.raises(Unanswered) as error:
        asyncio.run(call_async(url)) if in_loop else call(url)
    assert f"larger than max (2000000000 vs. {LARGEST_REPLY})" in str(error.value)
