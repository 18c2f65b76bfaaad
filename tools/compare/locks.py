"""Locks: the processes of a contender take one lock again and again, without a pause.

Each holder raises a shared counter, so two holders at once would be found.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tools.compare.peer import Peer, Work

_LEASE = 30
"""Seconds after which the lock of a dead holder is free, with contenders that have a lease."""


class Locks(Peer):
    """A lock that several processes want."""

    def hold(self, work: Work) -> None:
        """Acquire, note and release until the run is stopped."""
        raise NotImplementedError


class Interlock(Locks):
    """Interlock on SQLite."""

    name = "interlock"
    title = "Interlock, SQLite"
    lacks = ""
    packages = ("interlock", "apsw")
    ours = True

    def hold(self, work: Work) -> None:
        import interlock

        with interlock.connect(self.place, agent=f"holder.{work.worker}") as fleet:
            work.begin()
            while not work.stopped.is_set():
                with fleet.lock("compare"):
                    work.note_grant()


class InterlockRedis(Interlock):
    """Interlock on Redis."""

    name = "interlock-redis"
    title = "Interlock, Redis"
    server = "redis"
    packages = ("interlock", "hiredis")
    beside = "interlock-redis"


class InterlockEtcd(Interlock):
    """Interlock on etcd."""

    name = "interlock-etcd"
    title = "Interlock, etcd"
    server = "etcd"
    packages = ("interlock", "grpcio")
    beside = "interlock-etcd"


class FileLock(Locks):
    """The package filelock: the kernel's lock on a file, which a waiter asks for every 50 ms."""

    name = "filelock"
    title = "filelock"
    lacks = "lease, fairness, fencing, record; other machines"
    keeps = "nothing is stored"
    packages = ("filelock",)

    def hold(self, work: Work) -> None:
        from filelock import FileLock as Lock

        lock = Lock(self.place)
        work.begin()
        while not work.stopped.is_set():
            with lock:
                work.note_grant()


class AdvisoryLock(Locks):
    """An advisory lock of PostgreSQL, which its session holds."""

    name = "postgres"
    title = "advisory lock, PostgreSQL"
    lacks = "lease, fencing, record"
    keeps = "nothing is stored"
    server = "postgres"
    packages = ("psycopg",)

    def hold(self, work: Work) -> None:
        import psycopg

        with psycopg.connect(self.place, autocommit=True) as connection:
            work.begin()
            while not work.stopped.is_set():
                connection.execute("SELECT pg_advisory_lock(1)")
                work.note_grant()
                connection.execute("SELECT pg_advisory_unlock(1)")


class RedisPyLock(Locks):
    """The lock of redis-py, which a waiter asks for every 100 ms."""

    name = "redis-py"
    title = "redis-py Lock, Redis"
    lacks = "fairness, fencing, record"
    server = "redis"
    packages = ("redis",)
    beside = "interlock-redis"

    def hold(self, work: Work) -> None:
        from redis import Redis

        client = Redis.from_url(self.place.partition("?")[0])
        work.begin()
        while not work.stopped.is_set():
            with client.lock("compare", timeout=_LEASE):
                work.note_grant()


class ToozLock(Locks):
    """A lock of tooz on etcd, which a waiter asks for after longer and longer pauses."""

    name = "tooz"
    title = "tooz, etcd"
    lacks = "fairness, fencing, record"
    server = "etcd"
    packages = ("tooz", "etcd3gw")
    beside = "interlock-etcd"

    def hold(self, work: Work) -> None:
        from tooz import coordination

        url = urlsplit(self.place)
        member = f"holder.{work.worker}".encode()
        coordinator = coordination.get_coordinator(f"etcd3+http://{url.netloc}", member)
        coordinator.start(start_heart=True)
        lock = coordinator.get_lock(url.path.encode())
        work.begin()
        while not work.stopped.is_set():
            with lock:
                work.note_grant()
        coordinator.stop()


PEERS: tuple[type[Locks], ...] = (
    Interlock,
    FileLock,
    AdvisoryLock,
    InterlockRedis,
    RedisPyLock,
    InterlockEtcd,
    ToozLock,
)
