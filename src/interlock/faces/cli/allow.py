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

from interlock import store_location, work_tree
from interlock.core.safe_text import printable, printable_lines
from interlock.core.validate import span
from interlock.errors import NotAllowed, NotAllowedYet
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import agent_variable
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import AllowRequest, WorkTreeAllowed, WorkTreeDenied
from interlock.settings import FILE, Settings
from interlock.stores import file_of

_MOST_LINES = 200


class Unallowed(NamedTuple):
    """A file that does not count yet; ``data`` is the content of settings, None for a store."""

    path: str
    facts: os.stat_result
    data: bytes | None = None

    def allow(self) -> None:
        """Let it count as it was shown."""
        if self.data is not None:
            work_tree.allow_settings(self.path, self.data)
        elif os.path.samestat(os.stat(self.path), self.facts):
            work_tree.allow_store(self.path)
        else:
            raise NotAllowed(f"{printable(self.path)} was replaced after you looked; look again")


def allow(parsed: Parsed) -> int:
    """Show what does not count yet, ask, and write the list of this user."""
    request: AllowRequest = parsed.request
    folder = os.path.realpath(request.folder or os.curdir)
    if request.remove:
        return answer(parsed, WorkTreeDenied(folder=folder, files=tuple(_removed(folder))))
    require_person()
    work_tree.forget_gone()
    found = list(unallowed(folder))
    if found and not asked(found):
        raise NotAllowed("nothing was allowed")
    return answer(parsed, WorkTreeAllowed(folder=folder, files=tuple(each.path for each in found)))


def asked_after(error: NotAllowedYet) -> bool:
    """Ask the person at the terminal after a refusal; returns whether that is allowed now."""
    try:
        require_person()
    except NotAllowed:
        return False
    folder = os.path.dirname(os.path.dirname(error.path))
    found = list(unallowed(folder))
    return bool(found) and asked(found)


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


def unallowed(folder: str) -> Iterator[Unallowed]:
    """What of a work tree does not count yet."""
    place = store_location.folder(folder)
    if place is None:
        work_tree.forget_store(
            os.path.join(store_location.home(folder), work_tree.FOLDER, work_tree.FILE)
        )
        return
    path = os.path.join(place, FILE)
    data = work_tree.read_settings(path)
    try:
        work_tree.allowed_settings(path)
    except NotAllowedYet:
        yield Unallowed(path, os.stat(path), data)
    url = Settings(place, lambda _: data).store
    store = os.path.join(place, work_tree.FILE) if url is None else file_of(url)
    if store is None:
        return
    if not os.path.exists(store):
        work_tree.forget_store(store)
        return
    try:
        work_tree.require_store(store)
    except NotAllowedYet:
        yield Unallowed(store, os.stat(store))
    else:
        if work_tree.wrong_beside(store):
            yield Unallowed(store, os.stat(store))


def asked(found: list[Unallowed]) -> bool:
    """Show files, and ask whether they shall count; if so, they do."""
    for each in found:
        sys.stderr.write(_shown(each))
    sys.stderr.write("allow this on this machine? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    for each in found:
        each.allow()
    return True


def _shown(each: Unallowed) -> str:
    path = printable(each.path)
    tracked = "; git tracks it, so a commit wrote it" if work_tree.is_tracked(each.path) else ""
    if each.data is not None:
        lines = printable_lines(each.data.decode("utf-8", "replace")).splitlines()
        shown = [f"  | {line}" for line in lines[:_MOST_LINES]]
        if left := len(lines) - len(shown):
            shown.append(f"  ... and {left} lines more: read the file first")
        return "\n".join([f"settings {path}{tracked}:", *shown]) + "\n"
    age = span(max(time.time() - each.facts.st_mtime, 0))
    facts = f"{each.facts.st_size} bytes, changed {age} ago"
    beside = work_tree.wrong_beside(each.path)
    other = f"; {printable(beside)}" if beside else ""
    if work_tree.is_replaced(each.path):
        other += "; it is another file than the store that was used here: it was replaced"
    return f"store {path}: {facts}{tracked}{other}\n"


def _removed(folder: str) -> Iterator[str]:
    place = store_location.folder(folder) or os.path.join(folder, work_tree.FOLDER)
    path = os.path.join(place, FILE)
    data = work_tree.read_settings(path)
    if data is not None and work_tree.forget_settings(path, data):
        yield path
    url = Settings(place, lambda _: data).store
    store = os.path.join(place, work_tree.FILE) if url is None else file_of(url)
    if store is not None and work_tree.forget_store(store):
        yield store
