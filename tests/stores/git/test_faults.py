"""Faults that are real: git stopped or killed in a push, a disk without room, a cache in pieces."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote
from tests.stores.git.test_beats import KEY, LONG, beaten, end, here, lapsed
from tests.stores.git.test_pushes import Counts

from interlock.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreDamaged,
    StoreRefused,
)
from interlock.store import Committed, Put, Range
from interlock.stores.git import GitStore
from interlock.testing.conformance.place import at_once, committed, there, write
from interlock.testing.servers import GitHttpServer

FIND_PUSH = """pid=$(ps -o ppid= -p $PPID | tr -d ' ')
case $(ps -o args= -p $pid) in *"push --porcelain"*) ;;
*) pid=$(ps -o ppid= -p $pid | tr -d ' ');; esac"""


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


class Stopped:
    """A process that a hook of the remote stops once: ``receive-pack``, or the push itself."""

    def __init__(self, remote: Remote, hook: str = "pre-receive", find: str = "pid=$PPID") -> None:
        self._file = remote.path / "stopped"
        when = '[ "$1" = prepared ] || exit 0\n' if hook == "reference-transaction" else ""
        note = f"echo $pid > {self._file}.part; mv {self._file}.part {self._file}"
        remote.hook(hook, f'{when}rm "$0"\n{find}\n{note}\nkill -STOP $pid')

    def wait(self) -> None:
        until(self._file.exists)

    def go_on(self) -> None:
        pid = int(self._file.read_text())
        os.kill(pid, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{pid}").exists())


def impatient(store: GitStore, reply: float = 2.0) -> GitStore:
    """The store, with less time for an answer of git."""
    store._git.publisher._reply = reply
    return store


def outlived(stop: Callable[[], Stopped], one: GitStore, two: GitStore) -> Stopped:
    """A push of one is stopped until two has ended its key; then its works are done once."""
    work = Counts()
    beaten(one, 1.5)
    assert here(two)
    stopped = stop()

    def end_it() -> None:
        stopped.wait()
        lapsed(two)
        committed(end(two))

    done, _ = at_once(partial(one.transact, work), end_it)
    assert isinstance(done, Committed)
    assert there(two, "counter").value == b"1"
    assert not here(one)
    assert one.renew((Put(KEY, b"", ttl=LONG),)) == frozenset()
    return stopped


def test_a_push_that_is_stopped_for_longer_than_the_ttl_does_not_block_other_hosts(
    remote: Remote, host: Opens
) -> None:
    one, two = impatient(host("a")), host("b")
    outlived(lambda: Stopped(remote, find=FIND_PUSH), one, two)


def test_a_remote_that_is_stopped_in_a_push_for_longer_than_the_ttl_does_not_land_it_late(
    http: GitHttpServer, host: Opens
) -> None:
    url, remote = http.url(), Remote(Path(http.repository()))
    one, two = impatient(host("a", url=url)), host("b", url=url)
    stopped = outlived(lambda: Stopped(remote), one, two)
    head = remote.head()
    stopped.go_on()  # it tries to move the branch from where it was
    assert remote.head() == head
    assert there(two, "counter").value == b"1"


def test_a_remote_that_is_stopped_with_the_lock_of_the_branch_lands_the_push_once(
    http: GitHttpServer, host: Opens
) -> None:
    url, remote = http.url(), Remote(Path(http.repository()))
    one, two = (host(name, url=url, patience=0.5) for name in "ab")
    impatient(one, 0.5)
    work, stopped = Counts(), Stopped(remote, "reference-transaction")
    with pytest.raises(OutcomeUnknown):
        one.transact(work)
    with pytest.raises(StoreBusy, match="lock"):
        write(two, Put("a", b""))
    stopped.go_on()
    impatient(one, 30.0)
    assert work.runs == 1
    assert there(two, "counter").value == there(one, "counter").value == b"1"
    committed(one.transact(work))
    assert there(two, "counter").value == b"2"


def test_a_push_that_takes_too_long_leaves_no_lock_at_the_remote(
    remote: Remote, host: Opens
) -> None:
    store, work = impatient(host(), 0.5), Counts()
    remote.hook("reference-transaction", '[ "$1" = prepared ] || exit 0\nrm "$0"\nexec sleep 60')
    committed(store.transact(work))
    assert not list(remote.path.rglob("*.lock"))
    assert there(host("b"), "counter").value == b"1"


def children(words: str) -> Iterator[int]:
    """The processes below this one whose command has some words."""
    below = [os.getpid()]
    while below:
        try:
            tasks = Path(f"/proc/{below.pop()}/task").glob("*/children")
            found = [int(pid) for each in tasks for pid in each.read_text().split()]
        except OSError:  # it has ended
            continue
        below += found
        for pid in found:
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words in command:
                    yield pid


@pytest.mark.parametrize("whom", ["push --porcelain", "receive-pack"])
def test_pushes_that_are_killed_at_any_moment_are_done_once(host: Opens, whom: str) -> None:
    store, work, draw = host(patience=3.0), Counts(), random.Random(whom)
    sure = unsure = killed = 0

    def kill() -> None:
        nonlocal killed
        while not over.wait(0.002):
            if victims := list(children(whom)):
                time.sleep(draw.uniform(0.0, 0.02))  # anywhere in its work
                with suppress(ProcessLookupError):
                    os.kill(victims[0], signal.SIGKILL)
                    killed += 1
                return

    for _ in range(6):
        over = threading.Event()
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            committed(store.transact(work))
            sure += 1
        except (OutcomeUnknown, StoreBusy) as error:
            unsure += isinstance(error, OutcomeUnknown)
            for lock in Path(store.address.file).rglob("*.lock"):  # of one that was killed
                lock.unlink()
        over.set()
        killer.join()
    assert killed
    assert sure <= int(there(host("b"), "counter").value) <= sure + unsure


# Disks.


FULL = """
import os, subprocess, sys
from interlock.errors import StoreFull
from interlock.store import Put
from interlock.stores.git import GitStore
from interlock.testing.conformance.place import txn

