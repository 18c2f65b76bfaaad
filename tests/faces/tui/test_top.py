"""The screen of ``interlock top``: what it shows, what it does, and that nothing can hang it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import Here, Shell
from tests.faces.terminal import on_terminal
from tests.faces.test_plain import EVIL, edit
from textual.pilot import Pilot

import interlock
from interlock.client import Fleet, begun
from interlock.errors import StoreAway
from interlock.faces.tui import app as screen
from interlock.faces.tui import bars
from interlock.faces.tui import reader as reading
from interlock.faces.tui.app import TopApp
from interlock.faces.tui.screen_data import (
    RESERVED,
    Column,
    TableRow,
    TableView,
    ViewSource,
    action,
    actions,
    offered,
    read_screen,
)
from interlock.faces.tui.spans import Spans, TimelineSpan, bar
from interlock.faces.tui.views import VIEWS
from interlock.faces.tui.views import tasks as task_views
from interlock.faces.tui.views.grants import WaitPicture
from interlock.faces.tui.views.tasks import branches
from interlock.nouns.messages.decision import DecisionView, OptionView
from interlock.nouns.tasks.publish_noun import TaskDrop
from interlock.runtime.operation import fields
from interlock.store import Store
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore

PATIENCE = 30.0
SIZE = (120, 40)


class SharedStore(MemoryStore):
    """Stays open when one of its clients closes, as a server does."""

    def close(self) -> None:
        """Other clients use it."""


@pytest.fixture(autouse=True)
def _reads_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LEAST_PAUSE", 0.02)


@pytest.fixture
def store() -> MemoryStore:
    return SharedStore()


@pytest.fixture
def ada(store: MemoryStore) -> Iterator[Fleet]:
    with interlock.connect(store=store, agent="ada") as fleet:
        yield fleet


def opener(store: Store, agent: str = "maria") -> Callable[[], Fleet]:
    return lambda: begun(store, agent=agent, join=False)


def top(opens: Callable[[], Fleet], view: str = "person") -> TopApp:
    return TopApp(opens, place="store.db", agent="maria", view=view, every=0.2)


def text(app: TopApp) -> str:
    """What stands on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def until(pilot: Pilot[Any], condition: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"no {what}:\n{text(pilot.app)}"  # type: ignore[arg-type]
        await pilot.pause(0.05)


def run(app: TopApp, play: Callable[[Pilot[Any]], Any], size: tuple[int, int] = SIZE) -> None:
    """Play keys on a screen, and see that it and its reader end."""

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await play(pilot)

    asyncio.run(main())
    assert app.reader.join(PATIENCE)


async def shows(pilot: Pilot[Any], app: TopApp, words: str) -> None:
    await until(pilot, lambda: words in text(app), words)


# What it offers


def test_every_action_is_a_declared_operation_and_asks_for_one_of_its_fields() -> None:
    from interlock import registry

    for name, asked in offered().items():
        declared = registry.find(name)
        found = action(name)
        assert found is not None
        assert declared.name == name
        assert not found.asks or asked == {found.asks}, name
        assert found.key not in RESERVED, name
        own = {field.name for field in fields(declared.request)}
        assert "reason" not in own or found.asks == "reason", name


def test_no_row_has_two_actions_under_one_key(ada: Fleet, store: MemoryStore) -> None:
    ada.tasks.publish("build")
    ada.tasks.next()
    ada.locks.acquire("merge")
    with opener(store)() as fleet:
        for view in VIEWS.values():
            for row in read_screen(fleet, view).view.rows:
                keys = [each.key for each in row.actions]
                assert len(set(keys)) == len(keys)


def test_views_and_counts_are_those_of_the_store(ada: Fleet, store: MemoryStore) -> None:
    for number in range(3):
        ada.tasks.publish(f"build.{number}", title="Build it")
    claim = ada.tasks.next()
    assert isinstance(claim, interlock.Claimed)
    ada.tasks.progress(claim.task, 0.5, "compiling", token=claim.token)
    ada.semaphores.acquire("builds", weight=2, capacity=3)
    with opener(store)() as fleet:
        data = read_screen(fleet, VIEWS["tasks"])
        slots = read_screen(fleet, VIEWS["locks"]).view.rows[0]
    assert data.counts["tasks"] == 3
    first = data.view.rows[0]
    assert first.cells[:4] == ("build.0", "running", "Build it", "ada")
    assert "50%" in first.cells[4]
    assert slots.cells[:3] == ("sem/builds", "2 of 3", "ada")


def test_tasks_that_wait_hide_none_that_runs(
    ada: Fleet, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_views, "MOST", 4)
    for number in range(6):
        ada.tasks.publish(f"wait.{number}", requires=["gpu"])
    ada.tasks.publish("zeal", title="Build it")
    assert isinstance(ada.tasks.claim("zeal"), interlock.Claimed)
    with opener(store)() as fleet:
        view = read_screen(fleet, VIEWS["tasks"]).view
    assert [row.key for row in view.rows] == ["zeal", "wait.0", "wait.1", "wait.2"]
    assert view.more
    assert bars.no_row(view).startswith("none of these 4 rows has these words, and there are")


def test_open_queries_and_decisions_are_questions(ada: Fleet, store: MemoryStore) -> None:
    asked = threading.Thread(target=lambda: ada.messages.query("bob", "Deploy now?", hold=True))
    ada.messages.query("bob", "Which?", timeout=0.05, person=True, hold=True)
    with opener(store)() as fleet, interlock.connect(store=store, agent="bob") as bob:
        assert read_screen(fleet, VIEWS["tasks"]).questions == 1
        asked.start()
        while not (found := ada.messages.list(kind="query", open=True).messages):
            assert asked.is_alive()
        data = read_screen(fleet, VIEWS["questions"])
        assert bob.messages.reply(found[0].id, "yes")
        asked.join(PATIENCE)
        assert read_screen(fleet, VIEWS["tasks"]).questions == 1
    assert (data.questions, data.counts["questions"], len(data.view.rows)) == (2, 2, 2)


def test_a_decision_has_its_options(ada: Fleet, store: MemoryStore) -> None:
    options = (OptionView(option="wait", text="an hour"), OptionView(option="delete"))
    with opener(store)() as fleet:
        source = ViewSource(fleet)
        source.decisions = [
            DecisionView(
                decision="dec_1",
                about="",
                agent="ada",
                question="Which?",
                state="open",
                at=1.0,
                options=options,
            )
        ]
        (row,) = VIEWS["questions"](source).rows
    assert row.cells[3] == "wait | delete"
    assert row.detail == "Which?\nwait: an hour\ndelete"


def test_a_budget_that_is_used_up_needs_a_person(ada: Fleet, store: MemoryStore) -> None:
    ada.budgets.set("agent/ada", tokens=10)
    ada.budgets.count(output=20)
    with opener(store)() as fleet:
        (row,) = read_screen(fleet, VIEWS["person"]).view.rows
    assert row.cells[1].startswith("budget/agent/ada is used up")
    assert [each.operation for each in row.actions] == ["budget drop"]


def test_an_agent_that_is_paused_says_so_and_can_be_resumed(ada: Fleet, store: MemoryStore) -> None:
    with opener(store)() as fleet:
        (row,) = read_screen(fleet, VIEWS["agents"]).view.rows
        assert (row.cells[1], row.tone) == ("alive", "good")
        fleet.agents.pause("ada", reason="it repeats itself")
        (row,) = read_screen(fleet, VIEWS["agents"]).view.rows
    assert (row.cells[1], row.tone) == ("alive, paused", "warn")
    offers = [each.operation for each in row.actions]
    assert "agent resume" in offers
    assert "agent pause" not in offers


def test_waits_are_followed_in_both_directions_and_a_cycle_is_named() -> None:
    def lock(name: str, holder: str, *waiters: str) -> dict[str, Any]:
        return {"lock": name, "holder": holder, "waiters": list(waiters)}

    chain = {"locks": [lock("db", "ada", "bob"), lock("merge", "bob", "eve")], "semaphores": []}
    assert WaitPicture(chain).around("lock/db").splitlines() == [
        "ada holds lock/db",
        "· bob waits for lock/db, and holds lock/merge",
        "· · eve waits for lock/merge",
    ]
    assert WaitPicture(chain).around("lock/merge").splitlines()[:2] == [
        "bob holds lock/merge, and waits for lock/db",
        "· ada holds lock/db",
    ]
    ring = {"locks": [lock("a", "ada", "bob"), lock("b", "bob", "ada")], "semaphores": []}
    assert "a cycle, so this wait cannot end" in WaitPicture(ring).around("lock/a")


def test_the_tree_puts_each_task_below_what_it_waits_for(ada: Fleet, store: MemoryStore) -> None:
    ada.tasks.publish("alone")
    ada.tasks.publish("design")
    ada.tasks.publish("api", needs=["design"])
    ada.tasks.publish("page", needs=["design"])
    ada.tasks.publish("test", needs=["page", "api"])
    drawn = [f"{lead}{task.task}" for task, lead, _ in branches(ada.tasks.list().tasks)]
    assert drawn == ["design", "├─ api", "│  └─ test", "└─ page", "alone"]
    with opener(store)() as fleet:
        rows = read_screen(fleet, VIEWS["tree"]).view.rows
    assert [row.cells[4] for row in rows] == ["", "", "page", "", ""]
    assert rows[2].thing == "task/test"


def test_a_bar_has_the_names_of_holders_where_they_held() -> None:
    def held(agent: str, begins: float, ends: float | None, kind: Any = "held") -> TimelineSpan:
        return TimelineSpan(thing="lock/db", agent=agent, kind=kind, begins=begins, ends=ends)

    assert bar([held("ada", 10, 50), held("bob", 50, None)], 0, 100, 20) == "··┃ada━━━━┃bob━━━━━━"
    assert bar([held("eve", 30, 60, "waiting")], 0, 100, 20) == "······┆eve┄┄┄·······"
    assert bar([held("long-name", 95, None), held("before", -50, 1)], 0, 100, 20)[0] == "┃"
    assert bar([held("\u6f22", 0, None)], 0, 100, 10) == "┃?━━━━━━━━"


def test_the_timeline_says_who_had_what_and_who_waited(ada: Fleet, store: MemoryStore) -> None:
    with interlock.connect(store=store, agent="bob") as bob:
        ada.locks.acquire("db")
        waiting = threading.Thread(target=lambda: bob.locks.acquire("db", wait=PATIENCE))
        waiting.start()
        while not (found := ada.locks.list())[0].waiters:
            assert found
        ada.locks.release("db")
        waiting.join(PATIENCE)
        app = top(opener(store), "timeline")

        async def play(pilot: Pilot[Any]) -> None:
            await shows(pilot, app, "bob has it")
            await shows(pilot, app, "ada had lock/db for")
            await shows(pilot, app, "10 min ago")
            await pilot.press("z")
            await shows(pilot, app, "60 s ago")

        run(app, play)
        spans = Spans()
        for entry in ada.record.log(limit=100):
            spans.add(entry)
        lanes = spans.lanes(0, time.time())
        assert [each.agent for each in lanes["lock/db", "held"]] == ["ada", "bob"]
        assert [each.how for each in lanes["lock/db", "waiting"]] == ["got it"]


def test_files_merges_schedules_and_budgets_are_rows_with_actions(
    ada: Fleet, store: MemoryStore
) -> None:
    ada.reservations.reserve("src/*.py", reason="parser", repository="shop")
    ada.schedules.add("nightly", every=3600)
    ada.budgets.set("agent/ada", tokens=10)
    ada.budgets.count(input=20)
    app = top(opener(store), "files")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "src/*.py")
        await pilot.press("b", *"late", "enter")
        await shows(pilot, app, "No file is reserved")
        app.action_view("schedules")
        await shows(pilot, app, "every 1 h")
        await pilot.press("p", *"full", "enter")
        await shows(pilot, app, "paused")
        app.action_view("budgets")
        await shows(pilot, app, "used up")

    run(app, play)


