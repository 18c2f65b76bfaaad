"""Checks of the git hooks for ``doctor``: are they installed, do they run, do they refuse.

A path is reserved for a moment, and the command of the script is run as the script runs it, with a
commit or a push of that path by another agent.  A hook that was there before does not run, and the
commit is made in a folder of objects of its own, so that the repository stays as it is.  A script
that this installation did not write is not tried: its lines may do anything.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock import git_command
from interlock.core.safe_text import one_line
from interlock.errors import InterlockError
from interlock.faces.hooks.git import (
    BEFORE,
    MARK,
    NAMES,
    git_answer,
    read_hook,
    script,
    tracked_store_files,
)
from interlock.faces.hooks.setup import own_command
from interlock.nouns.fleet.doctor import bad, error_finding, ok, warn
from interlock.nouns.merges.store_files import named_store_files, way_out

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.store import Finding

_PATIENCE = 40.0
_INSTALL = "interlock setup git --yes"
_ZERO = "0" * 40
_AUTHOR = {
    f"GIT_{role}_{part}": "doctor" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
}


def tracked_findings() -> Iterator[Finding]:
    """A finding if git tracks files of a store: a checkout replaces the live one with them."""
    try:
        tracked = tracked_store_files(".")
    except OSError as error:
        yield error_finding("tracked files", InterlockError(str(error)))
    else:
        if tracked:
            fact = f"git tracks {named_store_files(tracked)}"
            yield bad("tracked files", fact, f"run: {way_out(tracked)}; then commit that")


def git_hook_findings(fleet: Fleet, *, wanted: bool) -> Iterator[Finding]:
    """A finding for each git hook of the worktree.

    If ``setup git`` was never run there are none, unless they are ``wanted``: a host has hooks.
    """
    root = git_answer(".", "rev-parse", "--show-toplevel")
    if not root:
        return
    folder = os.path.join(root, git_answer(root, "rev-parse", "--git-path", "hooks"))
    paths = {name: os.path.join(folder, name) for name in NAMES}
    texts = {}
    for name, path in paths.items():
        try:
            texts[name] = read_hook(path) or ""
        except InterlockError as error:
            yield error_finding(f"git {name}", error)
    if not wanted and not any(_calls_us(text, name) for name, text in texts.items()):
        return
    for name, text in texts.items():
        try:
            yield _finding(fleet, root, name, paths[name], text)
        except (InterlockError, OSError, subprocess.SubprocessError) as error:
            known = error if isinstance(error, InterlockError) else InterlockError(str(error))
            yield error_finding(f"git {name}", known)


def _calls_us(text: str, name: str) -> bool:
    return f" hook git {name}" in text


def _finding(fleet: Fleet, root: str, name: str, path: str, text: str) -> Finding:
    what = f"git {name}"
    if not _calls_us(text, name):
        fact = f"{path} is a hook of another tool"
        if not text:
            fact = f"not installed, so a {name[4:]} of a reserved file is not refused"
        elif os.path.exists(path + BEFORE):
            fact = f"another tool has replaced our hook {path}"
        remedy = f"run '{_INSTALL}'" + (", which runs it, too" if text else "")
        if managed := git_answer(root, "config", "core.hooksPath"):  # setup leaves that alone
            remedy = f"add this line to {name} in {managed}: {own_command()} hook git {name}"
        return warn(what, fact, remedy)
    if not os.access(path, os.X_OK):
        remedy = f"run: chmod +x {shlex.quote(path)}"
        return bad(what, f"{path} is not executable, so git skips it", remedy)
    if MARK not in text:
        fact = f"{path} of another tool calls it; whether it refuses was not tried"
        return warn(what, fact, "commit a file that another agent has reserved to try it")
    if text != script(own_command(), name):
        fact = untried(path)
        remedy = f"move your own lines to {shlex.quote(path + BEFORE)}, then run '{_INSTALL}'"
        return warn(what, fact, remedy)
    return _tried(fleet, root, name, path)


def untried(path: str) -> str:
    """Why a hook in a file of the repository is not run: only what setup writes is."""
    return f"{path} is of another installation, or was changed, so it was not tried"


def _tried(fleet: Fleet, root: str, name: str, path: str) -> Finding:
    from interlock.client import begun

    reserved = f".interlock-probe-{os.urandom(4).hex()}"
    with (
        tempfile.TemporaryDirectory(prefix="interlock-") as folder,
        begun(fleet.store, "doctor", join=False, shared=True) as own,
    ):
        environment, given = _probe(root, folder, reserved, name)
        got = own.reservations.reserve(reserved, ttl=60, reason="doctor tries the hook")
        try:
            done = subprocess.run(  # noqa: S603 - ourselves
                [*shlex.split(own_command()), "hook", "git", name],
                cwd=root,
                env=environment,
                input=given,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        finally:
            own.reservations.unreserve(token=got.token if got else None, all=not got)
    if done.returncode and reserved in done.stderr:
        chained = os.access(path + BEFORE, os.X_OK)
        before = "; the hook that was there before runs after it" if chained else ""
        return ok(f"git {name}", f"a deny holds ({path}){before}")
    said = one_line(done.stderr.strip() or "nothing")[:120]
    fact = f"{path}: a {name[4:]} of a reserved file got {said!r}, exit {done.returncode}"
    return bad(f"git {name}", fact, f"run '{_INSTALL}' again")


def _probe(root: str, folder: str, path: str, name: str) -> tuple[dict[str, str], str]:
    """The environment and the input of a hook at a commit or a push of this path."""
    objects = git_answer(root, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    unset = ("INTERLOCK_SESSION", "INTERLOCK_OVERRIDE")
    environment = {
        **{key: value for key, value in os.environ.items() if key not in unset},
        **_AUTHOR,
        "INTERLOCK_AGENT": "doctor-probe",
        "GIT_INDEX_FILE": os.path.join(folder, "index"),
        "GIT_OBJECT_DIRECTORY": os.path.join(folder, "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
    }
    os.makedirs(environment["GIT_OBJECT_DIRECTORY"])

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603
            git_command.command(*words, folder=root),
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
        return done.stdout.strip()

    parents = []
    if head := git_answer(root, "rev-parse", "--verify", "-q", "HEAD^{commit}"):
        git("read-tree", head)
        parents = ["-p", head]
    blob = git("hash-object", "-w", "--stdin")
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    if name == "pre-commit":
        return environment, ""
    commit = git("commit-tree", git("write-tree"), *parents, "-m", "doctor")
    return environment, f"refs/heads/doctor {commit} refs/heads/doctor {_ZERO}\n"
