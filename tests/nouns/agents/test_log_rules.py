from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.hypothesis_settings import budget

from interlock.core import keys
from interlock.nouns.agents import log_rules
from interlock.nouns.agents.log_rules import Chunk, Logbook, LogLimits, UploadedLines


class Shelf:
    """What uploads leave behind, as a store would keep it."""

    def __init__(self, limits: LogLimits) -> None:
        self.limits = limits
        self.book: Logbook | None = None
        self.chunks: dict[str, Chunk] = {}

    def upload(self, now: float, *lines: str, session: str = "") -> None:
        batch = UploadedLines(at=now, lines=lines, session=session)
        size = sum(map(log_rules.line_bytes, lines))
        tail, old = None, []
        if self.book is not None and log_rules.fits_last_chunk(self.book, size):
            tail = self.chunks[keys.log_chunk("ada", self.book.next - 1)]
        if self.book is not None and log_rules.rotation_due(self.book, self.limits, now, size):
            wanted = log_rules.oldest_chunks(self.book, another=tail is None)
            old = [self.chunks.get(keys.log_chunk("ada", number)) for number in wanted]
        done = log_rules.upload("ada", self.book, batch, limits=self.limits, tail=tail, old=old)
        for key in done.deletes:
            del self.chunks[key]
        for write in done.puts:
            if isinstance(write.value, Logbook):
                self.book = write.value
            elif isinstance(write.value, Chunk):
                self.chunks[write.key] = write.value

    def lines(self) -> list[tuple[int, str]]:
        found = [line for key in sorted(self.chunks) for line in log_rules.lines(self.chunks[key])]
        return [(line.number, line.text) for line in found]


def test_small_batches_share_a_chunk_and_keep_their_times() -> None:
    shelf = Shelf(LogLimits())
    for number in range(5):
        shelf.upload(float(number), f"line {number}", session=f"s{number}")
    (chunk,) = shelf.chunks.values()
    found = list(log_rules.lines(chunk))
    assert [(line.number, line.at, line.session) for line in found] == [
        (number + 1, float(number), f"s{number}") for number in range(5)
    ]


def test_a_chunk_that_is_not_small_any_more_is_left_alone() -> None:
    shelf = Shelf(LogLimits())
    shelf.upload(0.0, "a" * log_rules.SMALL)
    shelf.upload(1.0, "b")
    shelf.upload(2.0, "c")
    assert [len(chunk.batches) for chunk in shelf.chunks.values()] == [1, 2]


def test_the_oldest_go_above_the_limit_and_the_last_chunk_stays() -> None:
    shelf = Shelf(LogLimits(bytes=3 * log_rules.SMALL))
    for number in range(6):
        shelf.upload(float(number), f"{number}" * log_rules.SMALL)
    assert [text[0] for _, text in shelf.lines()] == ["4", "5"]
    tiny = Shelf(LogLimits(bytes=1))
    tiny.upload(0.0, "a" * log_rules.SMALL)
    tiny.upload(0.0, "b" * log_rules.SMALL)
    assert [text[0] for _, text in tiny.lines()] == ["b"]


def test_what_is_too_old_goes_though_there_is_room() -> None:
    shelf = Shelf(LogLimits(age=100.0))
    shelf.upload(0.0, "a" * log_rules.SMALL)
    shelf.upload(50.0, "b" * log_rules.SMALL)
    shelf.upload(120.0, "c")
    assert [text[0] for _, text in shelf.lines()] == ["b", "c"]


def test_no_upload_lets_more_go_than_its_bound_and_later_ones_catch_up() -> None:
    shelf = Shelf(LogLimits(age=100.0))
    for _ in range(20):
        shelf.upload(0.0, "a" * log_rules.SMALL)
    left = []
    for number in range(4):
        shelf.upload(200.0 + number, "b" * log_rules.SMALL)
        left.append(sum(text[0] == "a" for _, text in shelf.lines()))
    assert left == [12, 4, 0, 0]


def test_a_chunk_that_is_missing_holds_nobody_up() -> None:
    shelf = Shelf(LogLimits(bytes=2 * log_rules.SMALL + 100))
    for number in range(4):
        shelf.upload(float(number), f"{number}" * log_rules.SMALL)
    assert shelf.book is not None
    gone = replace(shelf.book, oldest=shelf.book.oldest - 3)
    assert (
        log_rules.rotated(gone, [None, None, None], shelf.limits, 4.0).oldest == shelf.book.oldest
    )


def test_forgetting_what_is_not_old_changes_nothing() -> None:
    shelf = Shelf(LogLimits())
    shelf.upload(0.0, "a" * log_rules.SMALL)
    shelf.upload(0.0, "b" * log_rules.SMALL)
    old = list(shelf.chunks.values())[:1]
    assert not log_rules.delete_old_chunks("ada", shelf.book, old, shelf.limits, 1.0).changes
    assert not log_rules.delete_old_chunks("ada", None, [], shelf.limits, 1.0).changes
    done = log_rules.delete_old_chunks("ada", shelf.book, old, shelf.limits, log_rules.AGE + 1)
    assert (done.outcome, done.deletes) == (1, (keys.log_chunk("ada", 1),))


@settings(max_examples=budget(15), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9000), min_size=1, max_size=3), max_size=25),
    st.integers(1, 40_000),
)
def test_lines_stand_in_order_without_gaps_and_the_book_counts_them(
    uploads: list[list[int]], most: int
) -> None:
    shelf = Shelf(LogLimits(bytes=most))
    said: list[str] = []
    for number, sizes in enumerate(uploads):
        batch = [f"{number}.{place} ".ljust(size, "x") for place, size in enumerate(sizes)]
        said += batch
        shelf.upload(float(number), *batch)
    found = shelf.lines()
    assert [text for _, text in found] == said[len(said) - len(found) :]
    assert [number for number, _ in found] == list(range(len(said) - len(found) + 1, len(said) + 1))
    if shelf.book is not None:
        assert shelf.book.bytes == sum(chunk.bytes for chunk in shelf.chunks.values())
        assert len(shelf.chunks) == shelf.book.next - shelf.book.oldest
        assert found, "the last chunk stays"


@settings(max_examples=budget(25), deadline=None)
@given(st.text())
def test_any_text_becomes_lines_that_can_be_kept(text: str) -> None:
    for line in log_rules.clean(text):
        assert "\n" not in line
        assert log_rules.line_bytes(line) > 2


def test_a_line_that_is_too_long_is_cut_with_a_mark() -> None:
    (line,) = log_rules.clean("ä" * log_rules.LINE + "\r\n")
    assert line == "ä" * (log_rules.LINE // 2) + f" [{log_rules.LINE} bytes cut]"
    assert list(log_rules.clean("one\r\ntwo\n")) == ["one", "two"]


def test_portions_fit_and_lose_nothing() -> None:
    lines = ["\x00" * 900] * 100
    portions = list(log_rules.split(lines, 20_000))
    assert [line for portion in portions for line in portion] == lines
    assert all(sum(map(log_rules.line_bytes, portion)) <= 20_000 for portion in portions)
    assert list(log_rules.split([])) == []
