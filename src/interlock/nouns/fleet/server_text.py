"""What the commands about servers answer, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago

if TYPE_CHECKING:
    from interlock.nouns.fleet import server_noun as outcomes
    from interlock.runtime.text import Paint, Text


def _serving(outcome: outcomes.Serving, _: Paint) -> str:
    return f"serving {_with_token(outcome)} as {outcome.agent}; stop with Ctrl-C"


def _made(outcome: outcomes.TokenMade, _: Paint) -> str:
    return (
        f"{outcome.token}\n"
        f"role {outcome.role}, for {outcome.agent}; it is not shown again, and"
        f" {command(f'interlock up --revoke {quote(outcome.id)}')} ends it"
    )


def _revoked(outcome: outcomes.TokenRevoked, _: Paint) -> str:
    return f"revoked {outcome.id}; servers refuse it within seconds"


def _no_token(outcome: outcomes.NoToken, _: Paint) -> str:
    return f"there is no token {outcome.id}; 'interlock up --list-tokens' lists them"


def _tokens(outcome: outcomes.TokenList, _: Paint) -> str:
    lines = [
        f"{each.id}  {each.role:5}  {each.agent}, made by {each.by} {ago(each.at)}"
        for each in outcome.tokens
    ]
    return "\n".join(lines) or "no tokens; 'interlock up --token act' makes one"


def _address(outcome: outcomes.ServerAddress, _: Paint) -> str:
    return _with_token(outcome)


def _with_token(outcome: outcomes.Serving | outcomes.ServerAddress) -> str:
    return f"{outcome.url}?token={outcome.token}" if outcome.token else outcome.url


def _no_server(_: outcomes.NoServer, __: Paint) -> str:
    return "no server of this store runs; start one with 'interlock up'"


TEXTS: dict[str, Text] = {
    "Serving": _serving,
    "TokenMade": _made,
    "TokenRevoked": _revoked,
    "NoToken": _no_token,
    "TokenList": _tokens,
    "ServerAddress": _address,
    "NoServer": _no_server,
}
