"""Notifications: a watcher is woken at once; without sockets, the backstop wakes it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.processes.helpers import Process, ProcessGroup, until
from tests.stores.sqlite.store_programs import put
from tests.system_faults import as_system_call

from interlock.errors import StoreClosed, StoreTrouble
from interlock.store import Change, Committed, Put, Resync, Txn
from interlock.stores import open_store
from interlock.stores.sqlite import SQLiteStore, writer
from interlock.stores.sqlite import watch as watch_module
from interlock.stores.sqlite.notify import (
    LOOK,
    CommitNote,
    Notice,
    NoticeRow,
    Notifier,
    NotifySocket,
    notices_of,
)
from interlock.stores.sqlite.watch import ChangeFeed, Rows, SQLiteWatch

PATIENCE = 30.0
MANY = 600
"""More datagrams than the queue of a socket holds."""


def keys(changes: list[Change | Resync]) -> list[str]:
    return [change.key if isinstance(change, Change) else str(change) for change in changes]


def write(store: SQLiteStore, *names: str) -> None:
    for name in names:
        store.transact(lambda _, name=name: put(name))  # type: ignore[misc]


def signal(store: SQLiteStore, *names: str, puts: tuple[str, ...] = ()) -> int:
    id_ = f"txn_{os.urandom(8).hex()}"
    items = tuple(Put(key, b"") for key in puts)
    done = store.commit(Txn(id=id_, entry=b"{}", hash="0", puts=items, signals=names))
    assert isinstance(done, Committed)
    return done.revision


def changed(key: str) -> CommitNote:
    return CommitNote(1, "log/txn_1", ["+" + key], ())


def watcher(programs: ProcessGroup, path: str, sockets: str = "allowed") -> Process:
    actor = programs.start("watch", path, "k/", 0, sockets)
    actor.greeting = actor.read_line()
    assert actor.greeting.startswith("ready")
    return actor


def names(path: str) -> set[str]:
    return set(os.listdir(path + "-bells")) - {"gate", "turn", "synced"}


def changes(store: SQLiteStore, actor: Process, many: int) -> None:
    """Commit so many times; the other process has each change before the next."""
    for number in range(many):
        write(store, f"k/{number}")
        assert actor.read_line() == f"k/{number}"


def test_another_process_is_woken_by_its_bell(store: SQLiteStore, programs: ProcessGroup) -> None:
    changes(store, watcher(programs, store.path, "bells"), 30)


@pytest.fixture
def no_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard in this process was rung."""
    monkeypatch.setattr(watch_module, "BACKSTOP", 3600.0)


@pytest.mark.usefixtures("no_backstop")
def test_an_event_loop_is_woken_by_another_process(path: str, programs: ProcessGroup) -> None:
    store = SQLiteStore(path)
    actor = programs.start("commit", path, "k/", 10)
    assert actor.read_line() == "ready"

    async def main() -> None:
        watch = store.watch("k/", 0)
        for number in range(10):
            actor.write_line()
            assert keys(await watch.take_async(20)) == [f"k/{number}"]
            assert actor.read_line() == "done"
        watch.close()

    asyncio.run(main())
    store.close()


