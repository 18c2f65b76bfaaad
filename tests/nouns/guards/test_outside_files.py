"""Files below the root: whether they exist, whether they have a text; no way out of the root."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.nouns.guards.outside import HOST, WALL, look, value

from interlock.nouns.guards import outside_files
from interlock.nouns.guards.condition import FileNeed, OutsideNeed, TextNeed
from interlock.nouns.guards.outside import observe
from interlock.testing.clock import FakeClock

LINUX_DEVICES = Path("/dev")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file, and a secret beside it."""
    (tmp_path / "secret").write_text("the word")
    made = tmp_path / "root"
    made.mkdir()
    (made / "notes.txt").write_text("one word, zwei Wörter\n")
    (made / "folder").mkdir()
    (made / "folder" / "inner.txt").write_text("deep")
    return made


def test_a_file_exists_or_not(root: Path) -> None:
    seen = look(FileNeed("notes.txt"), root)
    assert (seen.value, seen.says, seen.host, seen.at) == (True, "notes.txt is a file", HOST, WALL)
    missing = look(FileNeed("STOP"), root)
    assert (missing.value, missing.says) == (False, "there is no STOP")
    assert missing.digest != seen.digest


@pytest.mark.parametrize("path", ["folder", "folder/", ".", "./folder//inner.txt", "folder/."])
def test_folders_exist_and_paths_may_be_roundabout(root: Path, path: str) -> None:
    assert value(FileNeed(path), root) is True


@pytest.mark.parametrize(
    "path", ["notes.txt/inner", "notes.txt/", "missing/inner.txt", "a" * 300, "Notes.TXT", "-rf"]
)
def test_what_cannot_be_there_is_absent(root: Path, path: str) -> None:
    assert value(FileNeed(path), root) is False
    assert value(TextNeed(path, text="word"), root) is False


@pytest.mark.parametrize(
    "path", ["../secret", "folder/../notes.txt", "/etc/passwd", "", "a\0b", "folder/..", "\udfff"]
)
def test_a_path_that_is_not_below_the_root_is_unknown(root: Path, path: str) -> None:
    for need in (FileNeed(path), TextNeed(path, text="word")):
        seen = look(need, root)
        assert seen.value is None
        assert "not a path" in seen.says


@pytest.fixture(scope="module")
def escapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root with a link that leads out of it, to a secret."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "secret").write_text("the word")
    (outer / "root" / "folder").mkdir(parents=True)
    (outer / "root" / "notes.txt").touch()
    (outer / "root" / "link").symlink_to("..")
    return str(outer / "root")


@given(st.lists(st.sampled_from(["..", ".", "", "folder", "link", "secret", "notes.txt"])))
@example(["link", "secret"])
@example(["folder", "..", "..", "secret"])
def test_no_path_leads_to_a_file_beside_the_root(escapes: str, names: list[str]) -> None:
    path = "/".join(names)
    seen = outside_files.look(escapes, path, [TextNeed(path, text="the word")])
    assert [found.value for found in seen.values()] != [True]


@pytest.mark.parametrize("target", ["../secret", "notes.txt", "link", "nowhere", "/etc/passwd"])
def test_a_link_is_not_followed(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    for need in (FileNeed("link"), TextNeed("link", text="word")):
        seen = look(need, root)
        assert seen.value is None
        assert "is a link, which is not followed" in seen.says


@pytest.mark.parametrize("target", ["..", "folder", "loop/loop"])
def test_a_folder_that_is_a_link_is_not_followed(root: Path, target: str) -> None:
    (root / "loop").symlink_to(target)
    assert value(FileNeed("loop/secret"), root) is None
    assert value(FileNeed("loop/inner.txt"), root) is None


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert value(FileNeed("notes.txt"), tmp_path / "alias") is True


def test_without_the_root_nothing_is_known(tmp_path: Path) -> None:
    seen = look(FileNeed("notes.txt"), tmp_path / "missing")
    assert seen.value is None
    assert seen.says.endswith("cannot be opened: no such file or directory")


def test_a_file_has_a_text_or_not(root: Path) -> None:
    seen = look(TextNeed("notes.txt", text="Wörter"), root)
    assert (seen.value, seen.says) == (True, "notes.txt has the text")
    missing = look(TextNeed("notes.txt", text="w.rd"), root)
    assert (missing.value, missing.says) == (False, "notes.txt does not have the text")
    assert seen.digest == missing.digest
    (root / "notes.txt").write_text("other")
    assert look(TextNeed("notes.txt", text="Wörter"), root).digest != seen.digest


def test_a_text_is_compared_by_its_bytes(root: Path) -> None:
    (root / "bytes").write_bytes(b"\xff\x00\xc3\xb6\r\n")
    assert value(TextNeed("bytes", text="\0ö\r"), root) is True
    assert value(TextNeed("bytes", text="\ufffd"), root) is False
    assert value(TextNeed("bytes", text="\udfff"), root) is None


def test_a_need_without_a_text_is_unknown(root: Path) -> None:
    assert value(TextNeed("notes.txt"), root) is None
    assert value(TextNeed("notes.txt", text="word", pattern="word"), root) is None


def test_a_folder_exists_and_has_no_text(root: Path) -> None:
    assert value(FileNeed("folder"), root) is True
    assert value(TextNeed("folder", text="inner"), root) is False


def test_a_pipe_and_a_socket_exist_and_are_not_read(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(root, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)
    for name in ("pipe", "socket"):
        assert value(FileNeed(name), root) is True
        seen = look(TextNeed(name, text="word"), root)
        assert (seen.value, seen.says) == (None, f"{name} is a {name}; it is not read")


def test_a_device_exists_and_is_not_read() -> None:
    assert value(FileNeed("zero"), LINUX_DEVICES) is True
    seen = look(TextNeed("zero", text="\0"), LINUX_DEVICES)
    assert (seen.value, seen.says) == (None, "zero is a device; it is not read")


def test_of_a_file_of_a_gigabyte_the_beginning_is_read(root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 30)
        file.seek(outside_files.MOST - 2)
        file.write(b"behind")
    assert value(TextNeed("large", text="begin"), root) is True
    assert value(TextNeed("large", text="be"), root) is True
    seen = look(TextNeed("large", text="behind"), root)
    assert (seen.value, "first 16 MiB" in seen.says) == (None, True)
    assert value(TextNeed("large", pattern="begin"), root) is None


def test_a_text_across_the_pieces_of_a_file_is_found(root: Path) -> None:
    (root / "large").write_bytes(b"x" * ((1 << 20) - 2) + b"word" + b"x" * 100)
    assert value(TextNeed("large", text="word"), root) is True
    (root / "limit").write_bytes(b"x" * (outside_files.MOST - 4) + b"word")
    assert value(TextNeed("limit", text="word"), root) is True
    assert value(TextNeed("limit", text="sword"), root) is False


def test_a_pattern_matches_or_not(root: Path) -> None:
    seen = look(TextNeed("notes.txt", pattern=r"^one \w+, zwei W\wrter$"), root)
    assert (seen.value, seen.says) == (True, "notes.txt has the pattern")
    assert value(TextNeed("notes.txt", pattern=r"^zwei"), root) is False
    (root / "bytes").write_bytes(b"a\xffb")
    assert value(TextNeed("bytes", pattern="^a.b$"), root) is True


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "(?P<x>a)(?P<x>b)", "(" * 5000, "\udfff"])
def test_what_is_no_pattern_is_unknown(root: Path, pattern: str) -> None:
    seen = look(TextNeed("notes.txt", pattern=pattern), root)
    assert seen.value is None
    assert "the pattern " in seen.says


