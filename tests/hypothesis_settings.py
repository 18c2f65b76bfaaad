"""How Hypothesis searches: the same examples each day, sixty times as many for ``make proof``.

Also what the state machines share that compare a part of the project with a model of it.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from interlock.store import Store
from interlock.testing.faults import Chances, Fault, FaultyStore

_EVERYDAY, _PROOF = 50, 3000


def go(*, everyday: bool) -> None:
    """Choose one of the two, once, before the tests are imported."""
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
    """How many examples to try, for a test that tries this many everyday."""
    return everyday * int(settings().max_examples) // _EVERYDAY


class Bad(FaultyStore):
    """A network that is bad, but never for so long that an outcome stays unknown."""

    _in_a_row = 0

    def _draw(self) -> Fault | None:
        fault = super()._draw()
        self._in_a_row = self._in_a_row + 1 if fault else 0
        return fault if self._in_a_row < 5 else None


def across_a_bad_network(store: Store) -> FaultyStore:
    """A store as a client sees it across a bad network."""
    chances = Chances(conflict=0.1, lost_reply=0.1, late_arrival=0.1)
    return Bad(store, chances=chances, sleep=lambda _: None)


def bounds(examples: int, steps: int = 40, *, shrink: bool = False) -> settings:
    """Settings of a machine; everyday runs do not shrink a failure, which may take minutes."""
    phases = tuple(Phase) if shrink else (Phase.explicit, Phase.generate)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        deadline=None,
        print_blob=True,
    )


def run(machine: Callable[[], RuleBasedStateMachine], its_bounds: settings) -> None:
    """Run a state machine within these bounds."""
    run_state_machine_as_test(machine, settings=its_bounds)  # type: ignore[no-untyped-call]
