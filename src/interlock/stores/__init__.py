"""Engines behind the waist; ``open_store`` picks one by URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from interlock.descriptors import named
from interlock.errors import BadInput, StoreUnsuitable
from interlock.store import Store, StoreMark

if TYPE_CHECKING:
    from interlock.stores.etcd import EtcdStore
    from interlock.stores.redis import RedisStore

SCHEMES: dict[str, tuple[Literal["redis", "etcd"], bool]] = {
    "redis": ("redis", False),
    "rediss": ("redis", True),
    "redis+unix": ("redis", False),
    "valkey": ("redis", False),
    "valkeys": ("redis", True),
    "valkey+unix": ("redis", False),
    "etcd": ("etcd", False),
    "etcds": ("etcd", True),
}
"""The engine across a network that a scheme names, and whether it speaks TLS."""

GIT_SCHEMES = ("git+file", "git+ssh", "git+https", "git+http")
"""A branch of a remote that the user's own git reaches."""

_SHOWN = 200


def open_store(url: str, *, create: bool = True, filling: bool = False) -> Store:
    """The store that a URL names; a plain path is a SQLite file.

    A store that is an incomplete copy of another is refused: what it lacks would look free.
    ``filling`` is for the process that fills it.
    """
    try:
        store = _opened(url, create=create)
    except OSError as error:
        raise named(error) from error.__cause__
    if not filling:
        try:
            _refuse_filling(store, url)
        except BaseException:
            store.close()
            raise
    return store


def _opened(url: str, *, create: bool) -> Store:
    if is_git(url):
        from interlock.stores.git import GitStore

        return GitStore(url, create=create)
    if is_network(url):
        store = _network(url)
        try:
            store.open()
        except BaseException:
            store.close()
            raise
        return store
    path = file_of(url)
    if path is None:
        from interlock.stores.memory import MemoryStore

        name = url.partition(":")[2].strip("/")
        return MemoryStore.shared(name) if name else MemoryStore()
    from interlock.stores.sqlite import SQLiteStore

    return SQLiteStore(path, create=create)


async def open_store_async(url: str, *, create: bool = True) -> Store:
    """Open a store in an event loop."""
    if is_git(url):
        import asyncio

        return await asyncio.to_thread(open_store, url, create=create)
    if not is_network(url):
        return open_store(url, create=create)
    store = _network(url)
    try:
        await store.open_async()
        _refuse_filling(store, url)
    except BaseException:
        await store.close_async()
        raise
    return store


def _refuse_filling(store: Store, url: str) -> None:
    mark: StoreMark | None = getattr(store, "mark_at_opening", None)
    if mark is not None and mark.state == "filling":
        from interlock.stores.marks import refusal

        raise refusal(mark, str(getattr(store, "where", url)))


def is_network(url: str) -> bool:
    """Whether a URL names an engine across a network."""
    return (url.partition("://")[0].lower() in SCHEMES and "://" in url) or is_git(url)


def is_git(url: str) -> bool:
    """Whether a URL names a branch of a git repository."""
    return url.partition("://")[0].lower() in GIT_SCHEMES and "://" in url


def shown(url: str) -> str:
    """The URL of an engine across a network for display, without its password."""
    if is_git(url):
        from interlock.stores.git.address import parse as parse_git

        return parse_git(url).shown
    from interlock.stores.address import parse

    return parse(url).shown


def _network(url: str) -> RedisStore | EtcdStore:
    from interlock.stores.address import parse

    address = parse(url)
    try:
        if address.engine == "redis":
            from interlock.stores.redis import RedisStore

            return RedisStore(address)
        from interlock.stores.etcd import EtcdStore

        return EtcdStore(address)
    except ModuleNotFoundError:
        packages = {"redis": "hiredis", "etcd": "grpcio and protobuf"}[address.engine]
        raise StoreUnsuitable(
            f"{address.engine} needs {packages};"
            f" install with: pip install 'interlock[{address.engine}]', or '.[{address.engine}]'"
            " in a clone"
        ) from None


def file_of(url: str) -> str | None:
    """The file that a URL names; None for a store that has none."""
    if is_network(url):
        return None
    scheme, separator, rest = url.partition(":")
    if separator and scheme in SCHEMES:
        raise BadInput(f"a {scheme} URL is written like {scheme}://localhost")
    if separator and scheme in (*GIT_SCHEMES, "git"):
        raise BadInput("a git URL is written like git+file:///path.git or git+ssh://host/path.git")
    if separator and "/" not in scheme and rest.partition("/")[0].isdigit():
        raise BadInput(
            f"{url[:_SHOWN]!r} looks like a server; write redis:// or etcd:// before it,"
            " or ./ before the name of a file"
        )
    if separator and "/" not in scheme and "://" not in url and "@" in scheme:
        raise BadInput(
            f"{url[:_SHOWN]!r} looks like a git remote; write git+ssh://host/path.git,"
            " or ./ before the name of a file"
        )
    if not separator or (scheme not in ("sqlite", "memory") and "://" not in url):
        return _no_mere_name(_file(url))
    match scheme:
        case "memory":
            return None
        case "sqlite":
            if not rest.startswith("///"):
                raise BadInput(f"{url[:_SHOWN]!r} is not like sqlite:///absolute/path.db")
            return _file(_decoded(rest[2:]))
        case _:
            raise _no_store_speaks(scheme[:_SHOWN])


def _no_store_speaks(scheme: str) -> BadInput:
    if scheme in ("http", "https", "ssh"):
        return BadInput(
            f"no store speaks {scheme}://; a branch of a git remote is git+{scheme}://host/path.git"
        )
    return BadInput(
        f"no store speaks {scheme}://;"
        " use sqlite:///path.db, redis://host, etcd://host, git+ssh://host/path.git"
        " or a plain path"
    )


def _file(path: str) -> str:
    if not path or "\0" in path:
        raise BadInput("the path of the store is empty or has a NUL; name a file")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput("the path of the store is not UTF-8; write it in UTF-8") from None
    return os.path.expanduser(path)


def _no_mere_name(path: str) -> str:
    """A file that is not there yet is named as a file, so that a mistyped name creates none."""
    if "/" in path or "." in path or os.path.exists(path):
        return path
    name = path[:_SHOWN]
    raise BadInput(
        f"there is no file {name!r} here; did you mean connect(agent={name!r}), or --agent?"
        f" for a file of that name write ./{name}"
    )


def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote

    return unquote(path)
