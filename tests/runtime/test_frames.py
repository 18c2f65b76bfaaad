"""Uncontended calls on SQLite make few calls of Python functions.

No part of such a call takes long; their number is what it costs, and each layer adds some.
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import interlock

WARM = 20
"""Calls before the first that counts: modules are imported, statements prepared."""
MOST = {"acquire": 102, "slots": 115, "claim": 150, "alert": 110, "share": 122}
"""A few more than there are now, in Python 3.11; they were 147, 184, 200, 158 and 116."""
MOST_RECEIVED = {"alert": 325, "share": 370}
"""For one that waits, with the acknowledgement of the one before it; they were 376 and 466."""


def frames(act: Callable[[], object]) -> int:
    """How many functions of Python the act calls; a generator that goes on counts again."""
    count = 0

    def look(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", MOST)
def test_an_uncontended_call_makes_few_calls_of_functions(kind: str, tmp_path: Path) -> None:
    with interlock.connect(tmp_path / "store.db", agent="ada") as fleet:
        acts: dict[str, Callable[[str], object]] = {
            "acquire": fleet.locks.acquire,
            "slots": lambda name: fleet.semaphores.acquire(name, capacity=3),
            "claim": fleet.tasks.claim,
            "alert": lambda _: fleet.messages.alert("build", {"ok": True}),
            "share": lambda _: fleet.messages.share("ada", "build", {"ok": True}),
        }
        names = [f"name.{number}" for number in range(WARM + 5)]
        for name in names if kind == "claim" else ():
            fleet.tasks.publish(name)
        counts = [frames(partial(_succeed, acts[kind], name)) for name in names]
    assert min(counts[WARM:]) <= MOST[kind], counts


def _succeed(act: Callable[[str], object], name: str) -> None:
    assert act(name)


@pytest.mark.parametrize("kind", MOST_RECEIVED)
def test_a_receiver_that_waits_makes_few_calls_of_functions(kind: str, tmp_path: Path) -> None:
    path, counts, waits = tmp_path / "store.db", list[int](), threading.Semaphore(0)
    with interlock.connect(path, agent="ada") as ada, interlock.connect(path, agent="bob") as bob:
        ada.messages.subscribe("build")

        def receive() -> None:
            loop = iter(ada.messages.recv())
            for _ in range(WARM + 5):
                waits.release()
                counts.append(frames(lambda: next(loop)))

        receiving = threading.Thread(target=receive)
        receiving.start()
        for _ in range(WARM + 5):
            waits.acquire()
            time.sleep(0.03)  # until it waits: then the message comes with its change
            if kind == "alert":
                bob.messages.alert("build", {"ok": True})
            else:
                bob.messages.share("ada", "build", {"ok": True})
        receiving.join()
    assert min(counts[WARM:]) <= MOST_RECEIVED[kind], counts
