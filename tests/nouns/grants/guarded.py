"""What the tests of locks behind guards share: a guard, a lock behind it, and what is left."""

from __future__ import annotations

from typing import Any

from interlock import guard
from interlock.core import keys
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.condition import Condition
from interlock.steps import Op
from interlock.store import Range
from interlock.testing.testbed import Client, Testbed

FREE = guard.lock_free("db")


def define(client: Client, name: str, condition: Condition, **terms: Any) -> g.Guard:
    made = guard.named(name, condition, **terms)
    client.run(client.guards.define(made))
    return made


def deploy(client: Client, *, wait: float = 0, **terms: Any) -> Op[Any]:
    return client.locks.acquire("deploy", guard="calm", wait=wait, **terms)


def state(client: Client, lock: str = "deploy") -> tuple[str, str, tuple[str, ...]]:
    found = client.run(client.locks.show(lock))
    return found.state, found.holder, found.waiters


def listed(bed: Testbed) -> list[str]:
    page = Range(keys.WAITS)
    return [item.key for item in bed.store.read(page).ranges[page]]


def entries(client: Client, verb: str) -> list[Any]:
    return [line for line in client.run(client.record.log(limit=100)) if line.verb == verb]


def quiet(bed: Testbed, ada: Client, bob: Client) -> None:
    """Nothing is held by her, waited for or owed."""
    assert state(bob)[1] != "ada"
    assert "ada" not in state(bob)[2]
    assert listed(bed) == []
    assert not ada.context.grants.pending
