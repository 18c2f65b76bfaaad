"""Requests between swarms and real processes: agents, whole swarms, coordinators and the bus fail.

Two homes and a bus, and in the end of each test: per request one intake, one completion, one end,
one effect; nothing is left on the way, and the three records hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.processes import checks
from tests.processes.helpers import PATIENCE, Process, ProcessGroup, until
from tests.processes.request_programs import WORK

import interlock
from interlock.client_context import BUS_PATIENCE
from interlock.clock import SystemClock
from interlock.core import keys
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import PeerTrust, PeerTrustList
from interlock.store import Range, Store
from interlock.testing.audit import request_events
from interlock.testing.servers import RedisServer
from interlock.testing.servers.proxy import Proxy, Verdict


class Trio(NamedTuple):
    """Two homes and a bus; ``effects`` is where executors leave what they did."""

    north: str
    south: str
    bus: str
    effects: Path


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.request_programs") as everybody:
        yield everybody


@pytest.fixture(params=["sqlite", "redis"])
def trio(request: pytest.FixtureRequest) -> Trio:
    found: Trio = request.getfixturevalue("files" if request.param == "sqlite" else "network")
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trio:
    """Where one engine shows it."""
    urls = [f"{tmp_path}/{name}.db" for name in ("north", "south", "bus")]
    return introduced(urls, tmp_path, monkeypatch)


@pytest.fixture
def network(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trio:
    """Where a network is needed that can fail."""
    urls = [redis_server.url(f"{tmp_path.name}-{name}") for name in ("north", "south", "bus")]
    return introduced(urls, tmp_path, monkeypatch)


def introduced(urls: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trio:
    """Swarms that know each other's keys."""
    monkeypatch.setenv(key_files.FOLDER, f"{folder}/keys")
    north, south, bus = urls
    trio = Trio(north, south, bus, folder / "effects")
    trio.effects.mkdir()
    prints = {}
    for name, url in (("north", trio.north), ("south", trio.south)):
        with interlock.connect(url, agent="operator") as fleet:
            fleet.keys.new(name)
            registered = fleet.swarms.register(name, bus=trio.bus, key=name)
            assert isinstance(registered, interlock.SwarmRegistered)
            prints[name] = registered.fingerprint
    for url, other in ((trio.north, "south"), (trio.south, "north")):
        with interlock.connect(url, agent="operator") as fleet:
            assert fleet.swarms.allow(other, key=prints[other])
    return trio


