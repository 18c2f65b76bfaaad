"""An executor of the swarm south: it adds numbers, and dies where the story wants it to.

Execution is at least once, so the work may run twice.  Its effect is once: the id of the request,
which stays the same, is the primary key of what the work writes.
"""

import logging
import os
import signal
import sqlite3
import sys
from contextlib import closing

import interlock
from interlock.nouns.requests.serving import ServedRequest
from interlock.testing.faults import kill_at


def main(url: str, effects: str, when: str, verb: str) -> None:
    """Serve until killed: before or after a commit, or in the middle of the work."""

    def add(request: ServedRequest) -> int:
        total = int(sum(request.payload))
        with closing(sqlite3.connect(effects)) as db, db:
            db.execute("INSERT INTO executions VALUES (?)", (request.id,))
            db.execute("INSERT OR IGNORE INTO effects VALUES (?, ?)", (request.id, total))
        if verb == "work":
            os.kill(os.getpid(), signal.SIGKILL)
        return total

    logging.disable(logging.WARNING)  # that the bus does not answer is what the story wants
    if not sys.stdin.readline():  # the story says when to begin, or is over
        return
    with interlock.connect(url, agent="executor") as fleet:
        if when in ("before", "after"):
            kill_at(fleet.context, verb, when)  # type: ignore[arg-type]
        fleet.requests.serve(add, can=["add"], ttl=1)


main(*sys.argv[1:])
