"""A process that crashes at any commit of any operation repeats it after a restart: no difference.

Each operation runs across a network and crashes at its first commit, at its second, and so on, just
before or just after it; commits are small, so that there are several. Then another process of the
same agent repeats it with the same id, all agents read and acknowledge all unread messages, and the
outcomes must be those of a run without a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages.calls import MessageCalls
from interlock.runtime.reads import every
from interlock.steps import Op, drive
from interlock.testing.audit import audit
from interlock.testing.faults import Fault
from interlock.testing.testbed import Client, Testbed

MANY = 6
READERS = ("ada", "bob", "cyd")


class Actor(Struct):
    """A process of an agent across a network, with small commits."""

    client: Client
    calls: MessageCalls

    def run(self, op: Op[Any]) -> Any:
        return self.client.run(op)


def actor(stage: Testbed, agent: str) -> Actor:
    client = stage.remote(agent, ttl=1000.0)
    client.runner.capabilities = replace(client.runner.capabilities, max_operations=30)
    return Actor(client, MessageCalls(client.context))


def scene(stage: Testbed) -> None:
    """Bob has messages of all kinds, three topics to read, and a question to answer."""
    ada, bob, cyd = (actor(stage, name) for name in READERS)
    for topic in ("built", "failed"):
        bob.run(bob.calls.subscribe(topic))
    for number in range(MANY):
        ada.run(ada.calls.share("bob", "number", number, id=f"msg_{number}"))
    for topic in ("built", "failed"):
        ada.run(ada.calls.alert(topic, 1, id=f"msg_{topic}"))
    cyd.run(cyd.calls.send("all", "hello", id="msg_all"))
    ada.client.start(ada.calls.query("bob", "why?", timeout=50, id="qry_0"))
    gone = actor(stage, "eve")
    gone.run(gone.client.agents.leave())
    ada.run(ada.calls.query("eve", "who?", person=True, id="qry_person"))


def alert(who: Actor) -> Op[Any]:
    return who.calls.alert("built", 2, id="msg_new")


def share(who: Actor) -> Op[Any]:
    return who.calls.share("cyd", "data", [1], id="msg_new")


def share_with_somebody_new(who: Actor) -> Op[Any]:
    return who.calls.share("zed", "data", [1], hold=True, id="msg_new")


def stop(who: Actor) -> Op[Any]:
    return who.calls.stop("cyd", "enough", id="msg_new")


def mail_to_some(who: Actor) -> Op[Any]:
    return who.calls.send(["ada", "cyd"], "hi", subject="s", id="msg_new")


def mail_to_all(who: Actor) -> Op[Any]:
    return who.calls.send("all", "hi", urgent=True, id="msg_new")


def hand_on(who: Actor) -> Op[Any]:
    return who.calls.share("cyd", "data", 0, id="msg_new", acks=["msg_0", "msg_1"])


def subscribe(who: Actor) -> Op[Any]:
    return who.calls.subscribe("built", last=1)


def unsubscribe(who: Actor) -> Op[Any]:
    return who.calls.unsubscribe("built")


def acknowledge(who: Actor) -> Op[Any]:
    wanted = [*[f"msg_{number}" for number in range(MANY)], "msg_built", "msg_failed", "msg_all"]
    return who.calls.ack(*wanted)


def receive(who: Actor) -> Op[Any]:
    receiver = who.calls.receiver()
    try:
        found = yield from receiver.take(0)
        return (yield from receiver.ack([each.id for each in found if each.kind != "query"]))
    finally:
        receiver.close()


def ask(who: Actor) -> Op[Any]:
    return who.calls.query("bob", "and?", timeout=50, id="qry_new")


def ask_the_able(who: Actor) -> Op[Any]:
    return who.calls.query("?maths", "and?", timeout=50, hold=True, id="qry_new")


def ask_a_person(who: Actor) -> Op[Any]:
    return who.calls.query("eve", "and?", person=True, id="qry_new")


def ask_on(who: Actor) -> Op[Any]:
    return who.calls.query("bob", "why?", timeout=50, id="qry_0")


def ask_too_long(who: Actor) -> Op[Any]:
    who.client.clock.advance(51)
    return ask_on(who)


def reply(who: Actor) -> Op[Any]:
    return who.calls.reply("qry_0", "because")


def reply_too_late(who: Actor) -> Op[Any]:
    who.client.clock.advance(51)
    return reply(who)


def cancel(who: Actor) -> Op[Any]:
    return who.calls.cancel("qry_0")


def resolve(who: Actor) -> Op[Any]:
    [matter] = who.run(who.calls.decisions())
    return who.calls.resolve(matter.decision, "me")


Act: TypeAlias = Callable[[Actor], Op[Any]]
ACTS: dict[Act, str] = {
    alert: "bob",
    share: "bob",
    share_with_somebody_new: "bob",
    stop: "bob",
    mail_to_some: "bob",
    mail_to_all: "bob",
    hand_on: "bob",
    subscribe: "cyd",
    unsubscribe: "bob",
    acknowledge: "bob",
    receive: "bob",
    ask: "ada",
    ask_the_able: "ada",
    ask_a_person: "ada",
    ask_on: "ada",
    ask_too_long: "ada",
    reply: "bob",
    reply_too_late: "bob",
    cancel: "ada",
    resolve: "cyd",
}
FEWEST: dict[Act, int] = {acknowledge: 3, receive: 3}


@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
@pytest.mark.parametrize("act", ACTS)
def test_after_any_fault_all_readers_agree(act: Act, fault: Fault) -> None:
    expected = told(act, None, 0)[0]
    for commit in count():
        found, struck = told(act, fault, commit)
        assert found == expected
        if not struck:
            assert commit >= FEWEST.get(act, 1)
            return


def told(act: Act, fault: Fault | None, commit: int) -> tuple[dict[str, Any], bool]:
    """All outcomes at the end, and whether the fault occurred."""
    stage = Testbed()
    scene(stage)
    doomed = actor(stage, ACTS[act])
    doomed.client.network.script([None] * commit + [fault])
    hand = doomed.client.start(act(doomed))
    struck = bool(doomed.client.network.drawn)
    if hand.done and fault is not None and not fault.startswith("crash"):
        hand.result()  # it completed in spite of the fault
    doomed.client.network.script([])
    doomed.client.network.deliver()
    return finish(stage, act), struck


def finish(stage: Testbed, act: Act) -> dict[str, Any]:
    """Repeat the operation; answer all questions, and read all unread messages."""
    heir = actor(stage, ACTS[act])
    hand = heir.client.start(act(heir))
    for agent in ("bob", "cyd"):
        answers(actor(stage, agent))
    heard = {agent: drained(stage, agent) for agent in (*READERS, "zed")}
    told = hand.run().result()
    queries = {each.key: decode.query(each) for each in drive(every(keys.QUERIES), stage.store)}
    assert audit(stage.store) == []
    return {
        **heard,
        "told": getattr(told, "answer", ""),
        "queries": {key: (each.state, each.by) for key, each in queries.items() if each},
        "heard": [each.key for each in drive(every(keys.SUBSCRIPTIONS), stage.store)],
    }


def answers(who: Actor) -> None:
    """Answer all questions that are not late."""
    able = ("maths",) if who.client.context.me().actor.agent == "cyd" else ()
    for each in who.run(who.calls.inbox(kind="query", can=able)).messages:
        who.run(who.calls.reply(each.id, "because", can=able))


def drained(stage: Testbed, agent: str) -> list[tuple[str, str, str]]:
    """All messages that an agent has read, and those that it reads now, each once."""
    who = actor(stage, agent)
    receiver = who.calls.receiver()
    found = who.run(receiver.take(0))
    who.run(receiver.ack([each.id for each in found])) if found else None
    assert who.run(receiver.take(0)) == []
    receiver.close()
    assert len({each.id for each in found}) == len(found)
    return [(each.kind, each.sender, str(each.data)) for each in found]
