"""The load finds lost, doubled and reordered messages."""

from __future__ import annotations

import pytest
from tools import load

pytestmark = pytest.mark.tools


def verdict(*received: tuple[int, int]) -> tuple[int, int, int]:
    """The verdict if agent 0 sent three messages to 1 and 2, and these (reader, number) came."""
    sent = [load.SentMessage(0, number, (1, 2)) for number in range(3)]
    came = [load.ReceivedMessage(reader, 0, number, 0.001) for reader, number in received]
    found = load.judge([load.Share(sent, [], []), load.Share([], came, [])], [1.0], 1.0)
    return found.lost, found.doubled, found.reordered


def test_what_came_once_and_in_order_is_well() -> None:
    assert verdict((1, 0), (2, 0), (1, 1), (2, 1), (2, 2), (1, 2)) == (0, 0, 0)


def test_what_one_of_its_readers_never_got_is_lost() -> None:
    assert verdict((1, 0), (2, 0), (1, 1), (1, 2), (2, 2)) == (1, 0, 0)


def test_what_a_reader_got_twice_is_doubled() -> None:
    assert verdict((1, 0), (2, 0), (1, 1), (2, 1), (2, 2), (1, 2), (1, 2)) == (0, 1, 0)


def test_what_came_after_a_later_one_of_its_sender_is_out_of_order() -> None:
    assert verdict((1, 1), (2, 0), (1, 0), (2, 1), (2, 2), (1, 2)) == (0, 0, 1)
