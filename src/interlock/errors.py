"""All errors, as one tree.

    InterlockError
    ├── No                    1  an ordinary no, raised only where no value can be returned
    │   ├── Unavailable          a `with` block could not acquire
    │   │   └── Deadlocked       ... and never could: the wait is part of a cycle
    │   ├── Lost                 the grant has ended; another client may hold it
    │   ├── Unproven             a task lacks evidence, so a `with` block did not complete it
    │   ├── Lapsed            4  the session was not renewed in time and has expired
    │   └── Changed              a shared file is gone, or has changed
    ├── BadInput              2  the request itself is wrong
    │   ├── BadName
    │   ├── BadDuration
    │   └── TooLarge
    ├── NotAllowed            3  understood, and refused
    │   └── NotAllowedYet        what a work tree brought along: a person has to allow it
    ├── BusTrouble            4  the bus of a swarm cannot answer; the home store can
    └── StoreTrouble          4  the store cannot answer
        ├── StoreMissing         there is none here, or none was named
        ├── StoreGone            the one that was used here was removed
        ├── StoreAway            it does not answer
        │   └── StoreMoving      ... for now: it is being copied, or is a copy that is not complete
        ├── StoreMoved           everything in it is in another store
        ├── StoreRefused         it refuses the connection
        ├── StoreUnsuitable      a place or an engine that cannot keep the promises
        ├── StoreNewer           written by a later version
        ├── StoreDamaged         not a store, or a broken one
        ├── StoreFull            no room left
        ├── StoreReadOnly        no right to write
        ├── OutOfDescriptors     the process has no free file descriptor
        ├── StoreBusy            other clients block the queue for too long
        ├── StoreInUse           called by a signal handler or a finaliser inside of a call
        ├── StoreClosed          used after close, or on the wrong side of a fork
        └── OutcomeUnknown       sent, no answer: the runner settles it

Contention is a returned value; these are for breakage, and for `with` blocks, which cannot return.
Each class knows its code (for JSON), its exit status (for shells) and its HTTP status.
A message is one line: what is wrong, then what to do.
"""

from __future__ import annotations

from typing import ClassVar


class InterlockError(Exception):
    """The root of the tree: one clear line that says what to do next."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 4
    http_status: ClassVar[int] = 500


class No(InterlockError):
    """An ordinary no, where a value could not be returned."""

    code = "no"
    exit_status = 1
    http_status = 409


class Unavailable(No):
    """Another client has it; `outcome` names the holder."""

    code = "busy"

    def __init__(self, message: str, outcome: object = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class Deadlocked(Unavailable):
    """The wait would never end; `outcome.cycle` names the waiters."""

    code = "deadlock"


class Lost(No):
    """A grant that has ended: stop the work that relied on it."""

    code = "fenced"


class Unproven(No):
    """A task that lacks evidence, and is not complete; `outcome` names the guard."""

    code = "blocked"

    def __init__(self, message: str, outcome: object = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class Lapsed(No):
    """A session that has expired: join again."""

    code = "lapsed"
    exit_status = 4


class Changed(No):
    """A shared file that is gone or has changed: ask for it again."""

    code = "changed"


class BadInput(InterlockError):
    """The request itself is wrong; nothing was sent.

    `mistakes` are those of a plan, each by itself; the message has all of them.
    `cycles` are tasks that would need each other, each from its first task to itself.
    """

    code = "bad_input"
    exit_status = 2
    http_status = 400
    mistakes: tuple[str, ...] = ()
    cycles: tuple[tuple[str, ...], ...] = ()


class BadName(BadInput):
    """A name outside of the alphabet, or too long."""

    code = "bad_name"


class BadDuration(BadInput):
    """A duration that cannot be read, or is out of bounds."""

    code = "bad_duration"


class TooLarge(BadInput):
    """A value above its limit."""

    code = "too_large"
    http_status = 413


class NotAllowed(InterlockError):
    """Understood, and refused."""

    code = "not_allowed"
    exit_status = 3
    http_status = 403


class NotAllowedYet(NotAllowed):
    """Settings or a store of a work tree that this user has not allowed; `path` names the file."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class BusTrouble(InterlockError):
    """The bus of a swarm cannot answer; `cause` is the error of its store.

    It is no StoreTrouble, since the home store answers: commits there stay, and their messages are
    sent when the bus is back.
    """

    code = "bus"
    http_status = 503

    def __init__(self, message: str, cause: StoreTrouble | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class StoreTrouble(InterlockError):
    """The store cannot answer.

    `pending` is true, and the message says so, if this client still has to release what the call
    may hold.
    """

    code = "store"
    http_status = 503
    pending = False

    def __str__(self) -> str:
        text = super().__str__()
        if not self.pending:
            return text
        return f"{text}; a release is pending: this client sends it when the store answers"


class StoreMissing(StoreTrouble):
    """No store here, or none was named."""

    code = "store_missing"


class StoreGone(StoreTrouble):
    """The store that was used here was removed or replaced; `path` names its file."""

    code = "store_gone"

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class StoreAway(StoreTrouble):
    """The engine does not answer: not running, frozen, or cut off.  The call did nothing."""

    code = "store_away"


class StoreMoving(StoreAway):
    """A store that is being copied, or a copy that is not complete: it accepts no changes yet."""

    code = "store_moving"


class StoreMoved(StoreTrouble):
    """Everything in this store is in another one; ``place`` is its URL, without a password."""

    code = "store_moved"
    http_status = 410

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class StoreRefused(StoreTrouble):
    """The engine refuses the connection: a wrong password, a certificate, a missing right."""

    code = "store_refused"


class StoreUnsuitable(StoreTrouble):
    """A place or an engine that cannot keep the promises."""

    code = "store_unsuitable"


class StoreNewer(StoreTrouble):
    """Written by a later version of Interlock."""

    code = "store_newer"


class StoreDamaged(StoreTrouble):
    """Not a store of Interlock, or a broken one."""

    code = "store_damaged"


class StoreFull(StoreTrouble):
    """No room left for another commit; nothing was written."""

    code = "store_full"
    http_status = 507


class StoreReadOnly(StoreTrouble):
    """No right to write here."""

    code = "store_read_only"


class OutOfDescriptors(StoreTrouble):
    """This process, or the system, has no free file descriptor; nothing was done."""

    code = "out_of_descriptors"


class StoreBusy(StoreTrouble):
    """Other clients block the queue for longer than this one waits."""

    code = "store_busy"


class StoreInUse(StoreTrouble):
    """Called by a signal handler, or a finaliser, that runs inside of another call of this thread.

    Nothing was done.
    """

    code = "store_in_use"


class StoreClosed(StoreTrouble):
    """Used after close, or in the child of a fork."""

    code = "store_closed"


class OutcomeUnknown(StoreTrouble):
    """The request was sent and no answer came: it may have happened, or may happen yet."""

    code = "outcome_unknown"

    def __init__(self, message: str, txn: str) -> None:
        super().__init__(message)
        self.txn = txn


def note_pending(error: BaseException) -> None:
    """Note in the error of a call that met an outage that a release is pending."""
    if isinstance(error, StoreAway | OutcomeUnknown) and not isinstance(error, StoreMoving):
        error.pending = True
