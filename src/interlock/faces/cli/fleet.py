"""Commands about this folder and this machine: init, doctor, maintain, demo, bench, schema ...

``init`` is the only command that creates a store without a URL.  ``doctor`` makes the checks that
come before an open store, and adds those that a client can make.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from typing import TYPE_CHECKING

from interlock import store_location, work_tree
from interlock.core import validate
from interlock.core.safe_text import printable, quoted
from interlock.errors import BadInput, InterlockError, NotAllowed, NotAllowedYet, StoreReadOnly
from interlock.faces.cli import command, progress
from interlock.faces.cli.allow import is_person, refuse_coding_agent
from interlock.faces.cli.command import (
    Stopped,
    Unwritten,
    answer,
    note,
    write,
    write_json,
)
from interlock.faces.cli.connect import (
    CommandIdentity,
    allow_store,
    hush,
    is_new,
    opened,
    require_made,
    shown,
    speak_up,
    url_of,
)
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import Created, StoreExists
from interlock.stores import file_of, is_network, open_store

if TYPE_CHECKING:
    from interlock.nouns.fleet.noun import InitRequest, MaintainRequest
    from interlock.store import Finding, Store, StoreMark

_IGNORE_ALL = "*\n"


def init(parsed: Parsed) -> int:
    """Create a store in the main worktree, or where ``--store`` or the environment says."""
    request: InitRequest = parsed.request
    found = store_location.from_environment()
    named = CommandIdentity(parsed.common).store or (found.url if found else None)
    if request.shared and named:
        raise BadInput("--shared is a place of its own; leave --store and INTERLOCK_STORE out")
    url = named or _found(shared=request.shared)
    if is_network(url):
        return answer(parsed, _across(url))
    file = file_of(url)
    if file is None:
        raise BadInput("memory: is gone when this command ends; name a file")
    with _one_at_a_time(file):
        if named is None:
            work_tree.require_counts(file)
            if work_tree.is_gone(file):  # a person may find a backup
                refuse_coding_agent()
        else:
            work_tree.require_not_replaced(file, create=False)
        new = not os.path.lexists(file) or not os.path.getsize(file)
        store = _made(url, file) if new else open_store(url, create=False)
        path = str(getattr(store, "path", url))
        store.close()
    if new:
        return answer(parsed, Created(store=path))
    status = answer(parsed, _there(store, path))
    around = os.path.dirname(os.path.dirname(path))
    if named is None and around != os.path.realpath(os.curdir):
        note(
            f"this folder shares the store of {printable(around)};"
            " for one of its own: interlock init --store .interlock/store.db"
        )
    return status


def _made(url: str, file: str) -> Store:
    """A new store, which is on the list before anything is in it: a kill leaves none in doubt."""
    empty = False
    with suppress(OSError):  # opening says what is wrong
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(file, flags, 0o600))
        empty = True
    try:
        if os.path.exists(file):
            allow_store(file)
        return open_store(url)
    except BaseException:
        if empty:
            with suppress(OSError):
                os.unlink(file)
        raise


@contextmanager
def _one_at_a_time(file: str) -> Iterator[None]:
    """Create the folder of a store, and keep another ``init`` out until this one is done.

    Another one would find a store that is not on the list yet.
    """
    folder, lock = os.path.dirname(os.path.abspath(file)), -1
    with suppress(OSError):  # opening says what is wrong
        os.makedirs(folder, 0o700, exist_ok=True)
        lock = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def _across(url: str) -> Created | StoreExists:
    """Connecting checks a server; a new store gets its id, so that it is known as one."""
    from interlock.steps import drive
    from interlock.store import Log

    with opened(url, create=True, join=False) as fleet:
        store, first = fleet.store, Log(limit=1)
        if caution := str(getattr(store, "caution", "")):
            note(caution)
        if new := is_new(store):
            drive(fleet.context.runner.store_id(), store)
        elif not hasattr(store, "made"):  # a branch, which the opening made
            new = not store.read(first).ranges[first]
    return Created(store=shown(url)) if new else _there(store, shown(url))


def _there(store: Store, place: str) -> StoreExists:
    """A store that was there, and why it accepts no changes: it was moved, or it is a backup."""
    from interlock.stores.marks import refusal

    mark: StoreMark | None = getattr(store, "mark_at_opening", None)
    return StoreExists(store=place, warning="" if mark is None else str(refusal(mark, place)))


def _found(*, shared: bool) -> str:
    """The store of this project; its folder is for its owner only, and never committed."""
    if url := store_location.store_of_settings():
        return url
    there, home = store_location.folder(), store_location.home()
    own = os.path.join(home, work_tree.FOLDER)
    folder = store_location.shared_folder(home) if shared else there or own
    if folder is None:
        raise BadInput("--shared needs a git repository, and this is none; leave it out")
    if shared and os.path.exists(os.path.join(own, work_tree.FILE)):
        raise BadInput(
            f"there is a store in {own} already; take it along: interlock store copy"
            f" {validate.quote(os.path.join(own, work_tree.FILE))}"
            f" {validate.quote(os.path.join(folder, work_tree.FILE))}"
        )
    file = os.path.join(folder, work_tree.FILE)
    if link := next(filter(os.path.islink, (folder, file)), None):
        raise NotAllowed(
            f"{link} is a link, and a commit can hold one; remove it, or name the store with"
            " --store"
        )
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        if not shared:
            ignore_all(folder)
    except OSError as error:
        raise StoreReadOnly(f"{folder} cannot be created ({error.strerror}); use --store") from None
    return file


def ignore_all(folder: str) -> None:
    """Keep a folder out of commits; a file that a commit brought may say something else."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    path = os.path.join(folder, ".gitignore")
    with open(os.open(path, flags, 0o600), "r+", encoding="utf-8", errors="replace") as file:
        if file.read(len(_IGNORE_ALL) + 1) != _IGNORE_ALL:
            file.seek(0)
            file.truncate()
            file.write(_IGNORE_ALL)


