"""The screen of the demo: a table redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO, TypeAlias

from interlock.demo.results import DemoResult, DemoTaskHistory
from interlock.demo.worker import STAGES, PlannedTask

if TYPE_CHECKING:
    from interlock.demo.scenario import WorkerPool, WorkerProcess

StyledText: TypeAlias = list[tuple[str, str]]
"""Texts with their styles."""

WIDTH = 79
NARROW = 80
AGENTS_WIDTH = 44
"""How wide the table of agents is; the graph is to the right of it."""
DONE_BY_WIDTH = 64
STYLES = {"bold": "1", "dim": "2", "red": "31;1", "green": "32;1"}
IDLE = {"starting": "starts", "ready": "is ready", "done": "has left", "lost": "joins again"}
MARKS = {"complete": ("█", "#"), "running": ("▒", "+"), "waiting": ("·", "."), "lost": ("X", "X")}
MARK_STYLES = {"complete": "green", "running": "bold", "waiting": "dim", "lost": "red"}
NEXT = (
    ("interlock init", "a store for this folder"),
    ("interlock task add hello --agent ada", "a task for any agent"),
    ("interlock task next --agent ada", "claim what is best"),
    ("interlock lock run merge --agent ada -- sleep 9", "hold a lock for a command"),
)


class Plain:
    """For pipes and small terminals: a line for each thing that happens."""

    leisure = 0.4
    """How slowly the demo runs on this screen."""

    def __init__(self, out: TextIO, *, colour: bool = False) -> None:
        self._out = out
        self._colour = colour
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        """Write the first line, and an empty one."""
        self._write(self._line([(text, "bold")]), "")

    def note(self, text: str) -> None:
        """Write a line with its time."""
        self._write(self._line(self._timed(text)))

    def draw(self, pool: WorkerPool, history: DemoTaskHistory) -> None:
        """Show the present state, if this screen can; called many times a second."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def report(self, result: DemoResult) -> None:
        """Write the result, aligned."""
        self._write("")
        for name, text in result_lines(result):
            self._write(self._line([(f"  {name:10}  ", "dim"), *text]))
        self._write("", self._line([("  try next", "bold")]))
        for command, what in try_next():
            self._write(self._line([(f"    {command}  ", ""), (what, "dim")]))

    def _timed(self, text: str) -> StyledText:
        at = time.monotonic() - self._began
        return [(f"  {at:4.1f} s  ", "dim"), (text, "")]

    def _line(self, styled: StyledText) -> str:
        line = "".join(self._painted(text, style) for text, style in styled)
        return line.rstrip()

    def _painted(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and self._colour else text

    def _write(self, *lines: str) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()


class Live(Plain):
    """For terminals: agents and the graph, redrawn in place, above the notes so far."""

    leisure = 1.0

    def __init__(self, out: TextIO, tasks: tuple[PlannedTask, ...], *, colour: bool) -> None:
        super().__init__(out, colour=colour)
        self._tasks = tasks
        self._notes: list[StyledText] = []
        self._drawn = 0
        self._ascii = "utf" not in (out.encoding or "").lower()
        self._cursor(shown=False)

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self._notes.append(self._timed(text))

    def draw(self, pool: WorkerPool, history: DemoTaskHistory) -> None:
        """Write the whole table over the last one."""
        width = min(WIDTH, shutil.get_terminal_size().columns - 1)
        rows = [*self._table(pool, history), [], *self._notes]
        lines = [self._line(_clipped(row, width)) for row in rows]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(up + "\n".join(f"\r\x1b[2K{line}" for line in lines))
        self._drawn = len(lines)

    def close(self) -> None:
        """Show the cursor again."""
        self._cursor(shown=True)

    def _cursor(self, *, shown: bool) -> None:
        self._out.write("\x1b[?25h" if shown else "\x1b[?25l")
        self._out.flush()

    def _table(self, pool: WorkerPool, history: DemoTaskHistory) -> list[StyledText]:
        """The agents, and beside them the progress of the graph: a line for each stage."""
        done, current, workers = history.done_by(), history.current, pool.workers.values()
        lost = {current.get(worker.name) for worker in workers if worker.state == "killed"}
        agents = [_agent(each, current.get(each.name), done[each.name]) for each in workers]
        stages = [self._stage(stage, history, lost) for stage in STAGES]
        head = f"  {'agent':6}{'pid':>8}  {'works on':16}{'done':>5}"
        counts = f"{history.count('complete')} of {len(self._tasks)} tasks complete"
        no_agent = [(" " * AGENTS_WIDTH, "")]
        return [
            [(f"  {counts}", "bold"), (f", {history.count('running')} claimed", "")],
            [],
            [(f"{head:{AGENTS_WIDTH}}", "dim"), (self._legend(), "dim")],
            *([*a, *s] for a, s in zip_longest(agents, stages, fillvalue=no_agent)),
        ]

    def _stage(self, stage: str, history: DemoTaskHistory, lost: set[str | None]) -> StyledText:
        tasks = [task.task for task in self._tasks if task.work.stage == stage]
        states = ["lost" if task in lost else history.states.get(task, "waiting") for task in tasks]
        return [(f"{stage:7}", ""), *((self._mark(state), MARK_STYLES[state]) for state in states)]

    def _legend(self) -> str:
        named = ("complete", "done"), ("running", "claimed"), ("lost", "lost")
        return "stage  " + "  ".join(f"{self._mark(state)} {word}" for state, word in named)

    def _mark(self, state: str) -> str:
        return MARKS[state][self._ascii]


def choose(tasks: tuple[PlannedTask, ...], workers: int, out: TextIO | None = None) -> Plain:
    """The best screen for this output."""
    out = out or sys.stdout
    if not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Plain(out)
    colour = not os.environ.get("NO_COLOR")
    size = shutil.get_terminal_size()
    if size.columns < NARROW or size.lines < max(workers, len(STAGES)) + 13:
        return Plain(out, colour=colour)
    return Live(out, tasks, colour=colour)


def result_lines(result: DemoResult) -> Iterator[tuple[str, StyledText]]:
    """The result as names and texts, line by line."""
    killed, moved, slots = result.killed, result.moved_on, result.slots
    kept, done = result.promises, f"{result.completed} of {result.tasks} tasks"
    once = _checked(
        kept["all_done_and_none_twice"], "all complete, none twice", "NOT EACH OF THEM ONCE"
    )
    yield "done", [(f"{done} by {result.workers} agents in {result.seconds:.1f} s: ", ""), once]
    yield from _done_by(result.done_by)
    most = f"{slots.most_at_once} of {slots.capacity} at work at once, at most"
    yield "slots", [(f"{most}; {slots.builds} builds", "")]
    merged = _checked(
        kept["one_merge_at_a_time"],
        "one at a time, tokens rising",
        "SOME WERE LOST, OR NOT ONE AT A TIME",
    )
    yield "merges", [(f"{result.merges} under the lock: ", ""), merged]
    yield from _message_lines(result)
    held = f" (pid {killed.pid}) in {killed.task}, with {killed.slots} slots"
    yield "killed", [(killed.agent, "red"), (held, "")]
    after = (f"to {moved.agent} after {moved.seconds:.2f} s", "green")
    yield "its task", [after, (f", as attempt {moved.attempt}; the TTL is {result.ttl:g} s", "")]
    yield "its slots", [(f"to {moved.agent} after {moved.slots_seconds:.2f} s", "green")]
    yield "meanwhile", [(f"the others completed {moved.meanwhile} of the tasks", "")]
    late = result.late_done
    refused = _checked(late == "fenced", "refused (fenced)", f"NOT REFUSED ({late})")
    yield "late done", [(f"by {killed.agent}, token {killed.token}: ", ""), refused]
    yield "record", [(f"{result.entries} entries; those about {killed.task}:", "")]
    for step in result.story:
        clock = time.strftime("%H:%M:%S", time.localtime(step.at))
        yield "", [(f"#{step.revision:<5} {clock}  {step.agent:5}  {step.text}", "dim")]
    # Without an anchor the record cannot prove that its end was not cut off; that is no news here.
    verdicts = [each for each in result.verdicts.items() if each != ("truncation", "unproven")]
    good = "bad" not in result.verdicts.values()
    text = ", ".join(f"{name} {verdict}" for name, verdict in verdicts)
    yield "verified", [(text, "green" if good else "red")]
    broken = [name.replace("_", " ") for name, held in kept.items() if not held]
    for number, promise in enumerate(broken):
        yield "" if number else "BROKEN", [(promise, "red")]


def try_next() -> Iterator[tuple[str, str]]:
    """Commands to try, padded, with their purpose."""
    width = max(len(command) for command, _ in NEXT)
    for command, what in (*_path_command(), *NEXT):
        yield command.ljust(width), what


def _path_command() -> Iterator[tuple[str, str]]:
    """The command that lets a shell find ``interlock``, unless it does already."""
    folder = os.path.dirname(sys.executable)
    if shutil.which("interlock") or not shutil.which("interlock", path=folder):
        return
    inside = os.path.relpath(folder)
    below = inside.split(os.sep)[0] not in (".", "..") and shlex.quote(inside) == inside
    path = f'"$PWD/{inside}:$PATH"' if below else f'{shlex.quote(folder)}:"$PATH"'
    yield f"export PATH={path}", "find the command"


def _done_by(done_by: dict[str, int]) -> Iterator[tuple[str, StyledText]]:
    """How many tasks each agent did, in as many lines as that takes."""
    name, line = "by", ""
    for agent, count in done_by.items():
        text = f"{agent} {count}"
        if len(line) + len(text) > DONE_BY_WIDTH:
            yield name, [(line, "")]
            name, line = "", ""
        line = f"{line}, {text}" if line else text
    yield name, [(line, "")]


def _message_lines(result: DemoResult) -> Iterator[tuple[str, StyledText]]:
    alert, query, stop = result.alert, result.query, result.stop
    late = f"the last after {alert.seconds * 1000:.0f} ms"
    yield "alert", [(f"by {alert.agent}, heard by {alert.heard_by} agents, {late}", "")]
    took = f"answered {query.answer} after {query.seconds * 1000:.0f} ms"
    yield "query", [(f"by {query.agent}; {query.answered_by} {took}", "")]
    by = " and ".join(stop.by)
    yield "stop", [(f"by {by}: {stop.went} of the {stop.asked} that were asked have left", "")]


def _checked(held: bool, good: str, bad: str) -> tuple[str, str]:
    return (good, "green") if held else (bad, "red")


def _agent(worker: WorkerProcess, task: str | None, done: int) -> StyledText:
    """An agent, its task by the record, and how many tasks it completed."""
    name = (f"  {worker.name:6}{worker.pid:>8}  ", "")
    if worker.state == "killed":
        doing = ("KILLED", "red")
    elif task is not None:
        doing = (task, "bold")
    else:
        doing = (IDLE.get(worker.state, "waits"), "dim")
    return [name, (f"{doing[0]:16}", doing[1]), (f"{done:>5}{'':{AGENTS_WIDTH - 39}}", "")]


def _clipped(styled: StyledText, width: int) -> StyledText:
    clipped = []
    for text, style in styled:
        clipped.append((text[: max(0, width)], style))
        width -= len(text)
    return clipped
