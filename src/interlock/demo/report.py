"""The end of the demo in words: what was done, who was killed, and how its task moved on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TypeAlias

import interlock
from interlock.demo.facts import Facts

Pieces: TypeAlias = list[tuple[str, str]]

ROOM = 64
NEXT = (
    ("interlock init", "a store for this folder"),
    ("interlock task add hello --agent ada", "work for anybody"),
    ("interlock task next --agent ada", "claim what is best"),
    ("interlock lock run merge --agent ada -- sleep 9", "hold a lock for a command"),
)


def results(facts: Facts) -> Iterator[tuple[str, Pieces]]:
    """A name and its text, line by line."""
    killed, moved, slots = facts.killed, facts.moved_on, facts.slots
    done = f"{facts.completed} of {facts.tasks} tasks by {facts.workers} agents"
    yield "done", [(f"{done} in {facts.seconds:.1f} s: ", ""), _verdict(facts)]
    yield from _done_by(facts.done_by)
    most = f"{slots.most_at_once} of {slots.capacity} at work at once, at most"
    yield "slots", [(f"{most}; {slots.builds} builds", "")]
    yield "merges", [(f"{facts.merges} under the lock: ", ""), _merges(facts)]
    yield from _messages(facts)
    held = f" (pid {killed.pid}) in {killed.task}, with {killed.slots} slots"
    yield "killed", [(killed.agent, "red"), (held, "")]
    after = (f"to {moved.agent} after {moved.seconds:.2f} s", "green")
    yield "its task", [after, (f", as attempt {moved.attempt}; the TTL is {facts.ttl:g} s", "")]
    yield "its slots", [(f"to {moved.agent} after {moved.slots_seconds:.2f} s", "green")]
    yield "meanwhile", [(f"the others completed {moved.meanwhile} of the tasks", "")]
    yield "late done", [(f"by {killed.agent}, token {killed.token}: ", ""), _late(facts)]
    yield "record", [(f"{facts.entries} entries; those about {killed.task}:", "")]
    for told in facts.story:
        clock = time.strftime("%H:%M:%S", time.localtime(told.at))
        yield "", [(f"#{told.revision:<5} {clock}  {told.agent:5}  {told.text}", "dim")]
    said = ", ".join(f"{name} {word}" for name, word in _told(facts.verdicts))
    yield "verified", [(said, "red" if "bad" in facts.verdicts.values() else "green")]
    broken = [name.replace("_", " ") for name, kept in facts.promises.items() if not kept]
    for number, promise in enumerate(broken):
        yield "" if number else "BROKEN", [(promise, "red")]


def _told(verdicts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """All but that nobody could tell whether the end was cut: there was no anchor to prove it."""
    for name, word in verdicts.items():
        if (name, word) != ("truncation", "unproven"):
            yield name, word


def verdicts(fleet: interlock.Fleet) -> dict[str, str]:
    """What the record proves of itself, in three words."""
    found = fleet.record.verify()
    return {name: getattr(found, name) for name in ("integrity", "completeness", "truncation")}


def try_next() -> Iterator[tuple[str, str]]:
    """Commands, padded, and what they are for."""
    wide = max(len(command) for command, _ in NEXT)
    for command, what in (*_on_path(), *NEXT):
        yield command.ljust(wide), what


def _on_path() -> Iterator[tuple[str, str]]:
    """How a shell comes to know the command, unless it does."""
    folder = os.path.dirname(sys.executable)
    if shutil.which("interlock") or not shutil.which("interlock", path=folder):
        return
    inside = os.path.relpath(folder)
    below = inside.split(os.sep)[0] not in (".", "..") and shlex.quote(inside) == inside
    place = f'"$PWD/{inside}:$PATH"' if below else f'{shlex.quote(folder)}:"$PATH"'
    yield f"export PATH={place}", "find the command"


def _done_by(done_by: dict[str, int]) -> Iterator[tuple[str, Pieces]]:
    """Who did how many, in as many lines as that takes."""
    name, line = "by", ""
    for agent, count in done_by.items():
        said = f"{agent} {count}"
        if len(line) + len(said) > ROOM:
            yield name, [(line, "")]
            name, line = "", ""
        line = f"{line}, {said}" if line else said
    yield name, [(line, "")]


def _messages(facts: Facts) -> Iterator[tuple[str, Pieces]]:
    alert, query, stop = facts.alert, facts.query, facts.stop
    late = f"the last after {alert.seconds * 1000:.0f} ms"
    yield "alert", [(f"by {alert.agent}, heard by {alert.heard_by} agents, {late}", "")]
    took = f"answered {query.answer} after {query.seconds * 1000:.0f} ms"
    yield "query", [(f"by {query.agent}; {query.answered_by} {took}", "")]
    by = " and ".join(stop.by)
    yield "stop", [(f"by {by}: {stop.went} of the {stop.asked} that were asked have left", "")]


def _verdict(facts: Facts) -> tuple[str, str]:
    if facts.promises["all_done_and_none_twice"]:
        return "all complete, none twice", "green"
    return "NOT EACH OF THEM ONCE", "red"


def _merges(facts: Facts) -> tuple[str, str]:
    if facts.promises["one_merge_at_a_time"]:
        return "one at a time, tokens rising", "green"
    return "SOME WERE LOST, OR NOT ONE AT A TIME", "red"


def _late(facts: Facts) -> tuple[str, str]:
    if facts.late_done == "fenced":
        return "refused (fenced)", "green"
    return f"NOT REFUSED ({facts.late_done})", "red"
