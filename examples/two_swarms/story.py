"""Two swarms, a bus that is cut, executors that are killed: every request is answered once.

North asks, south answers.  Each has a store of its own, and a third store is the bus between them.
The executors of south are killed between any two steps of a request, the bus is away for a time,
and in the end each request has one answer and one effect, and all three records hold.

    python examples/two_swarms/story.py           # SQLite: the folder of the bus is moved away
    python examples/two_swarms/story.py redis     # a Redis of its own, behind a proxy that cuts
"""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import interlock
from interlock.testing.servers.proxy import Proxy
from interlock.testing.servers.redis import RedisServer

DEATHS = [
    ("before", "request.receive", "4: the request becomes a task of south"),
    ("after", "request.receive", "4"),
    ("after", "bus.remove", "5: its envelope is deleted from the bus"),
    ("after", "task.claim", "6: the executor claims the task"),
    ("in", "work", "the work, when its effect is stored"),
    ("after", "task.complete", "7: the task and its result are one commit"),
    ("after", "bus.post", "8: the result is on the bus"),
    ("after", "outbox.clear", "8, when south knows that it is there"),
]
STARTED: list["subprocess.Popen[str]"] = []


class Places(NamedTuple):
    """Where everything is, and how to cut and to heal the way to the bus."""

    north: str
    south: str
    bus: str
    effects: str
    cut: Callable[[], object]
    heal: Callable[[], object]


@contextmanager
def sqlite_places(folder: Path) -> Iterator[Places]:
    """Three files.  The bus has a folder, which can be moved away as if a disk was unplugged."""
    here, away = folder / "bus", folder / "unplugged"
    here.mkdir()
    yield Places(
        north=f"{folder}/north.db",
        south=f"{folder}/south.db",
        bus=f"{here}/bus.db",
        effects=f"{folder}/effects.db",
        cut=lambda: here.rename(away),
        heal=lambda: away.rename(here),
    )


@contextmanager
def redis_places(folder: Path) -> Iterator[Places]:
    """Three namespaces of one server.  The bus is reached through a proxy, which can be cut."""
    with RedisServer(folder / "redis") as server, Proxy("127.0.0.1", server.port) as proxy:
        yield Places(
            north=server.url("north"),
            south=server.url("south"),
            bus=proxy.through(server.url("bus")),
            effects=f"{folder}/effects.db",
            cut=proxy.cut,
            heal=proxy.heal,
        )


def main(engine: str = "sqlite") -> None:
    """The story."""
    logging.disable(logging.WARNING)  # that the bus does not answer is what we want to see
    begin = sqlite_places if engine == "sqlite" else redis_places
    with tempfile.TemporaryDirectory() as folder, begin(Path(folder)) as places:
        os.environ["INTERLOCK_KEYS_DIR"] = f"{folder}/keys"
        with closing(sqlite3.connect(places.effects)) as db, db:
            db.execute("CREATE TABLE executions (request TEXT)")
            db.execute("CREATE TABLE effects (request TEXT PRIMARY KEY, total INTEGER)")
        try:
            introduce(places)
            asked = [*deaths(places), *partition(places)]
            judge(places, asked)
        finally:
            for process in STARTED:
                process.kill()
                process.wait()


def introduce(places: Places) -> None:
    """Each swarm makes a key, puts a signed entry on the bus, and pins the other's key."""
    prints = {}
    for name, url in (("north", places.north), ("south", places.south)):
        with interlock.connect(url, agent="operator") as fleet:
            fleet.keys.new(name)
            registered = fleet.swarms.register(name, bus=places.bus, key=name)
            assert isinstance(registered, interlock.SwarmRegistered)
            prints[name] = registered.fingerprint
    for url, other in ((places.north, "south"), (places.south, "north")):
        with interlock.connect(url, agent="operator") as fleet:
            assert fleet.swarms.allow(other, key=prints[other])
    print("north and south have a key each, and pinned the other's; the bus is a third store")


