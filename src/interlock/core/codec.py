"""Bytes, hashes and ids.

State is JSON, encoded from typed structs, so that a person can read a store with any tool.
What is hashed (and later signed) is always the exact bytes that were stored, never a re-encoding.

An id is a UUIDv7 (48 bits of wall-clock milliseconds, 74 random bits) in hex behind a prefix that
says what it is.  Ids say roughly when; the order of events is the revision's job.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

encode = msgspec.json.Encoder(decimal_format="number").encode


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return sha256(data).hexdigest()


def make_id(prefix: str, milliseconds: int, randomness: bytes) -> str:
    """A fresh id from a moment and ten random bytes."""
    tail = randomness.hex()
    variant = "89ab"[randomness[2] & 3]
    return f"{prefix}_{milliseconds:012x}7{tail[:3]}{variant}{tail[5:20]}"


def moment(id_: str) -> float:
    """The wall-clock seconds that an id carries."""
    return int(id_.rpartition("_")[2][:12], 16) / 1000
