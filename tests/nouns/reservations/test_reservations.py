"""Reservations, on a store in memory: conflicts, the queue, tokens, ends, and what others say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import BadInput, NotAllowed, TooLarge
from interlock.nouns.reservations import repository
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.calls import ReservationCalls
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


def files(client: Client) -> ReservationCalls:
    return ReservationCalls(client.context)


def reserve(client: Client, *patterns: str, **terms: Any) -> Any:
    return client.run(files(client).reserve(*patterns, **terms))


def unreserve(client: Client, *patterns: str, **terms: Any) -> Any:
    return client.run(files(client).unreserve(*patterns, **terms))


def states(client: Client) -> list[tuple[str, str, str]]:
    found = client.run(files(client).list())
    return [(" ".join(each.patterns), each.holder, each.state) for each in found]


@pytest.fixture(params=["local", "remote"])
def clients(request: pytest.FixtureRequest) -> tuple[Client, Client, Client, Testbed]:
    bed = Testbed()
    make = bed.client if request.param == "local" else bed.remote
    return make("ada"), make("bob"), make("eve"), bed


def test_overlapping_patterns_of_two_agents_conflict(clients: Any) -> None:
    ada, bob, _, bed = clients
    got = reserve(ada, "src/*.py", ttl="10m", reason="parser")
    assert isinstance(got, r.Reserved)
    assert got.token
    refused = reserve(bob, "docs", "src/a*")
    assert isinstance(refused, r.ReservationConflict)
    assert (refused.holder, refused.witness, refused.reason) == ("ada", "src/a.py", "parser")
    assert refused.expires_in == pytest.approx(600, abs=1)
    assert reserve(bob, "docs")  # nothing of the refused request was reserved
    assert reserve(ada, "src/a.py")  # one's own reservations never conflict
    assert audit(bed.store) == []


def test_the_same_again_extends_it(clients: Any) -> None:
    ada, bob, _, bed = clients
    first = reserve(ada, "a", "b", ttl=10)
    bed.clock.advance(8)
    again = reserve(ada, "b", "a", ttl=10)
    assert isinstance(again, r.ReservationExtended)
    assert again.token == first.token
    bed.clock.advance(8)
    assert isinstance(reserve(bob, "a"), r.ReservationConflict)


def test_one_that_ends_with_another_session_is_not_extended(clients: Any) -> None:
    """The agent's own second session reserves it for itself: the first one may end at any time."""
    ada, bob, _, bed = clients
    second = bed.client("ada")
    reserve(ada, "a")
    assert isinstance(reserve(ada, "a"), r.ReservationExtended)
    assert isinstance(reserve(second, "a", ttl=3600), r.Reserved)
    ada.run(ada.agents.leave())
    assert isinstance(reserve(second, "a", ttl=3600), r.ReservationExtended)
    assert isinstance(reserve(bob, "a"), r.ReservationConflict)


def test_an_expired_one_is_not_extended_while_another_agent_takes_it_over() -> None:
    """At whichever step of the other agent: one of the two gets it."""
    for steps in range(40):
        bed = Testbed()
        ada, bob = bed.remote("ada"), bed.remote("bob")
        reserve(ada, "a", ttl=10)
        bed.clock.advance(11)
        taking = Stepper(files(bob).reserve("a", ttl=60), bob.store, bob.clock)
        moved = [taking.go() for _ in range(steps)]
        got: list[object] = [reserve(ada, "a", ttl=60), taking.run().result()]
        assert [isinstance(each, r.ReservationConflict) for each in got].count(True) == 1
        if not all(moved):
            return
    raise AssertionError("the reservation takes more steps than that")


def test_shared_ones_conflict_only_with_exclusive_ones(clients: Any) -> None:
    ada, bob, eve, _ = clients
    assert reserve(ada, "docs", shared=True)
    assert reserve(bob, "docs/*.md", shared=True)
    refused = reserve(eve, "docs/a.md")
    assert [each.holder for each in refused.conflicts] == ["ada", "bob"]


