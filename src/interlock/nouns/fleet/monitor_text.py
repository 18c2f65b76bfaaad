"""Metrics in words, which is the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.nouns.fleet.metrics import MetricsWritten, metrics_to_text

if TYPE_CHECKING:
    from interlock.runtime.monitoring import Metrics
    from interlock.runtime.text import Paint, Text


def _metrics(outcome: Metrics, _paint: Paint) -> str:
    return metrics_to_text(outcome).removesuffix("\n")


def _written(outcome: MetricsWritten, paint: Paint) -> str:
    word = paint("green", "wrote")
    return f"{word} {outcome.series} series to {outcome.path}, up to revision {outcome.revision}"


TEXTS: dict[str, Text] = {"Metrics": _metrics, "MetricsWritten": _written}
