"""Wait for a lock with a limit: contention is an answer, not an exception.

``acquire`` returns its outcome.  A ``with`` block cannot return, so it raises Unavailable.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import interlock
from interlock import Acquired, Busy


def try_for(fleet: interlock.Fleet, seconds: float) -> str:
    """Try once with a deadline, and describe the outcome."""
    match fleet.locks.acquire("merge", wait=seconds):
        case Acquired(token=token):
            return f"mine, with token {token}"
        case Busy(holder=holder):
            return f"held by {holder}"
        case other:
            return f"no: {other}"


with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as ada,
    interlock.connect(f"{folder}/store.db", agent="bob") as bob,
):
    ThreadPoolExecutor().submit(ada.locks.acquire, "merge").result()  # not in our own thread
    print("bob, while ada works:", answer := try_for(bob, 0.2))
    assert answer == "held by ada"
    try:
        with bob.lock("merge", wait=0):
            raise AssertionError("two holders")
    except interlock.Unavailable as no:
        print("as a block:", no)
    ada.locks.release("merge")
    print("bob, afterwards:", answer := try_for(bob, 0.2))
    assert answer.startswith("mine")
