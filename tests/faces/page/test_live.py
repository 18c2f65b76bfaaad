"""What agents do appears on the page by itself, and a person acts from it: in a real browser."""

from __future__ import annotations

import re
import threading

from playwright.sync_api import Page, Route, expect
from tests.faces.page.conftest import Stage

import interlock

VIEWS = (
    "now", "agents", "tasks", "locks", "messages", "pipelines", "swarms", "record", "timeline",
)  # fmt: skip
EVENTS = re.compile(r"/api/events")
PIPELINE = """
[[pipeline.release.phase]]
name = "build"
[[pipeline.release.phase]]
name = "merge"
pre = [{lock_free = "freeze"}]
"""


def claimed(fleet: interlock.Fleet, task: str) -> int:
    found = fleet.tasks.claim(task)
    assert isinstance(found, interlock.Claimed), found
    assert found.token is not None
    return found.token


def verbs(stage: Stage, verb: str) -> list[str]:
    """The reasons of the entries with this verb."""
    return [line.reason for line in stage.agent("ada").record.log(verb=verb, limit=100)]


def test_a_claim_and_a_release_appear(stage: Stage, page: Page) -> None:
    ada, bob = stage.agent("ada"), stage.agent("bob")
    page.goto(stage.at("tasks"))
    ada.tasks.publish("claimed", title="Paint the door")
    mine = page.locator(".row", has_text="Paint the door")
    expect(mine).to_contain_text("pending")
    token = claimed(bob, "claimed")
    expect(mine).to_contain_text("running")
    expect(mine).to_contain_text("bob")
    bob.tasks.progress("claimed", 0.5, doing="second coat")
    expect(mine).to_contain_text("50 %")
    expect(mine).to_contain_text("second coat")
    bob.tasks.release("claimed", token=token)
    expect(mine).to_contain_text("pending")


