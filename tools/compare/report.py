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


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run: its tables and its plot, and the versions of everything."""

    name: str
    """``compare`` or ``grow``: the marks in the page, and the name of the plot."""
    title: str
    day: str
    turns: int
    tables: Sequence[str]
    plot: str
    versions: Mapping[str, str]
    found: Sequence[Found] = ()

    def text(self, image: str = "") -> str:
        """All of it in Markdown."""
        goals = f"### What is to be reached\n\n{goals_table(self.found)}" if self.found else ""
        return "\n\n".join(filter(None, [self._origin(), image, *self.tables, goals]))

    def write(self, page: Path = PAGE) -> None:
        """Put it between the marks of the page, and the plot beside the page."""
        plot = f"{self.name}.svg"
        body = self.text(f"![{self.title}]({plot})")
        text = between_marks(page.read_text(encoding="utf-8"), self.name, body)
        page.with_name(plot).write_text(self.plot, encoding="utf-8")
        page.write_text(text, encoding="utf-8")

    def _origin(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        return (
            f"Printed by `make {self.name}` on {self.day}: medians of {self.turns} turns, on"
            f" {os.cpu_count()} cores with {platform.system()} {platform.release()} and Python"
            f" {platform.python_version()}.\n"
            f"Versions: {versions}."
        )


def between_marks(text: str, mark: str, body: str) -> str:
    """The text of a page with this body between the marks."""
    first, last = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    pattern = re.compile(f"{re.escape(first)}\n.*?{re.escape(last)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise CompareTrouble(f"the page needs one {first} and one {last}: put them back")
    return pattern.sub(lambda _: f"{first}\n\n{body}\n\n{last}", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, aligned for a terminal, too; numbers stand to the right."""
    rows = list(rows)
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    right = [at > 0 and all(_is_number(row[at]) for row in rows) for at in range(len(head))]

    def line(cells: Iterable[str]) -> str:
        filled = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return f"| {' | '.join(filled)} |"

    rule = line(
        "-" * (width - 1) + (":" if to_right else "-")
        for width, to_right in zip(widths, right, strict=True)
    )
    return "\n".join([line(head), rule, *map(line, rows)])


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


def section_table(compared: Compared) -> str:
    """The medians of a section; a contender that is ahead keeps its line, too."""
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


def plot_sections(title: str, all_compared: Sequence[Compared]) -> str:
    """The compared figures of all sections as bars."""
    groups = []
    for compared in all_compared:
        section, column = compared.section, compared.section.compared
        less = " (less is better)" if column.less_is_better else ""
        groups.append(
            Bars(
                title=f"{section.title}: {column.title}{less}",
                values=[(p.title, compared.median(p.name), p.ours) for p in section.peers],
                digits=column.digits,
            )
        )
    return bar_chart(title, groups)


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit()


def _limit(goal: Goal, value: float) -> str:
    return f"at {'most' if goal.at_most else 'least'} {value:,g}{goal.unit}"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:,.2f}{unit}"  # noqa: PLR2004