def test_a_pattern_that_explodes_is_stopped_after_a_second(root: Path) -> None:
    (root / "trap").write_text("a" * 60)
    begun = time.monotonic()
    seen = look(TextNeed("trap", pattern="(a+)+b"), root)
    assert (seen.value, "took more than 1 s" in seen.says) == (None, True)
    assert time.monotonic() - begun < outside_files.PATTERN_SECONDS


def test_a_pattern_that_takes_all_memory_is_stopped(root: Path) -> None:
    (root / "trap").write_bytes(b"a" * outside_files.MOST)
    seen = look(TextNeed("trap", pattern="(?:a|b)*c"), root)
    assert (seen.value, "or too much memory" in seen.says) == (None, True)


def test_one_look_at_a_file_answers_all_that_is_asked(root: Path) -> None:
    needs: list[OutsideNeed] = [
        FileNeed("notes.txt"),
        TextNeed("notes.txt", text="word"),
        TextNeed("notes.txt", text="sword"),
        TextNeed("notes.txt", pattern="w[aeo]rd"),
        FileNeed("folder"),
    ]
    seen = observe(needs, root, host=HOST, clock=FakeClock())
    assert [seen[need].value for need in needs] == [True, True, False, True, True]


def test_a_file_that_is_replaced_all_the_time_is_one_of_its_versions(root: Path) -> None:
    """Each version has either both words or none; a mixture would have one."""
    versions = [b"left" + b"-" * 3_000_000 + b"right", b"-" * 3_000_008]
    over = threading.Event()

    def replace() -> None:
        while not over.is_set():
            for version in versions:
                (root / "new").write_bytes(version)
                (root / "new").rename(root / "file")

    (root / "file").write_bytes(versions[0])
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(20):
            needs = [TextNeed("file", text="left"), TextNeed("file", text="right")]
            left, right = outside_files.look(str(root), "file", needs).values()
            assert left.value == right.value
            assert left.digest == right.digest
    finally:
        over.set()
        thread.join()


def test_a_file_that_grows_while_it_is_read_is_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read

    def read_and_write(file: int, size: int) -> bytes:
        with (root / "notes.txt").open("a") as writer:
            writer.write("more")
        return read(file, size)

    monkeypatch.setattr(os, "read", read_and_write)
    monkeypatch.setattr(outside_files, "MOST", 4096)
    need = TextNeed("notes.txt", text="word")
    seen = outside_files.look(str(root), "notes.txt", [need])[need]
    assert (seen.value, seen.says) == (None, "notes.txt changed while it was read")


def test_no_race_leads_out_of_the_root(root: Path, tmp_path: Path) -> None:
    """A folder becomes a link to the outside and back, all the time."""
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "inner.txt").write_text("the word")
    (root / "away").symlink_to(tmp_path / "outer")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for old, new in (("folder", "aside"), ("away", "folder")):
                (root / old).rename(root / new)
            for old, new in (("folder", "away"), ("aside", "folder")):
                (root / old).rename(root / new)

    thread = threading.Thread(target=swap)
    thread.start()
    need = TextNeed("folder/inner.txt", text="the word")
    try:
        for _ in range(300):
            assert not outside_files.look(str(root), need.path, [need])[need].value
    finally:
        over.set()
        thread.join()


def test_looks_leave_no_file_open(root: Path) -> None:
    (root / "link").symlink_to("folder")
    before = os.listdir("/proc/self/fd")
    for path in ("notes.txt", "folder/inner.txt", "link/x", "missing/x", "notes.txt/x"):
        for need in (FileNeed(path), TextNeed(path, text="word")):
            outside_files.look(str(root), path, [need])
    assert len(os.listdir("/proc/self/fd")) == len(before)
