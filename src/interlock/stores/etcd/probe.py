"""Why an endpoint cannot be used: checked through a bare socket, since gRPC does not say.

Only asked when opening a store fails: is this etcd at all, does one side expect TLS and the other
not, is it the certificate?  An endpoint that may just be away is left to the retries.
"""

from __future__ import annotations

import calendar
import json
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from interlock.errors import StoreRefused, StoreTrouble, StoreUnsuitable
from interlock.stores.address import Address
from interlock.stores.network import CONNECT

_QUOTA = "etcd_server_quota_backend_bytes"
_CURRENT = "etcd_debugging_mvcc_current_revision"
_COMPACTED = "etcd_debugging_mvcc_compact_revision"
_ENOUGH = 1 << 24
_COMPLAINT = 0.3


class DirectRequest:
    """A request that goes past gRPC: one of the functions here, on one of the endpoints."""

    __slots__ = ("function", "number")

    def __init__(self, function: Callable[[Address, int], Any], number: int) -> None:
        self.function = function
        self.number = number


def probe(address: Address, number: int) -> None:
    """Raise if the endpoint is not an etcd server, or not one that lets us in."""
    try:
        answer = get(address, number, "/version")
    except ssl.SSLError as error:
        raise _tls_trouble(address, number, error) from None
    except (ConnectionResetError, BrokenPipeError):  # it hung up on what it did not understand
        answer = b""
    except OSError:
        return  # no server, or one that does not answer
    if _is_etcd(answer):
        return
    if address.tls and not answer and _speaks_plainly(address, number):
        raise _without_tls(address)
    web = answer.startswith(b"HTTP/1.") and b"HTTPS" not in answer  # Go says what it wanted
    if not address.tls and not web and _speaks_tls(*address.hosts[number]):
        raise StoreRefused(f"{address.shown} speaks TLS only; write etcds:// instead of etcd://")
    if answer:
        raise StoreUnsuitable(
            f"{address.shown} is not an etcd server (it answered {_shown(answer)});"
            " check host and port"
        )


def quota(address: Address, number: int) -> int:
    """How large the server lets its database become; 0 if it does not say."""
    return _gauges(address, number, _QUOTA)[0]


def history(address: Address, number: int) -> tuple[int, int]:
    """The revision at which the server is, and up to which it was compacted; 0 if unknown."""
    current, compacted = _gauges(address, number, _CURRENT, _COMPACTED)
    return current, compacted


def moment(address: Address, number: int) -> float | None:
    """What time it is by the clock of the server, in whole seconds; None if it does not say."""
    try:
        answer = get(address, number, "/version").decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^Date: (.+ GMT)\r?$", answer, re.MULTILINE)
    if found is None:
        return None
    try:
        return float(calendar.timegm(time.strptime(found[1], "%a, %d %b %Y %H:%M:%S GMT")))
    except ValueError:
        return None


def _gauges(address: Address, number: int, *names: str) -> list[int]:
    """Metrics of the server by these names; 0 for a missing one."""
    try:
        answer = get(address, number, "/metrics").decode(errors="replace")
    except OSError:
        return [0] * len(names)
    found = [re.search(rf"^{name} (-?[0-9.e+]+)\r?$", answer, re.MULTILINE) for name in names]
    return [0 if each is None else max(0, int(float(each[1]))) for each in found]


def get(address: Address, number: int, path: str) -> bytes:
    """What the server answers to a plain HTTP request, all of it."""
    host, port = address.hosts[number]
    # 1.0, so that the answer comes in one piece.
    request = f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    with socket.create_connection((host, port), CONNECT) as plain:
        if not address.tls:
            return _ask(plain, request)
        with _context(address).wrap_socket(plain, server_hostname=host) as secure:
            _hear(secure)
            return _ask(secure, request)


def _hear(secure: ssl.SSLSocket) -> None:
    """Let the server say that it wants a certificate: what is sent to it would drown that."""
    secure.settimeout(_COMPLAINT)
    with suppress(TimeoutError):
        secure.recv(1)
    secure.settimeout(CONNECT)


def _ask(connected: socket.socket, request: bytes) -> bytes:
    connected.sendall(request)
    found = bytearray()
    try:
        while len(found) < _ENOUGH and (data := connected.recv(65536)):
            found += data
    except (TimeoutError, ConnectionError):
        if not found:  # the first finding counts
            raise
    return bytes(found)


def _context(address: Address) -> ssl.SSLContext:
    options = address.options
    context = ssl.create_default_context(cafile=options.get("ca") or None)
    if options.get("cert"):
        context.load_cert_chain(options["cert"], options.get("key") or None)
    return context


def _speaks_tls(host: str, port: int) -> bool:
    """Whether it does a handshake, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), CONNECT) as plain:
            context.wrap_socket(plain).close()
    except OSError:
        return False
    return True


def _speaks_plainly(address: Address, number: int) -> bool:
    try:
        return _is_etcd(get(replace(address, tls=False), number, "/version"))
    except OSError:
        return False


def _tls_trouble(address: Address, number: int, error: ssl.SSLError) -> StoreTrouble:
    where = address.shown
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where} has a certificate that is not trusted ({error.verify_message});"
            " name its authority with ca="
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason and "certificate" in reason:
        return StoreRefused(f"{where} wants a client certificate; name it with cert= and key=")
    if _speaks_plainly(address, number):
        return _without_tls(address)
    return StoreRefused(f"{where} and we cannot agree on TLS ({reason}); check ca=, cert= and key=")


def _without_tls(address: Address) -> StoreTrouble:
    where = address.shown
    return StoreRefused(f"{where} does not speak TLS; write etcd:// instead of etcds://")


def _is_etcd(answer: bytes) -> bool:
    if not answer.startswith(b"HTTP/1."):
        return False
    try:
        return "etcdserver" in json.loads(answer.partition(b"\r\n\r\n")[2])
    except (ValueError, TypeError):
        return False


def _shown(answer: bytes) -> str:
    line = answer.splitlines()[0].decode("ascii", "replace")
    return repr(line[:40])
