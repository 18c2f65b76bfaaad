"""Faults of the system for tests: functions in the place of system calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any


def as_system_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as one of ``os``: what it raises does not come from a signal handler."""
    if isinstance(function, MethodType):
        return MethodType(as_system_call(function.__func__), function.__self__)
    assert isinstance(function, FunctionType)
    scope = {**function.__globals__, "__name__": os.__name__}
    return FunctionType(function.__code__, scope, closure=function.__closure__)
