"""Merge queues and watched branches on every engine that real processes can share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.nouns.merges.repositories import TestRepository

import interlock
from interlock.nouns.merges import merge as core
from interlock.testing.audit import audit


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestRepository:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    return TestRepository(tmp_path / "repository")


def test_branches_land_on_every_engine(url: str, repository: TestRepository) -> None:
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="queue") as queue,
    ):
        folder = repository.folder
        ada.messages.subscribe("main_updated")
        ada.branches.watch(once=True, repository=folder)
        for name in ("a", "b", "gone"):
            repository.branch(name, {name: name})
            assert ada.merges.submit(name, repository=folder)
        assert ada.merges.cancel("gone", "no")
        served = queue.merges.serve(unguarded=True, repository=folder, drain=True)
        assert isinstance(served, core.MergesServed)
        assert served.merged == 2
        assert ada.branches.watch(once=True, repository=folder).moves == 1
        kinds = sorted((each.kind, each.type) for each in ada.messages.inbox().messages)
        assert kinds == [("alert", "main_updated"), ("mail", "merge"), ("mail", "merge")]
        assert ada.health()
        assert audit(ada.store) == []
    assert repository.files() == {"base", "a", "b"}


async def _whole(url: str, repository: TestRepository) -> str:
    async with (
        await interlock.aio.connect(url, agent="ada") as ada,
        await interlock.aio.connect(url, agent="queue") as queue,
    ):
        repository.branch("a", {"a": "a"})
        serving = asyncio.create_task(
            queue.merges.serve(command=["true"], repository=repository.folder)
        )
        done = await ada.merges.submit("a", wait=60, repository=repository.folder)
        serving.cancel()
        await asyncio.wait((serving,))
        return type(done).__name__


def test_the_async_client_serves_while_another_waits_for_the_end(
    tmp_path: Path, repository: TestRepository
) -> None:
    assert asyncio.run(_whole(f"{tmp_path}/store.db", repository)) == "MergeDone"
