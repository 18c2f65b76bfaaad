"""Writes docs/reference/ from the code: ``make reference``; --check only reports stale pages.

commands.md  from the table of operations
python.md    from the public names of interlock and interlock.aio, their signatures and docstrings
errors.md    from errors.py, and every error message in the code
"""  # noqa: INP001 - a script

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec

import interlock
from interlock import (
    aio,
    client,
    client_blocks,
    client_messages,
    client_tasks,
    client_worker,
    errors,
    registry,
)
from interlock.core import outcomes as answers
from interlock.core.decision import Outcome, Refusal, Success
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, Story
from interlock.faces.cli.help import METAVARS, exit_statuses, meaning, placeholder
from interlock.faces.cli.parse import COMMON
from interlock.faces.schema import Schema, schema
from interlock.nouns.agents import log_rules, session_rules
from interlock.nouns.agents.calls import AgentCalls
from interlock.nouns.agents.report_service import StatusReporter
from interlock.nouns.grants.lock import LockView
from interlock.nouns.grants.semaphore import SemaphoreView, Slots
from interlock.nouns.messages import message
from interlock.nouns.messages.decision import DecisionView, OptionView
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.record.noun import Compared, RecordFinding, Verified
from interlock.nouns.tasks import task
from interlock.nouns.tasks.task_view import ListedTask, TaskList, TaskView
from interlock.runtime.calls import Calls
from interlock.runtime.health import Health, Problem
from interlock.runtime.housekeeping import Maintained
from interlock.runtime.observe import Counters, Observed
from interlock.runtime.operation import Field, Operation, fields
from interlock.runtime.text import lasting
from interlock.runtime.why import Queued, Why

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "interlock"
MADE = "<!-- Made by `make reference`; edit the code instead. -->\n"
WIDTH = 100
RETURNED: tuple[type, ...] = (
    LockView, SemaphoreView, Slots, Queued, task.TaskEvent, TaskList, ListedTask, TaskView,
    message.Received, message.File, message.SubscriptionView, message.Inbox, DecisionView,
    OptionView, session_rules.Agent, log_rules.LogLine, RecordLine, Story, HistoryEvent, Observed,
    Counters, Verified, RecordFinding, Compared, Why, Health, Problem, Maintained,
)  # fmt: skip
"""What calls return that is no outcome, and what is inside of it; pages add what else they name."""
NAMED: dict[type, None] = dict.fromkeys(RETURNED)
"""These, and what the calls on the page return."""
PUBLIC = [getattr(interlock, name) for name in (*interlock.__all__, *interlock.outcomes.__all__)]
INSIDE = (
    "conclude", "conclude_failed", "end_by", "end_now", "end_with", "end_with_next",
    "ended_together", "entering", "finish", "follow", "forgotten", "give_up", "go_on", "keep",
    "leave", "let_go", "nudge", "of_worker", "passed_over", "put_off", "put_off_end", "puts_off",
    "run", "settle", "take_up", "wait", "waited", "waits",
)  # fmt: skip
"""Names that only the command line and the clients use."""
OUTSIDE = (
    (client_messages.Messages, "wait"),
    (AgentCalls, "leave"),
    (RecordCalls, "follow"),
)
"""Exceptions from INSIDE: names that users call."""
_NEEDS = {
    "nothing": "",
    "store": "Needs a store.",
    "agent": "Needs a store, and `--agent` or a session.",
    "session": "Needs a store, and a session.",
}


