"""Renewals that leave no trace in the history, and the end of a host that stopped beating."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import apsw
import pytest
from tests.for_each import for_each
from tests.stores.git.conftest import Opens, Remote

from interlock.errors import StoreTrouble
from interlock.runtime.keeper import margin
from interlock.store import Check, Committed, Put, Store
from interlock.stores import open_store
from interlock.stores.git import GitStore, beats, checkpoint
from interlock.stores.git.repository import HEAD, NONE
from interlock.stores.git.store import temporary_branch
from interlock.testing.conformance.place import at_once, committed, txn, write

KEY, OTHER = "live/ses_1", "live/ses_2"
TTL = 2.0
SLOW = 2.0
LONG = 60.0


def refs(remote: Remote) -> str:
    return remote.git("for-each-ref", "refs/interlock/")


def ref_names(remote: Remote) -> list[str]:
    return [line.split()[-1] for line in refs(remote).splitlines()]


def remote_object(remote: Remote, store: GitStore, oid: str) -> str:
    """Bring a commit of a cache to the remote."""
    remote.git("fetch", "-q", store.repository.path, oid)
    return oid


def beaten(store: Store, ttl: float = TTL) -> None:
    """Put a key, and renew it once, so that beats renew it from now on."""
    write(store, Put(KEY, b"", ttl=ttl))
    assert store.renew((Put(KEY, b"", ttl=ttl),)) == {KEY}


def here(store: Store, key: str = KEY, *, fresh: bool = True) -> bool:
    return store.read(key, fresh=fresh)[key] is not None


def end(store: Store, key: str = KEY) -> object:
    """A commit that relies on the end of the key."""
    return store.commit(txn(checks=(Check(key, "absent"),)))


def lapsed(store: Store, key: str = KEY) -> None:
    ends = time.monotonic() + 10
    while here(store, key, fresh=False):
        assert time.monotonic() < ends


def renew_late(store: Store) -> None:
    """A beat when half of the ttl is over: elsewhere the key seems to end that much too early."""
    threading.Event().wait(SLOW / 2)
    assert store.renew((Put(KEY, b"", ttl=SLOW),)) == {KEY}


def test_a_renewal_with_another_ttl_or_value_is_known_to_all(remote: Remote, host: Opens) -> None:
    store = host()
    beaten(store, LONG)
    for put in (Put(KEY, b"", ttl=2 * LONG), Put(KEY, b"new", ttl=2 * LONG)):
        head = remote.head()
        assert store.renew((put,)) == {KEY}
        assert remote.head() != head


def test_later_renewals_leave_the_history_as_it_is(remote: Remote, host: Opens) -> None:
    store = host()
    beaten(store, LONG)
    before, head = refs(remote), remote.head()
    assert store.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    assert store.renew((Put(KEY, b"", ttl=LONG), Put(OTHER, b"", ttl=LONG))) == {KEY}
    assert remote.head() == head
    assert refs(remote) != before


def test_all_beats_together_are_a_few_objects(remote: Remote, host: Opens) -> None:
    store = host()
    beaten(store, LONG)
    for _ in range(3):
        store.renew((Put(KEY, b"", ttl=LONG),))
    number = store._git.beats.next_number
    assert number() == 4
    store._engine.remember("beats", beats.NUMBER - 1)  # type: ignore[attr-defined]
    assert number() == 0


def test_a_beat_is_not_where_its_ref_is_already(remote: Remote, host: Opens) -> None:
    """Git would answer such a push without comparing, though another host has moved the ref."""
    one, two = host("a"), host("b")
    beaten(one, LONG)
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    ref = refs(remote).split()[-1]
    there = beats.a_beat(one.repository, one._git.beats.next_number())
    write(two, deletes=(KEY,))  # which moves the ref of the other host
    ended = remote.git("rev-parse", ref)
    remote.git("update-ref", ref, remote_object(remote, one, there))
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()
    assert ended not in {beats.a_beat(one.repository, n) for n in range(beats.NUMBER)}


def test_processes_of_a_host_share_a_beat_that_has_just_begun(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats, "SHARED", LONG)  # so that a busy machine is quick enough
    monkeypatch.setattr(beats, "SHARED_IN_TTLS", 1.0)
    one, two, other = host("a"), host("a"), host("b")
    beaten(one, LONG)
    write(two, Put(OTHER, b"", ttl=LONG))
    assert two.renew((Put(OTHER, b"", ttl=LONG),)) == {OTHER}
    both = ((one, Put(KEY, b"", ttl=LONG)), (two, Put(OTHER, b"", ttl=LONG)))
    places = set()
    for _ in range(3):
        for store, put in both:
            assert store.renew((put,)) == {put.key}
            places.add(refs(remote))
        with apsw.Connection(one.path) as db:  # as if some time had passed
            db.execute("UPDATE replica SET value = value - 100000000000 WHERE name = 'beaten'")
    assert len(places) == 3
    assert here(other)
    assert here(other, OTHER)


def test_a_process_that_renews_again_beats_again(remote: Remote, host: Opens) -> None:
    store = host()
    beaten(store, LONG)
    places = set()
    for _ in range(3):
        assert store.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
        places.add(refs(remote))
    assert len(places) == 3


@for_each("ttl", [0.5, 2.0, 10.0, 30.0, 900.0])
def test_a_shared_beat_is_younger_than_half_of_what_a_holder_stops_early(ttl: float) -> None:
    shared = min(beats.SHARED, beats.SHARED_IN_TTLS * ttl)
    assert shared <= margin(ttl) / 2


def test_another_host_sees_the_beats(host: Opens) -> None:
    one, two = host("a"), host("b")
    beaten(one, SLOW)
    ends = time.monotonic() + 1.3 * SLOW
    while time.monotonic() < ends:
        assert one.renew((Put(KEY, b"", ttl=SLOW),)) == {KEY}
        assert here(two)
        assert not isinstance(end(two), Committed)


def test_a_host_that_stops_beating_is_ended_for_all(remote: Remote, host: Opens) -> None:
    one, two = host("a"), host("b")
    beaten(one)
    assert here(two)
    before = refs(remote)
    lapsed(two)
    committed(end(two))
    assert refs(remote) != before
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()
    assert not here(one)


def test_a_beat_that_was_not_seen_yet_keeps_the_key(host: Opens) -> None:
    one, two = host("a"), host("b")
    beaten(one, SLOW)
    assert here(two)
    renew_late(one)
    lapsed(two)  # it did not look
    assert not isinstance(end(two), Committed)
    assert here(two)


def test_of_a_beat_and_an_end_exactly_one_happens(host: Opens) -> None:
    one, two = host("a"), host("b")
    for _ in range(2):
        beaten(one, SLOW)
        assert here(two)
        renew_late(one)
        lapsed(two)
        renewed, ended = at_once(partial(one.renew, (Put(KEY, b"", ttl=SLOW),)), partial(end, two))
        assert bool(renewed) is not isinstance(ended, Committed)
        write(one, deletes=(KEY,))


def test_a_key_that_another_host_deleted_is_not_renewed(host: Opens) -> None:
    one, two = host("a"), host("b")
    beaten(one, LONG)
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    write(two, deletes=(KEY,))
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()


def test_a_host_ends_the_key_of_a_process_that_is_gone_while_others_beat(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put(KEY, b"", ttl=TTL), Put(OTHER, b"", ttl=LONG))
    both = (Put(KEY, b"", ttl=TTL), Put(OTHER, b"", ttl=LONG))
    assert one.renew(both) == {KEY, OTHER}
    ends = time.monotonic() + 10
    while here(two):  # two alone would take the beats for those of both
        assert time.monotonic() < ends
        assert one.renew((Put(OTHER, b"", ttl=LONG),)) == {OTHER}
    assert here(two, OTHER)


def test_a_host_that_did_not_look_for_long_takes_others_for_alive(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = host("a"), host("b")
    beaten(one)
    assert one.renew((Put(KEY, b"", ttl=TTL),)) == {KEY}
    assert here(two)
    lapsed(two)
    monkeypatch.setattr(beats, "BLIND", 0.1)
    assert not isinstance(end(two), Committed)


def test_the_end_of_a_key_is_known_before_the_next_beat_can_land(
    host: Opens,
) -> None:
    """A look that shows where the ref is now says nothing about why it was moved."""
    one, two = host("a", patience=0.2), host("b")
    beaten(one, LONG)
    write(two, deletes=(KEY,))
    lock = Path(f"{one.repository.path}/{HEAD}.lock")
    lock.touch()  # it can look, but not fetch
    with pytest.raises(StoreTrouble):
        one.renew((Put(KEY, b"", ttl=LONG),))
    lock.unlink()
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()


def test_each_branch_has_refs_of_its_own(remote: Remote, host: Opens) -> None:
    one, two = host("a"), host("b", url=f"{remote.url}?branch=build/nightly")
    for store in (one, two):
        beaten(store, LONG)
    assert {ref.rpartition("/")[0] for ref in ref_names(remote)} == {
        "refs/interlock/live/interlock",
        "refs/interlock/live/build+nightly",
    }
    assert two._git.beats.at(one._git.host) == NONE
    two.repository.delete_branch(10.0)
    assert ref_names(remote) == [one._git.beats.ref_of(one._git.host)]


def test_a_temporary_branch_leaves_nothing_at_the_remote(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with temporary_branch(remote.url, "demo") as url:
        store = open_store(url)
        beaten(store, LONG)
        assert ref_names(remote)
        store.close()
    assert remote.git("for-each-ref") == ""


def test_a_checkpoint_deletes_the_refs_of_hosts_that_are_gone(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 4)
    one, two, three = host("a"), host("b"), host("c")
    beaten(one, LONG)
    write(two, Put(OTHER, b"", ttl=LONG))
    two.renew((Put(OTHER, b"", ttl=LONG),))
    write(two, deletes=(OTHER,))
    two.read()
    for _ in range(8):
        write(three, Put("p/a", b""))
    assert len(ref_names(remote)) == 2  # the second one committed lately
    monkeypatch.setattr(beats, "GONE", 0)
    for _ in range(4):
        write(three, Put("p/a", b""))
    assert ref_names(remote) == [one._git.beats.ref_of(one._git.host)]
    beaten(two, LONG)  # as it returns
    assert two.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    assert here(three)
    assert len(ref_names(remote)) == 2


def test_a_host_that_returns_after_its_ref_was_deleted_revives_nothing(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if it has beaten, nor if its keys were about to beat for the first time."""
    monkeypatch.setattr(checkpoint, "EVERY", 2)
    monkeypatch.setattr(beats, "GONE", 0)
    for times in (0, 1):
        one, two = host(f"a{times}"), host("b")
        beaten(one, LONG)
        for _ in range(times):
            assert one.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
        write(two, deletes=(KEY,))
        for _ in range(4):
            write(two, Put("p/a", b""))
        assert ref_names(remote) == []
        assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()


