"""The table: every operation once, with its words, its typed request and its typed outcomes.

The command line, the MCP tools, the HTTP routes and the reference pages are derived from it.
The index below is all that a face reads to find an operation; the one file of its noun is imported
only then, so that a command pays for nothing else.

shape.py   what an operation is
fleet.py   operations without a noun: init, run, doctor, why ...
message.py operations without a noun, too, that send: alert, query, send ...
inbox.py   and that read: subscribe, inbox, ack, wait
task.py    lock.py    sem.py    agent.py    decision.py    record.py    store.py
observe.py everything that happens
plan.py    whole plans of tasks, which only who imports one pays for
"""

from __future__ import annotations

from importlib import import_module

from interlock.runtime.operation import Operation

_SENT = ("alert", "query", "reply", "cancel", "share", "stop", "send")
_READ = ("subscribe", "unsubscribe", "inbox", "ack", "wait")
MESSAGES = (*_SENT, *_READ)
"""Operations on messages, which go without a noun."""

INDEX: dict[str, tuple[str, ...]] = {
    "": (
        "init", "demo", "run", "acquire", "release", "why", "observe", "health", "doctor",
        "maintain", "schema", "bench", "selftest", *MESSAGES,
    ),
    "agent": (
        "join", "leave", "beat", "status", "log", "list", "show", "pause", "resume", "ack",
    ),
    "task": (
        "add", "claim", "next", "beat", "done", "fail", "release", "cancel", "requeue", "retry",
        "list", "show", "watch", "import",
    ),
    "lock": ("acquire", "release", "beat", "run", "break", "list", "show"),
    "sem": (
        "acquire", "release", "beat", "run", "break", "resize", "remove", "list", "show",
    ),
    "decision": ("list", "show", "resolve"),
    "record": ("log", "explain", "verify", "export", "anchor"),
    "store": ("info",),
}  # fmt: skip

_MODULES = {
    "": "fleet.noun",
    "agent": "agents.noun",
    "decision": "messages.decision_noun",
    "lock": "grants.lock_noun",
    "record": "record.noun",
    "sem": "grants.semaphore_noun",
    "store": "fleet.store_noun",
    "task": "tasks.noun",
}
"""Where the operations of a noun are declared."""

_ELSEWHERE = {
    "observe": "fleet.observe_operations",
    "task import": "tasks.plan_noun",
    **dict.fromkeys(_SENT, "messages.noun"),
    **dict.fromkeys(_READ, "messages.inbox_noun"),
}
"""Operations that stand in a file of their own, not in that of their noun."""

ALIASES = {
    "agent heartbeat": "agent beat",
    "lock heartbeat": "lock beat",
    "sem heartbeat": "sem beat",
    "task complete": "task done",
    "task heartbeat": "task beat",
    "task publish": "task add",
    "task publish-all": "task import",
    "task subscribe": "task watch",
}
"""Second names.  Python calls these operations by the long word, shells by the short one, and both
answer to both: ``fleet.tasks.add`` is ``fleet.tasks.publish`` (``import`` is ``import_`` there)."""

NOUNS = {
    "agent": "sessions of agents: who is here, and what they do",
    "task": "published once, worked on by one at a time, done once",
    "lock": "one holder at a time, and a token that fences the past",
    "sem": "so many slots, taken by weight, first come first served",
    "decision": "what no agent could say, and a person is asked",
    "record": "what happened, and the proof of it",
    "store": "where it is kept",
}


def names() -> tuple[str, ...]:
    """The names of all operations, in the order in which they are shown."""
    return tuple(f"{noun} {verb}".strip() for noun, verbs in INDEX.items() for verb in verbs)


def canonical(name: str) -> str:
    """The first name of an operation, whichever of its names this is."""
    return ALIASES.get(name, name)


def aliases(name: str) -> tuple[str, ...]:
    """The second names of an operation."""
    return tuple(alias for alias, first in ALIASES.items() if first == name)


def find(name: str) -> Operation:
    """The operation of this name; KeyError if there is none."""
    noun, _, verb = name.rpartition(" ")
    if verb not in INDEX[noun]:
        raise KeyError(name)
    module = import_module(f"interlock.nouns.{_ELSEWHERE.get(name, _MODULES[noun])}")
    operations: tuple[Operation, ...] = module.OPERATIONS
    return next(operation for operation in operations if operation.name == name)


def table() -> tuple[Operation, ...]:
    """All operations."""
    return tuple(find(name) for name in names())
