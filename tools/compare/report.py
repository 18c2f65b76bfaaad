"""The tables and the plot of a run, and the page that they are written to."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.compare.goals import Found, Goal
from tools.compare.plot import Bars, bar_chart
from tools.compare.processes import ROOT, CompareTrouble
from tools.compare.sections import Compared

PAGE = ROOT / "docs" / "explanation" / "speed.md"
PLOT = "compare.svg"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run."""

    command: str
    day: str
    turns: int
    compared: Sequence[Compared]
    found: Sequence[Found]
    versions: Mapping[str, str]

    def machine(self) -> str:
        """When and where it was printed, with the versions of everything."""
        cores = os.cpu_count()
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        return (
            f"Printed by `{self.command}` on {self.day}: medians of {self.turns} turns, on {cores}"
            f" cores with {platform.system()} {platform.release()} and Python"
            f" {platform.python_version()}.\n"
            f"Versions: {versions}."
        )

    def text(self) -> str:
        """All tables."""
        parts = [self.machine(), *(_section(each) for each in self.compared)]
        if self.found:
            parts.append(f"### What is to be reached\n\n{goals_table(self.found)}")
        return "\n\n".join(parts)

    def plot(self) -> str:
        """The compared figures of all sections as bars."""
        return bar_chart("Interlock beside other tools", [_bars(each) for each in self.compared])

    def write(self, page: Path = PAGE) -> None:
        """Put the tables between the marks of the page, and the plot beside it."""
        machine, *rest = self.text().split("\n\n### ")
        image = f"![Interlock beside other tools]({PLOT})"
        body = "\n\n### ".join([f"{machine}\n\n{image}", *rest])
        text = between_marks(page.read_text(encoding="utf-8"), "compare", body)
        page.with_name(PLOT).write_text(self.plot(), encoding="utf-8")
        page.write_text(text, encoding="utf-8")


def between_marks(text: str, mark: str, body: str) -> str:
    """The text of a page with this body between the marks."""
    first, last = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    pattern = re.compile(f"{re.escape(first)}\n.*?{re.escape(last)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise CompareTrouble(f"the page needs one {first} and one {last}: put them back")
    return pattern.sub(lambda _: f"{first}\n\n{body}\n\n{last}", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with columns that a terminal aligns; numbers stand to the right."""
    rows = list(rows)
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    right = [at > 0 and all(_is_number(row[at]) for row in rows) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        filled = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return f"| {' | '.join(filled)} |"

    rule = (
        "-" * (width - 1) + (":" if to_right else "-")
        for width, to_right in zip(widths, right, strict=True)
    )
    return "\n".join([line(head), f"| {' | '.join(rule)} |", *map(line, rows)])


def goals_table(found: Sequence[Found]) -> str:
    """Each goal with its median; one that is missed keeps its line."""
    return table(
        ("what", "median", "to reach", "aim", "reached"),
        (
            (
                each.goal.title,
                _number(each.median, each.goal.unit),
                _limit(each.goal, each.goal.reach),
                "" if each.goal.aim is None else _limit(each.goal, each.goal.aim),
                "yes" if each.reached else "no",
            )
            for each in found
        ),
    )


def _section(compared: Compared) -> str:
    section = compared.section
    head = ["contender", *(column.title for column in section.columns)]
    head += ["lowest to highest", "Interlock beside it", "durability", "does not do"]
    rows = []
    for peer in section.peers:
        values = compared.values(peer.name)
        digits = section.compared.digits
        rows.append(
            [
                peer.title,
                *(f"{compared.median(peer.name, c.key):,.{c.digits}f}" for c in section.columns),
                f"{min(values):,.{digits}f} to {max(values):,.{digits}f}",
                "" if peer.ours else f"{compared.ahead(peer):.2f}",
                peer.keeps,
                peer.lacks,
            ]
        )
    return f"### {section.title}\n\n{table(head, rows)}"


def _bars(compared: Compared) -> Bars:
    section = compared.section
    less = " (less is better)" if section.compared.less_is_better else ""
    return Bars(
        title=f"{section.title}: {section.compared.title}{less}",
        values=[(peer.title, compared.median(peer.name), peer.ours) for peer in section.peers],
        digits=section.compared.digits,
    )


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit()


def _limit(goal: Goal, value: float) -> str:
    return f"at {'most' if goal.at_most else 'least'} {value:,g}{goal.unit}"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:,.2f}{unit}"  # noqa: PLR2004
