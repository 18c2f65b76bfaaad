"""Where everything stands: the only module that makes or parses keys.

``/`` separates the parts of a key.  Inside a part every byte is percent-encoded but ASCII letters,
digits and ``._:@*?+=~-``, so a key is ASCII whatever the name.

    locks/{name}          the lock: its grant and its waiters, one item
    semaphores/{name}     the semaphore: its capacity, its grants and its waiters, one item
    held/{session}/{pool} a pool that a session holds or waits for, if another process began it
    waits/{name}/{id}     what an agent waits for; a caller, too, while others may wait for it
    tasks/{id}/data       what a task is; written once
    tasks/{id}/status     how it stands
    tasks/{id}/owner      who works on it; there only while somebody does
    tasks/{id}/result     what came of it, or why it failed
    ready/{set}/{order}/{id}  tasks that wait for a worker, by what they require, best first
    sets/{set}            which requirements tasks that are ready have together
    meta/sets             written anew with every one of these that comes or goes
    meta/needed           written anew when a task is published that needs one that failed, and when
                          such ones are forgotten
    meta/suspected        written anew before all tasks are looked at for who needs one that failed
    meta/over             how many tasks were over when all were looked at, and for how long
    due/{moment}/{id}     tasks that must not begin yet
    hangs/{need}/{id}     a blocked task, under the one need that it hangs on for now
    todo/{need}           a need that is complete, with tasks under it that were not moved on yet
    claims/{session}/{id} who works on what
    ended/{id}            tasks that failed, or are dead letters
    mailboxes/{agent}     an agent that messages can be sent to
    joined/{agent}        an agent that has had a session, and sits at no shell since
    agents/{agent}/{session}    its sessions
    serving/{agent}/{caller}    who takes messages for it now, while a liveness key lives
    paused/{agent}        an agent that may not send for now, and why
    messages/{id}         a message to some agents; written once
    unread/{agent}/{id}   it waits for this one
    read/{agent}/{id}     this one acknowledged it; kept for a while
    sent/{agent}/{id}     mail that this one sent, likewise
    ids/{id}              an id that a sender chose: nobody else sends under it for a while
    topics/{topic}/{id}   a message to all who subscribed; written once
    subscriptions/{agent}/{topic}  what an agent asked to hear of
    cursors/{agent}/{topic}        how far it has acknowledged that
    trimmed/{topic}       how far the messages of a topic were forgotten
    queries/{id}          a question, how it stands, and its answer
    replies/{id}          its answer, if both are too large for one item
    open/{agent}/{id}     the questions of an agent that nobody answered yet
    answers/{digest}      the query that answered this question last
    decisions/{id}        what only a person can say
    rates/{agent}/{slot}  when an agent used one of its turns to send
    sessions/{session}    who this incarnation of an agent is
    reports/{session}     what it says of itself
    deaths/{session}      a session that ended without leaving, for a day or until acknowledged
    broken/{thing}/{grant}  a grant that an operator ended, and why, for a day
    logbooks/{agent}      which chunks of its log stand
    logs/{agent}/{number} a chunk of its log: many lines
    logbooks/{agent}/{file}       which chunks of a file that it uploaded stand
    logs/{agent}/{file}/{number}  a chunk of such a file
    live/{id}             liveness of a session or of a grant; the only keys that lapse
    live/{session}.heard  what a session says of itself still holds: it was heard of
    live/{query}          it may still be answered
    live/{query}.asker    its asker, at a shell, still waits
    live/{grant}.limit    put once for the maximum hold and never renewed
    live/{grant}.refused  a refusal in favour of this grant was recorded within the last minute
    wake/{grant}          a signal, never stored: your turn came, look again
    wake/ready/{set}      the same for all who wait for such tasks
    refusals/{slot}       an entry that changes nothing else, as a refusal: the next one links it
    segments/{revision}   sealed entries of the record, up to this revision
    meta/sealed           how far the record was sealed
    meta/checkpoint       how far the digest over the record was rolled
    meta/refused/{agent}  refusals of an agent that left no entry, counted
    meta/base             what is added to a revision to make a token
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import ceil

from interlock.core.codec import canonical, digest

LOCKS = "locks/"
SEMAPHORES = "semaphores/"
POOLS = (LOCKS, SEMAPHORES)
HELD = "held/"
WAITS = "waits/"
TASKS = "tasks/"
READY = "ready/"
SETS = "sets/"
DUE = "due/"
HANGS = "hangs/"
TODO = "todo/"
CLAIMS = "claims/"
ENDED = "ended/"
WORK = (TASKS, READY, SETS, DUE, HANGS, TODO, CLAIMS, ENDED)
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
POST = (
    MAILBOXES, JOINED, AGENTS, SERVING, PAUSED, MESSAGES, UNREAD, READ, SENT, IDS,
    TOPICS, SUBSCRIPTIONS, CURSORS, TRIMMED, QUERIES, REPLIES, OPEN, ASKING, ANSWERS, DECISIONS,
    RATES,
)  # fmt: skip
SESSIONS = "sessions/"
REPORTS = "reports/"
DEATHS = "deaths/"
BROKEN = "broken/"
ABLE = "able/"
LOGBOOKS = "logbooks/"
LOGS = "logs/"
LIVE = "live/"
CLOCK = "live/clock"
"""A liveness key that outlives all others: while it stands, the engine has measured without a break
since the commit that put it."""
WAKE = "wake/"
WAKE_READY = "wake/ready/"
REFUSALS = "refusals/"
REFUSED = "meta/refused/"
SEGMENTS = "segments/"
SEALED = "meta/sealed"
SETS_MARK = "meta/sets"
NEEDED = "meta/needed"
SUSPECTED = "meta/suspected"
OVER = "meta/over"
CHECKPOINT = "meta/checkpoint"
BASE = "meta/base"
DERIVED = (
    WAITS,
    UNREAD,
    READ,
    SENT,
    MAILBOXES,
    OPEN,
    ASKING,
    SERVING,
    ANSWERS,
    RATES,
    REPORTS,
    ABLE,
)
"""What can be made again, or comes again by itself."""

LEAST_PRIORITY, GREATEST_PRIORITY = -1_000_000, 1_000_000
NO_REQUIREMENTS = "-"
_LONGEST_SET = 120
_ENCODED = re.compile(r"[^A-Za-z0-9._:@*?+=~-]+")
_JOINED = ("lock/", "sem/")
_SEPARATOR = re.compile(r"\+(?=lock/|sem/)")

KINDS = {
    "lock": LOCKS,
    "sem": SEMAPHORES,
    "task": TASKS,
    "agent": SESSIONS,
    "message": MESSAGES,
    "query": QUERIES,
    "alert": TOPICS,
    "decision": DECISIONS,
}
"""What a thing is called in the record, and where the things of its kind stand."""


_SPOKEN = {"messages": "message", "queries": "query", "decisions": "decision"}


@lru_cache(maxsize=4096)
def part(name: str) -> str:
    """A name as one part of a key."""
    return _ENCODED.sub(_percent, name)


def name(part: str) -> str:
    """The name that a part of a key stands for."""
    if "%" not in part:
        return part
    first, *rest = part.encode().split(b"%")
    return (first + b"".join([bytes((int(p[:2], 16),)) + p[2:] for p in rest])).decode()


def _percent(found: re.Match[str]) -> str:
    return "".join([f"%{byte:02X}" for byte in found[0].encode()])


def held(session: str, pool: str = "") -> str:
    """Where a pool is listed that a session has something of, or the folder of all of them."""
    return f"{HELD}{session}/{pool}"


def held_of(key: str) -> tuple[str, str]:
    """The session and the pool that such a key names."""
    _, session, pool = key.split("/", 2)
    return session, pool


def several(things: Iterable[str]) -> str:
    """Several locks and semaphores as the record names them at once: ``lock/a+sem/b``."""
    return "+".join(things)


def each(thing: str) -> list[str]:
    """The locks and semaphores that were named at once; of any other thing, itself."""
    if "+" not in thing or not thing.startswith(_JOINED):
        return [thing]
    return _SEPARATOR.split(thing)


def joins(name: str) -> bool:
    """Whether a name would read as several things."""
    return _SEPARATOR.search(name) is not None


def lock(lock: str) -> str:
    """The item that is this lock."""
    return LOCKS + part(lock)


def semaphore(semaphore: str) -> str:
    """The item that is this semaphore."""
    return SEMAPHORES + part(semaphore)


def thing(key: str) -> str:
    """What stands under a key as people name it: ``lock/merge``, ``sem/builds``, ``task/t1``."""
    if key.startswith(LOCKS):
        return "lock/" + name(key[len(LOCKS) :])
    if key.startswith(TASKS):
        return "task/" + task_of(key)
    if key.startswith(QUERIES):
        return "query/" + key[len(QUERIES) :]
    return "sem/" + name(key[len(SEMAPHORES) :])


def kind(key: str) -> str:
    """Whether a key is that of a lock or of a semaphore, as events name it."""
    return "lock" if key.startswith(LOCKS) else "semaphore"


def of(thing: str) -> str:
    """The item of a thing as the record names it: ``lock/merge``, ``sem/builds``, ``agent/ID``.

    Of a task it is the one that says whose it is.
    """
    kind, _, name = thing.partition("/")
    return owner(name) if kind == "task" else KINDS[kind] + part(name)


def waits(caller: str, id_: str = "") -> str:
    """What goes by this name waits for, under the id of the wait; without one, all of that.

    What is inside of a caller (``a/b``) is listed with it.
    """
    return f"{WAITS}{caller.partition('/')[0]}/{id_}"


def wait_of(key: str) -> str:
    """The id of a wait that is listed under this key."""
    return key.rpartition("/")[2]


def session(session: str) -> str:
    """The item that says who a session is."""
    return SESSIONS + session


def able(ability: str, who: str = "") -> str:
    """Who is able to do something: a session, or a caller that takes messages; or all of them."""
    return f"{ABLE}{part(ability)}/{part(who)}"


def report(session: str) -> str:
    """What a session says of itself."""
    return REPORTS + session


def death(session: str) -> str:
    """The trace of a session that ended without leaving."""
    return DEATHS + session


def broken(thing: str, grant: str = "") -> str:
    """The note about a grant that an operator ended; without a grant, all of a thing."""
    return f"{BROKEN}{part(thing)}/{grant}"


def heard(session: str) -> str:
    """The liveness that tells when a session was last heard of."""
    return f"{LIVE}{session}.heard"


def logbook(agent: str) -> str:
    """What stands of the log of an agent."""
    return LOGBOOKS + part(agent)


def log_chunk(agent: str, number: int) -> str:
    """Some lines of the log of an agent; the keys sort as they were uploaded."""
    return f"{LOGS}{part(agent)}/{number:012d}"


def file_book(agent: str, file: str = "") -> str:
    """Which chunks of an uploaded file stand; without a file, the folder of all of an agent."""
    return f"{LOGBOOKS}{part(agent)}/{part(file)}"


def file_chunk(agent: str, file: str, number: int) -> str:
    """Some lines of an uploaded file."""
    return f"{LOGS}{part(agent)}/{part(file)}/{number:012d}"


def live(id_: str) -> str:
    """The liveness of a session or a grant."""
    return LIVE + id_


def asker(query: str) -> str:
    """The liveness of whoever waits for an answer, if it has none of its own."""
    return f"{LIVE}{query}.asker"


def limit(grant: str) -> str:
    """The liveness that ends with the maximum hold of a grant."""
    return f"{LIVE}{grant}.limit"


def deadline(task: str) -> str:
    """The liveness that ends when it is too late to begin a task."""
    return f"{LIVE}deadline/{part(task)}"


def refused(grant: str) -> str:
    """The mark that a refusal in favour of this grant was recorded not long ago."""
    return f"{LIVE}{grant}.refused"


def refused_by(agent: str = "") -> str:
    """Where refusals of an agent are counted; without one, where all are."""
    return f"{REFUSED}{part(agent) if agent else ''}"


def refusals(slot: int) -> str:
    """Where an entry that changes nothing else is linked."""
    return f"{REFUSALS}{slot}"


def wake(grant: str) -> str:
    """The signal that tells a waiter to look again."""
    return WAKE + grant


def segment(last: int) -> str:
    """The sealed entries up to this revision; the keys sort as the revisions do."""
    return f"{SEGMENTS}{last:016d}"


def data(task: str) -> str:
    """What a task is."""
    return f"{TASKS}{part(task)}/data"


def status(task: str) -> str:
    """How a task stands."""
    return f"{TASKS}{part(task)}/status"


def owner(task: str) -> str:
    """Who works on a task."""
    return f"{TASKS}{part(task)}/owner"


def result(task: str) -> str:
    """What came of a task."""
    return f"{TASKS}{part(task)}/result"


def task_of(key: str) -> str:
    """The task that a key under ``tasks/`` belongs to."""
    return name(key[len(TASKS) :].partition("/")[0])


def listed(key: str) -> str:
    """The task that a key of an index ends with."""
    return name(key.rpartition("/")[2])


def requirements(requires: tuple[str, ...]) -> str:
    """What a task requires, as one part of a key; the same whatever the order."""
    if not requires:
        return NO_REQUIREMENTS
    text = ",".join([part(each) for each in sorted(set(requires))])
    return text if len(text) <= _LONGEST_SET else "#" + digest(text.encode("ascii"))[:32]


def set_of(set_: str) -> str:
    """The item that says which requirements these are."""
    return SETS + set_


def ready(set_: str, priority: int = 0, at: float = 0.0, task: str = "") -> str:
    """The place of a task among those with its requirements; without a task, all of them."""
    if not task:
        return f"{READY}{set_}/"
    order = f"{priority - LEAST_PRIORITY:07d}.{round(at * 1_000_000):016d}"
    return f"{READY}{set_}/{order}/{part(task)}"


def order(key: str) -> tuple[str, str]:
    """What sorts tasks that are ready, whatever they require: best priority, then oldest."""
    _, _, order, task = key.split("/")
    return order, task


def ready_at(key: str) -> float:
    """When the task was published whose place among those that are ready this is."""
    return int(key.split("/")[2].partition(".")[2]) / 1_000_000


def set_in(key: str) -> str:
    """The requirements in the key of a task that is ready."""
    return key.split("/", 2)[1]


def due(moment: float, task: str) -> str:
    """The place of a task among those that must not begin yet."""
    return f"{DUE}{max(0, ceil(moment * 1000)):014d}/{part(task)}"


def hangs(need: str, task: str = "") -> str:
    """A task under the need that it hangs on; without a task, all of them."""
    return f"{HANGS}{part(need)}/{part(task)}"


def hanging(key: str) -> tuple[str, str]:
    """The need and the task of a place under a need."""
    need, _, task = key.removeprefix(HANGS).partition("/")
    return name(need), name(task)


def todo(need: str) -> str:
    """The mark that tasks under a complete need are still to be moved on."""
    return TODO + part(need)


def claims(session: str, task: str = "") -> str:
    """A task under the session that works on it; without a task, all of them."""
    return f"{CLAIMS}{session}/{part(task)}"


def claim_of(key: str) -> tuple[str, str]:
    """The session and the task of a key that says who works on what."""
    session, _, task = key[len(CLAIMS) :].partition("/")
    return session, name(task)


def ended(task: str) -> str:
    """A task among those that failed, or are dead letters."""
    return ENDED + part(task)


def wake_ready(set_: str) -> str:
    """The signal that a task with these requirements is ready."""
    return WAKE_READY + set_


def mailbox(agent: str) -> str:
    """The item that says that messages can be sent to an agent."""
    return MAILBOXES + part(agent)


def joined(agent: str) -> str:
    """The item that says that an agent has had sessions."""
    return JOINED + part(agent)


def present(agent: str, session: str = "") -> str:
    """A session under the name of its agent; without one, all of them."""
    return f"{AGENTS}{part(agent)}/{session}"


def serving(agent: str, caller: str = "") -> str:
    """A caller that takes the messages of an agent; without one, all of them."""
    return f"{SERVING}{part(agent)}/{part(caller)}"


def serves(session: str, caller: str) -> str:
    """The liveness of a caller that takes messages."""
    return f"{LIVE}{session}.serves.{part(caller)}"


def paused(agent: str) -> str:
    """The item that keeps an agent from sending."""
    return PAUSED + part(agent)


def message(id_: str) -> str:
    """A message to some agents, or a question."""
    return (QUERIES if id_.startswith("qry_") else MESSAGES) + id_


def unread(agent: str, id_: str = "") -> str:
    """A message that waits for an agent; without one, all of them."""
    return f"{UNREAD}{part(agent)}/{id_}"


def read(agent: str, id_: str = "") -> str:
    """A message that an agent acknowledged, likewise."""
    return f"{READ}{part(agent)}/{id_}"


def sent(agent: str, id_: str = "") -> str:
    """Mail that an agent sent, likewise."""
    return f"{SENT}{part(agent)}/{id_}"


def taken(id_: str) -> str:
    """The mark that a sender chose this id for a message."""
    return IDS + id_


def topic(topic: str, id_: str = "") -> str:
    """A message to all who subscribed to a topic; without one, all of them."""
    return f"{TOPICS}{part(topic)}/{id_}"


def topic_of(key: str) -> str:
    """The topic of a key that has one: of a message, a subscription or a cursor."""
    parts = key.split("/")
    return name(parts[1] if key.startswith((TOPICS, TRIMMED)) else parts[2])


def subscription(agent: str, topic: str = "") -> str:
    """What an agent asked to hear of; without a topic, all of it."""
    return f"{SUBSCRIPTIONS}{part(agent)}/{part(topic)}"


def cursor(agent: str, topic: str = "") -> str:
    """How far an agent has acknowledged the messages of a topic, likewise."""
    return f"{CURSORS}{part(agent)}/{part(topic)}"


def trimmed(topic: str) -> str:
    """How far the messages of a topic were forgotten."""
    return TRIMMED + part(topic)


def query(id_: str) -> str:
    """A question."""
    return QUERIES + id_


def reply(id_: str) -> str:
    """The answer to a question that does not fit beside it."""
    return REPLIES + id_


def open_query(agent: str, id_: str = "") -> str:
    """A question of an agent that nobody answered yet; without one, all of them."""
    return f"{OPEN}{part(agent)}/{id_}"


def asking(agent: str, number: int | None = None) -> str:
    """A place of an open question, among those of an agent or, without one, of all.

    Without a number, where all of them are.
    """
    folder = f"{ASKING}by/{part(agent)}/" if agent else f"{ASKING}all/"
    return folder if number is None else f"{folder}{number:07d}"


def open_of(key: str) -> tuple[str, str]:
    """The asker and the id of an open question."""
    agent, _, id_ = key[len(OPEN) :].partition("/")
    return name(agent), id_


def answer(to: str, question: bytes) -> str:
    """Which query answered this question of the same agent, or of the same ability, last.

    A question is the same however its JSON is written.
    """
    return ANSWERS + digest(to.encode() + b" " + canonical(question))


def decision(id_: str) -> str:
    """What only a person can say."""
    return DECISIONS + id_


def rate(agent: str, slot: int) -> str:
    """One of the turns that an agent has to send."""
    return f"{RATES}{part(agent)}/{slot:05d}"


def owner_of(key: str) -> str:
    """The agent in a key that has one, such as ``unread/{agent}/{id}``."""
    return name(key.split("/", 2)[1])


def spoken(key: str) -> str:
    """What stands under a key of messages as people name it: ``message/ID``, ``query/ID``."""
    folder, _, id_ = key.partition("/")
    return f"{_SPOKEN[folder]}/{id_}"


def said(id_: str) -> str:
    """A message, or a question, as people name it, by its id."""
    return spoken(message(id_))


def last(key: str) -> str:
    """What a key ends with, such as the id of a message."""
    return key.rpartition("/")[2]
