"""Programs that run out of file descriptors; see ``tests/test_descriptors.py``."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.processes.lock_programs import say

import interlock
import interlock.client
from interlock.errors import OutOfDescriptors

MOST = 24
"""Free descriptors that the calls of a client need at most."""


@contextmanager
def free(number: int) -> Iterator[None]:
    """Leave only so many descriptors free."""
    kept = []
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for fd in kept[:number]:
            os.close(fd)
        del kept[:number]
    try:
        yield
    finally:
        for fd in kept:
            os.close(fd)


def limit() -> None:
    """Allow the process few descriptors, so that they are soon used up."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def starve(url: str) -> None:
    """Connect and use everything, with more and more descriptors; nothing else may be raised."""
    limit()
    refused = 0
    for number in range(MOST):
        with free(number):
            try:
                use(url)
            except OutOfDescriptors:
                refused += 1
    assert refused > 0
    use(url)
    say(f"refused {refused}")


def use(url: str) -> None:
    """Use the store in all ways that need descriptors."""
    with interlock.connect(url, agent="ada") as fleet:
        fleet.locks.acquire("merge")
        fleet.locks.acquire("merge", wait=0.01)
        with fleet.tasks.watch() as changes:
            changes.take(0)
        fleet.locks.release("merge")


def starve_in_use(url: str) -> None:
    """Lose the descriptors while connected: calls are refused by name, and the end works."""
    limit()
    for number in range(MOST):
        fleet = interlock.connect(url, agent="ada")
        fleet.locks.acquire("merge")
        with free(number):
            with suppress(OutOfDescriptors):
                fleet.locks.list()
            with suppress(OutOfDescriptors):
                fleet.locks.acquire("deploy", wait=0.01)
            with suppress(OutOfDescriptors):
                fleet.tasks.list()
            with suppress(OutOfDescriptors):
                fleet.messages.send("bea", "hello")
            with suppress(OutOfDescriptors), fleet.observe() as events:
                events.take(0)
            with suppress(OutOfDescriptors), fleet.tasks.subscribe() as told:
                told.take(0)
            fleet.close()
        with interlock.connect(url, agent="bea") as other:
            assert isinstance(other.locks.acquire("merge"), interlock.Acquired), number
            other.locks.release("merge")
    say("closed")


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
