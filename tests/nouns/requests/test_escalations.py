"""No swarm takes a request in: a person decides; and which swarm is asked if any would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.swarms.swarm_homes import SameStore, Swarms, write

import interlock
from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.messages.decision import DecisionView
from interlock.nouns.requests import attempts
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.breaker import Breaker
from interlock.testing.audit import audit

DAY = 86400.0


@pytest.fixture
def swarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Swarms]:
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    with Swarms() as found:
        found.pair()
        yield found


def sent(swarms: Swarms, **more: Any) -> str:
    found = swarms.homes["shop"].requests.send("bank", "can:translate", [1], **more)
    assert isinstance(found, interlock.RequestSent)
    return found.request


def wait(swarms: Swarms, seconds: float, *, live: bool = False) -> None:
    """Time passes, and the shop tends its requests; the bank stays on the bus, but takes none."""
    for _ in range(round(seconds / 30)):
        swarms.clock.advance(30)
        if live:
            swarms.sync("bank", force=False)
        swarms.homes["shop"].requests.tend()


def decision_of(swarms: Swarms, request: str) -> DecisionView:
    shop = swarms.homes["shop"]
    (view,) = [each for each in shop.requests.list() if each.request == request]
    assert view.state == "escalated"
    found = shop.messages.decision(view.decision)
    assert isinstance(found, DecisionView)
    return found


def resolve(swarms: Swarms, decision: str, answer: object) -> None:
    shop = swarms.homes["shop"]
    store = SameStore(shop.store, sleep=swarms.clock.advance)
    with interlock.connect(store=store, agent="boss", clock=swarms.clock) as boss:
        assert boss.messages.resolve(decision, answer)
    shop.requests.tend()


@pytest.mark.parametrize(
    ("live", "type_", "status"),
    [(True, "task_unclaimed", "online"), (False, "swarm_unavailable", "offline")],
)
def test_the_decision_says_whether_the_swarm_is_there(
    swarms: Swarms, *, live: bool, type_: str, status: str
) -> None:
    swarms.clock.advance(16 * 60)  # the entry of the bank expires
    if live:
        swarms.sync("bank")
    request = sent(swarms)
    wait(swarms, 600, live=live)
    asked = decision_of(swarms, request)
    assert (asked.question["type"], asked.question["swarm_status"]) == (type_, status)
    assert asked.question["attempts"] == 4
    assert [each.option for each in asked.options] == [
        "local_execution",
        "queue_for_later",
        "alternative_swarm",
    ]


def test_the_asker_cannot_decide_itself(swarms: Swarms) -> None:
    request = sent(swarms)
    wait(swarms, 600)
    asked = decision_of(swarms, request)
    found = swarms.homes["shop"].messages.resolve(asked.decision, "local_execution")
    assert isinstance(found, interlock.OwnDecision)


def test_queue_for_later_sends_it_again_with_the_same_id(swarms: Swarms) -> None:
    request = sent(swarms)
    wait(swarms, 600)
    resolve(swarms, decision_of(swarms, request).decision, "queue_for_later")
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    bank.requests.tend()
    claimed = bank.tasks.next(can=["can:translate"])
    assert isinstance(claimed, interlock.Claimed)
    assert claimed.task == f"{request}@shop"
    bank.tasks.complete(claimed.task, token=claimed.token, result="done")
    bank.requests.tend()
    shop.requests.tend()
    found = shop.requests.result(request)
    assert isinstance(found, interlock.RequestAnswered)


def test_housekeeping_alone_ends_a_decision_and_has_its_default_carried_out(
    swarms: Swarms,
) -> None:
    request = sent(swarms)
    wait(swarms, 600)
    asked = decision_of(swarms, request)
    shop = swarms.homes["shop"]
    swarms.clock.advance(3400)
    shop.maintain()
    assert decision_of(swarms, request).state == "open"
    swarms.clock.advance(300)
    shop.maintain()
    ended = shop.messages.decision(asked.decision)
    assert isinstance(ended, DecisionView)
    assert (ended.state, ended.by, ended.answer) == ("expired", "", "queue_for_later")
    (view,) = shop.requests.list()
    assert (view.state, view.attempt) == ("open", 5)


def test_a_request_past_its_deadline_ends_a_day_later_if_no_person_decides(
    swarms: Swarms,
) -> None:
    request = sent(swarms, deadline="30m")
    wait(swarms, 600)
    asked = decision_of(swarms, request)
    assert (asked.default, asked.options[1].option) == ("give_up", "give_up")
    swarms.clock.advance(DAY + 10)
    swarms.homes["shop"].maintain()
    over = swarms.homes["shop"].requests.result(request)
    assert isinstance(over, interlock.RequestOver | interlock.UnknownRequest)
    assert audit(swarms.homes["shop"].store) == []


def test_alternative_swarm_without_a_name_asks_another_one_that_can_do_it(
    swarms: Swarms,
) -> None:
    shop = swarms.homes["shop"]
    print_ = swarms.register("store").fingerprint
    shop.swarms.allow("store", key=print_)
    swarms.homes["store"].swarms.allow("shop", first_use=True)
    request = sent(swarms)
    wait(swarms, 600)
    swarms.sync("store")
    resolve(swarms, decision_of(swarms, request).decision, "alternative_swarm")
    over = shop.requests.result(request)
    assert isinstance(over, interlock.RequestOver)
    other = over.replaced_by.removeprefix("request/")
    (view,) = [each for each in shop.requests.list() if each.request == other]
    assert (view.state, view.to_swarm) == ("open", "store")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"option": "alternative_swarm", "swarm": "mars"}, "mars is not allowed here"),
        ("alternative_swarm", "no other swarm that is online can do it"),
    ],
)
def test_a_person_is_asked_again_if_the_other_swarm_cannot_be_asked(
    swarms: Swarms, answer: object, why: str
) -> None:
    request = sent(swarms)
    wait(swarms, 600)
    first = decision_of(swarms, request)
    resolve(swarms, first.decision, answer)
    again = decision_of(swarms, request)
    assert again.decision != first.decision
    assert why in again.question["reason"]
    resolve(swarms, again.decision, "local_execution")
    shop = swarms.homes["shop"]
    assert isinstance(shop.requests.result(request), interlock.RequestOver)
    task = shop.tasks.show(request)
    assert getattr(task, "state", "") == "pending"
    assert shop.store.read(keys.escalated(request))[keys.escalated(request)] is None


def test_many_escalated_requests_are_all_looked_at(
    swarms: Swarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "ESCALATED_AT_ONCE", 2)
    requests = [sent(swarms, timeout="1h") for _ in range(5)]
    wait(swarms, 600)
    wait(swarms, 3600)
    last = decision_of(swarms, max(requests))
    resolve(swarms, last.decision, "local_execution")
    wait(swarms, 60)
    views = {each.request: each.state for each in swarms.homes["shop"].requests.list()}
    assert views.pop(max(requests)) == "cancelled"
    assert set(views.values()) == {"escalated"}


# Any swarm.


def third(swarms: Swarms) -> None:
    """A third swarm, which can translate, too; the shop and it allow each other."""
    print_ = swarms.register("mint").fingerprint
    swarms.homes["shop"].swarms.allow("mint", key=print_)


def test_a_request_to_any_swarm_goes_to_one_that_can_do_it(swarms: Swarms) -> None:
    third(swarms)
    shop = swarms.homes["shop"]
    asked = [shop.requests.send("*", "can:translate", number) for number in range(40)]
    found = [each.to_swarm for each in asked if isinstance(each, interlock.RequestSent)]
    assert len(found) == 40
    assert abs(found.count("bank") - found.count("mint")) <= 2  # by the requests in flight
    missing = shop.requests.send("*", "can:sing")
    assert isinstance(missing, interlock.SwarmUnavailable)
    assert missing.reason == "unable"
    with pytest.raises(BadInput, match="needs an ability"):
        shop.requests.send("*", "bob")


def test_a_swarm_that_takes_nothing_for_now_is_passed_over(swarms: Swarms) -> None:
    third(swarms)
    shop = swarms.homes["shop"]
    write(shop, keys.breaker("bank"), Breaker(opened=1, until=swarms.clock.wall() + 60))
    asked = [shop.requests.send("*", "can:translate", number) for number in range(8)]
    found = {each.to_swarm for each in asked if isinstance(each, interlock.RequestSent)}
    assert found == {"mint"}
    write(shop, keys.breaker("mint"), Breaker(opened=1, until=swarms.clock.wall() + 60))
    refused = shop.requests.send("*", "can:translate")
    assert isinstance(refused, interlock.SwarmUnavailable)
    assert refused.reason == "circuit_open"


def test_a_request_with_a_long_deadline_is_signed_with_the_key_that_followed(
    swarms: Swarms,
) -> None:
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    request = sent(swarms, deadline="6d")
    shop.keys.rotate("shop")
    for _ in range(30):
        swarms.sync("shop")
        bank.swarms.sync()
        wait(swarms, 3600)
    bank.requests.tend()
    assert [each.reason for each in bank.quarantine.list()] == []
    assert bank.tasks.show(f"{request}@shop")


def test_an_envelope_outlives_the_rotation_of_its_key_until_its_deadline(swarms: Swarms) -> None:
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    taken = sent(swarms, deadline="6d")
    shop.keys.rotate("shop")
    bank.swarms.sync(force=True)
    wait(swarms, 6 * 86400 - 60)  # no process of either swarm runs
    bank.requests.tend()
    assert [each.reason for each in bank.quarantine.list()] == []
    assert bank.tasks.show(f"{taken}@shop")


def test_a_rotated_key_that_is_revoked_ends_at_once_although_envelopes_of_it_wait(
    swarms: Swarms,
) -> None:
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    sent(swarms, deadline="6d")
    old = shop.keys.rotate("shop").old_fingerprint
    bank.swarms.sync(force=True)
    shop.keys.revoke(old)
    bank.swarms.sync(force=True)
    bank.requests.tend()
    assert [each.reason for each in bank.quarantine.list()] == ["revoked_key"]
