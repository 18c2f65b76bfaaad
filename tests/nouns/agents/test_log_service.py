from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import until

import interlock
from interlock import aio
from interlock.core import keys
from interlock.core.entry import decode
from interlock.errors import BadInput, StoreAway, StoreClosed
from interlock.nouns.agents import log_rules as core
from interlock.nouns.agents import log_uploader as uploading
from interlock.nouns.agents.log_uploader import Uploader
from interlock.runtime.integrity import unreadable
from interlock.steps import drive_async
from interlock.store import Log, Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


@pytest.fixture
def away(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A store that refuses whatever is to be written, until the patch is undone."""

    def refuse(_work: object) -> None:
        raise StoreAway("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(stage.store, "transact", refuse)
        yield patched


def texts(client: Client, limit: int = 100, after: int = 0) -> list[str]:
    found = client.run(client.agents.logged("ada", limit=limit, after=after))
    return [line.text for line in found]


def test_what_is_uploaded_can_be_read(stage: Testbed, ada: Client) -> None:
    assert texts(ada) == []
    ada.run(ada.agents.log(["one", "two\nthree\n"]))
    ada.run(ada.agents.log(["four"]))
    found = ada.run(ada.agents.logged())
    assert [(line.number, line.text) for line in found] == [
        (1, "one"), (2, "two"), (3, "three"), (4, "four"),
    ]  # fmt: skip
    assert {line.session for line in found} == {ada.session}
    assert (texts(ada, limit=2), texts(ada, after=3)) == (["three", "four"], ["four"])
    assert audit(stage.store) == []


def test_a_batch_is_one_entry_that_has_the_digest_alone(stage: Testbed, ada: Client) -> None:
    before = stage.store.read().revision
    ada.run(ada.agents.log([f"a line of a program {number}" for number in range(500)]))
    assert stage.store.read().revision == before + 1
    ref = Log(last=True, limit=1)
    (item,) = stage.store.read(ref).ranges[ref]
    entry = decode(item.value)
    assert (entry.verb, entry.outcome, entry.thing) == ("agent.log", "uploaded", "agent/ada")
    assert len(item.value) < 1024


def test_much_is_read_back_from_many_chunks(stage: Testbed, ada: Client) -> None:
    lines = [f"{number} ".ljust(1000, "x") for number in range(2000)]
    ada.run(ada.agents.log(lines))
    assert texts(ada, limit=5000) == lines
    assert texts(ada, limit=300) == lines[-300:]
    assert texts(ada, limit=5000, after=1990) == lines[1990:]
    assert audit(stage.store) == []


def test_two_who_upload_at_once_lose_nothing(stage: Testbed) -> None:
    one, two = stage.remote("ada"), stage.remote("ada")
    first = Stepper(one.agents.log(["one"]), one.store, stage.clock)
    first.go()
    two.run(two.agents.log(["two"]))
    first.run()
    assert texts(one) == ["two", "one"]
    assert audit(stage.store) == []


def test_the_oldest_go_as_the_settings_say(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_AGENT_LOG_BYTES", "20KB")
    for number in range(10):
        ada.run(ada.agents.log([f"{number}" * 5000]))
    assert [text[0] for text in texts(ada)] == ["6", "7", "8", "9"]
    assert audit(stage.store) == []


def test_maintenance_lets_old_logs_of_those_go_who_upload_no_more(
    stage: Testbed, ada: Client
) -> None:
    for letter in "abc":
        ada.run(ada.agents.log([letter * 5000]))
    ada.run(ada.fleet.maintain())
    assert len(texts(ada)) == 3
    stage.clock.advance(core.AGE + 1)
    keeper = stage.client("keeper", ttl=None)
    keeper.run(keeper.fleet.maintain())
    assert [text[0] for text in texts(keeper)] == ["c"], "the last chunk stays"
    assert audit(stage.store) == []


def test_a_damaged_index_is_reported_and_other_logs_are_trimmed(
    stage: Testbed, ada: Client
) -> None:
    for letter in "ab":
        ada.run(ada.agents.log([letter * 5000]))
    damaged = [keys.logbook("aaron"), keys.file_book("aaron", "build.log")]
    for key in damaged:
        stage.store.commit(Txn(id=key, puts=(Put(key, b"["),), quiet=True))
    stage.clock.advance(core.AGE + 1)
    keeper = stage.client("keeper", ttl=None)
    keeper.run(keeper.fleet.maintain())
    assert [text[0] for text in texts(keeper)] == ["b"]
    assert [str(each).split(" ")[0] for each in keeper.run(unreadable())] == damaged


def test_a_log_is_kept_under_any_name(stage: Testbed, ada: Client) -> None:
    ada.run(ada.agents.log(["x"], name="swarm/eu"))
    (found,) = ada.run(ada.agents.logged("swarm/eu"))
    assert (found.text, found.session) == ("x", ada.session)
    nobody = Client(stage, "bob", stage.store)
    nobody.context._agent = None
    assert nobody.run(nobody.agents.log(["y"], name="swarm/eu")).lines == 1


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda agents: agents.log("one line"), "a list of lines"),
        (lambda agents: agents.log(["x"], name="a\tb"), "cannot be seen"),
        (lambda agents: agents.logged("ada", limit=0), "limit 0 is out of bounds"),
        (lambda agents: agents.logged("ada", after=-1), "'after' -1 is out of bounds"),
    ],
)
def test_words_out_of_bounds_are_refused(ada: Client, call: object, hint: str) -> None:
    with pytest.raises(BadInput, match=hint):
        ada.run(call(ada.agents))  # type: ignore[operator]


def test_a_log_in_the_making_is_followed_line_by_line(stage: Testbed, ada: Client) -> None:
    ada.run(ada.agents.log(["one"]))
    bob = stage.client("bob")
    trail = bob.agents.trail("ada", 0)
    assert [line.text for line in bob.run(trail.take(None))] == ["one"]
    wait = bob.start(trail.take(None))
    assert not wait.done
    ada.run(ada.agents.log(["two", "three"]))
    assert [line.text for line in wait.run().result()] == ["two", "three"]
    assert bob.run(trail.take(0.0)) == []
    trail.close()


# ---- In batches ------------------------------------------------------------------------------


@pytest.fixture
def near(stage: Testbed) -> Client:
    return stage.client("ada", ttl=3600.0)


@pytest.fixture
def uploader(near: Client) -> Uploader:
    return near.agents.uploader("ada")


def test_lines_gather_for_a_second(stage: Testbed, near: Client, uploader: Uploader) -> None:
    woken: list[int] = []
    near.context.on_due = lambda: woken.append(1)
    assert uploader.wait() == float("inf")
    for number in range(3):
        uploader.add(f"line {number}")
        stage.clock.advance(0.25)
    assert (uploader.wait(), len(woken)) == (0.25, 1)
    stage.clock.advance(0.25)
    before = stage.store.read().revision
    near.run(near.context.keeper.run_due())
    assert texts(near) == ["line 0", "line 1", "line 2"]
    assert stage.store.read().revision == before + 1, "one commit, and no lease out of turn"
    assert uploader.wait() == float("inf")


def test_many_lines_do_not_wait(near: Client, uploader: Uploader) -> None:
    for number in range(uploading.LINES + 1):
        uploader.add(f"line {number}")
    assert uploader.wait() == 0.0
    near.run(uploader.run())
    assert (len(texts(near, limit=9999)), uploader.wait()) == (uploading.LINES, 1.0)


def test_a_batch_is_never_more_than_one_commit(
    stage: Testbed, near: Client, uploader: Uploader
) -> None:
    for _ in range(40):
        uploader.add("\x01" * core.LINE)
    while uploader.wait() < 2:
        before = stage.store.read().revision
        stage.clock.advance(1.0)
        near.run(uploader.run())
        assert stage.store.read().revision == before + 1
    assert len(texts(near)) == 40


def test_what_could_not_be_uploaded_goes_with_the_next_batch(
    stage: Testbed, near: Client, uploader: Uploader, away: pytest.MonkeyPatch
) -> None:
    uploader.add("one")
    with pytest.raises(StoreAway):
        near.run(uploader.run())
    uploader.add("two")
    assert uploader.wait() == 1.0, "not at once again"
    away.undo()
    stage.clock.advance(1.0)
    near.run(near.context.keeper.run_due())
    assert texts(near) == ["one", "two"]


def test_nothing_is_dropped_without_a_word(
    stage: Testbed, near: Client, uploader: Uploader, away: pytest.MonkeyPatch
) -> None:
    for number in range(uploading.ROOM):
        uploader.add(f"line {number}")
    with pytest.raises(StoreAway):
        near.run(uploader.run())
    for number in range(12):
        uploader.add(f"more {number}")
    away.undo()
    near.run(uploader.drain())
    found = texts(near, limit=99999)
    assert found[:2] == ["[12 lines dropped]", "line 12"]
    assert found[-1] == "more 11"
    assert len(found) == uploading.ROOM + 1


def test_long_lines_are_bounded_by_their_bytes(uploader: Uploader) -> None:
    for _ in range(uploading.ROOM_BYTES // core.LINE + 10):
        uploader.add("x" * core.LINE)
    assert uploader.full
    assert len(uploader._lines) * core.LINE <= uploading.ROOM_BYTES


def test_a_batch_that_is_interrupted_is_not_lost(stage: Testbed) -> None:
    ada = stage.remote("ada")
    uploader = ada.agents.uploader("ada")
    uploader.add("one")
    run = Stepper(uploader.run(), ada.store, stage.clock)
    uploader.add("two")
    ada.run(uploader.run())
    assert texts(ada) == [], "another one is at it, and lines stay in order"
    run.interrupt(KeyboardInterrupt())
    ada.run(uploader.drain())
    assert texts(ada) == ["one", "two"]


def test_closing_uploads_what_is_left_and_takes_no_more(near: Client, uploader: Uploader) -> None:
    uploader.add("one")
    near.run(near.context.keeper.finish())
    assert texts(near) == ["one"]
    with pytest.raises(StoreClosed, match="connect again"):
        uploader.add("two")


def test_what_is_left_when_the_store_is_away_is_told(
    near: Client,
    uploader: Uploader,
    away: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uploader.add("one")
    near.run(near.context.keeper.finish())
    assert "1 lines of the log of ada were not uploaded: cut off" in caplog.text


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("a.program.of.a.test")
    found.setLevel(logging.DEBUG)
    found.propagate = False
    yield found
    found.handlers.clear()


def test_a_program_logs_to_the_store_on_every_engine(url: str, logger: logging.Logger) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        handler = fleet.agents.handler(logging.INFO)
        logger.addHandler(handler)
        logger.debug("too little to tell")
        logger.info("begins")
        logger.error("ends", exc_info=ValueError("a reason"))
        until(lambda: len(fleet.agents.logged()) > 2, "a batch")
        for number in range(1200):
            logger.info("line %d", number)
    with interlock.connect(url) as other:
        found = [line.text for line in other.agents.logged("ada", limit=5000)]
        assert (found[0], found[1]) == ("begins", "ends")
        assert found.index("line 0") > found.index("ValueError: a reason")
        assert found[-1] == "line 1199"
        assert other.record.verify().findings == ()


def test_a_handler_whose_client_is_closed_fails_nobody(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        logger.addHandler(fleet.agents.handler())
    logger.info("too late")
    assert "the client is closed" in capsys.readouterr().err


def test_what_is_under_way_when_a_loop_closes_is_uploaded_once(
    tmp_path: Path, logger: logging.Logger
) -> None:
    place = str(tmp_path / "store.db")

    async def work() -> None:
        async with await aio.connect(place, agent="ada") as fleet:
            store: Any = fleet.store
            commit, committed = store.transact_async, asyncio.Event()

            async def answered_late(work: Any) -> Any:
                answer = await commit(work)
                committed.set()
                await asyncio.sleep(0.05)
                return answer

            logger.addHandler(fleet.agents.handler())
            store.transact_async = answered_late
            logger.info("once")
            await committed.wait()

    asyncio.run(asyncio.wait_for(work(), 20))
    with interlock.connect(place) as other:
        assert [line.text for line in other.agents.logged("ada")] == ["once"]


def test_the_same_in_an_event_loop(tmp_path: Path, logger: logging.Logger) -> None:
    place = str(tmp_path / "store.db")

    async def work() -> None:
        async with await aio.connect(place, agent="ada") as fleet:
            await fleet.agents.log(["by hand"])
            logger.addHandler(fleet.agents.handler())
            await asyncio.to_thread(logger.info, "from a thread")
            trail = fleet.agents.trail("ada", 1)
            logger.info("from the loop")
            while not await drive_async(trail.take(None), fleet.store):
                pass
            trail.close()
            logger.info("at the end")

    asyncio.run(asyncio.wait_for(work(), 20))
    with interlock.connect(place) as other:
        found = [line.text for line in other.agents.logged("ada")]
        assert found == ["by hand", "from a thread", "from the loop", "at the end"]
        assert other.store.read(keys.logbook("ada"))[keys.logbook("ada")] is not None


def file_texts(client: Client, file: str = "build.log") -> list[str]:
    found = client.run(client.agents.logged("ada", file=file, limit=100_000))
    return [line.text for line in found]


def chunks(stage: Testbed) -> list[str]:
    page = Range(keys.LOGS)
    return [item.key for item in stage.store.read(page).ranges[page]]


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


def test_a_file_takes_the_place_of_the_last_one_and_no_reader_sees_half_of_it(
    stage: Testbed, ada: Client, build: Path
) -> None:
    build.write_text("old\n" * 3)
    ada.run(ada.agents.log_file(build))
    ada.run(ada.agents.log(["beside it"]))
    build.write_text(("x" * 1000 + "\n") * 600)
    uploading_ = Stepper(ada.agents.log_file(build), ada.store, stage.clock)
    while uploading_.go():
        assert file_texts(ada) in (["old"] * 3, ["x" * 1000] * 600)
    assert uploading_.result() == core.Uploaded(agent="ada", lines=600, file="build.log")
    assert file_texts(ada) == ["x" * 1000] * 600
    assert texts(ada) == ["beside it"]
    (found,) = ada.run(ada.agents.log_files())
    assert (found.name, found.lines) == ("build.log", 600)
    assert keys.file_chunk("ada", "build.log", 1) not in chunks(stage), "the old one is gone"
    assert audit(stage.store) == []


def test_of_a_large_file_the_last_lines_are_kept_and_the_cut_is_said(
    ada: Client, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BYTES", 5 * 8)
    build.write_text("".join(f"line{n}\n" for n in range(10)))
    found = ada.run(ada.agents.log_file(build))
    assert found == core.Uploaded(agent="ada", lines=5, file="build.log", cut=5)
    assert file_texts(ada) == [
        "[5 lines before these were cut]", "line5", "line6", "line7", "line8", "line9",
    ]  # fmt: skip


def test_of_two_uploads_at_once_each_is_whole(stage: Testbed, build: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "build.log"
    build.write_text(("a" * 1000 + "\n") * 600)
    other.write_text(("b" * 1000 + "\n") * 600)
    ada, also = stage.client("ada"), stage.client("ada")
    slow = Stepper(ada.agents.log_file(build), ada.store, stage.clock)
    while len(chunks(stage)) < 2:
        assert slow.go()
    also.run(also.agents.log_file(other))
    assert file_texts(ada) == ["b" * 1000] * 600
    slow.run().result()
    assert file_texts(ada) == ["a" * 1000] * 600


def test_an_old_file_is_forgotten_whole(stage: Testbed, ada: Client, build: Path) -> None:
    build.write_text(("x" * 1000 + "\n") * 3000)
    ada.run(ada.agents.log_file(build))
    assert len(chunks(stage)) > core.ROTATED
    stage.clock.advance(core.AGE - 60)
    late = stage.client("late")
    late.run(late.fleet.maintain())
    assert len(file_texts(late)) == 3000
    stage.clock.advance(120)
    late.run(late.fleet.maintain())
    assert late.run(late.agents.log_files("ada")) == ()
    assert chunks(stage) == []
    page = Range(keys.LOGBOOKS)
    assert not stage.store.read(page).ranges[page]


def test_a_file_is_kept_on_every_store(url: str, build: Path) -> None:
    build.write_text(("x" * 1000 + "\n") * 600)
    with interlock.connect(url, agent="ada") as fleet:
        assert fleet.agents.log_file(build).lines == 600
        build.write_bytes(b"")
        assert fleet.agents.log_file(str(build)).lines == 0
        build.write_bytes(b"new")
        fleet.agents.log_file(build)
        assert [line.text for line in fleet.agents.logged(file="build.log")] == ["new"]
