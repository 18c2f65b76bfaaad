"""The command that starts git in a folder of a user.

Git runs programs that a configuration names: a monitor of the file system, filters, hooks.  That of
the user and that of the user's repository are trusted, since no commit writes them: filters,
credentials and signing keys work as in any git of the user.  But a commit can bring a folder that
looks like a bare repository, with a configuration of its own.  So git starts at the root of the
work tree, and takes no bare repository that a work tree surrounds.
"""

from __future__ import annotations

import os

_FOREIGN = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE", "GIT_QUARANTINE_PATH",
)  # fmt: skip
"""What a hook or an alias of another repository leaves in the environment."""
_SETTINGS = (
    "core.fsmonitor=false", "core.quotePath=false", "gc.auto=0", "maintenance.auto=false",
)  # fmt: skip


def command(*words: str, folder: str = "", bare: bool = False, hooks: bool = False) -> list[str]:
    """The words that start git in a folder; without one GIT_DIR names the repository.

    ``bare`` also takes a bare repository that no work tree surrounds.  With ``hooks`` the hooks of
    the user run, and git knows where they are.
    """
    root = work_tree(folder) if folder else ""
    settings = [*_SETTINGS]
    if root or not bare:
        settings.append("safe.bareRepository=explicit")  # git before 2.38 does not know it
    if not hooks:
        settings.append(f"core.hooksPath={os.devnull}")
    place = ["-C", root] if root else []
    given = [word for setting in settings for word in ("-c", setting)]
    return ["git", "--no-pager", *place, *given, *words]


def environment() -> dict[str, str]:
    """The environment of the user, for a git without a terminal."""
    found = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return found | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


def work_tree(folder: str) -> str:
    """The root of the work tree that a folder is in; empty outside of one."""
    here = os.path.realpath(folder)
    while not os.path.lexists(os.path.join(here, ".git")):
        above = os.path.dirname(here)
        if above == here:
            return ""
        here = above
    return here
