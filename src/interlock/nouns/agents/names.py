"""Readable names for agents that have none: ``amber-otter-3``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

FIRST = (
    "amber", "ashen", "azure", "bold", "brave", "brisk", "calm", "clear", "clever", "coral",
    "crisp", "deft", "eager", "fair", "fleet", "gentle", "golden", "green", "keen", "kind",
    "lively", "lucky", "mellow", "merry", "neat", "noble", "patient", "proud", "quick", "quiet",
    "silver", "swift",
)  # fmt: skip
SECOND = (
    "badger", "beaver", "bison", "crane", "dolphin", "eagle", "falcon", "ferret", "finch", "fox",
    "gecko", "hare", "heron", "ibis", "jay", "kestrel", "lark", "lemur", "lynx", "marten", "mole",
    "otter", "owl", "panda", "puffin", "raven", "robin", "seal", "stork", "swan", "tern", "wren",
)  # fmt: skip
NUMBERS = 9
_TRIES = 100


def readable(below: Callable[[int], int], taken: AbstractSet[str]) -> str:
    """A name that is not ``taken``; ``below(n)`` is a number from 0 up to n - 1, by chance."""
    most = NUMBERS
    while True:
        for _ in range(_TRIES):
            first, second = FIRST[below(len(FIRST))], SECOND[below(len(SECOND))]
            name = f"{first}-{second}-{1 + below(most)}"
            if name not in taken:
                return name
        most *= 10
