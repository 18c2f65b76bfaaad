"""The scripts that run inside the server, and their names."""

from __future__ import annotations

import os

try:  # hashlib would load OpenSSL, a tenth of a command's time
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:  # pragma: no cover - a Python built without it
    from hashlib import sha1

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Script:
    """One script: its text, and the digest by which a server that has it runs it."""

    __slots__ = ("body", "sha")

    def __init__(self, name: str) -> None:
        with open(os.path.join(_FOLDER, f"{name}.lua"), "rb") as file:
            self.body = file.read()
        self.sha = sha1(self.body).hexdigest()  # noqa: S324 - the digest that Redis uses


COMMIT = Script("commit")
READ = Script("read")
RIGHTS = Script("rights")
SINCE = Script("since")
SWEEP = Script("sweep")
TRIM = Script("trim")
