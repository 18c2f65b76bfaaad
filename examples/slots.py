"""At most three builds at a time, however many agents there are.

The first who names the capacity makes the semaphore.  Who waits is served in the order of coming,
and nobody overtakes, so a large request is never starved by small ones.
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
