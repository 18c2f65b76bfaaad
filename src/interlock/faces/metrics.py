"""``/metrics``: what a server answers to a scrape, with the text of ``interlock metrics``.

The counters of a process begin at zero and grow while it lives, as Prometheus expects.  Scrapes at
the same moment share one reading of the store, so many scrapers cost no more than one.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from interlock.nouns.fleet.metrics import metrics_to_text
from interlock.runtime.monitoring import (
    RecordCounts,
    Scrape,
    collected,
    named_store,
    newest_revision,
)
from interlock.runtime.verdict import judged
from interlock.steps import Op, drive

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.client_context import Context
    from interlock.runtime.monitoring import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED = 1.0
"""Seconds for which a reading answers further scrapes."""


class MetricsExporter:
    """The counters of one process on one store; any thread may ask it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mutex = threading.Lock()
        self._counts: RecordCounts | None = None
        self._text, self._read = "", -SHARED

    def text(self) -> str:
        """The metrics of now; waits for a reading that another thread has begun."""
        with self._mutex:
            if time.monotonic() - self._read >= SHARED:
                found: Metrics = drive(self._metrics(), self._context.store)
                self._text, self._read = metrics_to_text(found), time.monotonic()
            return self._text

    def _metrics(self) -> Op[Metrics]:
        if self._counts is None:
            self._counts = RecordCounts((yield from newest_revision()))
        scrape = Scrape(self._context.runner, self._context.settings)
        verdict = yield from judged((yield from named_store(self._context.runner)))
        return (yield from collected(scrape, self._counts, verdict))


_EXPORTERS: WeakKeyDictionary[Context, MetricsExporter] = WeakKeyDictionary()
_MUTEX = threading.Lock()


def metrics_text(fleet: Fleet) -> str:
    """The metrics of the store of a client, in the text format of Prometheus.

    It blocks while it reads, so an event loop calls it in a thread.
    """
    with _MUTEX:
        exporter = _EXPORTERS.get(fleet.context)
        if exporter is None:
            exporter = _EXPORTERS[fleet.context] = MetricsExporter(fleet.context)
    return exporter.text()
