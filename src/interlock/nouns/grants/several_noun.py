"""The declaration of several locks and semaphores at once."""

from typing import Annotated, get_args

from interlock.nouns.grants import several
from interlock.nouns.grants.lock_noun import Guards, MaxHold, Metadata, Token, Ttl, Wait
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request, option, waits


class SeveralAcquire(Request, frozen=True, kw_only=True):
    """Take several locks and slots at once."""

    things: Annotated[
        tuple[str, ...],
        option(
            "things",
            "the locks and slots to acquire: lock/merge, sem/builds, sem/builds=2",
            positional=True,
        ),
    ]
    ttl: Ttl = None
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    guard: Guards = ()


class SeveralRelease(Request, frozen=True, kw_only=True):
    """Give several locks and slots back at once."""

    things: Annotated[
        tuple[str, ...],
        option("things", "the locks and slots to release: lock/merge, sem/builds", positional=True),
    ]
    token: Token = None


NOUN = Noun(
    name="several",
    calls="interlock.nouns.grants.several_calls:SeveralCalls",
    texts=("interlock.nouns.grants.text",),
    operations=(
        Operation(
            name="acquire",
            help="take several locks and slots at once: all of them, or none",
            request=SeveralAcquire,
            outcomes=get_args(several.AcquireOutcome),
            needs="agent",
            grants=True,
            call="several.acquire",
            spread="things",
            joins=waits,
            examples=("interlock acquire lock/merge sem/builds=2 --agent ada --wait 1m",),
        ),
        Operation(
            name="release",
            help="release several locks and slots at once",
            request=SeveralRelease,
            outcomes=get_args(several.ReleaseOutcome),
            needs="agent",
            call="several.release",
            spread="things",
            takes=True,
            examples=("interlock release lock/merge sem/builds --agent ada --token 12",),
        ),
    ),
)
