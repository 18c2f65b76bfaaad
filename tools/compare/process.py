"""One process of a contender: reads its job from stdin, and writes what it noted to stdout."""

from __future__ import annotations

import importlib
import json
import sys

from tools.compare.peer import Job, Peer, Work


def main() -> None:
    """Do the job; a method that needs no others never calls ``begin``."""
    job = Job(**json.loads(sys.stdin.readline()))
    module, _, name = job.peer.partition(".")
    kind: type[Peer] = getattr(importlib.import_module(f"tools.compare.{module}"), name)
    peer = kind(job.place)
    if job.method == "versions":
        found: object = peer.versions()
    else:
        work = Work(job)
        getattr(peer, job.method)(work)
        found = work.notes
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
