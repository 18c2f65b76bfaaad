"""What engines in this process or on this machine share."""

from __future__ import annotations

from interlock.store import Answer, Ref, Snapshot, Txn


class Local:
    """A local engine answers in microseconds: for an event loop there is nothing to wait for.

    Only ``transact_async`` is worth more than that, and each engine has its own.
    """

    @property
    def trouble(self) -> str:
        """Why nothing is answered; empty while all is well."""
        return ""

    @property
    def missing(self) -> bool:
        """Whether what was opened no longer stands there."""
        return False

    def read(self, *refs: Ref, times: bool = False) -> Snapshot:
        """All the refs at one revision."""
        raise NotImplementedError

    def commit(self, txn: Txn) -> Answer:
        """Check and write, all or nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go."""
        raise NotImplementedError

    async def read_async(self, *refs: Ref, times: bool = False) -> Snapshot:
        """All the refs at one revision."""
        return self.read(*refs, times=times)

    async def commit_async(self, txn: Txn) -> Answer:
        """Check and write; only settling comes here, and that is rare."""
        return self.commit(txn)

    async def close_async(self) -> None:
        """Let go."""
        self.close()
