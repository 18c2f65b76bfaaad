"""Git: a branch of a remote, for servers that share nothing else.

store.py       opening, the waist's methods
writer.py      groups of jobs that a push confirms; turns among hosts
follower.py    what needs no turn: readers that follow the branch, and beats
publisher.py   pushes until the outcome is known
replica.py     the SQLite file of a host: works become batches, batches are replayed
batch.py       the file of a batch (pure)
checkpoint.py  the state as files: for people, and for hosts that are far behind
repository.py  the user's git: look, fetch, push, objects
objects.py     git's objects as bytes
reader.py      a git process that reads objects, kept open
remote_reader.py  such a process at the remote, while hosts compete
news.py        which objects a commit has that an older one has not
beats.py       renewals without history: a ref of each host
looks.py       looks at the remote, shared and repeated while a process waits
ssh.py         the connection that is kept
address.py     the URL
examine.py     findings for people
"""

from interlock.stores.git.store import GitStore

__all__ = ["GitStore"]
