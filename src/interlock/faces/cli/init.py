"""``init``: the only command that creates a store without a URL."""

from __future__ import annotations

import os
from contextlib import suppress

from interlock import store_location
from interlock.errors import StoreMissing, StoreReadOnly
from interlock.faces.cli.command import answer, note
from interlock.faces.cli.connect import CommandIdentity, hush, shown
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import Created, StoreExists


def init(parsed: Parsed) -> int:
    """Create a store in the main worktree, or where ``--store`` or the environment says."""
    from interlock.stores import is_network, open_store

    found = store_location.from_environment()
    url = CommandIdentity(parsed.common).store or (found.url if found else _folder())
    if is_network(url):
        return answer(parsed, _across(url))
    outcome: type[Created | StoreExists] = StoreExists
    try:
        store = open_store(url, create=False)
    except StoreMissing:
        _make_folder_of(url)
        outcome, store = Created, open_store(url)
    path = str(getattr(store, "path", url))
    store.close()
    return answer(parsed, outcome(store=path))


def _across(url: str) -> Created | StoreExists:
    """Connecting once checks a server and marks the namespace; what has no entry yet is new."""
    from interlock.store import Log
    from interlock.stores import open_store

    hush()
    store = open_store(url)
    if caution := str(getattr(store, "caution", "")):
        note(caution)
    try:
        first = Log(limit=1)
        new = not store.read(first).ranges[first]
    finally:
        store.close()
    return Created(store=shown(url)) if new else StoreExists(store=shown(url))


def _make_folder_of(url: str) -> None:
    """Create the folder of the file, too: ``init`` is an explicit wish for a store."""
    from interlock.stores import file_of

    path = file_of(url)
    if path is not None:
        with suppress(OSError):  # opening says what is wrong
            os.makedirs(os.path.dirname(os.path.abspath(path)), 0o700, exist_ok=True)


def _folder() -> str:
    """The folder of this project, for its owner only and never committed."""
    settings = store_location.settings()
    if settings.store:
        return settings.store
    folder = store_location.folder() or os.path.join(store_location.home(), store_location.FOLDER)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        with suppress(FileExistsError), open(os.path.join(folder, ".gitignore"), "x") as file:
            file.write("*\n")
    except OSError as error:
        raise StoreReadOnly(f"{folder} cannot be created ({error.strerror}); use --store") from None
    return os.path.join(folder, store_location.FILE)
