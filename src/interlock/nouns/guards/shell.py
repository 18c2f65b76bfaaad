r"""Conditions as words of a shell: ``lock-free=deploy``, ``!file-exists=STOP``.

    word   = "!"* KIND ["=" MAIN] ("," FIELD ["=" VALUE])*
    KIND   = a kind of leaf with dashes, such as lock-free, tasks-complete, command

The value behind the first ``=`` is that of the main field (``leaf_kinds.py``); others go by name.
A field without a value is a flag: ``tasks-complete=build.,none-ok``.

``\,`` is a comma that belongs to a value.  Backslashes elsewhere are plain, so that a pattern can
be written as it is; only a run of them before a comma is read in pairs: ``\\,`` is a backslash, and
then the next field.

A command takes the rest of the word, commas included: ``command=make test``.  Its other fields come
first: ``command,timeout=30s,run=make test``.  ``command-fails`` expects any failure.

``text`` is the inverse: the word that means a leaf.  A combination has no word; its text is for
people: ``any(lock-free=a, !all(file-exists=b, branch-clean=c))``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import KINDS, LeafKind, defaults_of, fields_of, meant

_FAILS = "command-fails"
_SEPARATOR = r"(\\*),"
_FLAGS = ("none_ok", "shell")
_LONG = 160
"""A longer text of a combination is shortened."""


def parse(word: str) -> c.Condition:
    """The condition of a word."""
    if not isinstance(word, str):
        raise BadInput(f"a condition is a word such as lock-free=deploy, not {word!r:.40}")
    plain = word.lstrip("!")
    negations = len(word) - len(plain)
    name = re.split("[=,]", plain, maxsplit=1)[0]
    if negations >= c.DEPTH:
        raise BadInput(f"{quoted(word)} has too many '!'; one is enough")
    leaf = _leaf(word, name, plain[len(name) :])
    for _ in range(negations):
        leaf = c.Not(of=leaf)
    return leaf


def text(condition: c.Condition) -> str:
    """The word that means a leaf; for a combination a text for people."""
    return _text(condition, 1)


def _text(condition: c.Condition, depth: int) -> str:
    if isinstance(condition, c.AllOf | c.AnyOf):
        if depth >= c.DEPTH:
            return "..."
        return group_text(condition, [_text(each, depth + 1) for each in condition.of])
    if isinstance(condition, c.Not):
        return "!..." if depth >= c.DEPTH else "!" + _text(condition.of, depth + 1)
    return leaf_text(condition)


def group_text(group: c.AllOf | c.AnyOf, words: list[str]) -> str:
    """The text of a group that has these; a long one names the first few."""
    name = "all" if isinstance(group, c.AllOf) else "any"
    if sum(map(len, words)) <= _LONG:
        return f"{name}({', '.join(words)})"
    size, shown = len(words[0]), 1
    while size <= _LONG and shown < len(words):
        size += len(words[shown])
        shown += 1
    more = [f"... {len(words) - shown} more"] if shown < len(words) else []
    return f"{name}({', '.join([*words[:shown], *more])})"


def leaf_text(leaf: c.BaseCondition) -> str:
    """The word that means a leaf."""
    if isinstance(leaf, c.Command):
        return _command_text(dict(fields_of(leaf)))
    word, fields = _FORMS[type(leaf)]
    if len(fields) == 1:  # it is required, and many leaves have no other
        only: str = fields[0][1](leaf)
        return f"{word}={_escaped(only) if ',' in only else only}"
    for name, value_of, default in fields:
        value = value_of(leaf)
        if value == default:
            continue
        said = value if isinstance(value, str) else "" if value is True else str(value)
        if name[0] == ",":
            word = _ended(word)
        word += name + (_escaped(said) if "," in said else said)
    return word


def _command_text(fields: dict[str, Any]) -> str:
    import shlex

    run, shell = fields.pop("run"), fields.pop("shell", False)
    name = _FAILS if fields.get("expect") == "failure" else "command"
    if name == _FAILS:
        del fields["expect"]
    if "timeout" in fields:
        fields["timeout"] = f"{fields['timeout']:f}".rstrip("0").rstrip(".") + "s"
    if "env" in fields:
        fields["env"] = " ".join(fields["env"])
    others = ",".join(["shell"] * shell + [f"{key}={value}" for key, value in fields.items()])
    line = run[0] if shell else shlex.join(run)
    return f"{name},{others},run={line}" if others else f"{name}={line}"


def _escaped(value: str) -> str:
    return re.sub(_SEPARATOR, lambda run: run[1] * 2 + "\\,", value)


def _ended(word: str) -> str:
    """The word with each backslash at its end doubled, so that none escapes the next comma."""
    return word + "\\" * (len(word) - len(word.rstrip("\\"))) if word[-1] == "\\" else word


# Reading a word


def _leaf(word: str, name: str, rest: str) -> c.Condition:
    fails = name in (_FAILS, "command_fails")
    kind = KINDS.get("command" if fails else name.replace("-", "_"))
    if kind is None:
        raise _unknown(word, name)
    try:
        values = _values(kind, rest, {"expect": "failure"} if fails else {})
        return kind.make(values)
    except BadInput as error:
        raise type(error)(f"{quoted(word)}: {error}") from None


def _values(kind: LeafKind, rest: str, given: dict[str, object]) -> dict[str, object]:
    """The legal fields of a word."""
    for field, value in _pieces(kind, rest):
        if field in given:
            raise BadInput(f"it says {field!r} twice; keep one of them")
        given[field] = kind.field(field, value)
    if any(field not in given for field in kind.required):
        raise BadInput(f"something is missing; write it like {_LIKE[kind.name]}")
    return given


def _unknown(word: str, name: str) -> BadInput:
    if not name:
        return BadInput(f"{quoted(word)} is no condition; write one such as lock-free=deploy")
    known = meant(name, [*KINDS, "command_fails"]).replace("_", "-")
    if name == word and not known.startswith("did you mean"):
        known = (
            "write one such as lock-free=deploy, and quote one with spaces;"
            " a guard of the store is --name NAME, a file is --file FILE"
        )
    return BadInput(f"{quoted(word)}: there is no condition {quoted(name)}; {known}")


def _pieces(kind: LeafKind, rest: str) -> Iterator[tuple[str, object]]:
    """The fields of a word, each with its value."""
    first = True
    while rest:
        name, mark = (kind.main, "=") if first and rest[0] == "=" else ("", "")
        first, rest = False, rest[1:]
        if kind.name == "command" and (name == kind.main or rest.startswith("run=")):
            yield kind.main, rest if name else rest.removeprefix("run=")
            return
        piece, rest = _piece(rest)
        if not name:
            said, mark, piece = piece.partition("=")
            name = said.strip().replace("-", "_")
        yield name, _value(name, piece if mark else None)


def _piece(rest: str) -> tuple[str, str]:
    """The text up to the next comma that separates, and the rest from that comma on."""
    found = ""
    place = 0
    for comma in re.finditer(_SEPARATOR, rest):
        backslashes = len(comma[1])
        found += rest[place : comma.start()] + "\\" * (backslashes // 2)
        if backslashes % 2 == 0:
            return found, rest[comma.end() - 1 :]
        found += ","
        place = comma.end()
    return found + rest[place:], ""


def _value(field: str, value: str | None) -> object:
    if value is None:
        if field not in _FLAGS:
            raise BadInput(f"the field {quoted(field)} has no value; write {field or 'NAME'}=VALUE")
        return True
    reader = _READERS.get(field)
    return value if reader is None else reader(value)


def _number(value: str) -> object:
    return int(value) if validate.digits(value) else value


def _truth(value: str) -> object:
    return {"true": True, "false": False}.get(value, value)


_READERS: dict[str, Callable[[str], object]] = {
    "slots": _number,
    "expect": _number,
    "none_ok": _truth,
    "shell": _truth,
    "env": str.split,
}
_LIKE = {
    "lock_free": "lock-free=deploy",
    "lock_held": "lock-held=deploy,by=ada",
    "semaphore_available": "semaphore-available=builds,slots=2",
    "pipeline_in_phase": "pipeline-in-phase=r1,phase=test",
    "pipeline_complete": "pipeline-complete=r1",
    "branch_exists": "branch-exists=feature",
    "branch_clean": "branch-clean=feature",
    "branch_merged": "branch-merged=feature,into=main",
    "file_exists": "file-exists=STOP",
    "file_contains": "file-contains=CHANGELOG.md,text=1.2",
    "command": "command=make test",
}
"""A word of each kind that has a field without a default."""


def _form(kind: LeafKind) -> tuple[str, tuple[tuple[str, Callable[[Any], Any], Any], ...]]:
    """The parts of a word: its kind, and how each field is named, read, and left out."""
    own = kind.leaf.__struct_fields__
    leaf = c.TaskFilter if "filter" in own else kind.leaf
    fields = []
    for field in kind.fields:
        name = "=" if field == kind.main else "," + field.replace("_", "-")
        name += "=" * (field != kind.main and field not in _FLAGS)
        defaults = defaults_of(kind.leaf if field in own else leaf)
        value_of = attrgetter(field if field in own else f"filter.{field}")
        fields.append((name, value_of, defaults.get(field)))
    return kind.name.replace("_", "-"), tuple(fields)


_FORMS = {kind.leaf: _form(kind) for kind in KINDS.values()}
