"""The keys of the store: the only module that makes or parses them.

It is one long file on purpose: here a reader sees the whole layout of a store, and that no two
kinds of keys meet.

``/`` separates the segments of a key.  Inside a segment every byte is percent-encoded but ASCII
letters, digits and ``._:@*?+=~-``, so a key is ASCII for every name.

Locks and semaphores
    locks/{name}          a lock: its grant and its waiters, one item
    semaphores/{name}     a semaphore: its capacity, grants and waiters, one item
    held/{session}/{pool} a pool that a session holds or waits for, if another process began it
    broken/{thing}/{grant}  a grant that an operator ended, and why, for a day
Waits
    waits/{name}/{id}     a wait of an agent; of a caller, too, while others may wait for it; for a
                          guard also under what its caller is to acquire
Reservations of files
    reservations/{repository}/{id}  a reservation: its holder and its patterns
    reserve-queue/{repository}/{id}  one that waits
    reserved/{repository}/{.segment/}{id}.{number}  a pattern of either, under its first segments
    reserving/{agent}/{repository}/{id}  the reservation is this agent's
    meta/reserved/{repository}  rewritten by each commit that adds patterns
Tasks
    tasks/{id}/data       the specification of a task; written again by an edit
    tasks/{id}/status     its state
    tasks/{id}/owner      its worker; present only while the task is claimed
    tasks/{id}/result     its result, or its failure
    tasks/{id}/notes      how many notes it has; present only if it has any
    notes/{id}/{number}   a note about a task
    ready/{set}/{order}/{id}  ready tasks by their set of requirements, best first
    sets/{set}            the requirements of a set that has ready tasks
    due/{moment}/{id}     tasks that must not begin yet
    due/{moment}/-{name}  a schedule, under the moment of its next run
    hangs/{need}/{id}     a blocked task, under one need that is not complete
    hangs/-{guard}/{id}   a blocked task, under the guard that keeps it
    todo/{need}           a complete need with tasks under it that were not moved on yet
    claims/{session}/{id} a task under the session that works on it
    ended/{id}            tasks that failed, or are dead letters
    labels/{label}/{id}   tasks that have a label
    meta/sets             rewritten with every change of sets/
    meta/needed           rewritten when a task is published that needs a failed one, and when such
                          tasks are deleted
    meta/suspected        rewritten before a scan for tasks that need a failed one
    meta/edited-needs     rewritten by each commit that adds needs to an existing task
    meta/over             the number of finished tasks at the last scan, and their age
    meta/labelled         tasks of versions without labels/ are listed there
Schedules
    schedules/{name}      when a schedule publishes its next task, and what became of the last one
    schedule-tasks/{name} the task that it publishes; written when the schedule is added
Messages
    mailboxes/{agent}     an agent that can receive messages
    joined/{agent}        an agent that has had a session
    agents/{agent}/{session}    its sessions
    serving/{agent}/{caller}    a receiver of its messages, while a liveness key lives
    able/{ability}/{caller}     a session or receiver with this ability
    paused/{agent}        an agent that may not send for now, and why
    messages/{id}         a message to named agents; written once
    unread/{agent}/{id}   it waits for this agent
    read/{agent}/{id}     this agent acknowledged it; kept for a while
    sent/{agent}/{id}     mail that this agent sent; kept for a while
    ids/{id}              an id that a sender chose, reserved for a while
    topics/{topic}/{id}   a message to all subscribers; written once
    subscriptions/{agent}/{topic}  a subscription
    cursors/{agent}/{topic}        the last message of a topic that an agent acknowledged
    trimmed/{topic}       the last message of a topic that was deleted
    queries/{id}          a question, its state and its answer
    replies/{id}          its answer, if both are too large for one item
    open/{agent}/{id}     the open questions of an agent
    asking/...            slots for open questions, of all agents and of each
    answers/{digest}      the query that last answered this question
    decisions/{id}        a question escalated to a person
    rates/{agent}/{slot}  when an agent used one of its slots to send
Agents
    sessions/{session}    the agent and the terms of a session
    reports/{session}     the report of a session
    deaths/{session}      a session that expired, for a day or until acknowledged
    logbooks/{agent}      the index of an agent's log
    logs/{agent}/{number} a chunk of its log: many lines
    logbooks/{agent}/{file}       the index of an uploaded file
    logs/{agent}/{file}/{number}  a chunk of such a file
Requests, at home
    requests/{id}         a request that an agent here sent to another swarm
    request-bodies/{id}   its payload, for another attempt
    request-names/{name}  the request that was sent under a name that its sender chose
    request-due/{moment}/{id}     the next step of an open request, such as another attempt
    escalated/{id}        a request that a person has to decide about
    outbox/{swarm}/{message}      an envelope that is to be posted on the bus, with its body
    received/{swarm}/{id} a request of another swarm that is a task here
    unanswered/{swarm}/{id}       it has no result yet
    unacknowledged/{swarm}/{id}   its result was not taken from the bus yet
    seen/{swarm}/{message}        a message that was taken in, against replay
    findings/{id}         the result of a request to another swarm
    quarantine/{id}       a message that was refused, and why
    quarantine-content/{id}       its envelope and payload, if it may be released
    request-rates/{to or from}/{swarm}/{agent}  when an agent made its last requests
    request-refusals/{agent}      when refusals of requests of an agent were recorded
    meta/requests-refused/{agent} how many were refused and not recorded one by one
    meta/request-cancelled        the request that was cancelled last: those that wait watch it
Requests, on the bus
    req/{swarm}/{message} the envelope of a request to a swarm; its payload under req-body/
    res/{swarm}/{id}      the envelope of a result for a swarm; its payload under res-body/
    ack/{swarm}/{id}      the receipt of a request, for the swarm that sent it again
Guards and pipelines
    guards/{name}         the definition of a guard
    observed/{guard}/{need}  what a host last saw outside, by the digests of a guard and of a need
    pipelines/{id}        a pipeline that was started: its phase and its attempt, one item
    definitions/{name}    the definition that the next pipeline of this name starts with
    definitions/{name}/{digest}  a definition of pipelines; written once
    gates/{thing}         what a task or pipeline waits for: its guard, leaf and facts
    gated/{fact}/{thing}  the thing waits for a change of this fact
    recheck/{id}          facts have changed: the gates that wait for them are to be checked again
    meta/gates-wait       a gate waits, or has waited, for a thing that may not exist yet
    meta/new-tasks        a gate waits for tasks that are not published yet
Merges
    merges/{id}           a branch that was submitted to the merge queue of a target
    merge-waiting/{queue}/{branch}  it waits; the revision that made this is its place
    watched-branches/{repository}/{name}  where a branch was when it was last announced
    merge-targets/{queue}   the server of a queue, what it tries now, and what keeps it
Budgets
    budgets/{thing}       the limit of the fleet, an agent or a task
    spent/{thing}         what an agent or a task has spent
    transcripts/{file}    how far a transcript is counted
    meta/budgets          there is a limit
Swarms, in the home store
    swarm/self            this home as a swarm: its name, its bus and its keys
    swarm/entry           the last version of our registry entry, and when it was signed
    agent-keys/{agent}    the keys with which an agent here signs for itself
    peers/{swarm}         a swarm that we allow or deny, and the keys of it that we trust
    floors/{swarm}        the newest registry entry of a peer that we accepted
    breakers/{swarm}      the circuit breaker of a peer, unless it is closed
    reputations/{swarm}   how the last requests to a peer went
    revoked/{swarm}/{fingerprint}  a revocation of one of our own keys, to be put on the bus
    swarm/state           the last version of our snapshot, with the counts behind it
    copies/{key}          a shared value as this home last read or wrote it
    shared-writes/{key}/{number}.{id}  a write of a shared value that is to be put on the bus
    undecided/{decision}  a write of a shared value that a person decides about
    conflicts/{id}        two writes of a shared value, with both values
Swarms, on a bus
    meta/bus              the id of the bus, which signed heads name
    registry/{swarm}      the signed registry entry of a swarm
    state/{swarm}         the signed snapshot of a swarm
    shared/{key}          a shared value, signed by the swarm that wrote it
    shared-last/{swarm}/{key}  the envelope of the last write of a swarm, against a second one
    live/shared/{key}     the value was stored a short time ago
    revoked/{swarm}/{fingerprint}  a signed revocation
    live/swarm/{swarm}    a process of the swarm is there
Liveness: the only keys that expire
    live/{id}             a session or a grant
    live/{session}.heard  the report of a session is current
    live/{session}.serves.{caller}  a receiver of messages
    live/{query}          the query may still be answered
    live/{query}.asker    its asker, in a shell, still waits
    live/{grant}.limit    the maximum hold of a grant: put once and never renewed
    live/refused/{of}/{agent}/{verb}  a refusal of this caller was recorded in the last minute
    live/deadline/{task}  the task may still begin
    live/rest/{thing}     a task, or the guard of a pipeline, rests before its next attempt
    live/observed/{guard}/{need}  the observation is no older than the guard allows
    live/allows/{guard}/{host}  this host lets the guard, by its digest, look outside
    live/looks/{guard}/{host}/{root}  a process of this host looks, for gates, below this root
    live/wants/{guard}/{id}  a call waits for what hosts see for this guard
    live/schedules-read   a pass has read all schedules a short time ago
    live/clock            expires after all others: the engine has measured without a break
Signals: never stored
    wake/session/{session}/{grant}  the waiter of this session was granted, or must look again
    wake/{id}             the waiter for a reservation was served, or must look again
    wake/ready/{set}      a task of this set is ready
    wake/observed/{guard} a host saw something new for the guard of this digest
Record
    refusals/{slot}       an entry that changes nothing else, such as a refusal; the next links it
    segments/{revision}   sealed entries of the record, up to this revision
    meta/sealed           the last revision that was sealed
    meta/checkpoint       the last revision in the digest over the record
    meta/judged           when a server last judged the record, and what it found
    meta/refused/{agent}  the number of refusals of an agent that left no entry
    meta/move             the last move of the whole store, from where and to where
    meta/base             the number that is added to a revision to make a token
    meta/store            the random id of the store, which a copy keeps (``Runner.store_id``)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from interlock.core.codec import canonical, digest

LOCKS = "locks/"
SEMAPHORES = "semaphores/"
POOLS = (LOCKS, SEMAPHORES)
HELD = "held/"
BROKEN = "broken/"
WAITS = "waits/"
RESERVATIONS = "reservations/"
RESERVE_QUEUE = "reserve-queue/"
RESERVED = "reserved/"
RESERVING = "reserving/"
RESERVED_MARK = "meta/reserved/"
RESERVATION_FOLDERS = (RESERVATIONS, RESERVE_QUEUE, RESERVED, RESERVING)
TASKS = "tasks/"
READY = "ready/"
SETS = "sets/"
DUE = "due/"
HANGS = "hangs/"
BEHIND_GUARDS = "hangs/-"
TODO = "todo/"
CLAIMS = "claims/"
ENDED = "ended/"
LABELS = "labels/"
NOTES = "notes/"
TASK_FOLDERS = (TASKS, READY, SETS, DUE, HANGS, TODO, CLAIMS, ENDED, LABELS, NOTES)
SCHEDULES = "schedules/"
SCHEDULE_TASKS = "schedule-tasks/"
MAILBOXES = "mailboxes/"
JOINED = "joined/"
AGENTS = "agents/"
SERVING = "serving/"
PAUSED = "paused/"
MESSAGES = "messages/"
UNREAD = "unread/"
READ = "read/"
SENT = "sent/"
IDS = "ids/"
TOPICS = "topics/"
SUBSCRIPTIONS = "subscriptions/"
CURSORS = "cursors/"
TRIMMED = "trimmed/"
QUERIES = "queries/"
REPLIES = "replies/"
OPEN = "open/"
ASKING = "asking/"
ANSWERS = "answers/"
DECISIONS = "decisions/"
RATES = "rates/"
MESSAGE_FOLDERS = (
    MAILBOXES, JOINED, AGENTS, SERVING, PAUSED, MESSAGES, UNREAD, READ, SENT, IDS,
    TOPICS, SUBSCRIPTIONS, CURSORS, TRIMMED, QUERIES, REPLIES, OPEN, ASKING, ANSWERS, DECISIONS,
    RATES,
)  # fmt: skip
SESSIONS = "sessions/"
REPORTS = "reports/"
DEATHS = "deaths/"
ABLE = "able/"
LOGBOOKS = "logbooks/"
LOGS = "logs/"
REQUESTS = "requests/"
REQUEST_BODIES = "request-bodies/"
REQUEST_NAMES = "request-names/"
REQUEST_DUE = "request-due/"
ESCALATED = "escalated/"
OUTBOX = "outbox/"
RECEIVED = "received/"
UNANSWERED = "unanswered/"
UNACKNOWLEDGED = "unacknowledged/"
SEEN = "seen/"
FINDINGS = "findings/"
QUARANTINE = "quarantine/"
QUARANTINE_CONTENT = "quarantine-content/"
REQUEST_RATES = "request-rates/"
REQUEST_REFUSALS = "request-refusals/"
REQUESTS_REFUSED = "meta/requests-refused/"
REQUEST_CANCELLED = "meta/request-cancelled"
PEER_COUNTS = "peer-counts/"
BUS_REQUESTS = "req/"
BUS_REQUEST_BODIES = "req-body/"
BUS_RESULTS = "res/"
BUS_RESULT_BODIES = "res-body/"
BUS_RECEIPTS = "ack/"
REQUEST_FOLDERS = (
    REQUESTS, REQUEST_BODIES, REQUEST_NAMES, REQUEST_DUE, ESCALATED, OUTBOX, RECEIVED, UNANSWERED,
    UNACKNOWLEDGED, SEEN, FINDINGS, QUARANTINE, QUARANTINE_CONTENT, REQUEST_RATES,
    REQUEST_REFUSALS, PEER_COUNTS,
    BUS_REQUESTS, BUS_REQUEST_BODIES, BUS_RESULTS, BUS_RESULT_BODIES, BUS_RECEIPTS,
)  # fmt: skip
GUARDS = "guards/"
OBSERVED = "observed/"
PIPELINES = "pipelines/"
DEFINITIONS = "definitions/"
GATES = "gates/"
GATED = "gated/"
RECHECK = "recheck/"
ITSELF = "gate/"
"""A fact that begins like this is a thing whose gate is to be checked."""
MERGES = "merges/"
MERGES_WAITING = "merge-waiting/"
MERGE_TARGETS = "merge-targets/"
WATCHED_BRANCHES = "watched-branches/"
BUDGETS = "budgets/"
SPENT = "spent/"
TRANSCRIPTS = "transcripts/"
BUDGETS_MARK = "meta/budgets"
SWARM = "swarm/"
OWN_SWARM = "swarm/self"
OWN_ENTRY = "swarm/entry"
AGENT_KEYS = "agent-keys/"
OWN_STATE = "swarm/state"
PEERS = "peers/"
FLOORS = "floors/"
BREAKERS = "breakers/"
REPUTATIONS = "reputations/"
REGISTRY = "registry/"
REVOKED = "revoked/"
COPIES = "copies/"
SHARED_WRITES = "shared-writes/"
UNDECIDED = "undecided/"
CONFLICTS = "conflicts/"
STATES = "state/"
SHARED = "shared/"
SHARED_LAST = "shared-last/"
SWARM_FOLDERS = (
    SWARM, AGENT_KEYS, PEERS, FLOORS, BREAKERS, REPUTATIONS, REVOKED, COPIES, SHARED_WRITES,
    UNDECIDED, CONFLICTS, REGISTRY, STATES, SHARED, SHARED_LAST,
)  # fmt: skip
LIVE = "live/"
ALLOWS = "live/allows/"
LOOKS = "live/looks/"
WANTS = "live/wants/"
CLOCK = "live/clock"
"""A liveness key that outlives all others: while it stands, the engine has measured without a break
since the commit that put it."""
LIVE_SWARMS = "live/swarm/"
LIVE_SERVERS = "live/server/"
SERVER_TOKENS = "server-tokens/"
SCHEDULES_READ = "live/schedules-read"
WAKE = "wake/"
WAKE_SESSION = "wake/session/"
WAKE_READY = "wake/ready/"
REFUSALS = "refusals/"
META = "meta/"
REFUSED = "meta/refused/"
SEGMENTS = "segments/"
SEALED = "meta/sealed"
SETS_MARK = "meta/sets"
NEEDED = "meta/needed"
SUSPECTED = "meta/suspected"
FINISHED = "meta/over"
LABELLED = "meta/labelled"
EDITED_NEEDS = "meta/edited-needs"
NEW_TASKS = "meta/new-tasks"
GATES_WAIT = "meta/gates-wait"
CHECKPOINT = "meta/checkpoint"
JUDGED = "meta/judged"
BASE = "meta/base"
MOVE = "meta/move"
STORE_ID = "meta/store"
BUS = "meta/bus"
FOLDERS = frozenset((
    *POOLS, HELD, BROKEN, WAITS, *RESERVATION_FOLDERS, *TASK_FOLDERS, SCHEDULES, SCHEDULE_TASKS,
    *MESSAGE_FOLDERS,
    SESSIONS, REPORTS, DEATHS, ABLE, LOGBOOKS, LOGS, GUARDS, OBSERVED, PIPELINES, DEFINITIONS,
    GATES, GATED, RECHECK, MERGES, MERGES_WAITING, MERGE_TARGETS, WATCHED_BRANCHES, *SWARM_FOLDERS,
    REFUSALS, SEGMENTS, META, *REQUEST_FOLDERS, SERVER_TOKENS, BUDGETS, SPENT, TRANSCRIPTS,
))  # fmt: skip
"""Every folder with items that Interlock itself stores, without those of liveness keys."""
DERIVED = (
    WAITS, UNREAD, READ, SENT, MAILBOXES, OPEN, ASKING, SERVING, ANSWERS, RATES, REPORTS, ABLE,
    OBSERVED, GATES, GATED,
)  # fmt: skip
"""Folders whose items maintenance rebuilds, or their writers write again."""

LEAST_PRIORITY, GREATEST_PRIORITY = -1_000_000, 1_000_000
NO_REQUIREMENTS = "-"
_LONGEST_SET = 120
LETTERS_AND_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_PLAIN = frozenset(LETTERS_AND_DIGITS + "._:@*?+=~-")
"""The characters that stand for themselves."""
_ENCODED = r"[^A-Za-z0-9._:@*?+=~-]+"
"""All others, as a text: a command whose names have none need not compile it."""


# The encoding.


@lru_cache(maxsize=4096)
def encode(name: str) -> str:
    """A name as one segment of a key."""
    return name if _PLAIN.issuperset(name) else re.sub(_ENCODED, _percent, name)


def decode(segment: str) -> str:
    """The name that a segment of a key stands for.

    A segment that no name is encoded to stands for itself: any client can write a key, and one that
    is damaged must not prevent a release, or end ``maintain``.
    """
    if "%" not in segment:
        return segment
    first, *rest = segment.encode().split(b"%")
    try:
        return (first + b"".join([bytes((int(p[:2], 16),)) + p[2:] for p in rest])).decode()
    except ValueError:
        return segment


def _percent(found: re.Match[str]) -> str:
    return "".join([f"%{byte:02X}" for byte in found[0].encode()])


def id_of(key: str) -> str:
    """The last segment of a key, such as the id of a message or of a wait."""
    return key.rpartition("/")[2]


def uuid_of(id_: str) -> str:
    """The digits of an id, without the prefix that says what it is."""
    return id_.partition("_")[2]


def agent_of(key: str) -> str:
    """The agent in a key that has one, such as ``unread/{agent}/{id}``."""
    return decode(key.split("/", 2)[1])


# Locks, semaphores, waits.


def lock(lock: str) -> str:
    """The item of a lock."""
    return LOCKS + encode(lock)


def semaphore(semaphore: str) -> str:
    """The item of a semaphore."""
    return SEMAPHORES + encode(semaphore)


def held(session: str, pool: str = "") -> str:
    """The entry for a pool in the list of a session; without a pool, the folder."""
    return f"{HELD}{session}/{pool}"


def held_of(key: str) -> tuple[str, str]:
    """The session and the pool of such an entry."""
    _, session, pool = key.split("/", 2)
    return session, pool


def broken(thing: str, grant: str = "") -> str:
    """The note about a grant that an operator ended; without a grant, the folder of a thing."""
    return f"{BROKEN}{encode(thing)}/{grant}"


def waits(caller: str, id_: str = "") -> str:
    """A wait of a caller or an agent; without an id, the folder.

    Callers inside of a caller (``a/b``) are listed with it.
    """
    return f"{WAITS}{caller.partition('/')[0]}/{id_}"


# Reservations.


def reservation(repository: str, id_: str = "") -> str:
    """A reservation; without an id, the folder of a repository."""
    return f"{RESERVATIONS}{encode(repository)}/{id_}"


def reserve_queue(repository: str, id_: str = "") -> str:
    """A reservation that waits; without an id, the folder of a repository."""
    return f"{RESERVE_QUEUE}{encode(repository)}/{id_}"


def reservation_of(key: str) -> tuple[str, str]:
    """The repository and the id of a reservation, held or waiting."""
    _, repository, id_ = key.split("/", 2)
    return decode(repository), id_


def reserved(repository: str, segments: Iterable[str] = (), entry: str = "") -> str:
    """The entry of a pattern under its first segments; without an entry, their folder.

    A segment begins with a dot, and an entry does not.
    """
    return f"{RESERVED}{encode(repository)}/{''.join(f'.{encode(s)}/' for s in segments)}{entry}"


def reserving(agent: str, repository: str = "", id_: str = "") -> str:
    """A reservation under its agent; without a repository, the folder of an agent."""
    return (
        f"{RESERVING}{encode(agent)}/{encode(repository)}/{id_}"
        if repository
        else (f"{RESERVING}{encode(agent)}/")
    )


def reserved_mark(repository: str) -> str:
    """The mark that each commit that adds patterns rewrites."""
    return RESERVED_MARK + encode(repository)


# Liveness, signals, record.


def live(id_: str) -> str:
    """The liveness of a session, a grant or a query."""
    return LIVE + id_


def report_live(session: str) -> str:
    """The liveness that shows when a session last reported."""
    return f"{LIVE}{session}.heard"


def receiver_live(session: str, caller: str) -> str:
    """The liveness of a receiver of messages."""
    return f"{LIVE}{session}.serves.{encode(caller)}"


def asker_live(query: str) -> str:
    """The liveness of an asker that has none of its own."""
    return f"{LIVE}{query}.asker"


def max_hold(grant: str) -> str:
    """The liveness that ends with the maximum hold of a grant."""
    return f"{LIVE}{grant}.limit"


def deadline(task: str) -> str:
    """The liveness that ends at the latest begin of a task."""
    return f"{LIVE}deadline/{encode(task)}"


def refusal_mark(of: str, agent: str, verb: str) -> str:
    """The mark that a refusal of a caller was recorded within the last minute, by what it did.

    ``of`` is the grant in whose favour it was, or the thing.
    """
    return f"{LIVE}refused/{encode(of)}/{encode(agent)}/{verb}"


def refusal_counts(agent: str = "") -> str:
    """The counts of refusals of an agent; without an agent, the folder."""
    return f"{REFUSED}{encode(agent) if agent else ''}"


def refusal_slot(slot: int) -> str:
    """A slot that links entries which change nothing else."""
    return f"{REFUSALS}{slot}"


def wake(grant: str) -> str:
    """The signal for a waiter to look again."""
    return WAKE + grant


def wake_waiter(session: str, grant: str) -> str:
    """The signal for a waiter of this session to look again."""
    return f"{WAKE_SESSION}{session}/{grant}"


def wake_ready(set_: str) -> str:
    """The signal that a task with these requirements is ready."""
    return WAKE_READY + set_


def wake_observed(guard: str) -> str:
    """The signal that a host saw something new for the guard of this digest."""
    return f"{WAKE}observed/{guard}"


def segment(last: int) -> str:
    """The sealed entries up to this revision; the keys sort as the revisions do."""
    return f"{SEGMENTS}{last:016d}"


# Sessions and agents.


def session(session: str) -> str:
    """The item of a session."""
    return SESSIONS + session


def agent_session(agent: str, session: str = "") -> str:
    """A session under the name of its agent; without a session, the folder."""
    return f"{AGENTS}{encode(agent)}/{session}"


def report(session: str) -> str:
    """The report of a session."""
    return REPORTS + session


def death(session: str) -> str:
    """The note that a session expired."""
    return DEATHS + session


def able(ability: str, caller: str = "") -> str:
    """A session or receiver with an ability; without one, the folder."""
    return f"{ABLE}{encode(ability)}/{encode(caller)}"


def logbook(agent: str) -> str:
    """The index of the log of an agent."""
    return LOGBOOKS + encode(agent)


def log_chunk(agent: str, number: int) -> str:
    """Some lines of the log of an agent; the keys sort in the order of upload."""
    return f"{LOGS}{encode(agent)}/{number:012d}"


def file_book(agent: str, file: str = "") -> str:
    """The index of an uploaded file; without a file, the folder of an agent."""
    return f"{LOGBOOKS}{encode(agent)}/{encode(file)}"


def file_chunk(agent: str, file: str, number: int) -> str:
    """Some lines of an uploaded file."""
    return f"{LOGS}{encode(agent)}/{encode(file)}/{number:012d}"


# Tasks.


def data(task: str) -> str:
    """The specification of a task."""
    return f"{TASKS}{encode(task)}/data"


@lru_cache(maxsize=4096)
def status(task: str) -> str:
    """The state of a task."""
    return f"{TASKS}{encode(task)}/status"


@lru_cache(maxsize=4096)
def owner(task: str) -> str:
    """The claim on a task."""
    return f"{TASKS}{encode(task)}/owner"


def result(task: str) -> str:
    """The result or the failure of a task."""
    return f"{TASKS}{encode(task)}/result"


def notes(task: str) -> str:
    """How many notes a task has."""
    return f"{TASKS}{encode(task)}/notes"


def note(task: str, number: int | None = None) -> str:
    """A note about a task; without a number, the folder.  The keys sort as the numbers do."""
    return f"{NOTES}{encode(task)}/" + ("" if number is None else f"{number:06d}")


def note_of(key: str) -> int:
    """The number of a note."""
    return int(key.rpartition("/")[2])


def label(label: str, task: str = "") -> str:
    """A task under one of its labels; without a task, the folder."""
    return f"{LABELS}{encode(label)}/{encode(task)}"


def task_of(key: str) -> str:
    """The task of a key under ``tasks/``."""
    return decode(key[len(TASKS) :].partition("/")[0])


def task_in_index(key: str) -> str:
    """The task at the end of a key of an index."""
    segment = key.rpartition("/")[2]
    return decode(segment) if "%" in segment else segment


def requirements(requires: tuple[str, ...]) -> str:
    """The set of requirements of a task as one segment of a key, independent of their order."""
    if not requires:
        return NO_REQUIREMENTS
    text = ",".join([encode(each) for each in sorted(set(requires))])
    return text if len(text) <= _LONGEST_SET else "#" + digest(text.encode("ascii"))[:32]


def requirement_set(set_: str) -> str:
    """The item that names the requirements of a set."""
    return SETS + set_


def ready(set_: str, priority: int = 0, at: float = 0.0, task: str = "") -> str:
    """The entry of a ready task among those of its set; without a task, the folder of the set."""
    if not task:
        return f"{READY}{set_}/"
    order = f"{priority - LEAST_PRIORITY:07d}.{round(at * 1_000_000):016d}"
    return f"{READY}{set_}/{order}/{encode(task)}"


def ready_order(key: str) -> tuple[str, str]:
    """The sort key of ready tasks of all sets: best priority, then oldest."""
    _, _, order, task = key.split("/")
    return order, task


def ready_at(key: str) -> float:
    """The time at which the ready task of this key was published."""
    return int(key.split("/")[2].partition(".")[2]) / 1_000_000


def ready_set(key: str) -> str:
    """The set of requirements in the key of a ready task."""
    return key.split("/", 2)[1]


def _milliseconds(moment: float) -> int:
    return max(0, -int(-moment * 1000 // 1))  # rounded up, without the module math


def due(moment: float, task: str) -> str:
    """The entry of a task that must not begin before a moment."""
    return f"{DUE}{_milliseconds(moment):014d}/{encode(task)}"


def due_at(key: str) -> float:
    """The moment in a key of the ``due`` index."""
    return int(key.split("/")[1]) / 1000


def due_schedule(moment: float, name: str) -> str:
    """The entry of a schedule in the ``due`` index; no id of a task begins with '-'."""
    return f"{DUE}{_milliseconds(moment):014d}/-{encode(name)}"


def is_schedule_entry(key: str) -> bool:
    """Whether an entry of the ``due`` index is that of a schedule."""
    return key.rpartition("/")[2].startswith("-")


def schedule_in_index(key: str) -> str:
    """The schedule of such an entry."""
    return decode(key.rpartition("/")[2][1:])


def schedule(name: str) -> str:
    """When a schedule publishes its next task."""
    return SCHEDULES + encode(name)


def schedule_of(key: str) -> str:
    """The schedule of such a key."""
    return decode(key.partition("/")[2])


def schedule_task(name: str) -> str:
    """The task that a schedule publishes."""
    return SCHEDULE_TASKS + encode(name)


def hangs(need: str, task: str = "") -> str:
    """A blocked task under its need; without a task, the folder of the need."""
    return f"{HANGS}{encode(need)}/{encode(task)}"


def behind_guard(guard: str, task: str) -> str:
    """A task that is blocked, under the guard that keeps it; no id of a task begins with '-'."""
    return f"{BEHIND_GUARDS}{encode(guard)}/{encode(task)}"


def hangs_of(key: str) -> tuple[str, str]:
    """The need and the blocked task of such a key."""
    need, _, task = key.removeprefix(HANGS).partition("/")
    return decode(need), decode(task)


def todo(need: str) -> str:
    """The mark that tasks under a complete need are still to be moved on."""
    return TODO + encode(need)


def claims(session: str, task: str = "") -> str:
    """A task under the session that works on it; without a task, the folder."""
    return f"{CLAIMS}{session}/{encode(task)}"


def claim_of(key: str) -> tuple[str, str]:
    """The session and the task of such a key."""
    session, _, task = key[len(CLAIMS) :].partition("/")
    return session, decode(task)


def ended(task: str) -> str:
    """The entry of a task that failed, or is a dead letter."""
    return ENDED + encode(task)


# Messages, queries, decisions.


def mailbox(agent: str) -> str:
    """The mark that an agent can receive messages."""
    return MAILBOXES + encode(agent)


def joined(agent: str) -> str:
    """The mark that an agent has had sessions."""
    return JOINED + encode(agent)


def serving(agent: str, caller: str = "") -> str:
    """A receiver of the messages of an agent; without a caller, the folder."""
    return f"{SERVING}{encode(agent)}/{encode(caller)}"


def paused(agent: str) -> str:
    """The item that keeps an agent from sending."""
    return PAUSED + encode(agent)


def message(id_: str) -> str:
    """A message to named agents, or a query."""
    return (QUERIES if id_.startswith("qry_") else MESSAGES) + id_


def unread(agent: str, id_: str = "") -> str:
    """The mark that a message waits for an agent; without an id, the folder."""
    return f"{UNREAD}{encode(agent)}/{id_}"


def read(agent: str, id_: str = "") -> str:
    """The mark that an agent acknowledged a message; without an id, the folder."""
    return f"{READ}{encode(agent)}/{id_}"


def sent(agent: str, id_: str = "") -> str:
    """The mark that an agent sent mail; without an id, the folder."""
    return f"{SENT}{encode(agent)}/{id_}"


def chosen_id(id_: str) -> str:
    """The mark that a sender chose this id for a message."""
    return IDS + id_


def topic(topic: str, id_: str = "") -> str:
    """A message on a topic; without an id, the folder."""
    return f"{TOPICS}{encode(topic)}/{id_}"


def topic_of(key: str) -> str:
    """The topic in the key of a message, a subscription or a cursor."""
    parts = key.split("/")
    return decode(parts[1] if key.startswith((TOPICS, TRIMMED)) else parts[2])


def subscription(agent: str, topic: str = "") -> str:
    """A subscription of an agent; without a topic, the folder."""
    return f"{SUBSCRIPTIONS}{encode(agent)}/{encode(topic)}"


def cursor(agent: str, topic: str = "") -> str:
    """The cursor of an agent on a topic; without a topic, the folder."""
    return f"{CURSORS}{encode(agent)}/{encode(topic)}"


def trimmed(topic: str) -> str:
    """The last message of a topic that was deleted."""
    return TRIMMED + encode(topic)


def query(id_: str) -> str:
    """A query."""
    return QUERIES + id_


def reply(id_: str) -> str:
    """The answer to a query that does not fit into its item."""
    return REPLIES + id_


def open_query(agent: str, id_: str = "") -> str:
    """An open query of an agent; without an id, the folder."""
    return f"{OPEN}{encode(agent)}/{id_}"


def open_query_of(key: str) -> tuple[str, str]:
    """The asker and the id of an open query."""
    agent, _, id_ = key[len(OPEN) :].partition("/")
    return decode(agent), id_


def query_slot(agent: str, number: int | None = None) -> str:
    """A slot for an open query, of one agent or of all (""); without a number, the folder."""
    folder = f"{ASKING}by/{encode(agent)}/" if agent else f"{ASKING}all/"
    return folder if number is None else f"{folder}{number:07d}"


def last_answer(to: str, question: bytes) -> str:
    """The query that last answered this question to the same agent or ability.

    Questions are compared as canonical JSON.
    """
    return ANSWERS + digest(to.encode() + b" " + canonical(question))


def decision(id_: str) -> str:
    """A question escalated to a person."""
    return DECISIONS + id_


def rate_slot(agent: str, slot: int) -> str:
    """One of the slots of an agent to send."""
    return f"{RATES}{encode(agent)}/{slot:05d}"


# Requests.


def request(id_: str) -> str:
    """A request to another swarm."""
    return REQUESTS + id_


def request_body(id_: str) -> str:
    """The payload of a request."""
    return REQUEST_BODIES + id_


def request_name(name: str) -> str:
    """The request that was sent under a chosen name."""
    return REQUEST_NAMES + encode(name)


def request_due(moment: float, id_: str) -> str:
    """The entry for the next step of a request."""
    return f"{REQUEST_DUE}{_milliseconds(moment):014d}/{id_}"


def escalated(id_: str) -> str:
    """The mark of a request that a person has to decide about."""
    return ESCALATED + id_


def outbox(swarm: str, message: str = "") -> str:
    """An envelope to post for a swarm; without a message, the folder."""
    return f"{OUTBOX}{encode(swarm)}/{message}"


def outbox_lock(swarm: str) -> str:
    """The liveness of the process that posts the outbox for a swarm."""
    return f"{LIVE}outbox/{encode(swarm)}"


def received(swarm: str, id_: str = "") -> str:
    """A request of another swarm; without an id, the folder."""
    return f"{RECEIVED}{encode(swarm)}/{id_}"


def unanswered(swarm: str, id_: str = "") -> str:
    """The mark that a received request has no result yet; without an id, the folder."""
    return f"{UNANSWERED}{encode(swarm)}/{id_}"


def unacknowledged(swarm: str, id_: str) -> str:
    """The mark that the result of a received request was not taken from the bus yet."""
    return f"{UNACKNOWLEDGED}{encode(swarm)}/{id_}"


def seen(swarm: str, message: str = "") -> str:
    """The mark that a message was taken in; without a message, the folder."""
    return f"{SEEN}{encode(swarm)}/{message}"


def finding(id_: str) -> str:
    """The result of a request to another swarm."""
    return FINDINGS + id_


def quarantined(id_: str) -> str:
    """A message that was refused."""
    return QUARANTINE + id_


def quarantine_content(id_: str) -> str:
    """The envelope and payload of such a message."""
    return QUARANTINE_CONTENT + id_


def request_rate(direction: str, swarm: str, agent: str) -> str:
    """When an agent made requests: ours ``to`` a swarm, or one ``from`` that swarm to us.

    ``again`` is when later attempts of an agent of that swarm were answered.
    """
    return f"{REQUEST_RATES}{direction}/{encode(swarm)}/{encode(agent)}"


def request_refusals(agent: str) -> str:
    """When refusals of requests of an agent were recorded, by kind."""
    return REQUEST_REFUSALS + encode(agent)


def requests_refused(agent: str) -> str:
    """How many requests of an agent were refused and only counted, by kind."""
    return REQUESTS_REFUSED + encode(agent)


def peer_counts(swarm: str) -> str:
    """How many messages of a swarm were taken in, and are remembered."""
    return PEER_COUNTS + encode(swarm)


def peer_queue(swarm: str) -> str:
    """The depth of a peer's queue, as a process of this home counted it a short time ago."""
    return f"{LIVE}queue/{encode(swarm)}"


