"""Where everything stands: the only module that makes or parses keys.

``/`` separates the parts of a key, so inside a part it is percent-encoded.

    locks/{name}          the lock: its grant and its waiters, one item
    semaphores/{name}     the semaphore: its capacity, its grants and its waiters, one item
    waits/{caller}/{id}   what a caller waits for while it may hold something else
    sessions/{session}    who this incarnation of an agent is
    reports/{session}     what it says of itself
    logbooks/{agent}      which chunks of its log stand
    logs/{agent}/{number} a chunk of its log: many lines
    live/{id}             liveness of a session or of a grant; the only keys that lapse
    live/{session}.heard  what a session says of itself still holds: it was heard of
    live/{grant}.limit    put once for the maximum hold and never renewed
    live/{grant}.refused  a refusal in favour of this grant was recorded within the last minute
    wake/{grant}          a signal, never stored: your turn came, look again
    segments/{revision}   sealed entries of the record, up to this revision
    meta/sealed           how far the record was sealed
    meta/checkpoint       how far the digest over the record was rolled
    meta/base             what is added to a revision to make a token
"""

from __future__ import annotations

LOCKS = "locks/"
SEMAPHORES = "semaphores/"
POOLS = (LOCKS, SEMAPHORES)
WAITS = "waits/"
SESSIONS = "sessions/"
REPORTS = "reports/"
LOGBOOKS = "logbooks/"
LOGS = "logs/"
LIVE = "live/"
WAKE = "wake/"
SEGMENTS = "segments/"
SEALED = "meta/sealed"
CHECKPOINT = "meta/checkpoint"
BASE = "meta/base"

KINDS = {"lock": LOCKS, "sem": SEMAPHORES, "agent": SESSIONS}
"""What a thing is called in the record, and where the things of its kind stand."""


def part(name: str) -> str:
    """A name as one part of a key."""
    return name.replace("/", "%2F")


def name(part: str) -> str:
    """The name that a part of a key stands for."""
    return part.replace("%2F", "/")


def lock(lock: str) -> str:
    """The item that is this lock."""
    return LOCKS + lock.replace("/", "%2F")


def semaphore(semaphore: str) -> str:
    """The item that is this semaphore."""
    return SEMAPHORES + semaphore.replace("/", "%2F")


def thing(key: str) -> str:
    """A lock or a semaphore as people name it: ``lock/merge``, ``sem/builds``."""
    if key.startswith(LOCKS):
        return "lock/" + key[len(LOCKS) :].replace("%2F", "/")
    return "sem/" + key[len(SEMAPHORES) :].replace("%2F", "/")


def kind(key: str) -> str:
    """Whether a key is that of a lock or of a semaphore, as events name it."""
    return "lock" if key.startswith(LOCKS) else "semaphore"


def of(thing: str) -> str:
    """The item of a thing as the record names it: ``lock/merge``, ``sem/builds``, ``agent/ID``."""
    kind, _, name = thing.partition("/")
    return KINDS[kind] + part(name)


def waits(caller: str, id_: str = "") -> str:
    """What a caller waits for, under the id of the wait; without one, all that it waits for.

    What is inside of a caller (``a/b``) is listed with it.
    """
    return f"{WAITS}{caller.partition('/')[0]}/{id_}"


def wait_of(key: str) -> str:
    """The id of a wait that is listed under this key."""
    return key.rpartition("/")[2]


def session(session: str) -> str:
    """The item that says who a session is."""
    return SESSIONS + session


def report(session: str) -> str:
    """What a session says of itself."""
    return REPORTS + session


def heard(session: str) -> str:
    """The liveness that tells when a session was last heard of."""
    return f"{LIVE}{session}.heard"


def logbook(agent: str) -> str:
    """What stands of the log of an agent."""
    return LOGBOOKS + part(agent)


def log_chunk(agent: str, number: int) -> str:
    """Some lines of the log of an agent; the keys sort as they were uploaded."""
    return f"{LOGS}{part(agent)}/{number:012d}"


def live(id_: str) -> str:
    """The liveness of a session or a grant."""
    return LIVE + id_


def limit(grant: str) -> str:
    """The liveness that ends with the maximum hold of a grant."""
    return f"{LIVE}{grant}.limit"


def refused(grant: str) -> str:
    """The mark that a refusal in favour of this grant was recorded not long ago."""
    return f"{LIVE}{grant}.refused"


def wake(grant: str) -> str:
    """The signal that tells a waiter to look again."""
    return WAKE + grant


def segment(last: int) -> str:
    """The sealed entries up to this revision; the keys sort as the revisions do."""
    return f"{SEGMENTS}{last:016d}"
