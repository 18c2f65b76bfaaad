"""Invariants of tasks in any store at any moment, read from the bare items.

They do not depend on how the state came about, so they hold after any act, and after a client died
in the middle of one: ``complaints`` is empty, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from interlock.core import keys
from interlock.core.entry import decode
from interlock.nouns.tasks.task import UNSUCCESSFUL, Spec, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_change import NoteNumbers
from interlock.nouns.tasks.task_reader import (
    decode_claim,
    decode_names,
    decode_note_numbers,
    decode_spec,
    decode_status,
)
from interlock.runtime.reads import every
from interlock.steps import drive
from interlock.store import VOID, Item, Log, Store

_FOLDERS = (
    keys.TASKS,
    keys.READY,
    keys.DUE,
    keys.HANGS,
    keys.TODO,
    keys.CLAIMS,
    keys.ENDED,
    keys.LABELS,
    keys.NOTES,
)


class Board(Struct):
    """Everything that stands there, by task."""

    specs: dict[str, Spec] = {}
    statuses: dict[str, TaskStatus] = {}
    created: dict[str, int] = {}
    written: dict[str, int] = {}
    owners: dict[str, TaskOwner] = {}
    tokens: dict[str, int] = {}
    ready: dict[str, list[str]] = {}
    due: dict[str, list[str]] = {}
    hangs: dict[str, list[str]] = {}
    claims: dict[tuple[str, str], tuple[str, ...]] = {}
    ended: set[str] = set()
    labels: dict[str, set[str]] = {}
    note_numbers: dict[str, list[int]] = {}
    notes: dict[str, list[int]] = {}
    todo: set[str] = set()
    results: set[str] = set()

    def states(self) -> dict[str, str]:
        return {task: status.state for task, status in self.statuses.items()}


def look(store: Store) -> Board:
    """All items, of one moment if no other client writes."""
    board = Board()
    for item in drive(every(*_FOLDERS), store):
        _learn(board, item)
    return board


def _learn(board: Board, item: Item) -> None:  # noqa: C901, PLR0912 - one case a kind of item
    folder = item.key.partition("/")[0] + "/"
    task = keys.task_of(item.key) if folder == keys.TASKS else keys.task_in_index(item.key)
    if folder == keys.NOTES:
        _, name, number = item.key.split("/")
        board.notes.setdefault(keys.decode(name), []).append(int(number))
        return
    match folder, item.key.rpartition("/")[2]:
        case keys.TASKS, "data":
            board.specs[task] = decode_spec(item) or Spec(at=0)
            board.written[task] = item.revision
        case keys.TASKS, "status":
            board.statuses[task] = decode_status(item) or TaskStatus(state="dead")
            board.created[task] = item.created
        case keys.TASKS, "owner":
            claim = decode_claim(item)
            assert claim is not None
            board.owners[task], board.tokens[task] = claim, item.revision
        case keys.READY, _:
            board.ready.setdefault(task, []).append(item.key)
        case keys.DUE, _:
            board.due.setdefault(task, []).append(item.key)
        case keys.HANGS, _:
            board.hangs.setdefault(task, []).append(keys.decode(item.key.split("/")[1]))
        case keys.CLAIMS, _:
            board.claims[item.key.split("/")[1], task] = decode_names(item)
        case keys.ENDED, _:
            board.ended.add(task)
        case keys.TASKS, "notes":
            board.note_numbers[task] = list((decode_note_numbers(item) or NoteNumbers()).numbers)
        case keys.LABELS, _:
            board.labels.setdefault(task, set()).add(keys.decode(item.key.split("/")[1]))
        case keys.TASKS, "result":
            board.results.add(task)
        case _:
            assert folder == keys.TODO
            board.todo.add(task)


def complaints(board: Board) -> list[str]:
    """Everything that cannot be."""
    return [
        *_owners(board),
        *_places(board),
        *_needs(board),
        *_gates(board),
        *_indexes(board),
    ]


def _owners(board: Board) -> Iterator[str]:
    if board.specs.keys() != board.statuses.keys():
        yield f"data and status of different tasks: {board.specs.keys() ^ board.statuses.keys()}"
    running = {task for task, status in board.statuses.items() if status.state == "running"}
    if running != board.owners.keys():
        yield f"running {sorted(running)}, owned {sorted(board.owners)}"
    claims = {(claim.session, task): claim.live for task, claim in board.owners.items()}
    if claims != board.claims:
        yield f"claims {board.claims}, owners {claims}"


def _places(board: Board) -> Iterator[str]:
    for task, status in board.statuses.items():
        ready, due = board.ready.get(task, []), board.due.get(task, [])
        if status.state == "pending":
            place = [] if status.due else [board.specs[task].ready_key(task)]
            wanted = (place, [status.due] if status.due else [])
        elif status.guard:
            wanted = ([], [status.due] if status.due else [])
        else:
            blind = status.state == "running" and board.owners[task].blind
            wanted = (ready if blind else [], [])
        if (ready, due) != wanted or len(ready) > 1:
            yield f"{task} is {status.state} and stands at {ready} {due}"
    if lost := {*board.ready, *board.due} - board.statuses.keys():
        yield f"places of tasks that are not there: {lost}"


def _needs(board: Board) -> Iterator[str]:
    complete = {task for task, status in board.statuses.items() if status.state == "complete"}
    needed = {need for spec in board.specs.values() for need in spec.needs}
    gone = needed - board.statuses.keys()  # it was complete
    others = {task: status for task, status in board.statuses.items() if not status.guard}
    for task, status in others.items():
        later = {need for need in board.specs[task].needs if _later(board, need, task)}
        met = complete | gone | later
        spec, hangs = board.specs[task], board.hangs.get(task, [])
        if status.state != "blocked":
            if hangs:
                yield f"{task} is {status.state} and hangs on {hangs}"
            if status.state in ("pending", "running", "complete") and (
                needs := {*spec.needs} - met
            ):
                yield f"{task} is {status.state} before {needs}"
            continue
        if hangs != [status.on] or spec.needs[status.place] != status.on:
            yield f"{task} is blocked on {status.on} and hangs on {hangs}"
        if not met.issuperset(spec.needs[: status.place]):
            yield f"{task} is past a need that is not complete"
        if status.on in complete and status.on not in board.todo:
            yield f"{task} hangs on {status.on}, which is complete, and no client will notice"
        if status.on not in board.statuses:
            yield f"{task} hangs on {status.on}, which is gone"
        elif status.on not in complete and not board.statuses[status.on].awaited:
            yield f"{task} hangs on {status.on}, which does not know"


def _gates(board: Board) -> Iterator[str]:
    for task, status in board.statuses.items():
        hangs, needs = board.hangs.get(task, []), board.specs[task].needs
        if status.guard and hangs != [f"-{status.guard}"]:
            yield f"{task} is kept by {status.guard} and hangs on {hangs}"
        unmet = [n for n in needs if board.states().get(n, "complete") != "complete"]
        if status.guard and any(not _later(board, need, task) for need in unmet):
            yield f"{task} is at its gate before {unmet}"


def _later(board: Board, need: str, task: str) -> bool:
    """Whether another task has the id of the need by now."""
    return need in board.created and board.created[need] > board.written[task]


def _indexes(board: Board) -> Iterator[str]:
    over = {t for t, status in board.statuses.items() if status.state in UNSUCCESSFUL}
    if over != board.ended:
        yield f"ended {board.ended}, over {over}"
    labels = {task: set(spec.labels) for task, spec in board.specs.items() if spec.labels}
    if labels != board.labels:
        yield f"labels {board.labels}, but the tasks have {labels}"
    if board.notes != board.note_numbers:
        yield f"notes {board.notes}, but the tasks have {board.note_numbers}"
    for need in board.todo:
        state = board.statuses[need].state if need in board.statuses else "gone"
        if state != "complete":
            yield f"{need} is to be drained and {state}"
    if lost := {*board.ended, *board.results, *board.notes} - board.statuses.keys():
        yield f"left behind by tasks that are gone: {lost}"


def completions(store: Store) -> list[str]:
    """Every task that was completed, as often as the record says so."""
    after, found = 0, []
    while items := store.read(page := Log(after=after, limit=1000)).ranges[page]:
        after = items[-1].revision
        entries = [decode(item.value) for item in items if item.value != VOID]
        found += [
            (event.thing or entry.thing)[5:]
            for entry in entries
            for event in entry.events
            if event.name == "task:completed"
        ]
    return found
