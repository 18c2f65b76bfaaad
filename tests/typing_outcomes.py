"""Outcomes as users match them, to the last one: mypy reads this, nobody runs it."""

from __future__ import annotations

from typing import assert_never, assert_type

import interlock
import interlock.aio


def locks(fleet: interlock.Fleet) -> str:
    match fleet.locks.acquire("merge"):
        case interlock.Acquired(token=token) | interlock.Extended(token=token):
            return f"mine: {assert_type(token, int | None)}"
        case interlock.Busy(holder=holder):
            return assert_type(holder, str)
        case interlock.Deadlock(cycle=cycle):
            return " -> ".join(assert_type(cycle, tuple[str, ...]))
        case interlock.Fenced(lock=lock):
            return assert_type(lock, str)
        case interlock.Blocked(reason=reason):
            return assert_type(reason, str)
        case interlock.Nothing(guard=guard):
            return assert_type(guard, str)
        case never:
            assert_never(never)


def granted(fleet: interlock.Fleet) -> int | None:
    """A condition leaves the grants on one side, and the refusals on the other."""
    outcome = fleet.locks.acquire("merge")
    if outcome:
        assert_type(outcome, interlock.LockAcquired | interlock.LockExtended | interlock.Reclaimed)
        return outcome.token
    refused = interlock.LockBusy | interlock.LockDeadlock | interlock.LockFenced
    assert_type(outcome, refused | interlock.GuardBlocked | interlock.NoGuard)
    slots = fleet.semaphores.acquire("builds")
    if not slots:
        no = interlock.SlotsFull | interlock.SlotsDeadlock | interlock.SlotsFenced
        assert_type(slots, no | interlock.GuardBlocked | interlock.NoGuard)
        return None
    if claim := fleet.tasks.next(can=["rust"]):
        return assert_type(claim, interlock.Claimed).token
    things = fleet.several.acquire("lock/merge") or fleet.several.acquire("lock/other")
    return things.token if things else None


async def granted_in_a_loop(fleet: interlock.aio.Fleet) -> int | None:
    outcome = await fleet.locks.acquire("merge")
    return outcome.token if outcome else None


def sent(fleet: interlock.Fleet) -> str:
    if mail := fleet.messages.send("bob", "hello"):
        return assert_type(mail, interlock.Sent).message
    if answer := fleet.messages.query("bob", "API base URL?"):
        assert_type(answer, interlock.QueryAnswered | interlock.Asked)
    beat = fleet.agents.beat()
    return assert_type(beat, interlock.Renewed).session if beat else ""


def given_back(fleet: interlock.Fleet) -> str:
    match fleet.locks.release("merge"):
        case interlock.Released(next=heir):
            return assert_type(heir, str)
        case interlock.AlreadyFree():
            return "free"
        case interlock.NotOwner(holder=holder) | interlock.Fenced(holder=holder):
            return assert_type(holder, str)
        case never:
            assert_never(never)


def slots(fleet: interlock.Fleet) -> int:
    match fleet.semaphores.acquire("builds", weight=2):
        case interlock.SlotsAcquired() | interlock.AlreadyHeld() | interlock.Increased() as mine:
            return mine.weight
        case interlock.Full(available=available):
            return assert_type(available, int)
        case interlock.Deadlock() | interlock.Fenced() | interlock.Blocked() | interlock.Nothing():
            return 0
        case never:
            assert_never(never)


def several(fleet: interlock.Fleet) -> tuple[str, ...]:
    match fleet.several.acquire("lock/merge", "sem/builds=2"):
        case interlock.Acquired(things=things):
            return things
        case interlock.Busy(blocked=(interlock.LockBusy(holder=holder), *_)):
            return (holder,)
        case interlock.Busy(blocked=(interlock.SlotsFull(holders=holders), *_)):
            return holders
        case interlock.Busy() | interlock.Deadlock() | interlock.Fenced():
            return ()
        case interlock.GuardBlocked(acts=acts):
            return acts
        case interlock.NoGuard(guard=guard):
            return (guard,)
        case never:
            assert_never(never)


