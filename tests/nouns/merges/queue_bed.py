"""A merge queue with a real repository, an author and a server, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.nouns.merges.repositories import TestRepository

from interlock.nouns.merges import merge as core
from interlock.testing.testbed import Client, Testbed

NO_BAD_FILE = ("sh", "-c", "echo out of the guard; test ! -e bad")


class QueueBed:
    """A repository, an author and a server."""

    def __init__(self, folder: Path, *, bare: bool = True) -> None:
        self.bed = Testbed()
        self.repository = TestRepository(folder / "repository", bare=bare)
        self.author = self.bed.client("ada", ttl=10_000_000.0)
        self.server = self.bed.client("queue", ttl=10_000_000.0)

    def during_test(self, act: Callable[[], object], *command: str, **more: Any) -> Any:
        """Serve, and act once, in the moment after an attempt has begun."""
        client = self.server
        more = self._options(command, more)
        serving = client.fleet.merges.serve("main", command=command, **more)
        return client.run(self._acting(serving, act))

    def _options(self, command: tuple[str, ...], more: dict[str, Any]) -> dict[str, Any]:
        unguarded = not command and not more.get("guard")
        folder = self.repository.folder
        return {"drain": True, "repository": folder, "unguarded": unguarded, **more}

    def _acting(self, op: Any, act: Callable[[], object]) -> Any:
        step, done = next(op), False
        try:
            while True:
                answer = yield step
                step = op.send(answer)
                if not done and "testing" in self.states().values():
                    done = True
                    act()
        except StopIteration as over:
            return over.value

    def submit(self, branch: str, client: Client | None = None, **more: Any) -> Any:
        client = client or self.author
        folder = more.pop("repository", self.repository.folder)
        return client.run(client.fleet.merges.submit(branch, repository=folder, **more))

    def serve(self, *command: str, client: Client | None = None, **more: Any) -> Any:
        client = client or self.server
        more = self._options(command, more)
        return client.run(client.fleet.merges.serve("main", command=command, **more))

    def show(self, name: str) -> core.MergeView:
        found = self.author.run(self.author.fleet.merges.show(name))
        assert isinstance(found, core.MergeView)
        return found

    def states(self) -> dict[str, str]:
        found = self.author.run(self.author.fleet.merges.list(all=True))
        return {each.branch: each.state for each in found}

    def held(self) -> str:
        """Why nothing can be merged."""
        return self.author.run(self.author.fleet.merges.list()).targets[0].held

    def mail(self) -> list[Any]:
        """The outcomes that the author was told, in order."""
        inbox = self.author.run(self.author.messages.inbox())
        return [(each.data["branch"], each.data["outcome"]) for each in inbox.messages]
