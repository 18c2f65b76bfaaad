"""How the demo looks: a table redrawn in place on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

import interlock
from interlock.demo.crew import Crew, Member
from interlock.demo.facts import Facts
from interlock.demo.report import Pieces, results, try_next
from interlock.services.lock import Shown

WIDTH = 79
NARROW = 80
BAR = 30
TOKEN = 6
STYLES = {"bold": "1", "dim": "2", "red": "31;1", "green": "32;1"}
LOOKS = {
    "holding": ("HOLDING", "green"),
    "staying": ("HOLDING", "green"),
    "building": ("building", "bold"),
    "built": ("waiting", "dim"),
    "killed": ("KILLED", "red"),
    "waiting": ("waiting", "dim"),
    "done": ("left", "dim"),
}


class Silent:
    """For --json, and the base of the others: nothing but the result."""

    leisure = 0.4

    def title(self, text: str) -> None:
        """The first line: what will be shown."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""

    def draw(self, crew: Crew) -> None:
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
    """For terminals: a line for each worker, redrawn in place, and below what happened so far."""

    leisure = 1.0

    def __init__(self, out: TextIO, fleet: interlock.Fleet, lock: str, *, colour: bool) -> None:
        super().__init__(out, colour=colour)
        self._fleet = fleet
        self._lock = lock
        self._notes: list[Pieces] = []
        self._drawn = 0
        self._full = "█" if "utf" in (out.encoding or "").lower() else "#"
        self._hide(hidden=True)

    def note(self, text: str) -> None:
        """A line more below the table."""
        self._notes.append(self._noted(text))

    def draw(self, crew: Crew) -> None:
        """The whole table again, over the last one."""
        width = min(WIDTH, shutil.get_terminal_size().columns - 1)
        rows = [*self._table(crew), [], *self._notes]
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

    def _table(self, crew: Crew) -> list[Pieces]:
        lock = self._fleet.locks.show(self._lock)
        members = crew.members.values()
        most = max(BAR, *(member.turns for member in members))
        wide = max(TOKEN, *(len(str(member.token)) for member in members))
        head = f"  {'agent':6}{'pid':>8}  {'state':10}  {'token':>{wide}}  {'turns':>5}"
        return [
            _status(lock, crew),
            [],
            [(head, "dim")],
            *(self._row(member, lock.waiters, most, wide) for member in members),
        ]

    def _row(self, member: Member, waiters: tuple[str, ...], most: int, wide: int) -> Pieces:
        word, style = LOOKS.get(member.state, (member.state, "dim"))
        if member.state == "waiting" and member.name in waiters:
            place = waiters.index(member.name)
            word = f"waiting {place + 1}" if place else "next"
        return [
            (f"  {member.name:6}{member.pid:>8}  ", ""),
            (f"{word:10}", style),
            (f"  {member.token or '':>{wide}}  {member.turns:>5}  ", ""),
            (self._full * round(member.turns * (BAR + TOKEN - wide) / most), style),
        ]


def choose(fleet: interlock.Fleet, lock: str, workers: int, out: TextIO | None = None) -> Plain:
    """What this output can show."""
    out = out or sys.stdout
    if not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Plain(out)
    colour = not os.environ.get("NO_COLOR")
    size = shutil.get_terminal_size()
    if size.columns < NARROW or size.lines < workers + 12:
        return Plain(out, colour=colour)
    return Live(out, fleet, lock, colour=colour)


def _status(lock: Shown, crew: Crew) -> Pieces:
    count = sum(member.turns for member in crew.members.values())
    work = sum(member.weight for member in crew.members.values() if member.state != "killed")
    head: Pieces = [(f"  count {count:<4}", "bold"), (f"  {work} slots at work", "")]
    head.append(("  the lock is ", ""))
    member = crew.members.get(lock.holder)
    if member is None:
        return [*head, ("free", "dim")]
    if member.state != "killed":
        return [*head, (f"held by {member.name}", "green")]
    left = "has lapsed" if lock.expires_in is None else f"lapses in {lock.expires_in:.1f} s"
    return [*head, (f"held by {member.name}, which is dead; its grant {left}", "red")]


def _clipped(pieces: Pieces, width: int) -> Pieces:
    clipped = []
    for text, style in pieces:
        clipped.append((text[: max(0, width)], style))
        width -= len(text)
    return clipped
