"""No text of an outcome lets words of another agent read as those of Interlock."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec
import pytest
from msgspec import Struct
from tests.faces.foreign_words import HOSTILE, LINES, leaks, split_names

import interlock
from interlock.core.safe_text import SENTENCES
from interlock.core.validate import quote
from interlock.nouns.guards.condition import Verdict
from interlock.nouns.messages.message import Kind
from interlock.runtime.text import render, renderer

DEEPEST = 2
CODES = {"status", "state", "event", "kind", "verb", "outcome", "what", "word"}


def structs() -> dict[str, type]:
    for module in pkgutil.walk_packages(interlock.__path__, "interlock."):
        if module.name.startswith(("interlock.nouns", "interlock.core", "interlock.runtime")):
            importlib.import_module(module.name)
    found: dict[str, type] = {}
    left = [Struct]
    while left:
        for each in left.pop().__subclasses__():
            left.append(each)
            if each.__module__.startswith("interlock."):
                found.setdefault(each.__name__, each)
    return found


STRUCTS = structs()
NAMES = {**vars(typing), **STRUCTS, "Raw": msgspec.Raw, "Kind": Kind, "Verdict": Verdict}


def hostile(  # noqa: C901, PLR0911 - a case for each kind of field
    kind: Any, field: str, own: frozenset[str], depth: int = 0
) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is str:
        return "plain" if field in own else HOSTILE
    if origin is typing.Literal:
        return args[0]
    if kind in (int, float):
        return kind(3)
    if kind is bool:
        return True
    if kind in (object, Any):
        return LINES
    if origin is tuple and depth > DEEPEST:
        return ()
    if origin is tuple:
        return tuple(hostile(each, field, own, depth) for each in args if each is not Ellipsis)
    if origin in (dict, Mapping) or kind is dict:
        return {HOSTILE: hostile(args[1], field, own, depth)} if args else {}
    if origin is list:
        return [hostile(args[0], field, own, depth)]
    if type(None) in args and depth > DEEPEST:
        return None
    if args:
        return hostile(next(each for each in args if each is not type(None)), field, own, depth)
    if inspect.isclass(kind) and issubclass(kind, Struct):
        return built(kind, depth + 1)
    return None


def built(kind: type[Any], depth: int = 0) -> Any:
    module = sys.modules[kind.__module__]
    hints = typing.get_type_hints(kind, vars(module), NAMES)
    own = SENTENCES | {"drawing"} | frozenset(getattr(kind, "own_words", ())) | CODES
    fields = {name: hostile(hints[name], name, own, depth) for name in kind.__struct_fields__}
    return kind(**fields)


def texts() -> Iterator[type]:
    for _, kind in sorted(STRUCTS.items()):
        try:
            renderer(kind)
        except (KeyError, AttributeError):
            continue
        if kind.__name__ != "AgentLog":  # a shell gets the lines of a log as they are
            yield kind


@pytest.mark.parametrize("kind", list(texts()), ids=lambda kind: kind.__name__)
def test_a_text_has_words_of_others_in_quotes_or_behind_a_bar(kind: type) -> None:
    text = render(built(kind))
    assert not leaks(text)
    assert not split_names(text)


def test_the_reader_finds_words_outside_of_quotes() -> None:
    assert leaks(f"held by {HOSTILE} for 5 s")
    assert leaks(f"held by bob ({HOSTILE})")
    assert split_names(f"see interlock task show {HOSTILE}")
    assert not split_names(f"see interlock task show {quote(HOSTILE)}; or wait")


def test_the_words_of_outcomes_are_looked_at() -> None:
    assert len(list(texts())) > 200