def breaker_probe(swarm: str) -> str:
    """The liveness of the one request that probes a peer whose breaker is half open."""
    return f"{LIVE}probe/{encode(swarm)}"


def bus_request(swarm: str, message: str = "") -> str:
    """A request on the bus; without a message, the folder of its receiver."""
    return f"{BUS_REQUESTS}{encode(swarm)}/{message}"


def bus_request_body(swarm: str, message: str) -> str:
    """The payload of a request on the bus."""
    return f"{BUS_REQUEST_BODIES}{encode(swarm)}/{message}"


def bus_result(swarm: str, id_: str = "") -> str:
    """A result on the bus; without an id, the folder of its receiver."""
    return f"{BUS_RESULTS}{encode(swarm)}/{id_}"


def bus_result_body(swarm: str, id_: str) -> str:
    """The payload of a result on the bus."""
    return f"{BUS_RESULT_BODIES}{encode(swarm)}/{id_}"


def bus_receipt(swarm: str, id_: str = "") -> str:
    """A receipt on the bus; without an id, the folder of its receiver."""
    return f"{BUS_RECEIPTS}{encode(swarm)}/{id_}"


def server_token(id_: str) -> str:
    """A token that servers of this store accept."""
    return SERVER_TOKENS + encode(id_)


def server_token_of(key: str) -> str:
    """The id of the token under such a key."""
    return decode(key.removeprefix(SERVER_TOKENS))


