"""Imports gRPC so that it prints nothing.

Its core writes remarks about connections to stderr; a command of Interlock prints one line about
what is wrong.  gRPC reads its setting once, so the environment is restored afterwards for other
readers; a setting of the user stays as it is.
"""

# ruff: noqa: E402 - the assignment between the imports is the purpose of this module

from __future__ import annotations

import os

_SETTING = "GRPC_VERBOSITY"
_ours = _SETTING not in os.environ
os.environ.setdefault(_SETTING, "NONE")

import grpc
import grpc.aio

if _ours:
    del os.environ[_SETTING]

__all__ = ["grpc"]
