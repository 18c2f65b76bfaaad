"""Requests that a description shows: the examples of a command, as the fields of its endpoint."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from interlock.errors import BadInput
from interlock.faces.cli.parse import parse, split
from interlock.faces.http.operations import Endpoint
from interlock.runtime.operation import Field

_OF_A_SHELL = ("@", "|", "<", ">", "...")
"""What an example for a shell may have: files, pipes, and words that stand for others."""


def examples(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Bodies that the endpoint takes; at least one."""
    found = [_body(endpoint, line) for line in endpoint.operation.examples]
    return [each for each in found if each is not None] or [_least(endpoint)]


def _body(endpoint: Endpoint, line: str) -> dict[str, Any] | None:
    """The fields that a command line gives; None if only a shell or this host can give them."""
    if any(mark in line for mark in _OF_A_SHELL):
        return None
    _, words = split(shlex.split(line)[1:])
    try:
        request = parse(endpoint.operation, words).request
    except BadInput:  # it reads what the shell has for it
        return None
    given: dict[str, Any] = msgspec.to_builtins(request)
    return given if given.keys() <= endpoint.fields.keys() else None


def _least(endpoint: Endpoint) -> dict[str, Any]:
    return {each.name: _value(each) for each in endpoint.fields.values() if each.required}


def _value(field: Field) -> object:
    if field.kind in ("int", "count"):
        return field.least
    return ["x"] if field.repeats else "x"