def live_server(id_: str) -> str:
    """The liveness of a server, with its address."""
    return LIVE_SERVERS + encode(id_)


def server_part(name: str) -> str:
    """The liveness of the server that does a part of the background work."""
    return f"{LIVE}part/{encode(name)}"


INTAKE = "live/intake"
"""The liveness of the process that takes in what the bus has for this swarm."""
LINK = "live/link"
"""The liveness of the process that keeps this swarm on its bus."""


# Guards and pipelines.


def guard(name: str) -> str:
    """The definition of a guard."""
    return GUARDS + encode(name)


def guard_of(key: str) -> str:
    """The guard of such a key."""
    return decode(key.removeprefix(GUARDS))


def observed(guard: str, need: str = "") -> str:
    """What a host saw for a need of a guard, by their digests; without a need, the folder."""
    return f"{OBSERVED}{guard}/{need}"


def observed_guard(key: str) -> str:
    """The digest of the guard of such an item."""
    return key.removeprefix(OBSERVED).partition("/")[0]


def observed_live(key: str) -> str:
    """The liveness that ends when such an item is too old for its guard."""
    return LIVE + key


def allows(guard: str, host: str = "") -> str:
    """The note of a host that allows a guard, by its digest; without a host, the folder."""
    return f"{ALLOWS}{guard}/{encode(host) if host else ''}"


