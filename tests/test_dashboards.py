"""The dashboards and alerts in monitoring/, judged by promtool, Grafana's SDK and real metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.nouns.requests.pair import Pair, Swarm

from interlock.core import keys
from interlock.nouns.budgets.budget import BudgetLimit, SpentTotal, TokenUsage
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.merges.merge import Merge
from interlock.nouns.requests.serving import answer_claim
from interlock.nouns.swarms.swarm import OwnEntry
from interlock.runtime.monitoring import INTACT, JUDGED, Metrics

ROOT = Path(__file__).parent.parent
RULES = ROOT / "monitoring" / "prometheus"
BOARDS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "monitoring").rglob("*.json")}
PANELS = {
    "cross-swarm": ["Request rate", "Queue depth per swarm", "Error rate", "Latency p99"],
    "swarm": ["Incoming requests", "Outgoing requests", "Active agents", "Registry freshness"],
    "agent": [
        "Requests claimed and completed",
        "Average execution time",
        "Error count",
        "Rate limit status",
    ],
}
each = pytest.mark.parametrize("name", sorted(BOARDS))


def exprs(board: Any) -> list[str]:
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [expr.replace("$__rate_interval", "5m").replace("$__range", "1h") for expr in found]


def rules() -> list[str]:
    """The expressions of the alerts."""
    lines = (RULES / "alerts.yml").read_text().splitlines()
    found, at = [], 0
    while at < len(lines):
        head, _, expr = lines[at].partition("expr: ")
        at += 1
        if not expr or head.strip():
            continue
        if expr == ">-":
            parts = []
            while lines[at].startswith(" " * 10):
                parts.append(lines[at].strip())
                at += 1
            expr = " ".join(parts)
        found.append(expr)
    return found


def metric_names(expr: Any) -> set[str]:
    """The metrics that a parsed expression selects."""
    if isinstance(expr, promql_parser.VectorSelector):
        return {expr.name} if expr.name else set()
    below = [
        getattr(expr, part, None) for part in ("expr", "lhs", "rhs", "vector_selector", "param")
    ]
    below += list(getattr(expr, "args", None) or ())
    return {name for part in below if part is not None for name in metric_names(part)}


def names_of(swarm: Swarm) -> set[str]:
    metrics = FleetCalls(swarm.context).metrics(verify=True)
    found: Metrics = swarm.run(metrics)  # type: ignore[assignment]
    names = {metric.name for metric in found}
    ends = {"_bucket", "_sum", "_count"}
    return names | {m.name + end for m in found if m.kind == "histogram" for end in ends}


@pytest.fixture(scope="module")
def real_names() -> set[str]:
    """What two swarms really say after a success, an error and a refused sender."""
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.trust("north", "south", rate=2)
    for status in ("success", "error"):
        north.sent()
        south.take_in()
        claimed = south.claim()
        assert claimed is not None
        word: Any = status
        south.run(answer_claim(south.context, claimed, word, b'"x"'))
        north.take_in()
    assert not north.send()
    north.put(keys.OWN_ENTRY, OwnEntry(version=1, at=pair.clock.wall()))
    north.put(keys.spent("agent/ada"), SpentTotal(usage=TokenUsage(input=5)))
    north.put(keys.budget("fleet"), BudgetLimit(tokens=10))
    north.put(keys.merge("mrg_1"), Merge(branch="fix", into="main", commit="1", by="ada", at=0.0))
    sqlite_only = {"interlock_store_size_bytes"}
    return names_of(north) | names_of(south) | sqlite_only


def test_promtool_accepts_the_alerts_and_their_tests_and_the_job() -> None:
    for words in (
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "--syntax-only", "scrape.yml"],
    ):
        done = subprocess.run(
            ["promtool", *words], cwd=RULES, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@each
def test_grafana_reads_a_dashboard_and_loses_nothing(name: str) -> None:
    board = BOARDS[name]
    read = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    missing = [path for path in leaves(board) if path not in set(leaves(read))]
    assert missing == []


def leaves(value: Any, path: str = "") -> list[str]:
    """Every leaf of a JSON value with its path; Grafana's defaults may come beside them."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for at, part in enumerate(value) for leaf in leaves(part, f"{path}[{at}]")]
    return [] if value is None else [f"{path} {value!r}"]


@each
def test_every_query_of_a_dashboard_is_promql_over_real_metrics(
    name: str, real_names: set[str]
) -> None:
    found = exprs(BOARDS[name])
    assert len(found) > 3
    for expr in found:
        names = metric_names(promql_parser.parse(expr))
        assert names
        assert names <= real_names, expr


def test_every_alert_is_promql_over_real_metrics(real_names: set[str]) -> None:
    found = rules()
    assert len(found) == (RULES / "alerts.yml").read_text().count("- alert:")
    for expr in found:
        names = metric_names(promql_parser.parse(expr))
        assert names
        assert names <= real_names, expr
    assert {INTACT, JUDGED} <= real_names


@pytest.mark.parametrize("name", sorted(PANELS))
def test_the_three_dashboards_have_all_their_panels(name: str) -> None:
    titles = [panel["title"] for panel in BOARDS[name]["panels"]]
    assert titles[: len(PANELS[name])] == PANELS[name]
    places = [tuple(panel["gridPos"].values()) for panel in BOARDS[name]["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["description"] for panel in BOARDS[name]["panels"])


@each
def test_what_can_be_chosen_is_a_label_of_a_real_metric(name: str, real_names: set[str]) -> None:
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert asked is not None
            assert asked[1] in real_names
            assert asked[2] == variable["name"]


def test_the_files_are_what_the_tool_writes(tmp_path: Path) -> None:
    made = "import sys; sys.path.insert(0, 'tools'); import dashboards as d, pathlib;"
    made += f"d.FOLDER = pathlib.Path({str(tmp_path)!r}); d.main()"
    subprocess.run([sys.executable, "-c", made], cwd=ROOT, check=True)
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text()) == BOARDS[path.stem]
