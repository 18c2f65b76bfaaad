"""Finds the store for a working directory, without running git, so that a command starts quickly.

``--store``, else INTERLOCK_STORE, else the etcd that IF_ETCD_HOST and IF_ETCD_PORT name, else
``.interlock`` upward from the working directory (not beyond the repository), else that of the main
worktree: agents in sibling worktrees always use one store.
"""

from __future__ import annotations

import os
import re

from msgspec import Struct

from interlock.errors import BadInput, StoreMissing, StoreUnsuitable
from interlock.settings import Settings

FOLDER = ".interlock"
FILE = "store.db"
_ETCD = ("IF_ETCD_HOST", "IF_ETCD_PORT")
_ETCD_PORT = 2379
_HIGHEST_PORT = 65535
_HOST = r"[\w.-]+|\[?[0-9A-Fa-f:.]+\]?"


class StoreLocation(Struct, frozen=True):
    """A store, and how it was found: a variable, ``config.toml``, ``folder``, ``main worktree``."""

    url: str
    how: str


def find_store(start: str | None = None) -> str:
    """The URL or path of the store for a working directory."""
    return locate(start).url


def locate(start: str | None = None) -> StoreLocation:
    """The store for a working directory, and how it was found."""
    if found := from_environment():
        return found
    here = _here(start)
    place = folder(here)
    if place is None:
        raise StoreMissing(
            "there is no store here; run 'interlock init', or name one: connect(URL), --store URL"
        )
    if not _trusted(place):
        raise StoreUnsuitable(
            f"{place} belongs to user {_owner(place)}, who could change the store behind your back;"
            " name a store of your own with --store PATH"
        )
    if url := Settings(place).store:
        return StoreLocation(url, "config.toml")
    near = os.path.dirname(place) in _upward(here)
    return StoreLocation(os.path.join(place, FILE), "folder" if near else "main worktree")


def from_environment() -> StoreLocation | None:
    """The store that the environment names, if it does."""
    if url := os.environ.get("INTERLOCK_STORE"):
        return StoreLocation(url, "INTERLOCK_STORE")
    if given := [name for name in _ETCD if os.environ.get(name)]:
        return StoreLocation(f"etcd://{_etcd_host()}:{_etcd_port()}/interlock", " and ".join(given))
    return None


def folder(start: str | None = None) -> str | None:
    """The ``.interlock`` folder that a working directory belongs to."""
    here = _here(start)
    for parent in (*_upward(here), main_worktree(here)):
        if parent is not None and os.path.isdir(os.path.join(parent, FOLDER)):
            return os.path.join(parent, FOLDER)
    return None


def settings(start: str | None = None) -> Settings:
    """The settings for a working directory, however its store was named."""
    try:
        place = folder(start)
    except StoreMissing:
        place = None
    return Settings(place if place is not None and _trusted(place) else None)


def home(start: str | None = None) -> str:
    """Where ``init`` puts the folder: the main worktree, or here if this is no repository."""
    here = _here(start)
    return main_worktree(here) or here


def main_worktree(start: str) -> str | None:
    """The main worktree of the repository that a folder is in; None outside of one."""
    root = next((f for f in _upward(start) if os.path.lexists(os.path.join(f, ".git"))), None)
    if root is None:
        return None
    own, common = git_folders(os.path.join(root, ".git"))
    if own == common:  # the main worktree itself, or a submodule
        return root
    return os.path.dirname(common) if os.path.basename(common) == ".git" else common


def git_folders(git: str) -> tuple[str, str]:
    """The git folder of the worktree with this ``.git``, and the one that all worktrees share."""
    if os.path.isdir(git):
        return git, git
    text = _first_line(git)
    if not text.startswith("gitdir: "):
        return git, git
    own = os.path.realpath(os.path.join(os.path.dirname(git), text.removeprefix("gitdir: ")))
    common = _first_line(os.path.join(own, "commondir"))
    return own, os.path.realpath(os.path.join(own, common)) if common else own


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline().rstrip("\n")
    except OSError:
        return ""


def _upward(folder: str) -> list[str]:
    """The folder and its parents, up to the root of the repository."""
    found = [folder]
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        found.append(folder)
    return found


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


def _owner(place: str) -> str:
    """The name of the user who owns a folder, or the number of one without a name."""
    from pwd import getpwuid

    number = os.stat(place).st_uid
    try:
        return getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _trusted(place: str) -> bool:
    """Whether the user owns the folder: its owner decides which store is used."""
    return os.getuid() in (0, os.stat(place).st_uid)
