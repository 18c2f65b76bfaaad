"""Engines behind the waist; ``open_store`` picks one by URL."""

from __future__ import annotations

import os

from interlock.errors import BadInput
from interlock.store import Store

_SHOWN = 200


def open_store(url: str, *, create: bool = True) -> Store:
    """The store that a URL names; a plain path is a SQLite file."""
    path = file_of(url)
    if path is None:
        from interlock.stores.memory import MemoryStore

        return MemoryStore()
    from interlock.stores.sqlite import SQLiteStore

    return SQLiteStore(path, create=create)


def file_of(url: str) -> str | None:
    """The file that a URL names; None for a store that has none."""
    scheme, separator, rest = url.partition(":")
    if not separator or (scheme not in ("sqlite", "memory") and "://" not in url):
        return _file(url)
    match scheme:
        case "memory":
            return None
        case "sqlite":
            if not rest.startswith("///"):
                raise BadInput(f"{url[:_SHOWN]!r} is not like sqlite:///absolute/path.db")
            return _file(_decoded(rest[2:]))
        case _:
            scheme = scheme[:_SHOWN]
            raise BadInput(f"no store speaks {scheme}://; use sqlite:///path.db or a plain path")


def _file(path: str) -> str:
    if not path or "\0" in path:
        raise BadInput("the path of the store is empty or has a NUL; name a file")
    return os.path.expanduser(path)


def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path)
