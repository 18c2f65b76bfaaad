"""What ``make swarms`` runs: ten swarms that ask each other, killed and cut off from their bus.

Each swarm is a process with a hundred agents and a store of its own; a second Redis is the bus of
all.  For a minute the agents send 300 requests a second.  During that the bus is killed and started
again, it is frozen for some seconds, and processes of swarms are killed and started again.

In the end the records are judged: each request that was sent has one intake, one completion, one
end and one effect (executors insert its id into a table where it is the key), or a person was
asked.  Then, without faults, each agent sends one request after the other for some seconds.

    python -m tools.swarms_load --swarms 3 --agents 10 --rate 30 --seconds 10
"""  # noqa: INP001 - a script

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from tools.swarms_judge import Busy, Measured, Verdict, judge, read, report
from tools.swarms_process import Plan, Share

import interlock
from interlock.bench.processes import read_line, write_line
from interlock.core import keys
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmAllowed, SwarmRegistered
from interlock.store import Range
from interlock.testing.servers.redis import RedisServer

CALM = 0.2
"""The first part of the time, in which nothing fails."""
HOPED = 5000
"""Requests a second that ten swarms are hoped to reach."""
_ROOT = Path(__file__).parent.parent
_TICKS = os.sysconf("SC_CLK_TCK")


class Load(Struct, frozen=True, kw_only=True):
    """What to run; times are in seconds.

    ``executors`` of the agents of each swarm execute ``at_once`` requests at once, each of which
    takes ``work``; ``cut`` is for how long the bus is dead, and frozen; ``settle`` is how long the
    last requests may take; ``full`` is for how long each agent sends one after the other.
    """

    swarms: int = 10
    agents: int = 100
    executors: int = 1
    at_once: int = 50
    rate: float = 300.0
    seconds: float = 60.0
    work: float = 0.05
    ttl: float = 60.0
    kills: int = 8
    cut: float = 8.0
    settle: float = 300.0
    full: float = 20.0
    seed: int = 1


