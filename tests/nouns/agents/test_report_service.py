from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.faces.shell import until

import interlock
from interlock import aio
from interlock.core import keys
from interlock.core.entry import decode
from interlock.errors import BadInput, StoreAway
from interlock.nouns.agents.report_rules import PACES, Reported, ReportUpdate, Unreported
from interlock.nouns.agents.report_service import (
    CALM,
    paces_from,
    state_without_work,
)
from interlock.nouns.agents.session_rules import Agent, SessionLapsed
from interlock.nouns.agents.views import session_overview
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.settings import Settings
from interlock.store import Log
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


def shown(client: Client) -> Agent:
    (found,) = client.run(client.agents.show("ada"))
    return found


def verbs(stage: Testbed) -> list[str]:
    ref = Log()
    return [decode(item.value).verb for item in stage.store.read(ref).ranges[ref]]


def test_what_a_session_says_is_seen_beside_it(stage: Testbed, ada: Client) -> None:
    assert (shown(ada).status, shown(ada).heard) == ("", None)
    outcome = ada.run(ada.agents.status("busy", can=["rust", "gpu"], doing="task/t1", note="half"))
    assert isinstance(outcome, Reported)
    assert (outcome.status, outcome.can, outcome.pace) == ("busy", ("rust", "gpu"), 30.0)
    found = shown(ada)
    assert (found.state, found.status, found.doing) == ("alive", "busy", "task/t1")
    assert (found.can, found.note) == (("rust", "gpu"), "half")
    assert found.heard == stage.clock.wall()
    assert ada.run(ada.agents.status()) == outcome
    assert audit(stage.store) == []


def test_somebody_who_changes_all_the_time_is_heard_of_now_and_then(
    stage: Testbed, ada: Client
) -> None:
    pulse = ada.context.pulse
    pulse.be("busy", "task/t1", can=["rust"], calmly=True)
    assert pulse.wait() == 0.0
    ada.run(ada.context.keeper.run_due())
    for number in range(2, 9):
        pulse.be("busy", f"task/t{number}", can=["rust"], calmly=True)
        assert pulse.wait() == CALM
    stage.clock.advance(CALM)
    ada.run(ada.context.keeper.run_due())
    assert (shown(ada).doing, shown(ada).can) == ("task/t8", ("rust",))
    assert verbs(stage).count("agent.status") == 2


def test_a_session_that_said_nothing_has_nothing_to_show(ada: Client) -> None:
    assert ada.run(ada.agents.status()) == Unreported(session=ada.session)


def test_a_heartbeat_is_seen_and_not_recorded(stage: Testbed, ada: Client) -> None:
    ada.run(ada.agents.status("busy"))
    before = verbs(stage)
    stage.clock.advance(29.0)
    ada.run(ada.agents.beat())
    assert shown(ada).heard == stage.clock.wall() - 29.0
    assert ada.context.pulse.wait() == 1.0
    stage.clock.advance(1.0)
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).heard == stage.clock.wall()
    assert verbs(stage) == before
    assert audit(stage.store) == [], "a heartbeat is no tampering"


@pytest.mark.parametrize("state", ["busy", "waiting", "idle"])
def test_the_keeper_beats_at_the_pace_of_the_state(stage: Testbed, state: str) -> None:
    ada = stage.client("ada", ttl=3600.0)
    ada.context.pulse.be(state)  # type: ignore[arg-type]
    assert ada.context.keeper.wait() == 0.0, "said at once"
    ada.run(ada.context.keeper.run_due())
    assert ada.context.keeper.wait() == {**PACES}[state]  # type: ignore[index]


def test_a_pulse_says_what_is_new_at_once_and_the_last_of_it(stage: Testbed, ada: Client) -> None:
    woken: list[str] = []
    ada.context.on_due = lambda: woken.append("ada")
    for number in range(3):
        ada.context.pulse.be("busy", doing=f"task/t{number}")
    assert woken == ["ada"] * 3
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).doing == "task/t2"
    assert verbs(stage).count("agent.status") == 1


def test_what_is_said_while_a_report_is_written_is_written_next(stage: Testbed) -> None:
    ada = stage.remote("ada")
    ada.context.pulse.be("busy")
    turn = Stepper(ada.context.keeper.run_due(), ada.store, stage.clock)
    turn.go()
    ada.context.pulse.be("idle")
    turn.run()
    assert ada.context.keeper.wait() == 0.0
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == "idle"


