"""One name for one outcome, and one class for one word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Literal, get_origin

import pytest
from msgspec.structs import fields

import interlock
from interlock.core.decision import Outcome

ROOT = Path(interlock.__file__).parent
GRANT = {"holder", "token", "expires_in", "grant"}
SHARED: dict[str, set[str]] = {
    "acquired": GRANT,
    "away": {"to"},
    "busy": set(),
    "cancelled": set(),
    "deadlock": {"cycle"},
    "exists": set(),
    "extended": GRANT,
    "fenced": {"token"},
    "full": set(),
    "gone": set(),
    "not_owner": set(),
    "nothing": set(),
    "paused": {"agent"},
    "released": set(),
    "sent": {"message", "kind", "to", "type", "thread"},
    "unknown": {"what", "unknown"},
    "waiting": {"before"},
}
"""Each word that several outcomes have, and the fields that all of these have.

Besides these each outcome names its thing by its noun: ``lock``, ``task``, ``things``.
"""


def below(kind: type[Outcome]) -> Iterator[type[Outcome]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def outcomes() -> list[type[Outcome]]:
    """Every outcome that the product defines."""
    for path in sorted(ROOT.rglob("*.py")):
        if ', tag="' in path.read_text():
            import_module(".".join(("interlock", *path.relative_to(ROOT).with_suffix("").parts)))
    found = [kind for kind in below(Outcome) if kind.__module__.startswith("interlock.")]
    return sorted(set(found), key=lambda kind: (kind.__name__, kind.__module__))


def users() -> dict[str, list[type[Outcome]]]:
    """The outcomes that each word stands for; without a word of its own, a class is above them."""
    found = defaultdict(list)
    for kind in outcomes():
        word = str(kind.__struct_config__.tag)
        if word != kind.__name__:
            found[word].append(kind)
    return found


def called(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def plain(kind: object) -> object:
    return str if get_origin(kind) is Literal else kind


def test_no_two_outcomes_have_the_same_name() -> None:
    names = Counter(kind.__name__ for kind in outcomes())
    assert len(names) > 100
    assert [name for name, many in names.items() if many > 1] == []


def test_every_outcome_of_a_call_is_a_name_of_the_package() -> None:
    """What is said by a face is of commands that are about this very folder, as ``init`` is."""
    for kind in outcomes():
        if not kind.__module__.startswith("interlock.faces."):
            assert getattr(interlock, kind.__name__, None) is kind
            assert kind.__name__ in interlock.__all__


def test_a_word_of_several_outcomes_is_a_class_above_them() -> None:
    for word, kinds in users().items():
        if len(kinds) > 1:
            above = getattr(interlock, called(word))
            assert all(issubclass(kind, above) for kind in kinds), word


def test_the_table_has_every_word_of_several_outcomes() -> None:
    assert {word for word, kinds in users().items() if len(kinds) > 1} == set(SHARED)


@pytest.mark.parametrize("word", sorted(SHARED))
def test_whoever_says_a_word_has_its_fields(word: str) -> None:
    kinds = users()[word]
    assert (
        set.intersection(*[{field.encode_name for field in fields(k)} for k in kinds])
        == (SHARED[word])
    )
    every = chain.from_iterable(map(fields, kinds))
    shared = [(f.encode_name, plain(f.type)) for f in every if f.encode_name in SHARED[word]]
    assert len(set(shared)) == len(SHARED[word])
