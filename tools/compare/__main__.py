"""``make compare``: measure, print the tables, write them into the page, or check the goals."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence

from tools.compare import goals, sections
from tools.compare.processes import CompareTrouble, Runner
from tools.compare.report import Report, goals_table
from tools.compare.servers import Servers

from interlock.testing.servers import ServerTrouble

LEAST_TURNS = 5


def main(words: list[str]) -> int:
    """Carry out the command; returns the exit status."""
    chosen = _parse(words)
    only = [word for word in chosen.only.split(",") if word]
    if unknown := sorted(set(only) - set(names())):
        print(f"no such row: {', '.join(unknown)}; choose of {', '.join(names())}", file=sys.stderr)
        return 2
    if chosen.write and (only or chosen.turns < LEAST_TURNS):
        print(
            f"the page has all rows, {LEAST_TURNS} turns or more: leave out ONLY", file=sys.stderr
        )
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        report = run(chosen.peers, only, chosen.turns, chosen.command)
    except (CompareTrouble, ServerTrouble) as trouble:
        print(f"make compare: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make compare: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(report.text())
    if chosen.write:
        report.write()
    missed = [each for each in report.found if not each.reached]
    if chosen.check and missed:
        print(f"\nbelow what is to be reached:\n{goals_table(missed)}", file=sys.stderr)
        return 1
    return 0


def run(peers: str, only: Sequence[str], turns: int, command: str) -> Report:
    """Measure all rows, or those that are named; nothing is left behind."""
    with (
        tempfile.TemporaryDirectory(prefix="interlock-compare-") as folder,
        Servers(folder, peers) as servers,
    ):
        bench = sections.Bench(runner=Runner(folder, peers), servers=servers)
        compared = [
            sections.take_turns(bench, section, turns, _say) for section in sections.chosen(only)
        ]
        figures = {
            f"{each.section.name}/{peer.name}": each.values(peer.name)
            for each in compared
            for peer in each.section.peers
        } | goals.measure(servers, only, turns, _say)
        versions = servers.versions()
        for peer in {peer for each in compared for peer in each.section.peers}:
            versions |= bench.runner.versions(peer)
    return Report(
        command=command,
        day=time.strftime("%Y-%m-%d"),
        turns=turns,
        compared=compared,
        found=list(goals.judge(figures)),
        versions=versions,
    )


def names() -> list[str]:
    """What ONLY may name: sections, and one row of a section."""
    rows = [f"{each.name}/{peer.name}" for each in sections.SECTIONS for peer in each.peers]
    known = [*rows, *goals.NAMES]
    return [*dict.fromkeys(name.partition("/")[0] for name in known), *known]


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--peers", default=os.path.abspath(".venv-compare/bin/python"))
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--turns", type=int, default=LEAST_TURNS)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--command", default="make compare", help="what the page names")
    return parser.parse_args(words)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
