"""Definition files on disk, and those that they include."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards.definition import read
from interlock.nouns.guards.source import FILES_LIMIT, load

GUARD = "[guard.{0}]\nwhen = [{{lock_free = '{0}'}}]\n"


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refused(path: str | Path) -> str:
    with pytest.raises(BadInput) as error:
        read(str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_and_all_that_it_includes_are_one_set(tmp_path: Path) -> None:
    main = write(
        tmp_path, "main.toml", "include = ['sub/a.toml', 'b.json']\n" + GUARD.format("main")
    )
    write(tmp_path, "sub/a.toml", "include = ['deep/c.toml', '../b.json']\n" + GUARD.format("a"))
    write(tmp_path, "sub/deep/c.toml", GUARD.format("c"))
    write(tmp_path, "b.json", '{"guard": {"b": {"when": ["c"]}}}')
    found = read(main)
    assert list(found.guards) == ["main", "a", "c", "b"]
    folder = str(tmp_path)
    assert found.files == (
        main, f"{folder}/sub/a.toml", f"{folder}/sub/deep/c.toml", f"{folder}/b.json",
    )  # fmt: skip


def test_a_file_is_named_as_the_caller_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "main.toml", "include = ['a.toml']")
    write(tmp_path, "a.toml", "[guard.a]\nwhen = [3]")
    monkeypatch.chdir(tmp_path)
    assert refused("main.toml").startswith("a.toml:2: a condition is a table")
    assert refused("./main.toml").startswith("./a.toml:2: ")


@pytest.mark.parametrize("given", ["a.toml", "./a.toml", "sub/../a.toml", "a.toml/"])
def test_a_cycle_of_includes_is_spelled_out(tmp_path: Path, given: str) -> None:
    main = write(tmp_path, "main.toml", "\ninclude = ['a.toml']")
    write(tmp_path, "a.toml", "include = ['b.toml']")
    write(tmp_path, "b.toml", f"include = [\n'c.toml',\n'{given}']")
    write(tmp_path, "c.toml", "")
    assert refused(main) == (
        f"{tmp_path}/b.toml:3: files include each other in a cycle:"
        " a.toml -> b.toml -> a.toml; drop one"
    )


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    main = write(tmp_path, "main.toml", "include = ['main.toml']")
    assert "main.toml:1: files include each other in a cycle: main.toml -> main.toml" in refused(
        main
    )


@pytest.mark.parametrize("given", ["../x.toml", "sub/../../x.toml", "/etc/x.toml", "..", "../in/x"])
def test_an_include_outside_of_the_folder_is_refused(tmp_path: Path, given: str) -> None:
    write(tmp_path, "x.toml", "")
    main = write(tmp_path, "in/main.toml", f"\n\ninclude = ['{given}']")
    said = refused(main)
    assert said.startswith(f"{main}:3: ")
    assert "is not in the folder of the first file; move it there" in said


def test_an_include_behind_a_link_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "out/x.toml", GUARD.format("x"))
    main = write(tmp_path, "in/main.toml", "include = [\n'x.toml']")
    (tmp_path / "in/x.toml").symlink_to(tmp_path / "out/x.toml")
    assert f"{main}:2: the included file 'x.toml' cannot be read (there is a link" in refused(main)
    main = write(tmp_path, "in/main.toml", "include = [\n'out/x.toml']")
    (tmp_path / "in/out").symlink_to(tmp_path / "out")
    assert f"{main}:2: the included file 'out/x.toml' cannot be read (there is a" in refused(main)


def test_a_first_file_behind_a_link_is_read_and_includes_from_the_folder_of_the_link(
    tmp_path: Path,
) -> None:
    write(tmp_path, "out/main.toml", "include = ['x.toml']")
    write(tmp_path, "in/x.toml", GUARD.format("x"))
    (tmp_path / "in/main.toml").symlink_to(tmp_path / "out/main.toml")
    assert list(read(str(tmp_path / "in/main.toml")).guards) == ["x"]


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").symlink_to(tmp_path / "b.toml")
    (tmp_path / "b.toml").symlink_to(tmp_path / "a.toml")
    assert "cannot be read (Too many levels of symbolic links)" in refused(tmp_path / "a.toml")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
def test_only_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd.toml"
    match kind:
        case "pipe":
            os.mkfifo(odd)
        case "folder":
            odd.mkdir()
        case "device":
            odd.symlink_to("/dev/zero")
        case _:
            code = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
            subprocess.run([sys.executable, "-c", code, "odd.toml"], cwd=tmp_path, check=True)
    said = refused(odd)
    assert said.startswith((f"{odd}: it is no regular file", f"'{odd}' cannot be read"))
    main = write(tmp_path, "main.toml", "include = ['odd.toml']")
    assert f"{main}:1: the included file 'odd.toml' cannot be read" in refused(main)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory); name a file" in refused(
        tmp_path / "no.toml"
    )
    main = write(tmp_path, "main.toml", "include = ['x.toml',\n'no/such.toml']")
    write(tmp_path, "x.toml", "")
    assert refused(main).startswith(
        f"{main}:2: the included file 'no/such.toml' cannot be read (No"
    )


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize("given", ["''", "3", "'a\\u0000b'", "['x']"])
def test_an_include_that_is_no_name_is_refused(tmp_path: Path, given: str) -> None:
    main = write(tmp_path, "main.toml", f"include = [\n{given.replace(chr(39), chr(34))}]")
    assert f"{main}:2: include takes names of files, not " in refused(main)


def test_an_include_that_is_no_list_is_refused(tmp_path: Path) -> None:
    main = write(tmp_path, "main.toml", "\ninclude = 'x.toml'")
    assert f"{main}:2: include takes a list of files, as in ['common.toml']" in refused(main)


def test_a_file_that_is_too_large_is_refused_after_its_first_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space, and reading it would take minutes
    with pytest.raises(TooLarge, match="more than 1048576 bytes; split it, and include the parts"):
        read(str(path))


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "x.toml", b"# fine\n# \xe9\n")
    assert refused(path) == f"{path}:2: the file is not UTF-8; write it in UTF-8"


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    names = [f"{n}.toml" for n in range(FILES_LIMIT)]
    for name in names:
        write(tmp_path, name, "")
    main = write(tmp_path, "main.toml", "include = " + repr(names[:-1]))
    assert len(load(main)) == FILES_LIMIT
    main = write(tmp_path, "main.toml", "include = " + repr(names))
    assert f"{main}:1: more than {FILES_LIMIT} files are included" in refused(main)


def test_includes_in_a_long_chain_are_read(tmp_path: Path) -> None:
    for n in range(FILES_LIMIT - 1):
        write(tmp_path, f"{n}.toml", f"include = ['{n + 1}.toml']\n" + GUARD.format(f"g{n}"))
    write(tmp_path, f"{FILES_LIMIT - 1}.toml", "")
    assert len(read(str(tmp_path / "0.toml")).guards) == FILES_LIMIT - 1


def test_a_name_that_would_write_on_a_terminal_is_spelled_out(tmp_path: Path) -> None:
    main = write(tmp_path, "a\x1b[2J.toml", "x = 1")
    assert refused(main).startswith(f"{tmp_path}/a\\x1b[2J.toml:1: ")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    main = write(tmp_path, "main.toml", "include = ['sub/a.toml', 'sub/b.toml']")
    write(tmp_path, "sub/a.toml", "")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(3):
        refused(main)
        refused(tmp_path)
    write(tmp_path, "sub/b.toml", "")
    read(main)
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert after == before
