"""Words to a typed request."""

from __future__ import annotations

from typing import Annotated

import pytest

from interlock.errors import BadInput
from interlock.faces.cli.help import operation_help
from interlock.faces.cli.parse import parse
from interlock.runtime.operation import Operation, Request, option


class Able(Request, frozen=True, kw_only=True):
    """Who can do what."""

    names: Annotated[tuple[str, ...], option("names", "who", positional=True)] = ()
    can: Annotated[tuple[str, ...], option("names", "what")] = ()


ABLE = Operation(name="able", help="who can", request=Able, outcomes=(), needs="nothing")


@pytest.mark.parametrize(
    "words",
    [
        ("--can", "rust,gpu,docs"),
        ("--can", "rust", "--can=gpu", "--can", "docs"),
        ("--can=rust,gpu", "--can", "docs"),
    ],
)
def test_names_may_be_given_several_times_or_with_commas(words: tuple[str, ...]) -> None:
    assert parse(ABLE, words).request == Able(can=("rust", "gpu", "docs"))


def test_names_that_have_a_place_take_all_that_follow() -> None:
    request = parse(ABLE, ("ada,bob", "--can", "rust", "cleo")).request
    assert request == Able(names=("ada", "bob", "cleo"), can=("rust",))


def test_an_empty_name_between_commas_is_not_lost_on_the_way() -> None:
    """The validation of names says what is wrong with it."""
    assert parse(ABLE, ("--can", "rust,,gpu")).request.can == ("rust", "", "gpu")


def test_names_without_any_are_explained() -> None:
    with pytest.raises(BadInput, match="such as --can rust,gpu"):
        parse(ABLE, ("--can",))
    assert "usage: interlock able [NAMES...] [options]" in operation_help(ABLE)
    assert "--can NAME,..." in operation_help(ABLE)
