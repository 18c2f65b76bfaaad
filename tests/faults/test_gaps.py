"""History is deleted under a follower: a Resync reports it, and never a silent gap."""

from __future__ import annotations

import random
import threading

import pytest
from tests.faults.setup import WAYS, Setup, Way, settle

from interlock.store import Change, Put, Resync
from interlock.testing.conformance.place import write


@pytest.mark.parametrize("way", WAYS)
def test_a_watch_that_was_cut_off_while_history_was_given_up_resyncs(
    setup: Setup, way: Way
) -> None:
    store, proxy = setup.store(), setup.proxy()
    ada = setup.client("ada", proxy, way)
    start = write(store, Put("p/0", b""))
    watch = ada.fleet.store.watch("p/", start)
    assert ada.take(watch, 0.1) == []
    proxy.cut()
    revisions = [write(store, Put(f"p/{number}", b"")) for number in range(1, 6)]
    setup.engine.trim_history(store, revisions[2])
    proxy.heal()
    found = ada.take(watch, 20)
    assert isinstance(found[0], Resync)
    assert found[0].revision >= revisions[2]
    while found[-1].revision < revisions[-1]:
        found += ada.take(watch, 20)
    rest = [each.revision for each in found[1:]]
    assert rest == [each for each in revisions if each > found[0].revision]
    later = write(store, Put("p/9", b""))
    assert ada.take(watch, 20) == [Change(later, "p/9")]
    watch.close()


@pytest.mark.parametrize("way", WAYS)
def test_whoever_follows_the_record_from_what_is_gone_is_told_so(setup: Setup, way: Way) -> None:
    store = setup.store()
    bob = setup.client("bob")
    ada = setup.client("ada", None, way)
    early = store.read().revision
    for _ in range(3):
        bob.acquire("merge")
        bob.release("merge")
    setup.engine.trim_history(store, store.read().revision)
    told = ada.do(lambda fleet: fleet.record.follow(early).take(20))
    assert isinstance(told, Resync)
    assert told.revision >= store.read().revision
    bob.acquire("merge")
    lines = ada.do(lambda fleet: fleet.record.follow(told.revision).take(20))
    assert [(line.verb, line.agent) for line in lines] == [("lock.acquire", "bob")]


@pytest.mark.parametrize("way", WAYS)
def test_no_change_is_missed_in_silence_while_history_goes_and_connections_end(
    setup: Setup, way: Way
) -> None:
    store, proxy, draw = setup.store(), setup.proxy(), random.Random(7)
    ada = setup.client("ada", proxy, way)
    watch = ada.fleet.store.watch("p/", store.read().revision)
    written: list[int] = []
    over = threading.Event()

    def writes() -> None:
        for number in range(300):
            written.append(write(store, Put(f"p/{number % 7}", b"")))
            if draw.random() < 0.05:
                setup.engine.trim_history(store, written[-draw.randint(1, min(10, len(written)))])
            if draw.random() < 0.05:
                proxy.cut_once()
        over.set()

    work = setup.begin(writes)
    seen: list[int] = []
    gaps: list[tuple[int, int]] = []
    position = 0
    while not (over.is_set() and position >= written[-1]):
        for each in ada.take(watch, 0.5):
            if isinstance(each, Resync):
                gaps.append((position, each.revision))
            else:
                assert each.revision > position, "in order, and not twice"
                seen.append(each.revision)
            position = max(position, each.revision)
    work.result(30)
    missed = set(written) - set(seen)
    assert all(any(low < each <= high for low, high in gaps) for each in missed)
    settle(lambda: not ada.fleet.trouble, "no trouble")
    watch.close()
