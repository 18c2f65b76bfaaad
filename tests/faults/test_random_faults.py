from __future__ import annotations

import random
import sys
import time

import pytest
from tests.faults.random_faults import run_random_faults
from tests.faults.setup import Engine, Setup


def test_random_programs_under_random_faults_keep_every_promise(rough: Setup) -> None:
    """With this seed every kind of fault is drawn."""
    sys.stdout.write(run_random_faults(rough, seed=41, seconds=4.5))


@pytest.mark.proof
def test_no_seed_breaks_a_promise(own: Engine) -> None:
    """Two minutes of them; each seed is printed before it is tried."""
    seed, ends = random.SystemRandom().randrange(1 << 31), time.monotonic() + 120
    while time.monotonic() < ends:
        sys.stdout.write(f"seed {seed}\n")
        with Setup(own) as setup:
            told = run_random_faults(
                setup, seed, seconds=12, agents=random.Random(seed).randint(2, 6)
            )
        sys.stdout.write(f"{told}\n")
        seed += 1
