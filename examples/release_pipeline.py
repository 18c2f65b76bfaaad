"""Run a release as a pipeline: build with tasks, test, merge under a lock, deploy.

The pipeline holds its locks itself, and waits while a guard is false: here, while another agent
holds the lock "freeze".  Give the URL of a store to run it there: redis://host?ns=NAME
"""

import sys
import tempfile
from pathlib import Path

import interlock

with tempfile.TemporaryDirectory() as folder:
    url = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/store.db"
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        ada.pipelines.define(Path(__file__).with_suffix(".toml"))
        print(ada.pipelines.start("release", id="r1"))

        while claim := bob.tasks.next():  # r1.linux and r1.mac, then r1.sign
            print("bob does", claim.task)
            bob.tasks.complete(claim.task, token=claim.token)

        # The last task led it into the phase "test"; there an agent says when the work is done.
        with bob.lock("freeze"):
            ada.pipelines.advance("r1", phase="test")  # Blocked: nothing merges while bob has it
            print(ada.why("pipeline/r1").because)
        # Bob's release led it into the phase "merge".
        while moved := ada.pipelines.advance("r1"):
            print(moved, "merge is held by", ada.locks.show("merge").holder or "nobody")
        assert isinstance(moved, interlock.outcomes.Overtaken)  # it has ended
        assert moved.state == "complete"
