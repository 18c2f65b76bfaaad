"""The walk over a prefix, and the deletion of the items that it finds."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from interlock.core import codec
from interlock.runtime.identity import Actor
from interlock.runtime.reads import LEAST_PAGE, PAGE_BYTES, Pages
from interlock.runtime.retention import delete_items, old_items
from interlock.steps import Op
from interlock.store import Item, Put, Range, Txn
from interlock.testing.testbed import Client, Testbed


class Note(Struct, frozen=True):
    at: float


decode = codec.Decoder(Note).read


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada")


def put(stage: Testbed, key: str, value: bytes) -> None:
    stage.store.commit(Txn(id=f"{key}-{len(value)}", puts=(Put(key, value),), quiet=True))


def notes(stage: Testbed, *moments: float) -> None:
    for number, at in enumerate(moments):
        put(stage, f"notes/{number:03}", msgspec.json.encode(Note(at)))


def left(stage: Testbed) -> list[str]:
    page = Range("notes/")
    return [item.key for item in stage.store.read(page).ranges[page]]


def walked(pages: Pages, most: int = 1000) -> Op[list[Item]]:
    found: list[Item] = []
    while not pages.finished:
        found += yield from pages.read(most)
    return found


def test_a_walk_reads_every_item_once_and_another_one_continues(
    stage: Testbed, ada: Client
) -> None:
    notes(stage, *range(100))
    first = Pages("notes/")
    begun = ada.run(first.read())
    rest = ada.run(walked(Pages("notes/", first.after), most=7))
    assert [item.key for item in (*begun, *rest)] == left(stage)
    assert (first.items, first.finished) == (len(begun), False)


def test_pages_shrink_where_items_are_large_and_grow_again(stage: Testbed, ada: Client) -> None:
    pages = Pages("notes/", limit=4)
    for number in range(4):
        put(stage, f"notes/{number}", b"x" * (PAGE_BYTES // 3))
    put(stage, "notes/5", b"")
    ada.run(pages.read())
    assert (pages.limit, pages.finished) == (LEAST_PAGE, False)
    ada.run(pages.read())
    assert (pages.limit, pages.finished, pages.items) == (4 * LEAST_PAGE, True, 5)


def test_old_items_are_those_before_a_moment_without_damaged_ones(
    stage: Testbed, ada: Client
) -> None:
    notes(stage, 1.0, 5.0, 2.0)
    put(stage, "notes/bad", b"[")
    found = ada.run(old_items("notes/", decode, 5.0))
    assert [item.key for item in found] == ["notes/000", "notes/002"]


def test_an_item_that_is_written_again_is_not_deleted(stage: Testbed, ada: Client) -> None:
    notes(stage, *[1.0] * 500)
    found = left(stage)
    put(stage, "notes/003", b'{"at":100.0}')
    op = delete_items(
        ada.runner, Actor("ada"), found, lambda item: decode(item).at < 5.0, verb="x.forget"
    )
    assert ada.run(op) == 499
    assert left(stage) == ["notes/003"]


def test_an_item_whose_liveness_key_is_alive_is_not_deleted(stage: Testbed, ada: Client) -> None:
    notes(stage, 1.0, 1.0)
    stage.store.commit(Txn(id="l", puts=(Put("live/a", b"", ttl=60.0),), quiet=True))
    lives = {"notes/000": "live/a", "notes/001": "live/b"}
    op = delete_items(
        ada.runner, Actor("ada"), list(lives), lambda _: True, verb="x.forget", lives=lives
    )
    assert ada.run(op) == 1
    assert left(stage) == ["notes/000"]