def allows_of(key: str) -> tuple[str, str]:
    """The digest and the host of such a note."""
    guard, _, host = key.removeprefix(ALLOWS).partition("/")
    return guard, decode(host)


def looks(guard: str, host: str = "", root: str = "") -> str:
    """The process that looks for a guard on a host, below a root; without a host, the folder."""
    return f"{LOOKS}{guard}/{encode(host)}/{encode(root)}" if host else f"{LOOKS}{guard}/"


def wants(guard: str, id_: str = "") -> str:
    """A call that waits for what hosts see for a guard; without an id, the folder."""
    return f"{WANTS}{guard}/{id_}"


def wants_of(key: str) -> str:
    """The digest of the guard of such a key."""
    return key.removeprefix(WANTS).partition("/")[0]


def looks_of(key: str) -> tuple[str, str]:
    """The digest of the guard and the host of such a key."""
    guard, _, rest = key.removeprefix(LOOKS).partition("/")
    return guard, decode(rest.partition("/")[0])


def pipeline(id_: str) -> str:
    """A pipeline that was started."""
    return PIPELINES + encode(id_)


def pipeline_of(key: str) -> str:
    """The id of a pipeline in its key."""
    return decode(key[len(PIPELINES) :])


def guard_rest(task: str) -> str:
    """The liveness that measures the time until a guard of a task counts a failure again."""
    return f"{LIVE}rest/guard/{encode(task)}"