@pytest.mark.usefixtures("no_backstop")
def test_a_loop_that_commits_tells_its_own_watches_without_a_bell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when several loops use the store in turn, each of them ended in the midst of a call."""
    rung: list[str] = []
    ring = Notifier.send

    def send(notifier: Notifier, name: str) -> bool:
        rung.append(name)
        return ring(notifier, name)

    monkeypatch.setattr(Notifier, "send", send)
    monkeypatch.setattr(writer, "SLOW", 60.0)  # a slow disk is left to a thread, which rings
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:

        async def main(turn: int) -> None:
            watch = store.watch("k/", store.read().revision)
            assert await watch.take_async(0.01) == []  # from here on the loop listens
            rung.clear()
            waits = asyncio.create_task(watch.take_async(20))
            await asyncio.sleep(0)
            await store.transact_async(lambda _: put(f"k/{turn}"))
            assert keys(await waits) == [f"k/{turn}"]
            assert rung == []
            await store.transact_async(lambda _: put("k/end"))

        for turn in range(3):
            asyncio.run(main(turn))


@pytest.mark.usefixtures("no_backstop")
def test_a_thread_that_waits_is_woken_by_a_loop_at_the_same_store(tmp_path: Path) -> None:
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:
        found: list[str] = []

        def waits(watch: SQLiteWatch) -> None:
            found.extend(keys(watch.take(100)))

        async def main() -> None:
            ours = store.watch("k/", 0)
            assert await ours.take_async(0.01) == []
            for turn in range(40):
                watch = store.watch("k/", store.read().revision)
                thread = threading.Thread(target=waits, args=(watch,), daemon=True)
                thread.start()
                if turn % 2:  # else it may not listen yet
                    await asyncio.to_thread(until, lambda: store._feed._listener is not None)
                await store.transact_async(lambda _, n=turn: put(f"k/{n}"))  # type: ignore[misc]
                await asyncio.to_thread(thread.join, 30)
                assert found == [f"k/{turn}"]
                found.clear()
                watch.close()

        asyncio.run(main())


def sleeper(watch: SQLiteWatch) -> tuple[threading.Thread, list[str]]:
    """An event loop in a thread of its own that sleeps until the watch tells what changed."""
    found: list[str] = []

    def sleeps() -> None:
        with suppress(StoreClosed):
            found.extend(keys(asyncio.run(watch.take_async(3600))))

    thread = threading.Thread(target=sleeps, daemon=True)
    thread.start()
    until(lambda: watch.sleeper is not None)
    return thread, found


@pytest.mark.usefixtures("no_backstop")
def test_a_loop_is_woken_by_a_thread_that_finds_what_it_sleeps_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notifier, "send", lambda *_: True)  # the committer was killed
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:
        ours, other = store.watch("k/", 0), store.watch("other/", 0)
        thread, found = sleeper(ours)
        write(store, "k/a")
        other.take(0.0)
        thread.join(30)
        assert found == ["k/a"]


@pytest.mark.usefixtures("no_backstop")
def test_loops_in_several_threads_wake_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer may keep its own loop busy afterwards."""
    monkeypatch.setattr(writer, "SLOW", 60.0)  # a slow disk is left to a thread
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:
        thread, found = sleeper(store.watch("k/", 0))

        async def main() -> None:
            assert await store.watch("other/", 0).take_async(0.01) == []
            await store.transact_async(lambda _: put("k/a"))
            thread.join(30)

        asyncio.run(main())
        assert found == ["k/a"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_loop_that_was_closed_in_its_sleep_is_no_trouble_of_whoever_commits(
    tmp_path: Path, kind: str
) -> None:
    with closing(open_store("memory:" if kind == "memory" else str(tmp_path / "s.db"))) as store:
        asleep, awake = store.watch("k/", 0), store.watch("k/", 0)
        loop = asyncio.new_event_loop()
        task = asyncio.ensure_future(asleep.take_async(None), loop=loop)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        store.commit(put("k/a"))
        assert keys(awake.take(20)) == ["k/a"]
        assert not task.done()


@pytest.mark.usefixtures("no_backstop")
def test_a_thread_waits_for_no_loop_that_committed_and_is_busy(tmp_path: Path) -> None:
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:
        ours, found = store.watch("k/", 0), list[str]()
        thread = threading.Thread(target=lambda: found.extend(keys(ours.take(3600))), daemon=True)

        async def main() -> None:
            assert await store.watch("other/", 0).take_async(0.01) == []
            thread.start()
            await asyncio.to_thread(until, lambda: store._feed._listener is not None)
            write(store, "k/a")
            thread.join(30)
            assert found == ["k/a"]

        asyncio.run(main())


@pytest.mark.usefixtures("no_backstop")
def test_when_the_thread_that_listens_is_interrupted_another_one_listens(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens, struck, first = ChangeFeed._listen, threading.Event(), threading.Event()

    def interrupted(feed: ChangeFeed, bell: NotifySocket | None, timeout: float) -> None:
        if first.is_set():
            return listens(feed, bell, timeout)
        first.set()
        struck.wait(60)
        raise KeyboardInterrupt

    def ends() -> None:
        with suppress(KeyboardInterrupt):
            store.watch("k/", 0).take(3600)

    monkeypatch.setattr(ChangeFeed, "_listen", interrupted)
    threading.Thread(target=ends, daemon=True).start()
    assert first.wait(60)
    watch, found = store.watch("k/", 0), list[str]()
    thread = threading.Thread(target=lambda: found.extend(keys(watch.take(3600))), daemon=True)
    thread.start()
    until(lambda: bool(store._feed._guard._waiters))  # type: ignore[attr-defined]
    struck.set()
    until(lambda: store._feed._listener is not None)
    write(store, "k/a")
    thread.join(30)
    assert found == ["k/a"]


def test_a_waiter_for_a_signal_is_told_by_the_datagram_and_reads_no_log(
    store: SQLiteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = store.watch("wake/a", store.read().revision)
    store.read()  # nothing came between the revision of the watch and its mark
    with closing(SQLiteStore(path)) as other:
        monkeypatch.setattr(store._feed, "_later", None)
        revision = signal(other, "wake/a", "wake/b")
        assert watch.take(PATIENCE) == [Change(revision, "wake/a")]
        monkeypatch.undo()
        write(other, "k/a")
        store._feed._pump(notified=True)
        assert watch.take(0.0) == [], "its log row brings it no second time"


def test_a_signal_that_came_before_the_mark_of_its_watch_is_found_in_the_log(
    store: SQLiteStore,
) -> None:
    before = store.read().revision
    early = signal(store, "wake/a")
    watch = store.watch("wake/a", before)
    store.read()
    assert watch.take(0.0) == [Change(early, "wake/a")]


def test_a_read_that_began_before_a_watch_was_opened_does_not_speak_for_it(
    store: SQLiteStore,
) -> None:
    feed, before = store._feed, store.read().revision
    began = feed.behind
    watch = store.watch("wake/a", before)
    feed.saw(began, before)
    assert feed.behind == (watch,)
    feed.saw(feed.behind, before + 1)
    assert feed.behind == (watch,), "something may have come"
    feed.saw(feed.behind, before)
    assert not feed.behind


@settings(max_examples=40)
@given(
    commits=st.lists(
        st.tuples(st.sets(st.sampled_from(["wake/a", "wake/b", "k/a"]), min_size=1), st.booleans()),
        max_size=12,
    )
)
def test_datagrams_and_log_rows_tell_the_same(
    commits: list[tuple[set[str], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a key alone the last signal may stand for those before it; several scopes get all."""
    path = str(tmp_path_factory.mktemp("same") / "store.db")
    sent: list[Change] = []
    with closing(SQLiteStore(path)) as store, closing(SQLiteStore(path)) as other:
        start = store.read().revision
        one, both = store.watch("wake/a", start), store.watch(("wake/a", "k/"), start)
        alone = other.watch("wake/a", start)
        came: dict[SQLiteWatch, list[Change | Resync]] = {one: [], both: [], alone: []}
        for touched, takes in commits:
            signals = tuple(sorted(each for each in touched if each.startswith("wake/")))
            puts = tuple(sorted(touched - {*signals}))
            revision = signal(store if takes else other, *signals, puts=puts)
            sent += [Change(revision, key) for key in (*puts, *signals)]
            for watch in came if takes else ():
                came[watch] += watch.take(0.0)
        for watch in came:
            came[watch] += watch.take(0.0)
    wanted = [change for change in sent if change.key != "wake/b"]
    assert came[both] == wanted
    signalled = [change for change in wanted if change.key == "wake/a"]
    for watch in (one, alone):
        assert came[watch][-1:] == signalled[-1:]
        assert came[watch] == [change for change in signalled if change in came[watch]]


def test_only_those_are_rung_whose_prefix_matches(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []

    def send(_notifier: Notifier, name: str, _word: bytes) -> bool:
        rung.append(name)
        return True

    monkeypatch.setattr(Notifier, "send", send)
    watches = [store.watch("k/", 0), store.watch("other/", 0)]
    write(store, "unrelated")
    assert rung == []
    write(store, "k/a")
    assert len(rung) == 1
    for watch in watches:
        watch.close()
    write(store, "k/b")
    assert len(rung) == 1, "a closed watch is not notified"


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
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    actor = watcher(programs, store.path, "forbidden")
    assert actor.greeting == "ready local sockets do not work here (Operation not permitted)"
    changes(store, actor, 2)
    assert store.info()["doorbells"] == "ok", "here they work"


def test_a_sandbox_without_sockets_can_still_commit(path: str, programs: ProcessGroup) -> None:
    store = SQLiteStore(path)
    watch = store.watch("k/", 0)
    child = programs.start("commit", path, "k/", 1, "forbidden")
    assert child.read_line() == "ready"
    child.write_line()
    child.read_line()
    child.finish()
    assert keys(watch.take(20)) == ["k/0"]
    watch.close()
    store.close()


def test_a_store_deeper_than_a_socket_address_may_be_long_still_rings(
    tmp_path: Path, programs: ProcessGroup
) -> None:
    path = str(tmp_path / ("deep" * 30) / ("deeper" * 20) / "store.db")
    assert len(path) > 250
    os.makedirs(os.path.dirname(path))
    store = SQLiteStore(path)
    assert store.info()["doorbells"] == "ok"
    changes(store, watcher(programs, path, "bells"), 10)
    store.close()


def test_what_killed_watchers_left_is_cleared_away_by_the_next_ring(
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    actors = [watcher(programs, store.path) for _ in range(3)]
    assert len(names(store.path)) == 6, "a bell and a mark each"
    for actor in actors[:2]:
        actor.kill()
    write(store, "k/a")
    assert actors[2].read_line() == "k/a"
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


@pytest.mark.usefixtures("no_backstop")
def test_many_scopes_are_a_few_marks_and_each_rings(store: SQLiteStore) -> None:
    other = SQLiteStore(store.path)
    scopes = tuple(f"alerts/kind-{number}/" for number in range(150))
    watch = other.watch(("inbox/ada/", "list", "odd=/\\x/", "x" * 190 + "/y", *scopes), 0)
    assert len(names(store.path)) < 30
    for key in ("list", *(scope + "z" for scope in scopes), "odd=/\\x/z", "x" * 190 + "/y"):
        write(store, key)
        assert keys(watch.take(20)) == [key]
    watch.close()
    assert len(names(store.path)) == 1, "the bell is still there"
    other.close()


@pytest.mark.usefixtures("no_backstop")
def test_a_store_that_is_closed_wakes_whoever_waits(store: SQLiteStore) -> None:
    watch = store.watch("k/", 0)
    ended: list[BaseException] = []

    def waits() -> None:
        try:
            watch.take(None)
        except BaseException as error:  # noqa: BLE001 - which one is the question
            ended.append(error)

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    until(lambda: store._feed._listener is not None)
    store.close()
    thread.join(20)
    assert [type(error) for error in ended] == [StoreClosed]


def test_a_watcher_that_stands_still_blocks_nobody_and_misses_nothing(
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    actor = watcher(programs, store.path)
    write(store, "k/first")
    assert actor.read_line() == "k/first"
    actor.freeze()
    write(store, *(f"k/{number}" for number in range(MANY)))
    actor.thaw()
    assert [actor.read_line() for _ in range(MANY)] == [f"k/{number}" for number in range(MANY)]


@pytest.mark.usefixtures("no_backstop")
def test_a_full_queue_never_blocks_whoever_rings(store: SQLiteStore) -> None:
    """More rings than any queue of datagrams holds."""
    other = SQLiteStore(store.path)
    watch = other.watch("k/", 0)
    for _ in range(3000):
        store._notifier.notify([changed("k/x")])
    write(store, "k/a")
    assert keys(watch.take(20)) == ["k/a"]
    write(store, "k/b")
    assert keys(watch.take(20)) == ["k/b"]
    other.close()


def test_receivers_that_read_nothing_keep_no_other_waiting(tmp_path: Path) -> None:
    """What they did not read counts for the socket of its sender."""
    notifier = Notifier(str(tmp_path))
    sockets = [notifier.open_socket() for _ in range(40)]
    *stopped, live = [each for each in sockets if each is not None]
    for each in stopped:
        for _ in range(12):
            assert notifier.send(each._name, b"x" * 4000)
    assert notifier.send(live._name, b"y")
    assert live.drain() in ([b"y"], [LOOK])
    for each in (*stopped, live):
        each.close()
    notifier.close()


def test_a_notice_of_another_form_lets_its_receiver_read_the_log() -> None:
    encode = msgspec.msgpack.Encoder().encode
    good = encode(Notice(1, [NoticeRow(1, ["!wake/a"], {})]))
    assert notices_of([good]) is not None
    assert notices_of([encode(Notice(1, [NoticeRow(1, [""], {})]))]) is None
    assert notices_of([b"garbage"]) is None


def test_a_committer_killed_before_it_rang_is_noticed(
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    actor = watcher(programs, store.path)
    victim = programs.start("die_before_ringing", store.path, "k/silent")
    victim.died()
    assert actor.read_line() == "k/silent"


def test_signals_for_one_watch_do_not_keep_the_backstop_from_another(
    store: SQLiteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "BACKSTOP", 0.2)
    found = list[str]()
    with closing(SQLiteStore(path)) as mute, closing(SQLiteStore(path)) as loud:
        after = store.read().revision
        waiter, rung = store.watch("k/", after), store.watch("wake/a", after)
        monkeypatch.setattr(mute._notifier, "notify", lambda _: None)
        monkeypatch.setattr(mute._engine, "notify", lambda _: None)
        thread = threading.Thread(target=lambda: found.extend(keys(waiter.take(PATIENCE))))
        thread.start()
        write(mute, "k/1")
        ends = time.monotonic() + 5.0
        while thread.is_alive() and time.monotonic() < ends:
            signal(loud, "wake/a")
            thread.join(0.02)
        in_time = list(found)
        write(loud, "k/2")
        thread.join(PATIENCE)
        rung.close()
        waiter.close()
    assert in_time == ["k/1"]


def test_an_event_loop_notices_a_committer_killed_before_it_rang(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path)

    async def main() -> list[Change | Resync]:
        watch = store.watch("k/", 0)
        task = asyncio.ensure_future(watch.take_async(20))
        await asyncio.sleep(0)
        victims.append(programs.start("die_before_ringing", path, "k/silent"))
        return await task

    victims: list[Process] = []
    assert keys(asyncio.run(main())) == ["k/silent"]
    victims[0].died()
    store.close()


@pytest.mark.usefixtures("no_backstop")
def test_commits_and_watches_survive_the_folder_being_removed(
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    actor = watcher(programs, store.path)
    shutil.rmtree(store.path + "-bells")
    write(store, "k/0", "k/1")
    assert [actor.read_line(), actor.read_line()] == ["k/0", "k/1"], "through the backstop"
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
    store: SQLiteStore, programs: ProcessGroup
) -> None:
    write(store, "k/a")
    actor = watcher(programs, store.path)
    assert actor.read_line() == "k/a"
    actor.freeze()
    write(store, *(f"k/{number}" for number in range(20)))
    store.trim(15)
    write(store, "k/z")
    actor.thaw()
    assert "Resync" in actor.read_line()
    write(store, "k/after")
    until(lambda: actor.read_line() == "k/after")


def test_a_first_watch_does_not_read_the_whole_log(store: SQLiteStore) -> None:
    write(store, *(f"k/{number}" for number in range(300)))
    asked: list[int] = []
    later = store._feed._later

    def noted(revision: int) -> tuple[Rows, int, StoreTrouble | None]:
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
    """The socket of a dead watcher makes the sender release the folder."""
    notifier = Notifier(str(tmp_path))
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
                    (tmp_path / f"99999-{number:04x}{turn:04x}=k\\").touch(exist_ok=False)
                notifier.notify([changed("k/1")])
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=ring, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    notifier.close()
    assert not failed
    assert "Bad file descriptor" not in notifier.trouble


def test_a_ring_that_fails_in_any_way_of_the_system_is_noted_and_the_commit_stands(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(9, "Bad file descriptor")

    watch = store.watch("k/", 0)
    monkeypatch.setattr(store._notifier, "send", as_system_call(fail))
    write(store, "k/1")
    assert "Bad file descriptor" in store._notifier.trouble
    assert store.read("k/1")["k/1"] is not None
    watch.close()


def test_a_list_made_in_the_same_second_is_not_kept_where_times_have_no_smaller_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1_700_000_000 * 10**9
    notifier = Notifier(str(tmp_path))
    (tmp_path / "1-00000001=a").touch()
    os.utime(tmp_path, ns=(second, second))
    monkeypatch.setattr(time, "time_ns", lambda: second + 900_000_000)
    assert set(notifier._list()) == {"a"}
    (tmp_path / "1-00000001=b").touch()
    os.utime(tmp_path, ns=(second, second))
    assert set(notifier._list()) == {"a", "b"}
    notifier.close()


def test_only_files_of_our_own_form_are_cleared_away(tmp_path: Path) -> None:
    theirs = {"notes=k", "1-xyz=k", "12-0123456789=k", "gate", "=k"}
    for name in (*theirs, "99999-00000001=k"):
        (tmp_path / name).touch()
    notifier = Notifier(str(tmp_path))
    notifier.notify([changed("k")])
    notifier.close()
    assert set(os.listdir(tmp_path)) == theirs
