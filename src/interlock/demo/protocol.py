"""What the demo and its workers say to each other."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from interlock.errors import InterlockError

STORE = "INTERLOCK_STORE"
"""The variable that tells a worker the store: a URL may hold a password, which all see in argv."""


class Job(Struct, frozen=True, kw_only=True):
    """What a worker is to do; its only argument, as JSON."""

    agent: str
    can: tuple[str, ...]
    ledger: str
    ttl: float
    pace: float


NEWS = ("heard", "answered")
"""What a worker says beside its work: it does not change what it is at."""


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker just did, and when by the monotonic clock."""

    state: str
    at: float
    task: str = ""
    attempt: int = 0
    token: int = 0
    slots: int = 0
    seconds: float = 0.0
    text: str = ""


class Failed(InterlockError):
    """The demo cannot go on; the message says why."""

    code: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"the demo failed: {why}")


encode = msgspec.json.encode
decode_job = msgspec.json.Decoder(Job).decode
decode_said = msgspec.json.Decoder(Said).decode
