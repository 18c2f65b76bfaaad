"""``demo``, ``bench``, ``selftest`` and ``schema``, whose packages no other command imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC

from msgspec.json import format as formatted

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.faces.cli.command import Unwritten, answer, write, write_json
from interlock.faces.cli.connect import CommandIdentity, hush, opened, url_of
from interlock.faces.cli.parse import Parsed
from interlock.faces.json_output import encoded
from interlock.stores import is_network


def demo(parsed: Parsed) -> int:
    """Run the demonstration."""
    from interlock.demo import run_demo

    request, common = parsed.request, parsed.common
    ttl = validate.duration(request.ttl, "ttl")
    store = CommandIdentity(common).store
    if store is not None and is_network(store):
        hush()
    with _writing():
        return run_demo(
            store, write=write_json if common.json else None, ttl=ttl, workers=request.workers
        )


def bench(parsed: Parsed) -> int:
    """Measure this machine."""
    from interlock.bench import run_bench

    request, common = parsed.request, parsed.common
    with _writing():
        return run_bench(
            common.store,
            write=write_json if common.json else None,
            only=request.only,
            quick=request.quick,
        )


@contextmanager
def _writing() -> Iterator[None]:
    """What writes to stdout itself says as all others do that it is full."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        raise Unwritten(error.errno, error.strerror) from error


def schema(parsed: Parsed) -> int:
    """The schema of what a command prints; without a command, which there are, or all as JSON."""
    from interlock import registry
    from interlock.faces import schema as schemas

    name = " ".join(parsed.request.words)
    try:
        operation = registry.find(name) if name else None
    except KeyError:
        from interlock.faces.cli.help import meant

        question = meant(name) or "see 'interlock schema'"
        raise BadInput(f"there is no command {quoted(name)}; {question}") from None
    if operation is not None and parsed.common.json:
        write_json(schemas.schema(operation.name))
    elif operation is not None:
        write(formatted(encoded(schemas.schema(operation.name))) + b"\n")
    elif parsed.common.json:
        found = schemas.all_schemas()
        write_json({"schemas": found, "count": len(found)})
    else:
        write("".join(f"interlock schema {each}\n" for each in registry.names()).encode())
    return 0


def selftest(parsed: Parsed) -> int:
    """Put the promises to the test, on the store that is meant."""
    from interlock.testing.selftest import race

    request, store = parsed.request, CommandIdentity(parsed.common).store
    if not request.race:
        raise BadInput("which test? --race lets processes fight for tasks")
    most = (
        validate.FOREVER
        if request.seconds is None
        else validate.duration(request.seconds, "seconds")
    )
    with opened(store, join=False) as fleet:
        url = url_of(fleet.store, store)
    raced = race(url, processes=request.processes, tasks=request.tasks, seconds=most)
    return answer(parsed, raced)