class SharedWall:
    """The wall clock of this process and of programs: it is set forward for all of them."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self._ahead = 0.0
        self.advance(0)
        monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: time.time() + self._ahead))

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
        with self.file.open("r+" if self.file.exists() else "w") as file:
            file.write(f"{self._ahead:<32}")


@pytest.fixture
def wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedWall:
    return SharedWall(tmp_path / "wall", monkeypatch)


# What must be true in the end.


def answered_once(trio: Trio, many: int) -> None:
    """Per id one intake, one completion, one end and one effect; nothing is left; it is proven."""
    north, south, bus = (interlock.connect(url, join=False) for url in trio[:3])
    with north, south, bus:
        until(lambda: left(north.store, south.store, bus.store) == [])
        asked, served = request_events(north.store), request_events(south.store)
        effects = set(os.listdir(trio.effects)) - {"executions"}
        assert asked.keys() == served.keys() == effects
        assert len(asked) == many
        for id_ in asked:
            assert asked[id_]["request:sent"] == asked[id_]["request:answered"] == 1, asked[id_]
            assert served[id_]["request:received"] == served[id_]["request:executed"] == 1
        assert list(north.quarantine.list()) == list(south.quarantine.list()) == []
        for fleet in (north, south, bus):
            assert fleet.record.verify()
    for url in trio[:3]:
        checks.sound(url, heads=8)


def left(north: Store, south: Store, bus: Store) -> list[str]:
    """What still waits for a process."""
    homes = (keys.OUTBOX, keys.UNANSWERED, keys.REQUEST_DUE, keys.ESCALATED, keys.CLAIMS)
    return [
        *(key for home in (north, south) for key in found(home, homes)),
        *found(bus, (keys.BUS_REQUESTS, keys.BUS_RESULTS, "ack/", "req-body/", "res-body/")),
    ]


def found(store: Store, prefixes: Iterable[str]) -> list[str]:
    pages = [Range(prefix) for prefix in prefixes]
    ranges = store.read(*pages).ranges
    return [item.key for page in pages for item in ranges[page]]


def executions(trio: Trio) -> list[list[str]]:
    notes = trio.effects / "executions"
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def result(trio: Trio, name: str) -> object:
    with interlock.connect(trio.north, agent="reader") as fleet:
        return fleet.requests.result(name, wait=PATIENCE)


def tended(process: Process) -> int:
    """Let a coordinator do what is due; how much that was."""
    process.write_line()
    return int(process.read_line())


# An agent fails.

OF_EXECUTOR = [
    ("before", "request.receive"),
    ("after", "request.receive"),
    ("after", "bus.remove"),
    ("before", "task.claim"),
    ("after", "task.claim"),
    ("in", WORK),
    ("before", "task.complete"),
    ("after", "task.complete"),
    ("before", "bus.post"),
    ("after", "bus.post"),
    ("after", "outbox.clear"),
]


@pytest.mark.proof_on("redis")
def test_an_executor_that_is_killed_between_any_two_steps_leaves_each_request_to_the_next(
    trio: Trio, programs: ProcessGroup
) -> None:
    serving = ("serve", trio.south, "bob", trio.effects)
    with interlock.connect(trio.south, agent="coordinator") as coordinator:
        for when, verb in OF_EXECUTOR:
            programs.start("send", trio.north, "ada", f"{when}-{verb}").finish()
            if verb not in ("request.receive", "bus.remove"):
                coordinator.requests.tend()
            programs.start("deadly", when, verb, *serving).died()
    programs.start(*serving)
    for when, verb in OF_EXECUTOR:
        assert isinstance(result(trio, f"{when}-{verb}"), interlock.RequestAnswered), (when, verb)
    delete_second_results(trio)
    answered_once(trio, len(OF_EXECUTOR))
    assert len(executions(trio)) > len(OF_EXECUTOR), "some were executed again"


def delete_second_results(trio: Trio) -> None:
    """Tend the asker once nothing more is posted.

    A result that is posted again, by the heir of a process that was killed after it posted it, may
    come when its asker has it.
    """
    with interlock.connect(trio.north, agent="coordinator") as coordinator:
        with interlock.connect(trio.south, join=False) as south:
            until(lambda: found(south.store, (keys.OUTBOX,)) == [])
        coordinator.requests.tend()


OF_ASKER = [
    ("before", "request.send", "send"),
    ("after", "request.send", "send"),
    ("after", "bus.post", "send"),
    ("after", "outbox.clear", "send"),
    ("before", "request.complete", "ask"),
    ("after", "request.complete", "ask"),
    ("after", "bus.remove", "ask"),
]
"""Also whether the asker only sends, or waits for the result."""


@pytest.mark.proof_on("redis")
def test_an_asker_that_is_killed_between_any_two_steps_has_one_answer_when_it_asks_again(
    trio: Trio, programs: ProcessGroup
) -> None:
    programs.start("serve", trio.south, "bob", trio.effects)
    names = [f"{when}-{verb}" for when, verb, _ in OF_ASKER]
    for (*point, act), name in zip(OF_ASKER, names, strict=True):  # together they would help out
        programs.start("deadly", *point, act, trio.north, "ada", name).died()
    for asker in [programs.start("ask", trio.north, "ada", name) for name in names]:
        assert asker.remaining_lines() == ["3"]
    with interlock.connect(trio.north, agent="coordinator") as coordinator:
        coordinator.requests.tend()  # the results whose asker died before it deleted them
    answered_once(trio, len(OF_ASKER))


def test_an_agent_that_is_frozen_past_its_lease_stores_no_second_result(
    files: Trio, programs: ProcessGroup
) -> None:
    frozen = programs.start("serve", files.south, "bob", files.effects, "paced")
    assert frozen.read_line() == "ready"
    asker = programs.start("ask", files.north, "ada", "r1")
    request = frozen.read_line()
    frozen.freeze_asleep()
    programs.start("serve", files.south, "carl", files.effects)
    assert asker.remaining_lines() == ["3"]
    frozen.thaw()
    frozen.write_line()
    frozen.write_line()
    assert [agent for id_, _, agent in executions(files) if id_ == request] == ["bob", "carl"]
    second = programs.start("ask", files.north, "ada", "r2")
    assert second.remaining_lines() == ["3"]
    answered_once(files, 2)


def test_a_request_that_no_agent_takes_in_is_repeated_with_its_id_then_a_person_is_asked(
    files: Trio, programs: ProcessGroup, wall: SharedWall
) -> None:
    asker = programs.start("shifted", wall.file, "send", files.north, "ada", "r1")
    request = asker.remaining_lines()[0].split()[0]
    coordinator = programs.start("shifted", wall.file, "tend", files.north, "coordinator")
    assert coordinator.read_line() == "ready"
    with interlock.connect(files.north, agent="maria") as maria:
        for seconds, attempt in ((31, 1), (30, 2), (31, 2), (90, 3), (31, 3), (210, 4), (31, 4)):
            wall.advance(seconds)
            tended(coordinator)
            open_ = maria.requests.result(request)
            assert isinstance(open_, interlock.RequestOpen)
            assert (open_.attempt, open_.state) == (attempt, "open")
        wall.advance(30)
        tended(coordinator)
        (asked,) = maria.messages.decisions()
        assert (asked.state, asked.about) == ("open", f"request/{request}")
        assert [each.option for each in asked.options] == [
            "local_execution",
            "queue_for_later",
            "alternative_swarm",
        ]
        programs.start("shifted", wall.file, "serve", files.south, "bob", files.effects)
        until(lambda: tended(coordinator) >= 0 and maria.messages.decisions()[0].state != "open")
        assert isinstance(maria.requests.result(request), interlock.RequestAnswered)
    answered_once(files, 1)


def test_a_person_has_the_work_done_at_home_and_a_late_answer_changes_nothing(
    files: Trio, programs: ProcessGroup, wall: SharedWall
) -> None:
    """Both swarms do the work then, which only a person may decide; the request ends once."""
    asker = programs.start("shifted", wall.file, "send", files.north, "ada", "r1")
    request = asker.remaining_lines()[0].split()[0]
    coordinator = programs.start("shifted", wall.file, "tend", files.north, "coordinator")
    assert coordinator.read_line() == "ready"
    for seconds in (61, 121, 241, 61):
        wall.advance(seconds)
        tended(coordinator)
    porter = programs.start("shifted", wall.file, "tend", files.south, "porter")
    assert porter.read_line() == "ready"
    tended(porter)  # it is a task there by now, and not taken back from the bus any more
    with interlock.connect(files.north, agent="maria") as maria:
        (asked,) = maria.messages.decisions()
        assert maria.messages.resolve(asked.decision, "local_execution")
        tended(coordinator)
        over = maria.requests.result(request)
        assert isinstance(over, interlock.RequestOver)
        assert over.replaced_by == f"task/{request}"
        programs.start("shifted", wall.file, "serve", files.south, "bob", files.effects)
        until(lambda: tended(coordinator) >= 0 and len(maria.quarantine.list()))
        (late,) = maria.quarantine.list()
        assert (late.request, late.reason) == (request, "cancelled")
        assert maria.requests.result(request) == over
        assert maria.record.verify()
        assert request_events(maria.store)[request]["request:answered"] == 0


# A swarm is down.


def test_a_swarm_that_is_down_opens_the_circuit_for_all_and_answers_each_once_when_it_is_back(
    files: Trio, programs: ProcessGroup, wall: SharedWall
) -> None:
    def sent(agent: str, *names: str) -> list[str]:
        asker = programs.start("shifted", wall.file, "send", files.north, agent, *names)
        return [line.split()[-1] for line in asker.remaining_lines()]

    assert sent("ada", "r1", "r2", "r3") == ["posted"] * 3
    coordinator = programs.start("shifted", wall.file, "tend", files.north, "coordinator")
    assert coordinator.read_line() == "ready"
    wall.advance(31)
    tended(coordinator)
    assert sent("eve", "r4") == ["SwarmUnavailable"]
    wall.advance(76)
    assert sorted([*sent("ada", "r5"), *sent("eve", "r6")]) == ["SwarmUnavailable", "posted"]
    programs.start("shifted", wall.file, "serve", files.south, "bob", files.effects)
    for name in ("r1", "r2", "r3", "r5"):
        until(lambda: tended(coordinator) >= 0)
        assert isinstance(result(files, name), interlock.RequestAnswered)
    assert sent("eve", "r7") == ["posted"]
    assert isinstance(result(files, "r7"), interlock.RequestAnswered)
    answered_once(files, 5)


# A coordinator fails.


def test_agents_work_together_while_no_coordinator_runs(trio: Trio, programs: ProcessGroup) -> None:
    programs.start("serve", trio.south, "bob", trio.effects)
    askers = [programs.start("ask", trio.north, f"ada{n}", f"r{n}") for n in range(4)]
    for asker in askers:
        assert asker.remaining_lines() == ["3"]
    answered_once(trio, 4)


OF_COORDINATORS = [
    ("north", "after", "bus.post"),
    ("north", "before", "outbox.clear"),
    ("north", "after", "outbox.clear"),
    ("south", "after", "request.receive"),
    ("south", "after", "bus.remove"),
]


def struck(process: Process) -> bool:
    """Let a coordinator do what is due, unless it is dead."""
    if not process.alive():
        process.died()
        return True
    with suppress(BrokenPipeError):
        process.write_line()
    return False


def test_a_coordinator_that_is_killed_in_the_middle_leaves_its_part_to_any_process(
    files: Trio, programs: ProcessGroup
) -> None:
    """The bus was away when the requests were made, so a coordinator has to post them."""
    nowhere = f"{files.effects}/nowhere.db"
    for number, (swarm, when, verb) in enumerate(OF_COORDINATORS):
        asker = programs.start("through", nowhere, "send", files.north, "ada", f"r{number}")
        assert asker.remaining_lines()[0].endswith("spooled")
        if swarm == "south":
            with interlock.connect(files.north, agent="other") as other:
                other.requests.tend()
        home = files.north if swarm == "north" else files.south
        coordinator = programs.start("deadly", when, verb, "tend", home, "coordinator")
        assert coordinator.read_line() == "ready"
        until(lambda: struck(coordinator))  # noqa: B023 - called at once
    programs.start("serve", files.south, "bob", files.effects)
    heir = programs.start("tend", files.north, "coordinator")
    assert heir.read_line() == "ready"
    with interlock.connect(files.north, agent="ada") as ada:
        for number in range(len(OF_COORDINATORS)):
            until(lambda: tended(heir) >= 0 and ada.requests.result(f"r{number}"))  # noqa: B023
    answered_once(files, len(OF_COORDINATORS))


# The network is cut.


@pytest.mark.parametrize(("fault", "noticed"), [("cut", 10), ("half_open", 30)])
def test_a_partition_loses_and_doubles_nothing_and_keeps_the_order(
    network: Trio,
    redis_server: RedisServer,
    programs: ProcessGroup,
    fault: str,
    noticed: float,
) -> None:
    """Each swarm has a way to the bus of its own; that of the asker fails, and later heals.

    Connections are refused, or they are made and nothing arrives.
    """
    programs.start("serve", network.south, "bob", network.effects)
    with Proxy("127.0.0.1", redis_server.port) as proxy:
        way = ("through", proxy.through(network.bus))
        getattr(proxy, fault)()
        began = time.monotonic()
        names = [f"r{number}" for number in range(6)]
        asker = programs.start(*way, "send", network.north, "ada", *names)
        lines = [line.split() for line in asker.remaining_lines()]
        assert {state for _, state in lines} == {"spooled"}
        assert time.monotonic() - began < noticed, "the first waits for a while, no other does"
        proxy.heal()
        proxy.on_request(lost_reply(b"bus.post"))
        coordinator = programs.start(*way, "tend", network.north, "coordinator")
        assert coordinator.read_line() == "ready"
        with interlock.connect(network.north, agent="ada") as ada:
            until(lambda: tended(coordinator) >= 0 and all(map(ada.requests.result, names)))
        answered_once(network, 6)
        received = [id_ for id_, _, _ in executions(network)]
        assert received == [id_ for id_, _ in lines]


def lost_reply(text: bytes) -> Callable[[bytes], Verdict]:
    """The first request with this text arrives, and its reply is lost."""
    seen: list[bytes] = []

    def judge(data: bytes) -> Verdict:
        if seen or text not in data:
            return None
        seen.append(data)
        return "drop reply"

    return judge


def test_processes_that_run_through_a_partition_go_on_by_themselves(
    network: Trio, redis_server: RedisServer, programs: ProcessGroup
) -> None:
    """Nothing is started again: each process tries the bus every ten seconds."""
    with Proxy("127.0.0.1", redis_server.port) as proxy:
        way = ("through", proxy.through(network.bus))
        served = programs.start(*way, "serve", network.south, "bob", network.effects, "paced")
        assert served.read_line() == "ready"
        first = programs.start(*way, "ask", network.north, "ada", "r1")
        served.read_line()
        proxy.cut()
        served.write_line()
        second = programs.start(*way, "ask", network.north, "eve", "r2")
        with interlock.connect(network.north, join=False) as north:
            until(lambda: len(north.requests.list()) == 2)
        over = time.monotonic() + 2 * BUS_PATIENCE
        until(lambda: time.monotonic() > over)  # an outage that no call waits for
        proxy.heal()
        assert first.remaining_lines() == ["3"]
        served.read_line()
        served.write_line()
        assert second.remaining_lines() == ["3"]
        answered_once(network, 2)


# A swarm that does not answer.


def test_one_request_of_all_processes_probes_a_swarm_that_did_not_answer(
    trio: Trio, programs: ProcessGroup, wall: SharedWall
) -> None:
    with interlock.connect(trio.north, agent="coordinator") as coordinator:
        for _ in range(3):
            assert coordinator.requests.send("south", "can:add", [1, 2], timeout=5)
        wall.advance(6)
        coordinator.requests.tend()
        probes = [
            programs.start("shifted", wall.file, "probe", trio.north, f"agent{number}")
            for number in range(3)
        ]
        assert [each.read_line() for each in probes] == ["ready"] * 3

        def together() -> int:
            """All processes send at once; how many requests go through."""
            for each in probes:
                each.write_line()
            found = [each.read_line() for each in probes]
            assert set(found) <= {"RequestSent", "SwarmUnavailable"}
            return found.count("RequestSent")

        assert together() == 0
        wall.advance(76)
        assert (together(), together()) == (1, 0)
        wall.advance(31)
        coordinator.requests.tend()  # the probe timed out: two minutes, and up to a quarter more
        wall.advance(118)
        assert together() == 0
        wall.advance(33)
        assert (together(), together()) == (1, 0)
        south = trusted(coordinator)
        assert (south.breaker.opened, south.standing.timeouts) == (2, 3)
        programs.start("shifted", wall.file, "serve", trio.south, "bob", trio.effects)

        def closed() -> bool:
            coordinator.requests.tend()
            return not trusted(coordinator).breaker.opened

        until(closed)
        assert together() == 3


def trusted(fleet: interlock.Fleet) -> PeerTrust:
    """What the record of a home says about south."""
    found = fleet.swarms.trust("south")
    assert isinstance(found, PeerTrustList)
    return found.peers[0]
