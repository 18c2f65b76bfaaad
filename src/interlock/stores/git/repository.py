"""The user's own git: the repository in the cache, and what it asks of the remote.

A push is the compare-and-swap of this store: it moves the branch from the commit that was seen to
the next one, or it says that another host was faster.  ``PushAnswer`` is what the output of git
means.  A push that ends without a status line may still take effect, even after a read said that it
did not; only another push from the same old commit settles it.

Git is run with the user's credentials, configuration and hooks, without a terminal to ask at, and
in a session of its own: Ctrl-C at a program does not cut its push.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from interlock import git_command
from interlock.errors import (
    StoreAway,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    StoreRefused,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.stores.git import objects
from interlock.stores.git.address import GitAddress
from interlock.stores.git.left_locks import LeftLocks
from interlock.stores.git.objects import Tree, TreeEntry
from interlock.stores.git.reader import GitObject, ObjectReader
from interlock.stores.git.remote_reader import RemoteReader
from interlock.threads import background

HEAD = "refs/interlock/head"
"""Where the cache keeps the branch, so that its objects stay and a fetch brings only news."""
NONE = "0" * 40
LEFT_LOCK = 5.0
"""Seconds after which a lock file in the cache is one that was left."""
_KEPT_TREES = 64
_GRACE = 1.0
"""Seconds that a git which took too long has to end by itself."""
_PLAIN = (
    "-c", "core.logAllRefUpdates=false", "-c", "push.followTags=false",
    "-c", "push.recurseSubmodules=no", "-c", "fetch.prune=false", "-c", "protocol.version=2",
)  # fmt: skip
_HELPER = """!f() { test "$1" != get ||\
 printf 'username=%s\\npassword=%s\\n' "$STORE_URL_USER" "$STORE_URL_PASSWORD"; }; f"""
"""Gives git the password of the URL: the arguments of a process are visible to all users."""
_FORMATS = {"GIT_DEFAULT_HASH": "sha1", "GIT_DEFAULT_REF_FORMAT": "files"}
"""Of the cache, also if the user prefers others: this process writes objects and a ref itself."""
_NOBODY = "interlock <interlock@localhost>"
"""Who commits on a host where git knows no name of the user."""
_RACED = ("failed to update ref", "cannot lock ref", "incorrect old value", "already exists",
          "atomic", "reference")  # fmt: skip
_UNSENT = re.compile(
    "could not resolve|connection refused|failed to connect|couldn't connect|no route to host"
    "|network is unreachable|connection timed out|does not appear to be a git repository"
    "|not a git repository|repository not found|does not exist|operation timed out"
    "|returned error: 40[0-9]|returned error: 5\\d\\d.*info/refs",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    "rpc failed|hung up|disconnect|read from remote host|early eof|broken pipe|closed by remote"
    "|connection reset|unpack",
    re.IGNORECASE,
)
"""A push that ends so may have been sent: a server that is cut off goes on by itself."""
_REFUSED = re.compile(
    "authentication failed|permission denied|permission to .* denied|access denied"
    "|could not read (username|password)"
    "|terminal prompts disabled|host key verification failed|returned error: 40[13]"
    "|dubious ownership|certificate|invalid credentials|does not support --atomic",
    re.IGNORECASE,
)
NO_ROOM = re.compile("no space left|disk quota exceeded|file too large", re.IGNORECASE)
_NO_REPOSITORY = re.compile(
    "not a git repository|does not appear to be a git repository|repository .*not found"
    "|does not exist|no such file",
    re.IGNORECASE,
)

_BROKEN = re.compile(
    "corrupt|bad object|inflate|unable to unpack|unable to read|unable to parse|packfile|pack has"
    "|index file|repo version|repository extension|bad config|unable to resolve reference"
    "|not a valid object|missing (blob|tree|commit)|badly formed|bad (signature|tree|sha)",
    re.IGNORECASE,
)
"""Git says so of a damaged repository, and does not say which one: that of the cache or the remote.
"""
_DAMAGED = re.compile(
    "not our ref|object file .* is empty|loose object .* is corrupt|(?<!pack has )bad object"
    "|broken ref",
    re.IGNORECASE,
)
"""Git says so of a ref that leads nowhere, or to something that cannot be read."""

PushKind = Literal["landed", "there", "lost", "locked", "full", "refused", "unsent", "unknown"]


class PushAnswer(Struct, frozen=True):
    """What became of a push.

    landed   the refs moved
    there    the refs were there already: an earlier push moved them, or that of another host
    lost     a ref was no longer where it was expected: nothing moved
    locked   the remote could not move a ref, though it may be where it was: look, then retry
    full     git ended for want of room, here or there: look, since no status came
    refused  the remote does not take it, and will not
    unsent   the remote was not reached: nothing moved
    unknown  no answer came, and the push may still take effect
    """

    kind: PushKind
    said: str = ""
    of_ref: bool = False
    """Refused for what it would do to a ref; else the user is refused, or there is no room."""


class CopyBroken(StoreDamaged):
    """The copy in the cache lacks what it should have: it is made again."""


class GitRun(Struct, frozen=True):
    """What a git command printed."""

    code: int
    out: bytes
    err: str


class RefMove(Struct, frozen=True):
    """A ref of the remote that a push moves; ``old`` is where it must be, and NONE is absent."""

    ref: str
    old: str
    new: str


class RemoteAway(StoreAway):
    """The remote does not answer; ``said`` is what git says of that."""

    def __init__(self, where: str, said: str) -> None:
        super().__init__(f"{where} does not answer ({said}); see that it runs and can be reached")
        self.said = said


class Repository:
    """A bare repository in the cache, and the remote that it is a copy of."""

    def __init__(self, path: str, address: GitAddress) -> None:
        self.path = path
        self.address = address
        self.shown = address.shown
        self._objects = f"{path}/objects"
        self._lock = threading.Lock()
        self._reader: ObjectReader | None = None
        self.reader = RemoteReader(self)
        """A process at the remote."""
        self.left_locks = LeftLocks(self)
        self._trees: dict[str, Tree] = {}
        self._ident = ""
        self._sign = address.sign
        self.syncs_refs = False
        self.known = False
        """Whether the remote has answered as a store: then it is away, and not misspelled."""
        self._environment: dict[str, str] | None = None

    def ensure(self) -> None:
        """Make the repository unless it is there; another process may do that at this moment."""
        if os.path.exists(self._objects):
            return
        part = f"{self.path}.{os.urandom(4).hex()}"
        made = self.run(
            *("init", "--quiet", "--bare", "--template=", part),
            limit=30.0,
            env=_FORMATS | {"GIT_DIR": part},
        )
        try:
            if made.code:
                raise StoreUnsuitable(
                    f"git could not make {self.path} ({last_line(made.err)}); see 'git init'"
                )
            os.rename(part, self.path)
        except OSError:
            if not os.path.exists(self._objects):
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def run(
        self,
        *args: str,
        limit: float,
        given: bytes | None = None,
        env: Mapping[str, str] = {},
        inherits: int | None = None,
    ) -> GitRun:
        """Run git; a command that takes longer is ended, and its code is that of the signal.

        Git alone keeps the descriptor that it ``inherits``.
        """
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own git
                git_command.command(*_PLAIN, *self._login(), *args, hooks=True),
                stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.environment(), **env},
                start_new_session=True,
                pass_fds=() if inherits is None else (inherits,),
            )
        except FileNotFoundError:
            raise StoreUnsuitable(
                "this store needs git, which is not here; install it (Debian: apt install git)"
            ) from None
        finally:
            if inherits is not None:
                os.close(inherits)
        try:
            out, err = process.communicate(given, timeout=limit)
        except subprocess.TimeoutExpired:
            out, err = b"", f"no answer for {limit:.0f} s".encode()
        finally:
            if process.returncode is None:
                _end(process)
        return GitRun(process.returncode, out, err.decode(errors="replace"))

    def environment(self) -> dict[str, str]:
        """The user's environment for git, without what another repository left in it."""
        if self._environment is None:
            found = git_command.environment() | {"GIT_DIR": self.path}
            if self.address.password:
                found["STORE_URL_USER"] = self.address.user
                found["STORE_URL_PASSWORD"] = self.address.password
            if self.address.remote.startswith("ssh:"):
                from interlock.stores.git.ssh import command

                folder = os.path.dirname(self.path)
                found["GIT_SSH_COMMAND"] = command(self.address.remote, folder, found)
            self._environment = found
        return self._environment

    def _login(self) -> tuple[str, ...]:
        """Options that let git ask for the password of the URL, and for no other one."""
        if not self.address.password:
            return ()
        scheme, _, rest = self.address.remote.partition("://")
        host = rest.partition("/")[0].rpartition("@")[2]
        name = f"credential.{scheme}://{host}.helper"
        return ("-c", f"{name}=", "-c", f"{name}={_HELPER}")

    # ---- the remote

    def look(self, limit: float) -> dict[str, str]:
        """Where the branch and the beat refs of the remote are now."""
        found = self.run(
            "ls-remote", self.address.remote, self.address.ref, f"{self.address.live}*", limit=limit
        )
        if found.code:
            raise self.trouble(found.err)
        rows = (line.split("\t") for line in found.out.decode().splitlines())
        refs = {ref: oid for oid, ref in rows}
        if refs.get(self.address.ref) == NONE:  # so git shows a ref that it cannot read
            raise self.damaged("the file of its ref names no commit")
        return refs

    def fetch(self, limit: float, *, shallow: bool = False, seen: str | None = None) -> str:
        """Bring the news of the branch into the cache; returns the commit that it is at.

        With ``seen``, where a look has seen the branch or an empty string, a process that is kept
        at the remote may bring them; without it git itself does.
        """
        if seen is not None and not shallow and (head := self._bring(seen, limit)):
            return head
        before = self.commit_of(HEAD)
        depth = ("--depth=1",) if shallow else ()
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-show-forced-updates")
        wanted = f"+{self.address.ref}:{HEAD}"
        fetch = ("fetch", *flags, *depth, self.address.remote, wanted)
        found = self.run(*fetch, limit=limit)
        if found.code and ".lock': File exists" in found.err and self._unlock():
            found = self.run(*fetch, limit=limit)
        if found.code and _DAMAGED.search(found.err):  # or it was packed at this moment
            found = self.run(*fetch, limit=limit)
        if found.code and _BROKEN.search(found.err):
            self.refuse_broken()
        if found.code and _DAMAGED.search(found.err):
            raise self.damaged(last_line(found.err))
        if found.code:
            raise self.trouble(found.err)
        return self._fetched(before)

    def _fetched(self, before: str) -> str:
        """The commit that was fetched; StoreDamaged if it is something else."""
        found = self.read(HEAD)
        if found is not None and found.kind != "commit":
            if before:
                self.keep(before)
            raise self.damaged(f"it leads to a {found.kind}")
        return "" if found is None else found.oid

    def _bring(self, seen: str, limit: float) -> str:
        """Bring the news by the process that is kept at the remote; empty if git has to do it."""
        base = self.commit_of(HEAD)
        try:
            head = self.reader.bring(base, seen, limit) if base else ""
        except TimeoutError:
            raise self.trouble(f"no answer for {limit:.0f} s") from None
        if head:
            self.keep(head)
        return head

    def glance(self, base: str, limit: float, hosts: Iterable[str] = ()) -> dict[str, str]:
        """Where the branch and the beat refs of some hosts are, as a process at the remote says.

        Nothing if there is no such process.  Only ``look`` makes sure, and knows all beat refs.
        """
        return self.reader.refs(base, [self.address.live + host for host in hosts], limit)

    def refuse_broken(self) -> None:
        """Raise if the copy is damaged; git says that in many ways, and so of the remote."""
        found = self.run("fsck", "--no-dangling", "--no-progress", limit=600.0)
        if found.code:
            raise CopyBroken(
                f"{self.path} is damaged ({last_line(found.err)});"
                " remove that folder: it is only a cache"
            )

    def _unlock(self) -> bool:
        """Remove the lock files that a killed git left in the cache; whether there were any.

        The processes of a host fetch one after the other, so only a fetch whose process was killed
        could still use one: it has some seconds to end.
        """
        removed = False
        for name in ("shallow", HEAD, "packed-refs"):
            with suppress(FileNotFoundError):
                lock = f"{self.path}/{name}.lock"
                if abs(time.time() - os.stat(lock).st_mtime) > LEFT_LOCK:
                    os.unlink(lock)
                    removed = True
        return removed

    def push(self, *moves: RefMove, limit: float, atomic: bool = False) -> PushAnswer:
        """Move refs of the remote, all of them or none."""
        answer = self._push(moves, limit, atomic=atomic)
        if answer.kind == "locked" and self.left_locks.clear(moves):
            answer = self._push(moves, limit, atomic=atomic)
        return answer

    def _push(self, moves: Sequence[RefMove], limit: float, *, atomic: bool) -> PushAnswer:
        leases = [f"--force-with-lease={move.ref}:{_named(move.old)}" for move in moves]
        flags = ["--atomic"] if atomic or len(moves) > 1 else []
        specs = [f"{_named(move.new)}:{move.ref}" for move in moves]
        remote = self.address.remote
        words = ("push", "--porcelain", *flags, *leases, remote, *specs)
        found = self.run(*words, limit=limit, inherits=self.left_locks.note(moves, limit))
        answer = read_answer(found)
        if answer.kind == "landed" and self.syncs_refs:
            for move in moves:  # git syncs the file of a ref, but not its name in the folder
                _sync_folder(os.path.dirname(f"{remote}/{move.ref}"))
        return answer

    def syncs(self) -> bool:
        """Whether the remote is on this machine, and syncs objects and refs of each push."""
        place = self.address.file
        try:
            with open(f"{place}/config", encoding="utf-8", errors="replace") as file:
                if not place or "fsync" not in file.read():
                    return False
        except OSError:
            return False
        said = self.run("config", "--file", f"{place}/config", "core.fsync", limit=10.0)
        parts = set(said.out.decode().strip().replace(" ", "").split(","))
        self.syncs_refs = "all" in parts or {"committed", "reference"} <= parts
        return self.syncs_refs

    def delete_branch(self, limit: float) -> None:
        """Delete the branch of the remote, and the refs of its hosts."""
        refs = [f":{ref}" for ref in self.look(limit)]
        self.run("push", "--quiet", self.address.remote, *refs, limit=limit)

    def trouble(self, said: str) -> StoreTrouble:
        """Why the remote could not be read, from what git says."""
        line = last_line(said)
        if NO_ROOM.search(said):
            return StoreFull(f"{self.shown}: no room ({line}); free some space, then go on")
        if _REFUSED.search(said):
            return StoreRefused(
                f"{self.shown} refuses you ({line});"
                " see that 'git ls-remote' of it works here without a question"
            )
        if "couldn't find remote ref" in said and self.known:
            return StoreDamaged(
                f"{self.shown} has lost the branch {self.address.branch}; put it back:"
                f" {self.way()}; or, if it was deleted on purpose, stop all agents and remove"
                f" {os.path.dirname(self.path)} on every host"
            )
        if "mismatched algorithms" in said or "hash algorithm" in said:
            return StoreUnsuitable(
                f"{self.shown} has another object format ({line});"
                " make one with: git init --bare --object-format=sha1 PATH"
            )
        if _NO_REPOSITORY.search(said) and not self.known:
            return StoreMissing(
                f"there is no git repository at {self.shown} ({line});"
                " make one: git init --bare PATH; or name another"
            )
        return RemoteAway(self.shown, line)

    def damaged(self, why: str) -> StoreDamaged:
        """The error of a branch that git cannot read at the remote."""
        ref, place = self.address.ref, self.address.file
        remove = f"git update-ref -d {ref} || rm {ref}"
        said = f"the branch {self.address.branch} of {self.shown} is damaged ({why}); "
        if not self.known:
            return StoreDamaged(said + "run a command on a host that has seen it: that says more")
        if not place:
            return StoreDamaged(
                f"{said}in the folder of the repository on its server: {remove}; then put the"
                f" branch back: {self.way()}"
            )
        remove = (
            f"(git --git-dir={shlex.quote(place)} update-ref -d {shlex.quote(ref)}"
            f" || rm {shlex.quote(f'{place}/{ref}')})"
        )
        return StoreDamaged(f"{said}put it back: {remove} && {self.way()}")

    def way(self, commit: str = HEAD) -> str:
        """The command that gives the branch back what this host has seen of it.

        It pushes a root commit with the same files, since this copy may lack older commits.
        Without that commit it must not push: a push of nothing deletes the branch.
        """
        remote, ref = shlex.quote(self.address.remote_shown), self.address.ref
        git = f"git --git-dir={shlex.quote(self.path)}"
        who = " -c user.name=interlock -c user.email=interlock@localhost"
        by = who if self.ident() == _NOBODY else ""
        new = f"$({git}{by} commit-tree -m Restored '{commit}^{{tree}}')"
        return f'new={new} && {git} push --force {remote} "${{new}}:{ref}"'

    def pack(self, *, whole: bool) -> None:
        """Pack the copy in the background; ``whole`` also drops the objects of lost pushes."""

        def work() -> None:
            if whole:
                self.run("repack", "-a", "-d", "-l", "-q", limit=600.0)
                self.run("prune", "--expire=1.hour.ago", limit=600.0)
            else:
                self.run("repack", "-d", "-l", "-q", "--geometric=2", limit=600.0)

        background(work, "interlock-pack").start()

    def rebuild(self) -> None:
        """Throw a broken copy away; the next fetch brings a new one."""
        self.close()
        self._trees.clear()
        aside = f"{self.path}.broken"
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)
        self.ensure()

    # ---- objects

    def read(self, name: str) -> GitObject | None:
        """An object by its id, ref or path; None if there is none."""
        with self._lock:
            for _ in range(2):
                reader = self._reader or self._start_reader()
                try:
                    return reader.ask([name])[0]
                except (OSError, ValueError):  # it was ended: start another one
                    self._stop_reader()
                except BaseException:  # its answer would be taken for that to the next question
                    self._stop_reader()
                    raise
        raise CopyBroken(f"{self.path} cannot be read; remove that folder: it is only a cache")

    def commit_of(self, ref: str) -> str:
        """The commit that a ref of the cache names; empty if there is no such ref."""
        found = self.read(ref)
        return "" if found is None else found[0]

    def tree(self, oid: str) -> Tree:
        """The names in a tree."""
        if oid not in self._trees:
            found = self.read(oid)
            if found is None or found[1] != "tree":
                raise self.incomplete(oid)
            if len(self._trees) >= _KEPT_TREES:
                self._trees.clear()
            self._trees[oid] = objects.parse_tree(found[2])
        return self._trees[oid]

    def subtree(self, tree: Tree, name: str) -> Tree:
        """The names in a folder of a tree; none if there is no such folder."""
        entry = tree.get(name)
        return {} if entry is None else self.tree(self.require(entry, objects.FOLDER).oid)

    def file(self, tree: Tree, name: str) -> bytes | None:
        """The content of a file of a tree; None if there is no such file."""
        entry = tree.get(name)
        return None if entry is None else self.blob(self.require(entry, objects.FILE).oid)

    def require(self, entry: TreeEntry, mode: str) -> TreeEntry:
        """The entry of a store; StoreDamaged if it is a link, a submodule or a program instead."""
        if entry.mode == mode:
            return entry
        kind, wanted = (objects.KINDS.get(each, f"of mode {each}") for each in (entry.mode, mode))
        raise StoreDamaged(
            f"{entry.name} in the branch of {self.shown} is {kind}, and that of a store is"
            f" {wanted} (another program wrote it?); put the branch back to a commit before that"
        )

    def root(self, commit: str) -> Tree:
        """The names at the root of a commit."""
        return self.tree(self.root_id(commit))

    def root_id(self, commit: str) -> str:
        """The tree of a commit."""
        found = self.read(commit)
        if found is None or found[1] != "commit":
            raise self.incomplete(commit)
        return objects.tree_of(found[2])

    def blob(self, oid: str) -> bytes:
        """The content of a file."""
        found = self.read(oid)
        if found is None:
            raise self.incomplete(oid)
        return found[2]

    def write(self, kind: str, data: bytes) -> str:
        """Write an object; returns its id."""
        return objects.write(self._objects, kind, data)

    def loose_size(self, oid: str) -> int:
        """Bytes of an object that was written lately; 0 if it is packed."""
        try:
            return os.stat(f"{self._objects}/{oid[:2]}/{oid[2:]}").st_size
        except FileNotFoundError:
            return 0

    def write_tree(self, tree: Tree) -> str:
        """Write a tree; returns its id."""
        oid = self.write("tree", objects.encode_tree(tree))
        if len(self._trees) >= _KEPT_TREES:
            self._trees.clear()
        self._trees[oid] = tree
        return oid

    def write_commit(self, tree: str, parent: str, message: str) -> str:
        """Write a commit of the user; signed if the URL or the user's configuration says so."""
        if self._signs():
            parents = ("-p", parent) if parent else ()
            made = self.run("commit-tree", "-S", *parents, tree, limit=60.0, given=message.encode())
            if made.code:
                raise StoreRefused(
                    f"git could not sign a commit ({last_line(made.err)}); see that"
                    " 'git commit -S' works here without a question, or write sign=no into the URL"
                )
            return made.out.decode().strip()
        ident = f"{self.ident()} {int(time.time())} +0000"
        return self.write("commit", objects.encode_commit(tree, parent, ident, message))

    def _signs(self) -> bool:
        """Whether commits are signed."""
        if self._sign is None:
            said = self.run("config", "--type=bool", "--get", "commit.gpgSign", limit=10.0)
            self._sign = said.out.strip() == b"true"
        return self._sign

    def keep(self, commit: str) -> None:
        """Let the branch of the cache be at a commit of our own, as after a fetch."""
        path = f"{self.path}/{HEAD}"
        part = f"{self.path}/head.{os.getpid()}"  # not among the refs: it may be left there
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "w", encoding="ascii") as file:
            file.write(commit + "\n")
        os.rename(part, path)

    def ident(self) -> str:
        """Name and mail of the user, as git knows them."""
        if not self._ident:
            found = self.run("var", "GIT_COMMITTER_IDENT", limit=10.0)
            said = found.out.decode(errors="replace").rpartition(">")[0]
            self._ident = f"{said}>" if said and not found.code else _NOBODY
        return self._ident

    def incomplete(self, oid: str) -> CopyBroken:
        """The error of a cache without an object that it should have."""
        return CopyBroken(
            f"{self.path} lacks the object {oid}; remove that folder: it is only a cache"
        )

    def close(self) -> None:
        """End the processes that read objects."""
        self.leave_remote()
        with self._lock:
            self._stop_reader()

    def leave_remote(self) -> None:
        """End the process that is kept at the remote, if there is one."""
        self.reader.close()

    def abandon(self) -> None:
        """After a fork, in the child: the processes that read are those of the parent."""
        self.reader.drop()
        if self._reader is not None:
            self._reader.drop()

    def _start_reader(self) -> ObjectReader:
        self._reader = ObjectReader(git_command.command("cat-file", "--batch"), self.environment())
        return self._reader

    def _stop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def one_of_a_kind(subject: str) -> str:
    """The message of a commit that no other process makes."""
    return f"{subject}\n\n{os.urandom(16).hex()}\n"


