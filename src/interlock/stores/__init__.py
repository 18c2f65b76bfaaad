"""Engines behind the waist; ``open_store`` picks one by URL."""

from __future__ import annotations

import os

from interlock.errors import BadInput
from interlock.store import Store


def open_store(url: str, *, create: bool = True) -> Store:
    """The store that a URL names; a plain path is a SQLite file."""
    scheme, separator, rest = url.partition(":")
    if not separator or (scheme not in ("sqlite", "memory") and "://" not in url):
        return _sqlite(url, create=create)
    match scheme:
        case "memory":
            from interlock.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            if not rest.startswith("///"):
                raise BadInput(f"{url!r} is not like sqlite:///absolute/path.db")
            return _sqlite(_decoded(rest[2:]), create=create)
        case _:
            raise BadInput(f"no store speaks {scheme}://; use sqlite:///path.db or a plain path")


def _sqlite(path: str, *, create: bool) -> Store:
    from interlock.stores.sqlite import SQLiteStore

    if not path or "\0" in path:
        raise BadInput("the path of the store is empty or has a NUL; name a file")
    return SQLiteStore(os.path.expanduser(path), create=create)


def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path)
