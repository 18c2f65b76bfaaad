"""No text of an outcome lets words of another agent read as those of Interlock."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Struct
from tests.faces.foreign_words import HOSTILE, LINES, leaks

import interlock
from interlock.core.safe_text import _SENTENCES
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


def hostile(kind: Any, field: str, own: frozenset[str], depth: int = 0) -> Any:
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
    if origin is dict or kind is dict:
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
    own = _SENTENCES | frozenset(getattr(kind, "own_words", ())) | CODES
    fields = {name: hostile(hints[name], name, own, depth) for name in kind.__struct_fields__}
    return kind(**fields)


def texts() -> Iterator[type]:
    for name, kind in sorted(STRUCTS.items()):
        try:
            renderer(kind)
        except (KeyError, AttributeError):
            continue
        yield kind

if __name__ == "__main__":
    import traceback
    for kind in texts():
        try: o = built(kind)
        except Exception as e:
            print("BUILD", kind.__name__, repr(e)[:150]); continue
        try: t = render(o)
        except Exception as e:
            tb = traceback.extract_tb(e.__traceback__)[-1]
            print("RENDER", kind.__name__, repr(e)[:150], tb.filename[-40:], tb.lineno); continue
        for l in leaks(t): print(kind.__name__, "::", l[:300])
