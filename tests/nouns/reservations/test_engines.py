"""Reservations on every engine that real processes can share, and on the command line."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import with_git

import interlock
from interlock.faces.cli.command import run as command
from interlock.stores import open_store
from interlock.testing.audit import audit


@with_git
def test_one_commit_decides_on_every_engine(url: str) -> None:
    """Agents race for patterns that overlap in pairs; a waiter has it when the winner ends."""
    names = ("ada", "bob", "eve")
    fleets = {name: interlock.connect(url, agent=name) for name in names}
    patterns = {"ada": "src/*.py", "bob": "src/a*", "eve": "**/a.py"}
    got: dict[str, Any] = {}
    ready = threading.Barrier(len(names))

    def race(name: str) -> None:
        ready.wait()
        got[name] = fleets[name].reservations.reserve(patterns[name], ttl="10m")

    threads = [threading.Thread(target=race, args=(name,)) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (winner,) = [name for name in names if got[name]]
    assert {got[name].holder for name in names} == {winner}
    second, third = [name for name in names if name != winner]
    queued = fleets[second].reservations.reserve(patterns[second], on_conflict="queue", ttl="10m")
    assert isinstance(queued, interlock.ReservationQueued)
    ended: Any = fleets[winner].reservations.unreserve(all=True)
    assert ended.next == (second,)
    assert fleets[third].reservations.conflicts(["src/a.py"])[0].holder == second
    assert audit(fleets[winner].store) == []
    for fleet in fleets.values():
        fleet.close()


async def _whole(url: str) -> str:
    async with await interlock.aio.connect(url, agent="ada") as fleet:
        assert await fleet.reservations.reserve("src", ttl=60)
        found = await fleet.reservations.list("src/a.py")
        assert await fleet.reservations.unreserve("src")
        return found.reservations[0].holder


def test_the_async_client_has_the_same_calls(tmp_path: Path) -> None:
    assert asyncio.run(_whole(f"{tmp_path}/store.db")) == "ada"


def test_the_command_line_prints_what_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(f"{tmp_path}/store.db").close()
    store = ["--store", f"{tmp_path}/store.db", "--json"]

    def run(*words: str) -> tuple[int, Any]:
        status = command([*words, *store])
        return status, json.loads(capsys.readouterr().out)

    status, got = run("reserve", "src/*.py", "--agent", "ada", "--ttl", "10m")
    assert (status, got["outcome"]) == (0, "reserved")
    assert got["token"] > 0
    status, got = run("reserve", "src/a*", "--agent", "bob")
    assert status == 1
    assert (got["outcome"], got["holder"], got["witness"]) == ("conflict", "ada", "src/a.py")
    status, got = run("reserve", "../x", "--agent", "bob")
    assert (status, got["error"]) == (2, "bad_input")
    status, got = run("reservations")
    assert (status, got["count"]) == (0, 1)
    status, got = run("why", "src/a.py")
    assert got["by"] == "ada"
    status, got = run("unreserve", "src/*.py", "--agent", "ada")
    assert (status, got["outcome"]) == (0, "unreserved")
