"""A repository as the merge queue uses it: refs, merges without a checkout, moves by comparison.

Refs of the queue, in the repository of the server and, for a remote target, at the remote:

    refs/interlock/merges/COMMIT   keeps a submitted commit until its merge ends
    refs/interlock/targets/NAME    the target of a remote as it was last fetched; only here
    refs/interlock/servers/NAME    the token of the newest server of a local target

A merge is made by ``merge-tree`` and ``commit-tree``, which touch no folder.  A local target moves
by ``update-ref`` from the commit that was seen, and only if the token is still that of this server,
in one transaction of git.  A remote one moves by a push with a lease on the commit that was seen.

If the target is checked out in a folder, that folder follows: ``read-tree -m -u`` carries it from
the old commit to the new one, keeps changes of files that the merge does not touch, and refuses, as
a whole, if it would overwrite one.  It is tried before the target moves, and repeating it is
harmless.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from interlock.errors import BadInput
from interlock.steps import InThread, Op

KEPT = "refs/interlock/merges/"
TARGETS = "refs/interlock/targets/"
SERVERS = "refs/interlock/servers/"
HEADS = "refs/heads/"
SECONDS = 300.0
"""How long one git may take; a fetch or a push of a large repository needs minutes."""
_FOREIGN = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH",
)  # fmt: skip
"""What a hook or an alias of git leaves in the environment."""
_SETTINGS = (
    "-c", "gc.auto=0", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false",
    "-c", f"core.hooksPath={os.devnull}", "-c", "push.recurseSubmodules=no",
    "-c", "fetch.recurseSubmodules=no", "-c", "advice.detachedHead=false",
)  # fmt: skip
_NOBODY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "interlock"), ("EMAIL", "interlock@localhost"))
}
"""Who commits where git knows no name of the user."""


class GitFailed(Exception):
    """Git could not do it; the text is its reason."""


class Seen(Struct, frozen=True, kw_only=True):
    """What a look at the repository found.

    base       the commit of the target; empty if there is no such branch
    checkout   the folder in which a local target is checked out
    kept       the submitted commits that the queue keeps
    contained  those that the target contains
    branches   where the branches are that were asked for
    """

    base: str
    checkout: str = ""
    kept: frozenset[str] = frozenset()
    contained: frozenset[str] = frozenset()
    branches: Mapping[str, str] = {}
    checked_out: frozenset[str] = frozenset()


class MergedTree(Struct, frozen=True, kw_only=True):
    """The tree of a merge; with ``conflicts``, the files that git cannot merge."""

    tree: str = ""
    conflicts: tuple[str, ...] = ()
    reason: str = ""


class Repository:
    """The repository that a folder is in."""

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = os.path.abspath(folder)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in _FOREIGN},
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
        }
        self._signed = False
        self._common = ""
        self._outside: tuple[str, frozenset[str]] = ("", frozenset())
        """A commit, and kept commits that it does not contain: this never changes."""

    def git(self, *words: str, given: str = "", folder: str = "") -> str:
        """What git prints; GitFailed with its reason if it fails."""
        status, out, err = self._run(words, given, folder)
        if status:
            raise GitFailed(_reason(words[0], status, err))
        return out

    def _run(self, words: Sequence[str], given: str = "", folder: str = "") -> tuple[int, str, str]:
        try:
            done = subprocess.run(  # noqa: S603 - git, without a shell
                ["git", "--no-pager", *_SETTINGS, *words],  # noqa: S607 - that of the user
                cwd=folder or self.folder,
                env=self._environment,
                input=os.fsencode(given),
                capture_output=True,
                timeout=SECONDS,
                check=False,
                start_new_session=True,  # Ctrl-C at the server does not cut a push
            )
        except FileNotFoundError as error:
            what = "git is not installed" if error.filename == "git" else "the folder is gone"
            raise GitFailed(what) from None
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {words[0]} did not end within {SECONDS:g} s") from None
        return done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr)

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

    # Looking.

    def look(self, target: str, remote: str = "", branches: Iterable[str] = ()) -> Seen:
        """Look where the target is, and which of the kept commits it contains."""
        ref = HEADS + target
        if remote:
            ref = TARGETS + target
            self._fetch(target, remote)
        form = "--format=%(refname)%00%(objectname)%00%(worktreepath)"
        names = [HEADS + branch for branch in branches]
        found: dict[str, tuple[str, str]] = {}
        for line in self.git("for-each-ref", form, ref, KEPT, *names).splitlines():
            name, commit, folder = line.split("\0")
            # A bare repository has no files, though git names its folder for the branch of HEAD.
            found[name] = (commit, "" if folder == self.common() else folder)
        base, checkout = found.get(ref, ("", ""))
        kept = frozenset(at[0] for name, at in found.items() if name.startswith(KEPT))
        contained = frozenset[str]()
        if base and not (self._outside[0] == base and kept <= self._outside[1]):
            said = self.git("for-each-ref", f"--merged={base}", "--format=%(objectname)", KEPT)
            contained = frozenset(said.split())
            self._outside = (base, kept - contained)
        return Seen(
            base=base,
            checkout="" if remote else checkout,
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
            raise GitFailed(_reason(f"fetch {remote}", status, err))

    # Building.

    def merge(self, onto: str, commit: str) -> MergedTree:
        """Merge two commits without a checkout."""
        words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", onto, commit)
        status, out, err = self._run(words)
        parts = out.split("\0")
        if status == 0:
            return MergedTree(tree=parts[0])
        if status == 1:
            return MergedTree(conflicts=tuple(sorted(set(filter(None, parts[1:])))))
        return MergedTree(reason=_reason("merge-tree", status, err))

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit."""
        words = ["commit-tree", tree, "-F", "-"]
        for parent in parents:
            words += ["-p", parent]
        if not self._signed:
            if self._run(("var", "GIT_COMMITTER_IDENT"))[0]:
                self._environment.update(_NOBODY)
            self._signed = True
        return self.git(*words, given=message).strip()

    def changed_files(self, base: str, commit: str) -> tuple[str, ...]:
        """The files that a branch changes, old and new names of renamed ones."""
        said = self.git("diff", "--name-only", "--no-renames", "-z", f"{base}...{commit}")
        return tuple(filter(None, said.split("\0")))

    # Moving.

    def fence(self, target: str, token: int) -> str:
        """Let no server with an older token move a local target; returns the value of the fence."""
        value = self.git("hash-object", "-w", "--stdin", given=f"merge server, token {token}\n")
        self.git("update-ref", SERVERS + target, value.strip())
        return value.strip()

    def move(self, target: str, base: str, tip: str, fence: str) -> str:
        """Move a local target from one commit to another; returns why git refused."""
        lines = [f"update {HEADS}{target} {tip} {base}", f"verify {SERVERS}{target} {fence}"]
        status, _, err = self._run(("update-ref", "--stdin"), "\n".join((*lines, "")))
        return _reason("update-ref", status, err) if status else ""

    def push(self, target: str, remote: str, base: str, tip: str) -> str:
        """Move a target at a remote; returns why git or the remote refused."""
        lease = f"--force-with-lease={HEADS}{target}:{base}"
        status, out, err = self._run(
            ("push", "--porcelain", "--no-verify", lease, remote, f"{tip}:{HEADS}{target}")
        )
        if not status:
            return ""
        refused = [line for line in out.split("\n") if line.startswith("!")]
        return refused[0].split("\t")[-1] if refused else _reason("push", status, err)

    def unsafe_to_follow(self, checkout: str, base: str, tip: str) -> str:
        """Why the folder of a checked out target cannot follow it; empty if it can."""
        self._run(("update-index", "-q", "--refresh"), folder=checkout)
        words = ("read-tree", "-m", "-u", "-n", base, tip)
        status, _, err = self._run(words, folder=checkout)
        return _reason("read-tree", status, err) if status else ""

    def follow(self, checkout: str, base: str, tip: str) -> str:
        """Carry the folder of a checked out target to the new commit; returns why it cannot be."""
        self._run(("update-index", "-q", "--refresh"), folder=checkout)
        status, _, err = self._run(("read-tree", "-m", "-u", base, tip), folder=checkout)
        return _reason("read-tree", status, err) if status else ""

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

    # A folder for the guard.

    def guard_folder(self, target: str, token: int) -> GuardFolder:
        """The detached worktree in which guards of a target run; those of older servers go."""
        return GuardFolder(self, target, token)