class Swarms:
    """The homes of all swarms on one server, the bus on another, and a process for each swarm."""

    def __init__(self, load: Load, folder: str) -> None:
        self.load = load
        self.homes_server = RedisServer(f"{folder}/homes")
        self.bus_server = RedisServer(f"{folder}/bus")
        self.names = [f"swarm{number}" for number in range(load.swarms)]
        self.effects = {name: f"{folder}/{name}.effects" for name in self.names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._times = ""
        self._dead = {"swarms": 0.0, "bus": 0.0}
        self._keys = f"{folder}/keys"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Servers that are up, with swarms that know each other."""
        before = os.environ.get(key_files.FOLDER)
        os.environ[key_files.FOLDER] = self._keys
        try:
            with self.homes_server, self.bus_server:
                self._introduce()
                yield
        finally:
            for process in self.processes.values():
                process.kill()
                process.communicate()
            os.environ.pop(key_files.FOLDER)
            if before is not None:
                os.environ[key_files.FOLDER] = before

    @property
    def homes(self) -> dict[str, str]:
        """The homes by swarm."""
        return {name: self.homes_server.url(name) for name in self.names}

    @property
    def bus(self) -> str:
        """The bus of all."""
        return self.bus_server.url("bus")

    def _introduce(self) -> None:
        """Each swarm registers, and pins the keys of all others."""
        prints: dict[str, str] = {}
        with ExitStack() as stack:
            fleets: dict[str, interlock.Fleet] = {}
            for name, url in self.homes.items():
                fleet = fleets[name] = stack.enter_context(interlock.connect(url, agent="operator"))
                fleet.keys.new(name)
                registered = fleet.swarms.register(name, bus=self.bus, key=name)
                assert isinstance(registered, SwarmRegistered)  # noqa: S101 - all of it is new
                prints[name] = registered.fingerprint
                with closing(sqlite3.connect(self.effects[name])) as db:
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("CREATE TABLE executions (request TEXT)")
                    db.execute("CREATE TABLE effects (request TEXT PRIMARY KEY)")
            for name, fleet in fleets.items():
                for other in prints.keys() - {name}:
                    allowed = fleet.swarms.allow(other, key=prints[other])
                    assert isinstance(allowed, SwarmAllowed)  # noqa: S101

    def begin(self) -> float:
        """Start all processes; the time at which they begin to ask."""
        for name in self.names:
            self._start(name)
        for process in self.processes.values():
            read_line(process)
        begin = time.monotonic() + 0.2
        self._times = f"{begin} {begin + self.load.seconds}"
        for process in self.processes.values():
            write_line(process, self._times)
        return begin

    def spent(self) -> dict[str, float]:
        """Seconds of processors that swarms and servers have used."""
        swarms = sum(_spent(process.pid) for process in self.processes.values())
        homes, bus = self.homes_server.pid, self.bus_server.pid
        return {
            "swarms": self._dead["swarms"] + swarms,
            "homes": _spent(homes),
            "bus": self._dead["bus"] + _spent(bus),
        }

    def kill_bus(self) -> None:
        """Kill the server of the bus."""
        self._dead["bus"] += _spent(self.bus_server.pid)
        self.bus_server.kill()

    def kill(self, name: str) -> None:
        """Kill the process of a swarm, and start another one, which goes on at once."""
        self._dead["swarms"] += _spent(self.processes[name].pid)
        self.processes[name].kill()
        self.processes[name].communicate()
        self._start(name)
        write_line(self.processes[name], self._times)

    def _start(self, name: str) -> None:
        load = self.load
        plan = Plan(
            swarm=name,
            url=self.homes[name],
            peers=[other for other in self.names if other != name],
            agents=load.agents,
            executors=load.executors,
            at_once=load.at_once,
            rate=load.rate / load.swarms,
            work=load.work,
            ttl=load.ttl,
            effects=self.effects[name],
        )
        self.processes[name] = process = subprocess.Popen(
            [sys.executable, "-m", "tools.swarms_process"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        write_line(process, msgspec.json.encode(plan).decode())

    def end(self) -> list[Share]:
        """End all processes; what their callers saw."""
        outputs = [process.communicate(timeout=120)[0] for process in self.processes.values()]
        self.processes.clear()
        return [msgspec.json.decode(each.splitlines()[-1], type=Share) for each in outputs]

    def unfinished(self) -> Counter[str]:
        """What still waits for a process: requests without an end, outboxes, envelopes."""
        found: Counter[str] = Counter()
        homes = (keys.REQUEST_DUE, keys.OUTBOX, keys.UNANSWERED)
        wanted = dict.fromkeys(self.homes.values(), homes)
        for url, folders in {**wanted, self.bus: (keys.BUS_REQUESTS, keys.BUS_RESULTS)}.items():
            pages = [Range(folder, limit=100) for folder in folders]
            with interlock.connect(url, join=False) as fleet:
                ranges = fleet.store.read(*pages).ranges
            found.update({page.prefix: len(ranges[page]) for page in pages if ranges[page]})
        return found


class Meter:
    """Seconds of processors that were used since it was made; those of the dead count, too."""

    def __init__(self, swarms: Swarms) -> None:
        self._swarms = swarms
        self._before = self._look()

    def spent(self) -> dict[str, float]:
        """By what used them, and of the machine; ``clock`` are the seconds that passed."""
        now = self._look()
        return {name: now[name] - self._before[name] for name in now}

    def busy(self) -> Busy:
        """How many processors were in use."""
        spent = self.spent()
        seconds = spent.pop("clock")
        shares = {name: each / seconds for name, each in spent.items()}
        return Busy(seconds=seconds, cores=os.cpu_count() or 1, **shares)

    def _look(self) -> dict[str, float]:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(each) for each in file.readline().split()[1:9]]
        idle = sum(ticks[3:5])
        used = {"machine": (sum(ticks) - idle) / _TICKS, "clock": time.monotonic()}
        return {**self._swarms.spent(), **used}


def _spent(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def run(load: Load) -> Verdict:
    """One run with its faults, and its judgement."""
    with tempfile.TemporaryDirectory(prefix="interlock-swarms-") as folder:
        swarms = Swarms(load, folder)
        with swarms.running():
            begin = swarms.begin()
            began = time.time() + begin - time.monotonic()
            _until(begin)
            meter = Meter(swarms)
            faults = _faults(load)
            _until(begin + (load.seconds * CALM if faults else load.seconds))
            busy = meter.busy()
            for moment, fault, name in faults:
                _until(begin + moment)
                _strike(swarms, fault, name)
            _until(begin + load.seconds)
            _settle(swarms)
            spent = meter.spent()
            shares = swarms.end()
            records = read(swarms.homes, swarms.bus, swarms.effects)
            return judge(records, shares, Measured(began, load.seconds, busy, spent))


def _faults(load: Load) -> list[tuple[float, str, str]]:
    """What fails when, after a calm beginning; the seed decides which processes are killed."""
    dice, seconds, calm = random.Random(load.seed), load.seconds, load.seconds * CALM  # noqa: S311
    faults: list[tuple[float, str, str]] = []
    for number in range(load.kills):
        moment = calm + (seconds - calm) * (number + dice.random()) / load.kills
        faults.append((moment, "kill", f"swarm{dice.randrange(load.swarms)}"))
    if load.cut:
        for share, fault, end in ((0.3, "cut", "heal"), (0.7, "freeze", "thaw")):
            faults += [(seconds * share, fault, ""), (seconds * share + load.cut, end, "")]
    return sorted(faults)


def _strike(swarms: Swarms, fault: str, name: str) -> None:
    bus = swarms.bus_server
    match fault:
        case "kill":
            swarms.kill(name)
        case "cut":
            swarms.kill_bus()
        case "heal":
            bus.restart()
        case "freeze":
            bus.freeze()
        case _:
            bus.thaw()


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _settle(swarms: Swarms) -> None:
    """Wait until every request has ended, or a person is asked."""
    ends = time.monotonic() + swarms.load.settle
    while swarms.unfinished() and time.monotonic() < ends:
        time.sleep(0.5)


def main(words: list[str]) -> int:
    """Run it, and print the verdict; the exit status says whether all that was promised is true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in msgspec.structs.fields(Load):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=field.type, default=field.default)
    load = Load(**vars(parser.parse_args(words)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and folders are removed
    print(f"{load.swarms} swarms of {load.agents} agents", flush=True)  # noqa: T201
    well = True
    if load.seconds:
        verdict = run(load)
        well = verdict.well
        print("\n".join(report(verdict)), flush=True)  # noqa: T201
    if load.full:
        verdict = run(replace(load, rate=0.0, seconds=load.full, kills=0, cut=0.0))
        well = well and verdict.well
        print("\nas many as possible, without faults")  # noqa: T201
        print("\n".join(report(verdict)))  # noqa: T201
        print(f"{verdict.rate:,.0f} requests a second, where {HOPED:,} are hoped for")  # noqa: T201
    return int(not well)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
