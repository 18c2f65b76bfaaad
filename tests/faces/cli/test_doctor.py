from __future__ import annotations

import re
import resource
import signal

import apsw
import pytest
from tests.faces.shell import Shell, hold_the_turn, until

import interlock

STOPPED = "bad  queue: "


def test_a_healthy_place_is_all_ok(shell: Shell) -> None:
    done = shell.run("doctor")
    assert done.status == 0
    for line in done.out.splitlines():
        assert re.fullmatch(r"(ok|warn|bad ) +[a-z -]+: .+", line), line
    names = {check["name"] for check in shell.json("doctor")[1]["checks"]}
    assert {"python", "sqlite", "store", "file system", "permissions", "format"} <= names
    assert {"file", "write-ahead log", "doorbells", "queue", "writing"} <= names
    assert {"integrity", "clock", "stale grants", "lapsed sessions"} <= names


def test_a_check_is_a_verdict_a_name_a_fact_and_perhaps_a_remedy(bare: Shell) -> None:
    python, store = bare.json("doctor")[1]["checks"]
    assert (set(python), python["remedy"]) == ({"verdict", "name", "fact", "remedy"}, "")
    assert store == {
        "verdict": "bad",
        "name": "store",
        "fact": "there is no store here",
        "remedy": "run 'interlock init', or name one: connect(URL), --store URL",
    }


def test_a_look_leaves_no_trace_in_the_record(ada: Shell) -> None:
    assert "ok   writing: a commit took " in ada.run("doctor").out
    assert ada.json("record", "log")[1]["entries"] == []
    assert ada.json("agent", "list")[1]["agents"] == []


def test_a_place_without_room_is_bad_before_the_next_commit_finds_out(ada: Shell) -> None:
    path = ada.folder / ".interlock" / "store.db"
    with interlock.connect(str(path), agent="bob") as fleet:
        for name in range(8):
            fleet.locks.acquire(f"l/{name}")
        done = ada.run("doctor", preexec_fn=_no_file_may_grow)
    assert done.status == 4
    assert "bad  writing: " in done.out
    assert "ok   stale grants: none" in done.out, "every other check still speaks"


def test_a_folder_in_which_every_user_can_replace_the_store_is_a_warning(ada: Shell) -> None:
    place = ada.folder / "open"
    place.mkdir()
    ada.run("init", "--store", str(place / "store.db"))
    place.chmod(0o777)
    said = ada.run("doctor", "--store", str(place / "store.db")).out
    assert f"warn permissions: every user can replace files in {place}; chmod o-w {place}" in said
    place.chmod(0o1777)
    assert "ok   permissions" in ada.run("doctor", "--store", str(place / "store.db")).out


def test_no_store_is_bad(bare: Shell) -> None:
    done = bare.run("doctor")
    assert done.status == 4
    assert "bad  store: there is no store here; run 'interlock init'" in done.out
    assert bare.run("doctor", "--store", "none.db").status == 4
    assert not (bare.folder / "none.db").exists(), "a look makes nothing"


def test_a_url_leads_to_the_same_file_as_for_everybody_else(bare: Shell) -> None:
    url = f"sqlite://{bare.folder}/a%20b.db"
    assert bare.json("init", "--store", url)[1]["store"] == f"{bare.folder}/a b.db"
    done = bare.run("doctor", "--store", url)
    assert done.status == 0, done
    assert "ok   permissions: for you only" in done.out
    bare.exported["HOME"] = str(bare.folder)
    assert bare.run("doctor", "--store", "~/a b.db").status == 0
    assert "bad  store: no store speaks" in bare.run("doctor", "--store", "nosql://x").out


def test_open_doors_and_left_overs_are_warned_about(ada: Shell) -> None:
    (ada.folder / ".interlock").chmod(0o755)
    (ada.folder / ".interlock" / "store.db").chmod(0o644)
    ada.run("lock", "acquire", "merge", "--ttl", "500ms")
    ada.run("sem", "acquire", "builds", "--capacity", "3", "--ttl", "500ms")
    ada.run("agent", "join", "--ttl", "500ms")
    until(lambda: ada.json("lock", "show", "merge")[1]["state"] == "stale")
    until(lambda: ada.json("agent", "list")[1]["agents"][0]["state"] == "lapsed")
    done = ada.run("doctor")
    assert done.status == 0
    assert f"chmod 700 {ada.folder}/.interlock" in done.out
    assert f"chmod 600 {ada.folder}/.interlock/store.db" in done.out
    assert "warn stale grants: 2 (merge, sem/builds); run 'interlock maintain'" in done.out
    assert "warn lapsed sessions: 1 (ada); run 'interlock maintain'" in done.out
    maintained = ada.json("maintain")[1]
    assert (maintained["reclaimed"], maintained["left"]) == (3, 0)
    assert "stale grants: none" in ada.run("doctor").out


