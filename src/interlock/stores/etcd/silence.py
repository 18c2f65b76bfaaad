"""gRPC, kept from printing.

Its core writes to stderr whatever it thinks of a connection; a command of ours says what is wrong
in one line.  It reads its setting once, so the environment is as it was before, for whoever else
looks; a setting of the user's own is left alone.
"""

# ruff: noqa: E402 - what stands between the imports is what this module is for

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
