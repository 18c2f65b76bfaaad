"""What ``make bench`` runs: the bench on every engine, with servers that live as long as it does.

Arguments go to each of them: ``make bench BENCH_ARGS=--quick``.
"""  # noqa: INP001 - a script

from __future__ import annotations

import subprocess
import sys
import tempfile

from interlock.testing.servers import EtcdServer, RedisServer, ServerTrouble


def bench(*words: str) -> int:
    """Run the command as a user does; returns its exit status."""
    command = [sys.executable, "-m", "interlock", "bench", *words]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - ourselves


def main(words: list[str]) -> int:
    """SQLite first; then each engine with a binary on this machine, as durable as it can be."""
    print("sqlite, durability: power loss", flush=True)  # noqa: T201 - as the others say it
    worst = bench(*words)
    for kind in (RedisServer, EtcdServer):
        with tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder:
            server = kind(folder)
            try:
                server.start()
            except ServerTrouble as trouble:
                print(f"\n{kind.binary} is not measured: {trouble}")  # noqa: T201
                continue
            try:
                print(flush=True)  # noqa: T201
                worst = max(worst, bench("--store", server.url(), *words))
            finally:
                server.stop()
                server.close()
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
