"""An outage has the name of an outage, and the error says whether a release is pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.setup import WAYS, Client, Etcd, Setup, Way, settle

import interlock
from interlock.core.decision import Decision, Write
from interlock.errors import OutcomeUnknown, StoreAway, StoreTrouble
from interlock.runtime import runner
from interlock.runtime.attempt import DecideOp
from interlock.steps import drive
from interlock.store import VOID, Put
from interlock.stores import open_store
from interlock.stores.etcd import commits
from interlock.testing.conformance.place import txn
from interlock.testing.servers.proxy import Verdict

PENDING = "a release is pending"


def _trouble(call: Callable[..., Any], *arguments: Any, **terms: Any) -> StoreTrouble:
    with pytest.raises(StoreTrouble) as caught:
        call(*arguments, **terms)
    return caught.value


def _loses(word: bytes) -> Callable[[bytes], Verdict]:
    return lambda data: "hold" if word in data and VOID not in data else None


@pytest.mark.parametrize("way", WAYS)
def test_a_change_whose_requests_are_lost_meets_an_outage_and_no_contention(
    setup: Setup, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads and the settling are answered: the engine itself does not count as away."""
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    proxy = setup.proxy()
    ada = setup.client("ada", proxy, way, ttl=90)
    ada.show("free")
    proxy.on_request(_loses(b'"verb":"lock.acquire"'))
    trouble = _trouble(ada.acquire, "free")
    assert isinstance(trouble, StoreAway)
    assert "nothing happened" in str(trouble)
    proxy.on_request(None)
    proxy.heal()
    assert ada.acquire("free").token


def test_a_change_without_an_entry_whose_requests_are_lost_is_of_unknown_outcome(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    proxy = setup.proxy()
    fleet = setup.client("ada", proxy, ttl=90).fleet
    proxy.on_request(_loses(b"quiet-note"))
    change = fleet.context.runner.change(_note, fleet.context.me().actor)
    assert isinstance(_trouble(drive, change, fleet.store), OutcomeUnknown)


def _note() -> DecideOp[str]:
    yield from ()
    return Decision(outcome="kept", puts=(Write("ids/note", "quiet-note"),), quiet=True)


def test_leases_that_end_before_they_are_used_are_no_contention(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(setup.engine, Etcd):
        pytest.skip("only etcd has leases")
    monkeypatch.setattr(commits, "_ATTEMPTS", 2)
    proxy, store = setup.proxy(), setup.store()
    slow = open_store(proxy.through(setup.url))
    leases = slow._leases  # type: ignore[attr-defined]  # of etcd
    grant = leases.grant

    def ended(ttls: Any) -> Any:
        """What a slow way makes of them: gone when the commit arrives."""
        made = yield from grant(ttls)
        yield from leases.end(made)
        return made

    leases.grant = ended
    trouble = _trouble(slow.commit, txn(Put("live/late", b"", ttl=60)))
    assert isinstance(trouble, StoreAway)
    assert "nothing happened" in str(trouble)
    assert store.read("live/late")["live/late"] is None
    slow.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_error_says_whether_a_release_is_pending(setup: Setup, way: Way) -> None:
    bob, proxy = setup.client("bob"), setup.proxy()
    taker, holder, giver = (
        setup.client(f"{name}-{way}", proxy, way, ttl=90) for name in ("taker", "holder", "giver")
    )
    held = _entered(holder, "held")
    giver.acquire("given")
    for each in (taker, holder, giver):
        each.show("held")
        each.fleet.store.patience = 0.5
    proxy.half_open()
    acquired = setup.begin(_trouble, taker.acquire, "free")
    ended = setup.begin(_trouble, holder.do, lambda _: held.release())
    given = setup.begin(_trouble, giver.release, "given")
    assert PENDING in str(acquired.result(60))
    assert PENDING in str(ended.result(60))
    assert PENDING not in str(given.result(60))
    proxy.heal()
    settle(lambda: bob.show("free").state == bob.show("held").state == "free", "the releases")
    assert bob.show("given").state == "held"


def _entered(client: Client, name: str) -> Any:
    """A lock as the block of its holder sees it."""
    block = client.fleet.lock(name)
    if isinstance(client.fleet, interlock.Fleet):
        return block.__enter__()
    return client.do(lambda _: block.__aenter__())
