"""Let two agents in two processes count in one file without losing an update.

They share only the path of the store; there is no server.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import interlock

TURNS = 25


def agent(name: str, folder: Path) -> None:
    """Read, add one, write; safe only because one agent does it at a time."""
    count = folder / "count"
    with interlock.connect(str(folder / "store.db"), agent=name) as fleet:
        for _ in range(TURNS):
            with fleet.lock("count"):
                count.write_text(str(int(count.read_text()) + 1))


def main() -> None:
    """Start the two agents, and check their count."""
    with tempfile.TemporaryDirectory() as folder:
        (count := Path(folder, "count")).write_text("0")
        command = [sys.executable, __file__, folder]
        agents = [subprocess.Popen([*command, name]) for name in ("ada", "bob")]
        assert [process.wait() for process in agents] == [0, 0]
        print(f"two agents, {TURNS} turns each:", total := int(count.read_text()))
    assert total == 2 * TURNS


if len(sys.argv) > 1:
    agent(sys.argv[2], Path(sys.argv[1]))
else:
    main()