def pipeline_rest(id_: str, stage: str) -> str:
    """The liveness that measures the time until a guard of a pipeline is checked again.

    The guards behind a phase (``post``) and before the next one (``pre``) rest apart.
    """
    return f"{LIVE}rest/pipeline/{encode(id_)}/{stage}"


def gate(thing: str) -> str:
    """What a thing waits for."""
    return GATES + encode(thing)


def gate_of(key: str) -> str:
    """The thing of such a key."""
    return decode(key.removeprefix(GATES))


def gated(fact: str, thing: str = "") -> str:
    """A thing that waits for a fact; without a thing, the folder of the fact."""
    return f"{GATED}{encode(fact)}/{encode(thing)}"


def gated_of(key: str) -> tuple[str, str]:
    """The fact and the thing of such a key."""
    fact, _, thing = key.removeprefix(GATED).partition("/")
    return decode(fact), decode(thing)


def recheck(id_: str) -> str:
    """The note that the gates of some facts are to be checked again."""
    return RECHECK + id_


def definition(name: str, digest: str = "") -> str:
    """A definition of pipelines; without a digest, the item that names the current one."""
    return DEFINITIONS + encode(name) + (f"/{digest}" if digest else "")


# Merges.


def merge(id_: str) -> str:
    """A branch that was submitted."""
    return MERGES + encode(id_)


