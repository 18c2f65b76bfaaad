"""The commands for hosts of coding agents: hook, prime and setup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.safe_text import printable
from interlock.core.validate import closest_names
from interlock.errors import BadInput
from interlock.faces.cli.command import answer, write
from interlock.faces.cli.connect import connected, proven_person
from interlock.faces.cli.parse import Parsed
from interlock.faces.hooks.hosts import HOSTS

if TYPE_CHECKING:
    from interlock.nouns.fleet.hosts_noun import (
        HookRequest,
        PrimeRequest,
        SetupRequest,
        WakeRequest,
    )


def hook(parsed: Parsed) -> int:
    """Answer one event; the entry point calls ``hooks.main`` itself where it can."""
    from interlock.faces.hooks.main import main

    request: HookRequest = parsed.request
    _known(request.host, "git")
    return main([request.host, *([request.event] if request.event else [])])


def prime(parsed: Parsed) -> int:
    """Print the primer."""
    from interlock.faces.hooks.primer import primer, tokens
    from interlock.nouns.fleet.hosts_noun import Primed

    request: PrimeRequest = parsed.request
    if request.host is not None:
        _known(request.host, "agents")
    with connected(parsed) as fleet:
        text = primer(fleet, request.host or "")
        agent = fleet.context.agent or ""
    if not parsed.common.json:
        write(f"{text}\n".encode())  # an outcome in words has no lines of its own
        return 0
    return answer(parsed, Primed(agent=agent, text=text, tokens=tokens(text)))


def wake(parsed: Parsed) -> int:
    """Write to the inbox of an agent."""
    from interlock.core import validate
    from interlock.faces.hooks.git import agent_here
    from interlock.faces.hooks.wake import wake

    request: WakeRequest = parsed.request
    with connected(parsed) as fleet:
        text = validate.text(request.say, "text", validate.REASON_LIMIT)
        sender = fleet.context.agent or agent_here() or proven_person()
        if text and not sender:
            raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
        return answer(parsed, wake(fleet, validate.agent_name(request.name), text, sender))


def setup(parsed: Parsed) -> int:
    """Show the change of a host's files, or make it."""
    from msgspec.structs import replace

    from interlock.faces.hooks.setup import Setup
    from interlock.nouns.fleet.hosts_noun import SetupShown

    request: SetupRequest = parsed.request
    _known(request.host, "agents", "git")
    work = Setup(request.host, remove=request.remove, monitor=request.monitor)
    outcome = work.write() if request.yes else work.show()
    if isinstance(outcome, SetupShown) and not parsed.common.json:
        for line in outcome.diff.splitlines():
            write(f"{printable(line)}\n".encode())
        outcome = replace(outcome, diff="")
    return answer(parsed, outcome)


def _known(host: str, *also: str) -> None:
    names = (*HOSTS, *also)
    if host not in names:
        near = closest_names(host, names, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"no host is called {host!r:.40}{meant}; known: {', '.join(names)}")
