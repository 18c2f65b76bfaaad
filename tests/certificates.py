"""Certificates for the servers that tests start."""

from __future__ import annotations

import os
from pathlib import Path

import trustme

from interlock.testing.servers import Tls


def certify(folder: Path, *names: str, clients: bool = False) -> Tls:
    """Files of a new authority, and a certificate of it for loopback or for these names."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    tls = Tls(
        ca=os.fspath(folder / "ca.pem"),
        cert=os.fspath(folder / "cert.pem"),
        key=os.fspath(folder / "key.pem"),
        clients=clients,
    )
    authority.cert_pem.write_to_path(tls.ca)
    certificate.private_key_pem.write_to_path(tls.key)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tls.cert, append=True)
    return tls
