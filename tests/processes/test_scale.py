"""A claim costs the same whether a thousand tasks were published or a million."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

import interlock
from interlock.core.task import Claimed

FEW, MANY = 1_000, 1_000_000
PORTION = 10_000
MEASURED = 500
FLAT = 1.5


@pytest.mark.proof
def test_claims_cost_the_same_in_a_store_with_a_million_tasks(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        publish(fleet, 0, FEW)
        cost(fleet)  # the first ones are slower, whatever there is
        few = cost(fleet)
        for start in range(FEW, MANY, PORTION):
            publish(fleet, start, min(PORTION, MANY - start))
        cost(fleet)
        many = cost(fleet)
        grown = resident()
        for _ in range(20):
            cost(fleet)
        kept = resident()
    print(f"a claim and its completion: {few * 1e6:.0f} us of CPU, then {many * 1e6:.0f} us")  # noqa: T201 - for whoever runs it
    assert many < FLAT * few
    assert kept - grown < 5 << 20, "whoever works on does not grow"


def publish(fleet: interlock.Fleet, start: int, number: int) -> None:
    """So many tasks, of which every other one is for somebody else."""
    fleet.tasks.publish_all(
        [
            {"id": f"t{each}", "data": each, "requires": ["gpu"] if each % 2 else []}
            for each in range(start, start + number)
        ],
        id=f"from-{start}",
    )


def cost(fleet: interlock.Fleet) -> float:
    """Seconds of CPU for one claim of the next task and its completion, in the middle."""
    spans = []
    for _ in range(MEASURED // 5):
        began = time.process_time()
        claim = fleet.tasks.next()
        assert isinstance(claim, Claimed)
        fleet.tasks.complete(claim.task, token=claim.token)
        spans.append(time.process_time() - began)
    return median(spans)


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
