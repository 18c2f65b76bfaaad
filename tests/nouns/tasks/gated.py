"""Tasks behind guards for tests: clients that define, lock, publish, claim and complete."""

from __future__ import annotations

from typing import Any

from interlock import guard
from interlock.core import keys
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.guards.gates import Gate, decode_gate
from interlock.nouns.tasks.task import TaskStatus
from interlock.nouns.tasks.task_reader import decode_status
from interlock.store import Range, Store
from interlock.testing.testbed import Client

FREE = guard.named("calm", guard.lock_free("deploy"))
"""A guard that passes while the lock ``deploy`` is free."""


class Agent:
    """A client, by short words."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.guards = GuardCalls(client.context)

    def define(self, *guards: g.Guard) -> Any:
        return self.client.run(self.guards.define(*guards))

    def drop(self, name: str = "calm") -> Any:
        return self.client.run(self.guards.drop(name))

    def publish(self, task: str = "t1", **terms: Any) -> Any:
        return self.client.run(self.client.tasks.publish(task, **terms))

    def claim(self, task: str = "t1", **terms: Any) -> Any:
        return self.client.run(self.client.tasks.claim(task, **terms))

    def next(self, **terms: Any) -> Any:
        return self.client.run(self.client.tasks.next(**terms))

    def complete(self, task: str = "t1", **terms: Any) -> Any:
        return self.client.run(self.client.tasks.complete(task, **terms))

    def show(self, task: str = "t1") -> Any:
        return self.client.run(self.client.tasks.show(task))

    def why(self, thing: str = "task/t1") -> Any:
        return self.client.run(self.client.fleet.why(thing))

    def lock(self, name: str = "deploy") -> None:
        assert self.client.run(self.client.locks.acquire(name))

    def unlock(self, name: str = "deploy") -> None:
        assert self.client.run(self.client.locks.release(name))


def status_of(store: Store, task: str = "t1") -> TaskStatus:
    key = keys.status(task)
    found = decode_status(store.read(key)[key])
    assert found is not None
    return found


def gate_of(store: Store, task: str = "t1") -> Gate | None:
    key = keys.gate(f"task/{task}")
    return decode_gate(store.read(key)[key])


def gate_items(store: Store) -> list[str]:
    """Every item of gates that is left."""
    folders = (keys.GATES, keys.GATED, keys.RECHECK, keys.BEHIND_GUARDS)
    pages = [Range(folder) for folder in folders]
    ranges = store.read(*pages).ranges
    return [item.key for page in pages for item in ranges[page]]
