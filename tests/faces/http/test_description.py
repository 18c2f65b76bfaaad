"""The API behaves as its own description says: schemathesis, with a fixed seed, finds nothing.

Two checks are left out.  ``positive_data_acceptance``: a schema cannot say that a text is a cron
line, or that one of two fields is needed, and such requests are refused with 400.
``/api/events`` is a stream without an end.
"""

from __future__ import annotations

import subprocess
import sys

from tests.faces.http.served import served
from tests.faces.shell import Shell


def test_the_api_is_as_its_description_says(shell: Shell) -> None:
    with served(shell, "--longest-wait", "50ms") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}openapi.json"),
                *("--seed", "19", "--max-examples", "2", "--phases", "fuzzing", "--no-color"),
                *("--exclude-path", "/api/events", "--generation-database", "none"),
                *("--exclude-checks", "positive_data_acceptance", "--workers", "1"),
            ],
            cwd=shell.folder,
            env=shell.environment(),
            capture_output=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout.decode()[-6000:] + done.stderr.decode()[-2000:]
