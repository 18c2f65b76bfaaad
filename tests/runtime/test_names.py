"""Any printable name works everywhere, on every store, and comes back as it was given."""

from __future__ import annotations

import unicodedata

import pytest

import interlock
from interlock.errors import BadName

NAMES = ["src/[id]/page.tsx", "größe, 100% {x} 'y'", "漢字 + #1 = ?"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back_as_it_was_given(url: str, name: str) -> None:
    with interlock.connect(url, agent=name) as fleet, interlock.connect(url, agent="bob") as bob:
        with fleet.lock(name) as held, fleet.slots(name, capacity=2):
            assert [lock.lock for lock in fleet.locks.list()] == [name]
            busy = bob.locks.acquire(name)
            assert isinstance(busy, interlock.Busy)
            assert busy.holder == name
            (shown,) = [each for each in fleet.agents.list() if each.agent == name]
            assert set(shown.holds) == {name, f"sem/{name}"}
            fleet.tasks.publish(name, {"n": 1}, requires=[name], labels=[name])
            fleet.tasks.publish("after", needs=[name])
            held.check()
        with fleet.together(f"lock/{name}", f"sem/{name}=2"):
            assert {lock.lock for lock in fleet.locks.list()} == {name}
        claim = bob.tasks.next(can=[name])
        assert isinstance(claim, interlock.Claimed)
        assert claim.task == name
        assert isinstance(bob.tasks.complete(name, token=claim.token), interlock.Completed)
        after = bob.tasks.next()
        assert isinstance(after, interlock.Claimed)
        assert after.task == "after"
        fleet.messages.subscribe(name)
        bob.messages.alert(name, "told")
        bob.messages.send(name, "mail", subject=name, thread=name)
        assert [each.data for each in fleet.messages.inbox().messages] == ["told", "mail"]
        told = {line.verb for line in fleet.record.log(thing=f"lock/{name}")}
        assert {"lock.acquire", "acquire"} <= told
        assert fleet.record.verify().integrity == "ok"


def test_one_word_in_two_spellings_of_unicode_is_one_name(url: str) -> None:
    apart = unicodedata.normalize("NFD", "größe")
    assert apart != "größe"
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent=apart) as bob:
        with ada.lock(apart), ada.slots(apart, capacity=1), ada.together(f"lock/{apart}2"):
            assert isinstance(bob.locks.acquire("größe"), interlock.Busy)
            assert isinstance(bob.semaphores.acquire("größe"), interlock.Full)
            assert isinstance(bob.locks.acquire("größe2"), interlock.Busy)
        ada.tasks.publish(apart, needs=[])
        assert isinstance(ada.tasks.publish("größe"), interlock.Exists)
        with bob.lock("größe"):
            assert ada.locks.show(apart).holder == "größe"
        ada.messages.send(apart, "for you", hold=True)
        assert len(bob.messages.inbox().messages) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("a+lock/b", "several things"), ("a+sem/b", "several things"), ("sem/x", "drop 'sem/'")],
)
def test_a_name_that_would_read_as_other_things_is_refused(name: str, said: str) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        with pytest.raises(BadName, match=said):
            fleet.semaphores.acquire(name, capacity=1)
        if "+" in name:
            with pytest.raises(BadName, match=said):
                fleet.together(f"lock/{name}").__enter__()


def test_a_name_that_asks_for_an_ability_is_no_agent_and_no_type_of_alerts() -> None:
    with pytest.raises(BadName, match="starts with"):
        interlock.connect("memory:", agent="?rust")
    with interlock.connect("memory:", agent="ada") as fleet:
        with pytest.raises(BadName, match="starts with"):
            fleet.messages.alert("?rust")
        with pytest.raises(BadName, match="everything"):
            fleet.messages.alert("*")
