"""Items of tasks read back as they were written."""

from __future__ import annotations

import pytest
from msgspec import Raw

from interlock.core import codec
from interlock.nouns.tasks.task import TaskResult
from interlock.nouns.tasks.task_reader import decode_result
from interlock.store import Item


@pytest.mark.parametrize("value", [b"[1]", b'{"a":1}', b'"text"', b"1", b"null"])
@pytest.mark.parametrize("kind", ["result", "error"])
def test_what_came_of_an_attempt_reads_back(kind: str, value: bytes) -> None:
    came = TaskResult(by="ada", at=1.0, token=2, **{kind: Raw(value)})
    read = decode_result(Item("tasks/t/result", codec.encode(came), 1, 1))
    assert read is not None
    assert codec.encode(read) == codec.encode(came)
    assert bytes(getattr(read, kind)) == value
