"""Checks of installed hooks for ``doctor``: each one gets a real event, and has to refuse it.

A path is reserved for a moment, and the hook gets an edit of that path by another agent, as from
its host.  A hook that does not deny it protects nothing.

The host's file may be that of any repository.  So its command is compared with what ``setup`` of
this installation writes, and that is run, without a shell; another command is not tried.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.core.safe_text import one_line
from interlock.errors import InterlockError
from interlock.faces.hooks.git_doctor import git_hook_findings, untried
from interlock.faces.hooks.hosts import BEFORE, HOSTS, Host
from interlock.faces.hooks.setup import installed, own_command
from interlock.nouns.fleet.doctor import bad, error_finding, ok, warn
from interlock.nouns.reservations import repository

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.store import Finding

_PATIENCE = 40.0
_CAVEATS = {
    "claude": "versions before 2.1.295 let an edit through if the hook cannot be started",
    "codex": "Codex skips hooks that you have not trusted: see /hooks there",
    "copilot": "a hook that takes longer than 30 s lets an edit through",
    "gemini": "Gemini CLI lets an edit through if the hook fails",
}


_NOT_WRITTEN = os.path.join("", ".claude", "settings.json")
"""What Claude Code reads, too, and people share in a repository."""


def hook_findings(fleet: Fleet, folder: str = "") -> Iterator[Finding]:
    """A finding for each installed hook, and one for what its host cannot promise."""
    from interlock.client import begun

    here, wanted = folder or os.getcwd(), False
    said: list[Finding] = []
    for host in HOSTS.values():
        try:
            found = installed(host, here)
        except InterlockError as error:  # a link, or no file
            yield error_finding(f"hook {host.name}", error)
            continue
        wanted = wanted or bool(found)
        for path, line in found:
            try:
                if (finding := _not_ours(host, path, line)) is not None:
                    if finding not in said:  # of several lines in one file
                        said.append(finding)
                        yield finding
                    continue
                with begun(fleet.store, "doctor", join=False, shared=True) as own:
                    yield _probe(own, host, path)
            except (InterlockError, OSError) as error:
                known = error if isinstance(error, InterlockError) else InterlockError(str(error))
                yield error_finding(f"hook {host.name}", known)
        if found and host.name in _CAVEATS:
            yield warn(f"hook {host.name}", _CAVEATS[host.name], "the git hooks catch the rest")
        if found and host.name == "codex":
            yield from _sandbox(fleet)
    yield from git_hook_findings(fleet, wanted=wanted)


def _not_ours(host: Host, path: str, line: str) -> Finding | None:
    """The finding for a command that ``setup`` of this installation does not write."""
    what, words = f"hook {host.name}", f" hook {host.name} {_before(host)}"
    if line == own_command() + words:
        return None
    if line != f"interlock{words}":  # as setup writes it into a tracked file
        again = f"run 'interlock setup {host.name} --yes' again"
        if path.endswith(_NOT_WRITTEN):
            again = "setup leaves that file alone: correct or remove the line there"
        return warn(what, untried(path), again)
    program, found = shlex.split(own_command())[0], shutil.which("interlock")
    if found is not None and os.path.realpath(found) == os.path.realpath(program):
        return None
    fact = f"{path}: 'interlock' on PATH is {found or 'not found'}, so it was not tried"
    return warn(what, fact, f"put {os.path.dirname(program)} first on the PATH of the host")


def _probe(own: Fleet, host: Host, path: str) -> Finding:
    place = repository.find()
    name = f".interlock-probe-{os.urandom(4).hex()}"
    got = own.reservations.reserve(name, ttl=60, reason="doctor tries the hook")
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            [*shlex.split(own_command()), "hook", host.name, _before(host)],
            input=json.dumps(_payload(host, place.root, name)),
            capture_output=True,
            text=True,
            cwd=place.root,
            timeout=_PATIENCE,
            check=False,
            env={**_environment(), "INTERLOCK_AGENT": "doctor-probe"},
        )
    except subprocess.TimeoutExpired:
        return bad(f"hook {host.name}", f"{path}: no answer in {_PATIENCE:g} s", "see the store")
    finally:
        own.reservations.unreserve(token=got.token if got else None, all=not got)
    if _denies(done.stdout, name):
        return ok(f"hook {host.name}", f"a deny holds ({path})")
    said = one_line(done.stdout.strip() or done.stderr.strip() or "nothing")[:120]
    fact = f"{path}: an edit of a reserved file got the answer {said!r}, exit {done.returncode}"
    return bad(f"hook {host.name}", fact, f"run 'interlock setup {host.name} --yes' again")


def _payload(host: Host, root: str, name: str) -> dict[str, object]:
    tool = min(host.edits)
    arguments: dict[str, str] = {"file_path": f"{root}/{name}"}
    if host.name == "codex":
        tool, arguments = "apply_patch", {"command": f"*** Add File: {name}\n+x\n"}
    return {
        "session_id": "doctor-probe",
        "conversation_id": "doctor-probe",
        "hook_event_name": _before(host),
        "cwd": root,
        "workspace_roots": [root],
        "tool_name": tool,
        "tool_use_id": "doctor",
        "tool_input": arguments,
    }


def _before(host: Host) -> str:
    return next(event for event, means in host.events.items() if means == BEFORE)


def _denies(text: str, name: str) -> bool:
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    said = json.dumps(answer)
    return '"deny"' in said and name in said


def _environment() -> dict[str, str]:
    """The variables that a host passes on, without those of a session around ``doctor``."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("INTERLOCK_SESSION", "INTERLOCK_HOOK")
    }


def _sandbox(fleet: Fleet) -> Iterator[Finding]:
    path = str(getattr(fleet.store, "path", ""))
    root = repository.find().root
    if not path:
        fact = "commands in its sandbox cannot reach a store across a network"
        yield warn("hook codex", fact, "let the model use the MCP server, which runs outside")
    elif not os.path.realpath(path).startswith(os.path.realpath(root) + "/"):
        folder = os.path.dirname(path)
        remedy = f"add {folder} to sandbox_workspace_write.writable_roots"
        yield warn("hook codex", f"its sandbox cannot write {path}", remedy)
