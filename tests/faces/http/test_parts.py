"""Background work of a server: branches that it watches, and the record that it judges."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faces.http.served import Served, served
from tests.faces.shell import PATIENCE, Shell, until
from tests.nouns.merges.repositories import TestRepository

import interlock
from interlock.client import Fleet
from interlock.errors import BadInput, StoreTrouble
from interlock.faces.http import judging
from interlock.faces.http.clients import Clients
from interlock.faces.http.health import healthz
from interlock.faces.http.judging import RecordJudging
from interlock.faces.http.parts import Parts, branch_works, works
from interlock.faces.metrics import metrics_text
from interlock.nouns.fleet.metrics import text_to_metrics
from interlock.nouns.fleet.server_service import ServerPlace, running_servers
from interlock.runtime.verdict import Verdict, kept_verdict
from interlock.steps import drive
from interlock.stores import open_store

RULES = Path(__file__).parents[3] / "monitoring" / "prometheus" / "alerts.yml"


# Branches.


@pytest.fixture
def git(bare: Shell) -> TestRepository:
    """A repository with a store in its folder; ada follows its main."""
    made = TestRepository(bare.folder / "shop", bare=False)
    bare.folder = made.folder
    assert bare.run("init").status == 0
    assert bare.run("subscribe", "main_updated", "--agent", "ada").status == 0
    return made


def moves(shell: Shell) -> list[str]:
    """The commits that ada was told of."""
    found = shell.json("inbox", "--agent", "ada")[1]["messages"]
    return [each["data"]["after"] for each in found]


def held(shell: Shell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("lock", "list")[1]["locks"]
    return found


def part(server: Served, name: str) -> dict[str, Any]:
    parts = server.ask("GET", "/healthz").json["parts"]
    return next(each for each in parts if each["name"] == name)


def test_a_branch_that_moves_is_announced_while_only_the_server_runs(
    bare: Shell, git: TestRepository
) -> None:
    with served(bare, "--watch-branch", "main") as server:
        until(lambda: [each["holder"] for each in held(bare)] == ["branch-watcher"])
        until(lambda: "main" in bare.run("record", "log", "--verb", "branch.watch").out)
        first = git.branch("main", {"one": "1"})
        until(lambda: moves(bare) == [first])
        os.rename(git.folder / ".git", git.folder / "away")
        until(lambda: part(server, "watch main")["state"] == "failing")
        assert "put it back" in part(server, "watch main")["error"]
        os.rename(git.folder / "away", git.folder / ".git")
        second = git.branch("main", {"two": "2"})
        until(lambda: moves(bare) == [first, second])
        assert part(server, "watch main")["restarts"] >= 1
    assert held(bare) == []


def test_a_branch_of_a_remote_has_its_name_in_front(tmp_path: Path) -> None:
    git = TestRepository(tmp_path / "shop", bare=False)
    git.git("remote", "add", "origin", str(tmp_path / "elsewhere"))
    store = open_store(str(tmp_path / "store.db"), create=True)
    clients = Clients(lambda: store)
    works = branch_works(["main", "origin/main", "fix/x"], str(git.folder), clients)
    watched = [work.args[1:3] for work in works.values()]  # type: ignore[attr-defined]
    assert watched == [("main", None), ("main", "origin"), ("fix/x", None)]
    assert list(works) == ["watch main", "watch origin/main", "watch fix/x"]
    with pytest.raises(BadInput, match="in no git repository"):
        branch_works(["main"], str(tmp_path), clients)
    assert branch_works([], str(tmp_path), clients) == {}
    clients.close()


# The record.


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other tests a process of the lowest priority would take long."""
    monkeypatch.setattr(judging, "_LOWEST", 0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "store.db"
    with interlock.connect(made, agent="ada") as fleet:
        for task in ("a", "b", "c"):
            fleet.tasks.publish(task)
    return made


@pytest.fixture
def clients(place: Path) -> Iterator[Clients]:
    made = Clients(lambda: open_store(str(place), create=False))
    yield made
    made.close()


def tamper(place: Path) -> None:
    """Change what an agent did, as a person with an editor for SQLite would."""
    with apsw.Connection(str(place)) as db:
        db.execute("UPDATE log SET value=replace(value, '\"ada\"', '\"eve\"') WHERE revision=2")
        assert db.changes() == 1


def judged(judge: RecordJudging, fleet: Fleet) -> dict[str, float]:
    """The numbers of a scrape after the next verdict."""
    before = drive(kept_verdict(), fleet.store)

    def has_judged() -> bool:
        judge.step(fleet)
        return drive(kept_verdict(), fleet.store) != before

    until(has_judged)
    return values(fleet)


def values(fleet: Fleet) -> dict[str, float]:
    found = text_to_metrics(metrics_text(fleet))
    return {" ".join((each.name, *each.labels.values())): each.value for each in found}


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape reads the store, and each request asks for its health."""
    monkeypatch.setattr("interlock.faces.metrics.SHARED", 0.0)
    monkeypatch.setattr("interlock.faces.http.health.FRESH", -1.0)


@pytest.mark.usefixtures("unshared")
def test_a_server_finds_out_that_its_record_was_changed_and_the_alert_fires(
    place: Path, clients: Clients, tmp_path: Path
) -> None:
    judge, fleet = RecordJudging(str(place), first=0.0, least=0.0), clients.reader()
    assert "interlock_record_intact" not in values(fleet), "no verdict before one was found"
    assert healthz(clients)[0]["record"] is None
    sound = judged(judge, fleet)
    assert sound["interlock_record_intact"] == 1
    assert healthz(clients)[0]["record"]["intact"]
    assert not firing(sound, tmp_path)
    tamper(place)
    broken = judged(judge, fleet)
    assert broken["interlock_record_intact"] == 0
    assert broken["interlock_problems record"] == 1
    assert not healthz(clients)[0]["record"]["intact"]
    assert firing(broken, tmp_path)
    (problem,) = [each for each in fleet.health().problems if each.kind == "record"]
    assert "not intact" in problem.says
    assert "record verify" in problem.remedy


def firing(numbers: dict[str, float], folder: Path) -> bool:
    """Whether promtool says that the alert fires with these numbers."""
    series = [
        ("interlock_record_intact", numbers["interlock_record_intact"]),
        ('interlock_problems{kind="record"}', numbers["interlock_problems record"]),
    ]
    lines = [f"      - {{series: '{name}', values: '{value:g}x5'}}" for name, value in series]
    test = folder / "test.yml"
    test.write_text(
        f"rule_files: [{RULES}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n"
        "    input_series:\n" + "\n".join(lines) + "\n    alert_rule_test:\n"
        "      - {eval_time: 2m, alertname: InterlockRecordBroken, exp_alerts: []}\n"
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(test)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "InterlockRecordBroken" in done.stdout + done.stderr
    return done.returncode != 0


def test_one_of_several_servers_judges_and_all_show_the_verdict(
    place: Path, clients: Clients
) -> None:
    judges = [RecordJudging(str(place), first=0.0) for _ in range(2)]
    parts = Parts(clients, {f"record {n}": judge.run for n, judge in enumerate(judges)})
    parts.start()
    with clients.own() as fleet:
        until(lambda: drive(kept_verdict(), fleet.store) is not None)
    parts.stop()
    parts.join(PATIENCE)
    assert [judge._started > 0 for judge in judges].count(True) == 1
    assert not [each for each in parts.about() if each["error"]]


def test_the_pace_follows_the_cost_and_a_wrong_clock_does_not_stop_it(
    place: Path, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, now = clients.reader(), [1000.0]
    monkeypatch.setattr("interlock.faces.http.judging.time.time", lambda: now[0])
    for took, later, due in (
        (0.1, 299, False), (0.1, 301, True), (60.0, 301, False), (60.0, 6001, True),
        (60.0, -10_000, True),
    ):  # fmt: skip
        monkeypatch.setattr(judging, "kept_verdict", lambda took=took: verdict(1000.0, took))
        now[0] = 1000.0 + later
        assert RecordJudging(str(place))._is_due(fleet) is due, (took, later)


def verdict(at: float, took: float) -> Any:
    yield from ()
    return Verdict(at=at, intact=True, took=took)


def test_a_record_that_cannot_be_judged_is_an_error_and_no_verdict(
    place: Path, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, fleet = RecordJudging(str(place.parent / "gone.db"), first=0.0), clients.reader()

    def ended() -> bool:
        judge.step(fleet)
        return False

    with pytest.raises(StoreTrouble, match="could not be judged") as told:
        until(ended)
    assert "record verify" in str(told.value)
    judge.step(fleet)
    assert judge._child is None, "it is not tried again at once"
    monkeypatch.setattr(judging, "_COMMAND", ("sleep", "60"))
    other, stopped = RecordJudging(str(place), first=0.0), threading.Event()
    thread = threading.Thread(target=other.run, args=(fleet, stopped))
    thread.start()
    until(lambda: other._child is not None)
    child = other._child
    assert child is not None
    stopped.set()
    thread.join(PATIENCE)
    assert child.returncode == -9, "it ends with the server"


def test_the_address_of_a_server_goes_with_it(clients: Clients) -> None:
    place = ServerPlace(url="http://127.0.0.1:7700/", host="laptop", pid=1, agent="maria")
    fleet, stopped = clients.reader(), threading.Event()
    part = threading.Thread(target=works(place)["address"], args=(fleet, stopped))
    part.start()
    until(lambda: drive(running_servers(), fleet.store) == [place])
    stopped.set()
    part.join()
    assert drive(running_servers(), fleet.store) == []