# The screen


def test_it_is_live_and_a_person_answers_a_question(ada: Fleet, store: MemoryStore) -> None:
    app = top(opener(store))
    asked = threading.Thread(
        target=lambda: ada.messages.query(
            "bob", "Deploy now?", timeout=0.05, person=True, hold=True
        )
    )

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "Nothing needs a person.")
        asked.start()
        await shows(pilot, app, "Deploy now?")
        await shows(pilot, app, "1 question pending")
        await pilot.press("a")
        await pilot.press(*"yes")
        await pilot.press("enter")
        await shows(pilot, app, "0 questions pending")

    run(app, play)
    asked.join(PATIENCE)
    (decision,) = ada.messages.decisions()
    assert (decision.answer, decision.by) == ("yes", "maria")


def test_a_task_is_cancelled_with_a_reason_and_not_without_one(
    ada: Fleet, store: MemoryStore
) -> None:
    ada.tasks.publish("build")
    app = top(opener(store), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "build")
        await pilot.press("c", "enter")
        await shows(pilot, app, "a reason is recorded")
        await pilot.press("escape")
        assert ada.tasks.show("build").state == "pending"
        await pilot.press("c", *"late", "enter")
        await shows(pilot, app, "cancelled by maria: late")

    run(app, play)
    (entry,) = ada.record.log(verb="task.cancel")
    assert entry.agent == "maria"
    assert ada.tasks.show("build").state == "failed"


