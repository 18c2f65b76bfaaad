"""A noun is declared once: one module of the tests is seen by every part of the product."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import counter_noun
from tests.counter_noun import Counted, CounterAdd, CounterShow
from tests.faces.shell import Here
from tools import reference

import interlock
from interlock import aio, registry
from interlock.runtime.integrity import unreadable
from interlock.steps import drive
from interlock.store import Put, Txn
from interlock.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.add(counter_noun.ENTRY)
    try:
        yield
    finally:
        registry.remove(counter_noun.ENTRY)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    here = Here(tmp_path, monkeypatch, capsys)
    here.exported["INTERLOCK_AGENT"] = "ada"
    assert here.run("init").status == 0
    return here


def test_the_command_line_has_it(shell: Here) -> None:
    assert shell.run("counter", "add", "builds", "--by", "2").out == "builds stands at 2\n"
    assert '"value":3' in shell.run("counter", "add", "builds", "--json").out
    assert shell.run("counter", "show", "builds").out == "builds stands at 3\n"
    assert shell.run("counter", "show").status == 2
    assert "counter add" in shell.run("--all").out
    assert "numbers that only grow" in shell.run("counter", "--help").out
    assert "how much to add" in shell.run("counter", "add", "--help").out
    assert "did you mean 'counter add'" in shell.run("counter", "ad", "x").err
    assert '"value"' in shell.run("schema", "counter", "show").out


def test_both_clients_have_it(tmp_path: Path) -> None:
    for store in (MemoryStore(), None):
        url = None if store else str(tmp_path / "store.db")
        with interlock.connect(url, agent="ada", store=store) as fleet:
            assert fleet.tallies.add("builds", by=2) == Counted(counter="builds", value=2)  # type: ignore[attr-defined]
            assert fleet.act(CounterAdd(counter="builds")) == Counted(counter="builds", value=3)
            assert fleet.act(CounterShow(counter="x")) == Counted(counter="x", value=0)

    async def awaited() -> None:
        async with await aio.connect(str(tmp_path / "store.db"), agent="bob") as fleet:
            assert await fleet.tallies.show("builds") == Counted(counter="builds", value=3)  # type: ignore[attr-defined]
            assert (await fleet.act(CounterAdd(counter="builds"))).value == 4

    asyncio.run(awaited())


def test_the_record_knows_it_among_entries_of_other_nouns(shell: Here) -> None:
    shell.run("lock", "acquire", "merge")
    shell.run("counter", "add", "builds")
    assert "counter.add" in shell.run("record", "log").out
    assert "added" in shell.run("record", "explain", "counter/builds").out
    assert shell.run("record", "verify").status == 0


def test_an_item_of_it_that_no_entry_wrote_is_found() -> None:
    with interlock.connect(agent="ada", store=MemoryStore()) as fleet:
        fleet.store.commit(Txn(id="x", puts=(Put("counters/forged", b"{}"),), quiet=True))
        found = fleet.record.verify()
    assert [flaw.key for flaw in found.findings] == ["counters/forged"]


def test_observers_see_its_events() -> None:
    with (
        interlock.connect(agent="ada", store=MemoryStore()) as fleet,
        fleet.observe(nouns=["counter"], after=0) as events,
    ):
        fleet.act(CounterAdd(counter="builds"))
        assert [event.event for event in events.take(5)] == ["counter:added"]


def test_why_health_and_the_integrity_check_have_it(shell: Here) -> None:
    shell.run("counter", "add", "builds", "--by", "200")
    assert "it stands at 200" in shell.run("why", "counter/builds").out
    assert "counters/builds is great" in shell.run("health").out
    with interlock.connect(str(shell.folder / ".interlock" / "store.db"), agent="ada") as fleet:
        fleet.store.commit(Txn(id="x", puts=(Put("counters/bad", b"["),), quiet=True))
        (wrong,) = drive(unreadable(), fleet.store)
        assert str(wrong) == "it is no counter; restore a copy of the store"
    assert "it is no counter" in shell.run("doctor").out


def test_the_reference_has_it() -> None:
    page = "\n".join(reference.commands())
    assert "### interlock counter add" in page
    assert "Numbers that only grow." in page
    assert "fleet.tallies" in "\n".join(reference.python())
