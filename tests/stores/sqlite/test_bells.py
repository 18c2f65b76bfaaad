"""Doorbells: who watches is woken at once; where no bell can ring, the backstop wakes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.processes.helpers import Actor, Cast, until
from tests.stores.sqlite.actors import put

from interlock.store import Change, Resync
from interlock.stores.sqlite import SQLiteStore
from interlock.stores.sqlite import watch as watch_module
from interlock.stores.sqlite.bells import Bells
from interlock.stores.sqlite.watch import Rows


def keys(changes: list[Change | Resync]) -> list[str]:
    return [change.key if isinstance(change, Change) else str(change) for change in changes]


def write(store: SQLiteStore, *names: str) -> None:
    for name in names:
        store.transact(lambda _, name=name: put(name))  # type: ignore[misc]


def heard(actor: Actor) -> tuple[float, str]:
    moment, key = actor.hear().split(" ", 1)
    return float(moment), key


def watcher(cast: Cast, path: str, sockets: str = "allowed") -> Actor:
    actor = cast.start("watch", path, "k/", 0, sockets)
    actor.greeting = actor.hear()
    assert actor.greeting.startswith("ready")
    return actor


def names(path: str) -> set[str]:
    return set(os.listdir(path + "-bells")) - {"gate", "turn"}


def delays(store: SQLiteStore, actor: Actor, many: int) -> list[float]:
    """From the end of a commit until the other process has its change."""
    found = []
    for number in range(many):
        store.transact(lambda _, n=number: put(f"k/{n}"))  # type: ignore[misc]
        done = time.monotonic()
        moment, key = heard(actor)
        assert key == f"k/{number}"
        found.append(moment - done)
    return found


def test_another_process_is_woken_far_sooner_than_the_backstop_would(
    store: SQLiteStore, cast: Cast
) -> None:
    found = delays(store, watcher(cast, store.path), 30)
    assert statistics.median(found) < 0.1, found


def test_an_event_loop_is_woken_by_another_process(path: str, cast: Cast) -> None:
    store = SQLiteStore(path)
    actor = cast.start("commit", path, "k/", 10)
    assert actor.hear() == "ready"

    async def main() -> list[float]:
        watch = store.watch("k/", 0)
        found = []
        for number in range(10):
            actor.tell()
            changes = await watch.take_async(20)
            woken = time.monotonic()
            assert keys(changes) == [f"k/{number}"]
            found.append(woken - float(actor.hear().split()[0]))
        watch.close()
        return found

    found = asyncio.run(main())
    assert statistics.median(found) < 0.1, found
    store.close()


def test_only_those_are_rung_whose_prefix_matches(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []

    def send(_bells: Bells, name: str) -> bool:
        rung.append(name)
        return True

    monkeypatch.setattr(Bells, "_send", send)
    watches = [store.watch("k/", 0), store.watch("other/", 0)]
    write(store, "unrelated")
    assert rung == []
    write(store, "k/a")
    assert len(rung) == 1
    for watch in watches:
        watch.close()
    write(store, "k/b")
    assert len(rung) == 1, "whoever watches no more is not rung"


@pytest.fixture
def no_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard in this process was rung."""
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)


@pytest.mark.usefixtures("no_backstop")
@pytest.mark.parametrize(
    "scope",
    ["", "log/", "k/%2F/", "k/" + "x" * 300 + "/", "k/" + "é" * 150 + "/", "a\\b/"],
    ids=["all", "log", "escaped", "long", "wide", "backslash"],
)
def test_any_scope_can_be_watched(store: SQLiteStore, scope: str) -> None:
    watch = store.watch(scope, 0)
    write(store, "other", scope + "z")
    found: list[str] = []
    while not any(key.endswith("z") or key.startswith("log/") for key in found):
        found += keys(watch.take(20))
    watch.close()


def test_where_sockets_are_forbidden_the_backstop_wakes_and_the_store_says_so(
    store: SQLiteStore, cast: Cast
) -> None:
    actor = watcher(cast, store.path, "forbidden")
    assert actor.greeting == "ready local sockets do not work here (Operation not permitted)"
    found = delays(store, actor, 3)
    assert max(found) < 5
    assert store.info()["doorbells"] == "ok", "here they work"


