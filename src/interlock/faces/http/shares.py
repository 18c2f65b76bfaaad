"""Places that all callers share: no caller has more of them than it leaves to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from interlock.faces.http.access import Refused

SHARE: ContextVar[str] = ContextVar("share", default="")
"""The share of the request that is carried out; empty until its token is known."""


class Shares:
    """A number of places for callers, each known by its token or its name; for the event loop."""

    def __init__(self, places: int, what: str) -> None:
        self._places = places
        self._what = what
        self._taken: Counter[str] = Counter()
        self._left = places

    def check(self, who: str) -> None:
        """Refuse a caller that cannot have one place more."""
        if not self._left:
            said = f"{self._places} {self._what} here already; call again later"
            raise Refused(503, "too_many", said)
        if (own := self._taken[who]) >= self._left:
            raise Refused(
                429, "too_many",
                f"{own} {self._what} here for you, and the other {self._left} places are for other"
                " callers; end one of yours first",
            )  # fmt: skip

    @contextmanager
    def place(self, who: str) -> Iterator[None]:
        """Take a place until the block ends."""
        self.check(who)
        self._taken[who] += 1
        self._left -= 1
        try:
            yield
        finally:
            self._left += 1
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]