def read_answer(found: GitRun) -> PushAnswer:
    """What the output of ``git push --porcelain`` means."""
    rows = [line.split("\t") for line in found.out.decode(errors="replace").splitlines()]
    rows = [row for row in rows if len(row) == 3]  # noqa: PLR2004 - flag, refs, summary
    said = _said(found.err) or last_line(found.err)
    bad = [row[2] for row in rows if row[0] == "!"]
    if rows and not bad and not found.code:
        return PushAnswer("there" if all(row[0] == "=" for row in rows) else "landed")
    if NO_ROOM.search(found.err):
        return PushAnswer("refused" if bad else "full", said)
    if bad:
        return _verdict(bad, said)
    own = "\n".join([line for line in found.err.splitlines() if not line.startswith("remote:")])
    if _BEGUN.search(own):
        return PushAnswer("unknown", said)
    if _REFUSED.search(own):
        return PushAnswer("refused", said, of_ref="--atomic" in own)
    return PushAnswer("unsent" if _UNSENT.search(own) else "unknown", said)


def _verdict(bad: Iterable[str], said: str) -> PushAnswer:
    reasons = " ".join(bad)
    if "stale info" in reasons or "fetch first" in reasons:
        return PushAnswer("lost")
    if "[remote failure]" in reasons or "expected report" in reasons:
        return PushAnswer("unknown", reasons)
    declined = "declined" in reasons or "denied" in reasons or "protected" in reasons
    if not declined and any(each in reasons for each in _RACED):
        return PushAnswer("locked", said or reasons)
    return PushAnswer("refused", f"{reasons}: {said}" if said else reasons, of_ref=True)


def _said(err: str) -> str:
    """What the remote itself said, in one line."""
    lines = [line.removeprefix("remote:").strip() for line in err.splitlines() if "remote:" in line]
    return " ".join(filter(None, lines))[:300]


def last_line(err: str) -> str:
    """The line of an error that says the most."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    clear = [line for line in lines if _REFUSED.search(line) or _UNSENT.search(line)]
    marked = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
    return (clear or marked or lines or ["git said nothing"])[0][:200]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git and all that it started: a remote on this disk first gets to remove its locks."""
    for number, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=grace)
            return


def _sync_folder(folder: str) -> None:
    with suppress(FileNotFoundError):  # packed refs: then git synced another file
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _named(oid: str) -> str:
    return "" if oid == NONE else oid
