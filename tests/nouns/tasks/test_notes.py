"""Notes on tasks: any agent may add one, they are bounded, and they are deleted with their task."""

from __future__ import annotations

import pytest
from tests.nouns.tasks import task_truths

import interlock
from interlock.core import codec, keys
from interlock.errors import BadInput, TooLarge
from interlock.nouns.tasks import notes, task_change
from interlock.nouns.tasks.notes import NOTE_LIMIT, NOTES_LIMIT
from interlock.nouns.tasks.retention import TaskRetention
from interlock.nouns.tasks.task_change import NoteNumbers
from interlock.nouns.tasks.task_outcomes import NoTask, TaskNoted, Unchanged
from interlock.nouns.tasks.task_view import TaskNotes, TaskView
from interlock.runtime.identity import Actor
from interlock.runtime.retention import RetentionLimits
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Stepper, Testbed

NONE = RetentionLimits(age=0.0, count=0)


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    client = stage.client("ada")
    client.run(client.tasks.publish("t"))
    return client


def note(client: Client, *texts: str) -> None:
    for text in texts:
        assert isinstance(client.run(client.tasks.note("t", text)), TaskNoted)


def listed(client: Client, after: int = 0, limit: int = 100) -> list[tuple[int, str]]:
    found = client.run(client.tasks.notes("t", after=after, limit=limit))
    assert isinstance(found, TaskNotes)
    return [(each.note, each.text) for each in found]


def complete(client: Client) -> None:
    client.run(client.tasks.claim("t"))
    client.run(client.tasks.complete("t"))


def forget(client: Client) -> None:
    client.run(TaskRetention(client.runner, NONE).run(Actor()))


def test_any_agent_adds_notes_in_any_state_with_its_name_and_the_time(
    stage: Testbed, ada: Client
) -> None:
    bob = stage.client("bob")
    note(bob, "before")
    ada.run(ada.tasks.claim("t"))
    stage.clock.advance(3)
    note(bob, "while it runs")
    assert ada.run(ada.tasks.complete("t")), "a note does not end the claim"
    note(ada, "after")
    found = ada.run(ada.tasks.show("t"))
    assert isinstance(found, TaskView)
    assert [(each.by, each.text) for each in found.notes] == [
        ("bob", "before"),
        ("bob", "while it runs"),
        ("ada", "after"),
    ]
    assert found.notes[1].at == found.notes[0].at + 3


def test_show_has_the_last_notes_and_the_list_has_all_page_by_page(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "_SHOWN", 2)
    note(ada, "a", "b", "c", "d", "e")
    found = ada.run(ada.tasks.show("t"))
    assert isinstance(found, TaskView)
    assert ([each.text for each in found.notes], found.earlier_notes) == (["d", "e"], 3)
    assert listed(ada, limit=2) == [(1, "a"), (2, "b")]
    assert listed(ada, after=2) == [(3, "c"), (4, "d"), (5, "e")]


def test_a_note_that_is_empty_too_long_or_draws_on_the_terminal_is_refused(ada: Client) -> None:
    note(ada, "x" * NOTE_LIMIT)
    for text in ("", " \n", "x" * (NOTE_LIMIT + 1), "\x1b[2J", "x" * 2**20):
        with pytest.raises(BadInput):
            ada.run(ada.tasks.note("t", text))
    assert len(listed(ada)) == 1


def test_a_task_with_a_thousand_notes_says_what_to_do_instead(stage: Testbed, ada: Client) -> None:
    note_numbers = codec.encode(NoteNumbers(NOTES_LIMIT))
    stage.store.commit(Txn(id="put", puts=(Put(keys.notes("t"), note_numbers),), quiet=True))
    with pytest.raises(TooLarge, match="has 1000 notes, and no more are allowed: keep further"):
        ada.run(ada.tasks.note("t", "one more"))


def test_there_are_no_notes_of_a_task_that_is_not_there(ada: Client) -> None:
    assert isinstance(ada.run(ada.tasks.note("gone", "x")), Unchanged)
    assert isinstance(ada.run(ada.tasks.notes("gone")), NoTask)


def test_two_notes_at_once_are_two_notes(stage: Testbed, ada: Client) -> None:
    one, two = stage.remote("one"), stage.remote("two")
    first = Stepper(one.tasks.note("t", "1"), one.store, stage.clock)
    first.go()
    note(two, "2")
    while first.go():
        pass
    assert sorted(text for _, text in listed(ada)) == ["1", "2"]
    assert task_truths.complaints(task_truths.look(stage.store)) == []


@pytest.mark.parametrize("at_once", [400, 2])
def test_notes_go_with_their_task_however_many_a_commit_can_delete(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(task_change, "_NOTES_AT_ONCE", at_once)
    note(ada, *"abcde")
    complete(ada)
    forget(ada)
    board = task_truths.look(stage.store)
    assert (board.statuses, board.notes, board.note_numbers) == ({}, {}, {})
    ada.run(ada.tasks.publish("t"))
    assert listed(ada) == []


def test_a_note_on_a_task_that_is_being_deleted_is_refused_or_deleted_with_it() -> None:
    for steps in range(12):
        stage = Testbed()
        ada, bob = stage.client("ada"), stage.remote("bob")
        ada.run(ada.tasks.publish("t"))
        complete(ada)
        remote = stage.remote("cleo")
        going = TaskRetention(remote.runner, NONE).run(Actor())
        deletion = Stepper(going, remote.store, stage.clock)
        for _ in range(steps):
            deletion.go()
        bob.run(bob.tasks.note("t", "late"))
        while deletion.go():
            pass
        assert task_truths.complaints(task_truths.look(stage.store)) == [], steps


def test_the_history_of_a_task_has_its_notes() -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.tasks.publish("t")
        fleet.tasks.note("t", "the first\nof many")
        story = fleet.record.explain("task/t")
        assert [(each.what, each.on, each.says) for each in story.happenings] == [
            ("published", "", ""),
            ("noted", "1", "the first of many"),
        ]
