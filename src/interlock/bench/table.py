"""The rows of the bench, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from interlock.core.outcomes import Listing

_HEAD = ("operation", "floor", "p50", "p95", "p99", "per second", "ratio", "target")


class Row(Struct, frozen=True, kw_only=True):
    """One measurement beside its floor; times in milliseconds, rates per second."""

    name: str
    floor: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    rate: float | None = None
    ratio: float | None = None
    target: str = ""
    unit: str = "ms"


class Measured(Listing[Row], frozen=True, kw_only=True):
    """All rows, and the engine."""

    listed = "rows"

    engine: str
    rows: tuple[Row, ...]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(
    name: str, seconds: Sequence[float], floor: Sequence[float], target: str, *, share: float = 0.5
) -> Row:
    """A row of latencies; floor and ratio are those at this share, by default the medians."""
    bare = percentile(floor, share)
    return Row(
        name=name,
        floor=bare * 1000,
        p50=percentile(seconds, 0.5) * 1000,
        p95=percentile(seconds, 0.95) * 1000,
        p99=percentile(seconds, 0.99) * 1000,
        rate=len(seconds) / sum(seconds),
        ratio=percentile(seconds, share) / bare,
        target=target,
    )


def as_text(rows: Sequence[Row], title: str = "") -> str:
    """Aligned columns for a person, under a title if there is one."""
    return "\n".join([*([title] if title else []), *_lines(rows)])


def _lines(rows: Sequence[Row]) -> list[str]:
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, len(_HEAD) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _quantity(row.floor, row.unit),
        _quantity(row.p50, row.unit),
        _quantity(row.p95, row.unit),
        _quantity(row.p99, row.unit),
        "" if row.rate is None else f"{row.rate:,.0f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.target,
    )


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "/s":
        return f"{value:,.0f} /s"
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.0f} {unit}"  # noqa: PLR2004
