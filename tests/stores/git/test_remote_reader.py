"""The process that is kept at the remote: a shorter way, which nothing relies on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.stores.git.conftest import Opens, Remote
from tests.stores.git.test_faults import children, impatient, until

from interlock.errors import StoreDamaged
from interlock.store import Put
from interlock.stores.git import GitStore, news, remote_reader
from interlock.stores.git.address import parse
from interlock.stores.git.objects import FILE, TreeEntry
from interlock.stores.git.reader import GitObject, ObjectReader
from interlock.stores.git.repository import Repository
from interlock.stores.git.ssh import at_server
from interlock.testing.conformance.place import at_once, there, write
from interlock.testing.servers import SshServer

READER = "cat-file --batch"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often git was run for something, in this process."""
    counts: Counter[str] = Counter()
    run = Repository.run

    def counted(self: Repository, *args: str, **options: object) -> object:
        counts[args[0]] += 1
        return run(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Repository, "run", counted)
    return counts


def take_turns(one: GitStore, two: GitStore, times: int = 4) -> None:
    """Both hosts write and read what the other one wrote."""
    for number in range(times):
        for store, other in ((one, two), (two, one)):
            key = f"p/{number}"
            write(store, Put(key, store.path.encode()))
            assert there(other, key).value == store.path.encode()


def kept(*stores: GitStore) -> bool:
    return all(store.repository.reader.kept for store in stores)


def pair(host: Opens, url: str | None = None) -> tuple[GitStore, GitStore]:
    """Two hosts, each with a reader at the remote."""
    options = {} if url is None else {"url": url}
    one, two = host("a", **options), host("b", **options)
    take_turns(one, two)
    return one, two


@pytest.fixture(params=["file", "ssh"])
def url(request: pytest.FixtureRequest, remote: Remote) -> str:
    if request.param == "file":
        return remote.url
    return str(request.getfixturevalue("ssh").url())


def test_hosts_that_compete_fetch_nothing_by_commands_of_git(
    url: str, host: Opens, commands: Counter[str]
) -> None:
    one, two = pair(host, url)
    assert kept(one, two)
    commands.clear()
    take_turns(one, two)
    assert not commands["fetch"]


