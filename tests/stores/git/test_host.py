"""A host of a git store: its cache, its disk, its clock, and how often it looks."""

from __future__ import annotations

import fcntl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import pytest
from tests.nouns.requests.pair import Pair
from tests.stores.git.conftest import Opens, Remote

import interlock
from interlock.errors import (
    BadInput,
    StoreClosed,
    StoreFull,
    StoreMoved,
    StoreNewer,
    StoreRefused,
    StoreUnsuitable,
)
from interlock.faces.cli.connect import url_of
from interlock.nouns.fleet.moving import StoreCopy
from interlock.nouns.requests import outcomes as out
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.store import Put
from interlock.stores import open_store, shown
from interlock.stores.git import GitStore, looks
from interlock.stores.git.address import parse
from interlock.stores.git.repository import GitRun, Repository, read_answer
from interlock.stores.sqlite import SQLiteStore
from interlock.testing.conformance.place import at_once, there, txn, write


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each command of git was run."""
    found, run = Counter[str](), Repository.run

    def counted(self: Repository, *args: str, **options: object) -> GitRun:
        found[args[0]] += 1
        return run(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Repository, "run", counted)
    return found


def test_a_change_alone_is_one_push(host: Opens, commands: Counter[str]) -> None:
    store = host()
    write(store, Put("a", b"1"))
    commands.clear()
    write(store, Put("a", b"2"))
    assert commands == {"push": 1}


def test_an_idle_agent_looks_at_nothing(host: Opens, commands: Counter[str]) -> None:
    with interlock.connect(store=host(), agent="ada", ttl=60.0):
        commands.clear()
        threading.Event().wait(1.2)  # nothing happens: that is what is checked
        assert not commands["ls-remote"]
        assert not commands["fetch"]


def test_while_a_watch_waits_one_process_of_the_host_looks(
    host: Opens, commands: Counter[str]
) -> None:
    one, two = host("a"), host("a")
    watches = [store.watch("p/", store.read().revision) for store in (one, two)]
    commands.clear()
    assert at_once(*(partial(watch.take, 1.6) for watch in watches)) == [[], []]
    assert 2 <= commands["ls-remote"] <= 5


def test_others_look_if_the_process_that_looks_is_stopped(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "OVERDUE", 0.1)
    store = host()
    with open(f"{store._notifier.folder}/look", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        watch = store.watch("p/", store.read().revision)
        write(host("b"), Put("p/1", b""))
        assert watch.take(10.0)


def test_readers_that_come_together_share_a_look(host: Opens, commands: Counter[str]) -> None:
    store = host()
    commands.clear()
    at_once(*[store.read] * 12)
    assert commands["ls-remote"] < 12


def test_health_and_a_verdict_on_the_record_look_at_the_remote_a_few_times(
    host: Opens, commands: Counter[str]
) -> None:
    with interlock.connect(store=host()) as fleet:
        for call in (fleet.health, fleet.record.verify):
            commands.clear()
            assert call()
            assert 1 <= commands["ls-remote"] <= 3


def test_an_explanation_looks_at_the_remote_once_however_long_its_chain_is(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(name: str) -> None:
        real = getattr(Repository, name)

        def ask(self: Repository, *args: object, **options: object) -> object:
            asked.append(name)
            return real(self, *args, **options)

        monkeypatch.setattr(Repository, name, ask)

    counted("look")
    counted("fetch")
    with (
        interlock.connect(store=host("a"), agent="ada", ttl=600.0) as ada,
        interlock.connect(store=host("b"), agent="bob", ttl=600.0) as bob,
    ):
        chain = [f"t{number}" for number in range(6)]
        needs = [[], *([task] for task in chain)]
        ada.tasks.publish_all(
            {"id": task, "needs": before} for task, before in zip(chain, needs, strict=False)
        )
        ada.locks.acquire("deploy")
        ada.semaphores.acquire("builds", capacity=1)
        for thing in (chain[-1], "lock/deploy", "sem/builds", "agent/ada", "nothing"):
            ada.tasks.publish(f"news of {thing}")
            asked.clear()
            assert bob.why(thing)
            assert asked == ["look", "fetch"]


def test_processes_of_a_host_may_open_a_store_for_the_first_time_at_once(host: Opens) -> None:
    stores = at_once(*[host] * 4)
    assert len({store._git.host for store in stores}) == 1
    write(stores[3], Put("a", b"1"))
    assert there(stores[0], "a").value == b"1"


def test_a_pace_spaces_pushes(remote: Remote, host: Opens) -> None:
    store = host(url=f"{remote.url}?pace=0.4")
    began = time.monotonic()
    for _ in range(3):
        write(store, Put("a", b""))
    assert time.monotonic() - began >= 0.8


def test_a_process_that_waits_for_its_turn_keeps_no_other_from_reading_and_renewing(
    remote: Remote, host: Opens
) -> None:
    unpaced, session = host("a"), Put("live/s", b"", ttl=60.0)
    write(unpaced, session)
    for _ in range(2):
        assert unpaced.renew((session,))
    url = f"{remote.url}?pace=600"
    one, same, other = host("a", url=url), host("a", url=url), host("b")
    write(one, Put("first", b""))

    def write_late() -> None:
        with pytest.raises(StoreClosed):
            write(one, Put("late", b""))

    waiting = threading.Thread(target=write_late)
    waiting.start()
    for number, store in enumerate((same, one, same, one)):
        write(other, Put("a", b"%d" % number))
        assert there(store, "a").value == b"%d" % number
        assert store.renew((session,)) == {"live/s"}
    assert waiting.is_alive()
    one.close()
    waiting.join()


def test_a_process_connects_and_reads_while_another_one_pushes(host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    db = apsw.Connection(store.path)
    db.execute("BEGIN IMMEDIATE")  # as a process in a long push
    try:
        assert there(host(), "a").value == b"1"
    finally:
        db.close()


def test_a_full_disk_of_the_host_refuses_and_goes_on(remote: Remote, host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    head, db = remote.head(), store._engine.db
    db.pragma("max_page_count", int(str(db.pragma("page_count"))) + 2)
    with pytest.raises(StoreFull):
        write(store, Put("large", bytes(200_000)))
    assert remote.head() == head
    db.pragma("max_page_count", 1 << 30)
    write(store, Put("large", bytes(200_000)))


def test_the_copy_of_a_host_is_no_store_by_itself(host: Opens) -> None:
    store = host()
    with pytest.raises(StoreUnsuitable, match="name that by its URL"):
        open_store(store.path)


def test_a_command_below_another_finds_the_same_store(remote: Remote, host: Opens) -> None:
    assert url_of(host(), None) == remote.url


def test_a_store_moves_to_git_and_away(tmp_path: Path, host: Opens) -> None:
    urls = [str(tmp_path / "a.db"), "middle", str(tmp_path / "b.db")]
    with interlock.connect(urls[0], agent="ada") as ada:
        ada.tasks.publish_all([{"id": f"t{number}"} for number in range(3)])
    first, last = SQLiteStore(urls[0]), SQLiteStore(urls[2])
    middle, other = host("a"), host("b")
    StoreCopy(first, middle, (urls[0], "middle")).run()
    before = first.read().revision
    with interlock.connect(store=host("c"), agent="bob") as bob:
        claimed = bob.tasks.next()
        assert isinstance(claimed, Claimed)
        assert (claimed.token or 0) > before
        bob.tasks.complete(claimed.task, token=claimed.token)
    StoreCopy(middle, last, ("middle", urls[2])).run(damaged=False)
    for store, place in ((first, "middle"), (middle, urls[2]), (other, urls[2])):
        with pytest.raises(StoreMoved, match=place):
            write(store, Put("p/late", b""))
        assert store.missing
    for store in (first, last):
        store.close()
    with interlock.connect(urls[2], agent="cleo") as cleo:
        assert [task.task for task in cleo.tasks.list().tasks] == ["t1", "t2"]


def test_a_cache_of_a_later_format_is_refused(host: Opens) -> None:
    store = host()
    store.close()
    db = apsw.Connection(store.path)
    db.pragma("user_version", 99)
    db.close()
    with pytest.raises(StoreNewer):
        host()


def test_a_wall_clock_that_is_wrong_changes_nothing(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = host("a"), host("b")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 30)
    write(one, Put("live/s", b"", ttl=60.0))
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    item = there(two, "live/s")
    assert item.expires_in is not None
    assert 50 < item.expires_in <= 60
    write(two, Put("a", b""))
    assert there(one, "live/s").value == b""


@pytest.fixture
def signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Configures a key for the user's git, and whether it signs commits."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)

    def configure(signs: str) -> None:  # in place of what all tests configure
        values = {"gpg.format": "ssh", "user.signingkey": str(key)}
        values |= {"commit.gpgsign": signs} if signs else {}
        for number, (name, value) in enumerate(values.items()):
            monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
            monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(values)))

    return configure


@pytest.mark.parametrize(
    ("words", "signed"),
    [("?sign=yes", True), ("", False), (" yes", True), (" false", False), ("?sign=no true", False)],
)
def test_commits_are_signed_if_the_url_or_the_configuration_of_the_user_says_so(
    remote: Remote, host: Opens, signing: Callable[[str], None], words: str, signed: bool
) -> None:
    option, _, configured = words.partition(" ")
    signing(configured)
    write(host(url=f"{remote.url}{option}"), Put("a", b"1"))
    for commit in ("interlock", "interlock~1"):
        assert ("BEGIN SSH SIGNATURE" in remote.git("cat-file", "commit", commit)) == signed


def test_a_commit_that_cannot_be_signed_says_how_to_go_on(
    remote: Remote, host: Opens, signing: Callable[[str], None], tmp_path: Path
) -> None:
    signing("true")
    (tmp_path / "key").unlink()
    with pytest.raises(StoreRefused, match="sign=no"):
        host()
    write(host(url=f"{remote.url}?sign=no"), Put("a", b"1"))


def test_swarms_exchange_over_a_bus_on_git(host: Opens) -> None:
    pair = Pair(bus=host())
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(body=b'{"numbers":[1,2]}')
    assert south.take_in() == 1
    claimed = south.claim()
    assert claimed is not None
    south.answer(claimed, b'{"sum":3}')
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)


@pytest.mark.parametrize(
    ("url", "remote", "branch", "said"),
    [
        ("git+file:///srv/a%20b.git", "/srv/a b.git", "interlock", "git+file:///srv/a%20b.git"),
        ("git+ssh://me@h:22/r.git?branch=x/y", "ssh://me@h:22/r.git", "x/y",
         "git+ssh://me@h:22/r.git?branch=x/y"),
        ("git+https://me:p%40w@h/r.git", "https://h/r.git", "interlock", "git+https://me@h/r.git"),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(url: str, remote: str, branch: str, said: str) -> None:
    found = parse(url)
    assert (found.remote, found.branch, found.shown) == (remote, branch, said)
    assert shown(url) == said


@pytest.mark.parametrize(
    "url",
    [
        "git+file://host/x", "git+ssh://host", "git+file:///x?branch=a..b", "git+file:///x?pace=no",
        "git+file:///x?who=me",
        "git+ssh://me:secret@host/x", "git+https://me:a%0ab@host/x",
        "git+file:///x?sign=maybe", "git:///x", "git+file:/x",
    ],
)  # fmt: skip
def test_a_url_with_a_mistake_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput):
        open_store(url)


CUT = "fatal: the remote end hung up unexpectedly"


@pytest.mark.parametrize(
    ("code", "out_", "err", "kind"),
    [
        (0, " \ta:refs/heads/i\tok\n", "", "landed"),
        (1, "!\ta:refs/heads/i\t[rejected] (stale info)\n", "", "lost"),
        (1, "!\ta:refs/heads/i\t[remote rejected] (failed to update ref)\n", "", "locked"),
        (1, "!\ta:refs/heads/i\t[remote rejected] (pre-receive hook declined)\n", "", "refused"),
        (1, "!\ta:refs/heads/i\t[remote rejected] (non-fast-forward)\n", "", "refused"),
        (
            1,
            "!\ta:refs/heads/i\t[remote failure] (remote failed to report status)\n",
            "",
            "unknown",
        ),
        (128, "", "fatal: unable to access: Failed to connect to h port 1: refused", "unsent"),
        (128, "", "fatal: Authentication failed for 'https://h/'", "refused"),
        (128, "", "fatal: the remote end hung up unexpectedly", "unknown"),
        (-9, "", "", "unknown"),
        (0, "=\ta:refs/heads/i\t[up to date]\n", "", "there"),
        (128, "", f"error: RPC failed; HTTP 408 curl 22 returned error: 408\n{CUT}", "unknown"),
        (128, "", f"error: RPC failed; curl 28 Operation timed out after 9 s\n{CUT}", "unknown"),
        (128, "", f"Read from remote host h: Connection timed out\n{CUT}", "unknown"),
        (128, "", f"remote: hooks/post-receive: mail: Permission denied\n{CUT}", "unknown"),
        (128, "", "ssh: connect to host h port 22: Connection timed out\nfatal: No", "unsent"),
        (128, "", "ERROR: Permission to a/b.git denied to c.\nfatal: No", "refused"),
    ],
)
def test_what_git_says_of_a_push_is_understood(code: int, out_: str, err: str, kind: str) -> None:
    assert read_answer(GitRun(code, out_.encode(), err)).kind == kind


def test_a_store_is_opened_by_its_url(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = open_store(remote.url)
    assert isinstance(store, GitStore)
    store.commit(txn(Put("a", b"1")))
    store.close()
