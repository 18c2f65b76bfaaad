"""Spans of OpenTelemetry: one for each change, in the trace of the record, if asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import interlock
from interlock import aio
from interlock.errors import StoreAway
from interlock.runtime import tracing
from interlock.runtime.runner import Runner
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore


class Spans:
    """The exported spans."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setenv("INTERLOCK_OTEL", "1")
    monkeypatch.setattr(tracing, "_own", [provider])
    yield Spans(provider, exporter)
    provider.shutdown()


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def test_a_change_has_a_span_with_the_trace_of_its_entry(spans: Spans) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        fleet.locks.acquire("merge")
        fleet.locks.acquire("merge")
        (entry, *_) = fleet.record.log(verb="lock.acquire")
    first, *_ = spans.named("lock.acquire")
    assert entry.trace == f"trc_{trace_id(first)}"
    assert first.attributes is not None
    assert first.attributes["interlock.thing"] == "lock/merge"
    assert first.attributes["interlock.outcome"] == "acquired"
    assert first.attributes["interlock.revision"] == entry.revision
    assert first.attributes["interlock.agent"] == "ada"


def test_processes_under_one_named_trace_share_it(spans: Spans) -> None:
    for agent in ("ada", "bob"):
        with interlock.connect("memory:", agent=agent, trace="build-7") as fleet:
            fleet.tasks.publish("t1")
    one, two = map(trace_id, spans.named("task.publish") or spans.named("task.add"))
    assert one == two


def test_a_span_of_the_caller_is_the_parent(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("program")
    with (
        interlock.connect("memory:", agent="ada") as fleet,
        tracer.start_as_current_span("work") as work,
    ):
        fleet.locks.acquire("merge")
    (span,) = spans.named("lock.acquire")
    assert span.parent is not None
    assert span.parent.span_id == work.get_span_context().span_id


def test_spans_of_an_event_loop_end_with_their_changes(spans: Spans) -> None:
    async def main() -> None:
        async with await aio.connect("memory:", agent="ada") as fleet:
            await asyncio.gather(*[fleet.locks.acquire(f"lock{number}") for number in range(8)])

    asyncio.run(main())
    found = {
        str((span.attributes or {})["interlock.thing"]) for span in spans.named("lock.acquire")
    }
    assert found == {f"lock/lock{number}" for number in range(8)}


def test_an_error_is_the_status_of_its_span(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with interlock.connect(store=store, agent="ada") as fleet:

        def transact(*_: object, **__: object) -> object:
            raise StoreAway("gone")

        with monkeypatch.context() as patch:
            patch.setattr(store, "transact", transact)
            with pytest.raises(StoreAway):
                fleet.locks.acquire("merge")
    failed = [each for each in spans.named("interlock.change") if not each.status.is_ok]
    assert [each.status.description for each in failed] == ["store_away"]


def test_it_is_off_by_default_and_then_imports_nothing(tmp_path: Path) -> None:
    with interlock.connect("memory:", agent="ada") as fleet:
        assert type(fleet.context.runner) is Runner
    script = (
        "import sys, interlock\n"
        "with interlock.connect('memory:', agent='ada') as fleet:\n"
        "    fleet.locks.acquire('merge')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_a_command_writes_its_spans_to_stderr_when_asked(tmp_path: Path) -> None:
    command = str(Path(sys.executable).parent / "interlock")
    words = ["lock", "acquire", "merge", "--agent", "ada", "--store", str(tmp_path / "store.db")]
    open_store(str(tmp_path / "store.db")).close()
    done = subprocess.run(
        [command, *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "INTERLOCK_OTEL": "console"},
    )
    assert done.stdout.startswith("acquired merge, token 1")
    assert '"name": "lock.acquire"' in done.stderr


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_OTEL", "1")
    monkeypatch.delitem(sys.modules, "interlock.runtime.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(interlock.BadInput, match=r"pip install 'interlock\[otel\]'"):
        interlock.connect("memory:", agent="ada")