def test_a_push_that_another_host_would_win_is_not_begun(
    url: str, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair(host, url)
    kinds: Counter[str] = Counter()
    push = Repository.push

    def counted(self: Repository, *moves: object, **options: object) -> object:
        answer = push(self, *moves, **options)  # type: ignore[arg-type]
        kinds[answer.kind] += 1
        return answer

    monkeypatch.setattr(Repository, "push", counted)
    for number in range(8):
        write((one, two)[number % 2], Put("a", b"%d" % number))
    assert kinds == {"landed": 8}


def test_a_watch_is_woken_without_a_command_of_git(
    url: str, host: Opens, commands: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.git.store._GLANCES", 10_000)
    one, two = pair(host, url)
    watch = two.watch("p/", two.read().revision)
    commands.clear()
    write(one, Put("p/a", b"1"))
    assert watch.take(10.0)
    assert not commands["fetch"] + commands["ls-remote"]


def test_the_beats_of_other_hosts_are_noticed_by_a_reader(
    host: Opens, commands: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.git.store._GLANCES", 10_000)
    one, two = pair(host)
    session = Put("live/s", b"", ttl=2.0)
    write(one, session)
    for _ in range(2):
        assert one.renew((session,))
    watch = two.watch("p/", two.read().revision)
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            watch.take(0.2)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked = []
    for _ in range(8):  # on a busy machine the reader may not answer in time, and git is asked
        commands.clear()
        ends = time.monotonic() + 4.0
        while time.monotonic() < ends:
            assert one.renew((session,))
            assert two.read("live/s", fresh=False)["live/s"] is not None
            time.sleep(0.1)
        asked.append(commands["ls-remote"])
        if not asked[-1]:
            break
    over.set()
    waiting.join()
    assert not asked[-1], asked


# Readers that fail.


def reader_of(store: GitStore) -> int:
    reader = store.repository.reader._reader
    assert reader is not None
    return reader._process.pid


def test_a_reader_that_is_killed_at_any_moment_is_replaced_or_done_without(
    url: str, host: Opens
) -> None:
    one, two = pair(host, url)
    over = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        while not over.wait(0.02):
            for store in (one, two):
                with suppress(AssertionError, ProcessLookupError):
                    os.killpg(reader_of(store), signal.SIGKILL)
                    killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        take_turns(one, two, 8)
    finally:
        over.set()
        killer.join()
    assert killed


def test_a_reader_that_is_stopped_delays_a_change_and_no_more(url: str, host: Opens) -> None:
    one, two = (impatient(store, 1.0) for store in pair(host, url))
    stopped = at_remote()
    assert len(stopped) == 2
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        write(two, Put("a", b"1"))
        write(one, Put("a", b"2"))
        assert there(one, "a").value == b"2"
        assert time.monotonic() - began < 9.0
        assert not kept(one)  # and it is not tried again soon
        take_turns(one, two, 1)
        assert not kept(one)
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def at_remote() -> list[int]:
    """The processes that read objects of the remote: over ssh they are those of the server."""
    return [
        each
        for each in children(READER)
        if Path(f"/proc/{each}/comm").read_text().strip() == "git"
        and b"GIT_DIR=" not in Path(f"/proc/{each}/environ").read_bytes()
    ]


def test_a_store_closes_at_once_though_its_reader_is_stopped(remote: Remote, host: Opens) -> None:
    one, _ = pair(host)
    os.kill(pid := reader_of(one), signal.SIGSTOP)
    asks = threading.Thread(target=one.repository.glance, args=(remote.head(), 60.0))
    asks.start()
    began = time.monotonic()
    one.close()
    asks.join()
    assert time.monotonic() - began < 5.0
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_server_that_runs_nothing_but_git_is_used_by_git_itself(
    ssh: SshServer, host: Opens, commands: Counter[str]
) -> None:
    keys = Path(ssh.folder, "authorized_keys")
    keys.write_text(f'command="git-shell -c \\"$SSH_ORIGINAL_COMMAND\\"" {keys.read_text()}')
    one, _ = pair(host, ssh.url())
    assert not kept(one)
    assert commands["fetch"] > 4
    assert one.repository.reader._not_before > time.monotonic()


def test_a_url_that_the_user_has_led_elsewhere_is_left_to_git(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = f"git+file://{remote.path.parent}/not/remote.git"
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{remote.path.parent}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"{remote.path.parent}/not/")
    one, two = pair(host, elsewhere)
    assert not kept(one)
    assert not kept(two)


def test_a_remote_that_is_replaced_is_read_and_not_the_old_one(remote: Remote, host: Opens) -> None:
    one, two = pair(host)
    copy, old = remote.path.with_name("copy.git"), remote.path.with_name("old.git")
    subprocess.run(["cp", "-r", str(remote.path), str(copy)], check=True)
    remote.path.rename(old)
    copy.rename(remote.path)
    fresh = host("c")  # its reader is none of the old ones
    write(fresh, Put("a", b"1"))
    assert there(one, "a").value == b"1"
    write(two, Put("a", b"2"))
    assert there(fresh, "a").value == b"2"


@pytest.mark.parametrize(
    "says",
    [
        "cat; echo",
        "head -c 100000 /dev/zero",
        "while read name; do echo $name commit 99999999999; yes; done",
        "while read name; do echo $name commit -5; done",
        "while read name; do echo $name commit 3; echo abc; done",
        "while read name; do echo 'x y'; done",
    ],
)
def test_a_remote_that_says_what_git_would_not_say_is_left_to_git(
    ssh: SshServer, host: Opens, says: str
) -> None:
    keys = Path(ssh.folder, "authorized_keys")
    odd = Path(ssh.folder, "odd")
    odd.write_text(
        f'#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in *cat-file*) {says};;'
        ' *) eval "$SSH_ORIGINAL_COMMAND";; esac\n'
    )
    keys.write_text(f'command="sh {odd}" {keys.read_text()}')
    pair(host, ssh.url())


def test_a_reader_fetches_nothing_from_where_the_remote_says(
    url: str, host: Opens, tmp_path: Path
) -> None:
    remote = Remote(Path(urlsplit(url).path))
    one, _ = pair(host, url)
    one.repository.reader.close()
    ran = tmp_path / "ran"
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "far"),
        ("remote.far.promisor", "true"),
        ("remote.far.url", f"ext::sh -c touch% {ran}"),
        ("protocol.ext.allow", "always"),
    ):
        remote.git("config", name, value)
    store = one.repository
    store.reader._used = time.monotonic()
    refs = store.glance(remote.head(), 30.0)
    assert refs == {store.address.ref: remote.head()}
    reader = store.reader._reader
    assert reader is not None
    assert reader.ask(["1" * 40], limit=30.0) == [None]
    assert not ran.exists()


def test_who_may_not_wait_long_does_not_wait_for_the_fetch_of_another_thread(
    remote: Remote, host: Opens
) -> None:
    one, _ = pair(host)
    os.kill(reader_of(one), signal.SIGSTOP)
    fetches = threading.Thread(target=one.repository.glance, args=(remote.head(), 60.0))
    fetches.start()
    until(one.repository.reader._lock.locked)
    began = time.monotonic()
    assert one.repository.glance(remote.head(), 0.1) == {}
    assert time.monotonic() - began < 30.0
    assert fetches.is_alive()
    one.repository.reader.close()
    fetches.join()


# Who has a reader, and for how long.


def test_a_reader_that_is_not_used_is_closed_and_opened_again(
    url: str, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "IDLE", 0.5)
    one, two = pair(host, url)
    until(lambda: not kept(one) and not kept(two))
    take_turns(one, two, 2)
    assert kept(one)


def test_only_a_few_processes_of_a_host_have_a_reader(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "READERS", 1)
    one, other = pair(host)
    beside = host("a")
    take_turns(beside, other)
    assert [kept(store) for store in (one, beside)] == [True, False]
    one.close()
    beside.repository.reader._not_before = 0.0
    take_turns(beside, other, 2)
    assert kept(beside)


def test_one_host_alone_and_a_paced_one_have_no_reader(remote: Remote, host: Opens) -> None:
    alone = host("a")
    for number in range(5):
        write(alone, Put("a", b"%d" % number))
    assert not kept(alone)
    paced = host("c", url=f"{remote.url}?pace=0.01")
    take_turns(alone, paced, 2)
    assert not kept(paced)


def test_a_fork_leaves_the_reader_to_the_parent(host: Opens) -> None:
    one, two = pair(host)
    pid = os.fork()
    if not pid:
        own = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        os._exit(any("reader-" in path for path in own) or kept(one))
    assert os.waitpid(pid, 0)[1] == 0
    take_turns(one, two)
    assert kept(one, two)


# What is news.


class Fake:
    """The copy of a host, as far as ``News`` knows it."""

    def __init__(self, store: GitStore, fails_at: int = 1_000) -> None:
        self._repository = store.repository
        self.left = fails_at
        self.written: list[str] = []

    def write(self, kind: str, data: bytes) -> str:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.written.append(kind)
        return self._repository.write(kind, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._repository, name)


def read_all(remote: Remote, copy: object, base: str) -> news.News:
    reader = ObjectReader(["git", "-C", str(remote.path), *READER.split()], os.environ)
    try:
        (head,) = reader.ask(["refs/heads/interlock"])
        assert head is not None
        found = news.News(copy, base, head)  # type: ignore[arg-type]
        while names := found.wanted():
            found.take(names, reader.ask(names))
        return found
    finally:
        reader.close()


@pytest.mark.parametrize("fails_at", range(11))
def test_a_copy_is_complete_though_it_was_interrupted_in_the_middle(
    remote: Remote, host: Opens, fails_at: int
) -> None:
    one, two = host("a"), host("b")
    base = remote.head()
    for number in range(2):
        write(one, Put("a", b"%d" % number))
    copy = Fake(two, fails_at)
    found = read_all(remote, copy, base)
    with suppress(KeyboardInterrupt):
        found.write()
    loose = Path(two.repository.path, "objects").glob("??/*")
    for oid in [path.parent.name + path.name for path in loose]:
        done = two.repository.run("rev-list", "--objects", oid, limit=10.0)
        assert done.code == 0, done.err
    assert there(two, "a").value == b"1"


def commit_with(remote: Remote, *parents: str, files: int = 1, size: int = 8) -> None:
    """Move the branch to a commit of another program."""
    repository = Repository(str(remote.path), parse(remote.url))
    tree = dict(repository.root(remote.head()))
    for number in range(files):
        blob = repository.write("blob", os.urandom(size))
        tree[f"x{number}"] = TreeEntry(FILE, f"x{number}", blob)
    root = repository.write_tree(tree)
    named = [word for parent in parents for word in ("-p", parent)]
    new = remote.git("commit-tree", "-m", "other", *named, root)
    remote.git("update-ref", "refs/heads/interlock", new)
    repository.close()


@pytest.mark.parametrize("what", ["a merge", "many files", "many commits", "a large file"])
def test_what_is_much_is_brought_by_git(
    remote: Remote, host: Opens, commands: Counter[str], what: str
) -> None:
    one, two = pair(host)
    head = remote.head()
    match what:
        case "a merge":
            commit_with(remote, head, f"{head}^")
        case "many files":
            commit_with(remote, head, files=news.OBJECTS)
        case "a large file":
            commit_with(remote, head, size=news.BYTES)
        case _:
            for _ in range(news.COMMITS + 1):
                commit_with(remote, remote.head())
    commands.clear()
    write(one, Put("a", b"1"))
    assert commands["fetch"]
    assert there(two, "a").value == b"1"


def test_an_object_with_another_id_is_not_kept(remote: Remote, host: Opens) -> None:
    store = host()
    base = remote.head()
    write(host("b"), Put("a", b"1"))
    false = GitObject("0" * 40, "commit", b"tree " + b"0" * 40 + b"\n\n")
    with pytest.raises(ValueError, match="another object"):
        news.News(store.repository, base, false)


def test_a_rewritten_history_is_refused_as_before(remote: Remote, host: Opens) -> None:
    one, two = pair(host)
    write(one, Put("a", b"1"))
    assert there(two, "a").value == b"1"
    remote.git("update-ref", "refs/heads/interlock", f"{remote.head()}~3")
    with pytest.raises(StoreDamaged, match="was rewritten"):
        write(one, Put("a", b"2"))


@pytest.mark.parametrize(
    ("remote_url", "words"),
    [
        ("ssh://git@h:22/a%20b.git", ["-p", "22", "git@h", "x '/a b.git'"]),
        ("ssh://[::1]/a'!b", ["::1", "x '/a'\\'''\\!'b'"]),
        ("ssh://-oProxyCommand=x/a", None),
        ("ssh://h/~ada/a.git", None),
        ("ssh://h:x/a", None),
    ],
)
def test_a_command_at_the_server_is_called_as_git_calls_its_own(
    remote_url: str, words: list[str] | None
) -> None:
    found = at_server(remote_url, "ssh -v", "x {}")
    assert found == ([] if words is None else ["sh", "-c", 'ssh -v "$@"', "ssh -v", *words])


def test_hosts_that_compete_all_get_their_turns(url: str, host: Opens) -> None:
    stores = [host(name, url=url, patience=30.0) for name in "abc"]

    def work(store: GitStore) -> Callable[[], None]:
        def run() -> None:
            for number in range(10):
                write(store, Put(f"{store.path}/{number}", b""))

        return run

    at_once(*map(work, stores))
    assert kept(*stores)
