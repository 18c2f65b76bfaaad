"""The demo, run as a user runs it: in a process of its own, with workers of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import pty
import re
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import interlock
from interlock import demo
from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.demo import lasting_ttl, run_demo
from interlock.demo.display import result_lines, try_next
from interlock.demo.results import gather
from interlock.demo.scenario import Build, Observations
from interlock.demo.worker import (
    COMPILER,
    DEPLOY,
    TRAP,
    Ledger,
    LedgerLine,
    abilities,
    agent_names,
    plan,
)
from interlock.faces.cli.command import write_json
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask
from interlock.testing.servers import RedisServer

DEMO = [sys.executable, "-m", "interlock", "demo", "--ttl", "3s"]
DEPLOYED = ("task/deploy", "completed")
VERBS = ("message.alert", "message.stop", "query.ask", "query.reply")
BEGUN = "agents claim"
NOTHING = "no task that is ready is one that you can do"

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
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


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


def test_every_task_gets_done_once_though_one_is_killed_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted by ourselves: in the record, and by asking for each task."""
    monkeypatch.setattr(demo, "_own_folder", lambda _: nullcontext(str(tmp_path)))
    assert run_demo(write=write_json, ttl=3.0, workers=4) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    with interlock.connect(str(tmp_path / "store.db"), agent="test") as fleet:
        lines = fleet.record.log(limit=10_000, last=False)
        claims = [fleet.tasks.claim(step.task) for step in plan()]
        assert fleet.locks.list() == ()
        assert fleet.tasks.next(can=["*"]) == NoTask(reason=NOTHING, can=("*",))
    assert {claim.state for claim in claims if isinstance(claim, NoTask)} == {"complete"}
    assert len(claims) == 60
    done = Counter(line.thing for line in lines if line.outcome == "completed")
    assert set(done.values()) == {1}
    assert set(done) == {f"task/{step.task}" for step in plan()}
    lost = [
        line for line in lines if ("task:reclaimed", facts["killed"]["agent"]) in events_of(line)
    ]
    assert f"task/{TRAP}" in [line.thing for line in lost]
    assert facts["outcome"] == "done"
    assert all(facts["promises"].values())
    assert facts["tasks"] == facts["completed"] == sum(facts["done_by"].values()) == 60
    assert facts["killed"]["task"] == TRAP
    assert facts["moved_on"]["agent"] in set(agent_names(4)) - {facts["killed"]["agent"]}
    assert facts["moved_on"]["attempt"] >= 2
    assert facts["moved_on"]["token"] > facts["killed"]["token"]
    assert 0.3 < facts["moved_on"]["seconds"] <= facts["moved_on"]["slots_seconds"]
    assert (facts["late_done"], facts["merges"]) == ("fenced", 14)
    check_messages(facts, lines)
    assert 2 <= facts["slots"]["most_at_once"] <= facts["slots"]["capacity"] == 3
    steps = [entry["text"] for entry in facts["story"]]
    assert steps[:2] == ["published, with the whole plan", "claimed"]
    assert any("gone; back in the queue" in entry["text"] for entry in facts["story"])


def check_messages(facts: dict[str, Any], lines: tuple[RecordLine, ...]) -> None:
    """Count in the record who received, answered and left because of a message.

    On a machine that stalls, an agent may do the first task twice, and send its messages twice.
    """
    by_verb = {verb: [line for line in lines if line.verb == verb] for verb in VERBS}
    answer = by_verb["query.reply"][0]
    asker = next(line.agent for line in by_verb["query.ask"] if line.thing == answer.thing)
    assert facts["alert"]["agent"] == by_verb["message.alert"][0].agent
    assert (facts["query"]["agent"], facts["query"]["answered_by"]) == (asker, answer.agent)
    assert asker != answer.agent
    assert facts["query"]["answer"] == platform.python_version()
    assert 3 <= facts["alert"]["heard_by"] <= 4
    done = next(each.agent for each in lines if (each.thing, each.outcome) == DEPLOYED)
    stops = by_verb["message.stop"]
    assert {line.agent for line in stops} == set(facts["stop"]["by"]) == {done, "demo"}
    assert 1 <= facts["stop"]["went"] <= facts["stop"]["asked"] == len(stops)


