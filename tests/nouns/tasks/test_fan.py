"""Many tasks that need one, and one that needs many: on every store, in bounded commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.core import keys
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_outcomes import Imported
from interlock.store import LOG, Answer, Log, Range, Ref, Snapshot, Store, Txn, Work
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock
from interlock.testing.testbed import Testbed

LOCAL, ELSEWHERE = 2000, 300
IN_FLIGHT = 32


def listed(store: Store, prefix: str) -> list[str]:
    found: list[str] = []
    while True:
        page = Range(prefix, found[-1] if found else "")
        items = store.read(page).ranges[page]
        found += [item.key for item in items]
        if len(items) < page.limit:
            return found


def fan(count: int, name: str = "t") -> list[dict[str, Any]]:
    """One task, many that need it, and one that needs all of these."""
    many = [f"{name}{number}" for number in range(count)]
    needy = [{"id": each, "needs": ["root"]} for each in many]
    return [{"id": "root"}, *needy, {"id": "end", "needs": many}]


def spread(fleet: interlock.Fleet, count: int) -> task_outcomes.TaskCompleted:
    """Publish a fan and complete what all need; then all of them are ready."""
    outcome = fleet.tasks.publish_all(fan(count))
    assert isinstance(outcome, Imported)
    assert (outcome.ready, outcome.blocked) == (1, count + 1)
    assert len(listed(fleet.store, keys.READY)) == 1
    assert isinstance(fleet.tasks.claim("root"), task_outcomes.Claimed)
    done = fleet.tasks.complete("root")
    assert isinstance(done, task_outcomes.TaskCompleted)
    assert len(listed(fleet.store, keys.READY)) == count
    assert len(listed(fleet.store, keys.HANGS)) == 1, "the one that needs them all"
    assert listed(fleet.store, keys.TODO) == []
    return done


async def gather(url: str, tasks: Sequence[str]) -> None:
    """Complete all of these, many at a time."""
    left = list(tasks)
    async with await aio.connect(url, agent="crowd") as fleet:

        async def work() -> None:
            while left:
                task = left.pop()
                assert isinstance(await fleet.tasks.claim(task), task_outcomes.Claimed)
                assert isinstance(await fleet.tasks.complete(task), task_outcomes.TaskCompleted)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def whole(url: str, count: int) -> task_outcomes.TaskCompleted:
    with interlock.connect(url, agent="ada") as fleet:
        done = spread(fleet, count)
        blocked = fleet.tasks.claim("end")
        assert isinstance(blocked, task_outcomes.TaskBlocked)
        asyncio.run(gather(url, [f"t{number}" for number in range(count)]))
        assert isinstance(fleet.tasks.claim("end"), task_outcomes.Claimed)
        assert isinstance(fleet.tasks.complete("end"), task_outcomes.TaskCompleted)
        assert listed(fleet.store, keys.HANGS) == []
        return done


def test_a_fan_of_many_is_done_on_every_store(url: str) -> None:
    local = url.endswith(".db")
    done = whole(url, LOCAL if local else ELSEWHERE)
    assert not local or done.unblocked == LOCAL, "with the commit that completed the need"


def test_thousands_begin_with_the_commit_that_completes_what_they_need() -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        assert spread(fleet, LOCAL).unblocked == LOCAL


@pytest.mark.parametrize("backwards", [False, True])
def test_one_that_needs_thousands_begins_when_the_last_is_complete(backwards: bool) -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=None)
    many = [f"t{number}" for number in range(LOCAL if backwards else 300)]
    ada.run(ada.tasks.publish_all([{"id": "end", "needs": many}, *({"id": e} for e in many)]))
    for task in reversed(many) if backwards else many:
        ada.run(ada.tasks.claim(task))
        before = ada.run(ada.tasks.complete(task))
        assert isinstance(before, task_outcomes.TaskCompleted)
        assert before.unblocked == (task == (many[0] if backwards else many[-1]))
    assert isinstance(ada.run(ada.tasks.claim("end")), task_outcomes.Claimed)


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_a_fan_of_thousands_is_done_on_every_store(url: str) -> None:
    whole(url, 10_000 if url.endswith(".db") else 5000)


class Counting(MemoryStore):
    """Counts what it is asked for and what is written to it: the same on every machine."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.work = 0

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        return self._counted(super().read(*refs, times=times, fresh=fresh, longest=longest))

    def _counted(self, found: Snapshot) -> Snapshot:
        self.work += len(found.items) + sum(map(len, found.ranges.values()))
        return found

    def transact(self, work: Work) -> Any:
        class View:
            def __init__(self, view: Any) -> None:
                self._view = view

            def read(self, *refs: Ref, longest: int | None = None) -> Snapshot:
                return counted(self._view.read(*refs, longest=longest))

        counted = self._counted

        def counting(view: Any) -> Txn | None:
            txn = work(View(view))
            self.work += 0 if txn is None else len(txn.puts) + len(txn.deletes)
            return txn

        return super().transact(counting)

    def commit(self, txn: Txn) -> Answer:
        self.work += len(txn.checks) + len(txn.puts) + len(txn.deletes)
        return super().commit(txn)


def effort(count: int, *, remote: bool) -> int:
    """How much is read and written for a fan of this size, from its publishing to its end."""
    store = Counting()
    stage = Testbed()
    stage.store = store
    ada = stage.remote("ada", ttl=None) if remote else stage.client("ada", ttl=None)
    ada.run(ada.tasks.publish_all(fan(count)))
    for task in ("root", *(f"t{number}" for number in range(count)), "end"):
        assert isinstance(ada.run(ada.tasks.claim(task)), task_outcomes.Claimed)
        ada.run(ada.tasks.complete(task))
    return store.work


@pytest.mark.parametrize("remote", [False, True])
def test_twice_as_many_cost_about_twice_as_much(remote: bool) -> None:
    small, large = effort(150, remote=remote), effort(300, remote=remote)
    assert large < 2.3 * small


def bounded(count: int) -> int:
    """More than one commit has room for: publishing, and completing the need of all."""
    store = Counting()
    store.capabilities = replace(store.capabilities, max_value=50_000)
    stage = Testbed()
    stage.store = store
    ada = stage.client("ada", ttl=None)
    ada.run(ada.tasks.publish_all(fan(count)[:-1]))
    ada.run(ada.tasks.claim("root"))
    done = ada.run(ada.tasks.complete("root"))
    assert isinstance(done, task_outcomes.TaskCompleted)
    assert 0 < done.unblocked < count
    assert len(listed(store, keys.READY)) == count
    return store.work


def test_twice_as_many_cost_about_twice_as_much_in_many_commits() -> None:
    assert bounded(1000) < 2.3 * bounded(500)


def test_however_long_the_names_an_entry_fits_into_a_segment(tmp_path: Any) -> None:
    """What cannot be sealed would keep the whole record from being sealed."""
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        name = "n" * 190
        fleet.tasks.publish_all(fan(1200, name))
        fleet.tasks.claim("root")
        fleet.tasks.complete("root")
        assert len(listed(fleet.store, keys.READY)) == 1200
        log = Log(limit=1000)
        entries = fleet.store.read(log).ranges[log]
        assert any(item.key.startswith(LOG) for item in entries)
        largest = max(len(item.value) for item in entries)
        assert largest < fleet.store.capabilities.max_value
        assert audit(fleet.store) == []
