"""Large data and results: the value is a reference to a file, as a shared file of a message is.

    {"file": "/srv/model.bin", "size": 73400320, "sha256": "9f86d08..."}

It is plain JSON, so it can be all of a value or a part of one, in data, results and plans, and a
client that knows nothing of references passes it on.  The file stays where it is: the reader finds
it on the same machine or on a shared disk, and gets the bytes as they were, or ``Changed``.
"""

from __future__ import annotations

import os
import re
from typing import Any

from interlock.errors import BadInput
from interlock.nouns.messages import files
from interlock.nouns.messages.message import File
from interlock.steps import Op

_SHA256 = r"[0-9a-f]{64}"


def reference(path: str | os.PathLike[str]) -> Op[dict[str, Any]]:
    """The value that refers to a file as it is now."""
    found = yield from files.describe(path)
    return {"file": found.path, "size": found.size, "sha256": found.digest}


def referred(value: object) -> File | None:
    """The file that a value refers to; None if it is another value."""
    match value:
        case {"file": str(path), "size": int(size), "sha256": str(digest), **rest} if not rest:
            whole = os.path.isabs(path) and re.fullmatch(_SHA256, digest)
            return File(path=path, size=size, digest=digest) if whole else None
        case _:
            return None


def read(value: object) -> Op[bytes]:
    """The bytes of the file that a value refers to; raises Changed if they are gone."""
    return (yield from files.read(require(value)))


def verify(value: object) -> Op[None]:
    """Raise Changed if the file that a value refers to is not as it was."""
    yield from files.verify(require(value))


def require(value: object) -> File:
    """The file that a value refers to."""
    if (found := referred(value)) is None:
        raise BadInput(
            f"this is no reference to a file: {value!r:.80}; fleet.tasks.file(path) returns one"
        )
    return found
