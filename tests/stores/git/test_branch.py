"""The branch: what it holds, foreign commits, rewritten history, and caches that break."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.for_each import for_each
from tests.stores.git.conftest import Opens, Remote

from interlock.errors import (
    StoreAway,
    StoreDamaged,
    StoreMissing,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreUnsuitable,
)
from interlock.store import Put, Range, Store
from interlock.stores.git import batch, follower
from interlock.stores.git.batch import BatchHead
from interlock.testing.conformance.place import there, txn, write
from interlock.testing.servers import GitHttpServer

HEAD = BatchHead(batch=3, before="x", id="y", host="h", revision=7, dead=("live/a",), trimmed=2)


def items(store: Store) -> object:
    """What all hosts must agree on."""
    found = store.read(Range("p/"), Range("live/")).ranges.values()
    return [(i.key, i.value, i.revision, i.created, i.entry) for range_ in found for i in range_]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b'{"a": 1 }',
        b"{broken",
        b'{"a":\n1}',
        b'{"a":\r1}',
        b" {}",
        "ä".encode(),
        b"\xff\x00",
        b"[1]",
    ],
)
def test_a_batch_keeps_every_byte_of_a_value(value: bytes) -> None:
    change = txn(
        Put("a", value), Put("live/b", value, ttl=1.5), deletes=("c",), signals=("wake/d",)
    )
    quiet = txn(Put("q", value), quiet=True)
    found = batch.decode(batch.encode(HEAD, [change, quiet]))
    assert found.head == HEAD
    assert found.txns[0] == change
    assert (found.txns[1].puts, found.txns[1].quiet) == (quiet.puts, True)


def test_a_person_can_read_the_log(remote: Remote, host: Opens) -> None:
    import interlock

    with interlock.connect(store=host(), agent="ada") as ada:
        ada.locks.acquire("merge")
    assert "ada: lock.acquire lock/merge (acquired)" in remote.subjects()


def test_all_hosts_have_the_same_items_and_revisions(host: Opens) -> None:
    one, two = host("a"), host("b")
    for number in range(6):
        write((one, two)[number % 2], Put(f"p/{number % 3}", b"x"), quiet=number == 4)
    write(one, Put("live/s", b"", ttl=60.0), deletes=("p/1",))
    assert items(one) == items(two) == items(host("c"))


def test_foreign_files_of_the_branch_stay(remote: Remote, host: Opens, tmp_path: Path) -> None:
    store = host()
    write(store, Put("a", b"1"))
    clone = tmp_path / "clone"
    run = ["git", "-C", str(clone)]
    subprocess.run(["git", "clone", "-qb", "interlock", str(remote.path), str(clone)], check=True)
    (clone / "README").write_text("Do not touch.\n")
    subprocess.run([*run, "add", "README"], check=True)
    subprocess.run([*run, "commit", "-qm", "A word to people"], check=True)
    subprocess.run([*run, "push", "-q"], check=True)
    write(store, Put("a", b"2"))
    assert remote.git("show", "interlock:README") == "Do not touch."
    assert there(host("b"), "a").value == b"2"


def test_a_branch_with_other_things_is_no_store(remote: Remote, host: Opens) -> None:
    tree = remote.git("mktree", "--missing")
    commit = remote.git("commit-tree", tree, "-m", "Code")
    remote.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(StoreDamaged, match="branch of its own"):
        host(url=f"{remote.url}?branch=main")


def test_a_later_format_is_refused(remote: Remote, host: Opens) -> None:
    host()
    blob = subprocess.run(
        ["git", f"--git-dir={remote.path}", "hash-object", "-w", "--stdin"],
        input=b'{"format": 99}', check=True, capture_output=True,
    ).stdout.decode().strip()  # fmt: skip
    line = f"100644 blob {blob}\tinterlock.json\n"
    tree = subprocess.run(
        ["git", f"--git-dir={remote.path}", "mktree"],
        input=line.encode(), check=True, capture_output=True,
    ).stdout.decode().strip()  # fmt: skip
    remote.git("update-ref", "refs/heads/interlock", remote.git("commit-tree", tree, "-m", "x"))
    with pytest.raises(StoreNewer, match="install a newer"):
        host("b")


def test_a_rewritten_history_is_refused_and_the_way_on_works(remote: Remote, host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    write(store, Put("a", b"2"))
    remote.git("update-ref", "refs/heads/interlock", f"{remote.head()}~1")
    with pytest.raises(StoreDamaged, match="was rewritten"):
        write(store, Put("a", b"3"))
    with pytest.raises(StoreDamaged, match="was rewritten") as refused:
        store.read("a")
    command = str(refused.value).partition("put it back: ")[2].partition(";")[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert there(store, "a").value == b"2"
    write(store, Put("a", b"3"))


@pytest.mark.parametrize("batches", [0, 2])
def test_a_branch_that_became_another_one_is_called_rewritten_by_a_host_that_knows_it(
    remote: Remote, host: Opens, batches: int
) -> None:
    store = host()
    for number in range(batches):
        write(store, Put("a", b"%d" % number))
    other = remote.git("commit-tree", remote.tree([]), "-m", "Code")
    remote.git("update-ref", "refs/heads/interlock", other)
    for use in (
        lambda: store.read("a"),
        lambda: write(store, Put("a", b"x")),
        lambda: host().read(),
    ):
        with pytest.raises(StoreDamaged, match="was rewritten"):
            use()
    with pytest.raises(StoreDamaged) as refused:
        store.read("a")
    assert "branch of its own" not in str(refused.value)
    command = str(refused.value).partition("put it back: ")[2].partition(";")[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    write(store, Put("b", b"1"))
    assert there(host("b"), "b").value == b"1"


def cut_off(ref: Path) -> None:
    ref.write_bytes(b"")


def nothing_there(ref: Path) -> None:
    ref.write_bytes(b"\0" * 41)


def something_else(ref: Path) -> None:
    ref.write_text("garbage\n")


def object_that_is_gone(ref: Path) -> None:
    ref.write_text("1" * 40 + "\n")


def not_a_commit(ref: Path) -> None:
    git = ["git", f"--git-dir={ref.parents[2]}", "hash-object", "-w", "--stdin"]
    done = subprocess.run(git, input=b"x", check=True, capture_output=True)
    ref.write_bytes(done.stdout)


@for_each("ruin", [cut_off, nothing_there, something_else, object_that_is_gone, not_a_commit])
def test_a_ref_that_is_damaged_is_named_as_that_and_can_be_put_back(
    remote: Remote, host: Opens, ruin: Callable[[Path], None]
) -> None:
    store = host(patience=1.0)
    write(store, Put("a", b"1"))
    ruin(remote.path / "refs/heads/interlock")
    with pytest.raises(StoreDamaged, match="run a command on a host that has seen it"):
        host("b")
    with pytest.raises(StoreDamaged, match="is damaged"):
        write(store, Put("a", b"x"))
    with pytest.raises(StoreDamaged, match="is damaged") as refused:
        store.read("a")
    assert "does not answer" not in str(refused.value)
    command = str(refused.value).partition("put it back: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert there(store, "a").value == b"1"
    write(store, Put("a", b"2"))
    assert there(host("c"), "a").value == b"2"


def test_a_damaged_ref_of_a_server_is_removed_there(http: GitHttpServer, host: Opens) -> None:
    store = host(url=http.url(), patience=1.0)
    write(store, Put("a", b"1"))
    (Path(http.repository()) / "refs/heads/interlock").write_text("1" * 40 + "\n")
    with pytest.raises(StoreDamaged, match="on its server: git update-ref -d refs/heads/interlock"):
        store.read("a")


def test_a_fork_of_the_history_is_refused(remote: Remote, host: Opens) -> None:
    one = host("a")
    write(one, Put("a", b"1"))
    before = remote.head()
    write(one, Put("a", b"2"))
    remote.git("update-ref", "refs/heads/interlock", before)
    other = host("b")
    write(other, Put("a", b"other"))
    write(other, Put("a", b"other"))
    with pytest.raises(StoreDamaged, match="was rewritten"):
        one.read("a")


def test_a_branch_that_was_deleted_is_refused_and_can_be_put_back(
    remote: Remote, host: Opens
) -> None:
    store = host(patience=0.5)
    write(store, Put("a", b"1"))
    remote.git("update-ref", "-d", "refs/heads/interlock")
    with pytest.raises(StoreDamaged, match="has lost the branch") as refused:
        store.read("a")
    command = str(refused.value).partition("put it back: ")[2].partition(";")[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert there(store, "a").value == b"1"


def test_the_way_back_works_where_git_knows_no_name(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.delenv(f"GIT_{part}", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.useConfigOnly")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    store = host()
    write(store, Put("a", b"1"))
    write(store, Put("a", b"2"))
    remote.git("update-ref", "refs/heads/interlock", f"{remote.head()}~1")
    with pytest.raises(StoreDamaged, match="was rewritten") as refused:
        store.read("a")
    command = str(refused.value).partition("put it back: ")[2].partition(";")[0]
    failing = command.replace("commit-tree", "commit-nothing")
    subprocess.run(["sh", "-c", failing], check=False, capture_output=True)
    assert remote.head()  # a push of nothing would have deleted it
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert there(store, "a").value == b"2"


def test_a_deleted_cache_is_noticed_and_made_again(host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    shutil.rmtree(Path(store.path).parent)
    landed = [b"1"]

    def change() -> None:  # one that lands at the remote before it is noticed stands
        for value in (b"2", b"3"):
            write(store, Put("a", value))
            landed.append(value)

    with pytest.raises(StoreMissing):
        change()
    assert there(host(), "a").value == landed[-1]


def test_a_broken_replica_is_made_again(host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    store.close()
    Path(store.path).write_bytes(b"broken" * 1000)
    assert there(host(), "a").value == b"1"


def test_a_copy_that_one_process_made_again_serves_the_others(host: Opens) -> None:
    one, two = host("a"), host("a")
    write(one, Put("a", b"1"))
    write(two, Put("b", b"1"))
    one.repository.rebuild()
    write(host("b"), Put("c", b"1"))
    assert there(one, "c").value == b"1"
    made = os.stat(one.repository.path).st_ino
    write(two, Put("d", b"1"))
    assert os.stat(one.repository.path).st_ino == made


@pytest.mark.parametrize("name", ["refs/interlock/head", "shallow"])
def test_a_lock_file_in_the_cache_that_a_killed_git_left_is_removed(
    host: Opens, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.git.remote_reader.READERS", 0)  # git itself fetches
    store = host(patience=1.0)
    lock = Path(f"{store.repository.path}/{name}.lock")
    write(host("b"), Put("a", b"1"))
    if name == "shallow":
        os.unlink(f"{store.repository.path}/refs/interlock/head")
    lock.touch()
    with pytest.raises(StoreAway):  # it may be in use
        store.read("a")
    os.utime(lock, (1, 1))
    assert there(store, "a").value == b"1"
    assert not lock.exists()


def test_a_user_who_prefers_another_object_format_has_a_copy_all_the_same(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    write(host(), Put("a", b"1"))
    assert there(host("b"), "a").value == b"1"
    other = Remote(tmp_path / "other.git")
    with pytest.raises(StoreUnsuitable, match="object format"):
        host(url=other.url)


def test_a_host_that_only_reads_packs_its_copy(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_PACKED", 4)
    one, two = host("a"), host("b")
    packs = Path(two.repository.path, "objects", "pack")
    for number in range(9):
        write(one, Put("a", b"%d" % number))
        there(two, "a")
    ends = time.monotonic() + 10
    while not list(packs.glob("*.pack")):
        assert time.monotonic() < ends


def test_the_cache_of_another_user_is_refused(host: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    host().close()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(StoreRefused, match="another user"):
        host()


def test_a_cache_that_cannot_be_made_is_explained(host: Opens, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(StoreReadOnly, match="XDG_CACHE_HOME"):
        host("a")


def test_a_broken_copy_of_the_repository_is_made_again(host: Opens) -> None:
    store = host()
    write(store, Put("a", b"1"))
    store.close()
    shutil.rmtree(store.repository.path + "/objects")
    again = host()
    write(again, Put("b", b"2"))
    assert there(again, "a").value == b"1"
    assert there(host("b"), "b").value == b"2"
