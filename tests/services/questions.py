"""Queries as they stand in a store, written by hand: who asks whom, and who serves an inbox."""

from __future__ import annotations

from collections.abc import Iterable

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.wait import Asleep, listed, listing
from interlock.driving import Op
from interlock.services import callers
from interlock.services.deadlock import Deadlocks
from interlock.services.graph import Start
from interlock.services.runner import Deciding
from interlock.services.steps import Take
from interlock.store import Put, Txn
from interlock.testing.stage import Client, Stage

TTL = 9000.0
_NEVER = "wake/never"


def ask(client: Client, to: str, id_: str = "") -> Op[tuple[str, ...] | None]:
    """Ask, and sleep; the circle if the answer could never come."""
    from interlock.services.steps import Open

    who, id_ = client.desk.seat.who, id_ or client.runner.new_id("qry")
    terms = callers.terms("", client.someone)
    asleep = Asleep(
        wants=keys.query(id_),
        agent=who.agent,
        session=who.session,
        live=keys.live(who.session),
        since=client.clock.wall(),
        caller=terms.caller,
        indexed=terms.indexed,
        also=terms.also,
    )
    query = {"id": id_, "agent": who.agent, "session": who.session, "to": to, "state": "open"}

    def asking() -> Deciding[str]:
        yield from ()
        puts = (Write(keys.query(id_), query), Write(keys.live(id_), {}, TTL))
        waits = listing(asleep, id_)
        return Decision(outcome="asked", verb="query.ask", thing="x", puts=(*puts, *waits))

    def withdraw(cycle: tuple[str, ...]) -> Deciding[tuple[str, ...] | None]:
        yield from ()
        deletes = (keys.query(id_), *listed(asleep, id_))
        return Decision(outcome=cycle, verb="query.withdraw", thing="x", deletes=deletes)

    done = yield from client.runner.change(asking, who)
    start = Start(id=id_, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0)
    watch = yield Open(_NEVER, 0)
    while True:
        refused = yield from Deadlocks(client.runner).untie(who, start, withdraw)
        if refused.outcome is not None:
            return refused.outcome
        yield Take(watch, 1.0)


def serve(client: Client, name: str = "", session: str = "") -> None:
    """List a caller as one that takes the messages of its agent; ours unless it is named."""
    if not name:
        client.someone.holds.add("inbox")
    session = session or client.session
    value = f'{{"session":"{session}","live":"{keys.live(session)}"}}'.encode()
    key = keys.serving(client.desk.seat.who.agent, name or client.someone.name)
    client.store.commit(Txn(id=client.runner.new_id("txn"), puts=(Put(key, value),)))


def can(client: Client, *abilities: str) -> None:
    client.run(client.agents.status("idle", can=abilities))


def end(stage: Stage, keys_: Iterable[str]) -> None:
    """Take these items away."""
    stage.store.commit(Txn(id=f"end{stage.random.random()}", deletes=tuple(keys_)))
