"""The demo, run as a user runs it: in a process of its own, with workers of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.demo import run_demo
from interlock.demo.facts import gather
from interlock.demo.ledger import Ledger, Written
from interlock.demo.play import Build, Seen, Turn
from interlock.demo.report import try_next

DEMO = [sys.executable, "-m", "interlock", "demo", "--ttl", "3s"]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begin a demo whose temporary files go to a folder of this test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(
        *, store: str = "", face: str = "json", workers: int = 3, out: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        places = {"TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm", "LINES": "30", "COLUMNS": "80"}
        (tmp_path / "tmp").mkdir()
        words = ["--workers", str(workers)]
        words += ["--store", store] if store else []
        words += ["--json"] if face == "json" else []
        begun.append(
            subprocess.Popen(
                [*DEMO, *words],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **places},
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def read_until_turns(process: subprocess.Popen[str]) -> None:
    read_until(process, "all take turns")


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail("the demo ended early")


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    stats = Path("/proc").glob("[0-9]*/stat")
    return [int(path.parent.name) for path in stats if _parent(path) == process.pid]


def left_behind(tmp_path: Path) -> list[str]:
    """Processes that know this test's folder, and files in it."""
    found = [str(path) for path in (tmp_path / "tmp").iterdir()]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "interlock.demo.worker" in command and str(tmp_path) in command:
            found.append(command)
    return found


def test_shows_that_a_killed_holder_is_replaced_and_its_late_write_refused(
    start: Start, tmp_path: Path
) -> None:
    status, out, errors = finish(start())
    facts: dict[str, Any] = json.loads(out)
    assert (status, errors, facts["outcome"]) == (0, "", "done")
    assert all(facts["promises"].values())
    assert facts["count"] == facts["turns"] >= 3 * 2 + 2
    assert facts["killed"]["agent"] == "bob"
    assert facts["moved_on"]["agent"] in {"ada", "cleo"}
    assert facts["moved_on"]["token"] > facts["killed"]["token"]
    assert facts["moved_on"]["seconds"] > 0.3
    assert facts["killed"]["slots"] == 2
    assert facts["slots"]["moved_to"] in {"ada", "cleo"}
    assert facts["slots"]["seconds"] > 0.3
    assert 2 <= facts["slots"]["most_at_once"] <= facts["slots"]["capacity"] == 3
    assert facts["late_write"] == {"file": "refused", "store": "fenced"}
    verbs = [told["verb"] for told in facts["story"]]
    # Whoever waits finds the dead, or whoever comes: the others may all have waited for slots.
    assert verbs[0] in {"lock.release", "lock.acquire"}
    assert verbs[1] in {"lock.reclaim", "lock.acquire"}
    assert "found bob gone" in facts["story"][1]["text"]
    assert set(verbs[2:]) <= {"lock.release", "lock.beat"}  # a refusal if somebody held it then
    assert facts["entries"] > facts["turns"]
    assert left_behind(tmp_path) == []


def test_runs_on_a_given_store_and_leaves_nothing_but_its_record(
    start: Start, tmp_path: Path, url: str
) -> None:
    status, out, errors = finish(start(store=url, face="text", workers=2))
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "2 agents share a lock and 3 slots; one is killed with both. See what happens."
    )
    assert "\x1b" not in out
    assert max(map(len, lines)) < 80
    names = [line.split()[0] for line in lines if line.startswith("  ") and line.strip()]
    assert {"slots", "killed", "moved", "its", "late", "record"} < set(names)
    with interlock.connect(url) as fleet:
        assert (fleet.agents.list(), fleet.locks.list()) == ((), ())
        assert fleet.semaphores.list() == ()
        assert len(fleet.record.log(limit=1000)) > 10
    assert left_behind(tmp_path) == []


def test_counts_only_its_own_entries(start: Start, tmp_path: Path) -> None:
    store = str(tmp_path / "mine.db")
    with interlock.connect(store, agent="bob") as other:
        process = start(store=store, face="text")
        read_until_turns(process)
        for name in ("a", "b", "c"):
            other.locks.acquire(name)
        _, out, _ = finish(process)
        lines = other.record.log(limit=1000)
    said = re.search(r"record +(\d+) entries", out)
    assert said is not None
    # The end of the dead one's session comes after the count.
    ours = [line for line in lines if line.session != other.session and line.agent != "demo"]
    assert int(said[1]) == len(ours)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_leaves_nothing_behind_when_interrupted(
    start: Start, tmp_path: Path, number: int, expected: int
) -> None:
    process = start(face="text")
    read_until_turns(process)
    assert left_behind(tmp_path) != []
    process.send_signal(number)
    status, _, errors = finish(process)
    assert status == expected
    assert "Traceback" not in errors
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("moment", ["all take turns", "kill -9"])
def test_leaves_nothing_in_a_store_of_others_when_interrupted(
    start: Start, url: str, moment: str
) -> None:
    process = start(store=url, face="text")
    read_until(process, moment)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    with interlock.connect(url) as fleet:
        assert (fleet.agents.list(), fleet.locks.list()) == ((), ())


