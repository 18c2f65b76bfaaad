"""Programs that ask another swarm and answer its requests, and are killed; words name one."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.processes.lock_programs import Notes, say, wait

import interlock
from interlock.clock import SystemClock
from interlock.nouns.requests import posting
from interlock.nouns.requests.serving import ServedRequest
from interlock.testing.faults import kill_at

WORK = "work"
"""The point in the middle of the work, which is no commit."""
_in_work: list[Callable[[], object]] = []


def deadly(when: str, verb: str, name: str, *arguments: str) -> None:
    """Run another program, and be killed before or after its first commit of this verb."""
    connect = interlock.connect

    def connected(*words: Any, **more: Any) -> Any:
        fleet = connect(*words, **more)
        if verb != WORK:
            kill_at(fleet.context, verb, when)  # type: ignore[arg-type]
        return fleet

    if verb == WORK:
        _in_work.append(lambda: os.kill(os.getpid(), signal.SIGKILL))
    interlock.connect = connected
    globals()[name](*arguments)


def shifted(file: str, name: str, *arguments: str) -> None:
    """Run another program, whose wall clock is ahead by the seconds in a file."""
    shared = os.open(file, os.O_RDONLY)
    SystemClock.wall = staticmethod(lambda: time.time() + float(os.pread(shared, 32, 0)))
    globals()[name](*arguments)


def through(bus: str, name: str, *arguments: str) -> None:
    """Run another program, which reaches the bus by another URL, and may find it away."""
    os.environ["INTERLOCK_BUS"] = bus
    logging.getLogger("interlock").addHandler(logging.NullHandler())
    globals()[name](*arguments)


def send(url: str, agent: str, *names: str) -> None:
    """Send requests under these names; print the id of each, and whether it waits for the bus."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        for number, name in enumerate(names):
            sent = fleet.requests.send("south", "can:add", [1, 2 + number], id=name)
            match sent:
                case interlock.RequestSent():
                    say(sent.request, "spooled" if sent.spooled else "posted")
                case _:
                    say(type(sent).__name__)


def probe(url: str, agent: str) -> None:
    """For each line send a request, and print whether it went through."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        say("ready")
        while wait():
            say(type(fleet.requests.send("south", "can:add", [1, 2])).__name__)


def ask(url: str, agent: str, name: str) -> None:
    """Ask under a name, or go on with what was asked under it, and print the result."""
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        found: object = fleet.requests.send("south", "can:add", [1, 2], id=name, wait=60)
        say(found.result if isinstance(found, interlock.RequestAnswered) else found)


def serve(url: str, agent: str, effects: str, paced: str = "") -> None:
    """Execute requests; each has its effect once, and each execution is noted.

    With a pace it prints each request, and goes on after a line.
    """
    notes = Notes(f"{effects}/executions")

    def add(request: ServedRequest) -> object:
        notes.write(request.id, request.attempt, agent)
        if paced:
            say(request.id)
            wait()
        os.close(os.open(f"{effects}/{request.id}", os.O_CREAT | os.O_RDWR))
        for die in _in_work:
            die()
        return sum(request.payload)

    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        say("ready")
        fleet.requests.serve(add, can=["add"], ttl=1)


def tend(url: str, agent: str) -> None:
    """For each line do what is due for all requests of a swarm, as a coordinator does.

    Its outbox is drained by another one soon after its death.
    """
    posting.DRAINER_TTL = 1.0
    with interlock.connect(url, agent=agent, ttl=30) as fleet:
        say("ready")
        while wait():
            say(fleet.requests.tend())


def main() -> None:
    """Run the program that the first word names."""
    globals()[sys.argv[1]](*sys.argv[2:])
