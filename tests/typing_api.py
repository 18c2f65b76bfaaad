"""The public API as users write it: mypy reads this, nobody runs it."""

from __future__ import annotations

import logging
from typing import assert_never, assert_type

import interlock
from interlock import (
    Acknowledged,
    AlreadyFree,
    Anchored,
    Arrived,
    Checked,
    Exported,
    GivenFenced,
    Imported,
    Joined,
    Left,
    LockAcquired,
    LockBusy,
    LockDeadlock,
    LockExtended,
    LockFenced,
    LockNotOwner,
    LockReleased,
    NoSemaphore,
    NoTask,
    NothingUnread,
    PlanChanges,
    PlanExists,
    PlanUpdated,
    Proof,
    Reclaimed,
    Renewed,
    Reported,
    Resized,
    SessionLapsed,
    TaskCompleted,
    TaskEdited,
    TaskFailed,
    TaskNoted,
    TasksDropped,
    Unchanged,
    UnknownMessages,
    Unreported,
    Uploaded,
    aio,
    guard,
)
from interlock.client_tasks import Claim
from interlock.core.decision import Outcome
from interlock.core.entry import RecordLine
from interlock.nouns.agents.log_rules import LogLine
from interlock.nouns.agents.session_rules import Agent
from interlock.nouns.grants.lock import LockView
from interlock.nouns.grants.semaphore import SemaphoreView
from interlock.nouns.guards.results import GuardsLooked
from interlock.nouns.messages.message import Inbox, Kind, SendOutcome
from interlock.nouns.messages.query import ReplyOutcome
from interlock.nouns.record.noun import Verified
from interlock.nouns.tasks.task import TaskEvent
from interlock.nouns.tasks.task_view import TaskList, TaskNotes, TaskTree, TaskView
from interlock.runtime.health import Health
from interlock.runtime.housekeeping import Maintained
from interlock.runtime.why import Why


def blocking(fleet: interlock.Fleet) -> str:
    outcome = fleet.locks.acquire("merge", ttl="30s", wait=5, metadata={"step": 1})
    assert_type(
        outcome,
        LockAcquired
        | LockExtended
        | Reclaimed
        | LockBusy
        | LockDeadlock
        | LockFenced
        | interlock.GuardBlocked
        | interlock.NoGuard,
    )
    assert_type(
        fleet.locks.release("merge", token=3),
        LockReleased | AlreadyFree | LockNotOwner | LockFenced,
    )
    assert_type(fleet.locks.heartbeat("merge"), LockExtended | LockNotOwner | LockFenced)
    assert_type(fleet.locks.list(), tuple[LockView, ...])
    assert_type(fleet.locks.show("merge"), LockView)
    assert_type(fleet.tasks.list(state=["running"], holder="ada"), TaskList)
    assert_type(fleet.tasks.show("t1"), TaskView | NoTask)
    assert_type(fleet.tasks.note("t1", "hot"), TaskNoted | Unchanged | GivenFenced)
    assert_type(fleet.tasks.notes("t1"), TaskNotes | NoTask)
    assert_type(fleet.tasks.tree("t1", format="dot"), TaskTree | NoTask)
    assert_type(
        fleet.tasks.edit("t1", priority=1, data=None, add_needs=["t0"]),
        TaskEdited | Unchanged | GivenFenced,
    )
    assert_type(fleet.tasks.drop("t1", "t2"), TasksDropped | Unchanged | GivenFenced)
    assert_type(
        fleet.tasks.update_all([{"id": "t2"}], id="p"),
        Imported | PlanChanges | PlanUpdated | PlanExists | GivenFenced,
    )
    assert_type(
        fleet.tasks.publish_all([{"id": "t2"}], id="p"),
        Imported | Checked | PlanExists | GivenFenced,
    )
    assert_type(fleet.agents.join(ttl=900), Joined)
    assert_type(fleet.agents.leave(), Left | SessionLapsed)
    assert_type(fleet.agents.beat(), Renewed | SessionLapsed)
    assert_type(fleet.agents.list(), tuple[Agent, ...])
    assert_type(fleet.agents.status("busy", can=["gpu"]), Reported | Unreported | SessionLapsed)
    fleet.pulse.be("busy", doing="task/t1")
    assert_type(fleet.agents.log(["a line"]), Uploaded)
    assert_type(fleet.agents.logged("ada", limit=5), tuple[LogLine, ...])
    assert_type(fleet.agents.handler("INFO"), logging.Handler)
    assert_type(fleet.record.log(limit=5), tuple[RecordLine, ...])
    assert_type(fleet.record.verify(anchors=["anchors.jsonl"]), Verified)
    assert_type(fleet.record.export("record.jsonl", after=3), Exported)
    assert_type(fleet.record.anchor("git:anchors"), Anchored)
    assert_type(fleet.maintain(), Maintained)
    assert_type(fleet.why("lock/merge"), Why)
    assert_type(fleet.health(held="2h"), Health)
    assert_type(fleet.semaphores.list(), tuple[SemaphoreView, ...])
    assert_type(fleet.semaphores.show("builds"), SemaphoreView | NoSemaphore)
    assert_type(fleet.semaphores.resize("builds", 3), Resized)
    match outcome:
        case LockAcquired() | LockExtended() | Reclaimed():
            assert_type(outcome.token, int | None)
            return f"{outcome.token}"
        case LockBusy():
            return outcome.holder
        case LockDeadlock():
            return " -> ".join(outcome.cycle)
        case LockFenced():
            return outcome.lock
        case interlock.GuardBlocked() | interlock.NoGuard():
            return outcome.guard
        case _:
            assert_never(outcome)


