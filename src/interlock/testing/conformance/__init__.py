"""The conformance suite: what every store must do, with any engine.

A store's test file is a place and the suite:

    class TestSQLite(LocalConformance):
        @pytest.fixture
        def place(self, tmp_path):
            return Place(lambda: SQLiteStore(str(tmp_path / "store.db")))

plus tests of what only that engine can do wrong.  An engine across a network takes Conformance,
one that offers ``transact`` takes LocalConformance; one that can be moved takes MovableConformance
as well.  The suite asserts what ``capabilities``
declare; nothing in it is skipped.

place.py         where a store under test stands, and how it waits
reads.py         one moment: keys, ranges, the log; trimming the log
commits.py       checks, all or nothing, entries, voids, revisions, stamps, limits
liveness.py      keys that expire, and their renewal
watches.py       the feed of one scope or several: order, resuming, resync, waking
transactions.py  local engines: transact
moves.py         engines that can be moved: marks, loading
"""

from __future__ import annotations

from interlock.testing.conformance.commits import Commits
from interlock.testing.conformance.liveness import Liveness
from interlock.testing.conformance.moves import Moves
from interlock.testing.conformance.place import Place
from interlock.testing.conformance.reads import Reads, Trimming
from interlock.testing.conformance.transactions import Transactions
from interlock.testing.conformance.watches import Scopes, Watches


class Conformance(Reads, Commits, Liveness, Watches, Scopes, Trimming):
    """For every store."""


class LocalConformance(Transactions, Conformance):
    """For stores that say they are local."""

    local = True


class MovableConformance(Moves):
    """For stores that can be copied to another engine, and filled from one."""


__all__ = ["Conformance", "LocalConformance", "MovableConformance", "Place"]
