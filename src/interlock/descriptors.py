"""A process without a free file descriptor: one error, for every call that needs one.

The system refuses a descriptor with an error of its own, which SQLite, the import of a module and
a connection report each in another way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from interlock.errors import OutOfDescriptors

P = ParamSpec("P")
T = TypeVar("T")

_REFUSED = frozenset({errno.EMFILE, errno.ENFILE})


def is_refused(error: BaseException) -> bool:
    """Whether the system refused a descriptor with this error."""
    return isinstance(error, OSError) and error.errno in _REFUSED


def named(error: BaseException) -> BaseException:
    """The error by its name, if the system refused a descriptor with it; else the error itself."""
    if not is_refused(error):
        return error
    found = out_of_descriptors()
    found.__cause__ = error
    return found


def by_name(function: Callable[P, T]) -> Callable[P, T]:
    """A function that raises this error by its name, as where it imports a module."""

    @wraps(function)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            raise named(error) from error.__cause__

    return method


def are_free(number: int) -> bool:
    """Whether the system gives so many descriptors at this moment."""
    taken: list[int] = []
    try:
        while len(taken) < number:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return not is_refused(error)
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return True


def out_of_descriptors() -> OutOfDescriptors:
    """The error."""
    return OutOfDescriptors(
        "no file descriptor is free, so nothing was done: close files and connections, or raise"
        " the limit of open files (ulimit -n)"
    )
