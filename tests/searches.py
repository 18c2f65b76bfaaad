"""How far Hypothesis searches: the same way each day, thirty times as far for ``make proof``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_EVERYDAY, _PROOF = 100, 3000


def go(*, everyday: bool) -> None:
    """Say once, before the tests are imported, which of the two it is."""
    examples = _EVERYDAY if everyday else _PROOF
    settings.register_profile(
        "interlock",
        derandomize=everyday,
        database=None,
        max_examples=examples,
        deadline=None,  # a slow machine is no failure
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("interlock")


def budget(everyday: int) -> int:
    """How many examples to try, where this many will do everyday."""
    return everyday * int(settings().max_examples) // _EVERYDAY
