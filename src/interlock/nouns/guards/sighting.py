"""What a host saw outside of the store, before it becomes an observation with host and time."""

from __future__ import annotations

from msgspec import Struct

from interlock.core.safe_text import one_line

_SHOWN = 120
_LINE = 160


class Sighting(Struct, frozen=True, kw_only=True):
    """An answer to a need about the outside, as in an ``Observation``."""

    value: bool | int | None
    says: str
    digest: str


def sighting(value: bool | int | None, says: str, seen: bytes) -> Sighting:
    """An answer, with the digest of the bytes that were seen."""
    from hashlib import sha256

    return Sighting(value=value, says=says, digest=sha256(seen).hexdigest())


def unknown(says: str) -> Sighting:
    """No answer; nothing was seen, so the digest is that of the reason."""
    return sighting(None, says, says.encode(errors="replace"))


def shown(name: str) -> str:
    """A name or a command on one line, shortened, without characters that do not print."""
    return _short(one_line(name), _SHOWN)


def last_line(output: bytes) -> str:
    """The last line of an output that is not empty, shortened."""
    lines = output.decode(errors="replace").rstrip().splitlines()
    return _short(one_line(lines[-1]), _LINE) if lines else ""


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
