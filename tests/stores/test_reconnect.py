"""When a client may connect again."""

from __future__ import annotations

import itertools

import pytest

from interlock.stores import reconnect
from interlock.stores.network import Unsent
from interlock.stores.reconnect import ABANDONED, LONGEST, Reconnects


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(reconnect, "time", time)
    return time


def tried(reconnects: Reconnects) -> bool:
    """Whether a call may connect now."""
    try:
        reconnects.attempt()
    except Unsent:
        return False
    return True


def attempts(reconnects: Reconnects, time: Time, seconds: float) -> list[float]:
    """When a client connects that asks all the time, at a server that refuses."""
    began, found = time.now, list[float]()
    while time.now < began + seconds:
        if tried(reconnects):
            found.append(time.now - began)
            reconnects.fail(time.now, "refused")
        time.now += 0.01
    return found


def test_a_dead_server_gets_fewer_and_fewer_attempts(time: Time) -> None:
    found = attempts(Reconnects(), time, 120)
    assert len([each for each in found if each < 10]) <= 20
    assert len([each for each in found if 20 <= each < 60]) <= 40 / (0.7 * LONGEST) + 1
    pauses = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert max(pauses) <= LONGEST + 0.02
    assert min(pauses[-5:]) >= 0.7 * LONGEST - 0.02


def test_a_pause_is_at_most_a_quarter_of_the_outage(time: Time) -> None:
    found = attempts(Reconnects(), time, 60)
    for earlier, later in itertools.pairwise(found):
        assert later - earlier <= max(0.75, earlier / 4) + 0.02


def test_only_one_tries_at_a_time(time: Time) -> None:
    reconnects = Reconnects()
    reconnects.fail(time.now, "refused")
    with pytest.raises(Unsent, match="refused"):
        reconnects.attempt()
    time.now += 1
    assert tried(reconnects)
    time.now += 1
    assert not tried(reconnects)
    time.now += ABANDONED
    assert tried(reconnects), "the other one never came back"


def test_connections_that_fail_together_count_once(time: Time) -> None:
    reconnects = Reconnects()
    made = time.now
    time.now += 10
    for _ in range(20):
        reconnects.fail(made, "refused")
    time.now += 0.06
    assert tried(reconnects)


def test_an_answer_lets_all_others_in(time: Time) -> None:
    reconnects = Reconnects()
    attempts(reconnects, time, 60)
    assert not tried(reconnects)
    reconnects.succeed()
    assert all(tried(reconnects) for _ in range(20))


def test_each_of_several_servers_is_tried_before_a_pause(time: Time) -> None:
    reconnects = Reconnects(3)
    for _ in range(3):
        assert tried(reconnects)
        reconnects.fail(time.now, "refused")
    assert not tried(reconnects)
