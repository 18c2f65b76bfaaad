"""Operations on several locks and semaphores at once."""

from typing import Annotated

from interlock.nouns.grants import several
from interlock.nouns.grants.lock_noun import MaxHold, Metadata, Token, Wait
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Operation, Request, option, waits


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
    ttl: Annotated[
        Duration | None,
        option(
            "duration", "how long the grant lives unless renewed; 15m, or as long as the session"
        ),
    ] = None
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None


class SeveralRelease(Request, frozen=True, kw_only=True):
    """Give several locks and slots back at once."""

    things: Annotated[
        tuple[str, ...],
        option("things", "the locks and slots to release: lock/merge, sem/builds", positional=True),
    ]
    token: Token = None


NOUN = Noun(
    name="several",
    calls="interlock.nouns.grants.calls:SeveralCalls",
    texts=("interlock.nouns.grants.several_text",),
    operations=(
        Operation(
            name="acquire",
            help="take several locks and slots at once: all of them, or none",
            request=SeveralAcquire,
            outcomes=(
                several.SeveralAcquired,
                several.SeveralBusy,
                several.SeveralDeadlock,
                several.SeveralFenced,
            ),
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
            outcomes=(several.SeveralReleased, several.SeveralNotOwner, several.SeveralFenced),
            needs="agent",
            call="several.release",
            spread="things",
            examples=("interlock release lock/merge sem/builds --agent ada --token 12",),
        ),
    ),
)