def test_redraws_a_table_on_a_terminal_and_gives_the_cursor_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    process = start(face="text", out=theirs)
    os.close(theirs)
    shown = ""
    while "HOLDING" not in shown or shown.count("agent ") < 3:
        shown += os.read(ours, 65536).decode()
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    shown += os.read(ours, 65536).decode()
    os.close(ours)
    assert shown.index("\x1b[?25l") < shown.index("\x1b[?25h")
    assert "\x1b[32;1mHOLDING" in shown
    plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", shown)
    assert max(map(len, plain.splitlines())) <= 80


def test_workers_end_when_the_demo_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(face="text")
    read_until_turns(process)
    handles = [os.pidfd_open(pid) for pid in workers_of(process)]
    assert len(handles) == 3
    process.kill()
    for handle in handles:
        assert _ended(handle)


def test_a_worker_that_fails_ends_the_demo_with_one_clear_line(
    start: Start, tmp_path: Path
) -> None:
    process = start(face="text")
    read_until_turns(process)
    worker = workers_of(process)[0]
    os.kill(worker, signal.SIGTERM)
    status, _, errors = finish(process)
    assert status == 1
    assert errors.startswith("interlock: the demo failed:")
    assert f"(pid {worker}) ended with status -15" in errors
    assert len(errors.splitlines()) == 1
    assert left_behind(tmp_path) == []


def test_says_what_is_wrong_with_its_input(start: Start) -> None:
    with pytest.raises(interlock.BadInput, match="not shared between processes"):
        run_demo("memory://")
    status, out, errors = finish(start(face="text", workers=1))
    assert (status, out) == (2, "")
    assert errors == "interlock: the demo needs two workers or more\n"


def test_the_store_is_no_word_that_everybody_can_see(start: Start, tmp_path: Path) -> None:
    """A URL may hold a password; the words of a process are open to all."""
    store = str(tmp_path / "secret.db")
    process = start(store=store, face="text")
    read_until_turns(process)
    workers = workers_of(process)
    assert len(workers) == 3
    for worker in workers:
        assert b"secret" not in Path(f"/proc/{worker}/cmdline").read_bytes()


def test_says_how_to_find_the_command_where_path_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (folder / "interlock").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert next(try_next())[0].rstrip() == 'export PATH="$PWD/env/bin:$PATH"'
    monkeypatch.chdir(folder)
    assert next(try_next())[0].rstrip() == f'export PATH={folder}:"$PATH"'
    monkeypatch.setenv("PATH", str(folder))
    assert next(try_next())[0].rstrip() == "interlock init"


def test_the_file_refuses_a_token_older_than_one_it_saw(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "count"))
    assert ledger.count() == 0
    assert ledger.write(1, token=5, agent="ada")
    assert ledger.write(2, token=7, agent="bob")
    assert not ledger.write(2, token=5, agent="ada")
    assert ledger.count() == 2
    assert ledger.lines() == [Written(1, 5, "ada"), Written(2, 7, "bob")]


def test_a_run_that_breaks_a_promise_says_so() -> None:
    def outcome(
        *writes: Written,
        heir: float = 2.5,
        late: str = "refused",
        slots: float = 2.6,
        beside: int = 1,
        verdict: str = "ok",
    ) -> tuple[str, list[str]]:
        dead = Turn("bob", 2, took=1.0)
        turns = [Turn("ada", 1, took=0.0, wrote=0.5), dead, Turn("ada", 4, heir, "bob", wrote=9.0)]
        builds = [
            Build("bob", 2, took=0.9),
            Build("cleo", beside, took=1.0, done=1.4),
            Build("ada", 2, took=slots, done=8.0),
        ]
        seen = Seen(turns, builds, "bob", 1, 2, 1, 1.5, turns[-1], late, "fenced")
        words = {"integrity": verdict}
        facts = gather(
            seen, list(writes), (), workers=2, ttl=1.0, seconds=9.0, capacity=3, verdicts=words
        )
        return facts.outcome, [name for name, kept in facts.promises.items() if not kept]

    good = Written(1, 1, "ada"), Written(2, 4, "ada")
    assert outcome(*good) == ("done", [])
    assert outcome(good[0], Written(1, 4, "ada")) == ("failed", ["no_update_lost"])
    assert outcome(good[0]) == ("failed", ["no_update_lost"])
    assert outcome(good[0], Written(2, 1, "ada")) == ("failed", ["tokens_increase"])
    assert outcome(*good, heir=5.0) == ("failed", ["moved_on_in_time"])
    assert outcome(*good, heir=1.2)[0] == "failed"
    assert outcome(*good, beside=2) == ("failed", ["never_above_the_capacity"])
    assert outcome(*good, slots=5.0) == ("failed", ["slots_moved_on_in_time"])
    assert outcome(*good, verdict="bad") == ("failed", ["record_not_refuted"])
    assert outcome(*good, verdict="unproven") == ("done", [])
    assert outcome(*good, late="accepted") == ("failed", ["late_write_refused"])


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _ended(handle: int) -> bool:
    """Whether the process behind a handle ends within seconds."""
    ready = bool(select.select([handle], [], [], 60.0)[0])
    os.close(handle)
    return ready
