"""Programs of build servers that share a git remote; each has a cache of its own."""

from __future__ import annotations

import os
import pwd
import sys
import time
from typing import Any

from tests.processes.task_programs import say

import interlock
from interlock.errors import StoreRefused
from interlock.nouns.tasks.task_outcomes import Claimed, TaskCompleted
from interlock.store import Put
from interlock.stores import open_store
from interlock.testing.conformance.place import txn


def drain(url: str, cache: str, name: str, seconds: str) -> None:
    """Claim and complete tasks until there are none, or the time is up; say how many."""
    os.environ["XDG_CACHE_HOME"] = cache
    with interlock.connect(url, agent=name, ttl=60) as fleet:
        say("ready")
        sys.stdin.readline()
        ends, done = time.monotonic() + float(seconds), 0
        while time.monotonic() < ends and isinstance(got := fleet.tasks.next(), Claimed):
            done += isinstance(fleet.tasks.complete(got.task, token=got.token), TaskCompleted)
        say(done)


def hold(url: str, cache: str, ttl: str) -> None:
    """Hold a lock while the session lives."""
    os.environ["XDG_CACHE_HOME"] = cache
    with interlock.connect(url, agent="ada", ttl=float(ttl)) as fleet:
        held: Any = fleet.locks.acquire("deploy")
        say(type(held).__name__, held.token)
        sys.stdin.readline()
        say(type(fleet.locks.release("deploy", token=held.token)).__name__)


def another_user(url: str, cache: str, own: str) -> None:
    """Become another user, use a cache that is not its own, and then one that is."""
    _commit(url)  # imports what the other user may not read
    os.setgroups([])
    os.setuid(pwd.getpwnam("nobody").pw_uid)
    for folder in (cache, own):
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            _commit(url)
        except StoreRefused as error:
            say(error)
        else:
            say("committed")


def _commit(url: str) -> None:
    store = open_store(url)
    store.commit(txn(Put("a", b"1")))
    store.close()


def main() -> None:
    """Run the program that the first word names."""
    globals()[sys.argv[1]](*sys.argv[2:])
