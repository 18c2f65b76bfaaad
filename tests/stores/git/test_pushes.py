"""What becomes of a push: landed, lost, refused, unsent, without an answer."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote

from interlock.errors import OutcomeUnknown, StoreAway, StoreBusy, StoreMissing, StoreRefused
from interlock.store import Put, Txn, View
from interlock.testing.conformance.place import at_once, committed, there, txn, write


class Counts:
    """A work that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, view: View) -> Txn:
        self.runs += 1
        item = view.read("counter")["counter"]
        return txn(Put("counter", str(int(item.value) + 1 if item else 1).encode()))


def test_a_push_that_lands_without_an_answer_is_found_and_not_run_again(
    remote: Remote, host: Opens
) -> None:
    store, work = host(), Counts()
    remote.cut("exit 0")
    committed(store.transact(work))
    assert work.runs == 1
    assert there(store, "counter").value == b"1"
    assert there(host("b"), "counter").value == b"1"


def test_a_push_without_an_answer_that_never_lands_is_made_again(
    remote: Remote, host: Opens
) -> None:
    store, work = host(), Counts()
    remote.cut("exit 1")
    committed(store.transact(work))
    assert there(host("b"), "counter").value == b"1"
    assert any("Settle" in subject for subject in remote.subjects())


def test_a_push_that_would_land_late_never_does(remote: Remote, host: Opens) -> None:
    store, work = host(), Counts()
    remote.cut("sleep 0.7")
    committed(store.transact(work))
    late = time.monotonic() + 1.0
    while time.monotonic() < late:  # until the first push has tried
        assert there(store, "counter").value == b"1"
    assert there(host("b"), "counter").value == b"1"


def test_a_push_that_landed_without_an_answer_does_not_run_again_though_the_cache_broke(
    remote: Remote, host: Opens
) -> None:
    store, work = host(), Counts()
    remote.cut(f"rm -rf {store.repository.path}/objects/*; exit 0")
    with pytest.raises(OutcomeUnknown):
        store.transact(work)
    assert work.runs == 1
    assert there(host("b"), "counter").value == b"1"
    assert there(store, "counter").value == b"1"


