"""Publish tasks that need each other, and hear of each the moment it can begin.

The order follows from what each task needs; nobody has to plan it.
"""

import tempfile

import interlock

heard: list[str] = []

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

    while len(heard) < 8:
        heard += [f"{event.event} {event.task}" for event in events.take()]

assert heard[:3] == ["published build", "published test", "published release"]
assert heard[3:] == [
    *("completed build", "ready test", "completed test", "ready release", "completed release"),
]