def test_a_failure_shows_its_error_in_the_row(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    page.goto(stage.at("tasks"))
    ada.tasks.publish("failing", title="Cross the river", retries=0)
    ada.tasks.fail("failing", "the bridge is out", token=claimed(ada, "failing"))
    mine = page.locator(".row", has_text="Cross the river")
    expect(mine).to_contain_text("dead")
    expect(mine.locator(".error")).to_have_text("the bridge is out")


def test_a_message_and_an_open_question_appear(stage: Stage, page: Page) -> None:
    ada, bob = stage.agent("ada"), stage.agent("bob")
    page.goto(stage.at("messages"))
    bob.messages.send(["ada"], "The tide is high.", subject="Weather")
    expect(page.locator(".row", has_text="Weather")).to_contain_text("The tide is high.")
    asking = threading.Thread(target=lambda: ada.messages.query("bob", "How high?", timeout=60))
    asking.start()
    question = page.locator(".row", has_text="How high?")
    expect(question).to_contain_text("question, open")
    with bob.messages.recv(timeout=30) as received:
        for message in received:
            if message.kind == "query":
                message.reply("two metres")
                break
    expect(question).to_contain_text("question, answered")
    asking.join()


def test_a_decision_is_counted_and_answered_by_a_person(stage: Stage, page: Page) -> None:
    page.goto(stage.at("now"))
    expect(page.locator("h1")).to_have_text("Needs you")
    stage.agent("bob").messages.query("?law", "May we sell the boat?", person=True)
    card = page.locator(".need", has_text="May we sell the boat?")
    expect(card).to_contain_text("decision")
    expect(page).to_have_title(re.compile(r"\(\d+\) Interlock"))
    card.locator("input").fill("yes, for 900")
    card.locator("button", has_text="Answer").click()
    expect(card).to_have_count(0)
    (made,) = [each for each in stage.agent("ada").messages.decisions() if each.answer]
    assert (made.answer, made.by) == ("yes, for 900", "maria")


def test_a_deadlock_is_drawn_as_a_ring(stage: Stage, page: Page) -> None:
    ada, bob = stage.agent("ada"), stage.agent("bob")
    page.goto(stage.at("locks"))
    ada.locks.acquire("north")
    bob.locks.acquire("south")
    expect(page.locator(".row", has_text="north")).to_contain_text("ada")
    waiting = threading.Thread(target=lambda: ada.locks.acquire("south", wait=30))
    waiting.start()
    expect(page.locator(".row", has_text="south")).to_contain_text("1 waiter")
    expect(page.locator(".chains")).to_contain_text("bob blocks 1: ada for lock/south")
    assert isinstance(bob.locks.acquire("north", wait=30), interlock.outcomes.LockDeadlock)
    ring = page.locator(".cycle", has_text="Deadlock refused")
    expect(ring.locator("circle")).to_have_count(2)
    expect(ring).to_contain_text("bob did not get lock/north")
    bob.locks.release("south")
    waiting.join()
    expect(page.locator(".row", has_text="south")).to_contain_text("ada")
    ada.locks.release("south")
    ada.locks.release("north")
    expect(page.locator(".row", has_text="north")).to_have_count(0)


def test_a_pipeline_shows_the_condition_that_keeps_it(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    file = stage.folder / "release.toml"
    file.write_text(PIPELINE)
    ada.pipelines.define(file)
    page.goto(stage.at("pipelines"))
    ada.pipelines.start("release", id="r1")
    mine = page.locator(".row", has_text="r1")
    expect(mine.locator("[aria-current=step]")).to_have_text("build")
    ada.locks.acquire("freeze")
    ada.pipelines.advance("r1")
    expect(mine).to_contain_text("lock-free=freeze")
    ada.locks.release("freeze")
    expect(mine.locator("[aria-current=step]")).to_have_text("merge")


def test_a_person_takes_a_task_from_its_worker_with_a_reason(stage: Stage, page: Page) -> None:
    bob = stage.agent("bob")
    bob.tasks.publish("taken", title="Carry the sack")
    token = claimed(bob, "taken")
    page.goto(stage.at("tasks", q="sack"))
    mine = page.locator(".row", has_text="Carry the sack")
    mine.hover()
    mine.locator("button", has_text="Requeue").click()
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog textarea")).to_have_attribute("aria-invalid", "true")
    page.locator("dialog textarea").fill("bob sleeps")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator(".toast", has_text="taken waits for a worker")).to_be_visible()
    expect(mine).to_contain_text("pending")
    assert "bob sleeps" in verbs(stage, "task.requeue")
    assert isinstance(bob.tasks.complete("taken", token=token), interlock.outcomes.TaskFenced)


def test_a_cancelled_task_comes_back_by_undo(stage: Stage, page: Page) -> None:
    stage.agent("ada").tasks.publish("regretted", title="Cut the rope")
    page.goto(stage.at("tasks", q="rope"))
    mine = page.locator(".row", has_text="Cut the rope")
    mine.click()
    page.locator("#detail button", has_text="Cancel").click()
    page.locator("dialog textarea").fill("no knife")
    page.locator("dialog button[type=submit]").click()
    expect(mine).to_contain_text("cancelled")
    page.locator(".toast button", has_text="Undo").click()
    expect(mine).to_contain_text("pending")
    expect(page.locator("#detail .story")).to_contain_text("retried")


def test_everything_that_is_filtered_is_acted_on_and_nothing_else(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    for n in range(5):
        ada.tasks.publish(f"bulk{n}", labels=["odd" if n % 2 else "even"])
    page.goto(stage.at("tasks", q="bulk label:even"))
    expect(page.locator(".row")).to_have_count(3)
    page.locator(".bulk button", has_text="Cancel 3").click()
    expect(page.locator("dialog .names")).to_have_text("bulk0, bulk2, bulk4")
    page.locator("dialog textarea").fill("all even")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator(".toast", has_text="Cancel: 3 items done.")).to_be_visible()
    states = [ada.tasks.show(f"bulk{n}") for n in range(5)]
    assert [getattr(each, "state", "") for each in states] == [
        "failed", "pending", "failed", "pending", "failed",
    ]  # fmt: skip


def test_a_person_edits_a_task_and_releases_a_lock(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    ada.tasks.publish("edited", title="Old words", priority=5)
    page.goto(stage.at("tasks", q="edited"))
    expect(page.locator(".row")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.locator("dialog input[name=title]").fill("New words")
    page.locator("dialog input[name=priority]").fill("1")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator(".row", has_text="New words")).to_contain_text("priority 1")
    ada.locks.acquire("stuck-lock")
    page.goto(stage.at("locks", q="stuck-lock"))
    expect(page.locator(".row")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("u")
    page.locator("dialog textarea").fill("ada is on holiday")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator(".row")).to_have_count(0)
    assert "ada is on holiday" in verbs(stage, "lock.break")


def test_keys_move_filter_and_change_the_view(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    for n in range(3):
        ada.tasks.publish(f"key{n}", title=f"Key {n}", priority=n)
    page.goto(stage.at("now"))
    page.keyboard.press("3")
    expect(page.locator("h1")).to_have_text("Tasks")
    page.keyboard.press("/")
    expect(page.locator("#head input[type=search]")).to_be_focused()
    page.keyboard.type("key")
    expect(page.locator("#head input[type=search]")).to_have_value("key")
    expect(page).to_have_url(re.compile(r"[?&]q=key$"))
    expect(page.locator(".row")).to_have_count(3)
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".row[data-selected]")).to_contain_text("Key 0")
    page.keyboard.press("Enter")
    expect(page.locator("#detail h2")).to_have_text("Key 0")
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("palette")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("task key2")
    expect(page.locator(".palette li")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#detail h2")).to_have_text("Key 2")
    page.go_back()
    page.reload()
    expect(page.locator(".row")).to_have_count(3)


def test_a_script_in_any_text_stays_a_text(stage: Stage, page: Page) -> None:
    """The policy would stop it, and it is no element in the first place."""
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    name = "<b>evil<|b>"
    ada, mallory = stage.agent("ada"), stage.agent(name)
    mallory.tasks.publish(name, {"x": evil}, title=evil, text=evil, labels=[name], retries=0)
    mallory.tasks.publish(f"{name}2", title=evil, needs=[name])
    mallory.tasks.note(name, evil)
    mallory.pulse.be("busy", doing=name, note=evil)
    mallory.tasks.fail(name, evil, token=claimed(mallory, name))
    mallory.locks.acquire(name, metadata={"x": evil})
    mallory.messages.send(["ada"], evil, subject=evil, thread=name)
    mallory.messages.alert(name, evil)
    mallory.messages.query("?law", evil, person=True)
    ada.agents.pause(name, evil)
    things = (f"task/{name}", f"agent/{name}", f"lock/{name}", f"thread/{name}")
    places = [*VIEWS, "tasks&as=picture", *(f"tasks&show={thing}" for thing in things)]
    for place in places:
        page.goto(f"{stage.server.url}?view={place}")
        shown = page.locator("#detail .story, #detail .letter" if "show=" in place else "#view")
        if place not in ("swarms", "pipelines"):
            expect(shown.first).to_contain_text("<img src=x" if "thread" in place else "<b>evil")
        assert page.locator("img:not(.brand img), #view script, #view b, #detail b").count() == 0
    ada.agents.resume(name)


def test_a_store_that_is_away_is_shown_and_comes_back(stage: Stage, page: Page) -> None:
    page.goto(stage.at("tasks"))
    stage.agent("ada").tasks.publish("before", title="Before the flood")
    expect(page.locator(".row", has_text="Before the flood")).to_be_visible()
    home, away = stage.store.parent, stage.folder / "unplugged"
    home.rename(away)
    try:
        expect(page.locator("#banner")).to_contain_text("The store is away")
        expect(page.locator(".row", has_text="Before the flood")).to_be_visible()
    finally:
        away.rename(home)
    expect(page.locator("#banner")).to_be_empty()
    with interlock.connect(str(stage.store), agent="late") as late:
        late.tasks.publish("after", title="After the flood")
        expect(page.locator(".row", has_text="After the flood")).to_be_visible()


def test_a_server_that_is_away_is_shown_and_a_gap_is_read_again(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    answers = ["retry: 50\nevent: hello\ndata: {}\n\n"]
    page.route(EVENTS, lambda route: stream(route, answers[-1]))
    page.goto(stage.at("tasks", q="gap"))
    expect(page.locator(".empty")).to_contain_text("Nothing fits")
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    ada.tasks.publish("gap", title="In the gap")
    answers.append("retry: 50\nevent: resync\ndata: {}\n\n")
    expect(page.locator(".row", has_text="In the gap")).to_be_visible()
    page.unroute(EVENTS)
    expect(page.locator("#banner")).to_be_empty()
    ada.tasks.publish("gap2", title="After the gap")
    expect(page.locator(".row", has_text="After the gap")).to_be_visible()


def stream(route: Route, text: str) -> None:
    route.fulfill(status=200, content_type="text/event-stream", body=text)


def test_a_reader_has_no_buttons_that_act(stage: Stage, page: Page) -> None:
    stage.agent("ada").tasks.publish("read-only", title="Look, no hands")
    hello = 'retry: 60000\nevent: hello\ndata: {"role": "read", "agent": "guest"}\n\n'
    page.route(EVENTS, lambda route: stream(route, hello))
    page.goto(stage.at("tasks", q="hands"))
    expect(page.locator("#nav .who")).to_have_text("guest · read")
    expect(page.locator(".row", has_text="Look, no hands")).to_be_visible()
    expect(page.locator(".row button, .bulk button")).to_have_count(0)


def test_an_empty_fleet_says_what_to_do_first(stage: Stage, page: Page) -> None:
    nothing = {"tasks": [], "more": "", "count": 0}
    page.route(re.compile("/api/task/list"), lambda route: route.fulfill(json=nothing))
    page.goto(stage.at("tasks"))
    expect(page.locator(".empty .command code")).to_contain_text("interlock task add")


def test_two_tabs_see_the_same(stage: Stage, page: Page) -> None:
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(stage.at("tasks", q="both"))
        expect(tab.locator(".empty")).to_contain_text("Nothing fits")
    stage.agent("ada").tasks.publish("both", title="Seen by both")
    for tab in (page, other):
        expect(tab.locator(".row", has_text="Seen by both")).to_be_visible()


def test_a_phone_needs_no_sideways_scrolling(stage: Stage, page: Page) -> None:
    long = "a-very-long-name-without-any-space-in-it-" * 3
    stage.agent("ada").tasks.publish(long, title=f"Long {long}", labels=[long])
    page.set_viewport_size({"width": 390, "height": 780})
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    for view in [*VIEWS, f"tasks&show=task/{long}"]:
        page.goto(f"{stage.server.url}?view={view}")
        expect(page.locator("#detail .story" if "show=" in view else "h1")).to_be_visible()
        for element in ("document.documentElement", "document.getElementById('view')"):
            inside, shown = page.evaluate(f"[{element}.scrollWidth, {element}.clientWidth]")
            assert inside <= shown, (view, element)


def test_a_laptop_that_slept_reads_everything_again(stage: Stage, page: Page) -> None:
    clock = "const now = Date.now; window.slept = 0; Date.now = () => now() + window.slept;"
    page.add_init_script(clock)
    page.goto(stage.at("tasks", q="nap"))
    expect(page.locator(".empty")).to_contain_text("Nothing fits")
    lists = re.compile("/api/(events|task/list)")
    with page.expect_request(EVENTS), page.expect_request(lists):
        page.evaluate("window.slept = 60_000")
    stage.agent("ada").tasks.publish("nap", title="After it slept")
    expect(page.locator(".row", has_text="After it slept")).to_be_visible()
