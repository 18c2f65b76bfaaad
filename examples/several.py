"""Acquire several things at once, and get an answer at once if a wait would never end.

Two agents that acquire the same two locks in opposite orders would wait for each other without
end: the one that closes the cycle is refused.  An agent that asks for both at once avoids that.
"""

import tempfile
import threading

import interlock

with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as ada,
    interlock.connect(f"{folder}/store.db", agent="bob") as bob,
):
    reached = threading.Barrier(2)
    answers: list[str] = []

    def one_after_the_other(fleet: interlock.Fleet, first: str, second: str) -> None:
        """The wrong way: hold one, wait for the other."""
        with fleet.lock(first):
            reached.wait()
            try:
                with fleet.lock(second, wait="30s"):
                    answers.append("got both")
            except interlock.Deadlocked as deadlock:
                answers.append(str(deadlock))

    other = threading.Thread(target=one_after_the_other, args=(bob, "lock-b", "lock-a"))
    other.start()
    one_after_the_other(ada, "lock-a", "lock-b")
    other.join()
    print(*sorted(answers), sep="\n")
    assert min(answers) == "got both"

    with ada.together("lock/lock-a", "lock/lock-b", wait="30s") as held:
        print("ada has both at once, with token", held.token)
