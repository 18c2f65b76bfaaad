"""Locks and semaphores: holders, queues, and which holder blocks which waiters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlock.faces.tui.screen_data import (
    TONES,
    Column,
    TableRow,
    TableView,
    Tone,
    ViewSource,
    action,
    actions,
    cells,
    left,
    lines,
)

CHAIN = 20
"""Lines of a chain of waits."""


def locks(source: ViewSource) -> TableView:
    """Locks and semaphores, with their holders and waiters."""
    graph = WaitPicture(source.overview)
    rows = []
    for each in source.overview["locks"]:
        thing = f"lock/{each['lock']}"
        held = action("lock break", lock=each["lock"], token=each["token"])
        rows.append(
            TableRow(
                key=thing,
                cells=cells(
                    thing,
                    each["state"],
                    each["holder"],
                    ", ".join(each["waiters"]),
                    source.ago(each["since"]),
                    left(each["expires_in"]),
                ),
                tone=TONES.get(each["state"], ""),
                thing=thing,
                detail=lines(graph.around(thing)),
                actions=actions(held if each["holder"] else None),
            )
        )
    for each in source.overview["semaphores"]:
        name, holders = each["semaphore"], each["holders"]
        thing = f"sem/{name}"
        used = each["capacity"] - each["available"]
        stale = any(held["state"] == "stale" for held in holders)
        busy: Tone = "warn" if each["waiters"] else "busy" if used else "good"
        first = holders[0] if holders else None
        rows.append(
            TableRow(
                key=thing,
                cells=cells(
                    thing,
                    f"{used} of {each['capacity']}",
                    ", ".join(held["holder"] for held in holders),
                    ", ".join(waiter["agent"] for waiter in each["waiters"]),
                    source.ago(min((held["since"] for held in holders), default=None)),
                    "",
                ),
                tone="bad" if stale else busy,
                thing=thing,
                detail=lines(graph.around(thing)),
                actions=actions(
                    action(
                        "sem break", semaphore=name, holder=first["holder"], token=first["token"]
                    )
                    if first
                    else None
                ),
            )
        )
    return TableView(
        name="locks",
        columns=(
            Column("thing"), Column("state"), Column("holder"), Column("waiting"),
            Column("held for", 60), Column("expires", 90),
        ),
        empty="No lock is held.\n\nHold one: interlock lock run deploy --agent ada -- PROGRAM",
        rows=tuple(rows),
    )  # fmt: skip


class WaitPicture:
    """Holders and waiters as lines; a cycle is named where it closes."""

    def __init__(self, overview: Mapping[str, Any]) -> None:
        self._holders: dict[str, list[str]] = {}
        self._waiters: dict[str, list[str]] = {}
        for each in overview["locks"]:
            thing = f"lock/{each['lock']}"
            self._holders[thing] = [each["holder"]] if each["holder"] else []
            self._waiters[thing] = list(each["waiters"])
        for each in overview["semaphores"]:
            thing = f"sem/{each['semaphore']}"
            self._holders[thing] = [held["holder"] for held in each["holders"]]
            self._waiters[thing] = [waiter["agent"] for waiter in each["waiters"]]

    def around(self, thing: str) -> str:
        """The holders of a thing and what they wait for, then the agents that it blocks."""
        found: list[str] = []
        for holder in self._holders.get(thing, []):
            self._behind(holder, thing, (), found)
        self._blocked(thing, 1, (), found)
        return "\n".join(found[:CHAIN])

    def _behind(self, agent: str, thing: str, path: tuple[str, ...], found: list[str]) -> None:
        indent = "· " * len(path)
        if agent in path or len(found) > CHAIN:
            found.append(f"{indent}{agent} holds {thing}: a cycle, so this wait cannot end")
            return
        wanted = [each for each, waiting in self._waiters.items() if agent in waiting]
        then = f", and waits for {', '.join(wanted)}" if wanted else ""
        found.append(f"{indent}{agent} holds {thing}{then}")
        for each in wanted:
            for holder in self._holders.get(each, []):
                self._behind(holder, each, (*path, agent), found)

    def _blocked(self, thing: str, depth: int, path: tuple[str, ...], found: list[str]) -> None:
        for agent in self._waiters.get(thing, []):
            if agent in path or len(found) > CHAIN:
                continue
            held = [
                each
                for each, holders in self._holders.items()
                if agent in holders and self._waiters.get(each)
            ]
            then = f", and holds {', '.join(held)}" if held else ""
            found.append(f"{'· ' * depth}{agent} waits for {thing}{then}")
            for each in held:
                self._blocked(each, depth + 1, (*path, agent), found)
