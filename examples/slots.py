"""Run at most three builds at a time, with any number of agents.

The first caller that names the capacity creates the semaphore.  Waiters are served in the order
of arrival, so small requests never starve a large one.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import interlock
from interlock import Acquired, Full

building: list[str] = []


def build(place: str, number: int) -> int:
    """Build with one slot, or with two; returns how many builds there were at that moment."""
    name = f"agent-{number}"
    with (
        interlock.connect(place, agent=name) as fleet,
        fleet.slots("builds", weight=1 + number % 2, capacity=3, wait="30s") as held,
    ):
        building.append(name)
        busy = len(building)
        print(f"{name} builds with token {held.token}, {busy} at work")
        building.remove(name)
        return busy


with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as agents:
    place = f"{folder}/store.db"
    assert max(agents.map(build, [place] * 8, range(8))) <= 3
    with interlock.connect(place, agent="ada") as ada:
        assert isinstance(ada.semaphores.acquire("builds", weight=2), Acquired)
        no = ada.semaphores.acquire("builds", weight=2)
        print("and then:", no)
        assert isinstance(no, Full)
