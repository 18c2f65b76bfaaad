"""Finds the store for a working directory, without running git, so that a command starts quickly.

``--store``, else INTERLOCK_STORE, else the settings that INTERLOCK_SETTINGS names, else the etcd
that IF_ETCD_HOST and IF_ETCD_PORT name, else ``.interlock`` upward from the working directory (not
beyond the repository), else that of the main worktree: agents in sibling worktrees always use one
store.  A folder ``interlock`` in the shared git folder (``init --shared``) stands above the
``.interlock`` of the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock import work_tree
from interlock.errors import BadInput, NotAllowed, StoreMissing
from interlock.git_command import git_folders, main_worktree, upward
from interlock.settings import FILE as CONFIG
from interlock.settings import Settings
from interlock.stores import file_of, open_store, open_store_async
from interlock.work_tree import FILE, FOLDER, SHARED

if TYPE_CHECKING:
    from interlock.store import Store

SETTINGS = "INTERLOCK_SETTINGS"
"""The environment variable that names a file with settings, which then counts as it is."""
_ETCD = ("IF_ETCD_HOST", "IF_ETCD_PORT")
_ETCD_PORT = 2379
_HIGHEST_PORT = 65535
_HOST = r"[\w.-]+|\[?[0-9A-Fa-f:.]+\]?"


class StoreLocation(Struct, frozen=True):
    """A store, and how it was found: a variable, ``config.toml``, ``folder``, ...."""

    url: str
    how: str


def find_store(start: str | None = None) -> str:
    """The URL or path of the store for a working directory."""
    return locate(start).url


def locate(start: str | None = None) -> StoreLocation:
    """The store for a working directory, and how it was found.

    A store of the work tree counts only if it is allowed; one that the user named does.
    """
    if found := from_environment():
        named_store(found.url, create=False)
        return found
    here = _here(start)
    named = bool(os.environ.get(SETTINGS))
    for place in places(here):
        if not named and (url := _settings_of(place).store):
            if (path := file_of(url)) is not None:
                work_tree.require_store(path)
            return StoreLocation(url, "config.toml")
        path = os.path.join(place, FILE)
        if work_tree.require_store(path):
            return StoreLocation(path, _how(place, here))
    raise StoreMissing(
        "there is no store here; run 'interlock init', or name one: connect(URL), --store URL"
    )


def store_of_settings() -> str | None:
    """The store that the settings for the working directory name."""
    for place in places(_here(None)):
        if url := _settings_of(place).store:
            return url
        if work_tree.may_be_store(os.path.join(place, FILE)):
            break
    return None


def _settings_of(place: str) -> Settings:
    """The settings of a folder that count; raises if they were allowed and are gone."""
    return Settings(place, work_tree.allowed_settings)


def _how(place: str, here: str) -> str:
    if os.path.basename(place) == SHARED:
        return "git folder"
    return "folder" if os.path.dirname(place) in upward(here) else "main worktree"


def named_store(url: str | os.PathLike[str], *, create: bool = True) -> str:
    """A store that the user names, which needs no permission, unless a checkout replaced it.

    ``create`` if the caller makes a store where none is.
    """
    named = os.fspath(url)
    if (path := file_of(named)) is not None:
        work_tree.require_not_replaced(path, create=create)
    return named


def open_place(place: str, *, create: bool = False, filling: bool = False) -> Store:
    """Open a store that was found or named.

    NotAllowedYet if a checkout replaced it after it was looked at; once it is open, each of its
    answers notices that.
    """
    return _not_replaced(place, open_store(place, create=create, filling=filling))


async def open_place_async(place: str, *, create: bool = False) -> Store:
    """Open it in an event loop."""
    return _not_replaced(place, await open_store_async(place, create=create))


def _not_replaced(place: str, store: Store) -> Store:
    try:
        named_store(place, create=False)
    except BaseException:
        store.close()
        raise
    return store


def from_environment() -> StoreLocation | None:
    """The store that the environment names, if it does."""
    if url := os.environ.get("INTERLOCK_STORE"):
        return StoreLocation(url, "INTERLOCK_STORE")
    if url := _named_settings().store:
        return StoreLocation(url, SETTINGS)
    if given := [name for name in _ETCD if os.environ.get(name)]:
        return StoreLocation(f"etcd://{_etcd_host()}:{_etcd_port()}/interlock", " and ".join(given))
    return None


def folder(start: str | None = None) -> str | None:
    """The nearest folder with a store or with settings for a working directory."""
    return next(
        (
            place
            for place in places(_here(start))
            if work_tree.may_be_store(os.path.join(place, FILE))
            or os.path.lexists(os.path.join(place, CONFIG))
        ),
        None,
    )


def places(here: str) -> Iterator[str]:
    """The folders that may have the store or settings, the nearest first.

    A folder without either hides none further up: a commit can bring one.
    """
    *below, top = upward(here)
    for parent in below:
        yield os.path.join(parent, FOLDER)
    if (shared := shared_folder(top)) is not None:
        yield shared
    yield os.path.join(top, FOLDER)
    main = main_worktree(top)
    if main is not None and main != top:
        yield os.path.join(main, FOLDER)


def shared_folder(parent: str) -> str | None:
    """Where ``init --shared`` puts the store, which no commit can write; None outside of git."""
    git = os.path.join(parent, ".git")
    return os.path.join(git_folders(git)[1], SHARED) if os.path.lexists(git) else None


def settings(start: str | None = None) -> Settings:
    """The settings for a working directory, however its store was named.

    Those of a work tree that are not allowed are left out, with a warning: where the store was
    found in the work tree, too, it was refused before.
    """
    if os.environ.get(SETTINGS):
        return _named_settings()
    try:
        return Settings(folder(start), _counting)
    except StoreMissing:
        return Settings()


def _named_settings() -> Settings:
    named = os.environ.get(SETTINGS)
    if not named:
        return Settings()
    if not os.path.isfile(named):
        raise BadInput(f"{SETTINGS} is {named[:200]!r}, which is no file; name a file, or unset it")
    return Settings(file=os.path.abspath(named))


def _counting(path: str) -> bytes | None:
    try:
        return work_tree.allowed_settings(path)
    except NotAllowed as error:
        import logging

        logging.getLogger("interlock").warning(
            "%s; they are left out", str(error).partition(":")[0]
        )
        return None


def home(start: str | None = None) -> str:
    """Where ``init`` puts the folder: the main worktree, or here if this is no repository."""
    here = _here(start)
    return main_worktree(here) or here


def _here(start: str | None) -> str:
    try:
        return os.path.realpath(start or os.getcwd())
    except OSError:
        raise StoreMissing("the working directory is gone; go somewhere else first") from None


def _etcd_host() -> str:
    host = os.environ.get("IF_ETCD_HOST") or "localhost"
    if re.fullmatch(_HOST, host) is None:
        raise BadInput(
            f"IF_ETCD_HOST is {host[:40]!r}, which is no host; give one, as in localhost"
        )
    return f"[{host}]" if ":" in host and host[0] != "[" else host


def _etcd_port() -> int:
    port = os.environ.get("IF_ETCD_PORT") or str(_ETCD_PORT)
    number = int(port) if port.isascii() and port.isdigit() and len(port) < len("1000000") else 0
    if not 0 < number <= _HIGHEST_PORT:
        raise BadInput(f"IF_ETCD_PORT is {port[:40]!r}; give a port, 1 to {_HIGHEST_PORT}")
    return number
