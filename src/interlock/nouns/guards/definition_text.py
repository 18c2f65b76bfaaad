"""A guard as a definition file has it: the inverse of reading one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_kinds import fields_of, kind_of

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def definition(guard: g.Guard) -> tuple[str, ...]:
    """The lines of the table of a guard in TOML."""
    lines = [f"[guard.{_key(guard.name)}]", f"when = {_when(guard.condition)}"]
    if guard.on_failure != g.BlockAction():
        lines.append(f"on_failure = {_action(guard.on_failure)}")
    if guard.max_age != g.MAX_AGE:
        lines.append(f"max_age = {_text(_seconds(guard.max_age))}")
    return tuple(lines)


def _when(condition: c.Condition) -> str:
    some = condition.of if isinstance(condition, c.AllOf) else (condition,)
    return f"[{', '.join(map(_condition, some))}]"


def _condition(condition: c.Condition) -> str:
    match condition:
        case c.AllOf():
            return f"{{all = [{', '.join(map(_condition, condition.of))}]}}"
        case c.AnyOf():
            return f"{{any = [{', '.join(map(_condition, condition.of))}]}}"
        case c.Not():
            return f"{{not = {_condition(condition.of)}}}"
        case _:
            return _leaf(condition)


def _leaf(leaf: c.BaseCondition) -> str:
    kind, fields = kind_of(leaf), dict(fields_of(leaf))
    if list(fields) == [kind.main]:
        return f"{{{kind.name} = {_value(fields[kind.main])}}}"
    inner = ", ".join(f"{name} = {_field(name, value)}" for name, value in fields.items())
    return f"{{{kind.name} = {{{inner}}}}}"


def _field(name: str, value: object) -> str:
    if name == "timeout" and isinstance(value, float):
        return _text(_seconds(value))
    return _value(value)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)


def _action(action: g.FailureAction) -> str:
    match action:
        case g.RetryAction():
            delay = _text(_seconds(action.delay))
            return f"{{retry = {delay}, limit = {action.limit}}}"
        case g.FailAction():
            return f"{{fail = {_text(action.message)}}}"
        case g.WarnAction():
            return '"warn"'
        case _:
            return '"block"'


def _seconds(seconds: float) -> str:
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return f'"{"".join(_characters(text))}"'


def _characters(text: str) -> Iterable[str]:
    for sign in text:
        if sign in _ESCAPED:
            yield _ESCAPED[sign]
        elif sign.isprintable():
            yield sign
        else:
            yield f"\\U{ord(sign):08X}"