@pytest.mark.proof_on("redis")
def test_runs_where_a_given_store_is_and_touches_nothing_there(
    start: Start, tmp_path: Path, url: str
) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("mine")
    face = "text" if url.endswith(".db") else "json"
    status, out, errors = finish(start(store=url, face=face, workers=2))
    assert (status, errors) == (0, "")
    if face == "text":
        lines = out.splitlines()
        assert lines[0] == "2 agents do 60 tasks and share 3 slots and a lock; one is killed."
        assert "\x1b" not in out
        assert max(map(len, lines)) < 80
        firsts = [line.split()[0] for line in lines if line.startswith("  ") and line.strip()]
        assert {"done", "by", "slots", "merges", "killed", "its", "late", "record"} < set(firsts)
        assert {"alert", "query", "stop"} < set(firsts)
    else:
        assert all(json.loads(out)["promises"].values())
    with interlock.connect(url, agent="ada") as fleet:
        assert (fleet.locks.list(), fleet.semaphores.list()) == ((), ())
        assert isinstance(fleet.tasks.next(), Claimed)
        assert {line.agent for line in fleet.record.log(limit=1000)} == {"ada"}
    assert left_behind(tmp_path) == []
    assert list(tmp_path.glob("interlock-demo-*")) == []


def test_its_own_store_is_gone_afterwards(url: str) -> None:
    with demo.own_store(url) as own, interlock.connect(own, agent="ada") as fleet:
        fleet.tasks.publish("t")
        fleet.locks.acquire("merge")
    with interlock.connect(own if "://" in own else url) as fleet:
        assert (fleet.locks.list(), fleet.record.log()) == ((), ())
    assert "://" in own or not Path(own).parent.exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_leaves_nothing_behind_when_interrupted(
    start: Start, tmp_path: Path, number: int, expected: int
) -> None:
    process = start(face="text")
    read_until(process, BEGUN)
    assert left_behind(tmp_path) != []
    process.send_signal(number)
    status, _, errors = finish(process)
    assert status == expected
    assert "Traceback" not in errors
    assert left_behind(tmp_path) == []


def test_leaves_nothing_on_a_server_when_interrupted(
    start: Start, redis_url: str, redis_server: RedisServer
) -> None:
    process = start(store=redis_url, face="text")
    read_until(process, "kill -9")
    assert redis_server.command("KEYS", "{demo-*") != []
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert redis_server.command("KEYS", "{demo-*") == []


def test_redraws_a_table_on_a_terminal_and_gives_the_cursor_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    process = start(face="text", out=theirs)
    os.close(theirs)
    shown = ""
    while "\x1b[1mbuild/" not in shown or shown.count("agent ") < 3:
        shown += os.read(ours, 65536).decode()
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    shown += os.read(ours, 65536).decode()
    os.close(ours)
    assert shown.index("\x1b[?25l") < shown.index("\x1b[?25h")
    assert "\x1b[32;1m█" in shown
    plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", shown)
    assert max(map(len, plain.splitlines())) <= 80


def test_workers_end_when_the_demo_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(face="text")
    read_until(process, BEGUN)
    handles = [os.pidfd_open(pid) for pid in workers_of(process)]
    assert len(handles) == 3
    process.kill()
    for handle in handles:
        assert _ended(handle)


def test_a_worker_that_fails_ends_the_demo_with_one_clear_line(
    start: Start, tmp_path: Path
) -> None:
    process = start(face="text")
    read_until(process, BEGUN)
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
    with pytest.raises(interlock.BadInput, match=r"no folder can be made in /no: .*name another"):
        run_demo("/no/store.db")
    status, out, errors = finish(start(face="text", workers=1))
    assert (status, out) == (2, "")
    assert errors == "interlock: the demo needs two workers or more\n"


