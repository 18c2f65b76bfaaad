"""Words to a typed request.

Options may stand anywhere before ``--`` (or before the program, for operations that run one), as
``--name value`` or ``--name=value``.  The operation is found first; then the same fields that
describe its request to every other face say which options it takes.  Where one of them has the
name of an option of every command (``record log --trace``), the operation's meaning wins;
``--agent`` is always the acting agent.
A list of names before another argument (``send ada bob 'it works'``) leaves the last word to it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from interlock import registry
from interlock.core import validate as checked
from interlock.core.safe_text import quoted
from interlock.errors import BadDuration, BadInput, TooLarge
from interlock.runtime.operation import GREATEST, Field, Operation, fields

if TYPE_CHECKING:
    from interlock.runtime.operation import Kind

_SHORT = {"-h": "help", "-q": "quiet", "-v": "verbose"}
_WHO = {"--agent": "INTERLOCK_AGENT", "--session": "INTERLOCK_SESSION"}
# Patterns as text: one that is not used need not be compiled.
_PAIR = r"\\u[dD][89abAB]..\\u[dD][c-fC-F].."
_HALF = r"\\u[dD][89a-fA-F].."
_WORDS = r"[A-Za-z][A-Za-z0-9_ ./-]{0,39}"
_LARGEST = 64 * 1024 * 1024


class Common(Struct, frozen=True, kw_only=True):
    """The values of the options of every command."""

    store: str | None = None
    agent: str | None = None
    session: str | None = None
    trace: str | None = None
    key: str | None = None
    no_retry: bool = False
    json: bool = False
    quiet: bool = False
    verbose: int = 0
    help: bool = False


# No annotations, as a request has them: to make and read these takes a third of a millisecond.
_DESCRIBED: dict[str, tuple[Kind, str]] = {
    "store": (
        "text",
        "a path, redis://HOST, etcd://HOST or git+ssh://HOST/PATH (or INTERLOCK_STORE)",
    ),
    "agent": ("name", "who you are (or INTERLOCK_AGENT)"),
    "session": ("name", "the session to act in (or INTERLOCK_SESSION)"),
    "trace": ("name", "a trace id for the entries in the record (or INTERLOCK_TRACE)"),
    "key": ("text", "a key that signs for you, in the record and in requests (or INTERLOCK_KEY)"),
    "no_retry": ("flag", "end a wait with an error when the store does not answer for 10 s"),
    "json": ("flag", "one JSON object on stdout, errors too"),
    "quiet": ("flag", "print only the result: a token, an id, an answer, a list"),
    "verbose": ("count", "log to stderr; twice for debug messages"),
    "help": ("flag", "this text"),
}


def _common(name: str, kind: Kind, text: str) -> Field:
    default = getattr(Common(), name)
    return Field(name, name, kind, text, positional=False, required=False, default=default)


COMMON = tuple(_common(name, *described) for name, described in _DESCRIBED.items())
"""The options of every command, as those of a request are described."""


class Parsed(Struct, frozen=True):
    """A command that can be carried out, or about which help was asked."""

    operation: Operation
    common: Common
    request: Any

    @property
    def joins(self) -> bool:
        """Whether it needs a session that lives while it runs, as a queued wait does."""
        return self.operation.joins is not None and self.operation.joins(self.request)


def split(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the operation, if there is one, and all other words.

    The name may be a bare noun, unknown or empty: the caller decides what that means.
    """
    name: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return " ".join(name), [*rest, word, *words]
        if word.startswith("-") and word != "-":
            rest.append(word)
            if words and _wants_value(word, words[0]):
                rest.append(words.pop(0))
            continue
        name.append(word)
        if len(name) > 1 or (word not in registry.words() and not _misspelt(word, words)):
            break
    return " ".join(name), [*rest, *words]


def _misspelt(word: str, words: Sequence[str]) -> bool:
    """Whether this is probably a misspelt noun: it is no operation, and a verb follows it."""
    if word in (*registry.commands(), "help") or not words:
        return False
    return any(name.endswith(f" {words[0]}") for name in registry.names())


def parse(operation: Operation, words: Sequence[str]) -> Parsed:
    """The typed request that these words ask for."""
    own = fields(operation.request)
    found = _Words(operation.name, (*COMMON, *own)).read(words)
    everyones = [name for name in map(_slot, COMMON) if name not in map(_slot, own)]
    common = Common(**{key: found.pop(key) for key in everyones if key in found})
    if common.help:
        return Parsed(operation, common, None)
    missing = [field for field in own if field.required and _slot(field) not in found]
    if missing:
        raise BadInput(f"{_placeholder(missing[0])} is missing; {usage(operation.name)}")
    _check_order(common, found.get("command", ()))
    given = {field.attribute: found[_slot(field)] for field in own if _slot(field) in found}
    return Parsed(operation, common, operation.request(**given))


