"""The daily files have every event of the audit once, whatever happens to their writers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.requests.pair import Pair, Swarm

import interlock.aio
from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.errors import BadInput
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AUDIT_KEPT, audit_day
from interlock.nouns.requests.audit_files import AuditFolder, AuditPosition
from interlock.nouns.requests.audit_service import write_audit
from interlock.nouns.requests.housekeeping import after_pass
from interlock.runtime.attempt import DecideOp
from interlock.runtime.housekeeping import Maintained
from interlock.settings import Settings
from interlock.steps import drive
from interlock.stores.memory import MemoryStore

DAY = 86400.0


def written(swarm: Swarm, folder: Path, most: int | None = None) -> out.AuditWritten:
    done = swarm.run(write_audit(swarm.context, str(folder), most))
    assert isinstance(done, out.AuditWritten), done
    return done


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("cross_swarm_audit_*.jsonl"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files(folder) for line in file.read_text().splitlines()]


def requests(folder: Path) -> list[str]:
    return [line["request_id"] for line in lines(folder)]


@pytest.fixture
def north() -> Swarm:
    return Pair().swarm("north")


@pytest.mark.parametrize("link", ["audit", "logs"])
def test_no_link_of_a_work_tree_leads_the_files_out_of_it(
    north: Swarm, tmp_path: Path, link: str
) -> None:
    home, shop = tmp_path / "home", tmp_path / "shop"
    (home / "audit").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", shop], check=True)
    (shop / link).symlink_to(home)
    folder = shop / ("audit" if link == "audit" else "logs/audit")
    with pytest.raises(BadInput, match="leads out of the work tree"):
        written(north, folder)
    assert [each.name for each in home.rglob("*")] == ["audit"]
    (shop / link).unlink()
    (shop / "elsewhere").mkdir()
    (shop / link).symlink_to("elsewhere")
    written(north, folder)
    (tmp_path / "own").symlink_to(home)  # a link of the user, in no work tree
    written(north, tmp_path / "own")


def test_a_day_has_a_file_with_a_line_for_each_event(north: Swarm, tmp_path: Path) -> None:
    sent = [north.sent() for _ in range(3)]
    first_day = audit_day(north.pair.clock.wall())
    north.pair.clock.advance(DAY)
    sent.append(north.sent())
    done = written(north, tmp_path)
    assert (done.lines, done.missed, done.deleted) == (4, False, ())
    assert [file.name for file in files(tmp_path)] == [
        f"cross_swarm_audit_{first_day}.jsonl",
        f"cross_swarm_audit_{audit_day(north.pair.clock.wall())}.jsonl",
    ]
    assert requests(tmp_path) == sent
    assert {line["event_type"] for line in lines(tmp_path)} == {"cross_swarm_request_posted"}
    assert {oct(file.stat().st_mode & 0o777) for file in files(tmp_path)} == {"0o600"}


def test_a_second_pass_adds_only_what_is_new(north: Swarm, tmp_path: Path) -> None:
    first = north.sent()
    assert written(north, tmp_path).lines == 1
    assert written(north, tmp_path).lines == 0
    second = north.sent()
    assert written(north, tmp_path, most=1000).lines == 1
    assert requests(tmp_path) == [first, second]


def test_lines_that_a_killed_pass_left_behind_its_position_are_not_doubled(
    north: Swarm, tmp_path: Path
) -> None:
    sent = [north.sent()]
    written(north, tmp_path)
    position = (tmp_path / ".position").read_bytes()
    sent += [north.sent() for _ in range(5)]
    written(north, tmp_path)
    whole = files(tmp_path)[0].read_bytes()
    # Killed after any byte of the lines, and before the position moved.
    for cut in (len(whole), len(whole) - 1, len(whole) - 40, whole.index(b"\n") + 10):
        files(tmp_path)[0].write_bytes(whole[:cut])
        (tmp_path / ".position").write_bytes(position)
        written(north, tmp_path)
        assert files(tmp_path)[0].read_bytes() == whole
    assert requests(tmp_path) == sent


@pytest.mark.parametrize("damage", ["gone", "rubbish"])
def test_without_its_position_a_folder_is_continued_where_its_files_end(
    north: Swarm, tmp_path: Path, damage: str
) -> None:
    sent = [north.sent() for _ in range(4)]
    written(north, tmp_path)
    if damage == "gone":
        (tmp_path / ".position").unlink()
    else:
        (tmp_path / ".position").write_text('{"revis')
    sent.append(north.sent())
    written(north, tmp_path)
    assert requests(tmp_path) == sent


def test_many_lines_behind_the_position_are_cut_off(north: Swarm, tmp_path: Path) -> None:
    sent = north.sent()
    written(north, tmp_path)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    later = json.dumps(json.loads(whole) | {"revision": 10_000, "request_id": "x" * 200}) + "\n"
    with file.open("a") as appending:
        appending.write(later * 2000)
    written(north, tmp_path)
    assert file.read_bytes() == whole
    assert requests(tmp_path) == [sent]


def test_one_process_writes_at_a_time(north: Swarm, tmp_path: Path) -> None:
    request = north.sent()
    other = AuditFolder(str(tmp_path))
    assert other.begin() == AuditPosition()
    done = north.run(write_audit(north.context, str(tmp_path)))
    assert done == out.AuditBusy(folder=str(tmp_path))
    assert not done
    other.close()
    written(north, tmp_path)
    assert requests(tmp_path) == [request]


def test_files_are_deleted_90_days_after_their_day_and_their_last_change(
    north: Swarm, tmp_path: Path
) -> None:
    north.sent()
    written(north, tmp_path)
    (old,) = files(tmp_path)
    now = north.pair.clock.wall()
    os.utime(old, (now, now))
    north.pair.clock.advance(AUDIT_KEPT - DAY)
    north.sent()
    assert written(north, tmp_path).deleted == ()
    north.pair.clock.advance(2 * DAY)
    north.sent()
    assert written(north, tmp_path).deleted == (old.name,)
    assert not old.exists()
    assert len(files(tmp_path)) == 2


def test_a_line_that_a_wrong_clock_dates_to_long_ago_is_kept(north: Swarm, tmp_path: Path) -> None:
    written(north, tmp_path)
    with AuditFolder(str(tmp_path)) as folder:
        assert folder.begin() is not None
        from interlock.nouns.requests.audit import AuditSubject, audit

        line = audit("swarm_unavailable", AuditSubject(request="req_1"), 0.0)
        folder.append([(0.0, line)], AuditPosition())
    assert [file.name for file in files(tmp_path)] == ["cross_swarm_audit_1970-01-01.jsonl"]
    (file,) = files(tmp_path)
    now = north.pair.clock.wall()
    os.utime(file, (now, now))
    with AuditFolder(str(tmp_path)) as folder:
        assert folder.rotate(now + DAY, AUDIT_KEPT) == []


def test_a_folder_with_the_audit_of_another_record_is_refused(north: Swarm, tmp_path: Path) -> None:
    north.sent()
    written(north, tmp_path)
    before = files(tmp_path)[0].read_bytes()
    other = Pair(seed=1).swarm("north")
    other.sent()
    with pytest.raises(BadInput, match=r"another record.*name another folder"):
        other.run(write_audit(other.context, str(tmp_path)))
    assert files(tmp_path)[0].read_bytes() == before


def test_entries_that_are_gone_before_they_were_copied_are_reported(
    north: Swarm, tmp_path: Path
) -> None:
    first = north.sent()
    written(north, tmp_path)
    north.sent()
    third = north.sent()
    store = north.pair.homes["north"]
    assert isinstance(store, MemoryStore)
    last = north.run(_last(north))
    store.trim(last - 1)
    done = written(north, tmp_path)
    assert done.missed
    assert requests(tmp_path)[0] == first
    assert written(north, tmp_path).missed is False
    assert third


def _last(swarm: Swarm) -> Any:
    from interlock.steps import Read

    snapshot = yield Read(keys.BASE)
    return snapshot.revision


def test_a_folder_that_cannot_be_written_is_a_finding_of_maintain_and_nothing_is_lost(
    north: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("INTERLOCK_REQUEST_AUDIT", str(tmp_path / "file"))
    request = north.sent()
    done = north.run(after_pass(north.context, Maintained()))
    assert "the audit is not written" in done.finding
    assert "name another folder" in done.finding
    monkeypatch.setenv("INTERLOCK_REQUEST_AUDIT", str(tmp_path / "audit"))
    assert north.run(after_pass(north.context, Maintained())).finding == ""
    assert requests(tmp_path / "audit") == [request]


def test_no_folder_is_made_above_the_one_that_is_named(north: Swarm, tmp_path: Path) -> None:
    north.sent()
    with pytest.raises(BadInput, match=r"there is no folder .*/misspelt; make it"):
        written(north, tmp_path / "misspelt" / "audit")
    assert list(tmp_path.iterdir()) == []


def test_the_settings_name_the_folder_for_maintain(tmp_path: Path) -> None:
    assert Settings(str(tmp_path)).audit() == ""
    (tmp_path / "config.toml").write_text('[request]\naudit = "audit"\n')
    assert Settings(str(tmp_path)).audit() == str(tmp_path / "audit")
    (tmp_path / "config.toml").write_text("[request]\naudit = 3\n")
    with pytest.raises(BadInput, match="audit must name a folder"):
        Settings(str(tmp_path)).audit()
    (tmp_path / "config.toml").write_text("[request]\naudits = 'x'\n")
    with pytest.raises(BadInput, match="does not know 'audits'; it takes audit"):
        Settings(str(tmp_path)).audit()


WRITER = """
import sys, interlock
with interlock.connect(sys.argv[1], agent="writer") as fleet:
    while True:
        fleet.requests.write_audit(sys.argv[2])
