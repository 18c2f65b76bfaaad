"""The demonstration, the measurements and the trials, which are packages of their own."""

from __future__ import annotations

from interlock.core import words
from interlock.errors import BadInput
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import Identity, hush, opened, url_of
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


def selftest(parsed: Parsed) -> int:
    """Put the promises to the test, on the store that is meant."""
    from interlock.testing.race import race

    request, store = parsed.request, Identity(parsed.common).store
    if not request.race:
        raise BadInput("which test? --race lets processes fight for tasks")
    most = words.FOREVER if request.seconds is None else words.duration(request.seconds, "seconds")
    with opened(store, join=False) as fleet:
        url = url_of(fleet.store, store)
    raced = race(url, processes=request.processes, tasks=request.tasks, seconds=most)
    return answer(parsed, raced)
