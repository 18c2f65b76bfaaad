"""The declaration of keys."""

from typing import Annotated, get_args

from interlock.nouns.swarms.results import KeyList, KeyMade, RevokeOutcome, RotateOutcome
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request, option

Key = Annotated[str, option("text", "the name of the key", positional=True)]


class KeyNew(Request, frozen=True, kw_only=True):
    """Make a key."""

    name: Annotated[
        str, option("text", "its name: letters, digits, '_', '.' and '-'", positional=True)
    ]


class KeysList(Request, frozen=True, kw_only=True):
    """The keys of this user."""


class KeyRotate(Request, frozen=True, kw_only=True):
    """Replace a key."""

    name: Key


class KeyRevoke(Request, frozen=True, kw_only=True):
    """End a key."""

    name: Annotated[
        str, option("text", "the key: its name here, or its fingerprint", positional=True)
    ]
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""


def _on_this_host(_request: Request) -> bool:
    """Keys are files of the host that carries the request out."""
    return True


NOUN = Noun(
    name="key",
    help="private keys that sign for a swarm and in the record",
    calls="interlock.nouns.swarms.calls:KeyCalls",
    texts=("interlock.nouns.swarms.text",),
    operations=(
        Operation(
            name="key new",
            help="make an Ed25519 key in a file that only you may read",
            request=KeyNew,
            outcomes=(KeyMade,),
            needs="nothing",
            call="keys.new",
            local=_on_this_host,
            in_shell="interlock.faces.cli.key:new",
            examples=("interlock key new ops",),
        ),
        Operation(
            name="key list",
            help="list your keys: fingerprint, age, and whether one is due for rotation",
            request=KeysList,
            outcomes=(KeyList,),
            needs="nothing",
            reads=True,
            call="keys.list",
            local=_on_this_host,
            in_shell="interlock.faces.cli.key:list_keys",
        ),
        Operation(
            name="key rotate",
            help="replace a key; in a swarm the old one still counts for a week",
            request=KeyRotate,
            outcomes=(RotateOutcome,),
            needs="nothing",
            call="keys.rotate",
            local=_on_this_host,
            in_shell="interlock.faces.cli.key:rotate",
            examples=("interlock key rotate ops",),
        ),
        Operation(
            name="key revoke",
            help="end a key of this swarm, or of its agents, at once and permanently",
            request=KeyRevoke,
            outcomes=get_args(RevokeOutcome),
            needs="agent",
            call="keys.revoke",
            local=_on_this_host,
            takes=True,
            examples=("interlock key revoke ops@20261116T135105Z 'the laptop was lost'",),
        ),
    ),
)
