"""``interlock allow``: a person looks at the settings and the store of a work tree, and allows it.

A coding agent reads the texts of a repository, and would allow what they ask for.  So this needs a
terminal, and no variable may name the session of a coding agent.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from interlock import store_location, work_tree, work_tree_list
from interlock.core.safe_text import foreign, printable
from interlock.core.validate import span
from interlock.errors import NotAllowed, NotAllowedYet, StoreGone
from interlock.faces.cli.command import answer, note
from interlock.faces.cli.connect import agent_variable
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import AllowRequest, WorkTreeAllowed, WorkTreeDenied
from interlock.settings import FILE, Settings
from interlock.stores import file_of

_MOST_LINES, _LONGEST_LINE = 200, 300
_MOST = 20
"""Files of one work tree that are asked for, one after the other."""


class Unallowed(NamedTuple):
    """A file that does not count yet, or whose absence does not.

    ``data`` is the content of settings, None for a store; ``facts`` is None if the file is gone.
    """

    path: str
    facts: os.stat_result | None
    data: bytes | None = None

    def allow(self) -> None:
        """Let it count as it was shown."""
        if os.path.basename(self.path) == FILE:
            work_tree_list.allow_settings(self.path, self.data)
        elif self.facts is None:
            work_tree_list.forget_store(self.path)
        elif os.path.samestat(os.stat(self.path), self.facts):
            work_tree_list.allow_store(self.path)
        else:
            raise NotAllowed(f"{foreign(self.path)} was replaced after you looked; look again")


def allow(parsed: Parsed) -> int:
    """Show what does not count yet, ask, and write the list of this user."""
    request: AllowRequest = parsed.request
    folder = os.path.realpath(request.folder or os.curdir)
    if request.remove:
        return answer(parsed, WorkTreeDenied(folder=folder, files=tuple(_removed(folder))))
    require_person()
    work_tree_list.forget_gone()
    return answer(parsed, WorkTreeAllowed(folder=folder, files=tuple(_asked_for(folder))))


def asked_after(error: NotAllowedYet | StoreGone) -> bool:
    """Ask the person at the terminal after a refusal; returns whether that is allowed now."""
    if not is_person():
        return False
    if isinstance(error, StoreGone):  # there are several ways, and none is the next one for sure
        note(
            "to restore a backup: interlock store restore FILE; to start over: interlock init; to"
            " go on without Interlock here: interlock allow"
        )
        return False
    return bool(_asked_for(os.path.dirname(os.path.dirname(error.path))))


def _asked_for(folder: str) -> list[str]:
    """Ask for one file after the other, each after those that it depends on."""
    files: list[str] = []
    while len(files) < _MOST and (each := unallowed(folder)):
        sys.stderr.write(f"{_shown(each)}allow this on this machine? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotAllowed("the rest was not allowed" if files else "nothing was allowed")
        each.allow()
        files.append(each.path)
    return files


def is_person() -> bool:
    """Whether a person runs this command at a terminal."""
    try:
        require_person()
    except NotAllowed:
        return False
    return True


def require_person() -> None:
    """Raise unless a person runs this command at a terminal."""
    refuse_coding_agent()
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotAllowed(
            "what a work tree brings along is allowed by a person at a terminal; a script names"
            " its store with --store or INTERLOCK_STORE, and needs no permission"
        )


def refuse_coding_agent() -> None:
    """Raise if a coding agent runs this command."""
    if variable := agent_variable():
        raise NotAllowed(
            f"a coding agent runs this command ({variable} is set), and what a work tree brings"
            " along is allowed by a person: ask yours to do it in a terminal of their own"
        )


def unallowed(folder: str) -> Unallowed | None:
    """The first file of a work tree that does not count yet.

    Settings are asked for before the store that they name: only then they are read.
    """
    for place in store_location.places(os.path.realpath(folder)):
        path = os.path.join(place, FILE)
        data = work_tree.read_settings(path)
        try:
            work_tree.allowed_settings(path)
        except NotAllowedYet:
            return Unallowed(path, None if data is None else os.stat(path), data)
        url = Settings(place, work_tree.allowed_settings).store
        store = os.path.join(place, work_tree.FILE) if url is None else file_of(url)
        if store is not None:
            try:
                found = work_tree.require_store(store)
            except NotAllowedYet:
                return Unallowed(store, os.stat(store))
            except StoreGone:
                return Unallowed(store, None)
            if found:
                return (
                    Unallowed(store, os.stat(store)) if work_tree_list.wrong_beside(store) else None
                )
        if url is not None:
            return None
    return None


def _shown(each: Unallowed) -> str:
    path = foreign(each.path, _LONGEST_LINE)
    if each.facts is None:
        return f"{path} counted here, and was removed: nothing is in its place\n"
    tracked = (
        "; git tracks it, so a commit wrote it" if work_tree_list.is_tracked(each.path) else ""
    )
    if each.data is not None:
        lines = each.data.decode("utf-8", "replace").splitlines()
        if len(lines) > _MOST_LINES or max(map(len, lines), default=0) > _LONGEST_LINE:
            raise NotAllowed(
                f"{path} is too long to be looked at here; at most {_MOST_LINES} lines of"
                f" {_LONGEST_LINE} characters can be allowed"
            )
        shown = [f"  | {printable(line)}" for line in lines]
        return "\n".join([f"settings {path}{tracked}:", *shown]) + "\n"
    age = span(max(time.time() - each.facts.st_mtime, 0))
    facts = f"{each.facts.st_size} bytes, changed {age} ago"
    beside = work_tree_list.wrong_beside(each.path)
    other = f"; {printable(beside)}" if beside else ""
    if work_tree.is_replaced(each.path):
        other += "; it is another file than the store that was used here: it was replaced"
    return f"store {path}: {facts}{tracked}{other}\n"


def _removed(folder: str) -> Iterator[str]:
    for place in store_location.places(folder):
        path = os.path.join(place, FILE)
        if work_tree_list.forget_settings(path):
            yield path
        path = os.path.join(place, work_tree.FILE)
        if work_tree_list.forget_store(path):
            yield path
