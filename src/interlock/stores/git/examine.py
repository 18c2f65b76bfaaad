"""What ``doctor`` looks at in a store on a git remote, one look a function."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.store import Finding, finding
from interlock.stores.sqlite import examine as sqlite

if TYPE_CHECKING:
    from interlock.stores.git.store import GitStore

LEAST_GIT = (2, 30)
SLOW, SLOW_SSH = 1.0, 0.25
"""Seconds of a look that is too slow; with a connection that is kept it is one session of ssh."""
LARGE = 200 << 20
_SECONDS = 30.0


def findings(store: GitStore) -> Iterator[Finding]:
    """Every look, in the order in which one builds on the other."""
    yield _git(store)
    yield _remote(store)
    yield from _locks(store)
    yield _durability(store)
    yield _history(store)
    yield from sqlite.replica_findings(store)


def _git(store: GitStore) -> Finding:
    said = store.repository.run("--version", limit=_SECONDS).out.decode()
    found = re.search(r"(\d+)\.(\d+)", said)
    version = tuple(map(int, found.groups())) if found else (0, 0)
    if version < LEAST_GIT:
        fact = f"{said.strip() or 'no git'} is too old for this store"
        return finding("git", fact, "install git 2.30 or newer", wrong="bad")
    return finding("git", said.strip().removeprefix("git version "))


def _remote(store: GitStore) -> Finding:
    began = time.monotonic()
    store.repository.look(_SECONDS)
    took = time.monotonic() - began
    fact = f"{store.address.shown} answers within {took * 1000:.0f} ms"
    remedy = "use a remote that is near; every commit takes several such answers"
    if store.address.remote.startswith("ssh:") and took > SLOW_SSH:
        remedy += (
            "; or, at the remote, let the shell of its user start faster: its start-up file"
            " (~/.bashrc) runs for every command of git, and is to return at once for commands"
        )
        return finding("remote", fact, remedy)
    if took > SLOW:
        return finding("remote", fact, remedy)
    return finding("remote", fact)


def _locks(store: GitStore) -> Iterator[Finding]:
    """The locks that a killed git left, and that no change removes."""
    locks = store.repository.left_locks
    if left := locks.left():
        names = ", ".join([os.path.relpath(path, store.address.file) for path in left])
        fact = f"{store.address.shown} is locked by what a git left there: {names}"
        yield finding("locks", fact, locks.command(left), wrong="bad")


def _durability(store: GitStore) -> Finding:
    if store.capabilities.durability == "power loss":
        return finding("durability", "a commit survives a power cut of the remote")
    fact = "git syncs no push: a power cut of the remote may take the last commits back"
    if place := store.address.file:
        return finding(
            "durability", fact, f"git --git-dir={shlex.quote(place)} config core.fsync all"
        )
    remedy = "on the server: git config core.fsync all in the repository; hosted ones do their own"
    return finding("durability", fact, remedy)


def _history(store: GitStore) -> Finding:
    known = store.info()
    size = known["cache_bytes"]
    fact = f"the copy of the branch here has {int(str(size)) / 1e6:.1f} MB"
    if isinstance(size, int) and size > LARGE:
        folder = os.path.dirname(store.path)
        remedy = f"stop the agents of this host, then rm -r {folder}: it is made again, smaller"
        return finding("history", fact, remedy)
    if str(known["history"]).startswith("whole"):
        fact += "; the remote forbids to shorten it, so it grows"
        remedy = "in the remote: git config receive.denyNonFastForwards false; or protect it less"
        return finding("history", fact, remedy)
    return finding("history", fact)
