"""What the tests of the etcd store share."""

from __future__ import annotations

import re

from interlock.stores.address import parse
from interlock.stores.etcd import EtcdStore
from interlock.stores.network import PATIENCE
from interlock.testing.servers import EtcdServer

_HANDLED = re.compile(r'grpc_server_handled_total\{.*grpc_method="(\w+)".*\}')


def opened(url: str, *, patience: float = PATIENCE) -> EtcdStore:
    store = EtcdStore(parse(url), patience=patience)
    store.open()
    return store


def leases(server: EtcdServer) -> set[str]:
    """All leases that there are."""
    return {lease["ID"] for lease in server.call("/v3/lease/leases").get("leases", ())}


def calls(server: EtcdServer) -> dict[str, int]:
    """How many calls of each method the server answered so far."""
    found: dict[str, int] = {}
    for name, value in server.metrics().items():
        match = _HANDLED.fullmatch(name)
        if match is not None and value:
            found[match[1]] = found.get(match[1], 0) + int(value)
    return found
