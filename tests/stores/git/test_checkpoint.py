"""The state as files of the branch, and hosts that start from it."""

from __future__ import annotations

import json

import pytest
from tests.stores.git.conftest import Opens, Remote

import interlock
from interlock.errors import StoreDamaged, StoreRefused
from interlock.store import Change, Item, Log, Put, Range, Store, StoreMark
from interlock.stores.git import batch, checkpoint
from interlock.testing.conformance.place import there, write


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 4)
    monkeypatch.setattr(checkpoint, "_IN_LOG", 4)
    monkeypatch.setattr(checkpoint, "IN_FOLDER", 2)
    monkeypatch.setattr(batch, "IN_FOLDER", 2)


def everything(store: Store) -> object:
    log = Log(limit=10_000)
    snapshot = store.read(Range("p/", limit=10_000), log)
    return snapshot.revision, snapshot.ranges


def test_a_new_host_starts_from_the_checkpoint(remote: Remote, host: Opens) -> None:
    one = host("a")
    for number in range(10):
        write(one, Put(f"p/{number % 5}", b'{"n":%d}' % number), quiet=number % 7 == 3)
    two = host("b")
    assert everything(two) == everything(one)
    write(two, Put("p/x", b"\xff"))
    for _ in range(4):
        write(two, Put("p/y", b""))
    assert everything(one) == everything(two) == everything(host("c"))


def test_a_new_host_has_the_whole_log_and_nothing_that_was_trimmed(host: Opens) -> None:
    one = host("a")
    for number in range(21):
        write(one, Put("p/a", b'{"n":%d}' % number))
        if number in {6, 13, 14}:
            one.trim(number)
    assert everything(host("b")) == everything(one)
    for number in range(9):
        write(one, Put("p/b", b'{"n":%d}' % number))
    assert everything(host("c")) == everything(one)


def test_people_can_read_the_state(remote: Remote, host: Opens) -> None:
    with interlock.connect(store=host(), agent="ada") as ada:
        for number in range(5):
            ada.locks.acquire(f"l{number}")
    lines = remote.git("show", "interlock:state/items/locks.jsonl").splitlines()
    assert json.loads(lines[0])["key"] == "locks/l0"
    assert json.loads(lines[0])["value"]["grants"]


def test_old_batches_leave_the_branch(remote: Remote, host: Opens) -> None:
    store = host()
    for _ in range(16):
        write(store, Put("p/a", b""))
    names = remote.git("ls-tree", "-r", "--name-only", "interlock", "batches/").splitlines()
    assert len(names) <= 2 * checkpoint.EVERY + batch.IN_FOLDER
    assert names[-1].endswith("000000016.json")


def test_a_host_that_is_far_behind_misses_nothing(host: Opens) -> None:
    one, two = host("a"), host("b")
    write(one, Put("live/s", b"", ttl=60.0), Put("p/gone", b""))
    start = two.read().revision
    write(one, deletes=("p/gone",))
    revisions = [write(one, Put("p/a", b"")) for _ in range(12)]
    watch = two.watch("p/a", start)
    found = [change for change in watch.take(5.0) if isinstance(change, Change)]
    while found[-1].revision < revisions[-1]:
        found += [change for change in watch.take(5.0) if isinstance(change, Change)]
    assert [change.revision for change in found] == revisions
    assert everything(two) == everything(one)
    assert there(two, "live/s").expires_in is not None


def test_trimmed_entries_leave_the_checkpoint(host: Opens) -> None:
    one = host("a")
    revisions = [write(one, Put("p/a", b"")) for _ in range(6)]
    one.trim(revisions[4])
    for _ in range(4):
        write(one, Put("p/a", b""))
    two = host("b")
    assert everything(two) == everything(one)
    assert two.extent() == one.extent()