def test_a_remote_that_lets_no_ref_be_deleted_keeps_them(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 2)
    monkeypatch.setattr(beats, "GONE", 0)
    remote.hook("update", 'case $3 in 0000*) echo "nothing is deleted"; exit 1;; esac')
    one, two = host("a"), host("b")
    beaten(one, LONG)
    for _ in range(2):
        write(two, deletes=(KEY,))
    for _ in range(2):
        write(two, Put("p/a", b""))
    assert len(ref_names(remote)) == 1
    assert two.info()["beats"] == "as refs; the remote lets none be deleted"


def test_with_a_pace_the_renewals_of_a_host_share_its_beats(remote: Remote, host: Opens) -> None:
    url = remote.url + "?pace=2"
    one, same = host("a", url=url), host("a", url=url)
    beaten(one, LONG)
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    before = refs(remote)
    for store in (one, same, one):
        assert store.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    assert refs(remote) == before


def test_a_remote_that_takes_no_such_refs_has_the_renewals_in_its_history(
    remote: Remote, host: Opens
) -> None:
    remote.hook("update", 'case $1 in refs/heads/*) ;; *) echo "only branches"; exit 1;; esac')
    one, two = host("a"), host("b")
    beaten(one)
    head = remote.head()
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
    assert remote.head() != head
    lapsed_after = time.monotonic() + TTL
    while time.monotonic() < lapsed_after:
        assert here(two)
    assert here(two)
    assert refs(remote) == ""
