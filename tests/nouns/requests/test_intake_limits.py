"""What a receiver takes in from one peer has bounds, and so has the work that a peer can cause."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair, put_item
from tests.nouns.requests.test_attacks import BODY, Attack
from tests.nouns.requests.test_clients import set_up

from interlock import aio
from interlock.core import codec, keys
from interlock.nouns.requests import answer_service, incoming
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import SIGNED_LIMIT, decode_seen
from interlock.nouns.requests.request_intake import FRESH_DEPTH
from interlock.nouns.requests.views import list_quarantine
from interlock.nouns.swarms import key_files, limits
from interlock.nouns.swarms.head import RequestHead
from interlock.store import Item, Range

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture
def attack() -> Attack:
    return Attack()


def commits(attack: Attack) -> int:
    """The entries in the record of the receiver's home."""
    return attack.pair.homes["south"].extent().entries


def dated(attack: Attack, seconds: float, **changes: Any) -> RequestHead:
    """A request whose ids were made at another time than it is signed."""
    now = attack.pair.clock.wall()
    attack.number += 1
    tail = attack.number.to_bytes(10, "big")
    moment = round((now + seconds) * 1000)
    head = attack.head()
    ids = {
        "message_id": codec.make_id("msg", moment, tail),
        "request_id": codec.make_id("req", moment, tail),
    }
    return replace(head, **{**ids, **changes})


# Times that are signed.


def test_requests_that_are_dated_back_open_no_hours_in_which_no_agent_lived(
    attack: Attack,
) -> None:
    attack.pair.trust("south", "north", rate=1)
    for hours in range(20 * 24):
        attack.post(dated(attack, -hours * HOUR))
    assert set(attack.reasons()) == {"backdated"}
    assert attack.tasks() <= 7 * 24 + 1


def test_a_sender_cannot_choose_the_time_of_a_request_with_its_id(attack: Attack) -> None:
    attack.pair.trust("north", "south", rate=1)
    assert attack.north.sent(name=f"req_{0:032x}")
    refused = attack.north.send(name=f"req_{1:032x}")
    assert isinstance(refused, out.RequestLimited)


def test_what_an_outage_delivers_at_once_is_taken_in_although_it_is_more_than_an_hour_allows(
    attack: Attack,
) -> None:
    pair = attack.pair
    for name, other in (("north", "south"), ("south", "north")):
        pair.trust(name, other, rate=3)
    pair.cable("north").is_cut = True
    for _ in range(4):
        for _ in range(3):
            attack.north.sent()
        pair.clock.advance(HOUR)
    pair.cable("north").is_cut = False
    attack.north.tend()
    assert (attack.reasons(), attack.tasks()) == ([], 12)


# Bounds for a whole swarm.