def _check_order(common: Common, program: Sequence[str]) -> None:
    """Refuse an ``--agent`` or ``--session`` after the program's name if there is no other one."""
    if common.agent or common.session or any(map(os.environ.get, _WHO.values())):
        return
    for word in program:
        name = word.partition("=")[0]
        if name in _WHO:
            raise BadInput(f"options of interlock go before the program; move {name} there")


def usage(name: str) -> str:
    """Where to read more."""
    return f"see 'interlock {name} --help'"


class _Words:
    """One pass over the words of one command."""

    def __init__(self, name: str, known: Sequence[Field]) -> None:
        self._name = name
        self._options = {field.option: field for field in known if not field.positional}
        self._options |= {short: self._options["--" + long] for short, long in _SHORT.items()}
        self._places = [field for field in known if field.positional]
        self._last = self._places[-1] if self._places else None
        self._row: list[str] = []
        self._found: dict[str, Any] = {}

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """The fields that the words set."""
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                self._rest(left)
                break
            if word.startswith("-") and word != "-":
                self._option(word, left)
            elif self._places and self._places[0].kind == "command":
                self._found["command"] = (word, *left)
                break
            else:
                self._place(word)
        self._share_out()
        return self._found

    def _rest(self, words: list[str]) -> None:
        """The words after ``--``: a program, if the operation runs one, else plain arguments."""
        if self._places and self._places[-1].kind == "command":
            self._found["command"] = tuple(words)
            return
        for word in words:
            self._place(word)

    def _place(self, word: str) -> None:
        if not self._places:
            raise BadInput(f"{quoted(word)} is one word too many; {self._one_word(word)}")
        field = self._places[0]
        if field.repeats and len(self._places) > 1:
            self._row.append(word)
            return
        if not field.repeats:  # those that do take all that follow
            self._places.pop(0)
        self._set(field, word)

    def _one_word(self, word: str) -> str:
        """What to do about surplus words: a text without quotes is several words."""
        from interlock.faces.cli import hints

        more = hints.time_hint(word, self._options.values())
        if not more and self._name == "agent join":
            more = f"did you mean --agent {checked.quote(word)}?"
        more = more or usage(self._name)
        if self._last is None or self._last.kind not in ("body", "text", "json", "path"):
            return more
        return f"{_placeholder(self._last)} is one word, so quote it; {more}"

    def _share_out(self) -> None:
        """Split words between a list and the arguments after it, which get the last words."""
        if not self._row:
            return
        several, *others = self._places
        first = max(len(self._row) - len(others), 1)
        for word in self._row[:first]:
            self._set(several, word)
        for field, word in zip(others, self._row[first:], strict=False):
            self._set(field, word)

    def _option(self, word: str, left: list[str]) -> None:
        if word[:2] == "-v" and set(word[1:]) == {"v"}:
            self._found["verbose"] = self._found.get("verbose", 0) + len(word) - 1
            return
        key, equals, text = word.partition("=")
        field = self._options.get(key)
        if field is None:
            raise BadInput(f"there is no option {quoted(key)} here; {self._meant(key)}")
        if not field.takes_value:
            if equals:
                raise BadInput(f"{key} takes no value; drop what follows '='")
            more = self._found.get(field.name, 0) + 1
            self._found[field.name] = more if field.kind == "count" else True
            return
        if not equals:
            if not left or left[0].startswith("--"):
                like = GUARD_EXAMPLES.get(field.name) or EXAMPLES[field.kind]
                raise BadInput(f"{key} needs a value, such as {key} {like}")
            text = left.pop(0)
        self._set(field, text)

    def _set(self, field: Field, text: str) -> None:
        slot = _slot(field)
        if field.kind == "values":
            name, known = _pair(field.option, text)
            self._found[slot] = {**self._found.get(slot, {}), name: known}
            return
        if not field.repeats:
            self._found[slot] = value(field, text)
            return
        parts = _listed(text) if field.kind == "names" else (text,)
        before = self._found.get(slot, ())
        self._found[slot] = (*before, *(value(field, part) for part in parts))

    def _meant(self, key: str) -> str:
        from interlock.faces.cli import hints

        return hints.option_hint(self._name, key, self._options) or usage(self._name)


EXAMPLES = {
    "name": "ada",
    "names": "rust,gpu",
    "text": "TEXT",
    "int": "12",
    "duration": "30s",
    "json": "'{\"a\": 1}'",
    "things": "lock/merge",
    "grants": "lock/deploy=12",
    "body": "TEXT",
    "values": "branch='\"main\"'",
    "path": "PATH",
    "patterns": "'src/*.py'",
}