def test_a_push_that_landed_though_git_says_it_was_not_sent_does_not_run_again(
    remote: Remote, host: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, work = host(), host("b"), Counts()
    waits, goes_on = tmp_path / "waits", tmp_path / "goes_on"
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(
        f'#!/bin/sh\ncase "$*" in *push*) ;; *) exec {shutil.which("git")} "$@";; esac\n'
        f'if [ -e {waits} ]; then exec {shutil.which("git")} "$@"; fi\n'
        f'{shutil.which("git")} "$@" >/dev/null; touch {waits}\n'
        f"while [ ! -e {goes_on} ]; do sleep 0.02; done\n"
        "echo 'ssh: connect to host h port 22: Connection refused' >&2; exit 128\n"
    )
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    store.repository._environment = None

    def another_host() -> None:
        while not waits.exists():
            pass
        write(other, Put("b", b"1"))
        goes_on.touch()

    at_once(lambda: store.transact(work), another_host)
    assert work.runs == 1
    assert there(host("c"), "counter").value == b"1"


def test_what_goes_wrong_after_a_push_landed_does_not_undo_it(remote: Remote, host: Opens) -> None:
    store, work = host(), Counts()
    committed(store.transact(work))
    refs = f"{store.repository.path}/refs/interlock"
    remote.hook("post-receive", f"rm -rf {refs}; touch {refs}")
    committed(store.transact(work))
    os.unlink(refs)
    assert work.runs == 2
    assert there(store, "counter").value == b"2"


def test_a_commit_to_a_remote_that_falls_silent_is_unknown_and_settled_by_the_next(
    remote: Remote, host: Opens
) -> None:
    store = host(patience=0.3)
    away = remote.path.with_name("away")
    remote.cut(f"mv {remote.path} {away}; exit 1")
    change = txn(Put("a", b"1"))
    with pytest.raises(OutcomeUnknown):
        store.commit(change)
    away.rename(remote.path)
    assert store.read("a")["a"] is None
    write(store, Put("b", b"1"))
    assert there(host("b"), "b").value == b"1"


def test_a_remote_that_comes_back_in_time_is_not_noticed_by_callers(
    remote: Remote, host: Opens
) -> None:
    store = host()
    away = remote.path.with_name("away")
    remote.path.rename(away)
    threading.Timer(0.4, away.rename, (remote.path,)).start()
    write(store, Put("a", b"1"))
    assert there(store, "a").value == b"1"
    assert store.outage == ""


def test_a_remote_that_stays_away_is_reported_and_reads_without_it_go_on(
    remote: Remote, host: Opens
) -> None:
    store = host(patience=0.2)
    write(store, Put("a", b"1"))
    remote.path.rename(remote.path.with_name("away"))
    with pytest.raises(StoreAway, match="does not answer"):
        write(store, Put("a", b"2"))
    with pytest.raises(StoreAway):
        store.read("a")
    assert "does not answer" in store.outage
    assert store.read("a", fresh=False)["a"] is not None


def test_a_hook_that_declines_is_quoted(remote: Remote, host: Opens) -> None:
    store = host()
    remote.hook("pre-receive", "echo 'Only robots on Sundays.' >&2; exit 1")
    with pytest.raises(StoreRefused, match="Only robots on Sundays"):
        write(store, Put("a", b"1"))
    (remote.path / "hooks" / "pre-receive").unlink()
    write(store, Put("a", b"1"))


def test_a_remote_without_room_says_so(remote: Remote, host: Opens) -> None:
    from interlock.errors import StoreFull

    store = host()
    remote.hook("pre-receive", "echo 'write error: No space left on device' >&2; exit 1")
    with pytest.raises(StoreFull, match="no room"):
        write(store, Put("a", b"1"))


def test_a_branch_that_may_not_be_made_is_explained(remote: Remote, host: Opens) -> None:
    remote.hook("update", "echo protected; exit 1")
    with pytest.raises(StoreRefused, match="does not let you make the branch"):
        host()


def test_a_lock_file_that_was_left_is_reported_and_its_end_is_noticed(
    remote: Remote, host: Opens
) -> None:
    store = host(patience=0.3)
    lock = remote.path / "refs/heads/interlock.lock"
    lock.touch()
    with pytest.raises(StoreBusy, match="lock"):
        write(store, Put("a", b"1"))
    lock.unlink()
    write(store, Put("a", b"1"))


def test_a_remote_that_is_not_there_is_missing(tmp_path: Path, host: Opens) -> None:
    with pytest.raises(StoreMissing, match="git init --bare"):
        host(url=f"git+file://{tmp_path}/nothing.git")


def test_a_branch_that_is_not_there_is_missing_unless_it_may_be_made(host: Opens) -> None:
    with pytest.raises(StoreMissing, match="interlock init"):
        host(create=False)


def test_processes_of_a_host_share_one_replica(remote: Remote, host: Opens) -> None:
    one, two = host("a"), host("a")
    assert one.path == two.path
    watch = two.watch("p/", two.read().revision)
    revision = write(one, Put("p/1", b""))
    assert two.read("p/1", fresh=False).revision == revision
    assert watch.take(5.0)
    remote.path.rename(remote.path.with_name("away"))
    assert two.read("p/1", fresh=False)["p/1"] is not None


def test_a_host_that_never_committed_is_not_starved_by_one_that_commits_without_a_pause(
    host: Opens,
) -> None:
    one, two = host("a"), host("b")
    over = threading.Event()

    def commit() -> None:
        while not over.is_set():
            write(one, Put("a", b""))

    threads = [threading.Thread(target=commit) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        write(two, Put("b", b"1"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert there(one, "b").value == b"1"
