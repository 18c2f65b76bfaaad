"""Links, submodules, programs and folders where the branch of a store has files: damage."""

from __future__ import annotations

import pytest
from tests.for_each import for_each
from tests.stores.git.conftest import Opens, Remote

from interlock.errors import StoreDamaged
from interlock.store import Put
from interlock.stores.git import batch, checkpoint
from interlock.testing.conformance.place import there, write

LINK, MODULE, PROGRAM, FOLDER = "120000", "160000", "100755", "40000"
HEAD = "refs/heads/interlock"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "EVERY", 4)
    monkeypatch.setattr(checkpoint, "IN_FOLDER", 2)
    monkeypatch.setattr(batch, "IN_FOLDER", 2)


def put_in_place(remote: Remote, path: str, mode: str) -> None:
    """A commit of the branch with an entry of another mode; a link or a program keeps its content.

    A link in the place of a folder leads to a folder of the same kind.
    """
    head = remote.git("rev-parse", f"{HEAD}^{{commit}}")
    kind, oid = remote.git("ls-tree", head, path).split()[1:3]
    if mode == MODULE:
        oid = head
    elif mode == FOLDER:
        oid = remote.git("rev-parse", f"{head}^{{tree}}")
    elif kind == "tree":
        oid = remote.git("rev-parse", f"{head}:interlock.json")
    entry = f"{mode} {({MODULE: 'commit', FOLDER: 'tree'}).get(mode, 'blob')} {oid}"
    while path:
        path, _, name = path.rpartition("/")
        others = remote.git("ls-tree", f"{head}:{path}").splitlines()
        lines = [line for line in others if not line.endswith(f"\t{name}")]
        lines.append(f"{entry}\t{name}")
        entry = f"40000 tree {remote.tree(lines)}"
    tree = entry.split()[2]
    remote.git("update-ref", HEAD, remote.git("commit-tree", tree, "-p", head, "-m", "odd"))


def paths(remote: Remote) -> list[str]:
    """All that a new host reads: the files and the folders above them, newest last."""
    files = remote.git("ls-tree", "-r", "--name-only", HEAD).splitlines()
    last = max(name for name in files if name.startswith("batches/"))
    read = [name for name in files if not name.startswith("batches/")] + [last]
    above = {name.rpartition("/")[0] for name in read} | {"batches", "state"}
    return [*read, *sorted(above - {""})]


def fill(host: Opens) -> None:
    """A checkpoint, batches after it, and none of those before."""
    store = host("writer")
    for number in range(9):
        write(store, Put(f"p/{number}", b"{}"), Put("live/s", b"", ttl=60.0))


def test_a_new_host_refuses_each_odd_entry_that_it_reads(remote: Remote, host: Opens) -> None:
    fill(host)
    good, every = remote.head(), paths(remote)
    assert {"interlock.json", "state/checkpoint.json", "batches", "state/log"} <= set(every)
    facts, some = "state/checkpoint.json", "state/items/p.jsonl"
    odd = [(path, LINK) for path in every]
    odd += [(path, mode) for path in (facts, some) for mode in (MODULE, PROGRAM, FOLDER)]
    for number, (path, mode) in enumerate(odd):
        remote.git("update-ref", HEAD, good)
        put_in_place(remote, path, mode)
        with pytest.raises(StoreDamaged, match=path.rpartition("/")[2]) as refused:
            host(f"new{number}").read("p/0")
        assert "put the branch back" in str(refused.value), (path, mode, refused.value)
    remote.git("update-ref", HEAD, good)
    assert there(host("last"), "p/0").value == b"{}"


@for_each("mode", [LINK, MODULE, PROGRAM, FOLDER])
def test_a_host_that_follows_refuses_an_odd_batch(remote: Remote, host: Opens, mode: str) -> None:
    one, two = host(f"one{mode}"), host(f"two{mode}")
    write(one, Put("p/a", b"{}"))
    assert there(two, "p/a").value == b"{}"
    write(one, Put("p/b", b"{}"))
    after = remote.head()
    files = remote.git("ls-tree", "-r", "--name-only", HEAD, "batches/").splitlines()
    put_in_place(remote, max(files), mode)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="put the branch back"):
            two.read("p/b")
    with pytest.raises(StoreDamaged, match="put the branch back"):
        write(two, Put("p/c", b"{}"))
    remote.git("update-ref", HEAD, after)
    assert there(two, "p/b").value == b"{}"


def test_links_beside_the_store_are_foreign_files_that_stay(remote: Remote, host: Opens) -> None:
    one, two = host("one"), host("two")
    write(one, Put("p/a", b"{}"))
    assert there(two, "p/a").value == b"{}"
    blob = remote.git("rev-parse", f"{HEAD}:interlock.json")
    for mode in (LINK, PROGRAM):
        lines = [f"{mode} blob {blob}\tREADME", *remote.git("ls-tree", HEAD).splitlines()]
        tree = remote.tree([line for line in lines if line[-6:] != "README" or line[:6] == mode])
        remote.git("update-ref", HEAD, remote.git("commit-tree", tree, "-p", HEAD, "-m", "x"))
        write(one, Put("p/b", mode.encode()))
        assert there(two, "p/b").value == mode.encode()
    lines = [line for line in remote.git("ls-tree", HEAD).splitlines() if line[-6:] != "README"]
    folder = remote.git("rev-parse", f"{HEAD}:batches")
    tree = remote.tree([*lines, f"40000 tree {folder}\tREADME"])
    remote.git("update-ref", HEAD, remote.git("commit-tree", tree, "-p", HEAD, "-m", "x"))
    assert there(two, "p/b").value == PROGRAM.encode()