def blocks() -> None:
    with interlock.connect(agent="ada") as fleet:
        assert_type(fleet, interlock.Fleet)
        with fleet.lock("merge", wait="1m") as held:
            assert_type(held, interlock.Held)
            assert_type(held.token, int)
            assert_type(held.lost, bool)
            assert_type(held.check(), Proof)
            fleet.locks.acquire("second", given=[held.check()])


def work(fleet: interlock.Fleet) -> None:
    for claim in fleet.tasks.work(can=["rust"], ttl="5m"):
        with claim:
            assert_type(claim.task, str)
            assert_type(claim.lost, bool)
            assert_type(claim.complete({"pull": 7}), TaskCompleted)
    worker = fleet.tasks.work(concurrency=4)

    @worker.on("build", timeout="5m")
    def build(claim: Claim) -> int:
        claim.progress(0.4, "compiling")
        return len(fleet.tasks.read_file(claim.data))

    worker.serve()
    fleet.tasks.serve(build, concurrency=4, timeout=60)
    with fleet.tasks.hold(can=["rust"]) as held:
        assert_type(held.complete(fleet.tasks.file("out")), TaskCompleted)
    with fleet.tasks.hold("t1", wait=5) as held:
        assert_type(held.check(), Proof)
        assert_type(held.fail("broken", retry=False), TaskFailed)
    with fleet.tasks.subscribe(events=["published"], can=["rust"]) as events:
        assert_type(events.take(5), tuple[TaskEvent, ...])
        assert_type(next(iter(events)), TaskEvent)


async def work_async(fleet: aio.Fleet) -> None:
    async for claim in fleet.tasks.work(concurrency=8):
        async with claim:
            assert_type(await claim.complete(), TaskCompleted)
    async with await fleet.tasks.subscribe(callback=print) as events:
        assert_type(await events.take(5), tuple[TaskEvent, ...])


