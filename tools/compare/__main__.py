"""``make compare`` and ``make grow``: measure, print, write into the page, check the goals."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tools.compare import goals, grow, sections
from tools.compare.processes import CompareTrouble, say
from tools.compare.report import Report, goals_table, plot_sections, section_table
from tools.compare.sections import Bench

from interlock.testing.servers import ServerTrouble

TURNS = {"compare": 5, "grow": 3}
"""The least that the page shows."""


def main(words: list[str]) -> int:
    """Carry out the command; returns the exit status."""
    chosen = _parse(words)
    only = [word for word in chosen.only.split(",") if word]
    known = compare_names() if chosen.what == "compare" else list(grow.PANELS)
    if unknown := sorted(set(only) - set(known)):
        say(f"no such row: {', '.join(unknown)}; choose of {', '.join(known)}")
        return 2
    turns = chosen.turns or TURNS[chosen.what]
    if chosen.write and (only or turns < TURNS[chosen.what] or chosen.most):
        say(f"the page has all rows, medians of {TURNS[chosen.what]} turns or more: measure all")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Bench.open(chosen.peers) as bench:
            if chosen.what == "compare":
                report = compare(bench, only, turns, chosen.plain)
            else:
                report = growth(bench, only, turns, chosen.most)
    except (CompareTrouble, ServerTrouble) as trouble:
        say(f"make {chosen.what}: {trouble}")
        return 1
    except KeyboardInterrupt:
        say(f"make {chosen.what}: interrupted; nothing is written")
        return 130
    print(report.text())
    if chosen.write:
        report.write()
    missed = [each for each in report.found if not each.reached]
    if chosen.check and missed:
        say(f"\nbelow what is to be reached:\n{goals_table(missed)}")
        return 1
    return 0


def compare(bench: Bench, only: Sequence[str], turns: int, plain: str) -> Report:
    """Measure all rows, or those that are named."""
    compared = [sections.take_turns(bench, each, turns) for each in sections.chosen(only)]
    figures = {
        f"{each.section.name}/{peer.name}": each.values(peer.name)
        for each in compared
        for peer in each.section.peers
    } | goals.measure(bench.servers, only, turns, plain)
    title = "Interlock beside other tools"
    return Report(
        name="compare",
        title=title,
        day=time.strftime("%Y-%m-%d"),
        turns=turns,
        tables=[section_table(each) for each in compared],
        plot=plot_sections(title, compared),
        versions=bench.versions({peer for each in compared for peer in each.section.peers}),
        found=list(goals.judge(figures)),
    )


def growth(bench: Bench, only: Sequence[str], turns: int, most: int) -> Report:
    """Measure how the cost grows, up to a size."""
    panels = only or list(grow.PANELS)
    grown = [grow.PANELS[name](bench, turns, most or max(grow.TASKS)) for name in panels]
    title = "How the cost grows"
    return Report(
        name="grow",
        title=title,
        day=time.strftime("%Y-%m-%d"),
        turns=turns,
        tables=[each.table() for each in grown],
        plot=grow.plot(title, grown),
        versions=bench.versions({peer for each in grown for peer in each.peers}),
    )


def compare_names() -> list[str]:
    """What ONLY may name: sections, and one row of a section."""
    rows = [f"{each.name}/{peer.name}" for each in sections.SECTIONS for peer in each.peers]
    known = [*rows, *goals.NAMES]
    return [*dict.fromkeys(name.partition("/")[0] for name in known), *known]


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.compare", description=__doc__)
    parser.add_argument("what", choices=tuple(TURNS))
    parser.add_argument("--peers", default=sys.executable, help="the Python of the contenders")
    parser.add_argument("--plain", default=sys.executable, help="the Python of a plain install")
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--most", type=int, default=0, help="the largest size that grows")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args(words)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
