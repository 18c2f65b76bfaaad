"""Watching over tasks on every engine that real processes can share."""

from __future__ import annotations

from tests.conftest import with_git
from tests.faces.shell import until

import interlock
from interlock.nouns.tasks.task import Claimed


@with_git
def test_a_lost_worker_is_seen_explained_put_back_and_told(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("build", backoff=0)
        fleet.tasks.publish("deploy", needs=["build"])
        with interlock.connect(url, agent="bob", join=False) as bob:
            assert isinstance(
                bob.tasks.claim("build", ttl=fleet.store.capabilities.min_ttl), Claimed
            )
        found = fleet.why("deploy")
        assert (found.by, found.state) == ("bob", "blocked")
        until(lambda: [each.kind for each in fleet.health().problems] == ["stale"])
        assert fleet.why("build").because == "bob was lost, and its claim is stale"
        assert fleet.maintain().reclaimed == 1
        assert fleet.health().healthy
        claimed = fleet.tasks.claim("build")
        assert isinstance(claimed, Claimed)
        assert [each.holds for each in fleet.agents.list()] == [("task/build",)]
        fleet.tasks.complete("build", token=claimed.token)
        told = [each.what for each in fleet.record.explain("task/build").happenings]
        assert told == ["published", "claimed", "reclaimed", "claimed", "completed"]
        deploy = [each.what for each in fleet.record.explain("task/deploy").happenings]
        assert deploy == ["published", "unblocked"]
        assert fleet.why("deploy").state == "pending"
