"""The tokens and the addresses of servers, in the store that they serve: all its servers know them.

A token is ``il_ID_SECRET``.  The store has the hash of the secret, which has 256 random bits, so
that a plain SHA-256 hides it.  A server that runs has a liveness key with its address, by which
``interlock open`` finds it.
"""

from __future__ import annotations

import hmac
import os
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision, Write
from interlock.errors import BadInput
from interlock.nouns.fleet.server_noun import (
    NoToken,
    TokenList,
    TokenMade,
    TokenRevoked,
    TokenView,
)
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range

Role: TypeAlias = Literal["read", "act", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""What a caller of a server may do; each role includes those before it."""
_START = "il"
_ID_BYTES, _SECRET_BYTES = 6, 32
_PARTS = 3


class StoredToken(Struct, frozen=True, kw_only=True):
    """A token as the store has it."""

    role: Role
    agent: str
    hash: str
    by: str
    at: float


class ServerPlace(Struct, frozen=True, kw_only=True):
    """A server that runs: its address, and the agent that its page acts as.

    ``proof`` shows its user that it is the user's own, so that the token is given to no other.
    """

    url: str
    host: str
    pid: int
    agent: str
    proof: str = ""


_TOKEN = codec.Decoder(StoredToken)
_PLACE = codec.Decoder(ServerPlace)


def decode_token(item: Item | None) -> StoredToken | None:
    """A token."""
    return _TOKEN.read_if_present(item)


def make_token(runner: Runner, actor: Actor, role: str, agent: str) -> Op[TokenMade]:
    """Make a token that speaks for an agent; without a name, for one of its own."""
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise BadInput(f"there is no role {validate.quote(role)}; the roles are {known}")
    id_, secret = os.urandom(_ID_BYTES).hex(), os.urandom(_SECRET_BYTES).hex()
    agent = validate.own_agent_name(agent or f"token-{id_}", proven=actor.agent)
    key, now = keys.server_token(id_), runner.clock.wall()
    stored = StoredToken(
        role=role,
        agent=agent,
        hash=codec.digest(secret.encode()),
        by=actor.agent,
        at=now,
    )

    def deciding() -> DecideOp[TokenMade]:
        yield (key,)
        made = TokenMade(id=id_, role=role, agent=agent, token=f"{_START}_{id_}_{secret}")
        thing = f"token/{id_}"
        return Decision(outcome=made, verb="token.make", thing=thing, puts=(Write(key, stored),))

    return (yield from runner.change(deciding, actor)).outcome


def revoke_token(runner: Runner, actor: Actor, id_: str) -> Op[TokenRevoked | NoToken]:
    """Delete a token."""
    key = keys.server_token(validate.name(id_, "id of the token"))

    def deciding() -> DecideOp[TokenRevoked | NoToken]:
        if (yield (key,)).items[key] is None:
            return Decision(outcome=NoToken(id=id_))
        done = TokenRevoked(id=id_)
        return Decision(outcome=done, verb="token.revoke", thing=f"token/{id_}", deletes=(key,))

    return (yield from runner.change(deciding, actor)).outcome


def list_tokens() -> Op[TokenList]:
    """All tokens, without their secrets."""
    found = []
    for item in (yield from every(keys.SERVER_TOKENS)):
        if (token := readable(decode_token, item)) is not None:
            id_ = keys.server_token_of(item.key)
            found.append(
                TokenView(id=id_, role=token.role, agent=token.agent, by=token.by, at=token.at)
            )
    return TokenList(tokens=tuple(found))


def token_id(text: str) -> str:
    """The id of a token, by which its owner lists and revokes it."""
    return text.split("_")[1]


def find_token(text: str) -> Op[StoredToken | None]:
    """The token that a caller presents, if it is one."""
    parts = text.split("_")
    if len(parts) != _PARTS or parts[0] != _START or len(parts[1]) != 2 * _ID_BYTES:
        return None
    key = keys.server_token(parts[1])
    stored = readable(decode_token, (yield Read(key))[key])
    presented = codec.digest(parts[2].encode("utf-8", "replace"))
    if stored is None or not hmac.compare_digest(stored.hash, presented):
        return None
    return stored


def running_servers() -> Op[list[ServerPlace]]:
    """The servers that run now."""
    page = Range(keys.LIVE_SERVERS)
    found = [readable(_PLACE.read, item) for item in (yield Read(page)).ranges[page]]
    return [each for each in found if each is not None]
