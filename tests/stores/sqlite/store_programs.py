"""What processes do to a SQLite store in these tests; words name one and give its arguments."""

from __future__ import annotations

import codecs
import ctypes
import logging
import os
import platform
import resource
import select
import signal
import statistics
import struct
import sys
import threading
import time
from contextlib import suppress

import apsw

import interlock
from interlock.errors import StoreClosed, StoreDamaged, StoreFull, StoreMissing
from interlock.store import Put, Txn, View
from interlock.stores.sqlite import SQLiteStore, schema, wal
from interlock.stores.sqlite import watch as watches
from interlock.stores.sqlite.connection import WriteConnection


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - how an actor speaks


def wait() -> str:
    return sys.stdin.readline().strip()


def put(key: str, value: bytes = b"x", *, ttl: float | None = None) -> Txn:
    """A transaction that writes one key."""
    name = f"txn_{os.getpid()}_{os.urandom(8).hex()}"
    return Txn(id=name, entry=b"{}", hash="00", puts=(Put(key, value, ttl),))


def increase(view: View) -> Txn:
    item = view.read("counter")["counter"]
    return put("counter", str(int(item.value if item else 0) + 1).encode())


def die_at(statement: int) -> None:
    """Be killed just before the given SQL statement, whatever it is."""
    left = [statement]

    def trace(_cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    apsw.connection_hooks.append(lambda db: db.set_exec_trace(trace))


def create(path: str, statement: str) -> None:
    """Make a store, and be killed at a statement; say so if there were not so many."""
    die_at(int(statement))
    SQLiteStore(path).close()
    say("finished")


def migrate(path: str, statement: str) -> None:
    """Migrate to format 2, and be killed at a statement; say so if there were not so many."""

    def to_two(db: apsw.Connection) -> None:
        db.execute("CREATE TABLE more (x)")
        db.execute("UPDATE item SET value = x'32'")

    die_at(int(statement))
    db = schema.open_connection(path)
    schema.establish(db, path, target=2, migrations={1: to_two})
    db.close()
    say("finished")


def count(path: str, seconds: str) -> None:
    """Increase the counter as often as possible, and once at least."""
    store = SQLiteStore(path)
    say("ready")
    wait()
    ends = time.monotonic() + float(seconds)
    done = 0
    while not done or time.monotonic() < ends:
        store.transact(increase)
        done += 1
    say(done)
    store.close()


def take_turns(path: str, many: str) -> None:
    """Increase the counter so often; say how many others came between our look and our turn."""
    store = SQLiteStore(path)
    say("ready")
    wait()
    passed = []
    for _ in range(int(many)):
        seen = store.read("counter")["counter"]
        answer = store.transact(increase)
        assert answer is not None
        passed.append(answer.revision - (seen.revision if seen else 0) - 1)
    say(statistics.median(passed))
    store.close()


def stop_inside(path: str) -> None:
    """Stand still in the middle of a commit, and finish it when told to go on."""

    def work(view: View) -> Txn:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return increase(view)

    store = SQLiteStore(path)
    store.transact(work)
    say("done")
    store.close()


def commit(path: str, prefix: str, many: str, sockets: str = "allowed") -> None:
    """Commit whenever told to, and say so."""
    if sockets == "forbidden":
        forbid_sockets()
    store = SQLiteStore(path)
    say("ready")
    for number in range(int(many)):
        wait()
        store.transact(lambda _, number=number: put(f"{prefix}{number}"))  # type: ignore[misc]
        say("done")
    store.close()


def stand_before_the_disk() -> None:
    """Wait to be told before the disk is asked the next time to keep a commit."""
    sync = wal._sync

    def stand(fd: int) -> None:
        say("committed")
        wait()
        wal._sync = sync
        sync(fd)

    wal._sync = stand


def commit_before_the_disk(path: str, key: str) -> None:
    """Commit, and wait before the disk is asked to keep it."""
    store = SQLiteStore(path)
    stand_before_the_disk()
    store.transact(lambda _: put(key))
    say("done")
    store.close()


def release_before_the_disk(path: str) -> None:
    """Hold a lock; when told, release it, and wait before the disk is asked to keep that."""
    with interlock.connect(path, agent="ada") as fleet:
        with fleet.lock("merge"):
            say("held")
            wait()
            stand_before_the_disk()
        say("released")


def die_before_ringing(path: str, key: str) -> None:
    """Commit, and be killed before the bell rings."""
    store = SQLiteStore(path)
    store._engine.notify = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    store.transact(lambda _: put(key))


def watch(path: str, prefix: str, after: str, sockets: str = "allowed") -> None:
    """Say every key that changes; with ``notifier`` only if it was rung."""
    if sockets == "forbidden":
        forbid_sockets()
    if sockets == "notifier":
        watches.BACKSTOP = 3600.0
    store = SQLiteStore(path)
    feed = store.watch(prefix, int(after))
    say("ready", store.info()["doorbells"])
    while True:
        for change in feed.take(None):
            say(getattr(change, "key", change))


def hold_busily(path: str) -> None:
    """Hold a lock and commit without a pause; say when the last answered commit began."""
    fleet = interlock.connect(path, agent="ada")
    with suppress(interlock.Lost), fleet.lock("merge") as held:
        say("held")
        wait()
        fill(fleet)
        say("grown")
        answered, refused = 0.0, 0
        while refused < 50:
            began = time.monotonic()
            try:
                fleet.store.commit(put("k/busy"))
                assert not refused, "a store that was gone answered again"
                answered = began
            except StoreMissing:
                refused += 1
        say(answered, held.lost)
        for call in (fleet.locks.list, held.release, held.check):
            try:
                call()
                say("answered")
            except (StoreMissing, interlock.Lost) as error:
                say(error.code)
    fleet.close()


def fill(fleet: interlock.Fleet) -> None:
    """Commit so much that the file itself is written, and not its log alone."""
    for number in range(30):
        puts = tuple(Put(f"k/{number}/{part}", b"v" * 4000) for part in range(50))
        fleet.store.commit(Txn(id=put("k").id, entry=b"{}", puts=puts))


def wait_for(path: str, what: str) -> None:
    """Wait for a lock or a task, and say what came of it."""
    watches.BACKSTOP = 0.2
    fleet = interlock.connect(path, agent="bob")
    threading.Thread(target=hear_of_growth, args=(fleet,), daemon=True).start()
    say("ready")
    try:
        if what == "lock":
            with fleet.lock("merge"):
                say("granted")
        else:
            say(fleet.tasks.next(wait=60))
    except (StoreMissing, StoreDamaged):  # damaged: read while it was copied over
        say("missing")
    fleet.close()


def hear_of_growth(fleet: interlock.Fleet) -> None:
    """Say when this client saw that the file was written since it opened it."""
    store = fleet.store
    assert isinstance(store, SQLiteStore)
    header = store._files._header
    while store._files._header == header:
        time.sleep(0.01)
    say("grown")


def read_on(path: str) -> None:
    """Hold a read transaction open until told otherwise."""
    db = schema.open_connection(path)
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM item").fetchall()
    say("reading")
    wait()
    db.execute("COMMIT")
    db.close()


def open_it(path: str, user: str = "") -> None:
    """Open the store, as another user if one is given, and say how that went."""
    if user:
        codecs.lookup("ascii")  # the interpreter itself may be out of their reach
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    try:
        store = SQLiteStore(path)
        store.transact(lambda _: put("a"))
        store.close()
        say("ok")
    except Exception as error:  # noqa: BLE001 - the test judges it
        say(type(error).__name__, error)


def fork(path: str, exit_by: str) -> None:
    """Fork with a store, a lock and a watch; the child tries everything, the parent goes on."""
    watches.BACKSTOP = 3600.0  # what the parent hears was rung
    fleet = interlock.connect(path, agent="parent")
    store = fleet.store
    assert isinstance(store, SQLiteStore)
    with fleet.lock("merge", ttl=5) as held:
        feed = store.watch("k/", store.read("a").revision)
        hear, speak = os.pipe()
        child = os.fork()
        if child == 0:
            tries = {
                "read": lambda: store.read("a"),
                "transact": lambda: store.transact(lambda _: put("k/child")),
                "commit": lambda: store.commit(put("k/child")),
                "watch": lambda: store.watch("k/", 0),
                "take": lambda: feed.take(0.01),
                "info": store.info,
                "sweep": store.sweep,
                "locks": fleet.locks.list,
                "release": held.release,
            }
            for name, attempt in tries.items():
                try:
                    attempt()
                    answer = "worked"
                except StoreClosed as error:
                    answer = "closed" if "connect again in the child" in str(error) else str(error)
                os.write(speak, f"{name} {answer}\n".encode())
            feed.close()
            os.close(speak)
            if exit_by == "_exit":
                os._exit(0)
            store.close()
            fleet.close()
            sys.exit(0)
        os.close(speak)
        with os.fdopen(hear) as lines:
            for line in lines:
                say(line.strip())
        _, status = os.waitpid(child, 0)
        say("child", status)
        held.check()
        store.transact(lambda _: put("k/parent"))
        say("heard", [getattr(change, "key", "") for change in feed.take(20)])
        say("held")
        wait()
    fleet.close()


def fork_and_connect(path: str) -> None:
    """Fork, and connect again in the child, as one is told to; the parent leaves first."""
    store = SQLiteStore(path)
    store.transact(increase)
    store.read("counter")
    hear, speak = os.pipe()
    if os.fork() == 0:
        mine = SQLiteStore(path)
        mine.transact(increase)
        mine.read("counter")
        say("child ready")
        os.read(hear, 1)
        answer = mine.transact(increase)
        say("child", answer and answer.revision)
        mine.close()
        os._exit(0)
    wait()
    store.close()
    say("parent closed")
    wait()
    os.write(speak, b"!")
    os.wait()
    say("child gone")


def fork_often(path: str, many: str) -> None:
    """Fork again and again while threads commit; each child connects and commits as well."""
    store = SQLiteStore(path)
    done = [0, 0]
    stop = threading.Event()

    def commit(number: int) -> None:
        while not stop.is_set():
            store.transact(increase)
            done[number] += 1

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(int(many)):
        child = os.fork()
        if child == 0:
            mine = SQLiteStore(path)
            mine.transact(increase)
            mine.close()
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    say(sum(done), statuses.count(0))


def fork_inside(path: str) -> None:
    """Fork in the middle of a transaction."""
    from interlock.stores.sqlite import fork as forks

    forks.PATIENCE = 0.1
    store = SQLiteStore(path)

    def work(view: View) -> Txn:
        child = os.fork()
        if child == 0:
            try:
                SQLiteStore(path)
                say("worked")
            except StoreClosed as error:
                say(error)
            os._exit(0)
        os.waitpid(child, 0)
        return increase(view)

    store.transact(work)
    store.transact(increase)
    store.close()


def fork_unseen(path: str) -> None:
    """Fork as a C library does, behind the back of Python's hooks."""
    store = SQLiteStore(path)
    store.transact(increase)
    store.read("counter")
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        for name, attempt in (
            ("read", lambda: store.read("counter")),
            ("write", lambda: store.transact(increase)),
            ("connect", lambda: SQLiteStore(path)),
        ):
            try:
                attempt()
                say(name, "worked")
            except StoreClosed:
                say(name, "closed")
        store.close()
        say("close done")
        os._exit(0)
    say("child", os.waitpid(child, 0)[1])
    answer = store.transact(increase)
    say("parent", answer and answer.revision)
    store.close()


def keep_open(path: str) -> None:
    """Have a store open until told otherwise."""
    store = SQLiteStore(path, create=False)
    say("open")
    wait()
    store.close()


def leave_log(path: str) -> None:
    """Leave a log with every page behind, as if this had been killed."""
    SQLiteStore(path).transact(lambda _: put("k/evil"))
    db = apsw.Connection(path)
    db.wal_autocheckpoint(0)
    db.execute("VACUUM")
    os._exit(0)


def open_and_close(path: str) -> None:
    """Open and close a store until the input ends; say which error came, if one did."""
    say("begun")
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        store = SQLiteStore(path, create=False)
        store.transact(increase)
        store.close()
        if select.select([sys.stdin], [], [], 0)[0]:
            say("done")
            return


def forbid_sockets() -> None:
    """Have the kernel refuse socket(2) from now on, as some sandboxes do."""
    machine, number = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, 3, machine),
        (load, 0, 0, 0),  # the number of the call
        (equal, 0, 1, number),
        (give, 0, 0, 0x0005_0000 | 1),  # EPERM
        (give, 0, 0, 0x7FFF_0000),  # allow
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0


def renew_without_room(path: str) -> None:
    """Hold a lock in vain on a store whose files cannot grow; say how often it was tried."""
    begun, told = [0], []
    begin = WriteConnection.begin

    def count_and_begin(self: WriteConnection, wait: float) -> None:
        begun[0] += 1
        begin(self, wait)

    WriteConnection.begin = count_and_begin  # type: ignore[method-assign]
    logging.getLogger("interlock").addHandler(handler := logging.Handler())
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    with interlock.connect(path, agent="ada", ttl=4) as fleet:
        fleet.locks.acquire("merge")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            fleet.locks.acquire("more")
        except StoreFull as error:
            say(error)
        begun[0] = 0
        lost = threading.Event()
        lease = fleet.context.session_lease
        assert lease is not None
        lease.listeners.append(lost.set)
        while not (trouble := fleet.trouble):
            time.sleep(0.01)
        say(trouble)
        assert lost.wait(60)
        say(begun[0])
        for line in told:
            say(line)
        say("")


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