def merge_of(key: str) -> str:
    """The id of a merge in its key."""
    return decode(key[len(MERGES) :])


def merge_waiting(queue: str, branch: str = "") -> str:
    """The entry of a branch in a queue, ``REPOSITORY:TARGET``; without a branch, the folder."""
    return f"{MERGES_WAITING}{encode(queue)}/{encode(branch)}"


def merge_waiting_of(key: str) -> tuple[str, str]:
    """The queue and the branch of such an entry."""
    queue, _, branch = key[len(MERGES_WAITING) :].partition("/")
    return decode(queue), decode(branch)


def merge_target(queue: str) -> str:
    """The target of a queue."""
    return MERGE_TARGETS + encode(queue)


def watched_branch(name: str, repository: str = "") -> str:
    """A branch that is watched; one of a remote has its name before it.

    Without a repository it is where earlier versions kept it.
    """
    return WATCHED_BRANCHES + (f"{encode(repository)}/" if repository else "") + encode(name)


def merge_target_of(key: str) -> str:
    """The queue of a target in its key."""
    return decode(key[len(MERGE_TARGETS) :])


# Budgets.


def budget(thing: str) -> str:
    """The limit of a thing: ``fleet``, ``agent/ada``, ``task/t1``."""
    return BUDGETS + encode(thing)


