"""Ports on loopback that stay reserved, also while no server listens on them.

A server that is killed and started again must find its port free.  So the test reserves a port as
long as its server may return, with a UDP socket of the same number: TCP ignores that socket, every
other test that reserves a port sees it, and it disappears with the process, however that ends.

The ports are below the range that the system assigns to outgoing connections.  Such a connection
could take a port of that range while its server is down; worse, a client that retries to connect
to a port may be assigned that same port, and be connected to itself.
"""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
_LOWEST = 10_000
_EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
_EPHEMERAL_BY_DEFAULT = 32_768
_TRIES = 1000
_random = random.SystemRandom()  # Tests that seed the other one would all try the same ports.


class Port:
    """One port, reserved until ``close``."""

    def __init__(self) -> None:
        for _ in range(_TRIES):
            self.number = _random.randrange(_LOWEST, _highest())
            self._held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._held.bind((HOST, self.number))
                listener(self.number).close()
            except OSError:
                self._held.close()
            else:
                return
        raise OSError(f"no port is free on {HOST}")

    def close(self) -> None:
        """Give up the reservation."""
        self._held.close()


def listener(port: int) -> socket.socket:
    """A socket that is bound like a server binds its own, and does not listen yet."""
    bound = socket.socket()
    try:
        # Old connections in TIME_WAIT do not prevent the bind.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _highest() -> int:
    try:
        with open(_EPHEMERAL, encoding="ascii") as file:
            lowest = int(file.read().split()[0])
    except OSError:
        lowest = _EPHEMERAL_BY_DEFAULT
    # Some machines assign all ports, and leave none below.
    return lowest if lowest > _LOWEST + _TRIES else _EPHEMERAL_BY_DEFAULT