def test_the_store_is_no_word_that_everybody_can_see(start: Start, tmp_path: Path) -> None:
    """A URL may hold a password; the words of a process are open to all."""
    (tmp_path / "secret").mkdir()
    process = start(store=str(tmp_path / "secret" / "store.db"), face="text")
    read_until(process, BEGUN)
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
    ledger = Ledger(str(tmp_path / "merged"))
    assert ledger.lines() == []
    assert ledger.write(1, token=5, task="merge/a")
    assert ledger.write(2, token=7, task="merge/b")
    assert not ledger.write(2, token=5, task="merge/c")
    assert ledger.lines() == [LedgerLine(1, 5, "merge/a"), LedgerLine(2, 7, "merge/b")]


def test_the_plan_can_be_done_whoever_dies() -> None:
    steps = plan()
    before: set[str] = set()
    for step in steps:
        assert set(step.needs) <= before
        before.add(step.task)
    assert len(before) == len(steps) == 60
    assert [step.task for step in steps if step.work.trap] == [TRAP]
    for workers in range(2, 12):
        able = Counter(each for number in range(workers) for each in abilities(number))
        assert min(able[COMPILER], able[DEPLOY]) >= 2


def test_a_run_that_breaks_a_promise_says_so() -> None:
    steps = plan()
    can = {"ada": (COMPILER, DEPLOY), "bob": (COMPILER, DEPLOY), "dan": ()}
    merges = [step.task for step in steps if step.work.stage == "merge"]
    good = [LedgerLine(number, number, task) for number, task in enumerate(merges, 1)]
    seen = Observations(
        alert_delays={"ada": 0.001, "dan": 0.002},
        answer="3.14",
        answer_delay=0.01,
        stop_reasons={"ada": "dan asked: enough"},
        builds=[Build("bob", 2, began=0.9), Build("ada", 1, began=1.0, done=1.4)],
        victim="bob",
        killed_at=1.5,
        successor="ada",
        attempt=2,
        task_moved=1.1,
        slots_moved=1.2,
        late_done="fenced",
    )
    beside = [*seen.builds, Build("ada", 2, began=1.1, done=1.2)]
    cut_short = [Build("bob", 3, began=0.1), Build("ada", 3, began=0.2, done=0.8), *seen.builds]

    def outcome(
        lines: list[RecordLine] | None = None,
        writes: list[LedgerLine] = good,
        verdict: str = "ok",
        post: list[RecordLine] | None = None,
        **wrong: object,
    ) -> list[str]:
        facts = gather(
            replaced(seen, wrong),
            writes,
            (*(run() if lines is None else lines), *(letters() if post is None else post)),
            steps,
            can=can,
            ttl=1.0,
            seconds=9.0,
            verdicts={"integrity": verdict, "truncation": "unproven"},
        )
        broken = [name for name, kept in facts.promises.items() if not kept]
        assert facts.outcome == ("failed" if broken else "done")
        assert ("BROKEN" in dict(result_lines(facts))) == bool(broken)
        assert dict(result_lines(facts))["verified"][0][0] == f"integrity {verdict}"
        return broken

    by_dan = [replace(line, events=(Event("task:claimed", "dan"),)) for line in run()[-2:-1]]
    assert outcome() == []
    assert outcome([*run(), run()[-1]]) == ["all_done_and_none_twice"]
    assert "all_done_and_none_twice" in outcome(run()[:-1])
    assert outcome(renumbered(run()[2:4] + run()[:2] + run()[4:])) == ["needs_came_first"]
    assert outcome([*run()[:-2], *by_dan, run()[-1]]) == ["only_by_those_who_can"]
    assert outcome([line for line in run() if line.outcome != "reclaimed"]) == ["attempt_counted"]
    assert outcome(attempt=1) == ["attempt_counted"]
    assert outcome(attempt=3) == ["attempt_counted"]
    assert outcome(renumbered([entry(TRAP, "failed", "dan"), *run()]), attempt=3) == []
    assert outcome(task_moved=60.0) == ["moved_on_in_time"]
    assert outcome(slots_moved=60.0) == ["moved_on_in_time"]
    assert outcome(late_done="completed") == ["late_done_refused"]
    assert outcome(builds=beside) == ["never_above_the_capacity"]
    assert outcome(builds=cut_short) == []
    assert outcome(writes=good[:-1]) == ["one_merge_at_a_time"]
    assert outcome(writes=[*good[:-1], replace(good[-1], count=1)]) == ["one_merge_at_a_time"]
    assert outcome(writes=[*good[:-1], replace(good[-1], token=1)]) == ["one_merge_at_a_time"]
    assert outcome(alert_delays={"ada": 0.001}) == ["alert_heard_by_all"]
    assert outcome(post=letters()[:2] + letters()[3:]) == ["alert_heard_by_all"]
    assert outcome(post=letters()[:4] + letters()[5:]) == ["question_answered"]
    assert outcome(post=letters()[:-1]) == ["went_when_asked"]
    assert outcome(stop_reasons={"ada": "the demo is over"}) == ["went_when_asked"]
    assert outcome(answer="") == ["question_answered"]
    assert outcome(verdict="bad") == ["record_not_refuted"]
    assert outcome(verdict="unproven") == []


