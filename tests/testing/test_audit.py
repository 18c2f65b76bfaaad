from __future__ import annotations

import pytest

import interlock
from interlock.core import codec
from interlock.core.entry import Entry
from interlock.store import Put, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Testbed


@pytest.fixture
def stage() -> Testbed:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.remote("bob")
    ada.run(ada.locks.acquire("merge"))
    wait = bob.start(bob.locks.acquire("merge", wait=60))
    ada.run(ada.locks.release("merge"))
    wait.run().result()
    return stage


def record(stage: Testbed, entry: Entry, *puts: Put, deletes: tuple[str, ...] = ()) -> None:
    raw = codec.encode(entry)
    stage.store.commit(
        Txn(id=entry.id, entry=raw, hash=codec.digest(raw), puts=puts, deletes=deletes)
    )


def test_an_honest_store_has_nothing_to_complain_about(stage: Testbed) -> None:
    assert audit(stage.store) == []


def test_a_write_that_no_entry_names_is_found(stage: Testbed) -> None:
    record(stage, Entry(id="t1", writer="w"), Put("locks/x", b"{}"))
    assert audit(stage.store) == ["locks/x is only in the store"]


def test_a_write_that_never_came_is_found(stage: Testbed) -> None:
    record(stage, Entry(id="t1", writer="w", put={"locks/x": codec.digest(b"{}")}))
    assert audit(stage.store) == ["locks/x is only in the log"]


def test_another_value_than_the_recorded_one_is_found(stage: Testbed) -> None:
    entry = Entry(id="t1", writer="w", put={"locks/x": codec.digest(b"{}")})
    record(stage, entry, Put("locks/x", b"[]"))
    assert audit(stage.store) == ["locks/x is not what log/t1 wrote"]


def test_a_commit_that_did_not_see_what_stood_there_is_found(stage: Testbed) -> None:
    record(stage, Entry(id="t1", writer="w", saw={"locks/merge": None}))
    (complaint,) = audit(stage.store)
    assert "saw None under locks/merge" in complaint


def test_an_entry_that_nobody_links_is_found(stage: Testbed) -> None:
    for id_ in ("t1", "t2"):
        record(stage, Entry(id=id_, writer="w"))
    assert audit(stage.store) == ["w left 2 entries unlinked"]
    assert audit(stage.store, heads=2) == []


def test_a_link_to_nothing_is_found(stage: Testbed) -> None:
    record(stage, Entry(id="t1", writer="w", after=("nothing",)))
    (complaint,) = audit(stage.store)
    assert "never committed before" in complaint


def test_every_store_can_be_audited(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        for fleet in (ada, bob):
            with fleet.lock("merge"), fleet.lock("a/b"):
                assert audit(ada.store) == []
        bob.store.commit(
            Txn(id="t1", entry=b'{"id":"t1","writer":"w"}', puts=(Put("locks/x", b"{}"),))
        )
        assert len(audit(ada.store)) == 2, "not stamped by its bytes, and a put that it hides"
