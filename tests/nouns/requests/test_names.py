"""Names that people choose: with blanks, marks of keys and paths, and letters of any language."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.nouns.swarms.swarm_homes import SameStore, Swarms, made_key

import interlock
from interlock.errors import BadName
from interlock.nouns.requests.serving import abilities, answer_claim
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmRegistered
from interlock.steps import drive
from interlock.testing.audit import audit

NAMES = ["my shop", "a/b", "req_1@x", "50%2F", "日本", "can:x", "x" * 99]


@pytest.mark.parametrize("name", NAMES)
def test_swarms_agents_and_abilities_have_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path / "keys"))
    other = f"{name}2"
    with Swarms() as swarms:
        prints = {}
        for home, called in (("shop", name), ("bank", other)):
            done = swarms.home(home).swarms.register(called, bus="memory:b", key=made_key(home))
            assert isinstance(done, SwarmRegistered), done
            prints[called] = done.fingerprint
        swarms.homes["shop"].swarms.allow(other, key=prints[other])
        swarms.homes["bank"].swarms.allow(name, key=prints[name])
        stores = {home: SameStore(fleet.store) for home, fleet in swarms.homes.items()}
        with (
            interlock.connect(store=stores["shop"], agent=name, clock=swarms.clock) as ada,
            interlock.connect(store=stores["bank"], agent=name, clock=swarms.clock) as bob,
        ):
            swarms.connect_bus(ada.context, swarms.connections["shop"])
            swarms.connect_bus(bob.context, swarms.connections["bank"])
            for to in (name, f"can:{name}") if not name.startswith("can:") else (name,):
                sent = ada.requests.send(other, to, {"x": name}, type=name, id=f"{to}!")
                assert isinstance(sent, interlock.RequestSent), sent
                bob.requests.tend()
                claimed = bob.tasks.next(can=abilities(bob.context, [name]))
                assert isinstance(claimed, interlock.Claimed), claimed
                assert bob.tasks.show(claimed.task)
                drive(answer_claim(bob.context, claimed, "success", b"1"), bob.store)
                ada.requests.tend()
                assert isinstance(ada.requests.result(f"{to}!"), interlock.RequestAnswered)
            assert len(ada.requests.list(swarm=other)) == len(bob.requests.list(received=True))
            assert len(bob.quarantine.list()) == 0
        assert [audit(each) for each in stores.values()] == [[], []]


def test_the_name_of_a_swarm_leaves_room_for_the_names_of_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path / "keys"))
    with Swarms() as swarms, pytest.raises(BadName, match="up to 100 bytes"):
        swarms.home("shop").swarms.register("x" * 101, bus="memory:b", key=made_key("shop"))


def test_what_a_send_answers_is_true_only_if_the_request_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path / "keys"))
    with Swarms() as swarms:
        shop, _ = swarms.pair()
        assert shop.requests.send("bank", "bob", 1, id="once")
        assert not shop.requests.send("bank", "bob", 1, id="once")
        assert not shop.requests.send("nowhere", "bob", 1)
        assert not shop.requests.result("once")
        assert shop.requests.cancel("once")
        assert not shop.requests.result("never sent")