def messages(fleet: interlock.Fleet) -> None:
    assert_type(
        fleet.messages.alert("build", {"ok": False}),
        SendOutcome,
    )
    assert_type(fleet.messages.ack("msg_1"), Acknowledged | UnknownMessages | GivenFenced)
    assert_type(fleet.messages.reply("qry_1", "yes"), ReplyOutcome)
    assert_type(fleet.messages.inbox(kind="mail"), Inbox)
    assert_type(fleet.messages.wait("30s"), Arrived | NothingUnread)
    for message in fleet.messages.recv(can=["review"]):
        assert_type(message, interlock.Message)
        assert_type(message.kind, Kind)
        assert_type(message.reply("yes"), ReplyOutcome)
        assert_type(message.file().read(), bytes)
    with fleet.messages.recv(timeout="5s", ack=False) as received:
        batch = received.take()
        assert_type(batch, tuple[interlock.Message, ...])
        assert_type(received.ack(*batch), Acknowledged | UnknownMessages)


async def messages_async(fleet: aio.Fleet) -> None:
    answer = await fleet.messages.query("bob", "API base URL?", timeout="30s")
    if isinstance(answer, interlock.QueryAnswered):
        assert_type(answer.by, str)
    async for message in fleet.messages.recv():
        assert_type(await message.ack(), Acknowledged | UnknownMessages)
        assert_type(await message.file().read(), bytes)
    async with fleet.messages.recv(ack=False) as received:
        await received.ack(*await received.take())


def guards() -> None:
    calm: guard.Condition = guard.lock_free("deploy") & ~guard.file_exists("STOP")
    guard.all_of(calm | guard.command(["make", "test"], expect="failure"), guard.not_(calm))
    guard.command("make", expect="joy")  # type: ignore[arg-type]


def checks(fleet: interlock.Fleet) -> None:
    calm = guard.named("calm", guard.lock_free("deploy"), on_failure=guard.retry("30s", 5))
    fleet.guards.define(calm)
    assert_type(fleet.guards.look(), GuardsLooked)
    assert_type(fleet.maintain(guards=True, timeout="1s"), Maintained)
    for answer in (fleet.guards.check("calm"), fleet.guards.check(calm, guard.lock_free("x"))):
        if isinstance(answer, interlock.NoGuard):
            assert_type(answer.guard, str)
        else:
            assert_type(answer.acts, tuple[str, ...])
    fleet.guards.check(3)  # type: ignore[arg-type]
    _ = calm & "ready"  # type: ignore[operator]


def mistakes(fleet: interlock.Fleet) -> None:
    fleet.tasks.work(["rust"])  # type: ignore[call-arg]
    fleet.messages.recv(["rust"])  # type: ignore[call-arg]
    fleet.messages.send("bob", sbject="plan")  # type: ignore[call-arg]
    fleet.locks.acquire()  # type: ignore[call-arg]
    fleet.locks.acquire("merge", "30s")  # type: ignore[call-arg]
    fleet.locks.acquire("merge", tll="30s")  # type: ignore[call-arg]
    fleet.locks.release("merge", token="3")  # type: ignore[arg-type]
    fleet.locks.acquire(b"merge")  # type: ignore[arg-type]
    fleet.agents.status(3)  # type: ignore[arg-type]


async def awaited() -> None:
    async with await aio.connect(agent="ada") as fleet:
        outcome = await fleet.locks.acquire("merge", ttl="30s", wait=5)
        assert_type(
            outcome,
            LockAcquired
            | LockExtended
            | Reclaimed
            | LockBusy
            | LockDeadlock
            | LockFenced
            | interlock.GuardBlocked
            | interlock.NoGuard,
        )
        assert_type(await fleet.locks.show("merge"), LockView)
        assert_type(await fleet.agents.list(), tuple[Agent, ...])
        assert_type(await fleet.agents.status("idle"), Reported | Unreported | SessionLapsed)
        assert_type(await fleet.maintain(), Maintained)
        async with fleet.lock("merge") as held:
            assert_type(held.token, int)
            assert_type(await held.check(), Proof)
            assert_type(await held.release(), Outcome)
        await fleet.locks.acquire("merge", tll=1)  # type: ignore[call-arg]
