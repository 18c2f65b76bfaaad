"""Where the demo works: a store of its own, where the one is that was named, removed at the end.

Whoever claims the next task may get anybody's, so the demo keeps out of stores that others use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from interlock.errors import BadInput, StoreTrouble
from interlock.stores import file_of, is_network


@contextmanager
def place(store: str | None) -> Iterator[str]:
    """The URL of a new store: on the same server, on the same disk, or in a temporary folder."""
    if store is not None and store.startswith("memory:"):
        raise BadInput("a store in memory is not shared between processes; name another, or none")
    if store is not None and is_network(store):
        with _namespace(store) as url:
            yield url
        return
    named = None if store is None else file_of(store)
    with _folder(None if named is None else os.path.dirname(named) or ".") as folder:
        yield os.path.join(folder, "store.db")


@contextmanager
def _namespace(url: str) -> Iterator[str]:
    from interlock.bench import engines

    engine = engines.network(url, "demo")
    reached = True
    try:
        yield engine.fresh()
    except StoreTrouble:
        reached = False
        raise
    finally:
        if reached:
            with suppress(Exception):  # away by now: whatever was the trouble, it was told
                engine.close()


def _folder(beside: str | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="interlock-demo-", dir=beside)
    except OSError as error:
        raise BadInput(
            f"no folder can be made in {beside or tempfile.gettempdir()}: {error.strerror};"
            " name another store, or none"
        ) from None
