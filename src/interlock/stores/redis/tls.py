"""TLS for connections; imported only for URLs that ask for it."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from interlock.errors import StoreRefused
from interlock.stores.address import Address
from interlock.stores.network import CONNECT

_HANDSHAKE, _ALERT = b"\x16", b"\x15"
_COMPLAINT = 0.3


def secured(sock: socket.socket, address: Address, host: str, port: int) -> ssl.SSLSocket:
    """The socket with TLS; an error says in one line why the handshake failed."""
    try:
        return _context(address).wrap_socket(sock, server_hostname=host)
    except OSError as error:
        sock.close()
        if isinstance(error, TimeoutError) and _speaks_plainly((host, port)):
            raise plain(address.shown) from error
        refused = refusal(error, address.shown)
        if refused is not None:
            raise refused from error
        raise
    except BaseException:
        sock.close()
        raise


def spoken(endpoint: tuple[str, int]) -> bool:
    """Whether that port speaks TLS: it answers a hello with a hello or an alert."""
    hello = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    try:
        with socket.create_connection(endpoint, CONNECT) as sock:
            sock.sendall(hello.read())
            return sock.recv(1) in (_HANDSHAKE, _ALERT)
    except OSError:
        return False


def _speaks_plainly(endpoint: tuple[str, int]) -> bool:
    """Whether that is a Redis without TLS: it waits for the end of the line that TLS is to it."""
    try:
        with socket.create_connection(endpoint, CONNECT) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


def complaint(address: Address, endpoint: tuple[str, int]) -> StoreRefused | None:
    """Whether the server hangs up because it wants a certificate.

    It says so right after the handshake, and what is sent to it then would drown that.
    """
    try:
        sock = socket.create_connection(endpoint, CONNECT)
        with secured(sock, address, *endpoint) as secure:
            secure.settimeout(_COMPLAINT)
            secure.recv(1)
    except OSError as error:
        return refusal(error, address.shown)
    return None


def plain(where: str) -> StoreRefused:
    """The refusal of a server without TLS."""
    return StoreRefused(f"{where} does not speak TLS; write the URL with redis://")


def refusal(error: OSError, where: str) -> StoreRefused | None:
    """What a failure of TLS means; None for those of the network."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where} has a certificate that is not trusted ({error.verify_message});"
            " name its authority with ?ca=FILE"
        )
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    if isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).lower().replace("_", " ")
        if "wrong version" in why or "record layer" in why:
            return plain(where)
        if "certificate" in why or "handshake failure" in why:
            return StoreRefused(
                f"{where} refuses our certificate ({why}); name one with ?cert=FILE&key=FILE"
            )
        return StoreRefused(f"{where} and we cannot agree on TLS ({why}); see its configuration")
    return None


def _context(address: Address) -> ssl.SSLContext:
    options = address.options
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:
        raise StoreRefused(
            f"{address.shown} names files for TLS that cannot be used ({error});"
            " see ca=, cert= and key="
        ) from error
    return context
