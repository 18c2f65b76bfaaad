"""Data and results that are too large for the store: the value refers to a file."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from tests.faces.shell import Here, Shell

import interlock
from interlock import aio
from interlock.client_tasks import Claim
from interlock.errors import BadInput, Changed, TooLarge
from interlock.nouns.tasks.file_values import referred
from interlock.nouns.tasks.task_view import TaskView

BIG = b"\x00\xff" * 1_000_000


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(BIG)
    return path


def test_data_and_results_above_the_limit_go_by_reference(big: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with interlock.connect("memory:", agent="ada") as fleet:
        with pytest.raises(TooLarge, match=r"fleet.tasks.file\(path\), --file"):
            fleet.tasks.publish("t1", "x" * len(BIG))
        fleet.tasks.publish("t1", {"model": fleet.tasks.file(big), "rate": 0.1})
        worker = fleet.tasks.work()

        def handle(claim: Claim) -> object:
            made.write_bytes(fleet.tasks.read_file(claim.data["model"])[::-1])
            worker.stop()
            return fleet.tasks.file(made)

        worker.serve(handle)
        found = fleet.tasks.show("t1")
        assert isinstance(found, TaskView)
        digest = sha256(BIG[::-1]).hexdigest()
        assert found.result == {"file": str(made), "size": len(BIG), "sha256": digest}
        assert fleet.tasks.read_file(found.result) == BIG[::-1]


@pytest.mark.parametrize("how", ["changed", "grown", "gone", "a folder"])
def test_a_file_that_is_not_as_it_was_is_never_read(big: Path, how: str) -> None:
    def spoil() -> None:
        big.write_bytes(BIG[:-1] + (b"?" if how == "changed" else b"more"))
        if how in ("gone", "a folder"):
            big.unlink()
        if how == "a folder":
            big.mkdir()

    async def main() -> None:
        async with await aio.connect("memory:", agent="ada") as fleet:
            value = await fleet.tasks.file(big)
            assert await fleet.tasks.read_file(value) == BIG
            spoil()
            with pytest.raises(Changed):
                await fleet.tasks.read_file(value)

    asyncio.run(main())


def test_only_a_whole_reference_is_one(big: Path, tmp_path: Path) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        good = fleet.tasks.file(big)
        assert referred(good) is not None
        for bad in (
            None,
            "/etc/passwd",
            {"file": str(big)},
            good | {"more": 1},
            good | {"file": "big.bin"},
            good | {"sha256": "x" * 64},
            good | {"size": "1"},
        ):
            assert referred(bad) is None
            with pytest.raises(BadInput, match="no reference to a file"):
                fleet.tasks.read_file(bad)
        with pytest.raises(BadInput, match="cannot be read"):
            fleet.tasks.file(tmp_path / "none")


def test_a_shell_gives_and_gets_files(here: Here) -> None:
    (here.folder / "in").write_bytes(BIG)
    assert here.run("task", "add", "t1", "--file", "in").status == 0
    claimed = here.run("task", "claim", "t1", "--json").json
    assert claimed["data"]["file"] == str(here.folder / "in")
    (here.folder / "out").write_text("made")
    done = here.run("task", "done", "t1", "--token", str(claimed["token"]), "--file", "out")
    assert done.status == 0
    shown = here.run("task", "show", "t1", "--json").json["result"]
    assert (shown["size"], shown["file"]) == (4, str(here.folder / "out"))
    both = here.run("task", "add", "t2", "--file", "in", "--data", "1")
    assert (both.status, "give one of them" in both.err) == (2, True)


def test_a_program_gets_the_path_of_a_file_that_is_as_it_was(ada: Shell) -> None:
    (ada.folder / "in").write_bytes(BIG)
    ada.run("task", "add", "t1", "--file", "in")
    done = ada.run("task", "run", "t1", "--", "sh", "-c", 'wc -c < "$INTERLOCK_FILE"')
    assert (done.status, done.out.strip()) == (0, str(len(BIG)))
    ada.run("task", "add", "t2", "--file", "in", "--retries", "0")
    (ada.folder / "in").write_bytes(b"other")
    changed = ada.run("task", "run", "t2", "--", "touch", "ran")
    assert changed.status != 0
    assert "has changed since it was shared" in changed.err
    assert not (ada.folder / "ran").exists()
    assert ada.json("task", "show", "t2")[1]["state"] == "dead"
