"""store copy, backup and restore, as a shell meets them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Literal

from tests.faces.shell import Shell

from interlock.nouns.fleet.moving import CopyProgress, StoreCopy
from interlock.stores import open_store
from interlock.testing.servers import RedisServer
from interlock.testing.servers.proxy import Proxy


def test_a_moved_store_is_used_by_its_new_name_and_refuses_by_its_old_one(shell: Shell) -> None:
    old, new = shell.folder / ".interlock" / "store.db", shell.folder / "new.db"
    token = shell.json("lock", "acquire", "merge", "--agent", "ada")[1]["token"]
    status, moved = shell.json("store", "copy", str(old), str(new))
    assert (status, moved["outcome"]) == (0, "copied")
    assert (moved["source"], moved["target"]) == (str(old), str(new))
    status, refused = shell.json("lock", "acquire", "x", "--agent", "bob")
    assert (status, refused["error"]) == (4, "store_moved")
    assert str(new) in refused["message"]
    listed = shell.run("lock", "list")
    assert listed.status == 0
    assert "this store was moved to" in listed.err
    here = ("--store", str(new))
    words = ("lock", "release", "merge", "--agent", "ada", "--token", str(token), *here)
    assert shell.json(*words)[1]["outcome"] == "released"
    assert shell.json("store", "copy", str(old), str(new))[1]["resumed"]
    assert shell.json("store", "info", *here)[1].get("mark") is None
    assert f"moved to {new}" in shell.run("store", "info").out
    health = shell.run("health")
    assert health.status == 1
    assert health.out.count("\n") == 1
    assert f"was moved to {new}" in health.out
    assert f"use that one: --store {new}" in health.out
    status, doctor = shell.json("doctor")
    wrong = [each for each in doctor["checks"] if each["verdict"] != "ok"]
    assert (status, [each["name"] for each in wrong]) == (4, ["moved"])
    assert shell.json("health", *here)[0] == shell.json("doctor", *here)[0] == 0


def test_an_unfinished_move_is_continued_or_taken_back_as_the_message_says(shell: Shell) -> None:
    old, new = str(shell.folder / ".interlock" / "store.db"), str(shell.folder / "new.db")
    shell.run("task", "add", "t1", "--agent", "ada")
    _interrupt(old, new)
    status, refused = shell.json("lock", "acquire", "x", "--agent", "bob")
    assert (status, refused["error"]) == (4, "store_moving")
    assert f"interlock store copy {old} {new} --abort" in refused["message"]
    status, refused = shell.json("lock", "list", "--store", new)
    assert (status, refused["error"]) == (4, "store_moving")
    assert f"interlock store copy {old} {new}" in refused["message"]
    assert f"being filled from {old}" in shell.run("store", "info", "--store", new).out
    assert f"being copied to {new}" in shell.run("store", "info").out
    status, aborted = shell.json("store", "copy", old, new, "--abort")
    assert (status, aborted["outcome"], aborted["opened"]) == (0, "aborted", True)
    assert shell.json("lock", "acquire", "x", "--agent", "bob")[0] == 0
    _interrupt(old, new)
    os.unlink(new)
    status, aborted = shell.json("store", "copy", old, new, "--abort")
    assert (status, aborted["opened"]) == (0, True)
    assert "there is no store" in aborted["left"]
    assert shell.json("store", "copy", old, new)[0] == 0


def test_the_copy_of_a_store_that_is_lost_is_deleted_as_the_message_says(shell: Shell) -> None:
    old, new = str(shell.folder / ".interlock" / "store.db"), str(shell.folder / "new.db")
    shell.run("task", "add", "t1", "--agent", "ada")
    _interrupt(old, new)
    lost = ("store", "copy", old, new, "--abort", "--lost")
    status, refused = shell.json(*lost)
    assert (status, "is not lost" in refused["message"]) == (3, True)
    os.unlink(old)
    _, refused = shell.json("lock", "list", "--store", new)
    assert f"interlock {' '.join(lost)}" in refused["message"]
    status, refused = shell.json("store", "copy", "other.db", new, "--abort", "--lost")
    assert (status, f"filled from {old}" in refused["message"]) == (3, True)
    status, aborted = shell.json(*lost)
    assert (status, aborted["lost"], aborted["erased"] > 0) == (0, True, True)
    assert shell.json("lock", "acquire", "x", "--agent", "bob", "--store", new)[0] == 0
    status, refused = shell.json(*lost)
    assert (status, "nothing to take back" in refused["message"]) == (3, True)
    assert shell.run("store", "copy", old, new, "--lost").status == 2


def test_init_says_where_a_moved_store_is(shell: Shell) -> None:
    old, new = str(shell.folder / ".interlock" / "store.db"), str(shell.folder / "new.db")
    shell.run("task", "add", "t1", "--agent", "ada")
    assert shell.run("init").out.count("\n") == 1
    assert shell.run("store", "copy", old, new).status == 0
    said = shell.run("init")
    assert said.out.startswith(f"already there {old}\n")
    assert f"was moved to {new}" in said.out
    assert f"--store {new}" in said.out


def test_backup_and_restore_name_the_way_of_every_other_engine(shell: Shell) -> None:
    for store in ("redis://127.0.0.1:1", "etcd://127.0.0.1:1", "git+file:///nowhere.git"):
        for verb in ("backup", "restore"):
            said = shell.run("store", verb, "shop.backup", "--store", store)
            assert (said.status, "for git 'git clone --mirror'" in said.err) == (2, True)


def _interrupt(old: str, new: str) -> None:
    class Stop(Exception): ...

    def report(progress: CopyProgress) -> None:
        if progress.step == "comparing":
            raise Stop

    with (
        closing(open_store(old, filling=True)) as source,
        closing(open_store(new, filling=True)) as target,
    ):
        try:
            StoreCopy(source, target, (old, new), report=report).run()
        except Stop:
            return
    raise AssertionError("it was not interrupted")


def test_a_move_that_fails_says_how_to_go_on(shell: Shell) -> None:
    old, new = str(shell.folder / ".interlock" / "store.db"), str(shell.folder / "new.db")
    shell.run("task", "add", "t1", "--agent", "ada")
    _interrupt(old, new)
    with closing(open_store(new, filling=True)) as target:
        mark = target.mark()  # type: ignore[attr-defined]
        target.set_mark(None, mark)  # type: ignore[attr-defined]
    failed = shell.run("store", "copy", old, new)
    assert failed.status == 3
    assert "is not empty" in failed.err
    assert "the move is not complete" in failed.err
    assert shell.run("store", "copy", old, new, "--abort").status == 0
    assert shell.json("lock", "acquire", "x", "--agent", "bob")[0] == 0


def test_an_interrupted_move_to_a_server_that_hangs_says_how_to_go_on(
    shell: Shell, redis_server: RedisServer, tmp_path: Path
) -> None:
    old = str(shell.folder / ".interlock" / "store.db")
    shell.run("task", "add", "t1", "--agent", "ada")
    loading = threading.Event()

    def hang(request: bytes) -> Literal["hold"] | None:
        if b"mov_" in request and b"filling" not in request:  # the first load
            loading.set()
        return "hold" if loading.is_set() else None

    with Proxy("127.0.0.1", redis_server.port) as proxy:
        proxy.on_request(hang)
        new = proxy.through(redis_server.url(tmp_path.name))
        mover = shell.start("store", "copy", old, new)
        assert loading.wait(30)
        mover.send_signal(signal.SIGINT)
        _, said = mover.communicate(timeout=30)
        assert mover.returncode == 130
        assert "run the same command again to continue it, or with --abort" in said
        status, refused = shell.json("lock", "acquire", "x", "--agent", "bob")
        assert (status, refused["error"]) == (4, "store_moving")
        loading.clear()
        proxy.on_request(None)
        proxy.cut_once()
        done = shell.run("--json", "store", "copy", old, new)  # a slow one says how far it is
        moved = done.json
        assert (done.status, moved["resumed"], moved["target"]) == (0, True, new)


def test_wrong_words_move_nothing(shell: Shell, tmp_path: Path) -> None:
    old = str(shell.folder / ".interlock" / "store.db")
    for words, status in (
        ((old, old), 2),
        ((old, "memory:"), 2),
        (("none.db", str(tmp_path / "new.db")), 4),
        ((old, "redis://127.0.0.1:1"), 4),
        ((old, str(tmp_path / "new.db"), "--store", old), 2),
        ((old, str(tmp_path / "new.db"), "--abort"), 3),
    ):
        assert shell.run("store", "copy", *words).status == status, words
    assert shell.json("lock", "acquire", "x", "--agent", "bob")[0] == 0


def test_a_backup_is_restored_and_the_replaced_store_is_kept(shell: Shell) -> None:
    copy = str(shell.folder / "copy.backup")
    shell.run("task", "add", "t1", "--agent", "ada")
    status, made = shell.json("store", "backup", "copy.backup")
    assert (status, made["outcome"], made["path"]) == (0, "backed_up", copy)
    assert shell.json("store", "backup", "copy.backup")[0] == 2
    shell.run("task", "add", "t2", "--agent", "ada")
    assert shell.json("store", "restore", "copy.backup")[0] == 2
    status, restored = shell.json("store", "restore", "copy.backup", "--force")
    assert (status, restored["outcome"], restored["lost"] > 0) == (0, "restored", True)
    assert [each["task"] for each in shell.json("task", "list")[1]["tasks"]] == ["t1"]
    assert "t2" in shell.run("task", "list", "--store", restored["kept"]).out
    assert shell.json("record", "verify")[0] == 0
    said = shell.run("store", "backup", "x", "--store", "redis://127.0.0.1:1")
    assert (said.status, "for SQLite files" in said.err) == (2, True)
