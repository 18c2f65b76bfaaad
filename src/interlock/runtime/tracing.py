"""Spans of OpenTelemetry: one for each change that a client carries out.

They are off unless ``INTERLOCK_OTEL`` is set when a client connects: then its runner is a
``TracedRunner``, and otherwise a plain one, so that no change pays for a question.

A span is in the trace of the caller's own span, if there is one.  Else its trace id is that of the
record (``trc_...`` has its 32 digits), or is made of the name that the caller gave to its trace: so
the spans of all processes that work under one trace are together, as their entries are.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from opentelemetry import trace as api
from opentelemetry.context import Context

from interlock.core.decision import Decision
from interlock.errors import BadInput, InterlockError
from interlock.runtime.attempt import DecideOp, outcome_word
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")

SWITCH = "INTERLOCK_OTEL"
NAME = "interlock"
_ID = re.compile(r"(?:trc_)?([0-9a-f]{32})")


class TracedRunner(Runner):
    """A runner whose changes have spans."""

    def change(
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        guess: Mapping[str, Item | None] | None = None,
        *,
        urgent: bool = False,
        hopeful: bool = True,
    ) -> Op[Decided[T]]:
        """Carry a decision through, inside a span; a change without a commit is one, too."""
        decided: list[Decision[T]] = []

        def noted() -> DecideOp[T]:
            decision = yield from deciding()
            decided[:] = [decision]
            return decision

        named = TRACE.get() or actor.trace
        tracer = provider().get_tracer(NAME)
        # No span is made the current one: an event loop carries out many changes side by side.
        span = tracer.start_span("interlock.change", context=_context(named))
        span.set_attributes(
            {"interlock.trace": named, "interlock.agent": actor.agent,
             "interlock.session": actor.session, "db.system": self.capabilities.engine}
        )  # fmt: skip
        try:
            done = yield from super().change(noted, actor, guess, urgent=urgent, hopeful=hopeful)
        except InterlockError as error:
            span.set_status(api.Status(api.StatusCode.ERROR, error.code))
            raise
        except Exception as error:
            span.set_status(api.Status(api.StatusCode.ERROR, type(error).__name__))
            raise
        else:
            span.set_attribute("interlock.outcome", outcome_word(done.outcome))
            if done.revision is not None:
                span.set_attribute("interlock.revision", done.revision)
            return done
        finally:
            for decision in decided[-1:]:
                if decision.verb:
                    span.update_name(decision.verb)
                    span.set_attribute("interlock.thing", decision.thing)
            span.end()


def _context(named: str) -> Context | None:
    """The place of a span: below the current one, else in the trace of the record."""
    if api.get_current_span().get_span_context().is_valid:
        return None
    found = _ID.fullmatch(named)
    digest = hashlib.sha256(named.encode()).digest()
    number = int(found[1], 16) if found else int.from_bytes(digest[:16], "big")
    parent = api.SpanContext(
        trace_id=number or 1,
        span_id=int.from_bytes(digest[16:24], "big") or 1,
        is_remote=True,
        trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
    )
    return api.set_span_in_context(api.NonRecordingSpan(parent))


_own: list[api.TracerProvider] = []


def provider() -> api.TracerProvider:
    """The provider of the program; one that we set up if ``INTERLOCK_OTEL`` names an exporter."""
    if not _own:
        _own.append(_made(os.environ.get(SWITCH, "")))
    return _own[0]


def _made(word: str) -> api.TracerProvider:
    if word not in ("console", "otlp"):
        return api.get_tracer_provider()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        ConsoleSpanExporter,
        SimpleSpanProcessor,
        SpanExporter,
    )

    exporter: SpanExporter = ConsoleSpanExporter(out=sys.stderr)
    if word == "otlp":
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise BadInput(
                f"{SWITCH}=otlp needs its exporter:"
                " pip install opentelemetry-exporter-otlp-proto-http"
            ) from None
        exporter = OTLPSpanExporter()
    made = TracerProvider(resource=Resource.create({"service.name": NAME}))
    # A command ends too soon for a processor that works in the background.
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made
