"""TLS for connections; imported only for URLs that ask for it."""

from __future__ import annotations

import socket
import ssl

from interlock.errors import StoreRefused
from interlock.stores.address import Address


def secured(sock: socket.socket, address: Address, host: str) -> ssl.SSLSocket:
    """The same socket with TLS, or a refusal in one line."""
    try:
        return _context(address).wrap_socket(sock, server_hostname=host)
    except OSError as error:
        sock.close()
        refused = refusal(error, address.shown)
        if refused is not None:
            raise refused from error
        raise
    except BaseException:
        sock.close()
        raise


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
            return StoreRefused(f"{where} does not speak TLS; write the URL with redis://")
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
