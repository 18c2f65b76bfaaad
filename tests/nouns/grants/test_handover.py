"""A grant has an owner in the program or is released, whichever instruction is interrupted."""

from __future__ import annotations

import dis
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import random
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

import interlock
from interlock import guard
from interlock.client import Fleet
from interlock.stores.memory import MemoryStore

OURS = str(Path(interlock.__file__).parent)
ENGINE = str(Path(OURS) / "stores" / "memory.py")
"""Not struck here: a commit of this store is not atomic for who is struck inside of it."""
WHOLLY = str(Path(OURS) / "nouns" / "grants" / "handover.py")
"""Struck at each instruction, also where Python runs no handler."""
PATIENCE = 20.0


class Struck(BaseException):
    """What strikes."""


class Point(NamedTuple):
    """A place in the code, and what happens there."""

    code: CodeType
    at: int
    event: str

    def __str__(self) -> str:
        lines = self.code.co_lines()
        line = next((line for start, end, line in lines if start <= self.at < end), 0)
        return f"{self.code.co_filename}:{line} ({self.code.co_name}, {self.at}, {self.event})"


class Tracer:
    """Sees where Python may run a handler of a signal, and strikes at one of these places.

    It does so when a function begins or goes on, when a loop comes round, and after a call of
    something that is not Python.  What it does not do is to come between the end of the body of
    ``with lock:`` and the release of a lock that is not Python.
    """

    def __init__(self, own: CodeType | None, at: Point | None = None) -> None:
        self.points: dict[Point, None] = {}
        self._own = own
        self._at = at

    def trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        """Each instruction."""
        if not self._ours(code := frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            name = dis.opname[code.co_code[frame.f_lasti]]
            wholly = code is self._own or code.co_filename == WHOLLY
            if wholly or name in ("RESUME", "JUMP_BACKWARD"):
                self._come(Point(code, frame.f_lasti, name))
        return self.trace

    def profile(self, frame: FrameType, event: str, _arg: object) -> None:
        """Each call of something that is not Python."""
        if event == "c_return" and self._ours(frame.f_code):
            self._come(Point(frame.f_code, frame.f_lasti, event))

    def _ours(self, code: CodeType) -> bool:
        ours = code.co_filename.startswith(OURS) and code.co_filename != ENGINE
        return ours or code is self._own

    def _come(self, point: Point) -> None:
        self.points[point] = None
        if point == self._at:
            self._at = None
            raise Struck


def traced(act: Callable[[], object], at: Point | None = None) -> list[Point]:
    """Do it, struck at this place; the places that it came to."""
    tracer = Tracer(None if isinstance(act, partial) else act.__code__, at)
    before, profile = sys.gettrace(), sys.getprofile()
    with suppress(Struck):
        try:
            sys.setprofile(tracer.profile)
            sys.settrace(tracer.trace)
            act()
        finally:
            sys.settrace(before)
            sys.setprofile(profile)
    return list(tracer.points)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.001)


def at_rest(fleet: Fleet) -> bool:
    """Whether nothing is held, waited for, renewed or owed."""
    context = fleet.context
    keeper = context.keeper
    leases = [lease for lease in keeper._leases if lease is not context.session_lease]
    grants = context.grants
    return not (leases or keeper._watched or grants.pending or grants.handovers or grants.abandoned)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with interlock.connect(agent="ada", store=MemoryStore()) as fleet:
        yield fleet


def every_block(fleet: Fleet, ttl: float | None) -> dict[str, Callable[[], object]]:
    def lock() -> None:
        with fleet.lock("merge", ttl=ttl):
            pass

    def guarded() -> None:
        with fleet.lock("merge", ttl=ttl, guard="calm"):
            pass

    def slots() -> None:
        with fleet.slots("builds", capacity=1, ttl=ttl) as held:
            held.check()

    def together() -> None:
        with fleet.together("lock/merge", "sem/builds", ttl=ttl):
            pass

    def hold() -> None:
        with fleet.tasks.hold("t1", ttl=ttl) as claim:
            claim.release()

    return {"lock": lock, "guarded": guarded, "slots": slots, "together": together, "hold": hold}


def strike_all(
    fleet: Fleet,
    act: Callable[[], object],
    after: Callable[[], object] | None = None,
    every: int = 1,
) -> None:
    """Strike it once at each place, or at every nth, and see that nothing is left each time."""
    places, handler = traced(act)[::every], signal.getsignal(signal.SIGINT)
    if after is not None:
        after()
    for place in places:
        try:
            if place not in traced(act, place) and after is not None:
                after()  # this time it did not come there, and returned
            until(lambda: at_rest(fleet))
            assert fleet.locks.list() == ()
            assert not any(each.holders for each in fleet.semaphores.list())
            assert not fleet.tasks.list(state=["running"]).tasks
            assert signal.getsignal(signal.SIGINT) is handler
        except Exception as error:
            raise AssertionError(f"struck at {place}") from error


