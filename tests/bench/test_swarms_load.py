"""The load of swarms finds lost, doubled and ineffective requests, and runs through kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.processes.helpers import until
from tools.swarms_judge import Busy, Measured, Records, Verdict, judge, report
from tools.swarms_load import Load, run
from tools.swarms_process import Share

from interlock.nouns.requests.request import OutgoingRequest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
ID = "req_1"
BUSY = Busy(seconds=1.0, cores=2, machine=1.0, swarms=0.5, homes=0.1, bus=0.1)
REQUEST = OutgoingRequest(
    id=ID,
    message="msg_1",
    agent="ada",
    to_swarm="south",
    to_agent="can:work",
    task_type="task",
    made=10.0,
    deadline=100.0,
    sent=10.0,
    heads=(),
    source_hash="",
    source_size=0,
    state="answered",
    ended=10.5,
)
WELL = Records(
    asked={ID: Counter({"request:sent": 1, "request:answered": 1})},
    served={ID: Counter({"request:received": 1, "request:executed": 1})},
    requests={ID: REQUEST},
    effects={ID: 1},
    executions=2,
)


def verdict(records: Records) -> Verdict:
    share = Share(outcomes={"RequestAnswered": 1}, took=[500.0])
    spent = {"swarms": 0.1, "homes": 0.1, "bus": 0.1}
    return judge(records, [share], Measured(9.0, 2.0, BUSY, spent))


def test_a_request_that_was_taken_in_done_and_ended_once_is_well() -> None:
    found = verdict(WELL)
    assert found.well
    assert (found.sent, found.answered, found.ended, found.took[0]) == (1, 1, 1, 500.0)
    assert "record verify holds in all stores" in "\n".join(report(found))


def test_a_request_without_an_end_is_unfinished_and_one_without_an_item_is_lost() -> None:
    open_ = replace(REQUEST, state="open", ended=None)
    records = replace(WELL, asked={ID: Counter({"request:sent": 1})}, requests={ID: open_})
    found = verdict(records)
    assert (found.well, found.unfinished, found.lost) == (False, [ID], [])
    found = verdict(replace(records, requests={}))
    assert (found.well, found.unfinished, found.lost) == (False, [], [ID])


def test_a_request_that_a_person_is_asked_about_is_not_lost_but_too_many_are_not_well() -> None:
    asked = {ID: Counter({"request:sent": 1, "request:escalated": 1})}
    requests = {ID: replace(REQUEST, state="escalated", ended=None)}
    found = verdict(replace(WELL, asked=asked, requests=requests))
    assert (found.lost, found.escalated, found.well) == ([], 1, False)


@pytest.mark.parametrize("event", ["request:received", "request:executed"])
def test_two_intakes_or_completions_of_a_request_are_found(event: str) -> None:
    served = {ID: WELL.served[ID] + Counter({event: 1})}
    assert verdict(replace(WELL, served=served)).twice == [ID]


def test_two_ends_of_a_request_are_found() -> None:
    asked = {ID: WELL.asked[ID] + Counter({"request:answered": 1})}
    assert verdict(replace(WELL, asked=asked)).twice == [ID]


def test_an_answer_without_an_effect_is_found() -> None:
    found = verdict(replace(WELL, effects={}))
    assert (found.well, found.without_effect) == (False, [ID])


def test_a_record_that_does_not_hold_is_not_well() -> None:
    assert not verdict(replace(WELL, complaints=("the record of north",))).well


SMALL = Load(swarms=3, agents=3, executors=1, rate=24, seconds=2, kills=2, cut=0, ttl=1, full=0)


def test_three_swarms_answer_each_request_once_although_processes_are_killed() -> None:
    found = run(SMALL)
    assert found.well, "\n".join(report(found))
    assert found.sent > 12


def test_a_load_that_is_asked_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    words = [
        "--swarms",
        "2",
        "--agents",
        "1",
        "--rate",
        "2",
        "--seconds",
        "60",
        "--kills",
        "0",
        "--cut",
        "0",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "tools.swarms_load", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    ) as process:
        until(lambda: list(tmp_path.glob("interlock-swarms-*/swarm1.effects")))
        process.terminate()
        assert process.wait(60) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_five_swarms_answer_each_request_once_although_the_bus_dies_and_freezes(seed: int) -> None:
    load = Load(
        swarms=5, agents=20, rate=40, seconds=40, kills=10, cut=6, ttl=10, full=0, seed=seed
    )
    found = run(load)
    assert found.well, "\n".join(report(found))
