"""A client dies, or its network fails, at any commit: no two agents ever reserve one path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest
from tests.nouns.reservations.test_reservations import files, mail, reserve, states, unreserve

from interlock.errors import OutcomeUnknown
from interlock.nouns.reservations import reservation as r
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Testbed

FAULTS: tuple[Fault, ...] = (
    "crash before", "crash after", "lost reply", "late arrival", "conflict",
)  # fmt: skip


def reserves(ada: Client) -> None:
    reserve(ada, "src/*.py", "docs", ttl=30)


def queues(ada: Client) -> None:
    reserve(ada, "other/x", "docs/a.md", ttl=30, on_conflict="queue")


def releases(ada: Client) -> None:
    unreserve(ada, all=True)


def waits(ada: Client) -> None:
    reserve(ada, "other/x", ttl=30, wait=5)


ACTS: tuple[Callable[[Client], None], ...] = (reserves, queues, releases, waits)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_no_fault_at_any_commit_leaves_a_path_with_two_holders(
    fault: Fault, act: Callable[[Client], None]
) -> None:
    for number in count():
        bed = Testbed()
        ada, bob = bed.remote("ada", ttl=40.0), bed.client("bob", ttl=1000.0)
        reserve(bob, "other/*", ttl=20)
        if act is releases:
            reserve(ada, "mine", ttl=30)
            reserve(bob, "mine/a", ttl=400, on_conflict="queue")
        ada.network.script([None] * number + [fault])
        with suppress(Crash, OutcomeUnknown):
            act(ada)
        struck = bool(ada.network.drawn)
        ada.network.deliver()
        ada.network.revive()
        _holds_together(bob)
        bed.clock.advance(60)  # all that a dead client left has expired
        eve = bed.client("eve", ttl=1000.0)
        for each in ("src/a.py", "docs/a.md", "other/x"):
            assert isinstance(reserve(eve, each, ttl=5), r.Reserved), (number, each)
        if act is releases:
            eve.run(eve.fleet.maintain())
            assert ("mine/a", "bob", "reserved") in states(eve)
            assert len(mail(bob)) == 1  # one message, in the commit that served him
        eve.run(eve.fleet.maintain())
        _holds_together(eve)
        assert audit(bed.store) == []
        if not struck:
            break
    assert number > 0


def _holds_together(client: Client) -> None:
    """Living reservations of two agents have no path in common, and each has its entries."""
    held = [each for each in client.run(files(client).list()) if each.state == "reserved"]
    for each in held:
        others = [
            other
            for text in each.patterns
            for other in client.run(files(client).list(text))
            if other.state == "reserved" and other.holder != each.holder
        ]
        assert others == []
        found = client.run(files(client).conflicts(each.patterns, agent="nobody"))
        assert each.id in [one.id for one in found if "*" not in each.patterns[0]] or any(
            "*" in text for text in each.patterns
        )
