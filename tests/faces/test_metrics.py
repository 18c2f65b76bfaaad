"""Metrics: what a monitor reads, from a scrape and from a file, as promtool judges it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair

import interlock
from interlock.core import keys
from interlock.core.decision import Event
from interlock.faces import metrics as face
from interlock.faces.metrics import metrics_text
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.fleet.metrics import (
    MetricsWritten,
    metrics_to_text,
    text_to_metrics,
)
from interlock.nouns.merges.merge import Merge, MergeState
from interlock.nouns.requests.audit import COUNTER_NAMES, GAUGE_NAMES, HISTOGRAM_NAMES
from interlock.nouns.requests.serving import answer_claim
from interlock.runtime.metrics import LABELLED, OTHERS, CountedEntry, Metric, MetricBucket
from interlock.runtime.monitoring import EventCounts, Metrics, continued
from interlock.stores.memory import MemoryStore
from interlock.testing.testbed import Testbed

EXCEPTIONS = {
    f"{name} {complaint}"
    for name in HISTOGRAM_NAMES
    for complaint in (
        'use base unit "seconds" instead of "milliseconds"',
        "metric name should not include type 'histogram'",
        "metric names should not contain abbreviated units",
    )
}
"""The linter's rules that names given from outside break; docs/decisions/metrics.md lists them."""