def test_a_swarm_that_invents_agents_sends_no_more_than_a_whole_swarm(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AGENTS_LIMIT", 4)
    attack.pair.trust("south", "north", rate=2)
    for number in range(12):
        attack.post(attack.head(from_agent=f"invented-{number}"))
    assert (attack.reasons(), attack.tasks()) == (["limited"] * 4, 8)
    attack.pair.clock.advance(HOUR + HOUR / 12)
    attack.post(attack.head(from_agent="another"))
    attack.reasons()
    assert attack.tasks() == 9


def test_at_the_bound_of_marks_messages_are_refused_and_no_mark_is_deleted(
    attack: Attack,
) -> None:
    attack.pair.trust("south", "north", marks=3)
    first = attack.head()
    attack.post(first)
    for _ in range(4):
        attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == (["marks_full"] * 2, 3)
    attack.post(first)  # it is still known
    attack.reasons()
    assert attack.tasks() == 3
    key = keys.seen("north", first.message_id)
    assert decode_seen(attack.pair.homes["south"].read(key)[key]) is not None
    attack.pair.clock.advance(DAY + HOUR)
    attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == (["marks_full"] * 2, 4)


def test_unfinished_requests_of_one_peer_have_a_bound_and_those_of_another_go_on(
    attack: Attack,
) -> None:
    pair = attack.pair
    pair.trust("south", "north", queue=4)
    pair.add("east")
    pair.trust("south", "east")
    for _ in range(7):
        attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == (["queue_full"] * 2, 5)
    east = pair.keys["east"]
    attack.post(attack.head(from_swarm="east", key=east.fingerprint), east)
    attack.reasons()
    assert attack.tasks() == 6
    pair.trust("north", "south")
    while attack.south.work():
        pass
    pair.clock.advance(FRESH_DEPTH)
    attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == (["queue_full"] * 2, 1)


# Replays and later attempts.


def test_a_replay_without_its_payload_is_a_replay_and_nothing_else(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    key = keys.bus_request("south", head.message_id)
    put_item(attack.pair, attack.pair.bus, key, Raw(attack.envelope(head)))
    before = commits(attack)
    assert (attack.reasons(), attack.tasks()) == ([], 1)
    assert commits(attack) == before


def test_later_attempts_are_answered_up_to_a_rate_and_cost_nothing_above_it(
    attack: Attack,
) -> None:
    attack.pair.trust("south", "north", rate=2)
    heads = [attack.head(), attack.head()]
    for head in heads:
        attack.post(head)
    attack.reasons()
    answered = 0
    for attempt in range(2, 12):
        for head in heads:
            attack.post(replace(head, attempt=attempt))
            before = commits(attack)
            attack.reasons()
            answered += commits(attack) > before
    assert (answered, attack.tasks()) == (2 * limits.REPEATS, 2)


# Quarantine.


def test_a_message_is_in_quarantine_once_however_often_it_is_sent(attack: Attack) -> None:
    attack.pair.trust("south", "north", rate=1)
    attack.post(attack.head())
    limited = attack.head()
    attack.post(limited)
    assert attack.reasons() == ["limited"]
    before = commits(attack)
    for attempt in range(1, 5):
        attack.post(replace(limited, attempt=attempt))
        assert attack.reasons() == ["limited"]
    assert commits(attack) == before + 1  # the first copy of a minute is recorded, others counted


def test_a_flood_of_one_swarm_leaves_room_for_others_and_ends_to_grow_the_record(
    attack: Attack,
) -> None:
    pair = attack.pair
    pair.add("east")
    pair.trust("south", "east")
    for _ in range(SIGNED_LIMIT + 30):
        attack.post(attack.head(bus="bus_2"))
    assert len(attack.reasons()) == SIGNED_LIMIT
    before = commits(attack)
    for _ in range(60):
        attack.post(attack.head(bus="bus_2"))
    attack.reasons()
    assert commits(attack) == before
    east = pair.keys["east"]
    attack.post(attack.head(from_swarm="east", key=east.fingerprint, bus="bus_2"), east)
    attack.reasons()
    swarms = [each.swarm for each in attack.south.run(list_quarantine("", "", 1000))]
    assert swarms.count("east") == 1


# Sizes.


def test_the_payloads_that_are_taken_in_together_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incoming, "_BODIES_AT_ONCE", 25_000)
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(7):
        north.sent(body=b'"%b"' % (b"x" * 10_000))
    before = pair.homes["south"].read(Range("x/")).revision
    south.take_in()
    assert len(tasks(pair)) == 7
    assert pair.homes["south"].read(Range("x/")).revision - before == 4  # two at a time


def tasks(pair: Pair) -> tuple[Item, ...]:
    page = Range(keys.READY)
    return pair.homes["south"].read(page).ranges[page]


def test_a_batch_that_is_too_large_for_one_commit_is_taken_in_one_by_one() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    requests = [north.sent() for _ in range(10)]
    south.runner.capabilities = replace(south.home.capabilities, max_operations=40)
    south.take_in()
    south.runner.capabilities = south.home.capabilities
    while (claimed := south.claim()) is not None:
        south.answer(claimed)
    north.take_in()
    assert {type(north.result(each)) for each in requests} == {out.RequestAnswered}


def test_a_request_that_the_home_can_never_store_goes_to_quarantine_and_the_others_go_on() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for body in (BODY, b'"%b"' % (b"x" * 5000), BODY):
        north.sent(body=body)
    runner = south.runner
    runner.capabilities = replace(runner.capabilities, max_value=4000)
    south.take_in()
    kept = south.run(list_quarantine("", "", 10)).messages
    assert [(each.reason, each.swarm) for each in kept] == [("too_large", "north")]
    assert len(tasks(pair)) == 2


def test_a_home_on_etcd_takes_in_many_requests_at_once(
    etcd_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    homes = {"north": f"{tmp_path}/north.db", "south": etcd_url}
    set_up(homes, f"{tmp_path}/bus.db")

    async def scenario() -> int:
        async with (
            await aio.connect(homes["north"], agent="ada") as north,
            await aio.connect(homes["south"], agent="bob") as south,
        ):
            for number in range(20):
                await north.requests.send("south", "can:echo", number)
            await south.requests.tend()
            return len(await south.requests.list(received=True))

    assert asyncio.run(scenario()) == 20


# A long queue.


def test_a_long_queue_costs_a_process_few_reads_and_those_that_ended_are_answered(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack.pair.trust("south", "north", rate=0)
    for _ in range(250):
        attack.post(attack.head())
    south = attack.south
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    south.run(south.tasks.complete(claimed.task, token=claimed.token, result=3))
    monkeypatch.setattr(answer_service, "ROUNDS", 2)
    answered, reads = 0, list[object]()
    read = attack.pair.homes["south"].read

    def counted(*of: Any, **how: Any) -> Any:
        reads.append(of)
        return read(*of, **how)

    monkeypatch.setattr(attack.pair.homes["south"], "read", counted)
    for _ in range(3):
        reads.clear()
        done = south.run(south.requests.answers.sweep(south.actor, south.own()))
        assert len(reads) < 20
        answered += done
    assert answered == 1
