"""A repository as the merge queue uses it: refs, merges without a checkout, moves by comparison.

Refs of the queue, in the repository of the server and, for a remote target, at the remote:

    refs/interlock/merges/COMMIT   keeps a submitted commit until its merge ends
    refs/interlock/targets/NAME    the target of a remote as it was last fetched; only here
    refs/interlock/servers/NAME    the token of the newest server of a local target

A merge is made by ``merge-tree`` and ``commits.py``, which touch no folder.  A local target moves
by ``update-ref`` from the commit that was seen, and only if the token is still that of this server,
in one transaction of git.  A remote one moves by a push with a lease on the commit that was seen.

If the target is checked out in a folder, that folder follows: ``read-tree -m -u`` carries it from
the old commit to the new one, keeps changes of files that the merge does not touch, and refuses, as
a whole, if it would overwrite one.  It is tried before the target moves, and done right after that;
repeating it is harmless.  Until it is done, a commit in that folder would take the merge back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock import git_command
from interlock.errors import BadInput
from interlock.nouns.merges import git_process
from interlock.nouns.merges.git_process import GitFailed, reason_of
from interlock.nouns.merges.store_files import RAW, changed_files, store_files

if TYPE_CHECKING:
    import subprocess

KEPT = "refs/interlock/merges/"
TARGETS = "refs/interlock/targets/"
SERVERS = "refs/interlock/servers/"
HEADS = "refs/heads/"
LOCKED = 2.0
"""How long another git in the folder of a target is waited for."""
_TICK = 0.05
_FORM = "--format=%(refname)%00%(objectname)%00%(worktreepath)"
_NOBODY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "interlock"), ("EMAIL", "interlock@localhost"))
}
"""Who commits where git knows no name of the user."""


class TargetRefs(Struct, frozen=True, kw_only=True):
    """The refs of a repository, as a target and its queue need them.

    base       the commit of the target; empty if there is no such branch
    checkout   the folder in which a local target is checked out
    kept       the submitted commits that the queue keeps
    contained  those that the target contains
    branches   where the branches are that were asked for; ``checked_out`` those that a folder has
    """

    base: str
    checkout: str = ""
    kept: frozenset[str] = frozenset()
    contained: frozenset[str] = frozenset()
    branches: Mapping[str, str] = {}
    checked_out: frozenset[str] = frozenset()


class MergedTree(Struct, frozen=True, kw_only=True):
    """The tree of a merge; without one, the files in ``conflict``, or ``unrelated`` histories."""

    tree: str = ""
    conflicts: tuple[str, ...] = ()
    unrelated: bool = False


class CommitIdentity(Struct, frozen=True):
    """Who makes a commit, as git writes it; with a ``date`` if the environment sets one."""

    name: str
    date: str = ""


class CommitIdentities(Struct, frozen=True):
    """The author and the committer of the merges."""

    author: CommitIdentity
    committer: CommitIdentity


class MergeRepository:
    """The repository that a folder is in, for merges, rebases and watches."""

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = os.path.abspath(folder)
        self._environment = git_command.environment() | {"GIT_OPTIONAL_LOCKS": "0"}
        self._identity: CommitIdentities | None = None
        self._common = ""
        self._outside: tuple[str, frozenset[str]] = ("", frozenset())
        """A commit, and kept commits that it does not contain: this never changes."""
        self._kept: frozenset[str] = frozenset()
        """The kept commits of the last look."""
        self._moved = ""
        """Where a target was last moved to, until the next look."""

    def git(self, *words: str, given: str = "", folder: str = "") -> str:
        """What git prints; GitFailed with its reason if it fails."""
        status, out, err = self._run(words, given, folder)
        if status:
            raise GitFailed(reason_of(words[0], status, err))
        return out

    def start(self, words: Sequence[str], folder: str = "") -> subprocess.Popen[bytes]:
        """A git that runs."""
        return git_process.start(words, folder or self.folder, self._environment)

    def _run(self, words: Sequence[str], given: str = "", folder: str = "") -> tuple[int, str, str]:
        return git_process.ended(self.start(words, folder), words[0], given)

    def _both(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
        """What two gits print that run at the same time; GitFailed if one fails."""
        with self.start(second) as running:
            out = self.git(*first)
            status, other, err = git_process.ended(running, second[0])
        if status:
            raise GitFailed(reason_of(second[0], status, err))
        return out, other

    def common(self) -> str:
        """The folder that all worktrees share; BadInput outside of a repository."""
        if self._common:
            return self._common
        try:
            said = self.git("rev-parse", "--path-format=absolute", "--git-common-dir")
        except GitFailed as failed:
            raise BadInput(
                f"{self.folder} is in no git repository ({failed}); run it inside of one"
            ) from None
        self._common = said.rstrip("\n")
        return self._common

    def exists(self) -> bool:
        """Whether the folder is in a repository now."""
        return os.path.isdir(self.folder) and not self._run(("rev-parse", "--git-dir"))[0]

    def remotes(self) -> frozenset[str]:
        """The names of its remotes."""
        return frozenset(self.git("remote").split())

    def commit_of(self, branch: str) -> str:
        """The commit of a local branch; empty if there is none."""
        status, out, _ = self._run(("rev-parse", "--verify", "-q", f"{HEADS}{branch}^{{commit}}"))
        return "" if status else out.strip()

    def current_branch(self) -> str:
        """The branch that this folder has checked out; empty if it has none."""
        status, out, _ = self._run(("symbolic-ref", "-q", "--short", "HEAD"))
        return "" if status else out.strip()

    # Keeping commits.

    def keep(self, commit: str, remote: str = "") -> None:
        """Keep a commit for the queue, here or at a remote."""
        if remote:
            self.git("push", "-q", "--no-verify", remote, f"{commit}:{KEPT}{commit}")
        else:
            self.git("update-ref", KEPT + commit, commit)

    def has(self, commit: str) -> bool:
        """Whether the repository has this commit."""
        return not self._run(("cat-file", "-e", f"{commit}^{{commit}}"))[0]

    # Reading refs.

    def refs(
        self, target: str, remote: str = "", branches: Iterable[str] = (), *, fetch: bool = True
    ) -> TargetRefs:
        """Where the target is, and which of the kept commits it contains.

        Without ``fetch`` the target of a remote is where it was last fetched.
        """
        ref = HEADS + target
        if remote:
            ref = TARGETS + target
            if fetch:
                self._fetch(target, remote)
        listing = ("for-each-ref", _FORM, ref, KEPT, *[HEADS + branch for branch in branches])
        expected, inside, self._moved = self._moved, "", ""
        if expected:  # most often the target is still where it was moved to
            listed, inside = self._both(listing, _containing(expected))
        else:
            listed = self.git(*listing)
        found: dict[str, tuple[str, str]] = {}
        for line in listed.splitlines():
            name, commit, folder = line.split("\0")
            # A bare repository has no files, though git names its folder for the branch of HEAD.
            found[name] = (commit, "" if folder == self.common() else folder)
        base, checkout = found.get(ref, ("", ""))
        kept = frozenset(at[0] for name, at in found.items() if name.startswith(KEPT))
        contained = frozenset[str]()
        if base and not (self._outside[0] == base and kept <= self._outside[1]):
            together = base == expected
            contained = frozenset((inside if together else self.git(*_containing(base))).split())
            # One that was kept between two listings at the same time is in the first one alone.
            compared = kept & self._kept if together else kept
            self._outside = (base, compared - contained)
        self._kept = kept
        return TargetRefs(
            base=base,
            checkout=checkout if not remote and os.path.isdir(checkout) else "",
            kept=kept,
            contained=contained,
            branches={
                name.removeprefix(HEADS): at[0]
                for name, at in found.items()
                if name.startswith(HEADS)
            },
            checked_out=frozenset(name.removeprefix(HEADS) for name, at in found.items() if at[1]),
        )

    def _fetch(self, target: str, remote: str) -> None:
        """Fetch the target and the kept commits; a target that is gone there is gone here, too."""
        specs = (f"+{HEADS}{target}:{TARGETS}{target}", f"+{KEPT}*:{KEPT}*")
        words = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", remote)
        status, _, err = self._run((*words, *specs))
        if status and "couldn't find remote ref" in err:
            self.git("update-ref", "-d", TARGETS + target)
        elif status:
            raise GitFailed(reason_of(f"fetch {remote}", status, err))

    # Building.

    def merge(self, onto: str, commit: str) -> MergedTree:
        """Merge two commits without a checkout; GitFailed if that says nothing about them."""
        words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", onto, commit)
        status, out, err = self._run(words)
        parts = out.split("\0")
        if any(line.startswith("error: ") for line in err.split("\n")):
            # Some versions of git take a tree that they cannot read as an empty one, with status 0.
            raise GitFailed(reason_of("merge-tree", status, err))
        if status == 0:
            return MergedTree(tree=parts[0])
        if status == 1:
            return MergedTree(conflicts=tuple(sorted(set(filter(None, parts[1:])))))
        if "unrelated histories" in err:
            return MergedTree(unrelated=True)
        raise GitFailed(reason_of("merge-tree", status, err))

    def store_files(self, base: str, tips: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Which of these merges, one on the other, is the first with files of a store, and those.

        Without any the number of the merges, and no files.
        """
        steps = ("log", "--first-parent", "-m", "--format=", *RAW, f"{base}..{tips[-1]}")
        if store_files(self.git, changed_files(self.git(*steps))):
            for number, (before, tip) in enumerate(zip((base, *tips), tips, strict=False)):
                if found := self.new_store_files(before, tip):
                    return number, found
        return len(tips), ()

    def new_store_files(self, before: str, after: str) -> tuple[str, ...]:
        """The files of a store that one commit has, and another one not, or not like that."""
        return store_files(
            self.git, changed_files(self.git("diff-tree", "-r", *RAW, before, after))
        )

    def identity(self) -> CommitIdentities:
        """Who makes the merges: the user of this host, or ``interlock`` if git knows no name."""
        if self._identity is None:
            try:
                self._identity = self._identities()
            except GitFailed:
                self._environment = {**self._environment, **_NOBODY}  # a thread may read the old
                self._identity = self._identities()
        return self._identity

    def _identities(self) -> CommitIdentities:
        author, committer = self._both(("var", "GIT_AUTHOR_IDENT"), ("var", "GIT_COMMITTER_IDENT"))
        return CommitIdentities(self._who(author, "AUTHOR"), self._who(committer, "COMMITTER"))

    def _who(self, said: str, role: str) -> CommitIdentity:
        name, _, date = said.strip().rpartition("> ")
        return CommitIdentity(f"{name}>", date if f"GIT_{role}_DATE" in self._environment else "")

    def changed_files(self, base: str, commit: str) -> tuple[str, ...] | None:
        """The files that a branch changes, old and new names of renamed ones.

        None if the two have no commit in common.
        """
        options = ("--name-only", "--no-renames", "--no-ext-diff", "--ignore-submodules=none", "-z")
        words = ("diff", *options, f"{base}...{commit}")
        status, out, err = self._run(words)
        if status and "no merge base" in err:
            return None
        if status:
            raise GitFailed(reason_of("diff", status, err))
        return tuple(filter(None, out.split("\0")))

    # Moving.

    def fence(self, target: str, token: int) -> str:
        """Let no server with an older token move a local target; returns the value of the fence."""
        value = self.git("hash-object", "-w", "--stdin", given=f"merge server, token {token}\n")
        self.git("update-ref", SERVERS + target, value.strip())
        return value.strip()

    def is_fenced(self, target: str, fence: str) -> bool:
        """Whether another server has written its token since."""
        status, out, _ = self._run(("rev-parse", "--verify", "-q", SERVERS + target))
        return bool(status) or out.strip() != fence

    def move(self, target: str, base: str, tip: str, fence: str) -> str:
        """Move a local target from one commit to another; returns why git refused."""
        lines = [f"update {HEADS}{target} {tip} {base}", f"verify {SERVERS}{target} {fence}"]
        status, _, err = self._run(("update-ref", "--stdin"), "\n".join((*lines, "")))
        if status:
            return reason_of("update-ref", status, err)
        self._moved = tip
        return ""

    def push(self, target: str, remote: str, base: str, tip: str) -> str:
        """Move a target at a remote; returns why git or the remote refused."""
        lease = f"--force-with-lease={HEADS}{target}:{base}"
        status, out, err = self._run(
            ("push", "--porcelain", "--no-verify", lease, remote, f"{tip}:{HEADS}{target}")
        )
        if not status:
            return ""
        refused = [line for line in out.split("\n") if line.startswith("!")]
        return refused[0].split("\t")[-1] if refused else reason_of("push", status, err)

    def unsafe_to_follow(self, checkout: str, base: str, tip: str) -> str:
        """Why the folder of a checked out target cannot follow it; empty if it can."""
        self._run(("update-index", "-q", "--refresh"), folder=checkout)
        words = ("read-tree", "-m", "-u", "-n", base, tip)
        status, _, err = self._run(words, folder=checkout)
        return reason_of("read-tree", status, err) if status else ""

    def follow(self, checkout: str, base: str, tip: str) -> str:
        """Carry the folder of a checked out target to the new commit; returns why it cannot be.

        Another git in the folder, of an editor say, is waited for.
        """
        ends = time.monotonic() + LOCKED
        while True:
            self._run(("update-index", "-q", "--refresh"), folder=checkout)
            status, _, err = self._run(("read-tree", "-m", "-u", base, tip), folder=checkout)
            if not status or "index.lock" not in err or time.monotonic() >= ends:
                return reason_of("read-tree", status, err) if status else ""
            time.sleep(_TICK)

    # Cleaning up.

    def forget(self, branches: Mapping[str, str], commits: Iterable[str]) -> None:
        """Delete branches that are where they were submitted, and stop keeping commits."""
        lines = [f"delete {HEADS}{name} {commit}" for name, commit in branches.items()]
        kept = [f"delete {KEPT}{commit}" for commit in commits]
        if self._run(("update-ref", "--stdin"), "\n".join((*lines, *kept, "")))[0]:
            for line in (*lines, *kept):  # one of them has just moved: the others go one by one
                self._run(("update-ref", "--stdin"), line + "\n")

    def forget_remote(self, remote: str, branches: Mapping[str, str], commits: set[str]) -> None:
        """Delete branches and kept commits at a remote; what is gone or has moved there stays."""
        for name, commit in branches.items():
            lease = f"--force-with-lease={HEADS}{name}:{commit}"
            self._run(("push", "-q", "--no-verify", lease, remote, f":{HEADS}{name}"))
        if commits:
            specs = [f":{KEPT}{commit}" for commit in sorted(commits)]
            self._run(("push", "-q", "--no-verify", remote, *specs))


def _containing(commit: str) -> tuple[str, ...]:
    """The kept commits that a commit contains."""
    return ("for-each-ref", f"--merged={commit}", "--format=%(objectname)", KEPT)
