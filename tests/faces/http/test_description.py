"""The API behaves as its own description says: schemathesis, with a fixed seed, finds nothing.

Each example of the description, which comes from the help of a command, has to be accepted
(``positive_data_acceptance``); a request that the generator makes up need not be, and
``schemathesis.toml`` says why.  Left out is ``/api/events``, a stream without an end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.faces.http.served import served
from tests.faces.shell import Shell

CONFIG = Path(__file__).with_name("schemathesis.toml")


def test_the_api_is_as_its_description_says(shell: Shell) -> None:
    assert shell.run("sem", "acquire", "builds", "--capacity", "3", "--agent", "ada").status == 0
    with served(shell, "--open", "--longest-wait", "50ms") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)),
                *("run", f"{server.url}openapi.json", "--workers", "1"),
                *("--seed", "19", "--max-examples", "2", "--phases", "examples,fuzzing"),
                *("--exclude-path", "/api/events", "--generation-database", "none", "--no-color"),
            ],
            cwd=shell.folder,
            env=shell.environment(),
            capture_output=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout.decode()[-6000:] + done.stderr.decode()[-2000:]