def budget_of(key: str) -> str:
    """The thing of a limit."""
    return decode(key[len(BUDGETS) :])


def spent(thing: str) -> str:
    """What a thing has spent."""
    return SPENT + encode(thing)


def spent_of(key: str) -> str:
    """The thing that has spent it."""
    return decode(key[len(SPENT) :])


def transcript(path: str, first: bytes) -> str:
    """How far a transcript is counted, by the digest of its path and its first line.

    All agents that count it share this; another file in its place is another transcript.
    """
    return TRANSCRIPTS + digest(path.encode("utf-8", "surrogateescape") + b"\0" + first)[:32]


# Swarms.


def agent_keys(agent: str) -> str:
    """The keys of an agent of our swarm."""
    return AGENT_KEYS + encode(agent)


def peer(swarm: str) -> str:
    """A swarm that we allow or deny."""
    return PEERS + encode(swarm)


def floor(swarm: str) -> str:
    """The newest registry entry of a peer that we accepted."""
    return FLOORS + encode(swarm)


def breaker(swarm: str) -> str:
    """The circuit breaker of a peer."""
    return BREAKERS + encode(swarm)


def reputation(swarm: str) -> str:
    """How the last requests to a peer went."""
    return REPUTATIONS + encode(swarm)


def swarm_of(key: str) -> str:
    """The swarm in a key such as ``peers/{swarm}`` or ``registry/{swarm}``."""
    return decode(key.split("/", 2)[1])


