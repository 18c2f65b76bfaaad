"""Traces: one id beside all that is done for one purpose, so that it is found again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from interlock.core import validate
from interlock.runtime.runner import TRACE


@contextmanager
def trace(trace_id: str) -> Iterator[str]:
    """What is done in this block, by any client, carries this trace id in the record.

    It holds for the thread or the task that runs the block, and for tasks that it begins.
    """
    token = TRACE.set(validate.name(trace_id, "trace"))
    try:
        yield trace_id
    finally:
        TRACE.reset(token)
