"""A server with no room left: nothing begins there, and everything that began can end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.faults.setup import WAYS, Client, Etcd, Redis, Setup, Way, settle

import interlock
from interlock.core.decision import ENDINGS
from interlock.errors import StoreFull
from interlock.store import Put, Store
from interlock.stores import open_store
from interlock.stores.etcd import server as etcd_server
from interlock.testing.audit import audit
from interlock.testing.conformance.place import write
from interlock.testing.servers import EtcdServer, RedisServer

Cramped: TypeAlias = tuple[Setup, Callable[[], object]]

_MIB = 1 << 20
_SYNCED = "etcd_disk_backend_commit_duration_seconds_count"
_BEGINS_SOMETHING = """
    acquire alert ask await claim confirm edit hand import increase join log mailbox note progress
    publish resize resume retry send serve share status subscribe wait
"""
_BEGINNINGS = frozenset(_BEGINS_SOMETHING.split())
_VERB = re.compile(
    r'(?<!call=)"(?:lock|sem|task|message|query|alert|agent|record|decision|wait)\.([a-z]+)"'
    r'|\bverb\("([a-z]+)"\)'
)


@pytest.fixture(params=["redis", "etcd"])
def cramped(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cramped]:
    """An empty namespace, and how to fill the server that it is on."""
    if request.param == "redis":
        with RedisServer(tmp_path, appendonly=False) as server, Setup(Redis(server)) as setup:
            yield setup, lambda: server.command("CONFIG", "SET", "maxmemory", 1)
            server.command("CONFIG", "SET", "maxmemory", 0)
        return
    monkeypatch.setattr(etcd_server, "_OFTEN", 0.0)
    extra = ("--quota-backend-bytes", str(16 * _MIB))
    with EtcdServer(tmp_path, extra=extra) as etcd, Setup(Etcd(etcd)) as setup:
        store = open_store(etcd.url("others"))
        yield setup, lambda: _fill(store, etcd)
        store.close()


def _fill(store: Store, etcd: EtcdServer) -> None:
    """Write until there is no room for more, and never beyond that: etcd counts what it synced."""
    while True:
        synced = etcd.metrics()[_SYNCED]
        try:
            write(store, Put("big", bytes(_MIB)))
        except StoreFull:
            return
        settle(lambda: etcd.metrics()[_SYNCED] > synced, "the sync of what was written")  # noqa: B023


@pytest.mark.parametrize("way", WAYS)
def test_on_a_full_server_everything_that_began_can_end_or_be_renewed(
    cramped: Cramped, way: Way
) -> None:
    setup, fill = cramped
    ada, bob = setup.client("ada", None, way), setup.client("bob", None, way)
    token = ada.acquire("merge").token
    ada.acquire("own", ttl=60)
    waits = setup.begin(bob.acquire, "merge", wait=50)
    settle(lambda: ada.show("merge").waiters, "a waiter")
    ada.do(lambda fleet: fleet.semaphores.acquire("gpu", capacity=2))
    for begins in _HELD:
        ada.do(begins)
    ada.do(lambda fleet: fleet.tasks.publish("next", needs=["done"]))
    bob.do(lambda fleet: fleet.messages.inbox())
    mail = ada.do(lambda fleet: fleet.messages.send("bob", subject="hello")).message
    fill()

    for begins in _BEGINS:
        with pytest.raises(StoreFull):
            ada.do(begins)
    for changes in _CHANGES if isinstance(setup.engine, Redis) else ():
        with pytest.raises(StoreFull):
            ada.do(changes)
    for renews in _RENEWS:
        assert _word(ada, renews) in ("extended", "already_held", "renewed")
    assert _word(bob, lambda fleet: fleet.messages.ack(mail)) == "acknowledged"
    for ends, word in _ENDS:
        assert _word(ada, ends) == word
    assert waits.result(20).token > token
    assert _word(bob, lambda fleet: fleet.locks.release("merge")) == "released"
    assert ada.do(lambda fleet: fleet.tasks.show("next")).state == "pending"
    assert _word(ada, lambda fleet: fleet.agents.leave()) == "left"
    assert audit(setup.store(), 3) == []


_HELD: list[Callable[[Any], Any]] = [
    lambda fleet: fleet.tasks.publish("done"),
    lambda fleet: fleet.tasks.publish("failed"),
    lambda fleet: fleet.tasks.publish("back"),
    lambda fleet: fleet.tasks.publish("gone"),
    *[lambda fleet: fleet.tasks.next()] * 4,
]
_BEGINS: list[Callable[[Any], Any]] = [
    lambda fleet: fleet.locks.acquire("more"),
    lambda fleet: fleet.semaphores.acquire("more", capacity=2),
    lambda fleet: fleet.tasks.publish("more"),
    lambda fleet: fleet.tasks.note("next", "more"),
    lambda fleet: fleet.messages.send("bob", subject="more"),
]
_CHANGES: list[Callable[[Any], Any]] = [
    lambda fleet: fleet.tasks.edit("next", priority=1),
    lambda fleet: fleet.tasks.progress("done", 0.5),
]
"""What creates nothing: below its quota, etcd still takes it."""
_RENEWS: list[Callable[[Any], Any]] = [
    lambda fleet: fleet.agents.beat(),
    lambda fleet: fleet.locks.heartbeat("merge"),
    lambda fleet: fleet.locks.heartbeat("own"),
    lambda fleet: fleet.semaphores.heartbeat("gpu"),
    lambda fleet: fleet.tasks.heartbeat("done"),
]
_ENDS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda fleet: fleet.tasks.complete("done", result={"text": "x" * 5000}), "completed"),
    (lambda fleet: fleet.tasks.fail("failed", reason="no luck"), "failed"),
    (lambda fleet: fleet.tasks.release("back"), "released"),
    (lambda fleet: fleet.tasks.cancel("gone"), "cancelled"),
    (lambda fleet: fleet.semaphores.release("gpu"), "released"),
    (lambda fleet: fleet.locks.release("merge"), "released"),
    (lambda fleet: fleet.locks.release("own"), "released"),
]


def _word(client: Client, call: Callable[[Any], Any]) -> str:
    return str(type(client.do(call)).__struct_config__.tag)


def test_every_verb_is_known_to_begin_or_to_end_something() -> None:
    found: set[str] = set()
    package = Path(interlock.__file__).parent
    for folder in ("core", "nouns", "runtime"):
        for file in (package / folder).rglob("*.py"):
            found |= {one or other for one, other in _VERB.findall(file.read_text())}
    assert {"acquire", "complete", "ack"} <= found
    assert not ENDINGS & _BEGINNINGS
    assert found <= ENDINGS | _BEGINNINGS, "say in core/decision.py whether a full store takes it"