def tasks(fleet: interlock.Fleet) -> str:
    match fleet.tasks.claim("t1"):
        case interlock.Claimed(task=task):
            return task
        case interlock.Taken(holder=holder):
            return holder
        case interlock.Blocked(reason=reason) | interlock.Nothing(reason=reason):
            return assert_type(reason, str)
        case interlock.Deadlock(cycle=cycle):
            return cycle[0]
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def published(fleet: interlock.Fleet) -> str:
    match fleet.tasks.publish("t1"):
        case interlock.Published(state=state) | interlock.Exists(state=state):
            return state
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def plans(fleet: interlock.Fleet) -> str:
    match fleet.tasks.publish_all([{"id": "t1"}], id="p"):
        case interlock.Imported(plan=plan) | interlock.Checked(plan=plan):
            return plan
        case interlock.Exists(reason=reason):
            return reason
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def messages(fleet: interlock.Fleet) -> str:
    match fleet.messages.send("bob", "hello"):
        case interlock.Sent(message=id_) | interlock.Exists(message=id_):
            return id_
        case interlock.AlreadyAcknowledged(messages=ids):
            return ids[0]
        case interlock.Unknown(unknown=names, close=close):
            return f"{names[0]}, or {close}"
        case interlock.Full(agent=agent, depth=depth):
            return f"{agent}: {assert_type(depth, int)}"
        case interlock.Limited(retry_in=seconds):
            return f"{seconds}"
        case interlock.Paused(by=by):
            return by
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def stops(fleet: interlock.Fleet) -> bool:
    match fleet.messages.stop("bob"):
        case interlock.Sent() | interlock.Exists() | interlock.AlreadyAcknowledged():
            return True
        case interlock.Away() | interlock.Unknown():
            return False
        case interlock.Full() | interlock.Limited() | interlock.Paused():
            return False
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def inboxes(fleet: interlock.Fleet) -> int:
    match fleet.messages.wait("30s"):
        case interlock.Arrived(messages=messages):
            fleet.messages.ack(*[message.id for message in messages])
        case interlock.Nothing():
            return 0
        case never:
            assert_never(never)
    match fleet.messages.ack("msg_1"):
        case interlock.Acknowledged(messages=ids) | interlock.Unknown(messages=ids):
            return len(ids)
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case none:
            assert_never(none)


def queries(fleet: interlock.Fleet) -> str:
    match fleet.messages.query("bob", "API base URL?"):
        case interlock.QueryAnswered(by=by):
            return by
        case interlock.Asked(to=to) | interlock.TimedOut(to=to) | interlock.Away(to=to):
            return to
        case interlock.TakenBack(query=id_) | interlock.Exists(query=id_):
            return id_
        case interlock.Handed(decision=decision):
            return decision
        case interlock.Deadlock() | interlock.TooMany() | interlock.Unknown():
            return "no"
        case interlock.Full() | interlock.Limited() | interlock.Paused():
            return "later"
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def answers(fleet: interlock.Fleet) -> str:
    match fleet.messages.reply("qry_1", "yes"):
        case interlock.Replied(to=to):
            return to
        case interlock.Late(query=id_) | interlock.NotOwner(query=id_):
            return id_
        case interlock.Unknown():
            return "no"
        case interlock.Sent(message=id_) | interlock.Exists(message=id_):
            return id_
        case interlock.AlreadyAcknowledged() | interlock.Full() | interlock.Limited():
            return "later"
        case interlock.Paused():
            return "later"
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def decisions(fleet: interlock.Fleet) -> str:
    match fleet.messages.resolve("dec_1", "yes"):
        case interlock.Resolved(about=about):
            return about
        case interlock.AlreadyResolved(by=by) | interlock.OwnDecision(agent=by):
            return by
        case interlock.NoSuchOption(options=options):
            return options[0]
        case interlock.Unknown(what=what):
            return what
        case interlock.GivenFenced(given=thing):
            raise AssertionError(thing)
        case never:
            assert_never(never)


def agents(fleet: interlock.Fleet) -> str:
    match fleet.agents.beat():
        case interlock.Renewed(session=session) | interlock.SessionLapsed(session=session):
            return session
        case never:
            assert_never(never)