small, large, where = sys.argv[1:]
remote = f"{small if where == 'remote' else large}/remote.git"
subprocess.run(["git", "init", "-q", "--bare", remote], check=True)
cache = f"{small if where == 'host' else large}/cache"
store = GitStore(f"git+file://{remote}", cache=cache, min_ttl=0.5, patience=3)
store.commit(txn(Put("a", b"1")))


def fill(room):
    free = os.statvfs(small)
    with open(f"{small}/ballast", "wb") as file:
        file.write(bytes(free.f_bavail * free.f_frsize - room))


for room, value in ((0, b"x"), (8192, b"x"), (65536, os.urandom(300_000))):
    fill(room)
    try:
        store.commit(txn(Put("a", value)))
        print("committed")
    except StoreFull:
        print("full")
    os.unlink(f"{small}/ballast")
    print(len(store.read("a")["a"].value))
store.commit(txn(Put("a", b"after")))
other = GitStore(f"git+file://{remote}", cache=f"{large}/other", min_ttl=0.5)
print(other.read("a")["a"].value.decode())
for each in (store, other):
    each.close()
"""


@pytest.mark.parametrize("where", ["remote", "host"])
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path, where: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=6m small {small}"
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own, mount], check=False, capture_output=True).returncode:
        pytest.skip("no user may mount a small disk here")
    program = shlex.join([sys.executable, "-c", FULL, str(small), str(tmp_path), where])
    done = subprocess.run(
        [*own, f"{mount} && exec {program}"], check=False, capture_output=True, text=True
    )
    assert done.stderr == ""
    *said, last = done.stdout.splitlines()
    assert said[:2] == ["full", "1"]
    assert said[4:] == ["full", "1"]
    assert last == "after"


# Caches.


def damage(folder: Path) -> None:
    """Turn bytes in the middle of all objects of a repository."""
    for file in (each for each in (folder / "objects").rglob("*") if each.is_file()):
        data = bytearray(file.read_bytes())
        data[len(data) // 2 :] = b"damaged" * 3
        file.chmod(0o600)
        file.write_bytes(data)


@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_with_damaged_objects_is_made_again(host: Opens, packed: bool) -> None:
    store = host()
    write(store, Put("a", b"1"))
    if packed:
        store.repository.run("repack", "-a", "-d", "-q", limit=30.0)
    damage(Path(store.repository.path))
    write(host("b"), Put("b", b"2"))
    assert there(store, "b").value == b"2"
    write(store, Put("a", b"3"))
    assert there(host("c"), "a").value == b"3"


def test_a_copy_of_a_later_version_of_git_is_made_again(host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    store.repository.run("config", "core.repositoryFormatVersion", "99", limit=30.0)
    store.close()
    again = host()
    write(again, Put("a", b"2"))
    assert there(host("b"), "a").value == b"2"


def test_a_replica_with_damaged_pages_is_removed_and_made_again(host: Opens) -> None:
    store, page = host(), Range("p/", limit=1000)
    write(store, *(Put(f"p/{number}", bytes(2000)) for number in range(200)))
    store.close()
    with open(store.path, "r+b") as file:
        file.seek(os.path.getsize(store.path) // 3)
        file.write(b"damaged!" * 5000)
    store = host()
    with pytest.raises(StoreDamaged, match="connect again"):
        store.read(page)
    assert len(host().read(page).ranges[page]) == 200


# The branch.


def foreign(remote: Remote, folder: Path, *commands: str) -> None:
    """What a person does to the branch, in a clone."""
    clone = folder / "clone"
    for words in (
        f"git clone -qb interlock {remote.path} {clone}",
        *(f"cd {clone} && {command}" for command in commands),
    ):
        subprocess.run(["sh", "-c", words], check=True, capture_output=True)


def test_a_merge_of_other_work_into_the_branch_leaves_the_store_as_it_is(
    remote: Remote, host: Opens, tmp_path: Path
) -> None:
    store = host()
    write(store, Put("a", b"1"))
    foreign(
        remote,
        tmp_path,
        "git checkout -qb notes && echo x > notes && git add notes && git commit -qm Notes",
        "git checkout -q interlock && git merge -q --no-ff -m Merged notes && git push -q",
    )
    write(store, Put("a", b"2"))
    assert there(host("b"), "a").value == b"2"
    assert remote.git("show", "interlock:notes") == "x"


@pytest.mark.parametrize(
    "command",
    [
        "git rm -q {last}",
        "echo '{{}}' >> {last}",
        "git revert --no-edit HEAD",
        "git rm -rq batches",
    ],
)
def test_a_foreign_commit_that_changes_a_batch_is_refused(
    remote: Remote, host: Opens, tmp_path: Path, command: str
) -> None:
    store = host()
    write(store, Put("a", b"1"))
    write(store, Put("a", b"2"))
    last = remote.git("ls-tree", "-r", "--name-only", "interlock", "batches/").splitlines()[-1]
    line = command.format(last=last)
    foreign(remote, tmp_path, f"{line} && (git commit -qam Tidied || true) && git push -q")
    with pytest.raises(StoreDamaged, match="was rewritten"):
        write(store, Put("a", b"3"))


def test_a_branch_that_becomes_protected_is_explained_and_can_still_be_read(
    remote: Remote, host: Opens
) -> None:
    store = host()
    beaten(store, LONG)
    hook = remote.hook("update", 'case $1 in refs/heads/*) echo "protected branch"; exit 1;; esac')
    with pytest.raises(StoreRefused, match=r"protected branch.*\?branch="):
        write(store, Put("a", b"1"))
    assert here(store)
    assert store.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}  # a ref of its own
    hook.unlink()
    write(store, Put("a", b"1"))