def test_a_pulse_renews_no_lease_out_of_turn(stage: Testbed, ada: Client) -> None:
    stage.clock.advance(5.0)
    ada.context.pulse.be("idle")
    ada.run(ada.context.keeper.run_due())
    live = stage.store.read(keys.live(ada.session), times=True)[keys.live(ada.session)]
    assert live is not None
    assert live.expires_in == 25.0


def test_what_could_not_be_said_is_said_later(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_work: object) -> None:
        raise StoreAway("cut off")

    ada = stage.client("ada", ttl=3600.0)
    ada.context.pulse.be("busy")
    with monkeypatch.context() as patched:
        patched.setattr(stage.store, "transact", away)
        ada.run(ada.context.keeper.run_due())
    assert "cut off" in ada.context.keeper.trouble
    assert 0 < ada.context.keeper.wait() <= 1.0, "soon, but not at once"
    stage.clock.advance(1.0)
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == "busy"
    assert not ada.context.keeper.trouble


def test_a_client_that_never_reports_pays_nothing(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.context.keeper.beat())
    ada.run(ada.agents.leave())
    assert ada.context.keeper.jobs == ()
    ref = Log()
    entries = [decode(item.value) for item in stage.store.read(ref).ranges[ref]]
    assert not [key for entry in entries for key in (*entry.put, *entry.deleted) if "report" in key]


def test_a_report_goes_with_its_session_in_one_commit(stage: Testbed, ada: Client) -> None:
    ada.run(ada.agents.status("busy"))
    before = stage.store.read().revision
    ada.run(ada.agents.leave())
    gone = stage.store.read(keys.report(ada.session), keys.report_live(ada.session))
    assert set(gone.items.values()) == {None}
    assert gone.revision == before + 1
    assert audit(stage.store) == []


def test_a_session_that_left_has_nothing_to_say_any_more(stage: Testbed, ada: Client) -> None:
    ada.context.pulse.be("busy")
    ada.run(ada.agents.leave())
    ada.run(ada.context.keeper.run_due())
    assert ada.context.pulse.wait() == float("inf")
    assert isinstance(ada.run(ada.agents.status("idle")), SessionLapsed)
    assert stage.store.read(keys.report(ada.session))[keys.report(ada.session)] is None


def test_leaving_while_a_report_is_under_way_leaves_none_behind(stage: Testbed) -> None:
    ada = stage.remote("ada")
    saying = Stepper(ada.agents.status("busy"), ada.store, stage.clock)
    saying.go()
    ada.run(ada.agents.leave())
    assert isinstance(saying.run().result(), SessionLapsed)
    assert stage.store.read(keys.report(ada.session))[keys.report(ada.session)] is None


def test_a_report_that_comes_while_its_session_leaves_goes_with_it(stage: Testbed) -> None:
    ada = stage.remote("ada")
    leaving = Stepper(ada.agents.leave(), ada.store, stage.clock)
    leaving.go()
    leaving.go()
    ada.run(ada.agents.status("busy"))
    leaving.run()
    assert stage.store.read(keys.report(ada.session))[keys.report(ada.session)] is None
    assert audit(stage.store) == []


def test_maintenance_clears_the_report_with_its_session(stage: Testbed) -> None:
    ada, keeper = stage.client("ada", ttl=1.0), stage.client("keeper", ttl=None)
    ada.run(ada.agents.status("busy"))
    stage.clock.advance(2.0)
    keeper.run(keeper.fleet.maintain())
    gone = stage.store.read(keys.report(ada.session), keys.report_live(ada.session))
    assert set(gone.items.values()) == {None}
    assert audit(stage.store) == []


def test_joining_with_abilities_is_one_commit(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    before = stage.store.read().revision
    ada.run(ada.agents.join(can=["rust", "gpu", "rust"]))
    assert stage.store.read().revision == before + 1
    assert (shown(ada).status, shown(ada).can) == ("idle", ("rust", "gpu"))
    assert audit(stage.store) == []


def test_no_background_job_keeps_the_pace_of_a_shell(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    joined = ada.run(ada.agents.join())
    ada.run(ada.context.resume(joined.session))
    outcome = ada.run(ada.agents.status("busy"))
    assert isinstance(outcome, Reported)
    assert outcome.pace == PACES["busy"]
    assert ada.context.keeper.jobs == ()


def test_reporting_needs_a_session(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    with pytest.raises(BadInput, match="agent join"):
        ada.run(ada.agents.status("busy"))
    with pytest.raises(BadInput, match="join=True"):
        _ = ada.context.pulse


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"state": "a sleep"}, "idle, waiting, busy or a word of your own"),
        ({"state": "bussy"}, "did you mean busy"),
        ({"can": "rust"}, "a list of names"),
        ({"can": [""]}, "the ability is empty"),
        ({"can": [f"a{number}" for number in range(65)]}, "64 are allowed"),
        ({"doing": "a\tthing"}, "cannot be seen"),
        ({"note": "a" * 1025}, "1024 are allowed"),
        ({"note": "\ud800"}, "UTF-8"),
        ({"note": 7}, "must be text"),
    ],
)
def test_words_out_of_bounds_are_refused(
    stage: Testbed, words: dict[str, object], hint: str
) -> None:
    ada = stage.client("ada")
    with pytest.raises(BadInput, match=hint):
        ada.run(ada.agents.status(**words))  # type: ignore[arg-type]