def test_a_reservation_for_one_worktree_does_not_concern_another(clients: Any) -> None:
    ada, bob, eve, _ = clients
    assert reserve(ada, "a", worktree="/one")
    assert reserve(bob, "a", worktree="/two")
    assert isinstance(reserve(eve, "a", worktree="/one"), r.ReservationConflict)
    assert isinstance(reserve(eve, "a"), r.ReservationConflict)


def test_a_repository_has_its_own_reservations(clients: Any) -> None:
    ada, bob, *_ = clients
    assert reserve(ada, "a", repository="shop")
    assert reserve(bob, "a", repository="bank")
    assert isinstance(reserve(bob, "a", repository="shop"), r.ReservationConflict)


def test_links_are_followed_up_to_a_wildcard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has one name; a link has its own name and that of its target."""
    (tmp_path / "shop/src/deep").mkdir(parents=True)
    (tmp_path / "shop/.git").mkdir()
    (tmp_path / "other").symlink_to("shop")
    for link, target in (("lib", "src"), ("m.py", "src/m.py"), ("out", "/etc"), ("here", ".")):
        (tmp_path / "shop" / link).symlink_to(target)
    monkeypatch.chdir(tmp_path / "shop/src")
    place = repository.find()
    assert place == repository.find(f"{tmp_path}/other/lib/deep")
    assert place.root == os.path.realpath(tmp_path / "shop")
    for text, found in {
        "src/m.py": ("src/m.py",),
        "lib/m.py": ("src/m.py",),
        "/lib/new/": ("src/new/",),
        "lib/*.py": ("src/*.py",),
        "here/*.py": ("/*.py",),
        "here/lib/deep/**": ("src/deep/**",),
        "m.py": ("m.py", "src/m.py"),
        "lib": ("lib", "src"),
        "out/passwd": ("out/passwd",),
        "*/m.py": ("*/m.py",),
        f"{tmp_path}/other/lib/m.py": ("/src/m.py",),
    }.items():
        assert place.patterns(text) == found
    bed = Testbed()
    ada, bob = bed.client("ada"), bed.client("bob")
    assert reserve(ada, "m.py")
    assert isinstance(reserve(bob, "lib/m.py"), r.ReservationConflict)
    assert bob.run(bob.fleet.why("lib/m.py")).by == "ada"
    assert unreserve(ada, "m.py")
    assert reserve(bob, "lib/m.py")
    assert ada.run(ada.fleet.why("m.py")).by == "bob"


def test_warn_reserves_in_spite_of_others(clients: Any) -> None:
    ada, bob, *_ = clients
    reserve(ada, "a")
    got = reserve(bob, "a", on_conflict="warn")
    assert isinstance(got, r.Reserved)
    assert [each.holder for each in got.conflicts] == ["ada"]


def test_a_queued_one_is_served_by_the_commit_that_ends_what_is_in_its_way(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "src")
    queued = reserve(bob, "src/a", on_conflict="queue", ttl=100)
    assert isinstance(queued, r.ReservationQueued)
    assert isinstance(reserve(eve, "src/a/x", on_conflict="queue"), r.ReservationQueued)
    assert isinstance(reserve(eve, "src/b"), r.ReservationConflict)
    done = unreserve(ada, "src")
    assert done.next == ("bob",)  # eve waits behind bob, who came first
    assert states(ada) == [("src/a", "bob", "reserved"), ("src/a/x", "eve", "queued")]
    assert isinstance(reserve(bob, "src/a", ttl=100), r.ReservationExtended)
    assert unreserve(bob, all=True).next == ("eve",)
    assert audit(bed.store) == []


def mail(client: Client) -> list[tuple[str, str]]:
    """Unread messages about reservations: the subject, and the reservation."""
    inbox = client.run(client.messages.inbox())
    return [(each.subject, each.data["reservation"]) for each in inbox.messages]


def test_a_waiter_that_does_not_sleep_gets_a_message_once_it_is_served(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "src")
    queued = reserve(bob, "src/a", "src/b", on_conflict="queue", ttl=100)
    assert mail(bob) == []
    unreserve(ada, "src")
    assert mail(bob) == [("reserved for you now for 100 s: src/a, src/b", queued.grant)]
    assert isinstance(reserve(bob, "src/a", "src/b", ttl=100), r.ReservationExtended)
    eve.run(eve.fleet.maintain())
    assert len(mail(bob)) == 1
    unreserve(bob, all=True)
    assert len(mail(bob)) == 1
    assert mail(ada) == []
    assert audit(bed.store) == []


def test_a_waiter_that_sleeps_gets_no_message_unless_its_sleep_is_over(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "a")
    sleeps = bob.start(files(bob).reserve("a", wait=60, on_conflict="queue", ttl=1000))
    unreserve(ada, "a")
    assert isinstance(sleeps.run().result(), r.Reserved)
    assert mail(bob) == []
    queued = reserve(eve, "a", wait=5, on_conflict="queue", ttl=1000)
    assert isinstance(queued, r.ReservationQueued)
    unreserve(bob, "a")
    assert [id_ for _, id_ in mail(eve)] == [queued.grant]
    assert audit(bed.store) == []


def test_a_wait_sleeps_until_it_is_served_or_the_time_is_up(clients: Any) -> None:
    ada, bob, eve, _ = clients
    reserve(ada, "a")
    waits = bob.start(files(bob).reserve("a", wait=60))
    assert not waits.done
    assert unreserve(ada, "a").next == ("bob",)
    assert isinstance(waits.run().result(), r.Reserved)
    refused = reserve(eve, "a", wait=5)
    assert isinstance(refused, r.ReservationConflict)
    assert refused.holder == "bob"
    assert states(ada) == [("a", "bob", "reserved")]


def test_waiters_for_one_file_are_served_one_after_the_other(clients: Any) -> None:
    """Waiters with a ttl, as commands are: the first one served is in the way of the second."""
    ada, bob, eve, bed = clients
    reserve(ada, "a")
    waits = [each.start(files(each).reserve("a", wait=60, ttl=90)) for each in (bob, eve)]
    assert unreserve(ada, "a").next == ("bob",)
    assert isinstance(waits[0].run().result(), r.Reserved)
    assert not waits[1].run().done
    assert unreserve(bob, "a").next == ("eve",)
    assert isinstance(waits[1].run().result(), r.Reserved)
    assert audit(bed.store) == []


def test_maintain_serves_waiters_for_one_file_one_after_the_other(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "a", ttl=5)
    for each in (bob, eve):
        each.start(files(each).reserve("a", wait=60, ttl=90))
    bed.clock.advance(6)
    ada.run(ada.fleet.maintain())
    assert states(ada) == [("a", "bob", "reserved"), ("a", "eve", "queued")]


def test_an_agent_that_keeps_its_place_and_goes_on_is_in_no_deadlock(clients: Any) -> None:
    ada, bob, _, bed = clients
    reserve(ada, "a")
    reserve(bob, "b")
    assert isinstance(reserve(ada, "b", wait=5, on_conflict="queue"), r.ReservationQueued)
    waits = bob.start(files(bob).reserve("a", wait=60))
    assert not waits.done
    unreserve(ada, "a")
    assert isinstance(waits.run().result(), r.Reserved)
    assert unreserve(bob, "b").next == ("ada",)
    assert audit(bed.store) == []


def test_a_dead_holder_is_passed_over_and_its_waiter_goes_first(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "a", ttl=10)
    reserve(bob, "a", on_conflict="queue", ttl=1000)
    bed.clock.advance(11)
    refused = reserve(eve, "a", ttl=50)
    assert isinstance(refused, r.ReservationConflict)
    assert refused.holder == "bob"
    assert states(eve) == [("a", "bob", "reserved")]
    assert audit(bed.store) == []


def test_a_waiter_takes_over_from_a_holder_that_dies_while_it_sleeps(clients: Any) -> None:
    ada, bob, _, bed = clients
    reserve(ada, "a", ttl=3)
    assert isinstance(reserve(bob, "a", wait=20), r.Reserved)
    assert audit(bed.store) == []


def test_a_dead_waiter_is_dropped(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "a", ttl=1000)
    reserve(bob, "a", on_conflict="queue", ttl=5)
    reserve(eve, "a", on_conflict="queue", ttl=1000)
    bed.clock.advance(6)
    assert unreserve(ada, "a").next == ("eve",)
    assert audit(bed.store) == []


def test_two_waits_for_each_other_are_a_deadlock() -> None:
    bed = Testbed()
    ada, bob = bed.client("ada"), bed.client("bob")
    reserve(ada, "a")
    reserve(bob, "b")
    waits = ada.start(files(ada).reserve("b", wait=60))
    refused = reserve(bob, "a", wait=60)
    assert isinstance(refused, r.ReservationDeadlock)
    assert set(refused.cycle) == {"ada", "bob"}
    unreserve(bob, "b")
    assert isinstance(waits.run().result(), r.Reserved)
    assert audit(bed.store) == []


def test_an_interrupted_wait_leaves_nothing() -> None:
    bed = Testbed()
    ada, bob = bed.client("ada"), bed.client("bob")
    reserve(ada, "a")
    waits = bob.start(files(bob).reserve("a", wait=60))
    with pytest.raises(KeyboardInterrupt):
        waits.interrupt(KeyboardInterrupt()).run().result()
    assert states(ada) == [("a", "ada", "reserved")]
    assert audit(bed.store) == []


def test_an_end_needs_the_right_token_or_the_right_holder(clients: Any) -> None:
    ada, bob, *_ = clients
    token = reserve(ada, "a").token
    assert isinstance(unreserve(bob, "a"), r.ReservationNotOwner)
    assert isinstance(unreserve(bob, token=token), r.ReservationFenced)
    assert isinstance(unreserve(ada, token=token), r.Unreserved)
    assert isinstance(unreserve(ada, token=token), r.ReservationFenced)
    assert isinstance(unreserve(ada, "a"), r.NothingReserved)
    later = reserve(ada, "a").token
    assert later > token


def test_an_operator_ends_the_reservation_of_another_with_a_reason(clients: Any) -> None:
    ada, bob, *_ = clients
    reserve(ada, "a", "b")
    with pytest.raises(BadInput, match="reason"):
        unreserve(bob, "a", "b", holder="ada")
    done = unreserve(bob, "a", "b", holder="ada", reason="ada hangs")
    assert isinstance(done, r.ReservationBroken)
    assert reserve(bob, "a")
    lines = bob.run(bob.record.log())
    assert [each.reason for each in lines if each.verb == "reservation.break"] == ["ada hangs"]


def test_conflicts_of_a_change_names_each_reservation_once(clients: Any) -> None:
    ada, bob, _, bed = clients
    reserve(ada, "src/*.py", ttl=100)
    reserve(ada, "docs", ttl=10)
    reserve(bob, "src/x.py", on_conflict="queue")
    many = [f"other/{number}.txt" for number in range(50)]
    for paths in (["src/a.py", "src/b.py", "docs/[id].md"], ["src/a.py", "docs/x", *many]):
        found = bob.run(files(bob).conflicts(paths))
        assert [(each.holder, each.pattern) for each in found] == [
            ("ada", "src/*.py"),
            ("ada", "docs"),
        ]
    assert bob.run(files(bob).conflicts(["src/a.py"], agent="ada")) == ()
    bed.clock.advance(11)
    assert bob.run(files(bob).conflicts(["docs/x"])) == ()


@pytest.mark.parametrize(
    ("held", "wanted", "conflicts"),
    [
        ("src/x/area/a.py", "src/*/area/*.py", True),
        ("src/x/AREA/a.py", "src/*/area/*.py", False),
        ("src/x", "src/*/area/*.py", True),
        ("src/x/*/y", "src/*/area/z", False),
        ("src/x/*/y", "src/*/area/y", True),
        ("*/x", "src/*/area", True),
        ("a/b/c/d/e/f/g", "a/*/c/d/e/f/h", False),
        ("a/b/c/d/e/f/g", "a/*/c/d/e/f/g", True),
        ("größe/1", "größe/*", True),
    ],
)
def test_what_a_key_says_of_its_pattern_hides_no_conflict(
    clients: Any, held: str, wanted: str, conflicts: bool
) -> None:
    ada, bob, *_ = clients
    reserve(ada, held)
    assert bool(reserve(bob, wanted)) != conflicts


def test_maintain_ends_stale_ones_and_health_names_them(clients: Any) -> None:
    ada, bob, eve, bed = clients
    reserve(ada, "a", ttl=10)
    reserve(bob, "a", on_conflict="queue", ttl=100_000)
    reserve(eve, "b", ttl=5)
    bed.clock.advance(11)
    kinds = [each.kind for each in ada.run(ada.fleet.health()) if each.thing.startswith("rese")]
    assert kinds == ["stale", "stale"]
    done = ada.run(ada.fleet.maintain())
    assert done.reclaimed >= 2
    assert states(ada) == [("a", "bob", "reserved")]
    bed.clock.advance(7200)
    stuck = [each for each in ada.run(ada.fleet.health()) if each.thing.startswith("reservation/")]
    assert [(each.kind, each.agent) for each in stuck] == [("stuck", "bob")]


def test_why_explains_a_path(clients: Any) -> None:
    ada, bob, *_ = clients
    reserve(ada, "src/*.py", reason="parser")
    reserve(bob, "src/a.py", on_conflict="queue")
    why = bob.run(bob.fleet.why("src/a.py"))
    assert why.blocked
    assert why.by == "ada"
    assert "parser" in why.because
    assert [each.agent for each in why.waiters] == ["bob"]
    assert not bob.run(bob.fleet.why("path/other.py")).blocked
    assert bob.run(bob.fleet.why("merge")).thing == "lock/merge"


@pytest.mark.parametrize(
    ("patterns", "terms", "error"),
    [
        ((), {}, BadInput),
        (("!a",), {}, BadInput),
        (("../a",), {}, BadInput),
        ((1,), {}, BadInput),
        (("a",), {"on_conflict": "maybe"}, BadInput),
        (("a",), {"shared": 1}, BadInput),
        (("a",), {"ttl": 0.0001}, BadInput),
        (tuple(map(str, range(33))), {}, TooLarge),
    ],
)
def test_what_cannot_be_meant_is_refused(patterns: Any, terms: Any, error: type) -> None:
    with pytest.raises(error):
        reserve(Testbed().client("ada"), *patterns, **terms)


def test_the_queue_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "WAITERS", 2)
    bed = Testbed()
    reserve(bed.client("ada"), "a")
    for name in ("b", "c"):
        reserve(bed.client(name), "a", on_conflict="queue")
    with pytest.raises(NotAllowed, match="already wait"):
        reserve(bed.client("d"), "a", on_conflict="queue")


def test_a_session_that_leaves_ends_what_it_reserved() -> None:
    bed = Testbed()
    ada, bob = bed.client("ada"), bed.client("bob")
    reserve(ada, "a")
    waits = bob.start(files(bob).reserve("a", wait=60))
    ada.run(ada.agents.leave())
    bed.clock.advance(2)
    assert isinstance(waits.run().result(), r.Reserved)


def test_a_list_of_all_repositories_names_each(
    clients: tuple[Client, Client, Client, Testbed],
) -> None:
    ada, bob, _, _ = clients
    reserve(ada, "src/a.py", repository="shop")
    reserve(bob, "src/a.py", repository="bank")
    reserve(bob, "src/a.py", repository="shop", on_conflict="queue")
    found = ada.run(files(ada).list(all=True))
    assert found.repository == ""
    assert [(each.repository, each.holder, each.state) for each in found] == [
        ("shop", "ada", "reserved"), ("bank", "bob", "reserved"), ("shop", "bob", "queued"),
    ]  # fmt: skip
    own = ada.run(files(ada).list(all=True, holder="bob"))
    assert [each.repository for each in own] == ["bank", "shop"]
    assert [each.holder for each in ada.run(files(ada).list(repository="bank"))] == ["bob"]
