"""A process dies at any commit of the ten steps: others finish, and each request ends once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Literal, TypeAlias

import pytest
from tests.nouns.requests.pair import Pair, Swarm

from interlock.core import keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.send_service import RequestDraft
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.steps import Op
from interlock.store import Log, Range
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault, FaultyStore

NAMED = "nightly"
DRAFT = RequestDraft(
    to_swarm="south",
    to_agent="can:sum",
    body=b"[1,2]",
    task_type="sum",
    priority=5,
    timeout=30.0,
    deadline=86400.0,
    name=NAMED,
    notice=True,
)


def send(pair: Pair, struck: Swarm) -> Op[Any]:
    """Steps 1 to 3."""
    del pair
    return struck.requests.sender.send(struck.actor, DRAFT)


def take_in(pair: Pair, struck: Swarm) -> Op[Any]:
    """Steps 4 and 5."""
    pair.swarm("north").send(name=NAMED, notice=True)
    return struck.requests.take_in(struck.actor, struck.own())


def answer(pair: Pair, struck: Swarm) -> Op[Any]:
    """Steps 6 to 8."""
    pair.swarm("north").send(name=NAMED, notice=True)
    struck.take_in()

    def claiming() -> Op[Any]:
        claimed = yield from struck.tasks.next(can=["can:sum"], ttl=60)
        assert isinstance(claimed, Claimed)
        return (yield from struck.answering(claimed))

    return claiming()


def find(pair: Pair, struck: Swarm) -> Op[Any]:
    """Steps 9 and 10."""
    pair.swarm("north").send(name=NAMED, notice=True)
    assert pair.swarm("south", "bob").work()
    return struck.requests.take_in(struck.actor, struck.own())


Act: TypeAlias = Callable[[Pair, Swarm], Op[Any]]
ACTS: list[tuple[Act, str]] = [
    (send, "north"),
    (take_in, "south"),
    (answer, "south"),
    (find, "north"),
]


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
@pytest.mark.parametrize("where", ["home", "bus"])
@pytest.mark.parametrize(("act", "name"), ACTS)
def test_others_finish_what_was_struck(
    act: Act, name: str, where: Literal["home", "bus"], fault: Fault
) -> None:
    for commit in count():
        pair = Pair(commit)
        struck = pair.swarm(name, "struck", faulty=True)
        op = act(pair, struck)
        network = struck.home if where == "home" else struck.bus
        assert isinstance(network, FaultyStore)
        network.script([None] * commit + [fault])
        with suppress(Crash):
            struck.run(op)
        finish(pair)
        if not network.drawn:
            assert commit >= 1
            return


def finish(pair: Pair) -> None:
    """Other processes of both swarms do what is left; the asker repeats its call."""
    north, south = pair.swarm("north", "heir"), pair.swarm("south", "worker")
    north.send(name=NAMED, notice=True)
    found: object = None
    for _ in range(12):
        pair.clock.advance(31)
        north.tend()
        south.tend()
        south.work()
        north.tend()
        found = north.result(NAMED)
        if isinstance(found, out.RequestAnswered):
            break
    assert isinstance(found, out.RequestAnswered)
    assert found.result == 3
    ended_once(pair)


def ended_once(pair: Pair) -> None:
    verbs = {name: verbs_of(store) for name, store in pair.homes.items()}
    assert verbs["north"].count("request.send") == 1
    assert verbs["north"].count("request.complete") == 1
    assert verbs["south"].count("request.receive") == 1
    assert verbs["south"].count("task.complete") == 1
    unread = Range(keys.UNREAD)
    assert len(pair.homes["north"].read(unread).ranges[unread]) == 1
    for folder in (keys.OUTBOX, keys.UNANSWERED, keys.REQUEST_DUE, keys.QUARANTINE):
        for store in pair.homes.values():
            page = Range(folder)
            assert store.read(page).ranges[page] == (), folder
    for each in (*pair.homes.values(), pair.bus):
        assert audit(each) == []


def verbs_of(store: Any) -> list[str]:
    import msgspec

    log = Log(limit=100_000)
    entries = [msgspec.json.decode(item.value) for item in store.read(log).ranges[log]]
    return [each["verb"] for each in entries if each["verb"] != "void"]
