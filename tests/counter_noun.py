"""A noun of the tests: counters, declared and carried out in one module."""

from typing import Annotated

import msgspec
from msgspec import Struct

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision, Event, Success, Write
from interlock.errors import StoreDamaged
from interlock.registry import NounEntry
from interlock.runtime.attempt import DecideOp
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Operation, Request, option
from interlock.runtime.why import Why
from interlock.steps import Op, Read
from interlock.store import Item

COUNTERS = "counters/"  # a noun of Interlock has its prefix in core/keys.py
Name = Annotated[str, option("name", "the counter", positional=True)]


class CounterAdd(Request, frozen=True, kw_only=True):
    counter: Name
    by: Annotated[int, option("int", "how much to add", least=1)] = 1


class CounterShow(Request, frozen=True, kw_only=True):
    counter: Name


class Counted(Success, frozen=True, kw_only=True, tag="counted"):
    counter: str
    value: int


class Stored(Struct, frozen=True):
    value: int


def read(item: Item | None) -> Stored:
    try:
        return Stored(0) if item is None else msgspec.json.decode(item.value, type=Stored)
    except codec.UNREADABLE as error:
        raise StoreDamaged("it is no counter; restore a copy of the store") from error


def add(counter: str, stored: Stored, by: int, agent: str) -> Decision[Counted]:
    return Decision(
        outcome=Counted(counter=counter, value=stored.value + by),
        verb="counter.add",
        thing=f"counter/{counter}",
        puts=(Write(COUNTERS + keys.encode(counter), Stored(stored.value + by)),),
        events=(Event("counter:added", agent),),
    )


class CounterCalls(Calls[D]):
    """Counters, by name."""

    @call
    def add(self, name: str, *, by: int = 1) -> Op[Counted]:
        """Add to a counter."""
        counter, actor = validate.name(name, "counter"), self.context.me().actor

        def deciding() -> DecideOp[Counted]:
            item = (yield (COUNTERS + keys.encode(counter),))[COUNTERS + keys.encode(counter)]
            return add(counter, read(item), by, actor.agent)

        return (yield from self.context.runner.change(deciding, actor)).outcome

    @call
    def show(self, name: str) -> Op[Counted]:
        """What a counter stands at."""
        item = (yield Read(COUNTERS + keys.encode(name)))[COUNTERS + keys.encode(name)]
        return Counted(counter=name, value=read(item).value)


def why(_context: object, name: str) -> Op[Why]:
    item = (yield Read(COUNTERS + keys.encode(name)))[COUNTERS + keys.encode(name)]
    because = f"it stands at {read(item).value}"
    return Why(thing=f"counter/{name}", blocked=False, because=because, clear="add to it")


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    items = yield from checkup.read(COUNTERS)
    return [
        Problem(kind="full", says=f"{item.key} is great", remedy="begin another", thing=item.key)
        for item in items
        if len(item.value) > len(b'{"value":99}')
    ]


TEXTS = {"Counted": lambda outcome, _paint: f"{outcome.counter} stands at {outcome.value}"}
NOUN = Noun(
    name="counter",
    help="numbers that only grow",
    operations=(
        Operation(
            name="counter add",
            help="add to a counter",
            request=CounterAdd,
            outcomes=(Counted,),
            needs="agent",
            call="tallies.add",
        ),
        Operation(
            name="counter show",
            help="what a counter stands at",
            request=CounterShow,
            outcomes=(Counted,),
            needs="store",
            reads=True,
            call="tallies.show",
        ),
    ),
    calls=f"{__name__}:CounterCalls",
    texts=(__name__,),
    keys=(KeyKind(prefix=COUNTERS, read=f"{__name__}:read"),),
    why={"counter": f"{__name__}:why"},
    health=Part(60, f"{__name__}:health"),
    events=True,
)
ENTRY = NounEntry(__name__, word="counter", attribute="tallies")
