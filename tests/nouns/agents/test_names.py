from __future__ import annotations

import itertools

from interlock.core import validate
from interlock.nouns.agents import session_rules


def test_a_name_that_is_taken_is_not_given_again() -> None:
    every = {
        f"{a}-{b}-{n}"
        for a in session_rules.FIRST
        for b in session_rules.SECOND
        for n in range(1, 10)
    }
    numbers = itertools.count()
    found = session_rules.random_agent_name(lambda most: next(numbers) % most, every)
    assert found not in every, "then its number is greater"
    assert validate.name(found, "agent name") == found


def test_every_word_is_plain_and_there_once() -> None:
    for several in (session_rules.FIRST, session_rules.SECOND):
        assert len(set(several)) == len(several)
        assert all(word.isalpha() and word.islower() for word in several)
