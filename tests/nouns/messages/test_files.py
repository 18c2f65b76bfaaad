"""A shared file has the shared bytes, or reading it is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.client_messages import Message
from interlock.errors import BadInput, Changed


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[tuple[interlock.Fleet, interlock.Fleet]]:
    place = str(tmp_path / "store.db")
    with (
        interlock.connect(place, agent="ada") as ada,
        interlock.connect(place, agent="bob") as bob,
    ):
        yield ada, bob


def received(bob: interlock.Fleet) -> Message:
    (message,) = bob.messages.recv(timeout=0)
    return message


def test_it_comes_with_its_path_size_and_digest_and_data(
    fleets: tuple[interlock.Fleet, interlock.Fleet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ada, bob = fleets
    (tmp_path / "report.txt").write_bytes(b"all is well")
    monkeypatch.chdir(tmp_path)
    ada.messages.share("bob", "report", {"page": 3}, file="report.txt")
    message = received(bob)
    assert message.data == {"page": 3}
    file = message.file()
    assert (file.path, file.size) == (str(tmp_path / "report.txt"), 11)
    assert file.read() == b"all is well"
    file.verify()


@pytest.mark.parametrize("now", [b"all is lost", b"all is well, and more", b"", None])
def test_one_that_was_changed_or_is_gone_is_refused(
    fleets: tuple[interlock.Fleet, interlock.Fleet], tmp_path: Path, now: bytes | None
) -> None:
    ada, bob = fleets
    path = tmp_path / "report.txt"
    path.write_bytes(b"all is well")
    ada.messages.share("bob", "report", file=path)
    if now is None:
        path.unlink()
    else:
        path.write_bytes(now)
    file = received(bob).file()
    with pytest.raises(Changed, match="shared again"):
        file.read()
    with pytest.raises(Changed, match="shared again"):
        file.verify()


def test_what_cannot_be_read_cannot_be_shared(
    fleets: tuple[interlock.Fleet, interlock.Fleet], tmp_path: Path
) -> None:
    ada, bob = fleets
    for path in (tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(BadInput, match="cannot be read"):
            ada.messages.share("bob", "report", file=path)
    with pytest.raises(BadInput, match="named by its path"):
        ada.messages.share("bob", "report", file=7)  # type: ignore[arg-type]
    ada.messages.share("bob", "report", {"no": "file"})
    with pytest.raises(BadInput, match="no file comes with"):
        received(bob).file()


def test_async_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    path.write_bytes(b"x" * 3_000_000)

    async def run() -> None:
        place = str(tmp_path / "store.db")
        async with (
            await aio.connect(place, agent="ada") as ada,
            await aio.connect(place, agent="bob") as bob,
        ):
            await ada.messages.share("bob", "report", file=path)
            async for message in bob.messages.recv(timeout=0):
                file = message.file()
                assert len(await file.read()) == file.size == 3_000_000
                await file.verify()
                path.write_bytes(b"y")
                with pytest.raises(Changed):
                    await file.read()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(
    fleets: tuple[interlock.Fleet, interlock.Fleet], tmp_path: Path, kind: str
) -> None:
    ada, bob = fleets
    path = tmp_path / "report"
    path.write_bytes(b"all is well")
    ada.messages.share("bob", "report", file=path)
    path.unlink()
    _make(kind, path)
    with pytest.raises(BadInput, match="cannot be read"):
        ada.messages.share("bob", "report", file=path)
    message = received(bob)
    for look in (message.file().read, message.file().verify):
        with pytest.raises(Changed):
            look()


def _make(kind: str, path: Path) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
