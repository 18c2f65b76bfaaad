"""Liveness belongs to one boot of the machine, and to its monotonic clock alone."""

from __future__ import annotations

import time

import pytest
from tests.stores.sqlite.store_programs import put

import interlock
from interlock.stores.sqlite import SQLiteStore, schema


class Jumping:
    """The clocks of this machine, with a wall side that somebody turns."""

    def __init__(self) -> None:
        self.turned = 0.0

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def wall(self) -> float:
        return time.time() + self.turned


def test_after_a_reboot_nobody_is_alive_but_everything_else_is_there(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = interlock.connect(path, agent="ada")
    token = fleet.locks.acquire("merge").token  # type: ignore[union-attr]
    fleet.store.close()  # as a power cut leaves it: joined, holding
    monkeypatch.setattr(schema, "boot_id", lambda: "another boot")
    other = interlock.connect(path, agent="bob")
    assert other.locks.show("merge").state == "stale"
    assert {agent.agent: agent.state for agent in other.agents.list()} == {
        "ada": "lapsed",
        "bob": "alive",
    }
    outcome = other.locks.acquire("merge")
    assert isinstance(outcome, interlock.Reclaimed)
    assert token is not None
    assert (outcome.token or 0) > token
    other.close()
    fleet.close()


def test_in_the_same_boot_liveness_outlives_the_last_process(path: str) -> None:
    store = SQLiteStore(path)
    store.transact(lambda _: put("live/ses_1", ttl=60))
    store.close()
    store = SQLiteStore(path)
    item = store.read("live/ses_1")["live/ses_1"]
    assert item is not None
    assert item.expires_in is not None
    assert 0 < item.expires_in <= 60
    store.close()


@pytest.mark.parametrize("turn", [3600.0, -3600.0, 86_400.0 * 365])
def test_a_wall_clock_that_jumps_changes_nothing_in_liveness(path: str, turn: float) -> None:
    clock = Jumping()
    fleet = interlock.connect(path, agent="ada", ttl=30, clock=clock)
    other = interlock.connect(path, agent="bob", clock=clock)
    with fleet.lock("merge", ttl=20) as held, fleet.lock("deploy") as also:
        clock.turned = turn
        held.check()
        also.check()
        assert not held.lost
        for lock in ("merge", "deploy"):
            assert isinstance(other.locks.acquire(lock), interlock.Busy)
            assert other.locks.show(lock).state == "held"
        assert isinstance(fleet.locks.heartbeat("merge", token=held.token), interlock.Extended)
        assert {agent.state for agent in other.agents.list()} == {"alive"}
        assert other.maintain().reclaimed == 0
        assert 0 < (other.locks.show("merge").expires_in or 0) <= 20
    outcome = other.locks.acquire("merge")
    assert isinstance(outcome, interlock.Acquired)
    assert held.token < also.token < (outcome.token or 0)
    other.close()
    fleet.close()