def test_a_sandbox_without_sockets_can_still_commit(path: str, cast: Cast) -> None:
    store = SQLiteStore(path)
    watch = store.watch("k/", 0)
    child = cast.start("commit", path, "k/", 1, "forbidden")
    assert child.hear() == "ready"
    child.tell()
    child.hear()
    child.finish()
    assert keys(watch.take(20)) == ["k/0"]
    watch.close()
    store.close()


def test_a_store_deeper_than_a_socket_address_may_be_long_still_rings(
    tmp_path: Path, cast: Cast
) -> None:
    path = str(tmp_path / ("deep" * 30) / ("deeper" * 20) / "store.db")
    assert len(path) > 250
    os.makedirs(os.path.dirname(path))
    store = SQLiteStore(path)
    assert store.info()["doorbells"] == "ok"
    found = delays(store, watcher(cast, path), 10)
    assert statistics.median(found) < 0.1, found
    store.close()


def test_what_killed_watchers_left_is_cleared_away_by_the_next_ring(
    store: SQLiteStore, cast: Cast
) -> None:
    actors = [watcher(cast, store.path) for _ in range(3)]
    assert len(names(store.path)) == 6, "a bell and a mark each"
    for actor in actors[:2]:
        actor.kill()
    write(store, "k/a")
    assert heard(actors[2])[1] == "k/a"
    left = names(store.path)
    assert {name.partition("-")[0] for name in left} == {str(actors[2].pid)}
    assert len(left) == 2


def test_a_watcher_that_closes_leaves_nothing_behind(store: SQLiteStore) -> None:
    other = SQLiteStore(store.path)
    watches = [other.watch(prefix, 0) for prefix in ("a", "b", "a")]
    assert len(names(store.path)) == 3
    for watch in watches:
        watch.close()
    other.close()
    assert names(store.path) == set()


def test_a_watcher_that_stands_still_blocks_nobody_and_misses_nothing(
    store: SQLiteStore, cast: Cast
) -> None:
    actor = watcher(cast, store.path)
    write(store, "k/first")
    assert heard(actor)[1] == "k/first"
    actor.freeze()
    began = time.monotonic()
    write(store, *(f"k/{number}" for number in range(1500)))
    assert time.monotonic() - began < 30
    actor.thaw()
    assert [heard(actor)[1] for _ in range(1500)] == [f"k/{number}" for number in range(1500)]


@pytest.mark.usefixtures("no_backstop")
def test_a_full_queue_never_blocks_whoever_rings(store: SQLiteStore) -> None:
    """More rings than any queue of datagrams holds."""
    other = SQLiteStore(store.path)
    watch = other.watch("k/", 0)
    for _ in range(3000):
        store._bells.ring(["k/x"])
    write(store, "k/a")
    assert keys(watch.take(20)) == ["k/a"]
    write(store, "k/b")
    assert keys(watch.take(20)) == ["k/b"]
    other.close()


def test_a_committer_killed_before_it_rang_is_noticed(store: SQLiteStore, cast: Cast) -> None:
    actor = watcher(cast, store.path)
    victim = cast.start("die_before_ringing", store.path, "k/silent")
    victim.died()
    died = time.monotonic()
    moment, key = heard(actor)
    assert key == "k/silent"
    assert moment - died < 5


def test_an_event_loop_notices_a_committer_killed_before_it_rang(path: str, cast: Cast) -> None:
    store = SQLiteStore(path)

    async def main() -> list[Change | Resync]:
        watch = store.watch("k/", 0)
        task = asyncio.ensure_future(watch.take_async(20))
        await asyncio.sleep(0)
        victim = cast.start("die_before_ringing", path, "k/silent")
        return await task if victim.alive() else []

    assert keys(asyncio.run(main())) == ["k/silent"]
    store.close()


