"""Publish tasks with dependencies, and receive an event when each one can begin.

The order follows from the dependencies.
"""

import tempfile

import interlock

received: list[str] = []

with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as fleet,
    fleet.tasks.subscribe(events=["published", "ready", "completed"]) as events,
):
    fleet.tasks.publish("build", {"branch": "main"}, priority=1)
    fleet.tasks.publish("test", needs=["build"], requires=["linux"])
    fleet.tasks.publish("release", needs=["test"])
    print("again:", type(fleet.tasks.publish("build")).__name__)

    worker = fleet.tasks.work(can=["linux"])
    for claim in worker:
        with claim:  # Completed at the end; a block that raises fails its task.
            print(f"{claim.task} with token {claim.token}: {claim.data}")
        if claim.task == "release":
            worker.stop("all is done")

    while len(received) < 8:
        received += [f"{event.event} {event.task}" for event in events.take()]

assert received[:3] == ["published build", "published test", "published release"]
assert received[3:] == [
    *("completed build", "ready test", "completed test", "ready release", "completed release"),
]