def deaths(places: Places) -> list[str]:
    """For each point an executor that dies there; the next one finishes what it left."""
    print("\nan executor of south is killed")
    crew = [executor(places, when, verb) for when, verb, _ in DEATHS]  # they wait for a line
    asked: list[str] = []
    with (
        interlock.connect(places.north, agent="ada") as ada,
        interlock.connect(places.south, agent="coordinator") as coordinator,
    ):
        for process, (when, verb, step) in zip(crew, DEATHS, strict=True):
            asked.append(ask(ada, len(asked)))
            if verb not in ("request.receive", "bus.remove"):
                coordinator.requests.tend()  # another process of south may take the request in
            go(process)
            assert process.wait(60) == -signal.SIGKILL
            print(f"  {when:<6} {verb:<16} step {step}" if verb != "work" else f"  during {step}")
    return asked


def partition(places: Places) -> list[str]:
    """The bus is cut: both swarms go on, what they have to say waits, and nothing is lost."""
    with interlock.connect(places.north, agent="ada") as ada:
        asked = [ask(ada, 100)]
        with interlock.connect(places.south, agent="coordinator") as coordinator:
            coordinator.requests.tend()
        places.cut()
        print("\nthe bus is cut")
        asked += [ask(ada, number, spooled=True) for number in (101, 102)]
        print("  north: two more requests are made, and wait in its outbox")
        worker = executor(places, "after", "task.complete")
        go(worker)
        assert worker.wait(60) == -signal.SIGKILL
        print("  south: an executor finishes what it has, and its result waits in the outbox")
        places.heal()
        print("the bus is back")
    return asked


def judge(places: Places, asked: list[str]) -> None:
    """All requests are answered, each once; the three records are as they were written."""
    worker = executor(places, "never", "")
    go(worker)
    with interlock.connect(places.north, agent="coordinator") as coordinator:
        coordinator.requests.tend()  # any process of north posts what waits in its outbox
        for request in asked:
            answer = coordinator.requests.result(request, wait=60)
            assert isinstance(answer, interlock.RequestAnswered), answer
        record = coordinator.record.log(verb="request.complete", limit=10_000)
        ends = [event.thing or line.thing for line in record for event in line.events]
    worker.terminate()
    assert worker.wait(60) == 0
    runs = rows(places, "SELECT request FROM executions")
    assert sorted(rows(places, "SELECT request FROM effects")) == sorted(asked)
    assert sorted(ends) == sorted(f"request/{request}" for request in asked)
    print(f"\n{len(asked)} requests: each has one answer, one end in the record and one effect")
    print(f"  they were executed {len(runs)} times: the work of a killed executor is done again")
    for name, url in zip(("north", "south", "bus"), places[:3], strict=True):
        with interlock.connect(url, join=False) as fleet:
            verified = fleet.record.verify()
            assert verified, verified
            print(f"  record verify holds in {name}: {verified.entries} entries")


def ask(fleet: interlock.Fleet, number: int, *, spooled: bool = False) -> str:
    """A request to any agent of south that can add; without the bus it waits in the outbox."""
    sent = fleet.requests.send("south", "can:add", [number, 1])
    assert isinstance(sent, interlock.RequestSent), sent
    assert sent.spooled == spooled, sent
    return sent.request


def executor(places: Places, when: str, verb: str) -> "subprocess.Popen[str]":
    """A process of south that serves when it gets a line, and is killed at this point."""
    program = Path(__file__).with_name("executor.py")
    words = [sys.executable, str(program), places.south, places.effects, when, verb]
    STARTED.append(subprocess.Popen(words, stdin=subprocess.PIPE, text=True))
    return STARTED[-1]


def go(process: "subprocess.Popen[str]") -> None:
    """Let an executor begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.close()


def rows(places: Places, query: str) -> list[str]:
    """The requests that a query finds."""
    with closing(sqlite3.connect(places.effects)) as db:
        return [request for (request,) in db.execute(query)]


if __name__ == "__main__":
    main(*sys.argv[1:])
