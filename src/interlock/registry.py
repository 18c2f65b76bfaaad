"""The registry: one entry for each noun, through which the rest of the product finds it.

An entry names the module of the declaration, the word that commands begin with (``lock acquire``),
the attribute of a client (``fleet.locks``), or the commands that have no such word (``alert``), and
the housekeeping that every client does in the background.  It imports nothing, so that a command
pays for the one noun that it needs; ``nouns`` imports all declarations, for the few callers that
need every noun: health, maintain, help, the reference.

``add`` registers the noun of another package under the same rules.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from interlock.descriptors import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.runtime.noun import Noun
    from interlock.runtime.operation import Operation, Request


class NounEntry:
    """Where a noun is declared, and by which words it is found.

    ``client_step`` names a function ``(runner, settings, actor) -> Op[bool]``: a bounded step that
    clients do after one of a thousand commits, which returns whether more is left to do.
    """

    __slots__ = ("attribute", "client_step", "commands", "module", "word")

    def __init__(
        self,
        module: str,
        word: str = "",
        attribute: str = "",
        commands: tuple[str, ...] = (),
        client_step: str = "",
    ) -> None:
        self.module = module
        self.word = word
        self.attribute = attribute
        self.commands = commands
        self.client_step = client_step


_ENTRIES = [
    NounEntry(
        "interlock.nouns.fleet.noun",
        commands=(
            "init", "allow", "demo", "run", "why", "observe", "health", "doctor", "maintain",
            "schema", "bench", "selftest",
        ),
    ),
    NounEntry("interlock.nouns.fleet.hosts_noun", commands=("hook", "prime", "setup", "wake")),
    NounEntry("interlock.nouns.fleet.server_noun", commands=("mcp", "up", "open", "warm")),
    NounEntry("interlock.nouns.fleet.monitor_noun", commands=("metrics", "top", "completion")),
    NounEntry("interlock.nouns.grants.several_noun", "", "several", ("acquire", "release")),
    NounEntry(
        "interlock.nouns.messages.noun", "", "messages",
        ("alert", "query", "reply", "cancel", "share", "stop", "send"),
    ),
    NounEntry(
        "interlock.nouns.messages.inbox_noun",
        commands=("subscribe", "unsubscribe", "inbox", "ack", "wait"),
    ),
    NounEntry(
        "interlock.nouns.reservations.noun", "", "reservations",
        ("reserve", "unreserve", "reservations"),
    ),
    NounEntry("interlock.nouns.messages.feed_noun", "message"),
    NounEntry("interlock.nouns.agents.noun", "agent", "agents"),
    NounEntry("interlock.nouns.tasks.noun", "task", "tasks"),
    NounEntry("interlock.nouns.schedules.noun", "schedule", "schedules"),
    NounEntry("interlock.nouns.grants.lock_noun", "lock", "locks"),
    NounEntry("interlock.nouns.grants.lock_operator_noun", "lock"),
    NounEntry("interlock.nouns.grants.semaphore_noun", "sem", "semaphores"),
    NounEntry("interlock.nouns.pipelines.noun", "pipeline", "pipelines"),
    NounEntry(
        "interlock.nouns.guards.noun", "guard", "guards",
        client_step="interlock.nouns.guards.housekeeping:client_step",
    ),
    NounEntry("interlock.nouns.merges.noun", "merge", "merges"),
    NounEntry("interlock.nouns.budgets.noun", "budget", "budgets"),
    NounEntry("interlock.nouns.branches.noun", "", "branches", ("watch-branch", "rebase")),
    NounEntry("interlock.nouns.requests.noun", "request", "requests"),
    NounEntry("interlock.nouns.requests.quarantine_noun", "quarantine", "quarantine"),
    NounEntry("interlock.nouns.messages.decision_noun", "decision"),
    NounEntry("interlock.nouns.swarms.noun", "swarm", "swarms"),
    NounEntry("interlock.nouns.swarms.key_noun", "key", "keys"),
    NounEntry(
        "interlock.nouns.record.noun", "record", "record",
        client_step="interlock.nouns.record.seal_service:client_step",
    ),
    NounEntry("interlock.nouns.fleet.store_noun", "store"),
]  # fmt: skip
_OWN = frozenset(_ENTRIES)


def add(entry: NounEntry) -> None:
    """Register a noun."""
    _ENTRIES.append(entry)


def remove(entry: NounEntry) -> None:
    """Remove a registered noun."""
    _ENTRIES.remove(entry)


def nouns() -> Iterator[Noun]:
    """All nouns, in the order in which they are shown."""
    return map(_noun, _ENTRIES)


def added() -> Iterator[Noun]:
    """The nouns of other packages."""
    return (_noun(each) for each in _ENTRIES if each not in _OWN)


def noun(word: str) -> Noun | None:
    """The noun whose commands begin with this word."""
    return next((_noun(each) for each in _ENTRIES if word and each.word == word), None)


def with_attribute(name: str) -> Noun | None:
    """The noun that is this attribute of a client."""
    return next((_noun(each) for each in _ENTRIES if name and each.attribute == name), None)


def words() -> tuple[str, ...]:
    """The words that commands may begin with, before a verb."""
    return tuple(dict.fromkeys(each.word for each in _ENTRIES if each.word))


def commands() -> tuple[str, ...]:
    """The commands without such a word."""
    return tuple(command for each in _ENTRIES for command in each.commands)


def client_steps() -> list[str]:
    """The steps of housekeeping that every client does."""
    return [each.client_step for each in _ENTRIES if each.client_step]


def gate(kind: str) -> Any:  # noqa: ANN401 - as the noun declares it
    """The function that lets a thing of this kind move on if its guards pass; None if unknown."""
    found = next((each.gates[kind] for each in nouns() if kind in each.gates), None)
    return None if found is None else load(found)


def gate_flag(kind: str) -> Any:  # noqa: ANN401
    """The function that marks the item of a fact of this kind; None if such items have no mark."""
    found = next((each.gate_flags[kind] for each in nouns() if kind in each.gate_flags), None)
    return None if found is None else load(found)


def decided(kind: str) -> Any:  # noqa: ANN401
    """The function that says what the end of a decision about a thing does; None if nothing."""
    found = next((each.decided[kind] for each in nouns() if kind in each.decided), None)
    return None if found is None else load(found)


def decided_then(kind: str) -> Any:  # noqa: ANN401
    """The function that follows the end of a decision about a thing; None if nothing does."""
    found = next((each.decided_then[kind] for each in nouns() if kind in each.decided_then), None)
    return None if found is None else load(found)


def attributes() -> Iterator[tuple[str, Noun]]:
    """The nouns that are attributes of a client, each with its name there."""
    return ((each.attribute, _noun(each)) for each in _ENTRIES if each.attribute)


def find(name: str) -> Operation:
    """The operation of this name or second name; KeyError if there is none."""
    word, _, verb = name.rpartition(" ")
    for entry in _ENTRIES:
        if entry.word == word and (word or verb in entry.commands):
            for operation in _noun(entry).operations:
                if name == operation.name or name in operation.aliases:
                    return operation
    raise KeyError(name)


def verbs(word: str) -> tuple[Operation, ...]:
    """The operations whose names begin with this word; without one, those that have none."""
    entries = [each for each in _ENTRIES if each.word == word]
    return tuple(operation for each in entries for operation in _noun(each).operations)


def operations() -> tuple[Operation, ...]:
    """Every operation of every noun."""
    return tuple(operation for each in nouns() for operation in each.operations)


def names() -> tuple[str, ...]:
    """The names of all operations."""
    return tuple(operation.name for operation in operations())


def operation_of(request: Request) -> Operation:
    """The operation that takes this request: it is declared where the request is."""
    kind = type(request)
    module = sys.modules.get(kind.__module__)
    noun: Noun | None = getattr(module, "NOUN", None)
    for operation in noun.operations if noun else getattr(module, "OPERATIONS", ()):
        if operation.request is kind:
            return operation
    raise TypeError(
        f"{kind.__name__} is no request; give one of an operation, such as"
        " interlock.nouns.grants.lock_noun.LockAcquire(lock='merge')"
    )


def texts(module: str) -> Iterator[str]:
    """The modules with the texts of nouns, the nearest to the module of an outcome first.

    ``lock_noun`` is nearer to ``lock`` than ``semaphore_noun``; of others in the same package, a
    noun that is imported already is probably the one that the outcome is of.
    """
    folder = module.rpartition(".")[0]

    def distance(entry: NounEntry) -> tuple[bool, bool, bool]:
        return (
            entry.module.rpartition(".")[0] != folder,
            not entry.module.startswith(module),
            entry.module not in sys.modules,
        )

    for entry in sorted(_ENTRIES, key=distance):
        yield from _noun(entry).texts


def wait_reader(key: str) -> str:
    """The function that reads what a wait for this key waits for; KeyError if there is none.

    The noun of a wait is nearly always imported already.
    """
    for entry in sorted(_ENTRIES, key=lambda each: each.module not in sys.modules):
        for prefix, reader in _noun(entry).waits.items():
            if key.startswith(prefix):
                return reader
    raise KeyError(key)


def load(reference: str) -> Any:  # noqa: ANN401 - a declaration names anything
    """The object that a declaration names (``package.module:name``), imported now."""
    module, _, name = reference.partition(":")
    try:
        __import__(module)  # as import_module does it, whose package is one more import
        return getattr(sys.modules[module], name)
    except OSError as error:
        raise named(error) from error.__cause__


def _noun(entry: NounEntry) -> Noun:
    declared: Noun = load(f"{entry.module}:NOUN")
    return declared
