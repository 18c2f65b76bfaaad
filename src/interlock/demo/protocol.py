"""What the demo and its workers say to each other."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Job(Struct, frozen=True, kw_only=True):
    """What a worker is to do; its only argument, as JSON."""

    store: str
    agent: str
    lock: str
    ledger: str
    ttl: float
    pace: float


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker just did, and when by the monotonic clock."""

    state: str
    at: float
    token: int = 0
    count: int = 0
    reclaimed_from: str = ""


class Failed(Exception):
    """The demo cannot go on; the message says why."""


encode = msgspec.json.encode
decode_job = msgspec.json.Decoder(Job).decode
decode_said = msgspec.json.Decoder(Said).decode