@pytest.mark.usefixtures("no_backstop")
def test_commits_and_watches_survive_the_folder_being_removed(
    store: SQLiteStore, cast: Cast
) -> None:
    actor = watcher(cast, store.path)
    shutil.rmtree(store.path + "-bells")
    write(store, "k/0", "k/1")
    assert [heard(actor)[1], heard(actor)[1]] == ["k/0", "k/1"], "through the backstop"
    late = SQLiteStore(store.path)
    watch = late.watch("k/", 2)
    write(store, "k/2")
    assert keys(watch.take(20)) == ["k/2"], "a new watcher is rung again"
    late.close()

    async def main() -> None:
        await asyncio.gather(*(store.transact_async(lambda _: put("k/3")) for _ in range(3)))

    shutil.rmtree(store.path + "-bells")
    asyncio.run(main())


def test_a_watch_that_was_passed_by_trimming_is_told_to_look_for_itself(
    store: SQLiteStore, cast: Cast
) -> None:
    write(store, "k/a")
    actor = watcher(cast, store.path)
    assert heard(actor)[1] == "k/a"
    actor.freeze()
    write(store, *(f"k/{number}" for number in range(20)))
    store.trim(15)
    write(store, "k/z")
    actor.thaw()
    assert "Resync" in heard(actor)[1]
    write(store, "k/after")
    until(lambda: heard(actor)[1] == "k/after")


def test_a_first_watch_does_not_read_the_whole_log(store: SQLiteStore) -> None:
    write(store, *(f"k/{number}" for number in range(300)))
    asked: list[int] = []
    later = store._feed._later

    def noted(revision: int) -> tuple[Rows, int]:
        asked.append(revision)
        return later(revision)

    store._feed._later = noted
    watch = store.watch("k/", store.read("a").revision)
    assert min(asked) == 300
    watch.close()


@pytest.mark.usefixtures("no_backstop")
def test_a_program_with_more_than_1024_descriptors_can_watch(store: SQLiteStore) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    pairs = []
    try:
        pairs = [socket.socket() for _ in range(1100)]
        watch = store.watch("k/", 0)
        assert watch.take(0.01) == []
        write(store, "k/a")
        assert keys(watch.take(20)) == ["k/a"]
        watch.close()
    finally:
        for pair in pairs:
            pair.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_that_ring_at_once_close_no_descriptor_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead watcher's bell makes whoever rings let go of the folder."""
    bells = Bells(str(tmp_path))
    close, closed = os.close, list[int]()

    def slowly(fd: int) -> None:
        time.sleep(0.001)
        closed.append(fd)
        close(fd)

    monkeypatch.setattr(os, "close", slowly)
    failed = list[BaseException]()

    def ring(number: int) -> None:
        try:
            for turn in range(20):
                with suppress(FileExistsError):
                    (tmp_path / f"99999-{number:04x}{turn:04x}=k").touch(exist_ok=False)
                bells.ring(["k/1"])
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=ring, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    bells.close()
    assert not failed
    assert "Bad file descriptor" not in bells.trouble


def test_a_ring_that_fails_in_any_way_of_the_system_is_noted_and_the_commit_stands(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> bool:
        raise OSError(9, "Bad file descriptor")

    watch = store.watch("k/", 0)
    monkeypatch.setattr(store._bells, "_send", fail)
    write(store, "k/1")
    assert "Bad file descriptor" in store._bells.trouble
    assert store.read("k/1")["k/1"] is not None
    watch.close()


def test_a_list_made_in_the_same_second_is_not_kept_where_times_have_no_smaller_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1_700_000_000 * 10**9
    bells = Bells(str(tmp_path))
    (tmp_path / "1-00000001=a").touch()
    os.utime(tmp_path, ns=(second, second))
    monkeypatch.setattr(time, "time_ns", lambda: second + 900_000_000)
    assert bells._list() == ["1-00000001=a"]
    (tmp_path / "1-00000001=b").touch()
    os.utime(tmp_path, ns=(second, second))
    assert sorted(bells._list()) == ["1-00000001=a", "1-00000001=b"]
    bells.close()


def test_only_files_of_our_own_form_are_cleared_away(tmp_path: Path) -> None:
    theirs = {"notes=k", "1-xyz=k", "12-0123456789=k", "gate", "=k"}
    for name in (*theirs, "99999-00000001=k"):
        (tmp_path / name).touch()
    bells = Bells(str(tmp_path))
    bells.ring(["k/1"])
    bells.close()
    assert set(os.listdir(tmp_path)) == theirs
