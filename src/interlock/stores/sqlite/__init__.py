"""SQLite: the default store, one file for all processes of a machine.

store.py      the waist's methods
writer.py     grouped commits: inline when nothing waits, else one writer thread
turnstile.py  processes queue for the write in the kernel, in order, without sleeping
bells.py      doorbells: who watches what, and how a commit wakes them
watch.py      the feed of changes, rung by the bells
schema.py     tables, format number, migration
fork.py       no connection is open at the moment of a fork
examine.py    what the doctor looks at
place.py      where a file may stand, and who may read it
"""

from interlock.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
