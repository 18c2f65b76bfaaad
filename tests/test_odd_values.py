"""Whatever a caller gives, a call refuses it clearly, or the store can still be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

import interlock
from interlock import Fleet, InterlockError
from interlock.runtime.integrity import unreadable
from interlock.steps import drive

ODD: list[Any] = [
    *(None, True, 0, 1, -1, 1.5, math.nan, 10**400, Decimal(1), datetime(2030, 1, 1, tzinfo=UTC)),
    *("", "x", "a b", "\ud800", "x" * 300, b"x", object()),
    *([], [None], ["\ud800"], [["x"]], {"x"}, {}, {1: 2}, {"x": b"y"}, {"x": math.nan}),
]
FINE: dict[str, dict[str, Any]] = {
    "messages": {"to": "bob", "timeout": 0},
    "locks": {},
    "semaphores": {"capacity": 3},
    "tasks": {"specs": [{"id": "x"}]},
    "agents": {"lines": ["x"]},
    "guards": {},
    "pipelines": {},
    "record": {},
    "keys": {"name": "a"},
    "swarms": {"name": "bank", "bus": "memory:bus", "key": "a"},
    "requests": {"swarm": "bank", "wait": 0},
    "quarantine": {},
    "": {"timeout": 0},
}
"""What is given beside the odd value; what has no default and is not named here is ``x``."""
LEFT_OUT = {
    *("export", "anchor", "verify"),  # they write and read files that the caller names
    *("leave", "beat"),  # they end the session
    "keep",  # it goes on in the background
}
SLEEPY = {"timeout", "wait"}
_SLOW = (int, float, NoneType)
"""Of the former, these are fine and take their time."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)  # where a bus named by a strange path is made
    with interlock.connect("memory:", agent="ada") as ada:
        ada.messages.send(["ada", "bob"], "hello", hold=True)
        ada.keys.new("a")
        assert ada.swarms.register("shop", bus="memory:bus", key="a")
        assert ada.swarms.allow("bank", first_use=True)
        yield ada


def test_no_value_that_a_caller_can_give_makes_a_store_unreadable(fleet: Fleet) -> None:
    tried = [_try(name, call, given) for name, call, given in _calls(fleet)]
    assert len(tried) > 1000
    assert [each for each in tried if each] == []
    assert drive(unreadable(), fleet.store) == []
    assert fleet.record.verify().integrity == "ok"


def _try(name: str, call: Callable[..., Any], given: dict[str, Any]) -> str:
    """What came of a call, if that is more than an answer or a refusal."""
    try:
        call(**given)
    except InterlockError as refused:
        return "" if "\n" not in str(refused) else f"{name}({given}) said {refused}"
    except Exception as error:  # noqa: BLE001 - whichever it is, it is wrong
        return f"{name}({given}) raised {error!r}"
    return ""


def _calls(fleet: Fleet) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for noun, fine in FINE.items():
        place = getattr(fleet, noun) if noun else fleet
        for verb in sorted(set(vars(type(place))) - LEFT_OUT):
            call = getattr(place, verb)
            if not verb.startswith("_") and hasattr(call, "__wrapped__"):
                for given in _given(call, fine):
                    yield f"{noun}.{verb}", call, given


def _given(call: Callable[..., Any], fine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each argument with each odd value, and the others as they should be."""
    known = [
        each
        for each in signature(call).parameters.values()
        if each.kind is not Parameter.VAR_POSITIONAL
    ]
    usual = {each.name: "x" for each in known if each.default is Parameter.empty}
    usual |= {name: value for name, value in fine.items() if name in [k.name for k in known]}
    for each in known:
        odd = [value for value in ODD if each.name not in SLEEPY or type(value) not in _SLOW]
        yield from ({**usual, each.name: value} for value in odd)
