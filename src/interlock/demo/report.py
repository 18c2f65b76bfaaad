"""The end of the demo in words: what was done, who was killed, and how its grants moved on."""

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

NEXT = (
    ("interlock init", "a store for this folder"),
    ("interlock lock run merge --agent ada -- sleep 9", "hold a lock for a command"),
    ("interlock lock show merge", "elsewhere: who has it?"),
)


def results(facts: Facts) -> Iterator[tuple[str, Pieces]]:
    """A name and its text, line by line."""
    killed, moved, late = facts.killed, facts.moved_on, facts.late_write
    turns = f"{facts.turns} turns by {facts.workers} agents in {facts.seconds:.1f} s"
    yield "done", [(f"{turns}, {facts.cut_short} cut short", "")]
    yield "file", [(f"counted to {facts.count}: ", ""), _verdict(facts)]
    median = f"{facts.handoff_ms:.1f} ms from write to next holder (median)"
    yield "handoffs", [(f"{facts.handoffs}, {median}", "")]
    slots = facts.slots
    most = (
        f"{slots.most_at_once} of {slots.capacity} at work at once, at most; {slots.builds} builds"
    )
    yield "slots", [(most, "")]
    held = f" (pid {killed.pid}) had {killed.slots} slots and the lock, token {killed.token}"
    yield "killed", [(killed.agent, "red"), (held, "")]
    after = (f"to {moved.agent} after {moved.seconds:.2f} s", "green")
    yield "moved on", [after, (f" with token {moved.token}; the TTL is {facts.ttl:g} s", "")]
    after = (f"to {slots.moved_to} after {slots.seconds:.2f} s", "green")
    yield "its slots", [after]
    refused = (f"file {late.file}, Interlock {late.store}", "green")
    yield "late write", [(f"by {killed.agent}, token {killed.token}: ", ""), refused]
    yield "record", [(f"{facts.entries} entries; around the kill:", "")]
    for told in facts.story:
        clock = time.strftime("%H:%M:%S", time.localtime(told.at))
        yield "", [(f"#{told.revision:<5} {clock}  {told.agent:5}  {told.text}", "dim")]
    if facts.verdicts:
        said = ", ".join(f"{name} {word}" for name, word in facts.verdicts.items())
        yield "verified", [(said, "red" if "bad" in facts.verdicts.values() else "green")]
    broken = [name.replace("_", " ") for name, kept in facts.promises.items() if not kept]
    if broken:
        yield "BROKEN", [(", ".join(broken), "red")]


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


def _verdict(facts: Facts) -> tuple[str, str]:
    if facts.promises["no_update_lost"] and facts.promises["tokens_increase"]:
        return "every turn once, tokens rising", "green"
    return "UPDATES WERE LOST", "red"