def registry_entry(swarm: str) -> str:
    """The signed registry entry of a swarm, on the bus."""
    return REGISTRY + encode(swarm)


def revocation(swarm: str, fingerprint: str = "") -> str:
    """A signed revocation; without a fingerprint, the folder of a swarm."""
    return f"{REVOKED}{encode(swarm)}/{encode(fingerprint)}"


def swarm_live(swarm: str) -> str:
    """The liveness on the bus that shows that a process of the swarm is there."""
    return LIVE_SWARMS + encode(swarm)


def state(swarm: str) -> str:
    """The signed snapshot of a swarm, on the bus."""
    return STATES + encode(swarm)


def shared(key: str) -> str:
    """A shared value, on the bus."""
    return SHARED + encode(key)


def shared_of(key: str) -> str:
    """The shared key in a key such as ``shared/{key}`` or ``copies/{key}``."""
    return decode(key.split("/", 2)[1])


def shared_last(swarm: str, key: str) -> str:
    """The envelope of the last write of a swarm to a shared key, on the bus."""
    return f"{SHARED_LAST}{encode(swarm)}/{encode(key)}"


def shared_live(key: str) -> str:
    """The liveness on the bus that measures how long ago a shared value was stored."""
    return f"{LIVE}shared/{encode(key)}"


def copy(key: str) -> str:
    """A shared value as this home knows it."""
    return COPIES + encode(key)


def shared_write(key: str, number: int = 0, id_: str = "") -> str:
    """A write that is to be put on the bus, in order; without a number, the folder of its key."""
    return f"{SHARED_WRITES}{encode(key)}/" + (f"{number:012d}.{id_}" if number else "")


def undecided(decision: str) -> str:
    """A write of a shared value that a decision is about."""
    return UNDECIDED + decision


def conflict(id_: str) -> str:
    """Two writes of a shared value."""
    return CONFLICTS + id_
