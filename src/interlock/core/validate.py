"""Names, durations and sizes as people write them: checked once, at the edge.

A name is printable text of 1 to 200 bytes, so that ``pipeline:7``, ``src/[id]/page.tsx`` and
``größe`` can be locked.  It is put into NFC, since one word can be typed in two ways.  It has no
control, bidirectional or invisible characters and no space at its ends (two names that look the
same are the same), no leading ``-`` (it would read as an option), and no empty, ``.`` or ``..``
segment (it may become a path in a git store).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from types import NoneType
from typing import TypeVar

import msgspec

from interlock.core.keys import LETTERS_AND_DIGITS
from interlock.core.thing_names import KINDS
from interlock.errors import BadDuration, BadInput, BadName, TooLarge

NAME_LIMIT = 200
METADATA_LIMIT = 16 * 1024
REASON_LIMIT = 1024
TITLE_LIMIT = 200
"""The most characters of a title."""
TEXT_LIMIT = 64 * 1024
"""The most bytes of the text of a task."""
METADATA_DEPTH = 32
LONGEST = 366 * 24 * 3600.0
FOREVER = float("inf")
CAN_LIMIT = 64
CAPACITY = 1_000_000
"""The largest capacity of a semaphore."""
LARGEST = 2**53
"""The largest whole number that every JSON reader can read."""
MOST_SHOWN = 100_000
ALL_AGENTS = "all"
"""The receiver of mail to all agents; not a legal agent name."""
ALL_ABILITIES = "*"
"""The ability of an agent that can do everything; not a legal name."""
ABILITY_MARK = "?"
"""The prefix of an ability where an agent could be named."""
RESERVED = ("interlock", "system", "user", "reservations")
"""Names that no agent can have: mail from them would read as that of Interlock, or of its user."""
PERSON = "person:"
"""The beginning of the names of people, which no agent can have."""
RESERVED_PREFIXES = (PERSON, "pipeline:", "merge/")
"""Also those under which Interlock itself holds things and sends mail."""
CONFUSED = str.maketrans("1i|0", "lllo")
"""Letters and digits that are taken for each other."""

T = TypeVar("T")

_BY_PREFIX = {
    "ses_": "agent",
    "msg_": "message",
    "qry_": "query",
    "dec_": "decision",
    "req_": "request",
}
"""Kinds of things, by the prefix of their ids."""
_SHOWN = 40
_NUMBERS = (int, float)
_LEAVES: frozenset[type] = frozenset((str, int, bool, NoneType))
"""Types of values without elements that are always JSON."""
PLAIN = frozenset(LETTERS_AND_DIGITS + "._:@/-")
"""The characters of names that need no further check, which are nearly all of them."""
ONE_WORD = PLAIN | {"+", "="}
"""Characters of texts that a person and a shell read as one word."""
_ONE_SEGMENT = PLAIN - {"/"}
_RESERVED_PARTS = tuple(
    [each.rstrip(":/").translate(CONFUSED) for each in (*RESERVED, *RESERVED_PREFIXES)]
)
_NOT_FIRST = ("-", ".")
UNSEEN = (
    *(
        "\u034f\u034f",
        "\u115f\u1160",
        "\u17b4\u17b5",
        "\u180b\u180f",
        "\u2800\u2800",
        "\u3164\u3164",
    ),
    *("\ufe00\ufe0f", "\uffa0\uffa0", "\U0001d159\U0001d159", "\U000e0100\U000e01ef"),
)
"""Ranges of characters that Unicode calls letters, marks or symbols and that show nothing."""
NAME_PATTERN = r"^(?!-)[^\x00-\x20\x7f-\x9f](?:[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$"
"""Names, as far as a pattern of a JSON schema can say it: every legal name fits."""
# Patterns as text: one that is not used need not be compiled.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_NO_LINE = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
DURATION_PATTERN = r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+|[0-9]+(?:\.[0-9]+)?"
_PIECE = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?"
_SIZE = r"([0-9]{1,12})[ \t]*([kmgt]?)(?:i?b)?"
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_SPANS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60))
_IN_SECONDS = 120
"""Shorter spans are written in seconds."""


def require_text(text: str, what: str) -> str:
    """Return the value if it is text."""
    if not isinstance(text, str):
        raise BadName(f"the {what} must be text, not {type(text).__name__}")
    return text


def name(text: str, what: str = "name") -> str:
    """Return the text if it is a legal name, and say what is wrong with it otherwise."""
    if (
        type(text) is str
        and 0 < len(text) <= NAME_LIMIT
        and _ONE_SEGMENT.issuperset(text)
        and not text.startswith(_NOT_FIRST)
    ):
        return text  # nearly all names
    if not require_text(text, what):
        raise BadName(f"the {what} is empty; give 1 to {NAME_LIMIT} bytes")
    if not PLAIN.issuperset(text):
        text = _printable(text, what)
    if len(text) > NAME_LIMIT or (not text.isascii() and len(text.encode()) > NAME_LIMIT):
        raise BadName(f"the {what} has {len(text.encode())} bytes; {NAME_LIMIT} are allowed")
    if text[0] == "-":
        raise BadName(f"the {what} {text!r} starts with '-'; start it with a letter or a digit")
    if text == ALL_ABILITIES:
        raise BadName(f"the {what} is {text!r}, which stands for everything; give a name")
    bounded = f"/{text}/"
    if "//" in bounded or "/./" in bounded or "/../" in bounded:
        raise BadName(f"the {what} {text!r} has an empty, '.' or '..' segment; drop it")
    return text


def _printable(text: str, what: str) -> str:
    """Return the text in NFC if a person can see all of it."""
    from unicodedata import normalize  # few names need it

    text = normalize("NFC", text)
    for char in text:
        if not char.isprintable() or any(span[0] <= char <= span[1] for span in UNSEEN):
            raise BadName(
                f"the {what} {_shown(text)} has a character that cannot be seen"
                f" (U+{ord(char):04X}); drop it"
            )
    if text.strip(" ") != text:
        raise BadName(f"the {what} {_shown(text)} begins or ends with a space; drop it")
    return text


def prefix(text: str, check: Callable[[str], str] = name, what: str = "name") -> str:
    """Return the beginning of a name, which may end anywhere in it; an empty one begins all."""
    if not require_text(text, "prefix") or len(text.encode(errors="replace")) >= NAME_LIMIT:
        return text and check(text)
    try:
        return check(f"{text}x")[:-1]  # "build/" begins a name, and is none itself
    except BadInput:
        raise BadName(
            f"no {what} begins with {_shown(text)}; give the beginning of names, such as 'build/'"
        ) from None


def agent_name(text: str) -> str:
    """Return the name of an agent, which may come with its kind."""
    return name(require_text(text, "agent name").removeprefix("agent/"), "agent name")


def own_agent_name(text: str, *, proven: str = "") -> str:
    """Return the caller's own agent name; ``all`` is the address of all agents.

    A reserved name is legal if it is ``proven``: the one that the caller has shown to be its own.
    """
    text = free_agent_name(unmarked_name(text, "agent name"), proven=proven)
    if text == ALL_AGENTS:
        raise BadInput(
            f"no agent can be called {ALL_AGENTS!r}: it means all agents; choose another name"
        )
    return text


def free_agent_name(text: str, *, proven: str = "") -> str:
    """Return the name of an agent if it is not reserved, or is the ``proven`` one."""
    if text != proven and _is_reserved(text):
        raise BadName(
            f"the agent name {_shown(text)} is reserved: no agent is called {', '.join(RESERVED)}"
            f" or {'..., '.join(RESERVED_PREFIXES)}..., or like that; choose another name"
        )
    return text


def _is_reserved(agent: str) -> bool:
    folded = agent.casefold().translate(CONFUSED)
    if PLAIN.issuperset(agent) and not any(part in folded for part in _RESERVED_PARTS):
        return False  # nearly all names
    from interlock.core.lookalikes import is_reserved

    return is_reserved(agent)


def unmarked_name(text: str, what: str) -> str:
    """Return a name where ``?`` in front would ask for an ability."""
    if require_text(text, what).startswith(ABILITY_MARK):
        raise BadName(f"the {what} {_shown(text)} starts with {ABILITY_MARK!r}; drop it")
    return name(text, what)


def task_id(text: str) -> str:
    """Return the text if it is a legal id of a task, which goes without its kind."""
    text = name(text, "task id")
    if text.startswith("task/"):
        raise BadInput(f"a task goes by its id alone here; drop 'task/' from {text!r}")
    if text[0] == "+":
        raise BadName(f"the task id {text!r} starts with '+', which imports use; drop it")
    return text


def task_prefix(text: str) -> str:
    """Return the beginning of ids of tasks."""
    return prefix(text, task_id, "task id")


def duration(text: str | float, what: str = "duration") -> float:
    """Seconds from ``500ms``, ``30s``, ``5m``, ``1h30m``, ``1d`` or a plain number of seconds."""
    if type(text) in _NUMBERS and 0 <= text <= LONGEST:  # type: ignore[operator]  # no text is one
        return float(text)
    if isinstance(text, str):
        if not re.fullmatch(DURATION_PATTERN, text.strip()):
            raise BadDuration(f"the {what} {_shown(text)} is not like 500ms, 30s, 5m, 1h30m or 90")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PIECE, text))
    elif isinstance(text, bool) or not isinstance(text, int | float):
        raise BadDuration(f"the {what} must be seconds or text like 30s, not {text!r:.40}")
    else:
        seconds = _seconds(text)
    if not 0 <= seconds <= LONGEST:
        raise BadDuration(f"the {what} {str(text)[:_SHOWN]} is out of bounds; give 0 to 366 days")
    return seconds


def _seconds(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number may be larger than any other
        return FOREVER


def span(seconds: float | None) -> str:
    """A span of time in words: ``12 s``, ``15 min``, ``1 h 30 min``, ``2 d``.

    It is cut off, not rounded up, so that it never promises more than is left.
    """
    left = round(max(seconds or 0.0, 0.0))
    if left < _IN_SECONDS:
        return f"{left} s"
    for word, unit, part, smaller in _SPANS:
        if left >= unit:
            rest = left % unit // smaller
            return f"{left // unit} {word}" + (f" {rest} {part}" if rest else "")
    return f"{left // 60} min"


def moment(text: str | float | datetime, now: float, what: str = "time") -> float:
    """A moment: a duration before now, or a time like 2026-11-15T10:00.

    A time without a zone is a local one.
    """
    return _time(text, what, "a duration back from now", lambda span: now - span)


def future_moment(text: str | float | datetime, now: float, what: str = "time") -> float:
    """A future moment: a duration after now, or a time."""
    return _time(text, what, "a duration from now", lambda span: now + span)


def _time(
    text: str | float | datetime, what: str, like: str, counted: Callable[[float], float]
) -> float:
    if isinstance(text, datetime):
        return text.timestamp()
    try:
        return counted(duration(text, what))
    except BadDuration:
        if not isinstance(text, str):
            raise
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{what} is no moment: {_shown(text)};"
            f" give {like}, like 2h, or a time, like 2026-11-15T10:00"
        ) from None


def names(values: Iterable[str], what: str, most: int) -> tuple[str, ...]:
    """Return these names, each once and in their order, if they are legal and not too many."""
    if isinstance(values, str):
        raise BadInput(f"{what} takes a list of names; put brackets around {_shown(values)}")
    found = tuple(dict.fromkeys([name(value, what) for value in require_iterable(values, what)]))
    if len(found) > most:
        raise BadInput(f"{len(found)} names for {what}; {most} are allowed")
    return found


def require_iterable(values: Iterable[T], what: str) -> Iterable[T]:
    """Return the values if they are iterable."""
    if not isinstance(values, Iterable):
        raise BadInput(f"{what} takes a list of names, not {values!r:.40}")
    return values


def abilities(can: Iterable[str]) -> tuple[str, ...]:
    """The abilities of an agent: a few names, each once, or everything."""
    if isinstance(can, str):
        raise BadInput(f"'can' takes a list of names; put brackets around {_shown(can)}")
    wanted = tuple(require_iterable(can, "'can'"))
    return (ALL_ABILITIES,) if ALL_ABILITIES in wanted else names(wanted, "ability", CAN_LIMIT)


def payload(
    value: object, what: str, most: int, otherwise: str = "keep it elsewhere, and pass on where"
) -> bytes:
    """A value as JSON within the limit.

    Only values that JSON can express, so that a reader gets them as they were given (a tuple as a
    list).  A struct or a dataclass would come back as something else, so the caller converts it.
    """
    require_json(value, what)
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise _no_utf8(what) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the {what} is not JSON ({error}); give what JSON can say") from None
    if len(data) > most:
        raise TooLarge(f"the {what} has {len(data)} bytes; {most} are allowed: {otherwise}")
    return data


def require_json(value: object, what: str, levels: int = METADATA_DEPTH) -> None:
    """Check that a value is plain JSON and not nested too deeply.

    Recursion is bounded by the number of levels.  The types of all elements are checked at once:
    most values have only leaves.
    """
    if type(value) in _LEAVES:
        return
    if isinstance(value, dict):
        _all_text(value, what)
        value = value.values()
    elif not isinstance(value, list | tuple):
        _leaf(value, what)
        return
    if not levels:
        raise TooLarge(f"the {what} is nested too deeply; {METADATA_DEPTH} levels are allowed")
    if not _LEAVES.issuperset(map(type, value)):
        for part in value:
            if type(part) is not float or not _is_finite(part):
                require_json(part, what, levels - 1)


def _is_finite(number: float) -> bool:
    return number - number == 0  # the module math is one more import for each command


def _all_text(found: Collection[object], what: str) -> None:
    for key in found:
        if not isinstance(key, str):
            raise BadInput(
                f"the {what} is not JSON (the key {key!r:.40} is no text); make its keys text"
            )


def _leaf(value: object, what: str) -> None:
    if isinstance(value, float) and not _is_finite(value):
        raise BadInput(
            f"the {what} is not JSON ({value} is no number there); give another, or null"
        )
    if not isinstance(value, str | int | float):
        raise BadInput(
            f"the {what} is not JSON ({type(value).__name__} is nothing that JSON can say);"
            " give text, numbers, true, false, null, lists and objects"
        )


def flag(value: bool, what: str) -> bool:
    """Return the value if it is a bool; another truthy value would read back as something else."""
    if not isinstance(value, bool):
        raise BadInput(f"{what!r} is either true or false, not {value!r:.40}")
    return value


def text(value: str, what: str, most: int) -> str:
    """Return a short text if it is one."""
    if not isinstance(value, str):
        raise BadInput(f"the {what} must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _no_utf8(what) from None
    if size > most:
        raise TooLarge(f"the {what} has {size} bytes; {most} are allowed: shorten it")
    return value


def title(value: str) -> str:
    """Return the title of a task, which is one line, without spaces at its ends."""
    if value == "":  # most tasks that programs publish have none
        return value
    return one_line(value, "title", "put the rest into the text")


def one_line(value: str, what: str, otherwise: str) -> str:
    """Return a text of one line without spaces at its ends; ``otherwise`` is for a longer one."""
    said = _composed(text(value, what, 4 * TITLE_LIMIT).strip(" "))
    if not said and value:
        raise BadInput(f"the {what} has only spaces; say in a few words what it is about")
    if len(said) > TITLE_LIMIT:
        raise TooLarge(
            f"the {what} has {len(said)} characters; {TITLE_LIMIT} are allowed: {otherwise}"
        )
    if found := re.search(_NO_LINE, said):
        raise BadInput(
            f"the {what} has a line break or a control character (U+{ord(found[0]):04X});"
            f" it is one line: {otherwise}"
        )
    return said


def title_words(value: str) -> tuple[str, ...]:
    """The words to look for in titles, in either case."""
    words = title(value).casefold().split()
    if value and not words:
        raise BadInput("no word to look for; give some words of a title")
    return tuple(dict.fromkeys(words))


def _composed(said: str) -> str:
    """A text in NFC, since one word can be typed in two ways."""
    if said.isascii():
        return said
    from unicodedata import normalize

    return normalize("NFC", said)


def lines(value: str, what: str = "text", most: int = TEXT_LIMIT) -> str:
    """Return a text of several lines, which may have tabs; a line ends with a newline alone."""
    if value == "":
        return value
    try:
        said = text(value, what, most).replace("\r\n", "\n")
    except TooLarge:
        raise TooLarge(
            f"the {what} has more than {most} bytes; shorten it, or put it in a file and name that"
        ) from None
    if found := re.search(_CONTROL, said):
        line = said.count("\n", 0, found.start()) + 1
        raise BadInput(
            f"line {line} of the {what} has a control character (U+{ord(found[0]):04X}); drop it"
        )
    return said


def thing(text: str) -> str:
    """The name of a thing in the record: with its kind, or (``merge``, ``msg_...``) without."""
    text = name(text, "thing")
    kind, _, rest = text.partition("/")
    if kind in KINDS and rest:
        return text
    return f"{_BY_PREFIX.get(text[:4], 'lock')}/{text}"


def size(text: str | float, what: str = "size") -> int:
    """Bytes from ``512KB``, ``256MB``, ``1GB`` or a plain number; 1 KB is 1,024 bytes."""
    found = re.fullmatch(_SIZE, str(text).strip().lower())
    if not found or not int(found[1]):
        raise BadInput(f"the {what} {_shown(str(text))} is not like 512KB, 256MB or 1GB")
    return int(found[1]) << _SHIFTS[found[2]]


def digits(text: str) -> bool:
    """Whether a text is a whole number, of no more digits than any that counts here."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))


