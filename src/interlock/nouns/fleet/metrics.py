"""``metrics``: its outcomes, the text format of Prometheus, and the file of a collector.

The text is that which Prometheus and its textfile collector read: for each name a line of help, a
line with its type, and a line for each set of labels.  Label values may come from any client, so
they are escaped, and characters that do not print are spelled out.

A file is replaced as a whole, so a collector never reads half of one.  The next run reads it first:
it says up to which revision it counted, and its counters go on from there.  In a file of another
store, or one that cannot be understood, they begin at zero, which a monitor takes for a restart.
A file that never held metrics is not replaced.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from interlock.core import validate
from interlock.core.decision import Success
from interlock.core.safe_text import printable
from interlock.errors import BadInput
from interlock.runtime.metrics import Metric, MetricBucket
from interlock.runtime.monitoring import (
    INFO,
    INTACT,
    JUDGED,
    REVISION,
    Metrics,
    RecordCounts,
    Scrape,
    collected,
    named_store,
    newest_revision,
)
from interlock.runtime.verdict import Verdict, judged
from interlock.steps import InThread, Op

if TYPE_CHECKING:
    from interlock.client_context import Context

LARGEST_FILE = 8 << 20
"""Bytes of an earlier file that are read: far more than the bounded number of series takes."""
_BEGINS = f"# HELP {INFO} ".encode()
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\": "\\", "n": "\n", '"': '"'}


class MetricsWritten(Success, frozen=True, kw_only=True, tag="metrics_written"):
    """The file was written: how many series it has, and up to which revision they count."""

    path: str
    series: int
    revision: int


def read_metrics(
    context: Context, *, file: str | None = None, verify: bool = False
) -> Op[Metrics | MetricsWritten]:
    """All metrics of the store; with a ``file`` they go there, and continue what it has."""
    own = (yield from _verify(context)) if verify else None
    scrape = Scrape(context.runner, context.settings)
    store = yield from named_store(context.runner)
    if file is None:
        return (yield from collected(scrape, RecordCounts(), (yield from judged(store, own))))
    validate.require_text(file, "'file'")
    before: list[Metric] = yield InThread(lambda: earlier(file, store))
    newest = yield from newest_revision()
    after = int(next((each.value for each in before if each.name == REVISION), newest))
    if after > newest:  # another store stands in this place, or an older one was restored
        before, after = [], newest
    verdict = yield from judged(store, own, _verdict(before))
    found = yield from collected(scrape, RecordCounts(after), verdict, before)
    text = metrics_to_text(found).encode()
    yield InThread(lambda: replace_file(file, text))
    return MetricsWritten(path=file, series=len(found), revision=found.revision)


def _verify(context: Context) -> Op[Verdict]:
    from interlock.nouns.record.anchors import verify_with_anchors

    found = yield from verify_with_anchors(context.runner.capabilities, (), "")
    return Verdict(at=time.time(), intact=bool(found))


def _verdict(before: Iterable[Metric]) -> Verdict | None:
    """What the file says of the record; the verdict stays until the record is judged again."""
    values = {each.name: each.value for each in before}
    if INTACT not in values or JUDGED not in values:
        return None
    return Verdict(at=values[JUDGED], intact=values[INTACT] == 1)


# The text format


def metrics_to_text(found: Metrics) -> str:
    """All metrics in the text format, the series of a name together, with a final newline."""
    by_name: dict[str, list[Metric]] = {}
    for each in found.metrics:
        by_name.setdefault(each.name, []).append(each)
    lines: list[str] = []
    for name, series in by_name.items():
        said = next((each.help for each in series if each.help), "")
        lines.append(f"# HELP {name} {_escaped(said, quotes=False)}")
        lines.append(f"# TYPE {name} {series[0].kind}")
        for each in series:
            lines += _samples(each)
    return "\n".join([*lines, ""])


def _samples(metric: Metric) -> Iterator[str]:
    if metric.kind != "histogram":
        yield f"{metric.name}{_labels(metric.labels)} {_number(metric.value)}"
        return
    for bucket in metric.buckets:
        le = "+Inf" if bucket.le is None else _number(bucket.le)
        yield f"{metric.name}_bucket{_labels({**metric.labels, 'le': le})} {bucket.count}"
    yield f"{metric.name}_sum{_labels(metric.labels)} {_number(metric.sum or 0.0)}"
    yield f"{metric.name}_count{_labels(metric.labels)} {_number(metric.value)}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = printable(text).replace("\\", r"\\")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def text_to_metrics(text: str) -> list[Metric]:
    """The metrics of a text that ``metrics_to_text`` made; ValueError for any other."""
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    found: dict[object, dict[str, Any]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", 3)
            (kinds if word == "TYPE" else helps)[name] = _unescaped(rest)
            continue
        matched = _SAMPLE.fullmatch(line)
        if matched is None:
            raise ValueError(line)
        name, labels, value = matched[1], _parsed_labels(matched[2] or ""), float(matched[3])
        part = ""
        for suffix in ("_bucket", "_sum", "_count"):
            if name.endswith(suffix) and kinds.get(name.removesuffix(suffix)) == "histogram":
                name, part = name.removesuffix(suffix), suffix
        le = labels.pop("le", None) if part == "_bucket" else None
        each = found.setdefault(
            (name, *labels.items()), {"name": name, "labels": labels, "buckets": ()}
        )
        if part == "_bucket":
            bound = None if le == "+Inf" else float(le or "")
            each["buckets"] += (MetricBucket(le=bound, count=int(value)),)
        else:
            each["sum" if part == "_sum" else "value"] = value
    return [
        Metric(kind=kinds[each["name"]], help=helps.get(each["name"], ""), **each)  # type: ignore[arg-type]
        for each in found.values()
        if kinds.get(each["name"]) in ("counter", "gauge", "histogram") and "value" in each
    ]


def _parsed_labels(text: str) -> dict[str, str]:
    found = {match[1]: _unescaped(match[2]) for match in _LABEL.finditer(text)}
    if text and not found:
        raise ValueError(text)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), text)


# The file


def earlier(path: str, store: str) -> list[Metric]:
    """The metrics of an earlier file of this store; none if there is no such file."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if data and not data.startswith(_BEGINS):
            raise BadInput(
                f"{printable(path)} is there already and has no metrics; name another file"
            )
        found = text_to_metrics(data.decode()) if len(data) <= LARGEST_FILE else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(
            f"{printable(path)} cannot be read ({error.strerror}); name another file"
        ) from None
    except (ValueError, KeyError, UnicodeError):
        return []
    info = next((each for each in found if each.name == INFO), None)
    return found if info is not None and info.labels.get("store") == store else []


def replace_file(path: str, data: bytes) -> None:
    """Put a file in the place of another in one step; all users may read it."""
    part = f"{path}.{os.urandom(8).hex()}.part"
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(part, path)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        with suppress(OSError, ValueError):
            os.unlink(part)
        raise BadInput(
            f"{printable(path)} cannot be written ({getattr(error, 'strerror', 'a bad name')});"
            " name a file in a folder that exists and that you may write"
        ) from None