"""


def test_processes_that_write_at_once_and_are_killed_leave_each_event_once(tmp_path: Path) -> None:
    folder, total = tmp_path / "audit", 0
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada") as fleet:
        for _ in range(3):
            writers = [
                subprocess.Popen([sys.executable, "-c", WRITER, url, str(folder)]) for _ in range(2)
            ]
            try:
                before, begun = _position(folder), total
                while total < begun + 200 or _position(folder) == before:
                    _record_events(fleet, total)
                    total += 20
            finally:
                for writer in writers:
                    writer.kill()
                    writer.wait()
        assert fleet.requests.write_audit(str(folder))
    found = lines(folder)
    assert [line["by"] for line in found] == ["ada"] * total
    assert [int(line["thing"].partition("/")[2]) for line in found] == list(range(total))


def _position(folder: Path) -> bytes:
    place = folder / ".position"
    return place.read_bytes() if place.exists() else b""


def _record_events(fleet: interlock.Fleet, first: int) -> None:
    events = [Event("request:sent", "ada", f"request/{first + n}") for n in range(20)]

    def deciding() -> DecideOp[None]:
        yield ("test/1",)
        puts = (Write("test/1", {"n": first}),)
        return Decision(
            outcome=None, verb="request.send", thing="t", puts=puts, events=tuple(events)
        )

    context = fleet.context
    drive(context.runner.change(deciding, context.identity.actor), fleet.store)


def test_an_event_loop_writes_them_in_a_thread(tmp_path: Path) -> None:
    async def writing() -> None:
        async with await interlock.aio.connect("memory:", agent="ada") as fleet:
            done = await fleet.requests.write_audit(str(tmp_path))
            assert done
            assert len(await fleet.requests.audit()) == 0

    asyncio.run(writing())
    assert (tmp_path / ".position").exists()


def test_details_of_an_unknown_shape_do_not_end_the_copy(north: Swarm, tmp_path: Path) -> None:
    def deciding() -> DecideOp[None]:
        yield ("test/1",)
        event = Event("request:sent", "ada", "request/req_9", details={"to_swarm": ["?"]})
        puts = (Write("test/1", {}),)
        return Decision(outcome=None, verb="request.send", thing="t", puts=puts, events=(event,))

    north.run(north.runner.change(deciding, north.actor))
    written(north, tmp_path)
    (line,) = lines(tmp_path)
    assert (line["request_id"], line["to_swarm"]) == ("req_9", "")
