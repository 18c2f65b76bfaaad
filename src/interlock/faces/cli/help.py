"""The texts of ``--help``, and suggestions for unknown commands."""

from __future__ import annotations

from collections.abc import Sequence

from interlock import registry
from interlock.core.decision import Outcome
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.faces.cli.parse import COMMON
from interlock.runtime.operation import Field, Operation, fields
from interlock.version import __version__

METAVARS = {
    "name": "NAME",
    "names": "NAME,...",
    "text": "TEXT",
    "int": "N",
    "duration": "DURATION",
    "json": "JSON",
    "command": "CMD",
    "things": "THING",
    "patterns": "PATTERN",
    "grants": "THING=TOKEN",
    "body": "TEXT",
    "values": "FIELD=JSON",
    "path": "PATH",
}
_NAMED = {
    "store": "URL", "session": "ID", "trace": "ID", "since": "TIME", "until": "TIME",
    "not_before": "TIME", "deadline": "TIME",
}  # fmt: skip
_HABITS = {
    "answer": "reply",
    "ask": "query",
    "broadcast": "alert",
    "get": "lock acquire",
    "heartbeat": "lock beat",
    "listen": "subscribe",
    "ls": "lock list",
    "mail": "send",
    "message": "send",
    "messages": "inbox",
    "msg": "send",
    "notify": "alert",
    "ps": "agent list",
    "read": "inbox",
    "recv": "inbox",
    "renew": "lock beat",
    "serve": "up",
    "server": "up",
    "status": "health",
    "take": "lock acquire",
    "tell": "send",
    "ui": "up",
    "unlock": "lock release",
    "version": "--version",
}
_SYNONYMS = {
    "create": "add",
    "decide": "resolve",
    "delete": "drop",
    "finish": "done",
    "get": "acquire",
    "ls": "list",
    "new": "add",
    "renew": "beat",
    "rm": "drop",
    "status": "show",
    "take": "acquire",
    "unlock": "release",
}
_NOUNS = {
    "guards": "guard", "job": "task", "jobs": "task", "locks": "lock", "semaphore": "sem",
    "semaphores": "sem", "slot": "sem", "slots": "sem", "tasks": "task",
}  # fmt: skip
_ENDING = frozenset(("cancel", "drop", "leave", "pause", "release", "remove", "stop"))
"""Commands that end something, or release something."""
_GIVEN = {"body": "; - for stdin", "json": "; @FILE, or - for stdin"}
"""How a shell may give a value of this kind beside the word itself."""
_TROUBLE = {2: "bad input", 3: "not allowed", 4: "trouble with the store"}
_FIRST = {
    "begin": ("init", "demo", "setup", "run", "doctor"),
    "share work": ("task add", "task next", "task done", "task run", "lock run", "reserve"),
    "talk": ("alert", "query", "send", "inbox", "wait"),
    "look": ("agent list", "task list", "why", "health", "top", "up"),
}
"""The commands that ``interlock`` alone shows."""
_HEAD = (
    "Tasks, locks, semaphores, messages and a record of it all, for fleets of agents.",
    "",
    "usage: interlock COMMAND [options]",
    "",
)
_TAIL = (
    "Start with 'interlock init'; each command explains itself with --help.",
    "All commands take --store, --agent, --session, --trace, --key, --no-retry, --json, -q and -v.",
)
_CLOSE = 0.7
_LEFT = 24
_RIGHT = 54
_NAMES = 20
_WIDTH = 100


def without_operation(name: str, words: Sequence[str]) -> str:
    """The help, or the version, that was asked for; an error suggests a command."""
    asked = "-h" in words or "--help" in words or name.endswith(" help")
    name = name.removesuffix(" help")
    if "--version" in words and not name:
        return f"interlock {__version__}"
    if not name and "--all" in words:
        return all_commands()
    if not name and (asked or not words):
        return overview()
    if not name:
        raise BadInput(
            f"which command? {quoted(words[0])} is only an option; see 'interlock --help'"
        )
    if name in registry.words():
        if not asked:
            verbs = ", ".join(each.name.rpartition(" ")[2] for each in registry.verbs(name))
            raise BadInput(f"{name} what? one of: {verbs}; see 'interlock {name} --help'")
        return noun(name)
    question = suggestion(name) or "see 'interlock --help'"
    raise BadInput(f"there is no command {quoted(name)}; {question}")


