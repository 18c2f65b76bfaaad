"""Queries as they stand in a store, written by hand: who asks whom, and who serves an inbox."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.outcomes import Deadlock
from interlock.core.wait import UnqueuedWait, wait_keys, wait_writes
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp
from interlock.runtime.deadlock import DeadlockResolver
from interlock.runtime.wait_graph import Start
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Testbed

TTL = 9000.0


class Unanswered(Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The answer could never come."""

    cycle: tuple[str, ...]


class Query(Struct, frozen=True, kw_only=True):
    """A query as it is stored, as far as anybody here asks."""

    id: str
    agent: str
    session: str
    to: str
    state: str = "open"


def ask(client: Client, to: str, id_: str = "") -> Op[Unanswered | str]:
    """Ask, and sleep until somebody answered."""
    actor, id_ = client.context.identity.actor, id_ or client.runner.new_id("qry")
    terms = callers.caller_terms("", client.context.grants.current_caller())
    asleep = UnqueuedWait(
        wants=keys.query(id_),
        agent=actor.agent,
        session=actor.session,
        live=keys.live(actor.session),
        since=client.clock.wall(),
        caller=terms.caller,
        indexed=terms.indexed,
        also=terms.also,
    )
    query = Query(id=id_, agent=actor.agent, session=actor.session, to=to)

    def asking() -> DecideOp[str]:
        yield from ()
        puts = (Write(keys.query(id_), query), Write(keys.live(id_), {}, TTL))
        waits = wait_writes(asleep, id_)
        return Decision(outcome="asked", verb="query.ask", thing="x", puts=(*puts, *waits))

    def over(cycle: tuple[str, ...] = ()) -> DecideOp[Unanswered | None]:
        yield from ()
        deletes = (keys.query(id_), *wait_keys(asleep, id_))
        outcome = Unanswered(cycle=cycle) if cycle else None
        return Decision(outcome=outcome, verb="query.end", thing="x", deletes=deletes)

    done = yield from client.runner.change(asking, actor)
    start = Start(id=id_, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0)
    watch = yield OpenWatch(asleep.wants, done.revision or 0)
    while True:
        refused = yield from DeadlockResolver(client.runner).resolve(actor, start, over)
        if refused.outcome is not None:
            return refused.outcome
        if (yield NextChanges(watch, 1.0)) and (yield Read(keys.live(id_)))[keys.live(id_)] is None:
            yield from client.runner.change(over, actor)
            return "answered"


def answer(client: Client, id_: str) -> Op[None]:
    """Answer a query, whoever was asked."""

    def deciding() -> DecideOp[None]:
        item = (yield (keys.query(id_),))[keys.query(id_)]
        assert item is not None
        said = replace(msgspec.json.decode(item.value, type=Query), state="answered")
        write = Write(keys.query(id_), said)
        return Decision(
            outcome=None, verb="query.answer", thing="x", puts=(write,), deletes=(keys.live(id_),)
        )

    yield from client.runner.change(deciding, client.context.identity.actor)


def serve(client: Client, name: str = "", session: str = "") -> None:
    """List a caller as one that takes the messages of its agent; ours unless it is named."""
    if not name:
        client.someone.holds.add("inbox")
    session = session or client.session
    value = f'{{"session":"{session}","live":"{keys.live(session)}"}}'.encode()
    key = keys.serving(client.context.identity.actor.agent, name or client.someone.name)
    client.store.commit(Txn(id=client.runner.new_id("txn"), puts=(Put(key, value),)))


def can(client: Client, *abilities: str) -> None:
    client.run(client.agents.status("idle", can=abilities))


def end(stage: Testbed, keys_: Iterable[str]) -> None:
    """Take these items away."""
    stage.store.commit(Txn(id=f"end{stage.random.random()}", deletes=tuple(keys_)))
