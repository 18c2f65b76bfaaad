"""The declaration of the quarantine: messages of other swarms that were refused."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from interlock.core import keys
from interlock.nouns.requests import outcomes as out
from interlock.runtime.noun import KeyKind, Noun
from interlock.runtime.operation import Operation, Request, option

Id: TypeAlias = Annotated[str, option("name", "the message, by its id", positional=True)]


class QuarantinedList(Request, frozen=True, kw_only=True):
    """Messages in quarantine."""

    swarm: Annotated[str | None, option("name", "only of this swarm")] = None
    after: Annotated[str | None, option("name", "start after this id")] = None
    limit: Annotated[int, option("int", "how many to list at most", least=1, most=10_000)] = 100


class QuarantineShow(Request, frozen=True, kw_only=True):
    """One message."""

    id: Id


class QuarantineRelease(Request, frozen=True, kw_only=True):
    """Take a message in."""

    id: Id


class QuarantineDrop(Request, frozen=True, kw_only=True):
    """Delete messages."""

    ids: Annotated[tuple[str, ...], option("names", "the messages, by their ids", positional=True)]


NOUN = Noun(
    name="quarantine",
    help="messages of other swarms that were refused, each with its reason",
    calls="interlock.nouns.requests.calls:QuarantineCalls",
    keys=(
        KeyKind(
            prefix=keys.QUARANTINE, read="interlock.nouns.requests.exchange:decode_quarantined"
        ),
        KeyKind(
            prefix=keys.QUARANTINE_CONTENT,
            read="interlock.nouns.requests.exchange:decode_content",
            bulk=True,
        ),
    ),
    ids={"quarantine": "qua_"},
    why={"quarantine": "interlock.nouns.requests.why:quarantine"},
    events=True,
    texts=("interlock.nouns.requests.text",),
    operations=(
        Operation(
            name="quarantine list",
            help="list messages that were refused, oldest first",
            request=QuarantinedList,
            outcomes=(out.QuarantineList,),
            needs="store",
            reads=True,
            pages=True,
            call="quarantine.list",
        ),
        Operation(
            name="quarantine show",
            help="show one message: who sent it, why it was refused, its payload",
            request=QuarantineShow,
            outcomes=(out.QuarantineView, out.UnknownQuarantine),
            needs="store",
            reads=True,
            call="quarantine.show",
        ),
        Operation(
            name="quarantine release",
            help="take a message in after all; its signature is verified again",
            request=QuarantineRelease,
            outcomes=(out.QuarantineReleased, out.QuarantineKept, out.UnknownQuarantine),
            needs="agent",
            call="quarantine.release",
            takes=True,
        ),
        Operation(
            name="quarantine drop",
            help="delete messages",
            request=QuarantineDrop,
            outcomes=(out.QuarantineDropped, out.UnknownQuarantine),
            needs="agent",
            call="quarantine.drop",
            spread="ids",
            takes=True,
        ),
    ),
)
