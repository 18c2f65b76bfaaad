"""Liveness among hosts: each times what it has seen, and a commit ends a key for all."""

from __future__ import annotations

import time

import apsw
from tests.stores.git.conftest import Opens

from interlock.store import Check, Put, Store
from interlock.testing.conformance.place import committed, txn, write

KEY = "live/ses_1"
TTL = 0.5


def lapse(store: Store) -> None:
    """Wait until a key reads as absent here."""
    ends = time.monotonic() + 10
    while store.read(KEY, fresh=False)[KEY] is not None:
        assert time.monotonic() < ends


def test_a_host_that_sees_a_key_late_ends_it_late(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put(KEY, b"", ttl=TTL))
    assert two.read(KEY)[KEY] is not None
    seen = time.monotonic()
    lapse(two)
    assert time.monotonic() - seen >= TTL - 0.1


def test_a_late_host_promises_less_than_the_ttl(host: Opens) -> None:
    one, two = host("a"), host("b")
    two.read()
    before = time.monotonic()
    write(one, Put(KEY, b"", ttl=60.0))
    item = two.read(KEY)[KEY]
    assert item is not None
    assert item.expires_in is not None
    assert item.expires_in <= 60.0 - (time.monotonic() - before) + 0.05


def test_once_a_commit_relied_on_the_end_of_a_key_no_host_revives_it(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put(KEY, b"", ttl=TTL))
    two.read(KEY)
    lapse(two)
    committed(two.commit(txn(Put("a", b""), checks=(Check(KEY, "absent"),))))
    assert one.renew((Put(KEY, b"", ttl=60.0),)) == frozenset()
    assert one.read(KEY)[KEY] is None


def test_a_renewal_that_is_first_keeps_the_key(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put(KEY, b"", ttl=TTL))
    two.read(KEY)
    assert one.renew((Put(KEY, b"", ttl=60.0),)) == {KEY}
    lapse(two)  # which has not looked since
    answer = two.commit(txn(checks=(Check(KEY, "absent"),)))
    assert answer.items[KEY] is not None
    assert two.read(KEY)[KEY] is not None


def test_a_key_that_ended_and_began_again_was_created_at_one_revision(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put(KEY, b"", ttl=TTL))
    lapse(one)
    created = write(one, Put(KEY, b"", ttl=60.0))
    item = two.read(KEY)[KEY]
    assert item is not None
    assert item.created == created


def test_after_a_reboot_every_ttl_starts_again(host: Opens) -> None:
    store = host()
    write(store, Put(KEY, b"", ttl=60.0))
    store.close()
    db = apsw.Connection(store.path)
    db.execute("UPDATE meta SET value = 'another boot' WHERE name = 'boot'")
    db.execute("UPDATE item SET expires = 1 WHERE expires IS NOT NULL")
    db.close()
    item = host().read(KEY)[KEY]
    assert item is not None
    assert item.expires_in is not None
    assert item.expires_in < 1.0