def lint(text: str) -> list[str]:
    """What promtool finds wrong; fails if it cannot read the text at all."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    return done.stderr.splitlines()


def values(text: str) -> dict[str, float]:
    """Each series of a text by its name and labels."""
    return {
        " ".join((each.name, *each.labels.values())): each.value for each in text_to_metrics(text)
    }


def swarm_text() -> str:
    """The metrics of an executor with every seed metric, after a request and its answer."""
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    pair.clock.advance(0.01)
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    pair.clock.advance(0.25)
    south.run(answer_claim(south.context, claimed, "success", b"3"))
    north.take_in()
    found: list[Metrics] = [
        swarm.run(FleetCalls(swarm.context).metrics())  # type: ignore[misc]  # no file was given
        for swarm in (north, south)
    ]
    return metrics_to_text(found[0]) + "---" + metrics_to_text(found[1])


def test_promtool_accepts_the_text_of_a_fleet() -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.tasks.publish("build")
        assert fleet.tasks.next()
        fleet.locks.acquire("merge")
        fleet.semaphores.acquire("builds", capacity=3)
        fleet.agents.status("busy", doing="build")
        assert lint(metrics_to_text(_metrics(fleet))) == []


def _metrics(fleet: interlock.Fleet) -> Metrics:
    found = fleet.metrics()
    assert isinstance(found, Metrics)
    return found


def test_a_swarm_has_the_names_of_its_dashboards_and_the_listed_exceptions_alone() -> None:
    asker, executor = swarm_text().split("---")
    names = {each.name for each in text_to_metrics(asker)}
    assert names >= {*COUNTER_NAMES, *HISTOGRAM_NAMES, *GAUGE_NAMES}
    for text in (asker, executor):
        assert set(lint(text)) <= EXCEPTIONS
    asked, executed = values(asker), values(executor)
    assert asked["interlock_swarm_requests_sent_total south"] == 1
    assert executed["interlock_swarm_requests_received_total north"] == 1
    assert executed["interlock_agent_requests_claimed_total bob"] == 1
    assert executed["interlock_agent_requests_completed_total bob"] == 1
    assert executed["interlock_agent_execution_seconds_total bob"] == pytest.approx(0.25)
    assert asked["histogram_e2e_latency_ms"] == 1


def test_gauges_tell_the_state_of_the_fleet() -> None:
    store = MemoryStore()
    with (
        interlock.connect(store=store, agent="ada") as ada,
        interlock.connect(store=store, agent="bob") as bob,
    ):
        for task in ("a", "b", "c"):
            ada.tasks.publish(task)
        ada.tasks.publish("later", needs=["c"])
        assert ada.tasks.next()
        ada.agents.status("busy")
        ada.locks.acquire("merge")
        bob.semaphores.acquire("builds", weight=2, capacity=3)
        ada.messages.send("bob", "hello")
        found = values(metrics_to_text(_metrics(ada)))
    assert found["interlock_tasks ready"] == 2
    assert found["interlock_tasks running"] == 1
    assert found["interlock_tasks blocked"] == 1
    assert found["interlock_agents busy"] == 1
    assert found["interlock_locks held"] == 1
    assert found["interlock_semaphore_slots used"] == 2
    assert found["interlock_semaphore_slots free"] == 1
    assert found["interlock_messages_unread"] == 1
    assert found["interlock_events_total task:published"] == 4
    assert found["interlock_problems dead"] == 0


def test_budgets_and_merges_are_numbers_by_agent_limit_and_target() -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.budgets.count(input=900, output=100, cost=1.5)
        fleet.budgets.count(agent="bob", input=50)
        fleet.budgets.count(input=10, task="t1")
        fleet.budgets.set("fleet", tokens=2120, cost=100)
        fleet.budgets.set("agent/*", tokens=2020)
        fleet.budgets.set("agent/bob", tokens=50)
        fleet.budgets.set("task/t1", tokens=20)
        fleet.budgets.set("task/t2", tokens=0)
        text = metrics_to_text(_metrics(fleet))
        found = values(text)
    assert lint(text) == []
    assert found["interlock_spent_tokens ada"] == 1010
    assert found["interlock_spent_tokens bob"] == 50
    assert found["interlock_spent_cost ada"] == 1.5
    assert found["interlock_budget_used_ratio fleet"] == 0.5
    assert found["interlock_budget_used_ratio agent/ada"] == 0.5
    assert found["interlock_budget_used_ratio agent/bob"] == 1
    assert found["interlock_budget_used_ratio task/*"] == 1, "a limit of nothing is used up"
    assert found["interlock_budgets_used_up"] == 2
    assert "t1" not in text


def test_merge_queues_are_numbers_by_target() -> None:
    pair = Pair()
    north = pair.swarm("north")
    states: list[tuple[str, MergeState]] = [
        ("shop", "waiting"), ("shop", "waiting"), ("docs", "waiting"), ("shop", "bounced"),
    ]  # fmt: skip
    for number, (place, state) in enumerate(states):
        at = pair.clock.wall() - 60 * number
        merge = Merge(branch=f"b{number}", into="main", commit="1", by="ada", at=at, state=state)
        merge = replace(merge, repository=place)
        north.put(keys.merge(f"mrg_{number}"), merge)
    metrics: Metrics = north.run(FleetCalls(north.context).metrics())  # type: ignore[assignment]
    found = values(metrics_to_text(metrics))
    assert found["interlock_merge_queue shop:main"] == 2
    assert found["interlock_merge_queue docs:main"] == 1
    assert found["interlock_merge_oldest_seconds shop:main"] == 60
    assert found["interlock_merges waiting"] == 3
    assert found["interlock_merges bounced"] == 1


def test_hostile_names_stay_inside_their_label() -> None:
    hostile = 'a"} 1\ninterlock_agents{state="busy"} 99 \\ \x1b[31m'
    series = Metric(name="x_total", kind="counter", value=1, labels={"agent": hostile}, help="X\n.")
    text = metrics_to_text(Metrics(store="", revision=0, metrics=(series,)))
    assert lint(text) == []
    assert text.count("\n") == 3
    assert "\x1b" not in text
    (read,) = text_to_metrics(text)
    assert read.labels["agent"].startswith('a"} 1')


def test_names_beyond_the_bound_share_one_series() -> None:
    counts = EventCounts()
    for number in range(LABELLED + 50):
        counts.add(CountedEntry(events=(Event(f"forged:{number}", "ada"),)))
    found = {each.labels["event"]: each.value for each in counts.detail()}
    assert len(found) == LABELLED + 1
    assert found[OTHERS] == 50


def test_counters_of_a_file_go_on_and_count_each_entry_once(tmp_path: Path) -> None:
    path = str(tmp_path / "interlock.prom")
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        fleet.tasks.publish("before")
        assert isinstance(fleet.metrics(file=path), MetricsWritten)
        assert "interlock_events_total" not in values(Path(path).read_text())
        for task in ("a", "b"):
            fleet.tasks.publish(task)
            fleet.metrics(file=path)
        fleet.metrics(file=path)
    assert values(Path(path).read_text())["interlock_events_total task:published"] == 2
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    assert os.stat(path).st_mode & 0o444 == 0o444


def test_a_file_of_an_older_or_other_store_begins_at_zero(tmp_path: Path) -> None:
    path = str(tmp_path / "interlock.prom")
    with interlock.connect(str(tmp_path / "one.db"), agent="ada") as fleet:
        fleet.metrics(file=path)
        for number in range(5):
            fleet.tasks.publish(f"t{number}")
        fleet.metrics(file=path)
    with interlock.connect(str(tmp_path / "two.db"), agent="ada") as fleet:
        fleet.metrics(file=path)
    assert "interlock_events_total task:published" not in values(Path(path).read_text())


HEAD = b"# HELP interlock_info x\n"


@pytest.mark.parametrize("content", [b"", HEAD + b"\xff", HEAD + b"# TYPE\n", HEAD + b"x{} y\n"])
def test_a_file_that_cannot_be_understood_begins_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "interlock.prom"
    path.write_bytes(content)
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.metrics(file=str(path))
    assert lint(path.read_text()) == []


def test_a_file_without_metrics_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("do not lose this\n")
    with (
        interlock.connect("memory:", agent="ada") as fleet,
        pytest.raises(interlock.BadInput, match="has no metrics; name another file"),
    ):
        fleet.metrics(file=str(path))
    assert path.read_text() == "do not lose this\n"


def test_a_place_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        with pytest.raises(interlock.BadInput, match="folder that exists"):
            fleet.metrics(file=str(tmp_path / "missing" / "x.prom"))
        with pytest.raises(interlock.BadInput, match="cannot be"):
            fleet.metrics(file=str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_verdict_on_the_record_is_a_metric_and_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "interlock.prom"
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        fleet.tasks.publish("t1")
        fleet.metrics(file=str(path), verify=True)
        first = values(path.read_text())
        assert first["interlock_record_intact"] == 1
        assert time.time() - first["interlock_record_judged_timestamp_seconds"] < 60


def test_a_highest_value_and_a_histogram_continue() -> None:
    def found(most: float, count: int) -> list[Metric]:
        buckets = (MetricBucket(le=1.0, count=count), MetricBucket(le=None, count=count))
        return [
            Metric(name="queue_depth_max_seen", kind="gauge", value=most),
            Metric(name="took", kind="histogram", value=count, sum=count / 2, buckets=buckets),
        ]

    deepest, took = continued(found(7, 3), found(2, 4))
    assert deepest.value == 7
    assert (took.value, took.sum) == (7, 3.5)
    assert [bucket.count for bucket in took.buckets] == [7, 7]


def test_series_of_names_that_come_and_go_do_not_fill_a_file_for_ever() -> None:
    def counters(first: int) -> list[Metric]:
        return [
            Metric(name="x_total", kind="counter", value=1, labels={"agent": f"a{number}"})
            for number in range(first, first + LABELLED)
        ]

    held: list[Metric] = []
    for run in range(5):
        held = continued(held, counters(run * LABELLED))
    assert len(held) <= 2 * LABELLED + 1
    assert sum(each.value for each in held) == 5 * LABELLED


def test_a_scraped_process_counts_from_its_start_and_shares_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.tasks.publish("before")
        monkeypatch.setattr(face, "SHARED", 60.0)
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(metrics_text(fleet))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(texts)) == 1
        monkeypatch.setattr(face, "SHARED", 0.0)
        fleet.tasks.publish("after")
        assert values(metrics_text(fleet))["interlock_events_total task:published"] == 1


def test_a_reading_is_bounded_where_a_store_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.nouns.tasks.metrics.COUNTED", 50)
    with interlock.connect("memory:", agent="ada") as fleet:
        for number in range(120):
            fleet.tasks.publish(f"t{number}")
        found = _metrics(fleet)
    assert found.partial
    assert values(metrics_to_text(found))["interlock_tasks ready"] == 50
    assert values(metrics_to_text(found))["interlock_metrics_partial"] == 1


@pytest.mark.parametrize("engine", ["redis", "etcd"])
def test_a_server_has_the_same_metrics(engine: str, request: pytest.FixtureRequest) -> None:
    with interlock.connect(request.getfixturevalue(f"{engine}_url"), agent="ada") as fleet:
        fleet.tasks.publish("build")
        text = metrics_to_text(_metrics(fleet))
    assert lint(text) == []
    found = values(text)
    assert found["interlock_tasks ready"] == 1
    assert found["interlock_log_entries"] > 0
    assert found["interlock_store_size_bytes"] > 0
    assert f'engine="{engine}"' in text


def test_the_metrics_name_their_store_once_it_is_in_use() -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=None)

    def store() -> str:
        found = ada.run(ada.fleet.metrics())
        assert isinstance(found, Metrics)
        (info,) = [each for each in found.metrics if each.name == "interlock_info"]
        assert info.labels["store"] == found.store
        return found.store

    assert store() == "", "to look at a store makes nothing in it"
    ada.run(ada.locks.acquire("deploy"))
    assert store().startswith("sto_")
    assert store() == store()