def test_a_filter_and_a_capital_letter_act_on_all_rows_that_are_left(
    ada: Fleet, store: MemoryStore
) -> None:
    for name in ("web.1", "web.2", "api.1"):
        ada.tasks.publish(name)
    app = top(opener(store), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "api.1")
        await pilot.press("slash", *"web", "enter")
        await until(pilot, lambda: list(app._rows) == ["web.1", "web.2"], "filter")
        assert "filter 'web': 2 rows" in text(app)
        await pilot.press("D")
        await shows(pilot, app, "task/web.1, task/web.2?")
        await pilot.press(*"old", "enter")
        await shows(pilot, app, "no row has these words")
        await pilot.press("escape")
        await until(pilot, lambda: list(app._rows) == ["api.1"], "all rows")

    run(app, play)
    assert [each.task for each in ada.tasks.list()] == ["api.1"]


def test_a_capital_letter_does_only_what_the_dialog_names(
    ada: Fleet, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key stands for another operation in another row."""
    ada.schedules.add("nightly", every=3600)
    own = TableRow(
        key="1", cells=("s",), actions=actions(action("schedule pause", schedule="nightly"))
    )
    other = TableRow(key="2", cells=("a",), actions=actions(action("agent pause", name="ada")))
    both = TableView(name="person", columns=(Column("what"),), empty="", toned=0, rows=(own, other))
    monkeypatch.setitem(VIEWS, "person", lambda _: both)
    app = top(opener(store))

    async def play(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: len(app._rows) == 2, "rows")
        await pilot.press("P")
        await shows(pilot, app, "interlock schedule pause")
        await pilot.press(*"late", "enter")
        await shows(pilot, app, "you: paused")

    run(app, play)
    assert [entry.verb for entry in ada.record.log(limit=9) if "pause" in entry.verb] == [
        "schedule.pause"
    ]


def test_a_late_why_does_not_replace_the_details_of_another_row(
    ada: Fleet, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.locks.acquire("merge")
    ada.locks.acquire("web")
    answers: list[Callable[[str], object]] = []
    monkeypatch.setattr(screen, "explain", lambda *given: answers.append(given[-1]))
    app = top(opener(store), "locks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "ada holds lock/merge")
        await pilot.press("w", "h", "j")
        await shows(pilot, app, "ada holds lock/web")
        answers.pop()("of a row that was left")
        await pilot.pause()
        assert "ada holds lock/web" in text(app)
        await pilot.press("k", "w", "h")
        for said in ("an old question", "a late answer"):
            answers.pop(1)(said)
        await shows(pilot, app, "a late answer")
        assert "an old question" not in text(app)

    run(app, play)


def test_slots_are_broken_with_the_name_of_their_holder(ada: Fleet, store: MemoryStore) -> None:
    ada.semaphores.acquire("builds", capacity=3)
    with interlock.connect(store=store, agent="bob") as bob:
        bob.semaphores.acquire("builds")
        app = top(opener(store), "locks")

        async def play(pilot: Pilot[Any]) -> None:
            await shows(pilot, app, "sem/builds")
            await pilot.press("b")
            await shows(pilot, app, "Break sem/builds of ada?")
            await pilot.press(*"late", "enter")
            await until(pilot, lambda: app.row and app.row.cells[2] == "bob", "one holder")

        run(app, play)


def test_tasks_of_one_state_are_in_the_order_in_which_they_are_claimed(
    ada: Fleet, store: MemoryStore
) -> None:
    for name, priority in (("later", 9), ("soon", 1), ("usual", 5)):
        ada.tasks.publish(name, priority=priority)
    with opener(store)() as fleet:
        rows = read_screen(fleet, VIEWS["tasks"]).view.rows
    assert [row.key for row in rows] == ["soon", "usual", "later"]
    claim = ada.tasks.next()
    assert isinstance(claim, interlock.Claimed)
    assert claim.task == "soon"


def test_what_an_error_of_the_store_kept_from_being_tried_is_counted(
    ada: Fleet, store: MemoryStore
) -> None:
    for number in range(3):
        ada.tasks.publish(f"t{number}")
    dropped: list[Any] = []

    def opens() -> Fleet:
        fleet = opener(store)()
        real = fleet.act

        def act(request: Any, **options: Any) -> Any:
            if isinstance(request, TaskDrop):
                dropped.append(request)
                if len(dropped) > 1:
                    raise StoreAway("the server does not answer")
            return real(request, **options)

        fleet.act = act  # type: ignore[method-assign]
        return fleet

    app = top(opens, "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: len(app._rows) == 3, "rows")
        await pilot.press("D", *"old", "enter")
        await shows(pilot, app, "you: not tried, since the store failed")
        (notice,) = app._notifications
        assert notice.message == "drop: 1 done, 2 not done: the server does not answer"

    run(app, play)
    assert len(dropped) == 2


def test_why_and_history_of_a_row_are_shown(ada: Fleet, store: MemoryStore) -> None:
    ada.locks.acquire("merge")
    app = top(opener(store), "locks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "lock/merge")
        await pilot.press("w")
        await shows(pilot, app, "held by ada")
        await pilot.press("h")
        await shows(pilot, app, "acquired")

    run(app, play)


def test_every_view_opens_by_its_key_and_says_what_to_do_first(store: MemoryStore) -> None:
    app = top(opener(store))

    async def play(pilot: Pilot[Any]) -> None:
        def is_shown(name: str) -> Callable[[], object]:
            return lambda: app._data and app._data.view.name == name

        for key, name in zip(bars.DIGITS, VIEWS, strict=False):
            await pilot.press(key)
            await until(pilot, is_shown(name), name)
        for name in list(VIEWS)[len(bars.DIGITS) :]:
            await pilot.press("o", *name[0], "enter")
            if app._showing != name:  # another view begins with this letter
                await pilot.press("o", *name[0], "enter")
            await until(pilot, is_shown(name), name)
            assert bars.LABELS[name] in text(app)
        await pilot.press("tab")
        await shows(pilot, app, "Nothing needs a person.")
        await pilot.press("question_mark")
        await shows(pilot, app, "its history, from the record")

    run(app, play)


def test_events_are_in_the_log_which_can_be_hidden(ada: Fleet, store: MemoryStore) -> None:
    app = top(opener(store))

    async def play(pilot: Pilot[Any]) -> None:
        ada.locks.acquire("merge")
        await shows(pilot, app, "ada lock:acquired lock/merge")
        await pilot.press("l")
        await until(pilot, lambda: "lock:acquired" not in text(app), "hidden log")

    run(app, play)


def test_all_messages_are_shown_and_yours_can_be_acknowledged(
    ada: Fleet, store: MemoryStore
) -> None:
    ada.messages.send("maria", "The build is slow.", subject="Speed", hold=True)
    ada.messages.send("eve", "for eve alone", hold=True)
    app = top(opener(store), "messages")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "for eve alone")
        await shows(pilot, app, "1 unread")
        await pilot.press("j", "x")
        await shows(pilot, app, "0 unread")

    run(app, play)


def test_hostile_text_is_neither_markup_nor_an_escape_sequence(
    ada: Fleet, store: MemoryStore
) -> None:
    ada.tasks.publish("x", title="[red]not red[/red] [link=evil]")
    ada.messages.send("maria", "\x1b]0;owned\x07 \u202etxt", hold=True)
    app = top(opener(store), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "[red]not red[/red] [link=evil]")
        await pilot.press("5")
        await shows(pilot, app, r"\x1b]0;owned\x07 \u202etxt")
        assert "\x1b" not in text(app)

    run(app, play)


@pytest.mark.parametrize("size", [(40, 12), (20, 6), (62, 20)])
def test_a_narrow_terminal_shows_the_columns_that_matter(
    ada: Fleet, store: MemoryStore, size: tuple[int, int]
) -> None:
    ada.tasks.publish("build", title="A long title that has no room here")
    app = top(opener(store), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "build")
        assert "A long title" not in text(app)
        await pilot.resize_terminal(140, 30)
        await shows(pilot, app, "A long title that has no room here")

    run(app, play, size)


def test_many_rows_keep_the_cursor_where_it_is(ada: Fleet, store: MemoryStore) -> None:
    for number in range(60):
        ada.tasks.publish(f"t{number:02}")
    app = top(opener(store), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "t00")
        await pilot.press("G")
        await until(pilot, lambda: app.row and app.row.key == "t59", "last row")
        ada.tasks.publish("a-new-one", priority=5)
        await until(pilot, lambda: len(app._rows) == 61, "new row")
        assert app.row is not None
        assert app.row.key == "t59"

    run(app, play)


def test_columns_fit_and_the_widest_shrink() -> None:
    view = TableView(name="x", columns=(Column("a"), Column("b"), Column("c")), empty="")
    row = TableRow(key="1", cells=("short", "x" * 90, "y" * 50))
    wide = bars.widths(view, [row], [0, 1, 2], 200)
    assert wide == {0: 5, 1: 90, 2: 50}
    for width in (100, 60, 30, 5):
        found = bars.widths(view, [row], [0, 1, 2], width)
        assert sum(found.values()) + 6 <= max(width, 24)
        assert found[0] == 5
        assert abs(found[1] - found[2]) <= 1


# When things go wrong


def test_it_says_that_the_store_is_away_and_goes_on_when_it_is_back(
    ada: Fleet, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AGAIN", 0.05)
    ada.tasks.publish("build")
    away = threading.Event()

    def opens() -> Fleet:
        if away.is_set():
            raise StoreAway("the server does not answer; is it running?")
        return opener(store)()

    app = top(opens, "tasks")
    real = store.read

    def read(*refs: Any, **options: Any) -> Any:
        if away.is_set():
            raise StoreAway("the server does not answer; is it running?")
        return real(*refs, **options)

    monkeypatch.setattr(store, "read", read)

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "build")
        away.set()
        await shows(pilot, app, "The store does not answer")
        assert "build" in text(app)
        await pilot.press("c", *"no", "enter")
        await shows(pilot, app, "is it running?")
        away.clear()
        await until(pilot, lambda: "The store does not answer" not in text(app), "recovery")
        ada.tasks.publish("after")
        await shows(pilot, app, "after")

    run(app, play)
    assert ada.tasks.show("build").state == "pending"


def test_a_file_that_is_replaced_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AGAIN", 0.05)
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    for place, task in ((path, "old"), (other, "new")):
        with interlock.connect(str(place), agent="ada") as fleet:
            fleet.tasks.publish(task)
    app = top(lambda: begun(open_store(str(path)), agent="maria", join=False), "tasks")

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, app, "old")
        for name in ("-wal", "-shm"):
            (tmp_path / f"store.db{name}").unlink(missing_ok=True)
        other.replace(path)
        await until(pilot, lambda: list(app._rows) == ["new"], "new store")

    run(app, play)


def test_it_quits_at_once_though_the_store_never_answers(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, free = threading.Event(), threading.Event()

    def read(*_refs: Any, **_options: Any) -> Any:
        stuck.set()
        free.wait(PATIENCE * 2)
        raise StoreAway("late")

    monkeypatch.setattr(store, "read", read)
    app = top(opener(store))

    async def main() -> float:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, stuck.is_set, "blocked read")
            began = time.monotonic()
            await pilot.press("q")
        return time.monotonic() - began

    try:
        assert asyncio.run(main()) < 3.0
    finally:
        free.set()
    assert app.reader.join(PATIENCE)


# The command


def test_it_needs_a_terminal(here: Here) -> None:
    done = here.run("top")
    assert done.status == 2
    assert "needs a terminal; in a pipe use 'interlock health'" in done.err


def test_without_its_extra_it_says_what_to_install(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("interlock.faces.tui.start._is_terminal", lambda: True)
    monkeypatch.delitem(sys.modules, "interlock.faces.tui.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    done = here.run("top")
    assert done.status == 2
    assert "pip install 'interlock[tui]'" in done.err
    wrong = here.run("top", "--view", "nonsense")
    assert "there is no view 'nonsense'; choose of: person, agents" in wrong.err


def test_a_real_terminal_shows_it_and_q_ends_it_with_status_0(shell: Shell) -> None:
    with on_terminal(shell, "top") as terminal:
        terminal.shows(b"Nothing needs a person")
        terminal.press(b"q")
        assert terminal.ends() == 0


def test_no_dialog_lets_a_name_act_on_a_real_terminal(shell: Shell) -> None:
    _, joined = shell.json("agent", "join", "--agent", "ada")
    name = f"{EVIL}\u202e\x9b2J[@click=app.quit]"
    edit(shell.folder, f"sessions/{joined['session']}", agent=name, host=name)
    spelled = rb"agent/\x1b]0;x\x07\x1b[2J"
    with on_terminal(shell, "top", "--view", "agents") as terminal:
        terminal.shows(b"\\x1b]0;x")
        terminal.press(b"\r")
        terminal.shows(spelled)
        terminal.press(b"s")
        terminal.shows(b"Stop " + spelled)
    for evil in ("\x1b]0;x", "\x9b", "\u202e"):
        assert evil.encode() not in terminal.seen
