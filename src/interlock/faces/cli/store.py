"""Commands about whole stores: copy, backup, restore."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from interlock import store_location, work_tree, work_tree_list
from interlock.client_setup import entry_signer
from interlock.errors import BadInput, NotAllowed, StoreGone, StoreTrouble
from interlock.faces.cli.command import answer, note
from interlock.faces.cli.connect import CommandIdentity, allow_store, hush, require_made
from interlock.runtime.progress import report
from interlock.stores import file_of, is_network, open_store

if TYPE_CHECKING:
    from interlock.faces.cli.parse import Parsed
    from interlock.nouns.fleet.moving import CopyProgress
    from interlock.nouns.fleet.store_noun import (
        StoreBackupRequest,
        StoreCopyRequest,
        StoreRestoreRequest,
    )
    from interlock.store import Store, StoreMark

_BETWEEN = 1.0
"""Seconds between two lines of progress."""


def copy(parsed: Parsed) -> int:
    """Move a store, continue that, or take it back."""
    from interlock.nouns.fleet.moving import StoreCopy

    request: StoreCopyRequest = parsed.request
    if parsed.common.store is not None:
        raise BadInput("name both stores: interlock store copy FROM TO, without --store")
    if request.lost and not request.abort:
        raise BadInput("--lost is for --abort: it deletes the incomplete copy of a lost store")
    hush()
    if (made := file_of(request.target)) is not None:
        _refuse_coding_agent(made)
    if request.lost:
        return answer(parsed, _abort_lost(request))
    with ExitStack() as stack:
        source = stack.enter_context(closing(_opened(request.source, create=False)))
        require_made(source)
        try:
            target = stack.enter_context(closing(_opened(request.target, create=not request.abort)))
        except StoreTrouble as trouble:
            if not request.abort:
                raise
            return answer(parsed, _abort_alone(source, request, trouble))
        places = place_of(source, request.source), place_of(target, request.target)
        signer = entry_signer(parsed.common.key)
        work = StoreCopy(source, target, places, signer=signer, report=_Progress().show)
        try:
            outcome = work.abort() if request.abort else work.run(damaged=request.damaged)
            if not request.abort and made is not None:
                allow_store(made)
        except BaseException:
            _tell_if_unfinished(source, target, places)
            raise
    return answer(parsed, outcome)


def _tell_if_unfinished(source: Store, target: Store, places: tuple[str, str]) -> None:
    """After an error or an interruption: agents wait, so say how to end that."""
    again = "run the same command again to continue it"
    try:
        theirs = _mark(source)
        if theirs is not None and theirs.state == "moving":
            note(
                f"the move is not complete, and {places[0]} accepts no changes until it is:"
                f" {again}, or with --abort to take it back"
            )
        elif theirs is not None and _mark(target) is not None:
            note(
                f"the move is not complete, and neither store accepts changes until it is: {again}"
            )
    except StoreTrouble:
        note(f"the move may not be complete: when both stores answer, {again}")


def _mark(store: Store) -> StoreMark | None:
    return store.mark()  # type: ignore[attr-defined,no-any-return]  # it can be moved


def _opened(url: str, *, create: bool) -> Store:
    if url.startswith("memory:"):
        raise BadInput("memory: is gone when this command ends; name a file or a server")
    return open_store(url, create=create, filling=True)


def _abort_alone(source: Store, request: StoreCopyRequest, trouble: StoreTrouble) -> object:
    """Open the source again, though the target does not answer."""
    from interlock.nouns.fleet.moving import abort_alone

    place = place_of(source, request.source)
    return abort_alone(source, place, request.target, str(trouble))


def _abort_lost(request: StoreCopyRequest) -> object:
    """Empty a target whose source is lost for good."""
    from interlock.nouns.fleet.moving import abort_lost

    with ExitStack() as stack:
        target = stack.enter_context(closing(_opened(request.target, create=False)))
        source = None
        with suppress(StoreTrouble):
            source = stack.enter_context(closing(_opened(request.source, create=False)))
        named = request.source if source is None else place_of(source, request.source)
        return abort_lost(source, target, (named, place_of(target, request.target)))


def place_of(store: Store, url: str) -> str:
    """A store as every process names it, without its password."""
    address = getattr(store, "address", None)
    shown = str(getattr(store, "where", "") or getattr(address, "shown", ""))
    return shown or str(getattr(store, "path", "") or url)


class _Progress:
    """Reports how far a copy is, on stderr, about every second."""

    def __init__(self) -> None:
        self._step = ""
        self._since = self._told = time.monotonic()

    def show(self, progress: CopyProgress) -> None:
        """Show it, unless the last line is too young; on a terminal one line says it."""
        if sys.stderr.isatty():
            report(progress.step, progress.done, progress.total)
            return
        now = time.monotonic()
        if progress.step != self._step:
            self._step, self._since = progress.step, now
        if now - self._told < _BETWEEN:
            return
        self._told = now
        of = f" of {max(progress.total, progress.done)}" if progress.total else ""
        rate = f", {progress.done / (now - self._since):.0f}/s" if now > self._since else ""
        done = f": {progress.done}{of}{rate}" if progress.done else ""
        note(f"{progress.step}{done}")


def backup(parsed: Parsed) -> int:
    """Write a copy of the store that is meant to a file."""
    from interlock.nouns.fleet.store_noun import StoreBackedUp
    from interlock.stores.sqlite.backup import back_up

    request: StoreBackupRequest = parsed.request
    store, path = _file(parsed), os.path.abspath(request.path)
    made = back_up(store, path, force=request.force)
    return answer(parsed, StoreBackedUp(store=store, path=path, **made))


def restore(parsed: Parsed) -> int:
    """Replace the store that is meant by a backup."""
    from interlock.nouns.fleet.moving import record_restore
    from interlock.nouns.fleet.store_noun import StoreRestored
    from interlock.stores.sqlite.backup import restore as restored

    request: StoreRestoreRequest = parsed.request
    store, path = _restored_file(parsed), os.path.abspath(request.path)
    _refuse_coding_agent(store)
    signer = entry_signer(parsed.common.key)

    def before(part: Store) -> None:
        record_restore(part, path, store, signer=signer)
        with suppress(NotAllowed):  # it is said below
            work_tree_list.allow_next(store, str(part.path))  # type: ignore[attr-defined]

    done = restored(store, path, force=request.force, before=before)
    allow_store(store)
    return answer(parsed, StoreRestored(store=store, path=path, **done))


def _refuse_coding_agent(path: str) -> None:
    """Refuse a coding agent that fills the store of a project with a file of its own choice."""
    if os.path.basename(os.path.dirname(os.path.abspath(path))) in work_tree.FOLDERS:
        from interlock.faces.cli.allow import refuse_coding_agent

        refuse_coding_agent()


def _restored_file(parsed: Parsed) -> str:
    """The file of the store that is meant, or was: it may be gone with its folder."""
    try:
        return _file(parsed)
    except StoreGone as gone:
        from interlock.faces.cli.fleet import ignore_all

        folder = os.path.dirname(gone.path)
        os.makedirs(folder, 0o700, exist_ok=True)
        if os.path.basename(folder) == work_tree.FOLDER:
            ignore_all(folder)
        return gone.path


def _file(parsed: Parsed) -> str:
    """The file of the store that is meant."""
    url = CommandIdentity(parsed.common).store or store_location.find_store()
    path = None if is_network(url) else file_of(url)
    if path is None:
        raise BadInput(
            "backup and restore are for SQLite files; for Redis and etcd use the tools of their"
            " servers, for git 'git clone --mirror' (see 'Back up and restore a store'), or"
            " 'interlock store copy'"
        )
    return os.path.realpath(path)