def token(value: int | None) -> int | None:
    """Return the value if it can be a token."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadInput(f"a token is a whole number, not {value!r:.40}")
    return value


def count(value: int, what: str, most: int) -> int:
    """Return the value if it counts something: a whole number from 1 on."""
    return integer(value, what, 1, most)


def integer(value: int, what: str, least: int, most: int) -> int:
    """Return the value if it is a whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"the {what} is a whole number, not {value!r:.40}")
    if not least <= value <= most:
        raise BadInput(f"the {what} {value!r:.40} is out of bounds; give {least} to {most}")
    return value


def after(value: int) -> int:
    """Return the value if it is a revision or a number to continue after."""
    return integer(value, "'after'", 0, LARGEST)


def limit(value: int) -> int:
    """Return the value as a limit for listings, cut to the largest one."""
    return min(integer(value, "limit", 1, LARGEST), MOST_SHOWN)


def wait_time(text: str | float) -> float:
    """The time to wait: a duration, or without limit."""
    return FOREVER if text in (FOREVER, "forever") else duration(text, "wait")


def ttl(text: str | float, least: float, what: str = "ttl") -> float:
    """A duration that something may live by: at least what the store can measure."""
    seconds = duration(text, what)
    if seconds < least:
        raise BadDuration(f"the {what} {text} is too short for this store; give {least:g}s or more")
    return seconds


def metadata(value: T) -> T:
    """Return the value if it is JSON within the limit."""
    if value is not None:
        payload(value, "metadata", METADATA_LIMIT)
    return value


def reason(value: str) -> str:
    """The reason of an operator; the record keeps it, so it must not be empty."""
    said = text(value, "reason", REASON_LIMIT).strip()
    if not said:
        raise BadInput("a reason is missing; say why, for the holder and for the record")
    return said


def quote(name: str) -> str:
    """A name as one word of a shell."""
    is_plain = name and ONE_WORD.issuperset(name)
    return name if is_plain else "'" + name.replace("'", "'\\''") + "'"


def command(text: str) -> str:
    """A suggested command for a sentence: in quotes, unless one of its words has quotes already.

    ``quote`` wrote the words of a caller or another agent in it.
    """
    return text if "'" in text else f"'{text}'"


def closest_names(name: str, known: Iterable[str], most: int = 2) -> list[str]:
    """The known names that are closest to a misspelled one, ignoring case."""
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in known}
    return [folded[each] for each in get_close_matches(name.casefold(), folded, most)]


def _no_utf8(what: str) -> BadInput:
    return BadInput(f"the {what} is not UTF-8; write it in UTF-8")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