def doctor(parsed: Parsed) -> int:
    """Check everything that Interlock depends on, and say what to fix."""
    from interlock.nouns.fleet.noun import Diagnosis

    return answer(parsed, Diagnosis(checks=tuple(_checks(parsed))))


def _checks(parsed: Parsed) -> Iterator[Finding]:
    """Every check; a check may rely on those before it."""
    from interlock.faces.hooks.doctor import hook_findings
    from interlock.faces.hooks.git_doctor import tracked_findings
    from interlock.nouns.fleet.doctor import error_finding, examine_store, ok, python
    from interlock.steps import drive

    yield python()
    yield from tracked_findings()  # also if the store is refused because of them
    try:
        given = CommandIdentity(parsed.common).store
        found = store_location.StoreLocation(given, "--store") if given else store_location.locate()
        yield ok("store", f"{shown(found.url)} (from {found.how})")
        with opened(given, create=False) as fleet:  # a check creates no store
            if is_new(fleet.store):
                yield from fleet.store.examine()  # the server, before a store is made there
            require_made(fleet.store)
            yield from drive(examine_store(fleet.context), fleet.store)
            yield from hook_findings(fleet)
    except InterlockError as error:
        if isinstance(error, NotAllowedYet) and is_person():  # who is asked, as by each command
            raise
        yield error_finding("store", error)


def maintain(parsed: Parsed) -> int:
    """One pass; with ``--guards`` one after the other, until the time is up or a signal comes."""
    from interlock.faces.cli.connect import connected

    request: MaintainRequest = parsed.request
    with connected(parsed) as fleet:
        if not request.guards:
            return answer(parsed, fleet.act(request))
        from interlock.nouns.guards.maintenance import GuardMaintenance
        from interlock.steps import drive

        command.stoppable()
        speak_up()
        work = GuardMaintenance(fleet.context, request.timeout)
        work.poller.on_not_allowed = _not_allowed
        with suppress(KeyboardInterrupt, Stopped):  # its usual end
            drive(work.run(), fleet.store)
        return answer(parsed, work.outcome)


def _not_allowed(guard: str) -> None:
    note(
        f"guard {quoted(guard)} is waited for, and this host does not allow it;"
        " a person has to read its file and allow it here"
    )


def demo(parsed: Parsed) -> int:
    """Run the demonstration."""
    from interlock.demo import run_demo

    request, common = parsed.request, parsed.common
    ttl = validate.duration(request.ttl, "ttl")
    store = CommandIdentity(common).store
    if store is not None and is_network(store):
        hush()
    with _writing():
        return run_demo(
            store, write=write_json if common.json else None, ttl=ttl, workers=request.workers
        )


def bench(parsed: Parsed) -> int:
    """Measure this machine."""
    from interlock.bench import run_bench

    request, common = parsed.request, parsed.common
    with _writing():
        return run_bench(
            common.store,
            write=write_json if common.json else None,
            say=_say,
            only=request.only,
            quick=request.quick,
        )


def _say(text: str) -> None:
    """Print lines while the work goes on; its line of progress comes back below them."""
    progress.clear()
    print(text, flush=True)


@contextmanager
def _writing() -> Iterator[None]:
    """What writes to stdout itself says as all others do that it is full."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        raise Unwritten(error.errno, error.strerror) from error


def schema(parsed: Parsed) -> int:
    """The schema of what a command prints; without a command, which there are, or all as JSON."""
    from msgspec.json import format as formatted

    from interlock import registry
    from interlock.faces import schema as schemas
    from interlock.faces.json_output import encoded

    name = " ".join(parsed.request.words)
    try:
        operation = registry.find(name) if name else None
    except KeyError:
        from interlock.faces.cli.help import suggestion

        question = suggestion(name) or "see 'interlock schema'"
        raise BadInput(f"there is no command {quoted(name)}; {question}") from None
    if operation is not None and parsed.common.json:
        write_json(schemas.schema(operation.name))
    elif operation is not None:
        write(formatted(encoded(schemas.schema(operation.name))) + b"\n")
    elif parsed.common.json:
        found = schemas.all_schemas()
        write_json({"schemas": found, "count": len(found)})
    else:
        write("".join(f"interlock schema {each}\n" for each in registry.names()).encode())
    return 0


def selftest(parsed: Parsed) -> int:
    """Put the promises to the test, on the store that is meant."""
    from interlock.testing.selftest import race

    request, store = parsed.request, CommandIdentity(parsed.common).store
    if not request.race:
        raise BadInput("which test? --race lets processes fight for tasks")
    most = (
        validate.FOREVER
        if request.seconds is None
        else validate.duration(request.seconds, "seconds")
    )
    with opened(store, join=False) as fleet:
        url = url_of(fleet.store, store)
    raced = race(url, processes=request.processes, tasks=request.tasks, seconds=most)
    return answer(parsed, raced)
