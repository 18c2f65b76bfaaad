"""Which store: found without asking git, so that a command starts quickly.

``--store``, else INTERLOCK_STORE, else ``.interlock`` upward from the working directory (not
beyond the repository), else that of the main worktree: agents in sibling worktrees always meet.
"""

from __future__ import annotations

import os

from interlock.errors import StoreMissing, StoreUnsuitable

FOLDER = ".interlock"
FILE = "store.db"


def find_store(start: str | None = None) -> str:
    """The URL or path of the store for a working directory."""
    if url := os.environ.get("INTERLOCK_STORE"):
        return url
    here = os.path.realpath(start or os.getcwd())
    for folder in _upward(here):
        if os.path.isdir(os.path.join(folder, FOLDER)):
            return _inside(folder)
    main = main_worktree(here)
    if main is not None and os.path.isdir(os.path.join(main, FOLDER)):
        return _inside(main)
    raise StoreMissing("there is no store here; run 'interlock init', or name one with --store")


def home(start: str | None = None) -> str:
    """Where ``init`` puts the folder: the main worktree, or here if this is no repository."""
    here = os.path.realpath(start or os.getcwd())
    return main_worktree(here) or here


def main_worktree(start: str) -> str | None:
    """The main worktree of the repository that a folder is in; None outside of one."""
    root = next((f for f in _upward(start) if os.path.lexists(os.path.join(f, ".git"))), None)
    if root is None:
        return None
    git = os.path.join(root, ".git")
    if os.path.isdir(git):
        return root
    common = _common_dir(git)
    if common is None:
        return root
    return os.path.dirname(common) if os.path.basename(common) == ".git" else common


def _common_dir(git: str) -> str | None:
    """What a linked worktree's ``.git`` file leads to; None for a submodule, which is its own."""
    text = _first_line(git)
    if not text.startswith("gitdir: "):
        return None
    folder = os.path.join(os.path.dirname(git), text.removeprefix("gitdir: "))
    common = _first_line(os.path.join(folder, "commondir"))
    return os.path.realpath(os.path.join(folder, common)) if common else None


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


def _inside(folder: str) -> str:
    place = os.path.join(folder, FOLDER)
    owner = os.stat(place).st_uid
    if os.getuid() not in (0, owner):
        raise StoreUnsuitable(f"{place} belongs to another user; run 'interlock init' or --store")
    return _configured(place) or os.path.join(place, FILE)


def _configured(place: str) -> str | None:
    """The store that ``config.toml`` names, if there is one."""
    path = os.path.join(place, "config.toml")
    if not os.path.exists(path):
        return None
    import tomllib

    try:
        with open(path, "rb") as file:
            store = tomllib.load(file).get("store")
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StoreMissing(f"{path} cannot be read ({error}); mend or remove it") from None
    return store if isinstance(store, str) else None
