"""The repository around a folder, found without git, and the command that starts git there.

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
    root = root_of(folder) if folder else ""
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


def root_of(folder: str) -> str:
    """The root of the work tree that a folder is in; empty outside of one."""
    top = upward(os.path.realpath(folder))[-1]
    return top if os.path.lexists(os.path.join(top, ".git")) else ""


def main_worktree(start: str) -> str | None:
    """The main worktree of the repository that a folder is in; None outside of one."""
    root = root_of(start)
    if not root:
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


def upward(folder: str) -> list[str]:
    """The folder and its parents, up to the root of the repository."""
    found = [folder]
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        found.append(folder)
    return found


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline().rstrip("\n")
    except OSError:
        return ""