def overview() -> str:
    """The help of ``interlock`` without a command: what most people need, and where the rest is."""
    shown = {each.name: each for each in registry.operations()}
    lines = [*_HEAD]
    for heading, names in _FIRST.items():
        lines += [f"{heading}:", *(_listed(shown[name]) for name in names), ""]
    lines += ["more, each explained by 'interlock NAME --help':"]
    nouns = {word: registry.noun(word) for word in registry.words()}
    lines += [f"  {word:<{_NAMES}}{each.help}" for word, each in nouns.items() if each]
    return "\n".join([*lines, "", *_TAIL, "'interlock --all' lists every command."])


def all_commands() -> str:
    """The help of ``interlock --all``: every command, in its group."""
    groups: dict[str, list[str]] = {}
    for each in registry.nouns():
        heading = each.group or each.operations[0].name.rpartition(" ")[0]
        group = groups.setdefault(heading, [f"{heading}: {each.help}"] if heading else [])
        group += map(_listed, each.operations)
    lines = "\n\n".join("\n".join(group) for group in groups.values()).split("\n")
    return "\n".join([*_HEAD, *lines, "", *_TAIL])


def noun(name: str) -> str:
    """The help of a noun without a verb: its verbs."""
    found = registry.noun(name)
    lines = [f"usage: interlock {name} VERB [options]", "", found.help if found else "", ""]
    return "\n".join([*lines, *map(_listed, registry.verbs(name))])


def operation_help(operation: Operation) -> str:
    """The help of one operation."""
    own = fields(operation.request)
    places = [field for field in own if field.positional]
    before = [field for field in places if field.kind != "command"]
    usage = [
        operation.name,
        *map(placeholder, before),
        "[options]",
        *map(placeholder, places[len(before) :]),
    ]
    lines = [
        f"usage: interlock {' '.join(usage)}",
        "",
        operation.help[0].upper() + operation.help[1:] + ".",
        *(f"Also called: interlock {alias}" for alias in operation.aliases),
        "",
        *(_line(placeholder(field), meaning(field)) for field in places),
        *(_line(_option(field), _with_default(field)) for field in own if not field.positional),
    ]
    lines += [""] if own else []
    lines += ["every command:", *_common(own)]
    if operation.examples:
        lines += ["", *(f"example: {example}" for example in operation.examples)]
    if words := _words(operation):
        lines += ["", *words]
    return "\n".join(lines)


def suggestion(name: str) -> str:
    """The operations that come closest to these words, as a question; empty if none does."""
    from difflib import get_close_matches

    word, _, verb = name.partition(" ")
    word = _NOUNS.get(word, word)
    names = registry.names()
    if word in _HABITS:
        return _question([_HABITS[word]])
    if word in registry.words() and verb:
        return _question(_verbs(word, verb)) or f"see 'interlock {word} --help'"
    first = (*registry.commands(), *registry.words())
    if close := get_close_matches(word, [each for each in first if _alike(word, each)], 1, _CLOSE):
        return _question(_verbs(close[0], verb) or close)
    known_verbs = {known.rpartition(" ")[2] for known in names}
    verbs = get_close_matches(word, [each for each in known_verbs if _alike(word, each)], 1, _CLOSE)
    return _question([known for known in names if known.rpartition(" ")[2] in verbs])


def _alike(word: str, meant: str) -> bool:
    """Whether a command may be suggested: one that ends something must begin as the word does.

    A user who typed ``atop`` might follow the suggestion ``stop``.
    """
    return meant not in _ENDING or word[:1] == meant[:1]