def first(text: str | None) -> str:
    """The first paragraph of a docstring, as one line of Markdown."""
    paragraph = inspect.cleandoc(text or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def whole(text: str | None) -> str:
    """A docstring as Markdown: one sentence per line."""
    paragraphs = inspect.cleandoc(text or "").replace("``", "`").split("\n\n")
    joined = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return "\n\n".join(re.sub(r"(?<=[.?!]) (?=[A-Z`])", "\n", paragraph) for paragraph in joined)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; nothing without rows."""
    body = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    if not body:
        return ""
    titles = list(head)
    lines = [" | ".join(titles), "|".join(["---"] * len(titles)), *body]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines) + "\n"


def members(outcome: type) -> str:
    """The fields of an outcome, as JSON and Python name them."""
    if not issubclass(outcome, msgspec.Struct):
        return ""
    names = zip(outcome.__struct_fields__, outcome.__struct_encode_fields__, strict=True)
    return ", ".join(f"`{n}`" if n == json else f"`{n}` (JSON `{json}`)" for n, json in names)


def tag(outcome: type) -> str:
    """The word for an outcome in its JSON field "outcome", if it has one."""
    config = getattr(outcome, "__struct_config__", None)
    return str(config.tag) if config is not None and config.tag else ""


def named(outcome: type[Outcome]) -> bool:
    """Whether an outcome has a tag of its own; without one it is a base class of others."""
    return tag(outcome) != outcome.__name__


def forms(outcome: type[Outcome]) -> list[type[Outcome]]:
    """All outcomes with a tag that are subclasses of an outcome, by their names."""
    kinds = [value for value in PUBLIC if isinstance(value, type) and issubclass(value, outcome)]
    return [kind for kind in kinds if named(kind)]


def above(outcome: type[Outcome]) -> str:
    """The outcomes of all nouns that this outcome is a subclass of."""
    homes = [home for home in outcome.__mro__[1:] if home.__module__ == answers.__name__]
    return ", ".join(f"`{home.__name__}`" for home in homes)


def shared(kinds: Iterable[type]) -> str:
    """The fields that all of these have."""
    first, *others = [kind.__struct_encode_fields__ for kind in kinds]  # type: ignore[attr-defined]
    return ", ".join(f"`{name}`" for name in first if all(name in other for other in others))


def rest(kinds: Sequence[type]) -> Iterator[str]:
    """The fields of each of these that not all have."""
    known = shared(kinds).split(", ")
    for kind in kinds:
        yield ", ".join(name for name in members(kind).split(", ") if name not in known)


def words() -> dict[str, list[type[Outcome]]]:
    """The outcomes that commands answer with, by their words."""
    found: dict[str, list[type[Outcome]]] = {}
    for operation in registry.operations():
        for outcome in operation.outcomes:
            if issubclass(outcome, Outcome) and outcome not in found.setdefault(tag(outcome), []):
                found[tag(outcome)].append(outcome)
    return found


def commands() -> Iterator[str]:
    """The page of all commands."""
    yield "# Commands\n"
    yield MADE
    yield "`interlock COMMAND --help` prints this for one command, `interlock --all` lists them.\n"
    yield "## Every command\n"
    yield table(("option", "meaning"), ((_option(f), f.help) for f in COMMON))
    yield (
        "A duration is `500ms`, `30s`, `5m`, `1h30m`, `1d` or a plain number of seconds.\n"
        "A name is printable text of 1 to 200 bytes in UTF-8, such as `deploy`, `worker:3`, "
        "`src/[id]/page.tsx` or `größe`; it is put into NFC.\n"
        "It has no control, bidirectional or invisible characters, no `-` at its beginning, "
        "no space at its ends, and no empty, `.` or `..` segment.\n"
        "An id (`msg_...`, `qry_...`, `dec_...`, `ses_...`) may be shortened to a unique prefix "
        "with at least six characters after the `_`.\n"
        "A comma separates the names of a list; write `\\,` for a comma inside a name.\n"
    )
    yield "### JSON\n"
    yield (
        "With `--json` the answer is one object on stdout, a stream has one on each line, and an "
        'error is one, too: `{"error": CODE, "message": TEXT}`.\n'
        "`interlock schema COMMAND` prints the JSON schema of what a command prints, "
        "and `interlock schema --json` those of all commands.\n\n"
        "- Every field that is named below is always there; an empty one is "
        '`""`, `[]`, `0`, `false` or `null`.\n'
        "- The answer of a command that can change something has `outcome`: one word.\n"
        "- A list has its own name, and a `count` beside it.\n"
        "- A duration is in seconds, to the millisecond.\n"
        "- A time is in seconds since 1970; a second field, whose name ends with `_iso`, has it as "
        "ISO 8601 in UTC: `since` and `since_iso`.\n"
        "- Characters that do not print (control characters, bidirectional marks, line "
        "separators) are escaped: a parser decodes them, a terminal does not.\n"
    )
    yield "### Exit status\n"
    yield table(
        ("status", "meaning"),
        (
            ("0", "done; also for a repeat that changes nothing (`extended`, `already_free`)"),
            ("1", "refused: another agent has it, or it is no longer yours"),
            ("2", "bad input"),
            ("3", "not allowed"),
            ("4", "trouble with the store"),
            ("128+n", "ended by signal n"),
        ),
    )
    yield "### Outcomes of several commands\n"
    yield (
        "The field `outcome` of an answer is one word.\n"
        "If several commands have the same outcome, a script can rely on the fields that all have; "
        "each also names its thing by its noun, such as `lock`, `semaphore` or `task`.\n"
    )
    yield table(
        ("outcome", "all have", "some have"),
        (
            (f"`{word}`", shared(kinds), "; ".join(dict.fromkeys(filter(None, rest(kinds)))))
            for word, kinds in sorted(words().items())
            if len(kinds) > 1
        ),
    )
    shown: set[str] = set()
    for noun in registry.nouns():
        heading = noun.group or noun.operations[0].name.rpartition(" ")[0] or "commands"
        if heading not in shown:
            shown.add(heading)
            yield f"## {heading}\n"
            if noun.help:
                yield f"{noun.help[0].upper()}{noun.help[1:]}.\n"
        for operation in noun.operations:
            yield from command(operation)


def command(operation: Operation) -> Iterator[str]:
    """One command."""
    own = fields(operation.request)
    usage = " ".join(placeholder(field) for field in own if field.positional)
    yield f"### interlock {operation.name}\n"
    yield f"{operation.help[0].upper()}{operation.help[1:]}.\n{_NEEDS[operation.needs]}".rstrip()
    for alias in operation.aliases:
        yield f"Also called `interlock {alias}`, as in Python."
    line = f"interlock {operation.name} [options] {usage}".rstrip()
    yield "\n" + "\n".join(("```text", line, *operation.examples, "```")) + "\n"
    yield table(
        ("option", "meaning", "default"),
        ((_option(field), meaning(field), _default(field)) for field in own),
    )
    yield table(("outcome", "exit status", "meaning", "JSON"), _outcomes(operation))
    if any(field.kind == "command" for field in own):
        yield f"Exit status: {exit_statuses(operation)}.\n"


def _outcomes(operation: Operation) -> Iterator[tuple[str, str, str, str]]:
    """Answers, lines of streams, and the objects inside of these."""
    objects = schema(operation.name)["$defs"]
    for outcome in operation.outcomes:
        if outcome is dict:
            continue
        status = str(outcome.exit_status) if issubclass(outcome, Outcome) else "0"
        if isinstance(getattr(outcome, "exit_status", None), property):
            status = getattr(outcome, "exit_statuses", "0 or 4")
        if tag(outcome) == getattr(operation.request, "exit_of_program", None):
            status = "that of the program"
        word = f"`{tag(outcome)}`" if tag(outcome) else ""
        yield word, status, first(outcome.__doc__), typed(objects.pop(outcome.__name__))
    for line in operation.lines:
        told = f"A line of a stream: {first(line.__doc__)}"
        yield "", "", told, typed(objects.pop(line.__name__))
    for name, inside in objects.items():
        if name != "Error":
            yield "", "", f"Inside: `{name}`.", typed(inside)


def typed(made: Schema) -> str:
    """The fields of an object, with their types as JSON has them."""
    parts = made["properties"].items()
    return ", ".join(f"`{name}` {json_type(part)}".rstrip() for name, part in parts)


def json_type(made: Schema) -> str:  # noqa: PLR0911 - one for each word of a schema
    """The type of a field, in words; nothing where any is possible."""
    match made:
        case {"$ref": ref}:
            return f"`{ref.removeprefix('#/$defs/')}`"
        case {"const": word}:
            return f"`{msgspec.json.encode(word).decode()}`"
        case {"enum": some}:
            return " or ".join(f"`{msgspec.json.encode(word).decode()}`" for word in some)
        case {"anyOf": some}:
            return " or ".join(map(json_type, some))
        case {"type": "array", "items": item}:
            return f"array of {json_type(item)}"
        case {"type": "object", "additionalProperties": item}:
            return f"object of {json_type(item) or 'anything'}"
        case {"type": list() as several}:
            return " or ".join(several)
        case {"type": one}:
            return str(one)
        case _:
            return ""


def _option(field: Field) -> str:
    if field.positional:
        return f"`{placeholder(field)}`"
    short = {"verbose": "-v, ", "help": "-h, "}.get(field.name, "")
    value = f" {METAVARS[field.kind]}" if field.takes_value else ""
    return f"`{short}{field.option}{value}`"


def _default(field: Field) -> str:
    if not field.default:
        return "0" if field.kind == "duration" and field.default is not None else ""
    if field.kind == "duration":
        return lasting(float(field.default))
    return "" if field.kind == "flag" else str(field.default)


def python() -> Iterator[str]:
    """The page of all public names."""
    yield "# Python\n"
    yield MADE
    yield (
        "`interlock.connect` returns a blocking client, `interlock.aio.connect` one for asyncio.\n"
        "Both have the same names; in `aio` every call that uses the store is awaited.\n"
        "A call that may be refused returns its outcome; a `with` block cannot return one, so it "
        "raises.\n"
    )
    yield "## interlock.connect\n"
    yield signature("interlock.connect", client.connect)
    yield whole(client.connect.__doc__) + "\n"
    for kind, made in (
        ("What `connect` returns; the nouns in it are below.", client.Fleet),
        *(
            (f"`fleet.{name}`", registry.load(noun.blocking or noun.calls))
            for name, noun in registry.attributes()
        ),
        ("`fleet.pulse`: reports the status of the agent.", StatusReporter),
        (
            "`fleet.record.follow()`, `fleet.observe()`, `fleet.tasks.subscribe()`",
            client_blocks.Stream,
        ),
        ("`with fleet.lock(...) as held`: a lock, slots, or several things.", client_blocks.Held),
        ("`for claim in fleet.tasks.work()`: a claimed task.", client_tasks.Claim),
        ("`fleet.tasks.work()`: one task after the other.", client_worker.Worker),
        ("`fleet.messages.recv()`: messages as they come.", client_messages.Receiver),
        ("`for message in fleet.messages.recv()`: a received one.", client_messages.Message),
        ("`message.file()`: a file that was shared.", client_messages.SharedFile),
    ):
        yield f"## {made.__name__}\n"
        yield f"{kind}: {first(made.__doc__)}\n" if kind.endswith("`") else f"{kind}\n"
        yield from methods(made)
    yield "## interlock.aio.connect\n"
    yield whole(aio.__doc__).partition("\n\n")[0] + "\n"
    yield signature("await interlock.aio.connect", aio.connect)
    yield "Its `lock`, `slots` and `together` are for `async with`, and have no `interrupt`:"
    yield whole(aio.Fleet.lock.__doc__).rpartition("\n\n")[2] + "\n"
    yield "## interlock.trace\n"
    yield signature("with interlock.trace", interlock.trace).replace("Iterator[str]", "str")
    yield whole(interlock.trace.__doc__) + "\n"
    yield "## Outcomes\n"
    yield (
        "Frozen values, made for `match`; each is a name of `interlock`, and no two share one.\n"
        "Outcomes with one meaning for several nouns have a common base class: "
        "`case interlock.Full():` matches slots and an inbox, "
        "`case interlock.InboxFull():` only an inbox.\n"
        "Their fields are matched by keyword, as they have no order: "
        "`case interlock.Claimed(task=t, token=n):`.\n"
        "In a condition each `Success` is true and each `Refusal` is false: "
        '`if granted := fleet.locks.acquire("deploy"):`.\n'
    )
    names = [value for value in PUBLIC if isinstance(value, type)]
    outcomes = [value for value in names if issubclass(value, Outcome)]
    yield table(
        ("name", "meaning", "all have", "those below it"),
        (
            (
                f"`{value.__name__}`",
                first(value.__doc__),
                shared(forms(value)),
                ", ".join(f"`{kind.__name__}`" for kind in forms(value)),
            )
            for value in outcomes
            if not named(value) and value not in (Success, Refusal)
        ),
    )
    yield (
        "Each of these has a word, which is the field `outcome` of its JSON and stands in the "
        "record.\n"
        "A few are in the record only, such as `waiting`: no call returns them.\n"
    )
    yield table(
        ("name", "word", "in a condition", "below", "meaning", "fields"),
        (
            (
                f"`{v.__name__}`",
                f"`{tag(v)}`",
                str(issubclass(v, Success)),
                above(v),
                first(v.__doc__),
                members(v),
            )
            for v in outcomes
            if named(v)
        ),
    )
    yield "## Other values\n"
    yield (
        "What the other calls return.\n"
        "Annotations import them from where they are made: "
        f"`from {LockView.__module__} import {LockView.__name__}`.\n"
    )
    yield table(
        ("name", "meaning", "fields", "where it is made"),
        (
            (
                f"`{value.__name__}`",
                first(value.__doc__),
                members(value),
                f"`{value.__module__}.{value.__name__}`",
            )
            for value in NAMED
        ),
    )
    yield "## Errors\n"
    yield "All are below `InterlockError`; [errors](errors.md) has the whole tree.\n"
    yield table(
        ("name", "meaning"),
        (
            (f"`{value.__name__}`", first(value.__doc__))
            for value in names
            if issubclass(value, errors.InterlockError)
        ),
    )


def methods(made: type) -> Iterator[str]:
    """The methods and properties of a class, its own before those that it inherits."""
    shown: set[str] = set()
    for home in getattr(made, "_undriven", made).__mro__:
        own = home.__module__.startswith("interlock.client") or home.__name__.endswith("Handle")
        marked = issubclass(home, Calls) and not own
        named: dict[int, list[str]] = {}
        for name, member in vars(home).items():
            named.setdefault(id(member), []).append(name)
        for name, member in vars(home).items():
            known, *others = named[id(member)]
            if callable(member) and name != known:
                continue
            inside = name in INSIDE and (made, name) not in OUTSIDE
            inside |= name in shown or (marked and not hasattr(member, "mark"))
            if name.startswith("_") or inside or home.__module__ == "typing":
                continue
            shown.add(name)
            if isinstance(member, property):
                yield f"### .{name}\n\n{whole(member.__doc__)}\n"
            elif callable(member):
                yield f"### .{name}\n\n{signature('.' + name, member)}\n{whole(member.__doc__)}\n"
                if others:
                    also = ", ".join(f"`.{other}`" for other in others)
                    yield f"Also called {also}, as the command is.\n"


def signature(name: str, called: Callable[..., object]) -> str:
    """How it is called, as a block of its own."""
    found = inspect.signature(called)
    own = [p for p in found.parameters.values() if p.name != "self"]
    shown = [_parameter(p, called.__module__) for p in own]
    returned = _type(found.return_annotation, called.__module__)
    for word in re.findall(r"[\w.]+", str(found.return_annotation)):
        value = _found(word, called.__module__)
        for kind in get_args(value) or (value,):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in PUBLIC:
                NAMED[kind] = None
    star = next((place for place, p in enumerate(own) if p.kind == p.KEYWORD_ONLY), None)
    if star is not None and not any(p.kind == p.VAR_POSITIONAL for p in own):
        shown.insert(star, "*")
    line = f"{name}({', '.join(shown)}) -> {returned}"
    if len(line) > WIDTH:
        inside = "".join(f"    {part},\n" for part in shown)
        line = f"{name}(\n{inside}) -> {returned}"
    return f"```text\n{line}\n```\n"


def _parameter(parameter: inspect.Parameter, module: str) -> str:
    star = "*" if parameter.kind == parameter.VAR_POSITIONAL else ""
    text = f"{star}{parameter.name}: {_type(parameter.annotation, module)}"
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {parameter.default!r}"


def _type(annotation: object, module: str) -> str:
    """An annotation as a user reads it: what a call returns, not how it is driven."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "None")
    text = re.sub(r"\b(?:\w+\.)*\w*Outcome\b", lambda found: _members(found[0], module), text)
    text = re.sub(r"\b(?!logging|os\b)[a-z_]+\.(?=[A-Z])", "", text)  # without its module
    text = re.sub(r"^(?:Op|Awaitable)\[(.*)\]$", r"\1", text)
    return re.sub(r"\bMoment\b", "str | float | datetime", text)


def _members(name: str, module: str) -> str:
    """The outcomes of a union by their names, instead of by that of the union."""
    found = _found(name, module)
    kinds = get_args(found) or (found,)
    if not all(isinstance(kind, type) for kind in kinds):
        raise LookupError(f"{module} has an annotation {name}, and no outcomes of that name")
    return " | ".join(kind.__name__ for kind in kinds)


def _found(name: str, module: str) -> object:
    """What a name in an annotation of a module is, if it is anything."""
    first, *others = name.split(".")
    found = vars(import_module(module)).get(first)
    if found is None and first in (imported := _imported(module)):
        home, own = imported[first]
        found = getattr(import_module(home), own, None) or sys.modules.get(f"{home}.{own}")
    for each in others:
        found = getattr(found, each, None)
    return found


@cache
def _imported(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports, also those for type checkers alone."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    return {
        each.asname or each.name: (node.module, each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }


def tree() -> Iterator[type[errors.InterlockError]]:
    """All errors, in the order of errors.py."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.InterlockError):
            yield value


def error_page() -> Iterator[str]:
    """The page of all errors."""
    drawn = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    said = messages()
    yield "# Errors\n"
    yield MADE
    yield (
        "An error means that something is broken; a lock that another agent holds is an outcome.\n"
        "A message is one line: what is wrong, then what to do.\n"
        "On the command line it goes to stderr; with `--json` it is "
        '`{"error": CODE, "message": TEXT}` on stdout.\n'
        "[Find out what is wrong](../how-to/find-out-what-is-wrong.md) says more about the most "
        "common ones.\n"
    )
    yield "```text\n" + inspect.cleandoc(drawn[1]) + "\n```\n"
    yield table(
        ("error", "code", "exit status", "HTTP status", "meaning"),
        (
            (
                f"`{error.__name__}`",
                f"`{error.code}`",
                str(error.exit_status),
                str(error.http_status),
                first(error.__doc__),
            )
            for error in tree()
        ),
    )
    yield "## Every message\n"
    yield "A word in braces is replaced by a value.\n"
    for error in tree():
        if lines := said.get(error.__name__):
            yield f"### {error.code}\n"
            yield "\n".join(f"- {line}" for line in sorted(lines)) + "\n"


def messages() -> dict[str, set[str]]:
    """The messages of each error, if the code has them in one place."""
    known = {error.__name__ for error in tree()}
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in ("demo", "bench", "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in known and node.args and (text := _text(node.args[0])):
                found.setdefault(node.func.id, set()).add(text)
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(_part(part) for part in node.values)


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        value = part.value
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(("quote", "quoted")):
            value = value.args[0]
        names = [n for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)]
        last = names[0] if names else None
        word = last.attr if isinstance(last, ast.Attribute) else getattr(last, "id", "value")
        return "{" + word.strip("_").lower() + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


PAGES = {"commands.md": commands, "python.md": python, "errors.md": error_page}


def main() -> int:
    """Write the pages, or say which of them are stale."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, make in PAGES.items():
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(make())).rstrip("\n") + "\n"
        path = PLACE / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            PLACE.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and stale:
        sys.stderr.write(f"stale in docs/reference: {', '.join(stale)}; run 'make reference'\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
