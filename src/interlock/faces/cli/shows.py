"""The demonstration and the measurements, which are packages of their own."""

from __future__ import annotations

from interlock.core import words
from interlock.faces.cli.connect import Identity, hush
from interlock.faces.cli.parse import Parsed
from interlock.stores import is_network


def demo(parsed: Parsed) -> int:
    """See it work."""
    from interlock.demo import run_demo

    request, common = parsed.request, parsed.common
    ttl = words.duration(request.ttl, "ttl")
    store = Identity(common).store
    if store is not None and is_network(store):
        hush()
    return run_demo(store, json=common.json, ttl=ttl, workers=request.workers)


def bench(parsed: Parsed) -> int:
    """Measure this machine."""
    from interlock.bench import run_bench

    request, common = parsed.request, parsed.common
    return run_bench(common.store, json=common.json, only=request.only, quick=request.quick)