BLOCKS = [
    ("lock", None),
    ("slots", 60.0),
    pytest.param("together", None, marks=pytest.mark.proof),
    ("hold", None),
    pytest.param("lock", 60.0, marks=pytest.mark.proof),
    pytest.param("guarded", None, marks=pytest.mark.proof),
    pytest.param("slots", None, marks=pytest.mark.proof),
    pytest.param("together", 60.0, marks=pytest.mark.proof),
    pytest.param("hold", 60.0, marks=pytest.mark.proof),
]


@pytest.mark.parametrize(("what", "ttl"), BLOCKS)
def test_a_block_that_is_struck_anywhere_leaves_nothing_held(
    fleet: Fleet, what: str, ttl: float | None
) -> None:
    fleet.semaphores.resize("builds", 1)
    fleet.tasks.publish("t1")
    fleet.guards.define(guard.named("calm", guard.lock_free("db")))
    act = every_block(fleet, ttl)[what]
    act()
    strike_all(fleet, act)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.proof)])
def test_a_loop_of_work_that_is_struck_anywhere_leaves_nothing_claimed(
    fleet: Fleet, every: int
) -> None:
    fleet.tasks.publish("t1", retries=1000, backoff=0.001, backoff_most=0.001)

    def work() -> None:
        worker = fleet.tasks.work(stop_on_messages=False)
        for claim in worker:
            with claim:
                worker.stop()
                claim.release()

    work()
    strike_all(fleet, work, every=every)


def test_a_call_that_is_struck_anywhere_either_returns_its_grant_or_gives_it_back(
    fleet: Fleet,
) -> None:
    fleet.tasks.publish("t1")
    calls: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
        (fleet.locks.acquire, fleet.locks.release, "merge"),
        (fleet.tasks.claim, fleet.tasks.release, "t1"),
    ]
    for take, give_back, name in calls:
        take(name)
        give_back(name)
        strike_all(fleet, partial(take, name), partial(give_back, name))


def test_a_block_under_an_exit_stack_is_given_back(fleet: Fleet) -> None:
    with ExitStack() as stack:
        stack.enter_context(fleet.lock("merge"))
        assert fleet.locks.show("merge").state == "held"
    assert fleet.locks.list() == ()


def test_who_looks_for_the_end_of_a_block_does_not_end_it(fleet: Fleet) -> None:
    block = fleet.lock("merge")
    assert hasattr(block, "__exit__")
    for _ in range(2):  # it can be used again
        with block as held:
            assert hasattr(block, "__exit__")
            held.check()
        assert fleet.locks.list() == ()
    with pytest.raises(Struck), block:
        raise Struck
    assert fleet.locks.list() == ()


def test_a_block_whose_end_is_struck_can_be_taken_again_at_once(fleet: Fleet) -> None:
    """Who lost it is not told to wait for itself, though the keeper has not come to it yet."""
    end = type(fleet.lock("merge")).leave.__code__
    for _ in range(20):
        traced(partial(_block, fleet), Point(end, 0, "RESUME"))
        with fleet.lock("merge", wait=PATIENCE):
            pass


def _block(fleet: Fleet) -> None:
    with fleet.lock("merge"):
        pass


def storm(url: str, strikes: int) -> None:
    """So many signals whose handler raises, at any moment of a loop of blocks."""
    struck = 0

    def strike(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with interlock.connect(url, agent="ada") as fleet:
            fleet.tasks.publish("t1", retries=1000, backoff=0.001, backoff_most=0.001)
            for once in (fleet.lock("merge"), fleet.tasks.hold("t1")):  # all is imported then
                with once as held:
                    held.check()
                    held.release()
            while struck < strikes:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.004 * random())
                    for _ in range(100):  # it may strike where Python ignores it
                        with fleet.lock("merge", wait=PATIENCE):
                            pass
                        with fleet.tasks.hold("t1", wait=PATIENCE) as claim:
                            claim.release()
                except Struck:
                    struck += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            until(lambda: at_rest(fleet))
            assert fleet.locks.list() == ()
            assert not fleet.tasks.list(state=["running"]).tasks
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What is struck while it is opened, or where Python ignores it, is told by a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.proof
def test_a_long_storm_of_signals_leaves_nothing_held(tmp_path: Path) -> None:
    storm(str(tmp_path / "store.db"), 5000)
