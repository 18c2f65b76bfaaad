"""Agent cards: what a caller of another framework learns about the fleet, an agent, or a skill.

A card has the fields of both versions of the protocol (``a2a_wire.py``), so that clients of either
find the address and the token that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from interlock.core.validate import ALL_ABILITIES
from interlock.faces.http.a2a_wire import Json
from interlock.version import __version__

PATH = "/.well-known/agent-card.json"
MODES = ["text/plain", "application/json"]
_FLEET = (
    'A fleet of agents. Name a skill in the metadata of a message, as in {"skill": "..."}, and an'
    " agent that has it does the work."
)
_AGENT = "An agent of a fleet. Any agent of the fleet with the same ability may do the work."
_SKILL = "The agents of a fleet that have this ability: one of them does the work."
_STRANGER = " With a token, GetExtendedAgentCard lists its skills."
_NAMED_AGENTS = 5


class CardAddress(NamedTuple):
    """What an address stands for: the fleet, one agent of it, or one skill."""

    agent: str = ""
    skill: str = ""

    @property
    def path(self) -> str:
        """Its address on the server."""
        if self.agent:
            return f"/a2a/agents/{quote(self.agent)}"
        return f"/a2a/skills/{quote(self.skill)}" if self.skill else "/a2a"

    @property
    def name(self) -> str:
        """Its name for people."""
        if self.agent:
            return f"agent {self.agent}"
        return f"skill {self.skill}" if self.skill else "fleet"


def card(
    place: CardAddress, base: str, skills: Mapping[str, Iterable[str]] | None, *, closed: bool
) -> Json:
    """The card of a place; ``closed`` if every request needs a token, no skills for a stranger."""
    url = base + place.path
    about = _AGENT if place.agent else _SKILL if place.skill else _FLEET
    found: Json = {
        "name": f"Interlock {place.name}",
        "description": about if skills is not None else about + _STRANGER,
        "version": __version__,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version}
            for version in ("1.0", "0.3")
        ],
        "protocolVersion": "0.3.0",
        "url": url,
        "preferredTransport": "JSONRPC",
        "capabilities": {
            "streaming": False,
            "pushNotifications": False,
            "extendedAgentCard": True,
            "stateTransitionHistory": False,
        },
        "supportsAuthenticatedExtendedCard": True,
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [
            _entry(each, agents)
            for each, agents in sorted((skills or {}).items())
            if each != ALL_ABILITIES
        ],
    }
    return {**found, **_SECURITY} if closed else found


_SECURITY: Json = {
    "securitySchemes": {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "httpAuthSecurityScheme": {"scheme": "Bearer"},
        }
    },
    "securityRequirements": [{"schemes": {"token": {"list": []}}}],
    "security": [{"token": []}],
}


def _entry(ability: str, agents: Iterable[str]) -> Json:
    """An ability as a skill."""
    known = sorted(agents)
    named = ", ".join(known[:_NAMED_AGENTS])
    more = f" and {len(known) - _NAMED_AGENTS} more" if len(known) > _NAMED_AGENTS else ""
    return {
        "id": ability,
        "name": ability,
        "description": f"Work that requires {ability}; agents that can do it now: {named}{more}.",
        "tags": list(dict.fromkeys([ability, *ability.split("/")])),
    }
