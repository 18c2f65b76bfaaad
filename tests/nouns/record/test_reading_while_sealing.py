"""A reader of the record finds no false damage while other clients seal and drop it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.record.sealed import SMALL, fill

from interlock.errors import StoreDamaged
from interlock.nouns.record import seal_service as service
from interlock.nouns.record.seal_rules import SealLimits
from interlock.nouns.record.seal_service import Sealing, SealPass
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.testing.testbed import Client, Stepper, Testbed

WHO = Actor("keeper")


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def sealing(client: Client, limits: SealLimits = SMALL) -> Sealing:
    found = Sealing(client.runner)
    found.limits = limits
    return found


def hand(client: Client, op: Op[Any], steps: int) -> Stepper[Any]:
    """An operation that has come so far."""
    begun = Stepper(op, client.store, client.clock)
    for _ in range(steps):
        begun.go()
    return begun


def test_the_only_segment_is_dropped_before_it_is_read(stage: Testbed, tmp_path: Path) -> None:
    ada = stage.client("ada", ttl=None)
    fill(stage.store, 40)
    ada.run(sealing(ada).run_pass(WHO))
    reads = [
        hand(ada, ada.record.verify(), 2),
        hand(ada, ada.record.anchor(str(tmp_path / "anchors")), 3),
        hand(ada, ada.record.export(str(tmp_path / "record.jsonl")), 3),
    ]
    assert ada.run(sealing(ada, replace(SMALL, sealed=1)).drop(WHO)) == 1
    assert reads[0].run().result().exit_status == 0
    for each in reads[1:]:
        each.run().result()
    assert ada.run(ada.record.verify(anchors=[str(tmp_path / "anchors")])).truncation == "ok"


def test_a_sealer_that_is_overtaken_calls_nothing_damaged(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=None)
    limits = replace(SMALL, between=100)
    fill(stage.store, 150)
    assert ada.run(sealing(ada, limits).checkpoint(WHO, 10_000))
    fill(stage.store, 40)
    late = hand(ada, sealing(ada, limits).run_pass(WHO, 1), 2)  # it has looked
    with monkeypatch.context() as patch:
        patch.setattr(service, "BATCH", 50)
        assert bob.run(sealing(bob, limits).step(WHO)).sealed == 50
    assert late.run().result() == SealPass()
    assert ada.run(ada.record.verify()).exit_status == 0


def test_what_is_written_and_sealed_while_items_are_read_is_no_finding(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    fill(stage.store, 20)
    reading = hand(ada, ada.record.verify(), 4)  # the entries are read, the items are not
    fill(stage.store, 30)
    assert ada.run(sealing(ada).run_pass(WHO)).sealed
    assert reading.run().result().findings == ()


@pytest.mark.parametrize("seed", range(6))
def test_readers_and_sealers_in_any_order_agree(seed: int, tmp_path: Path) -> None:
    stage, random = Testbed(seed), Random(seed)
    clients = [stage.remote("ada", ttl=1e6), stage.client("bob", ttl=1e6)]
    limits = replace(SMALL, hot_entries=20, between=15, sealed=9000 if seed % 2 else 1 << 30)
    anchor = tmp_path / "anchors"
    clients[0].run(clients[0].record.anchor(str(anchor)))

    def begun(what: str) -> Stepper[Any]:
        client = random.choice(clients)
        match what:
            case "seal" | "seal too":
                op: Op[Any] = sealing(client, limits).run_pass(WHO, 2)
            case "verify":
                op = client.record.verify(anchors=[str(anchor)])
            case "anchor":
                op = client.record.anchor(str(anchor))
            case _:
                op = client.record.export(str(tmp_path / "record.jsonl"))
        return hand(client, op, 0)

    hands: dict[str, Stepper[Any]] = {}
    for _ in range(250):
        what = random.choice(["write", "write", "seal", "seal too", "verify", "anchor", "export"])
        if what == "write":
            client = random.choice(clients)
            client.run(client.locks.acquire("merge", ttl=60))
            client.run(client.locks.release("merge"))
            continue
        each = hands.setdefault(what, begun(what))
        for _ in range(random.randint(1, 4)):
            each.go()
        if each.done:
            found = hands.pop(what).result()
            assert not getattr(found, "findings", ())
            assert not getattr(found, "finding", "")


def test_a_record_that_verify_calls_bad_is_not_anchored(stage: Testbed, tmp_path: Path) -> None:
    ada = stage.client("ada", ttl=None)
    rows = fill(stage.store, 20)
    stage.store._remove(f"log/{rows[8][1]}")
    assert ada.run(ada.record.verify()).completeness == "bad"
    with pytest.raises(StoreDamaged, match="is missing from the record at"):
        ada.run(ada.record.anchor(str(tmp_path / "anchors")))
    assert not (tmp_path / "anchors").exists()
