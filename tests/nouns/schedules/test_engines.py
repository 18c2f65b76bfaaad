"""Schedules on every engine that real processes can share, with its own clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.conftest import with_git

import interlock
from interlock.nouns.schedules import schedule as core
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.testing.audit import audit


@with_git
def test_a_waiting_worker_gets_the_run_of_a_schedule(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        added = ada.schedules.add("s", every=1)
        assert isinstance(added, core.ScheduleAdded)
        got = bob.tasks.next(wait=60)
        assert isinstance(got, Claimed)
        assert got.task.startswith("s@")
        assert ada.schedules.drop("s")
        assert audit(ada.store) == []


async def _whole(url: str) -> list[str]:
    async with await interlock.aio.connect(url, agent="ada") as fleet:
        assert await fleet.schedules.add("s", {"x": 1}, every=1, missed="all", title="A title")
        got: Any = await fleet.tasks.next(wait=60)
        view = await fleet.schedules.show("s")
        assert isinstance(view, core.ScheduleView)
        assert view.task == {"data": {"x": 1}, "title": "A title"}
        assert await fleet.schedules.pause("s", "why not")
        assert await fleet.schedules.resume("s")
        assert [each.state for each in await fleet.schedules.list()] == ["active"]
        assert await fleet.schedules.drop("s")
        return [got.title]


def test_the_async_client_has_the_same_calls(tmp_path: Path) -> None:
    assert asyncio.run(_whole(f"{tmp_path}/store.db")) == ["A title"]
