"""Do something only while you still hold something else, in one commit.

``held.check()`` is a proof that another commit can carry: ``given=[...]``.  The store checks
it in the transaction that grants the second lock, so there is no gap in between.
"""

import tempfile

import interlock
from interlock import Acquired, Fenced

with (
    tempfile.TemporaryDirectory() as folder,
    interlock.connect(f"{folder}/store.db", agent="ada") as ada,
):
    with ada.lock("branch/feature") as branch:
        proof = branch.check()
        first = ada.locks.acquire("merge", given=[proof])
        print("while ada holds the branch:", type(first).__name__)
        assert isinstance(first, Acquired)
        ada.locks.release("merge", token=first.token)

    second = ada.locks.acquire("merge", given=[proof])
    print("after the release:", type(second).__name__)
    assert isinstance(second, Fenced)
    assert ada.locks.show("merge").state == "free"
