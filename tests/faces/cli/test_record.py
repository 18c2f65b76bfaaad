from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from tests.faces.shell import COMMAND, Shell
from tests.nouns.record.sealed import SMALL

import interlock
from interlock import registry
from interlock.faces.cli import streams
from interlock.faces.cli.parse import parse
from interlock.nouns.record.noun import Entries
from interlock.nouns.record.seal_service import Sealing
from interlock.nouns.swarms import key_files
from interlock.runtime.history import EVERYTHING
from interlock.runtime.identity import Actor
from interlock.steps import drive
from interlock.store import Resync
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SQLiteStore


def test_the_record_says_who_did_what(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge", "--trace", "t-1")
    ada.run("lock", "release", "merge", "--token", str(grant["token"]))
    _, log = ada.json("record", "log")
    said = [
        (line["agent"], line["verb"], line["outcome"], line["thing"]) for line in log["entries"]
    ]
    assert said == [
        ("ada", "lock.acquire", "acquired", "lock/merge"),
        ("ada", "lock.release", "released", "lock/merge"),
    ]
    assert log["entries"][0]["trace"] == "t-1"
    first = log["entries"][0]["revision"]
    assert len(ada.json("record", "log", "--after", str(first))[1]["entries"]) == 1
    assert len(ada.json("record", "log", "--limit", "1")[1]["entries"]) == 1
    lines = ada.run("record", "log").out.splitlines()
    assert len(lines) == 2
    assert "ada" in lines[0]
    assert "s ago" in lines[0]


def test_a_command_with_a_key_signs_its_entries(ada: Shell) -> None:
    ada.exported["INTERLOCK_KEYS_DIR"] = str(ada.folder / "keys")
    missing = ada.run("lock", "acquire", "merge", "--key", "ops")
    assert missing.status == 2
    assert "interlock key new ops" in missing.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERLOCK_KEYS_DIR", ada.exported["INTERLOCK_KEYS_DIR"])
        made = key_files.create("ops")
    ada.run("lock", "acquire", "merge", "--key", "ops")
    ada.run("lock", "acquire", "deploy")
    said = ada.run("record", "verify").out
    assert f"signed        1 entry   by {made.fingerprint}, of ada, revision 2 to 2" in said
    assert "not signed    1 entry   of ada, revision 3 to 3" in said
    _, found = ada.json("record", "verify")
    assert [each["key"] for each in found["signed"]] == [made.fingerprint]
    assert (found["signed"][0]["entries"], found["unsigned"]["entries"]) == (1, 1)


def test_what_a_run_starts_signs_with_its_key(ada: Shell) -> None:
    ada.exported["INTERLOCK_KEYS_DIR"] = str(ada.folder / "keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERLOCK_KEYS_DIR", ada.exported["INTERLOCK_KEYS_DIR"])
        key_files.create("ops")
    inner = (*COMMAND, "lock", "acquire", "merge")
    assert ada.run("run", "--key", "keys/ops", "--", *inner).status == 0
    _, found = ada.json("record", "verify")
    assert found["unsigned"] is None
    assert found["signed"][0]["entries"] == found["entries"] >= 3


def test_following_shows_what_happens_until_stopped(ada: Shell) -> None:
    ada.run("lock", "acquire", "first")
    follower = ada.start("record", "log", "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["thing"] == "lock/first"
    for name in ("second", "third"):
        ada.run("lock", "acquire", name)
        assert json.loads(follower.stdout.readline())["thing"] == f"lock/{name}"
    follower.send_signal(signal.SIGINT)
    assert follower.communicate() == ("", "")
    assert follower.returncode == 130


def test_following_an_empty_log_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed between the first look and the watch is shown, too."""
    fleet = interlock.connect(agent="ada", store=MemoryStore(), join=False)

    def look(_request: object) -> Entries:
        fleet.locks.acquire("between")
        return Entries(entries=())

    shown: list[str] = []

    def show(_parsed: object, lines: tuple[Any, ...], _gap: object) -> None:
        shown.extend(line.thing for line in lines)
        if shown:
            raise KeyboardInterrupt

    parsed = parse(registry.find("record log"), ["--follow"])
    monkeypatch.setattr(streams, "connected", lambda _parsed: fleet)
    monkeypatch.setattr(streams, "stoppable", lambda: None)
    monkeypatch.setattr(streams, "_show", show)
    monkeypatch.setattr(fleet, "act", look)
    with pytest.raises(KeyboardInterrupt):
        streams.record_log(parsed)
    assert shown == ["lock/between"]


def test_history_that_is_gone_is_no_empty_answer() -> None:
    store = MemoryStore()
    with interlock.connect(agent="ada", store=store, join=False) as fleet:
        assert fleet.record.follow(0).take(0) == ()
        for name in ("a", "b", "c"):
            fleet.locks.acquire(name)
        store.trim(2)
        assert isinstance(fleet.record.follow(0).take(0), Resync)


def test_following_says_when_entries_are_gone(ada: Shell) -> None:
    ada.run("lock", "acquire", "first")
    follower = ada.start("record", "log", "--follow", "--json")
    assert follower.stdout is not None
    first = json.loads(follower.stdout.readline())
    os.kill(follower.pid, signal.SIGSTOP)
    for name in ("gone", "kept"):
        ada.run("lock", "acquire", name)
    revisions = [line["revision"] for line in ada.json("record", "log")[1]["entries"]]
    store = SQLiteStore(str(ada.folder / ".interlock" / "store.db"))
    store.trim(revisions[1])
    store.close()
    os.kill(follower.pid, signal.SIGCONT)
    gap = {"gap": "trimmed", "after": first["revision"], "begins": revisions[2]}
    assert json.loads(follower.stdout.readline()) == gap
    assert json.loads(follower.stdout.readline())["thing"] == "lock/kept"
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate()
    assert out == ""
    assert err.count("\n") == 1
    assert f"entries after revision {first['revision']} may be trimmed away" in err


def test_reading_on_says_when_entries_are_gone(ada: Shell) -> None:
    for name in ("first", "second", "third"):
        ada.run("lock", "acquire", name)
    first, second, third = (x["revision"] for x in ada.json("record", "log")[1]["entries"])
    assert ada.json("record", "log", "--after", str(first))[1]["gap"] is None
    store = SQLiteStore(str(ada.folder / ".interlock" / "store.db"))
    store.trim(second)
    done = ada.run("record", "log", "--after", str(first))
    assert (done.status, done.out.count("\n")) == (0, 1)
    said = f"entries after revision {first} may be trimmed away; what is left begins at {third}"
    assert done.err == f"interlock: {said}\n"
    answer = ada.run("record", "log", "--json", "--after", str(first)).json
    assert answer["gap"] == {"gap": "trimmed", "after": first, "begins": third}
    store.trim(third)
    store.close()
    done = ada.run("record", "log", "--after", str(second))
    assert done.err.endswith("may be trimmed away; nothing is left\n")
    assert ada.run("record", "log").err == ""


def things(ada: Shell, *words: str) -> list[str]:
    status, log = ada.json("record", "log", *words)
    assert status == 0
    return [line["thing"] for line in log["entries"]]


def test_the_record_can_be_asked_for_a_part_of_it(ada: Shell) -> None:
    ada.run("lock", "acquire", "one", "--trace", "t-1")
    ada.run("lock", "acquire", "two", "--agent", "bob")
    session = ada.json("agent", "join", "--agent", "cleo")[1]["session"]
    assert things(ada, "--by", "bob") == ["lock/two"]
    assert things(ada, "--by", session) == ["agent/cleo"]
    assert things(ada, "--verb", "lock") == ["lock/one", "lock/two"]
    assert things(ada, "--verb", "lock.acquire", "--limit", "1") == ["lock/two"]
    assert things(ada, "--thing", "one") == things(ada, "--trace", "t-1") == ["lock/one"]
    assert things(ada, "--since", "1h", "--until", "0s") == ["lock/one", "lock/two", "agent/cleo"]
    assert things(ada, "--since", "2000-01-01", "--until", "2000-01-02T10:00Z") == []
    assert ada.run("record", "log", "--by", "nobody").out.endswith("none that fits\n")


def test_the_trace_of_the_environment_is_no_filter(ada: Shell) -> None:
    ada.run("lock", "acquire", "one", "--trace", "t-1")
    ada.exported["INTERLOCK_TRACE"] = "t-2"
    assert things(ada) == ["lock/one"]
    ada.run("lock", "acquire", "two")
    assert things(ada, "--trace", "t-2") == ["lock/two"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--since", "soon"), "a duration back from now, like 2h"),
        (("--agent", "a\tb"), "agent name"),
        (("--trace", "a\tb"), "trace"),
        (("--thing", ""), "thing"),
        (("--until", "1h", "--follow"), "leave --until out"),
    ],
)
def test_a_bad_filter_is_refused_in_one_line(ada: Shell, words: tuple[str, ...], hint: str) -> None:
    done = ada.run("record", "log", *words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert hint in done.err


def test_following_shows_only_what_is_asked_for(ada: Shell) -> None:
    ada.run("lock", "acquire", "old", "--agent", "bob")
    for name in ("a", "b"):
        ada.run("lock", "acquire", name)
    follower = ada.start("record", "log", "--follow", "--json", "--by", "bob")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["thing"] == "lock/old"
    ada.run("lock", "acquire", "c")
    ada.run("lock", "acquire", "new", "--agent", "bob")
    assert json.loads(follower.stdout.readline())["thing"] == "lock/new"
    follower.send_signal(signal.SIGINT)
    assert follower.communicate() == ("", "")


def test_following_what_never_was_does_not_go_through_history_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = interlock.connect(agent="ada", store=MemoryStore(), join=False)
    for name in ("a", "b"):
        fleet.locks.acquire(name)
    begun: list[int] = []
    monkeypatch.setattr(streams, "connected", lambda _parsed: fleet)
    monkeypatch.setattr(streams, "stoppable", lambda: None)

    def later(_fleet: object, after: int, _wanted: object) -> Iterator[Any]:
        begun.append(after)
        return iter(())

    monkeypatch.setattr(streams, "_later", later)
    newest = fleet.record.log()[-1].revision
    streams.record_log(parse(registry.find("record log"), ["--follow", "--thing", "new"]))
    assert begun == [newest]


def test_a_follower_that_missed_many_entries_shows_them_all() -> None:
    store = MemoryStore()
    fleet = interlock.connect(agent="ada", store=store, join=False)
    for number in range(150):
        fleet.locks.acquire(f"lock-{number}")
    sealing = Sealing(fleet.context.runner)
    sealing.limits = SMALL
    assert drive(sealing.run_pass(Actor()), store).sealed > 100, "the feed forgot them"
    lines, gap = next(streams._later(fleet, 1, EVERYTHING))
    missed = [line.thing for line in lines if line.verb == "lock.acquire"]
    assert (missed, gap) == ([f"lock/lock-{number}" for number in range(1, 150)], None)


def test_a_story_tells_who_had_a_lock_and_how_it_ended(ada: Shell) -> None:
    done = ada.run("lock", "run", "merge", "--trace", "t-1", "--", "true")
    assert done.status == 0
    status, story = ada.json("record", "explain", "merge")
    assert status == 0
    assert story["thing"] == "lock/merge"
    acquired, released = story["happenings"]
    assert (acquired["what"], acquired["agent"], acquired["trace"]) == ("acquired", "ada", "t-1")
    assert (released["what"], released["token"]) == ("released", acquired["token"])
    assert released["held"] >= 0
    lines = ada.run("record", "explain", "merge").out.splitlines()
    assert len(lines) == 2
    assert f"acquired, token {acquired['token']}" in lines[0]
    assert "released, " in lines[1]
    assert re.search(r"held [\d.]+ m?s", lines[1])
    assert "t-1" not in lines[0]
    assert "t-1" in ada.run("record", "explain", "merge", "-v").out
    assert len(ada.run("record", "explain", "merge", "--limit", "1").out.splitlines()) == 2


def test_an_agent_has_a_story_too(ada: Shell) -> None:
    ada.run("lock", "run", "merge", "--", "true")
    out = ada.run("record", "explain", "agent/ada").out
    words = ("joined, session ses_", "acquired lock/merge", "released lock/merge", "left, session")
    for line, said in zip(out.splitlines(), words, strict=True):
        assert said in line
    session = ada.json("record", "explain", "agent/ada")[1]["happenings"][0]["session"]
    assert ada.run("record", "explain", session).out.count("\n") == 4


def test_a_story_of_nothing_says_what_to_try(ada: Shell) -> None:
    status, answer = ada.json("record", "explain", "merge")
    assert (status, answer) == (1, {"outcome": "nothing", "thing": "lock/merge"})
    done = ada.run("record", "explain", "merge")
    assert done.status == 1
    assert "for an agent agent/merge" in done.out


def test_a_child_inherits_the_trace(ada: Shell) -> None:
    program = "import interlock; print(interlock.connect().trace)"
    inner = ("run", "--trace", "t-9", "--", sys.executable, "-c", program)
    assert ada.run(*inner).out == "t-9\n"
    ada.run("lock", "run", "outer", "--trace", "t-9", "--", *COMMAND, "lock", "acquire", "inner")
    assert "lock/inner" in things(ada, "--trace", "t-9")


def test_verify_says_three_verdicts_and_what_to_do_about_the_third(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    status, found = ada.json("record", "verify")
    assert status == 0
    assert list(found.items())[:4] == [
        ("integrity", "ok"),
        ("completeness", "ok"),
        ("truncation", "unproven"),
        ("entries", 1),
    ]
    lines = ada.run("record", "verify").out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["integrity", "ok"],
        ["completeness", "ok"],
        ["truncation", "unproven"],
    ]
    assert lines[2].endswith("interlock record anchor FILE")
    assert ada.json("record", "anchor", "anchors")[1]["outcome"] == "anchored"
    assert ada.json("record", "verify", "--anchor", "anchors")[1]["truncation"] == "ok"


def test_a_record_that_was_changed_is_an_ordinary_no(ada: Shell) -> None:
    for name in ("first", "second", "third"):
        ada.run("lock", "acquire", name)
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    db.execute("UPDATE log SET value=CAST(replace(value, 'ada', 'eve') AS BLOB) WHERE revision=2")
    db.close()
    done = ada.run("record", "verify")
    assert done.status == 1
    assert done.out.splitlines()[0].split()[:2] == ["integrity", "bad"]
    assert "revision 2: the entry does not hash to what is stored beside it" in done.out
    status, found = ada.json("record", "verify")
    assert (status, found["findings"][0]["revision"]) == (1, 2)
    status, said = ada.json("record", "anchor", "anchors")
    assert (status, said["error"]) == (4, "store_damaged")


def test_an_export_is_checked_by_the_script_that_comes_along(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    (ada.folder / "check.py").write_text(ada.run("record", "export", "--checker").out)
    assert ada.json("record", "export", "--out", "record.jsonl")[1]["entries"] == 1
    assert ada.run("record", "export").out == (ada.folder / "record.jsonl").read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "check.py", "record.jsonl"],
        cwd=ada.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[:4] == ["integrity", "ok", "completeness", "ok"]
    beside = ada.run("record", "verify", "--against", "record.jsonl")
    assert beside.out.splitlines()[-1].split()[:2] == ["against", "same"]


@pytest.mark.parametrize("name", ["store/main", "record/main", "nothing/main"])
def test_the_history_of_a_lock_that_is_called_like_a_noun(ada: Shell, name: str) -> None:
    ada.run("lock", "acquire", name)
    ada.run("lock", "acquire", "merge")
    assert "acquired" in ada.run("record", "explain", name).out
    assert "lock.acquire" in ada.run("record", "log", "--thing", name).out
