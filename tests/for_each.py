"""One test for many values, where a test for each would cost more to collect than to run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def for_each(
    argument: str, values: Iterable[T], name: Callable[[T], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each of these values; a failure says with which one."""
    every = list(values)
    assert every, f"there is no {argument}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for value in every:
                try:
                    test(**fixtures, **{argument: value})
                except BaseException as error:
                    error.add_note(f"{argument}: {name(value)}")
                    raise

        signature = inspect.signature(test)
        others = [each for each in signature.parameters.values() if each.name != argument]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