class GuardFolder:
    """A detached worktree of its own, made when it is first needed."""

    def __init__(self, repository: Repository, target: str, token: int) -> None:
        from interlock.core import codec, keys

        self._repository = repository
        cache = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(cache):
            cache = os.path.join(os.path.expanduser("~"), ".cache")
        digest = codec.digest(os.fsencode(repository.common()))[:12]
        self._above = os.path.join(cache, "interlock", "merges", digest)
        self._prefix = keys.encode(target) + "@"
        self.path = os.path.join(self._above, f"{self._prefix}{token}")
        self._made = False

    def check_out(self, commit: str) -> None:
        """Have this commit there, and nothing else: no file of an earlier one is left."""
        git = self._repository.git
        if self._made:
            git("checkout", "-q", "--force", "--detach", commit, folder=self.path)
            git("clean", "-qffdx", folder=self.path)
        else:
            os.makedirs(self._above, mode=0o700, exist_ok=True)
            git("worktree", "add", "-q", "--force", "--detach", self.path, commit)
            self._made = True
        if os.path.exists(os.path.join(self.path, ".gitmodules")):
            git("submodule", "-q", "update", "--init", "--recursive", "--force", folder=self.path)

    def remove_others(self) -> None:
        """Remove the folders of earlier servers, which were killed."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._above):
                path = os.path.join(self._above, name)
                if name.startswith(self._prefix) and path != self.path:
                    self._remove(path)

    def removing(self) -> Op[None]:
        """Remove it."""
        if self._made:
            self._made = False
            yield InThread(partial(self._remove, self.path))

    def _remove(self, path: str) -> None:
        import shutil

        try:
            self._repository.git("worktree", "remove", "--force", "--force", path)
        except GitFailed:  # it is not one of its worktrees any more, or never was
            shutil.rmtree(path, ignore_errors=True)
            with suppress(GitFailed):
                self._repository.git("worktree", "prune")


def _reason(what: str, status: int, err: str) -> str:
    """Why git failed, in a line."""
    lines = [line.strip() for line in err.split("\n") if line.strip()]
    marked = [line for line in lines if line.startswith(("fatal: ", "error: ", "remote: error:"))]
    said = (marked or lines or [f"status {status}"])[0]
    for word in ("fatal: ", "error: "):
        said = said.removeprefix(word)
    return f"git {what} failed: {said}"
