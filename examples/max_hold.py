"""Limit how long an agent may hold a lock, and stop before another agent starts.

Renewals keep a lock alive, but never beyond ``max_hold``.  ``held.lost`` becomes true a
little before another agent may start; it is cheap, so check it often and stop when it is true.
"""

import tempfile
import time

import interlock

with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as ada,
    interlock.connect(f"{folder}/store.db", agent="bob") as bob,
):
    steps = 0
    try:
        with ada.lock("gpu", max_hold="1s") as held:
            while not held.lost:
                time.sleep(0.05)  # One small step of a long job.
                steps += 1
    except interlock.Lost as over:
        print(f"ada stopped after {steps} steps:", over)
        with bob.lock("gpu", wait=5) as held:
            print("bob goes on:", held.outcome)
            assert bob.locks.show("gpu").holder == "bob"
    else:
        raise AssertionError("the block should have ended with Lost")
assert 1 <= steps <= 20
