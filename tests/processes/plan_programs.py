"""Programs that publish plans and complete needed tasks, and are killed; words name one.

Commits are small here, so that there are many steps to be killed between.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import interlock
from interlock.nouns.tasks import plan_service, task_reader
from interlock.nouns.tasks.calls import TaskCalls
from interlock.steps import Commit, Op, Transact, drive

TASKS = 40


def specs() -> list[dict[str, Any]]:
    """One task, many that need it, and one that needs all of these."""
    many = [f"t{number}" for number in range(TASKS)]
    needy = [{"id": each, "needs": ["root"]} for each in many]
    return [{"id": "root"}, *needy, {"id": "end", "needs": many}]


def narrow() -> None:
    """Let few tasks fit into a commit, of a plan and (across a network) of its progress."""
    plan_service._BYTES = plan_service._LOCAL_BYTES = 5000
    task_reader._ROOM_ELSEWHERE = 60


def perform(op: Op[Any], store: Any, commits: int) -> None:
    """Perform an operation, and die after this many commits; print if there are fewer."""
    try:
        step = next(op)
        while True:
            if isinstance(step, Commit | Transact):
                if not commits:
                    os.kill(os.getpid(), signal.SIGKILL)
                commits -= 1
            step = op.send(step.perform(store))
    except StopIteration:
        print("done", flush=True)  # noqa: T201 - to the test


def publishes(url: str, commits: str) -> None:
    """Publish a plan, and be killed before a commit."""
    narrow()
    fleet = interlock.connect(url, agent="ada")
    perform(TaskCalls(fleet.context).publish_all(specs()), fleet.store, int(commits))
    fleet.close()


def completes(url: str, commits: str) -> None:
    """Complete the task that all need, and be killed before a commit."""
    narrow()
    fleet = interlock.connect(url, agent="ada")
    drive(TaskCalls(fleet.context).claim("root"), fleet.store)
    perform(TaskCalls(fleet.context).complete("root"), fleet.store, int(commits))
    fleet.close()


def main() -> None:
    """Run the program that the first word names."""
    globals()[sys.argv[1]](*sys.argv[2:])
