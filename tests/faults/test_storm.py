"""A server that is away, or a proxy that resets all connections, is not flooded."""

from __future__ import annotations

import time

from tests.faults.setup import WAYS, Setup, settle

SECONDS = 5.0
MOST = 2
"""Connections a second for each client."""


def test_clients_at_a_dead_server_connect_rarely_and_ever_less_often(setup: Setup) -> None:
    """Some call, some wait for a lock, some follow changes, and all have a session to renew."""
    bob, proxy = setup.client("bob"), setup.proxy()
    bob.acquire("taken")
    clients = [setup.client(f"ada-{way}-{n}", proxy, way, ttl=90) for way in WAYS for n in range(2)]
    asleep = [each.falls_asleep() for each in clients]
    waits = [setup.begin(each.acquire, "taken", wait=80) for each in clients]
    settle(lambda: all(sleeps() for sleeps in asleep), "waiters")
    watches = [each.fleet.store.watch("locks/", each.read().revision) for each in clients]
    proxy.on_request(lambda _: "cut")
    proxy.cut_once()
    began = proxy.counts.connections
    sees = [setup.begin(each.take, watch, 60) for each, watch in zip(clients, watches, strict=True)]
    calls = [setup.begin(each.show, "taken") for each in clients]
    counts = [began]
    for _ in range(2):
        time.sleep(SECONDS)  # what is measured is a number in a time
        counts.append(proxy.counts.connections)
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert first <= MOST * SECONDS * len(clients), counts
    assert second < first, counts
    proxy.on_request(None)
    bob.release("taken")
    settle(lambda: any(each.done() for each in waits), "one of them has it")
    for future in (*sees, *calls):
        future.exception(80)
    settle(lambda: not any(each.fleet.trouble for each in clients), "no trouble")
