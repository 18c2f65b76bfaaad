"""SQLite, the default store: one file for all processes of a machine.

store.py       the waist's methods
writer.py      grouped commits, and the queue of processes for the write lock
connection.py  the connection that reads, and the one that writes
wal.py         how far the write-ahead log is durable, and the wait for that
watch.py       the feed of changes, read from the log
notify.py      how a commit wakes the processes that watch
schema.py      opening a connection, tables, format number, migrations, errors of SQLite
files.py       where a file may be, who may read it, and whether it is still there
fork.py        open stores in a program that forks
examine.py     findings for people
"""

from interlock.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