def run() -> list[RecordLine]:
    """The record of a good run: ada does everything, after bob was lost in the trap."""
    found: list[RecordLine] = []
    for step in plan():
        if step.task == TRAP:
            found += [entry(step.task, "claimed", "bob"), entry(step.task, "reclaimed", "bob")]
        found += [entry(step.task, "claimed", "ada"), entry(step.task, "completed", "ada")]
    return renumbered(found)


def letters() -> list[RecordLine]:
    """The messages of a good run: an alert that all received, a question, and a stop for ada."""
    return [
        letter("message.alert", "ada", "sent", "msg_1"),
        letter("message.ack", "ada", "received", "msg_1"),
        letter("message.ack", "dan", "received", "msg_1"),
        replace(letter("query.ask", "ada"), thing="query/qry_1"),
        replace(letter("query.reply", "dan"), thing="query/qry_1"),
        letter("message.stop", "dan", "sent", "msg_2"),
        letter("message.ack", "ada", "received", "msg_2"),
    ]


def letter(verb: str, agent: str, word: str = "", message: str = "") -> RecordLine:
    events = (Event(f"message:{word}", agent, f"message/{message}"),) if word else ()
    return RecordLine(revision=0, hash="", verb=verb, agent=agent, events=events)


def entry(task: str, word: str, agent: str) -> RecordLine:
    events = (Event(f"task:{word}", agent),)
    thing = f"task/{task}"
    return RecordLine(revision=0, hash="", agent=agent, outcome=word, thing=thing, events=events)


def renumbered(lines: list[RecordLine]) -> list[RecordLine]:
    return [replace(line, revision=number) for line, number in zip(lines, count(1), strict=False)]


def replaced(seen: Observations, wrong: dict[str, object]) -> Observations:
    return dataclasses.replace(seen, **wrong)  # type: ignore[arg-type]


def events_of(line: RecordLine) -> list[tuple[str, str]]:
    return [(event.name, event.agent) for event in line.events]


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


@pytest.mark.parametrize(
    ("seconds", "wanted", "expected"),
    [(0.001, 2.0, 2.0), (0.5, 2.0, 24), (9, 2.0, 30), (9, 60, 60)],
)
def test_sessions_last_for_the_commits_of_all_workers(
    seconds: float,
    wanted: float,
    expected: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is slow now must not end the sessions of workers that live."""
    now = [0.0]
    monkeypatch.setattr("interlock.demo.time.monotonic", lambda: now[0])
    with interlock.connect(str(tmp_path / "demo.db"), "demo", join=False) as fleet:
        acquire = fleet.locks.acquire

        def slow(name: str) -> object:
            now[0] += seconds
            return acquire(name)

        monkeypatch.setattr(fleet.locks, "acquire", slow)
        assert lasting_ttl(fleet, wanted, workers=8) == expected
