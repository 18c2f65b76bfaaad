"""The comparison runs each task once, judges the goals, and writes pages that can be read."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from tests.docs.pages import ROOT
from tools.compare import __main__ as command
from tools.compare import claims, goals, grow, locks, messages, sections
from tools.compare.goals import Found
from tools.compare.processes import CompareTrouble, Ran, Runner
from tools.compare.report import PAGE, Report, between_marks, plot_sections, section_table
from tools.compare.sections import Bench, Compared, Section
from tools.compare.servers import Servers

pytestmark = pytest.mark.tools

PEERS = (claims.Interlock, claims.BareSql)
SMALL = replace(sections.CLAIMS, peers=PEERS, processes=2, count=12)
SVG = "{http://www.w3.org/2000/svg}"


class NoLock(locks.Locks):
    name = title = "none"


def compared(section: Section, folder: Path, turns: int = 1) -> Compared:
    # Neither needs the environment of the contenders.
    with Servers(str(folder), sys.executable) as servers:
        bench = Bench(runner=Runner(str(folder), sys.executable), servers=servers)
        return sections.take_turns(bench, section, turns)


def report(*values: float) -> Report:
    """A run in which Interlock did so many tasks a second, and each other contender 100."""
    turns = {peer.name: [{"rate": 100.0, "least": 1.0}] * len(values) for peer in PEERS}
    turns["interlock"] = [{"rate": value, "least": 0.9} for value in values]
    found = goals.judge({"claims/ahead": values, "claims/huey": [100.0] * len(values)})
    compared = Compared(section=SMALL, turns=turns)
    return Report(
        name="compare",
        title="Interlock beside other tools",
        day="2026-01-31",
        turns=len(values),
        tables=[section_table(compared)],
        plot=plot_sections("Interlock beside other tools", [compared]),
        versions={"huey": "3"},
        found=list(found),
    )


def test_contenders_take_turns_and_run_each_task_once(tmp_path: Path) -> None:
    found = compared(SMALL, tmp_path, turns=2)
    assert {name: len(turns) for name, turns in found.turns.items()} == {"interlock": 2, "sql": 2}
    assert found.median("interlock") > 0
    assert found.ahead(claims.BareSql) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_the_rows_of_our_loops_are_named_for_what_they_do(tmp_path: Path) -> None:
    loops = (claims.Interlock, claims.InterlockAhead)
    found = compared(replace(SMALL, peers=loops), tmp_path)
    assert all(found.median(loop.name) > 0 for loop in loops)
    assert [loop.title for loop in loops] == [
        "Interlock, SQLite, plain loop",
        f"Interlock, SQLite, ahead={claims.InterlockAhead.ahead}",
    ]


def test_one_process_works_on_many_tasks_at_once(tmp_path: Path) -> None:
    many = replace(sections.ALONE, peers=(claims.InterlockInFlight,), count=12, at_once=4)
    assert compared(many, tmp_path).median("in-flight") > 0


def test_processes_take_a_lock_from_each_other(tmp_path: Path) -> None:
    crowd = replace(sections.LOCKS, peers=(locks.Interlock,), processes=2, seconds=0.2)
    found = compared(crowd, tmp_path)
    assert found.median("interlock", "grants") >= found.median("interlock", "handoffs") > 0


@pytest.mark.parametrize("section", [sections.LATENCY, sections.MESSAGES], ids=lambda s: s.name)
def test_each_message_is_received_once(section: Section, tmp_path: Path) -> None:
    few = replace(section, peers=(messages.Interlock,), count=6, at_once=min(section.at_once, 3))
    assert compared(few, tmp_path).median("interlock") > 0


def test_two_holders_at_once_are_found(tmp_path: Path) -> None:
    crowd = replace(sections.LOCKS, peers=(NoLock,), processes=2, seconds=0.1)
    runner = Runner(str(tmp_path), sys.executable)
    notes = [[(1, 0.0), (2, 1.0)], [(2, 1.0), (3, 2.0)]]
    runner.together = lambda *_: Ran(begin=0.0, notes=notes)  # type: ignore[method-assign]
    with Servers(str(tmp_path), "") as servers, pytest.raises(CompareTrouble, match="at once"):
        sections.hold(Bench(runner=runner, servers=servers), NoLock, crowd)


def test_a_task_that_ran_twice_or_never_is_found() -> None:
    sections.once("all", [[(0, 1.0), (2, 1.0)], [(1, 1.0)]], 3)
    for numbers in ([0, 1], [0, 1, 1, 2]):
        with pytest.raises(CompareTrouble, match="of 3"):
            sections.once("some", [[(number, 1.0) for number in numbers]], 3)


def test_a_contender_that_fails_ends_the_run_with_its_error(tmp_path: Path) -> None:
    broken = replace(SMALL, peers=(claims.Huey,))  # it is not installed here
    with pytest.raises(CompareTrouble, match="No module named 'huey'"):
        compared(broken, tmp_path)


def test_only_names_sections_and_rows_with_what_they_are_compared_with() -> None:
    (section,) = sections.chosen(["claims/rq"])
    assert [peer.name for peer in section.peers] == ["interlock-redis", "rq"]
    assert [each.name for each in sections.chosen(["alone"])] == ["alone"]
    assert list(sections.chosen(["floors"])) == []
    assert set(sections.chosen([])) == set(sections.SECTIONS)


def test_every_goal_has_a_figure_that_the_run_measures() -> None:
    for goal in goals.GOALS:
        for figure in filter(None, (goal.figure, goal.beside)):
            assert figure in command.compare_names(), goal.title


@pytest.mark.parametrize(("value", "status"), [(119.0, 1), (120.0, 0), (200.0, 0)])
def test_check_fails_where_a_row_is_below_its_goal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    status: int,
) -> None:
    monkeypatch.setattr(command, "compare", lambda *_: report(value, value, 1.0))
    assert command.main(["compare", "--check"]) == status
    shown = capsys.readouterr()
    assert "beside huey" in shown.out
    assert ("beside huey" in shown.err) == bool(status)
    assert command.main(["compare"]) == 0


def test_a_goal_may_be_a_most() -> None:
    goal = goals.Goal(title="cold", figure="cold/acquire", reach=4.2, at_most=True)
    assert goal.reached(4.2)
    assert not goal.reached(4.3)


def test_the_page_is_written_by_whole_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = PAGE.read_text()
    assert command.main(["compare", "--write", "--only", "claims"]) == 2
    assert command.main(["compare", "--write", "--turns", "4"]) == 2
    assert command.main(["compare", "--only", "clams"]) == 2
    assert "claims/huey" in capsys.readouterr().err
    assert PAGE.read_text() == before


def test_tables_and_plot_are_written_between_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of the kernel is no row, whatever its digits are.
    monkeypatch.setattr(platform, "release", lambda: "6.18.50-v300")
    page = tmp_path / "speed.md"
    page.write_text(PAGE.read_text())
    for values in ((50.0,) * 5, (300.0,) * 5):
        report(*values).write(page)
    text = page.read_text()
    between = text.partition("compare: begin -->")[2].partition("<!-- compare: end")[0]
    rows = [line for line in between.splitlines() if line.startswith("|")]
    tables = re.findall(r"(?:^\|.*\|\n)+", between, re.MULTILINE)
    assert len(tables) == 2
    assert len(rows) == sum(map(str.count, tables, "\n" * len(tables)))
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert any("300" in row for row in rows)
    assert not any("50" in row for row in rows)  # of the run before
    assert "compare.svg" in between
    assert text.partition("<!-- compare")[0] == PAGE.read_text().partition("<!-- compare")[0]


def test_a_plot_is_an_image_without_scripts_for_light_and_dark_pages() -> None:
    plot = report(50.0).plot
    drawn = fromstring(plot)  # noqa: S314 - our own
    assert len(drawn.findall(f"{SVG}rect")) == len(PEERS)
    assert "script" not in plot
    assert "prefers-color-scheme: dark" in plot


def test_the_cost_is_measured_over_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow, "DRAINED", 4)
    monkeypatch.setattr(grow, "TASKS", (10,))
    monkeypatch.setattr(grow, "SUBSCRIBERS", (2, 3))
    monkeypatch.setattr(grow, "ALERTS", 3)
    with Servers(str(tmp_path), sys.executable) as servers:
        bench = Bench(runner=Runner(str(tmp_path), sys.executable), servers=servers)
        monkeypatch.setattr(messages.InterlockAlertRedis, "server", "")
        grown = [grow.tasks(bench, 1, 10), grow.subscribers(bench, 1, 2)]
    sizes = [[size for size, _ in each.points[each.peers[0].title]] for each in grown]
    assert sizes == [[10], [2]]
    drawn = fromstring(grow.plot("How it grows", grown))  # noqa: S314 - our own
    assert len(drawn.findall(f"{SVG}polyline")) == 4
    assert len(grown[0].table().splitlines()) == 5


def test_the_page_has_one_place_for_the_tables() -> None:
    for mark in ("compare", "grow"):
        assert between_marks(PAGE.read_text(), mark, "here").count("\nhere\n") == 1
    with pytest.raises(CompareTrouble, match="put them back"):
        between_marks("# A page without marks", "compare", "here")


def test_a_median_counts_and_not_a_lucky_turn() -> None:
    rows = ("claims/interlock", "claims/one-by-one")
    (found,) = goals.judge(dict(zip(rows, ([300, 80, 70], [100, 100, 100]), strict=True)))
    assert found == Found(goal=goals.GOALS[0], median=0.8)
    assert not found.reached


def test_contenders_are_no_dependencies_of_interlock() -> None:
    pins = [ROOT / "requirements" / f"{name}.txt" for name in ("run", "test", "check")]
    for name in ("huey", "rq", "procrastinate", "tooz", "nats-py"):
        assert f"\n{name}==" in (ROOT / "requirements" / "compare.txt").read_text()
        assert not any(f"\n{name}==" in path.read_text() for path in pins)