GUARD_EXAMPLES = {"guard": "calm,tested", "evidence": "tested"}
"""Values of options that name guards, which are lists of names as abilities are."""


def value(field: Field, text: str) -> object:
    """A word as the kind of field that it is for; names and durations are checked further in."""
    what = _placeholder(field)
    if field.kind == "int":
        if not text.isascii() or not text.removeprefix("-").isdigit():
            raise BadInput(f"{what} takes a whole number, not {quoted(text)}")
        number = int(text) if len(text) <= len(str(GREATEST)) else GREATEST + 1
        if not field.least <= number <= field.most:
            raise BadInput(f"{what} is out of bounds; give {field.least} to {field.most}")
        return number
    if field.forever:
        try:
            checked.wait_time(text)
        except BadDuration as error:
            raise BadDuration(f"{error}, or forever") from None
        return text
    if field.kind == "body" and text == "-":
        return _piped(what)
    return _json(what, text) if field.kind == "json" else text


def _listed(text: str) -> list[str]:
    r"""The names of a list: a comma separates them, and ``\,`` is a comma inside a name."""
    return [name.replace("\0", ",") for name in text.replace("\\,", "\0").split(",")]


def _piped(what: str) -> str:
    """All of stdin, unchanged."""
    try:
        return _read("-").decode()
    except UnicodeError:
        raise BadInput(f"{what} is not UTF-8; write it in UTF-8") from None
    except OSError as error:
        raise BadInput(f"{what}: stdin cannot be read ({error}); write the text itself") from None


def _pair(key: str, text: str) -> tuple[str, object]:
    """A field and the value that it is to have."""
    name, equals, said = text.partition("=")
    if not name or not equals:
        raise BadInput(f"{key} takes a field and JSON, as in {key} tries=3")
    try:
        return name, msgspec.json.decode(said.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadInput(
            f"{key}: {quoted(said)} is not JSON;"
            f""" a text has its own quotes, as in {key} '{quoted(name)[1:-1]}="main"'"""
        ) from None


def _json(what: str, text: str) -> object:
    """The JSON of an argument, of a file (``@FILE``), or of stdin (``-``)."""
    from_file = text == "-" or text[:1] == "@"
    try:
        return msgspec.json.decode(_read(text) if from_file else text.encode())
    except UnicodeError:
        raise BadInput(f"{what} is not UTF-8; write it in UTF-8") from None
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{what}: {quoted(text)} cannot be read ({reason}); name a file") from None
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "check its content" if from_file else _as_json(text)
        raise BadInput(f"{what} is not JSON ({_wrong(text, error)}); {hint}") from None


def _as_json(text: str) -> str:
    """How to write a text as JSON that is none."""
    if re.fullmatch(_WORDS, text):
        return f"""for a text write '"{text}"'"""
    if text[:1] in ("{", "[") and "'" in text:
        return "use double quotes inside and single ones around it, as in '{\"a\": 1}'"
    return "quote it for the shell, as in '{\"a\": 1}'"


def _wrong(text: str, error: Exception) -> str:
    """The error in a JSON text; half of a surrogate pair is named, as the decoder does not."""
    half = re.search(_HALF, re.sub(_PAIR, "", text))
    return f"{half[0]} is half of a character" if half else str(error)


def _read(text: str) -> bytes:
    if text == "-":
        if sys.stdin is None:
            raise OSError("stdin is closed")
        data = sys.stdin.buffer.read(_LARGEST + 1)
    else:
        data = _of_file(text[1:])
    if len(data) > _LARGEST:
        raise TooLarge(f"{quoted(text)} has more than {_LARGEST} bytes; keep it elsewhere")
    return data


def _of_file(path: str) -> bytes:
    """The content of a file, or of a pipe (``@<(...)`` of a shell)."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        os.set_blocking(handle, True)
        data = file.read(_LARGEST + 1)
        if not data and not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("no program writes into it")
        return data


def _placeholder(field: Field) -> str:
    return field.name.upper() if field.positional else field.option


def _slot(field: Field) -> str:
    """Where its value is kept: the argument KEY is another field than the option --key."""
    return field.name.upper() if field.positional and field.kind != "command" else field.name


def _wants_value(word: str, following: str) -> bool:
    """Whether the next word is the value of this option, which comes before the operation.

    An option that takes a value only in some operations has none if an operation follows.
    """
    if "=" in word or word in _SHORT or set(word[1:]) == {"v"}:
        return False
    for field in COMMON:
        if field.option == word:
            return field.takes_value
    every = [field for operation in registry.operations() for field in fields(operation.request)]
    kinds = {field.takes_value for field in every if field.option == word}
    begins = following in registry.commands() or following in registry.words()
    return True in kinds and (False not in kinds or not begins)