def _verbs(noun: str, verb: str) -> list[str]:
    """The operation of this noun that a verb probably meant, if any."""
    from difflib import get_close_matches

    known = [each.name.rpartition(" ")[2] for each in registry.verbs(noun)] if noun else []
    meant = _SYNONYMS.get(verb, verb)
    # Whole names would be close by their noun alone.
    return [f"{noun} {found}" for found in get_close_matches(meant, known, 1, _CLOSE)]


def _question(names: Sequence[str]) -> str:
    choice = " or ".join(f"'{name}'" for name in names[:3])
    return f"did you mean {choice}?" if choice else ""


def _listed(operation: Operation) -> str:
    return f"  {operation.name:<{_NAMES}}{operation.help}"


def _common(own: Sequence[Field]) -> list[str]:
    short = {"quiet": "-q, --quiet", "verbose": "-v, --verbose", "help": "-h, --help"}
    taken = {field.name for field in own if not field.positional}
    every = [field for field in COMMON if field.name not in taken]
    return [_line(short.get(field.name, _option(field)), field.help) for field in every]


def _line(left: str, right: str) -> str:
    from textwrap import wrap

    lines = wrap(right, _RIGHT)
    if len(left) + 3 > _LEFT:
        lines.insert(0, "")
    first = f"  {left:<{_LEFT - 2}}{lines[0]}".rstrip()
    return "\n".join([first, *(" " * _LEFT + line for line in lines[1:])])


def _option(field: Field) -> str:
    value = _NAMED.get(field.name) or METAVARS.get(field.kind)
    return f"{field.option} {value}" if field.takes_value else field.option


def placeholder(field: Field) -> str:
    """A positional field in a line of usage."""
    if field.kind == "command":
        return "-- CMD..."
    name = f"{field.name.upper()}..." if field.repeats else field.name.upper()
    return name if field.required else f"[{name}]"


def meaning(field: Field) -> str:
    """What a field means, and how a shell may give it beside the word itself."""
    if field.kind in ("names", "things") and not field.positional:
        return f"{field.help}; repeatable"
    return field.help + _GIVEN.get(field.kind, "")


def _with_default(field: Field) -> str:
    if not field.takes_value or not field.default:
        return meaning(field)
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    if isinstance(field.default, tuple):
        shown = ",".join(field.default)
    unit = " s" if field.kind == "duration" else ""
    return f"{meaning(field)} ({shown}{unit})"


def _words(operation: Operation) -> Sequence[str]:
    """The outcomes, by exit status, as lines."""
    from textwrap import wrap

    statuses = exit_statuses(operation)
    return wrap(f"exit status: {statuses}", _WIDTH, subsequent_indent="  ") if statuses else []


def exit_statuses(operation: Operation) -> str:
    """What each exit status of a command means; empty if it has no outcomes."""
    own: dict[int, str] | None = getattr(operation.request, "exit_words", None)
    runs = any(field.kind == "command" for field in fields(operation.request))
    if own is None and runs:
        return "that of the program, 128+n for a signal; 1 if it was not started"
    by_program: str = getattr(operation.request, "exit_of_program", "")
    by_status: dict[int, list[str]] = {status: [word] for status, word in (own or {}).items()}
    for outcome in operation.outcomes:
        if issubclass(outcome, Outcome):
            tag = str(outcome.__struct_config__.tag)
            if tag == by_program:
                continue
            tags = by_status.setdefault(outcome.exit_status, [])
            tags += [tag] if tag not in tags else []
        elif not hasattr(outcome, "exit_status"):
            by_status.setdefault(0, [])
        for status, words in getattr(outcome, "exit_words", {}).items():
            by_status.setdefault(status, []).extend(words)
    if not by_status:
        return ""
    for status, word in _TROUBLE.items():
        by_status.setdefault(status, []).append(word)
    told = sorted(by_status.items())
    shown = "; ".join(f"{status} {', '.join(words) or 'done'}" for status, words in told)
    if by_program:
        return f"{shown}; {by_program}: that of the program, 128+n for a signal"
    return f"{shown}; 128+n signal n ended it" if runs else shown
