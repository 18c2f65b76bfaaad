"""How the servers of a test ask themselves over TLS."""

from __future__ import annotations

import ssl

from interlock.testing.servers.process import Tls


def context(tls: Tls) -> ssl.SSLContext:
    """A context that trusts whoever answers: it is asked whether it runs, not who it is."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if tls.clients:
        made.load_cert_chain(tls.cert, tls.key)
    return made