def test_what_a_move_erased_leaves_the_checkpoint(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_IN_LOG", 2)
    one = host("a")
    mark = StoreMark(state="filling", place="x", move="mov_1", at=1.0, revision=20)
    assert one.set_mark(mark, None)
    for revision in range(1, 9):
        one.load("mov_1", [Item(f"log/txn_{revision}", b"{}", revision, revision, "", "")])
    while one.erase("mov_1"):
        pass
    assert one.set_mark(None, mark)
    for number in range(5):
        write(one, Put("p/a", b"%d" % number))
    assert everything(host("b")) == everything(one)


def test_many_items_are_spread_over_files(remote: Remote, host: Opens) -> None:
    store = host()
    write(store, *(Put(f"p/{number}", b"{}") for number in range(300)))
    for _ in range(3):
        write(store)
    names = remote.git("ls-tree", "-r", "--name-only", "interlock", "state/items/p/").splitlines()
    assert len(names) == 16
    assert everything(host("b")) == everything(store)


def test_a_checkpoint_from_before_is_no_way_on(remote: Remote, host: Opens) -> None:
    one, two = host("a"), host("b")
    for _ in range(9):
        write(one, Put("p/a", b""))
    old = remote.head()
    for _ in range(8):
        write(one, Put("p/a", b""))
    two.read()
    remote.git("update-ref", "refs/heads/interlock", old)
    with pytest.raises(StoreDamaged, match="was rewritten"):
        two.read()


def test_a_long_history_begins_again_and_hosts_follow_it(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "HISTORY", 8)
    one, two = host("a"), host("b")
    for _ in range(9):
        write(one, Put("p/a", b""))
        two.read()
    assert len(remote.subjects()) == 2
    assert everything(two) == everything(one) == everything(host("c"))
    write(two, Put("p/b", b""))
    assert there(one, "p/b").value == b""


@pytest.mark.parametrize(("limit", "value"), [("LARGE", 8 * 700), ("OLD", 0.0)])
def test_a_large_or_an_old_history_begins_again(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    store = host()
    for _ in range(6):
        write(store, Put("p/a", b"x" * 500))
    assert len(remote.subjects()) == 7
    monkeypatch.setattr(checkpoint, limit, value)
    for _ in range(2):
        write(store, Put("p/a", b"x" * 500))
    assert len(remote.subjects()) == 1
    assert everything(host("b")) == everything(store)
    for _ in range(5):
        write(store, Put("p/a", b""))
    assert len(remote.subjects()) == (6 if limit == "LARGE" else 2)


def test_a_checkpoint_is_due_sooner_after_large_batches(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "GROWN", 4000)
    one, two = host("a"), host("b")
    write(one, Put("p/a", bytes(5000)))
    write(two, Put("p/b", b""))
    facts = json.loads(remote.git("show", "interlock:state/checkpoint.json"))
    assert facts["batch"] == 2
    write(two, Put("p/b", b""))
    write(one, Put("p/b", b""))
    assert one._git._replica.position.grown < 2000
    assert everything(host("c")) == everything(one) == everything(two)


def test_a_push_that_is_refused_as_a_whole_says_nothing_about_the_history(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "HISTORY", 8)
    store = host()
    for _ in range(7):
        write(store, Put("p/a", b""))
    hook = remote.hook("pre-receive", "exit 1")
    with pytest.raises(StoreRefused):
        write(store, Put("p/a", b""))
    hook.unlink()
    write(store, Put("p/a", b""))
    assert len(remote.subjects()) == 1


def test_a_remote_that_forbids_it_keeps_its_whole_history(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.git("config", "receive.denyNonFastForwards", "true")
    monkeypatch.setattr(checkpoint, "HISTORY", 8)
    store = host()
    for _ in range(9):
        write(store, Put("p/a", b""))
    assert len(remote.subjects()) == 10
    said = {finding.name: finding for finding in store.examine()}["history"]
    assert "denyNonFastForwards" in said.remedy
    assert store.info()["history"] == "whole: the remote forbids to shorten it"