def test_who_is_here_is_known_by_what_they_can_do(stage: Testbed) -> None:
    ada, bob, dead = stage.client("ada"), stage.client("bob"), stage.client("dead", ttl=1.0)
    stage.client("silent")
    ada.run(ada.agents.status(can=["gpu", "rust"]))
    bob.run(bob.agents.status(can=[]))
    dead.run(dead.agents.status(can=["gpu"]))
    stage.clock.advance(2.0)
    assert ada.run(session_overview()).able == {
        ada.session: {"gpu", "rust"},
        bob.session: frozenset(),
    }


def test_the_settings_say_another_pace(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_AGENT_BUSY", "5s")
    ada = stage.client("ada")
    outcome = ada.run(ada.agents.status("busy"))
    assert isinstance(outcome, Reported)
    assert outcome.pace == 5.0
    monkeypatch.setenv("INTERLOCK_AGENT_BUSY", "10ms")
    with pytest.raises(BadInput, match="too short"):
        ada.run(ada.agents.status("busy"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("agent = 7", "such as .agent"),
        ("[agent]\nbusi = '5s'", "does not know 'busi'; it takes busy, waiting, idle, log_bytes"),
        ("[agent]\nidle = 'soon'", "agent.: the idle 'soon'"),
        ("[agent]\nidle = 0.5", "too short; give 1s or more"),
        ("[agent]\nlog_bytes = 'much'", "not like 512KB"),
        ("[agent]\nlog_age = true", "must be a number"),
    ],
)
def test_settings_that_mean_nothing_say_where(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(BadInput, match=hint) as refused:
        Settings(str(tmp_path)).agent()
    assert "config.toml" in str(refused.value)


def test_settings_for_agents_are_read_from_the_file(tmp_path: Path) -> None:
    text = "[agent]\nbusy = 10\nidle = '2m'\nlog_bytes = '1MB'\nlog_age = '1d'\n"
    (tmp_path / "config.toml").write_text(text)
    found = Settings(str(tmp_path)).agent()
    assert found == {"busy": 10, "idle": 120, "log_bytes": 1 << 20, "log_age": 86400}
    assert paces_from(Settings(str(tmp_path))) == {"busy": 10, "waiting": 60, "idle": 120}


def test_the_same_on_every_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_AGENT_BUSY", "1s")
    with interlock.connect(url, agent="ada") as fleet:
        fleet.agents.status(can=["gpu"])
        fleet.pulse.be("busy", doing="task/t1")
        found = until(lambda: [a for a in fleet.agents.list() if a.status == "busy"], "a report")[0]
        assert (found.can, found.doing) == (("gpu",), "task/t1")
        first = found.heard or 0
        until(lambda: (fleet.agents.list()[0].heard or 0) > first + 0.5, "a heartbeat")
        assert fleet.record.verify().findings == ()
    with interlock.connect(url) as other:
        assert other.agents.list() == ()
        assert other.record.verify().findings == ()


def test_the_same_in_an_event_loop(tmp_path: Path) -> None:
    async def report() -> tuple[Agent, ...]:
        async with await aio.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
            await fleet.agents.status("waiting", can=["gpu"])
            last = (await fleet.record.log(limit=1))[0].revision
            async with fleet.record.follow(last) as feed:
                threading.Thread(target=fleet.pulse.be, args=("busy", "task/t1")).start()
                await feed.take()
            return await fleet.agents.list()

    (found,) = asyncio.run(asyncio.wait_for(report(), 20))
    assert (found.status, found.doing, found.can) == ("busy", "task/t1", ("gpu",))


def test_a_worker_that_finds_no_task_waits_while_there_is_work(ada: Client) -> None:
    """The state is looked up whenever it is said, and the pace follows it."""
    ada.context.pulse.be("idle", can=["rust"], look=state_without_work)
    ada.run(ada.context.keeper.run_due())
    assert (shown(ada).status, shown(ada).can) == ("idle", ("rust",))
    assert ada.context.pulse.wait() == 300.0
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    ada.context.pulse.be("idle", can=["rust"], look=state_without_work)
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == "waiting"
    assert ada.context.pulse.wait() == 60.0
    ada.run(ada.tasks.cancel("t1"))
    ada.run(ada.context.pulse.run())
    assert shown(ada).status == "idle"


def test_a_wait_for_work_that_lasts_is_reported_and_then_what_was_before(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    ada.run(ada.agents.status("busy", can=["rust"], doing="task/t0", note="half"))
    waiting = ada.start(ada.tasks.next(wait=600))
    stage.clock.advance(CALM)
    ada.run(ada.context.keeper.run_due())
    found = shown(ada)
    assert (found.status, found.doing, found.can) == ("waiting", "", ("rust",))
    assert ada.context.pulse.wait() == 60.0
    ada.run(ada.tasks.publish("t2"))
    assert isinstance(waiting.run().result(), Claimed)
    ada.run(ada.context.keeper.run_due())
    assert (shown(ada).status, shown(ada).doing, shown(ada).note) == ("busy", "task/t0", "half")
    assert ada.context.pulse.wait() == 30.0


def test_a_session_that_never_reported_is_idle_after_its_wait(stage: Testbed, ada: Client) -> None:
    waits = [ada.start(ada.tasks.next(wait=600)) for _ in range(2)]
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    stage.clock.advance(CALM)
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == "waiting"
    for task, each in zip(("t2", "t3"), waits, strict=True):
        assert shown(ada).status == "waiting", "the other wait goes on"
        ada.run(ada.tasks.publish(task))
        assert isinstance(each.run().result(), Claimed)
        ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == "idle"


def test_a_wait_for_work_that_is_short_writes_no_report(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("t1"))
    assert isinstance(ada.run(ada.tasks.next(wait=600)), Claimed)
    assert "pulse" not in ada.context.__dict__, "it did not wait at all"
    waiting = ada.start(ada.tasks.next(wait=600))
    stage.clock.advance(CALM / 2)
    ada.run(ada.tasks.publish("t2"))
    waiting.run()
    stage.clock.advance(CALM)
    ada.run(ada.context.keeper.run_due())
    assert shown(ada).status == ""
    assert "agent.status" not in verbs(stage)


def test_what_is_said_during_a_wait_for_work_stays(stage: Testbed, ada: Client) -> None:
    waiting = ada.start(ada.tasks.next(wait=600))
    ada.run(ada.agents.status("busy", note="by hand"))
    ada.run(ada.tasks.publish("t1"))
    waiting.run()
    stage.clock.advance(CALM)
    ada.run(ada.context.keeper.run_due())
    assert (shown(ada).status, shown(ada).note) == ("busy", "by hand")


def test_a_pulse_goes_on_for_the_session_that_followed_while_it_spoke(
    stage: Testbed, ada: Client
) -> None:
    ada.context.pulse.be("busy", "task/t1")
    ada.run(ada.context.pulse.run())
    old, identity = ada.session, ada.context.identity
    stage.clock.advance(3600.0)
    speaking = Stepper(ada.context.pulse.run(), ada.store, stage.clock)
    ada.run(ada.context.rejoin(identity))
    speaking.run()
    assert ada.session != old
    assert ada.context.pulse.wait() == 0.0, "what was said was for the session that is over"
    ada.run(ada.context.pulse.run())
    found = {each.session: each for each in ada.run(ada.agents.show("ada"))}
    assert (found[ada.session].status, found[ada.session].doing) == ("busy", "task/t1")


def test_a_note_of_its_own_stays_beside_the_state(ada: Client) -> None:
    ada.run(ada.agents.status("busy", doing="task/t1", note="compiling"))
    ada.run(ada.context.pulse.run())
    assert (shown(ada).status, shown(ada).doing, shown(ada).note) == (
        "busy", "task/t1", "compiling",
    )  # fmt: skip


def test_what_two_workers_add_before_one_report_is_written_is_in_it(ada: Client) -> None:
    for ability in ("gpu", "rust"):
        ada.context.pulse.set_update(ReportUpdate(state="idle", also=(ability,)), calmly=True)
    ada.run(ada.context.pulse.run())
    assert shown(ada).can == ("gpu", "rust")
    ada.run(ada.agents.status(can=["go"]))
    ada.context.pulse.set_update(ReportUpdate(state="idle"))
    ada.run(ada.context.pulse.run())
    assert shown(ada).can == ("go",), "what is set replaces them"
