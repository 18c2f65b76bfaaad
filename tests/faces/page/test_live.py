"""What agents do appears on the page by itself, and a person acts from it: in a real browser."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

from playwright.sync_api import APIResponse, Page, Route, expect
from tests.faces.page.conftest import Stage

import interlock

VIEWS = (
    "now", "agents", "tasks", "locks", "messages", "pipelines", "swarms", "record", "timeline",
    "files", "merges", "schedules", "guards", "budgets",
)  # fmt: skip
EVENTS = re.compile(r"/api/events")
NO_POLLS = "window.setInterval = () => 0;"
"""Events alone have to bring what is shown up to date."""
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
    mine.click()
    expect(page.locator("#detail .story")).to_contain_text("no attempt is left · the bridge is out")


def test_a_paused_agent_is_marked_and_can_be_resumed(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    stage.agent("eve")
    page.goto(stage.at("agents"))
    mine = page.locator(".row", has_text="eve")
    flag = mine.locator(".flag", has_text="paused")
    expect(mine).to_be_visible()
    expect(flag).to_have_count(0)
    ada.agents.pause("eve", "floods the fleet")
    expect(flag).to_be_visible()
    mine.click()
    detail = page.locator("#detail")
    expect(detail).to_contain_text("floods the fleet")
    expect(detail).not_to_contain_text("[object")
    ada.agents.resume("eve")
    expect(flag).to_have_count(0)


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


def test_a_wait_that_goes_on_is_noticed_once_and_keeps_its_card(stage: Stage, page: Page) -> None:
    wait = {"kind": "waiting", "thing": "lock/north", "agent": "bob", "since": 1.0}
    said = ["lock/north: bob has waited for 12 min"]
    page.route(
        re.compile("/api/health$"),
        lambda route: route.fulfill(json={"problems": [{**wait, "says": said[-1]}]}),
    )
    page.goto(stage.at("now"))
    card = page.locator(".need", has_text="lock/north")
    expect(card).to_contain_text("for 12 min")
    card.evaluate("(card) => (card.dataset.first = 'yes')")
    said.append("lock/north: bob has waited for 13 min")
    stage.agent("ada").tasks.publish("given-up")
    stage.agent("ada").tasks.cancel("given-up", "not needed")  # so the page asks for problems
    expect(card).to_contain_text("for 13 min")
    expect(card).to_have_attribute("data-first", "yes")
    expect(page.locator(".toast", has_text="13 min")).to_have_count(0)


def test_every_refusal_is_an_outcome_whatever_its_status(stage: Stage, page: Page) -> None:
    page.goto(stage.at("record"))
    missing = """async () => {
        const { read, refused } = await import("/assets/api.js");
        const found = await read("task show", { task: "nowhere" });
        return [found.outcome, refused(found)];
    }"""
    outcome, why = page.evaluate(missing)
    assert outcome == "nothing"
    assert "there is no task nowhere" in why


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


def test_the_panel_shows_each_event_of_a_commit_with_several(stage: Stage, page: Page) -> None:
    """All of them come in one write, so the page has them within one frame."""
    page.add_init_script(NO_POLLS)
    ada = stage.agent("ada")
    ada.tasks.publish("first", title="Lay the table")
    ada.tasks.publish("second", needs=["first"])
    page.goto(stage.at("tasks", q="table", show="task/first"))
    story = page.locator("#detail .story")
    expect(story).to_contain_text("published")
    token = claimed(ada, "first")
    expect(story).to_contain_text("claimed")
    ada.tasks.complete("first", token=token)  # and the second one is ready
    expect(story).to_contain_text("completed")


def test_the_panel_shows_what_came_last_however_late_an_answer_is(stage: Stage, page: Page) -> None:
    stage.agent("ada").tasks.publish("slow", title="Late answer")
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.add_init_script(NO_POLLS)
    page.route(re.compile("/api/record/explain"), hold)
    page.goto(stage.at("tasks", q="Late", show="task/slow"))
    mine = page.locator(".row", has_text="Late answer")
    expect(mine).to_contain_text("pending")
    while not held:
        page.wait_for_timeout(10)
    claimed(stage.agent("bob"), "slow")
    expect(mine).to_contain_text("running")
    ((route, old),) = held
    route.fulfill(response=old)
    expect(page.locator("#detail .story")).to_contain_text("claimed")
    expect(page.locator("#detail header")).to_contain_text("running")


def test_a_late_answer_of_another_view_changes_nothing(stage: Stage, page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile("/api/record/(verify|log)"), hold)
    page.goto(stage.at("record"))
    expect(page.locator(".verdict")).to_contain_text("Checking")
    page.keyboard.press("3")
    expect(page.locator("h1")).to_have_text("Tasks")
    for route in held:
        route.continue_()
    page.wait_for_timeout(100)
    expect(page.locator("h1")).to_have_text("Tasks")
    expect(page.locator(".verdict")).to_have_count(0)


def test_the_timeline_shows_a_lock_that_goes_from_one_to_the_next(stage: Stage, page: Page) -> None:
    ada, bob = stage.agent("ada"), stage.agent("bob")
    ada.locks.acquire("baton")
    page.goto(stage.at("timeline", q="baton"))
    expect(page.locator('.span[aria-label="ada held lock/baton"]')).to_be_visible()
    waiting = threading.Thread(target=lambda: bob.locks.acquire("baton", wait=30))
    waiting.start()
    expect(page.locator('.span[aria-label="bob waited for lock/baton"][data-open]')).to_be_visible()
    ada.locks.release("baton")  # one commit: released, and acquired by the first waiter
    waiting.join()
    expect(page.locator('.span[aria-label="bob held lock/baton"][data-open]')).to_be_visible()
    expect(page.locator(".span[data-open][data-kind=waiting]")).to_have_count(0)
    bob.locks.release("baton")


def test_a_person_acts_on_files_merges_schedules_guards_and_budgets(
    stage: Stage, page: Page
) -> None:
    ada = stage.agent("ada")
    ada.reservations.reserve("src/*.py", reason="new parser", repository="shop")
    ada.schedules.add("nightly", every="1d", title="Build it")
    ada.budgets.set("agent/ada", tokens=1000)
    ada.budgets.count(input=1500)
    file = stage.folder / "guards.toml"
    file.write_text('[guard.calm]\nwhen = {lock_free = "storm"}\n')
    ada.guards.define(file)
    ada.merges.submit("feature", repository=repository(stage.folder / "shop"))
    page.goto(stage.at("files"))
    act(page, "src/*.py", "u", "ada went home")
    expect(page.locator(".empty")).to_contain_text("No file is reserved")
    page.keyboard.press("Shift+Digit1")
    expect(page.locator(".target")).to_contain_text("1 waiting")
    act(page, "feature", "c", "not yet")
    expect(page.locator(".row", has_text="feature")).to_contain_text("cancelled")
    page.keyboard.press("Shift+Digit2")
    act(page, "nightly", "p", "the disk is full")
    expect(page.locator(".row", has_text="nightly")).to_contain_text("paused by maria")
    page.locator(".toast button", has_text="Undo").click()
    expect(page.locator(".row", has_text="nightly")).to_contain_text("active")
    page.keyboard.press("Shift+Digit3")
    expect(page.locator(".row", has_text="calm")).to_contain_text("passes")
    ada.locks.acquire("storm")
    expect(page.locator(".row", has_text="calm")).to_contain_text("fails")
    ada.locks.release("storm")
    said = "'guard drop' needs the role admin, and this token has the role act"
    refusal = {"error": "wrong_role", "message": said}
    page.route(re.compile("/api/guard/drop"), lambda route: route.fulfill(status=403, json=refusal))
    act(page, "calm", "d")
    expect(page.locator(".toast", has_text=said)).to_be_visible()
    page.keyboard.press("Shift+Digit4")
    expect(page.locator(".row", has_text="agent/ada")).to_contain_text("used up")
    act(page, "agent/ada", "d")
    expect(page.locator(".row", has_text="agent/ada")).to_contain_text("counted")
    assert "ada went home" in verbs(stage, "reservation.break")


def act(page: Page, row: str, key: str, reason: str = "") -> None:
    """Select a row by the keyboard, press the key of an action, and give its reason."""
    expect(page.locator(".row", has_text=row)).to_be_visible()
    page.keyboard.press("g")
    while row not in page.locator(".row[data-selected]").inner_text():
        page.keyboard.press("j")
    page.keyboard.press(key)
    if reason:
        page.locator("dialog textarea").fill(reason)
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog")).to_have_count(0)


def repository(folder: Path) -> Path:
    """A git repository with a branch to merge."""
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.com", "-C", str(folder)]
    folder.mkdir()
    for words in ("init -q -b main", "commit -q --allow-empty -m one", "switch -q -c feature",
                  "commit -q --allow-empty -m two"):  # fmt: skip
        subprocess.run([*git, *words.split()], check=True)
    return folder


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
    mallory.reservations.reserve("src/evil", reason=evil)
    mallory.schedules.add("evil", every=3600, title=evil)
    mallory.schedules.pause("evil", evil)
    mallory.budgets.set(f"agent/{name}", tokens=1, reason=evil)
    ada.agents.pause(name, evil)
    things = (f"task/{name}", f"agent/{name}", f"lock/{name}", f"thread/{name}")
    places = [*VIEWS, "tasks&as=picture", *(f"tasks&show={thing}" for thing in things)]
    for place in places:
        page.goto(f"{stage.server.url}?token={stage.server.token}&view={place}")
        shown = page.locator("#detail .story, #detail .letter" if "show=" in place else "#view")
        if place not in ("swarms", "pipelines", "merges", "guards"):
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
        stage.forget_agents()
    expect(page.locator("#banner")).to_be_empty()
    stage.agent("ada").tasks.publish("after", title="After the flood")
    expect(page.locator(".row", has_text="After the flood")).to_be_visible()


def test_a_server_that_is_away_is_shown_and_a_gap_is_read_again(stage: Stage, page: Page) -> None:
    ada = stage.agent("ada")
    answers = ["retry: 50\nevent: hello\ndata: {}\n\n"]
    page.route(EVENTS, lambda route: stream(route, answers[-1]))
    ada.tasks.publish("open-thing")
    page.goto(stage.at("tasks", q="gap", show="task/open-thing"))
    expect(page.locator(".empty")).to_contain_text("Nothing fits")
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    expect(page.locator("#detail .story")).to_contain_text("published")
    ada.tasks.publish("gap", title="In the gap")
    ada.tasks.note("open-thing", "not seen by the stream")
    answers.append("retry: 50\nevent: resync\ndata: {}\n\n")
    expect(page.locator(".row", has_text="In the gap")).to_be_visible()
    expect(page.locator("#detail")).to_contain_text("not seen by the stream")
    page.unroute(EVENTS)
    expect(page.locator("#banner")).to_be_empty()
    ada.tasks.publish("gap2", title="After the gap")
    expect(page.locator(".row", has_text="After the gap")).to_be_visible()


def test_a_server_that_wants_a_token_says_how_to_give_one(stage: Stage, page: Page) -> None:
    refusal = {"error": "unauthorized", "message": "a token is needed"}
    page.route(EVENTS, lambda route: route.fulfill(status=401, json=refusal))
    page.goto(stage.at("tasks"))
    expect(page.locator("#banner")).to_contain_text("needs a token")
    expect(page.locator("#banner")).to_contain_text("/?token=")
    page.unroute(EVENTS)
    expect(page.locator("#banner")).to_be_empty()


def test_the_token_leaves_the_address_and_no_script_reads_it(stage: Stage, page: Page) -> None:
    page.goto(stage.at("tasks"))
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#banner")).to_be_empty()
    assert page.url == f"{stage.server.url}?view=tasks"
    assert page.evaluate("[document.cookie, document.referrer]") == ["", ""]
    page.reload()
    expect(page.locator("#nav .who")).to_contain_text("admin")


def test_a_browser_without_the_token_sees_nothing_of_the_fleet(stage: Stage, page: Page) -> None:
    stage.agent("ada").tasks.publish("hidden", title="Not for strangers")
    page.goto(f"{stage.server.url}?view=tasks")
    expect(page.locator("#banner")).to_contain_text("interlock open")
    expect(page.locator("body")).not_to_contain_text("Not for strangers")


def test_what_is_committed_before_the_stream_begins_is_shown(stage: Stage, page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(EVENTS, hold)
    page.goto(stage.at("tasks", q="early"))
    expect(page.locator(".empty")).to_contain_text("Nothing fits")
    stage.agent("ada").tasks.publish("early", title="Too early for the stream")
    held[0].continue_()
    expect(page.locator(".row", has_text="Too early")).to_be_visible()


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
        page.goto(f"{stage.server.url}?token={stage.server.token}&view={view}")
        expect(page.locator("#detail .story" if "show=" in view else "h1")).to_be_visible()
        for element in ("document.documentElement", "document.getElementById('view')"):
            inside, shown = page.evaluate(f"[{element}.scrollWidth, {element}.clientWidth]")
            assert inside <= shown, (view, element)


def test_a_laptop_that_slept_reads_everything_again(stage: Stage, page: Page) -> None:
    clock = "const now = Date.now; window.slept = 0; Date.now = () => now() + window.slept;"
    page.add_init_script(clock)
    page.add_init_script(  # it looks at the clock every five seconds
        "const each = setInterval;"
        "window.setInterval = (call, ms) => each(call, ms === 5000 ? 100 : ms);"
    )
    page.goto(stage.at("tasks", q="nap"))
    expect(page.locator(".empty")).to_contain_text("Nothing fits")
    lists = re.compile("/api/(events|task/list)")
    with page.expect_request(EVENTS), page.expect_request(lists):
        page.evaluate("window.slept = 60_000")
    stage.agent("ada").tasks.publish("nap", title="After it slept")
    expect(page.locator(".row", has_text="After it slept")).to_be_visible()