def test_a_damaged_file_is_bad(shell: Shell) -> None:
    (shell.folder / ".interlock" / "store.db").write_bytes(b"x" * 8192)
    done = shell.run("doctor")
    assert done.status == 4
    assert "bad  store:" in done.out


def test_what_cannot_be_read_is_named_and_hides_nothing_else(ada: Shell) -> None:
    for name in ("first", "second", "third"):
        ada.run("lock", "acquire", name, "--ttl", "500ms")
    _, joined = ada.json("agent", "join")
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    for key in ("locks/second", f"sessions/{joined['session']}"):
        db.execute("UPDATE item SET value = ? WHERE key = ?", (b'{"grants": 1}', key))
        assert db.changes() == 1
    db.close()
    done = ada.run("doctor")
    assert done.status == 4
    assert "bad  integrity: locks/second does not read" in done.out
    assert f"bad  integrity: sessions/{joined['session']} does not read" in done.out
    for name in ("format", "queue", "clock", "stale grants", "lapsed sessions"):
        assert f" {name}: " in done.out, "every other check still speaks"


def test_an_entry_that_cannot_be_read_ends_only_the_check_that_needs_it(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    db.execute("UPDATE log SET value = ?", (b"[]",))
    db.close()
    done = ada.run("doctor")
    assert done.status == 4
    assert "bad  clock: log/" in done.out
    assert "ok   stale grants: none" in done.out


def test_a_stopped_writer_is_named(shell: Shell) -> None:
    blocker = hold_the_turn(shell.folder / ".interlock" / "store.db-bells")
    try:
        blocker.send_signal(signal.SIGSTOP)
        found = until(
            lambda: [said for said in shell.run("doctor").out.splitlines() if STOPPED in said]
        )
        assert f"process {blocker.pid} is stopped while it writes; let it go on with" in found[0]
        assert f"'kill -CONT {blocker.pid}'" in found[0]
        done = shell.run("doctor")
        assert done.status == 4
        assert " writing: " not in done.out, "nobody waits for a commit that must fail"
    finally:
        blocker.kill()
        blocker.communicate()


def _no_file_may_grow() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_the_facts_of_a_store(shell: Shell) -> None:
    status, facts = shell.json("store", "info")
    assert status == 0
    assert facts["engine"] == "sqlite"
    assert facts["path"] == str(shell.folder / ".interlock" / "store.db")
    said = shell.run("store", "info").out
    assert len({line.index(line.split("  ")[-1].strip()) for line in said.splitlines()}) == 1


@pytest.mark.parametrize("prefix", ["tasks/t/status", "claims/", "ready/"])
def test_a_task_that_cannot_be_read_is_named(ada: Shell, prefix: str) -> None:
    ada.run("task", "add", "t")
    ada.run("task", "add", "free")
    ada.run("task", "claim", "t", "--ttl", "1h")
    assert "all items can be read" in ada.run("doctor").out
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    db.execute("UPDATE item SET value = ? WHERE key GLOB ?", (b"garbage", f"{prefix}*"))
    assert db.changes() == 1
    db.close()
    done = ada.run("doctor")
    assert done.status == 4
    assert f"bad  integrity: {prefix}" in done.out


@pytest.mark.parametrize("prefix", ["messages/", "unread/", "topics/", "queries/", "cursors/"])
def test_a_message_that_cannot_be_read_is_named(ada: Shell, prefix: str) -> None:
    path = str(ada.folder / ".interlock" / "store.db")
    with interlock.connect(path, "ada", join=False) as fleet:
        fleet.messages.subscribe("built")
        sent = fleet.messages.alert("built")
        fleet.messages.ack(sent.message)  # type: ignore[union-attr]
        fleet.messages.share("ada", "fact")
        fleet.messages.query("ada", "who?", timeout=0)
    assert "bad" not in ada.run("doctor").out
    db = apsw.Connection(path)
    db.execute("UPDATE item SET value = ? WHERE key GLOB ?", (b"garbage", f"{prefix}*"))
    assert db.changes() == 1
    db.close()
    done = ada.run("doctor")
    assert done.status == 4
    assert f"bad  integrity: {prefix}" in done.out
