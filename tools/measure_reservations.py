"""Measure reservations and hooks: ``python tools/measure_reservations.py``.

A path and globs against 10,000 reservations on SQLite, reads included, and the hook before an edit
beside a bare start of Python, in turns.
"""  # noqa: INP001 - a script

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import interlock
from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.reservations import pattern, rules
from interlock.nouns.reservations.conflicts import conflicting
from interlock.nouns.reservations.reading import entries_for
from interlock.nouns.reservations.reservation import Reservation
from interlock.runtime.attempt import DecideOp
from interlock.runtime.reads import outside
from interlock.steps import drive

NUMBER, AT_ONCE, REPOSITORY = 10_000, 500, "measured"
PATTERNS = (
    ("src/part3/area4/other.py", 5.0),
    ("src/part3/area4/*.ts", 50.0),
    ("src/part3/**/*.ts", 50.0),
    ("src/*/area3/z*.ts", 50.0),
)


def reservations(fleet: interlock.client.Fleet) -> Iterator[Reservation]:
    """Files, globs and folders of a large repository, from many agents."""
    chance = random.Random(7)  # noqa: S311
    for number in range(NUMBER):
        folder = f"src/part{chance.randrange(40)}/area{chance.randrange(25)}/file{number}"
        text = folder + chance.choice([".py", "/*.py", "*"])
        yield Reservation(
            id=fleet.context.runner.new_id("rsv"),
            agent=f"agent{number % 50}",
            session="measured",
            patterns=(text,),
            live=keys.live("measured"),
            since=0.0,
        )


def store(fleet: interlock.client.Fleet, some: list[Reservation]) -> None:
    """Write them as they are stored, many with one commit."""

    def deciding() -> DecideOp[str]:
        yield ()
        puts = [write for each in some for write in rules.grant(REPOSITORY, each).puts]
        thing = rules.thing(some[0].id)
        return Decision(outcome="x", verb="reservation.reserve", thing=thing, puts=tuple(puts))

    drive(fleet.context.runner.change(deciding, fleet.context.me().actor), fleet.store)


def median(act: Callable[[], object], turns: int = 15) -> float:
    """Milliseconds."""
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        act()
        times.append((time.perf_counter() - begin) * 1000)
    return sorted(times)[turns // 2]


def overlaps(folder: str) -> None:
    """Print how long each pattern takes."""
    with interlock.connect(f"{folder}/store.db", agent="ada") as fleet:
        made = list(reservations(fleet))
        for begin in range(0, NUMBER, AT_ONCE):
            store(fleet, made[begin : begin + AT_ONCE])
        for text, target in PATTERNS:
            read = pattern.parse(text)
            wanted = Reservation(
                id="", agent="me", session="", patterns=(text,), live="", since=0.0
            )

            def look(read: pattern.Pattern = read, wanted: Reservation = wanted) -> object:
                entries = drive(outside(entries_for(REPOSITORY, [read])), fleet.store)
                return conflicting(wanted, entries)

            sys.stdout.write(f"{text:<28}{median(look):8.2f} ms   at most {target:g} ms\n")


def hook(folder: str) -> None:
    """Print the time of the hook in bare starts of Python."""
    root = Path(folder)
    program = os.path.join(os.path.dirname(sys.executable), "interlock")
    event: dict[str, object] = {
        "session_id": "measured",
        "hook_event_name": "PreToolUse",
        "cwd": folder,
    }
    event |= {"tool_name": "Edit", "tool_input": {"file_path": f"{folder}/src/a.py"}}
    variables = {**os.environ, "INTERLOCK_STORE": f"{folder}/store.db"}

    def run(*words: str) -> None:
        data = json.dumps(event).encode()
        out = subprocess.DEVNULL
        subprocess.run(  # noqa: S603
            words, input=data, stdout=out, cwd=root, env=variables, check=True
        )

    bare, own = [], []
    for _ in range(15):
        bare.append(median(lambda: run(sys.executable, "-I", "-c", "pass"), 1))
        own.append(median(lambda: run(program, "hook", "claude"), 1))
    ratio = sorted(own)[7] / sorted(bare)[7]
    sys.stdout.write(f"hook before an edit, cold   {ratio:8.2f} Python starts   at most 6\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        overlaps(place)
        hook(place)
