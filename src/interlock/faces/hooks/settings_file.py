"""The settings files of hosts: our entries in them are found, added and taken away.

Ours are known by their command, ``interlock hook HOST``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from interlock.errors import BadInput
from interlock.faces.hooks.git import git_answer
from interlock.faces.hooks.tree_files import read_bytes

Settings: TypeAlias = dict[str, Any]
_OWN = re.compile(r"\binterlock\b.* hook (\w+)")


def handlers(hooks: Settings) -> Iterator[Settings]:
    """Every handler of a table of hooks."""
    for groups in hooks.values():
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict):
                inner = group.get("hooks", [group])
                yield from (each for each in inner if isinstance(each, dict))


def command_of(handler: Settings) -> str:
    """The command of a handler, in one line."""
    arguments = handler.get("args")
    words = [handler.get("command") or handler.get("bash") or ""]
    words += arguments if isinstance(arguments, list) else []
    return " ".join(str(word) for word in words)


def is_own(handler: Settings, host: str) -> bool:
    """Whether a handler is ours, for this host."""
    return names_host(command_of(handler), host)


def names_host(line: str, host: str) -> bool:
    """Whether a command is our hook for this host."""
    found = _OWN.search(line)
    return found is not None and found[1] == host


def drop_own(hooks: Settings, host: str) -> None:
    """Take our handlers out of a table of hooks; those of others stay."""
    for event, groups in list(hooks.items()):
        if not isinstance(groups, list):
            continue
        kept = []
        for group in groups:
            if isinstance(group, dict) and isinstance(group.get("hooks"), list):
                inner = [e for e in group["hooks"] if not (isinstance(e, dict) and is_own(e, host))]
                if inner or not group["hooks"]:
                    kept.append(
                        group if len(inner) == len(group["hooks"]) else {**group, "hooks": inner}
                    )
            elif not (isinstance(group, dict) and is_own(group, host)):
                kept.append(group)
        hooks[event] = kept
        if not kept:
            del hooks[event]


def table(settings: Settings, name: str) -> Settings:
    """A table of the settings, made if it is missing."""
    found = settings.setdefault(name, {})
    if not isinstance(found, dict):
        raise BadInput(f"{name!r} in the settings is no object; correct it, then run setup again")
    return found


def drop_if_empty(settings: Settings, name: str) -> None:
    """Take a table out that has nothing left."""
    if settings.get(name) == {}:
        del settings[name]


def parsed(path: str, text: str) -> Settings:
    """The settings of a file; BadInput if a rewrite would lose something."""
    try:
        found = json.loads(text)
    except ValueError as error:
        commented = re.search(r"(^|[\s,{}\[\]])(//|/\*)", text, re.MULTILINE)
        why = "it has comments, which a rewrite would lose" if commented else str(error)
        raise BadInput(
            f"{path} cannot be changed: {why}; correct it or move the comments away, then run"
            " 'interlock setup' again"
        ) from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is no JSON object; correct it, then run setup again")
    return found


def indent(old: str | None) -> int | str:
    """How a file is indented."""
    found = re.search(r"\n([ \t]+)\S", old or "")
    if not found:
        return 2
    return "\t" if found[1].startswith("\t") else len(found[1])


def without_block(text: str, begin: str, finish: str) -> str:
    """A text without our marked block."""
    if begin not in text or finish not in text:
        return text
    before, _, rest = text.partition(begin)
    after = rest.partition(finish)[2].lstrip("\n")
    if not before.strip():
        return after
    return before.rstrip("\n") + ("\n\n" if after else "\n") + after


def read_text(path: str) -> str | None:
    """The text of a file; None if there is none."""
    try:
        data = read_bytes(path)
        return None if data is None else data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}; correct it, then run setup again"
        ) from None


def mode(path: str) -> int:
    """The permissions of a file; those of a new one if there is none."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        return 0o644


def worktree_root(folder: str) -> str:
    """The root of the worktree of a folder; the folder itself outside of a repository."""
    return git_answer(folder, "rev-parse", "--show-toplevel") or folder


def is_tracked(root: str, name: str) -> bool:
    """Whether git tracks a file."""
    return bool(git_answer(root, "ls-files", "--", name))
