"""How the demo looks: a table redrawn in place on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import zip_longest
from typing import TextIO

from interlock.demo.crew import Crew, Member
from interlock.demo.facts import Facts
from interlock.demo.plan import STAGES, Step
from interlock.demo.report import Pieces, results, try_next
from interlock.demo.tally import Tally

WIDTH = 79
NARROW = 80
LEFT = 44
"""How wide the table of agents is; the graph stands beside it."""
STYLES = {"bold": "1", "dim": "2", "red": "31;1", "green": "32;1"}
IDLE = {"starting": "starts", "ready": "is ready", "done": "has left", "lost": "joins again"}
MARKS = {"complete": ("█", "#"), "running": ("▒", "+"), "waiting": ("·", "."), "lost": ("X", "X")}
LOOKS = {"complete": "green", "running": "bold", "waiting": "dim", "lost": "red"}


class Silent:
    """For --json, and the base of the others: nothing but the result."""

    leisure = 0.4

    def title(self, text: str) -> None:
        """The first line: what will be shown."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""

    def draw(self, crew: Crew, tally: Tally) -> None:
        """How things stand; called many times a second."""

    def report(self, facts: Facts) -> None:
        """What came out of it."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Plain(Silent):
    """For pipes and small terminals: a line for each thing that happens."""

    def __init__(self, out: TextIO, *, colour: bool = False) -> None:
        self._out = out
        self._colour = colour
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        """The first line, and an empty one."""
        self._write(self._line([(text, "bold")]), "")

    def note(self, text: str) -> None:
        """A line with its time."""
        self._write(self._line(self._noted(text)))

    def report(self, facts: Facts) -> None:
        """Short and aligned."""
        self._write("")
        for name, pieces in results(facts):
            self._write(self._line([(f"  {name:10}  ", "dim"), *pieces]))
        self._write("", self._line([("  try next", "bold")]))
        for command, what in try_next():
            self._write(self._line([(f"    {command}  ", ""), (what, "dim")]))

    def _noted(self, text: str) -> Pieces:
        at = time.monotonic() - self._began
        return [(f"  {at:4.1f} s  ", "dim"), (text, "")]

    def _line(self, pieces: Pieces) -> str:
        line = "".join(self._painted(text, style) for text, style in pieces)
        return line.rstrip()

    def _painted(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and self._colour else text

    def _write(self, *lines: str) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()


class Live(Plain):
    """For terminals: agents and the graph, redrawn in place, and below what happened so far."""

    leisure = 1.0

    def __init__(self, out: TextIO, steps: tuple[Step, ...], *, colour: bool) -> None:
        super().__init__(out, colour=colour)
        self._steps = steps
        self._notes: list[Pieces] = []
        self._drawn = 0
        self._ascii = "utf" not in (out.encoding or "").lower()
        self._hide(hidden=True)

    def note(self, text: str) -> None:
        """A line more below the table."""
        self._notes.append(self._noted(text))

    def draw(self, crew: Crew, tally: Tally) -> None:
        """The whole table again, over the last one."""
        width = min(WIDTH, shutil.get_terminal_size().columns - 1)
        rows = [*self._table(crew, tally), [], *self._notes]
        lines = [self._line(_clipped(row, width)) for row in rows]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(up + "\n".join(f"\r\x1b[2K{line}" for line in lines))
        self._drawn = len(lines)

    def close(self) -> None:
        """Show the cursor again."""
        self._hide(hidden=False)

    def _hide(self, *, hidden: bool) -> None:
        self._out.write("\x1b[?25l" if hidden else "\x1b[?25h")
        self._out.flush()

    def _table(self, crew: Crew, tally: Tally) -> list[Pieces]:
        """Who does what, and beside it how far the graph is: a line for each stage."""
        done = tally.done_by()
        dead = {tally.work.get(m.name) for m in crew.members.values() if m.state == "killed"}
        agents = [_agent(m, tally.work.get(m.name), done[m.name]) for m in crew.members.values()]
        stages = [self._stage(stage, tally, dead) for stage in STAGES]
        head = f"  {'agent':6}{'pid':>8}  {'works on':16}{'done':>5}"
        counts = f"{tally.count('complete')} of {len(self._steps)} tasks complete"
        running = f", {tally.count('running')} claimed"
        return [
            [(f"  {counts}", "bold"), (running, "")],
            [],
            [(f"{head:{LEFT}}", "dim"), (self._legend(), "dim")],
            *([*a, *s] for a, s in zip_longest(agents, stages, fillvalue=_EMPTY)),
        ]

    def _stage(self, stage: str, tally: Tally, dead: set[str | None]) -> Pieces:
        tasks = [step.task for step in self._steps if step.work.stage == stage]
        states = ["lost" if task in dead else tally.states.get(task, "waiting") for task in tasks]
        marks = [(self._mark(state), LOOKS[state]) for state in states]
        return [(f"{stage:7}", ""), *marks]

    def _legend(self) -> str:
        named = ("complete", "done"), ("running", "claimed"), ("lost", "lost")
        return "stage  " + "  ".join(f"{self._mark(state)} {word}" for state, word in named)

    def _mark(self, state: str) -> str:
        return MARKS[state][self._ascii]


_EMPTY: Pieces = [(" " * LEFT, "")]


def choose(steps: tuple[Step, ...], workers: int, out: TextIO | None = None) -> Plain:
    """What this output can show."""
    out = out or sys.stdout
    if not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Plain(out)
    colour = not os.environ.get("NO_COLOR")
    size = shutil.get_terminal_size()
    if size.columns < NARROW or size.lines < max(workers, len(STAGES)) + 13:
        return Plain(out, colour=colour)
    return Live(out, steps, colour=colour)


def _agent(member: Member, task: str | None, done: int) -> Pieces:
    """Who it is, what it works on by the record, and how many tasks it completed."""
    name = (f"  {member.name:6}{member.pid:>8}  ", "")
    if member.state == "killed":
        doing = ("KILLED", "red")
    elif task is not None:
        doing = (task, "bold")
    else:
        doing = (IDLE.get(member.state, "waits"), "dim")
    return [name, (f"{doing[0]:16}", doing[1]), (f"{done:>5}{'':{LEFT - 39}}", "")]


def _clipped(pieces: Pieces, width: int) -> Pieces:
    clipped = []
    for text, style in pieces:
        clipped.append((text[: max(0, width)], style))
        width -= len(text)
    return clipped
