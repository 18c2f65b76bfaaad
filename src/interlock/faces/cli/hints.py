"""Hints for a caller: what to write instead of a word, and that it is the holder itself.

A wrong suggestion misleads, so an option is suggested only for a typo of one letter, or if it
begins as the word does.  For a time without its option, an option that takes a time is suggested.
A suggestion is empty if there is no good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os.path import commonprefix
from typing import Any

from interlock.core import validate
from interlock.core.outcomes import Fenced
from interlock.core.safe_text import foreign
from interlock.errors import BadDuration
from interlock.runtime.operation import Field

_INSTEAD = {
    "inbox --follow": "'interlock wait' waits for what comes next,"
    " and 'interlock subscribe TYPE --follow' shows alerts as they come",
    "inbox --unread": "unread messages are shown anyway, so leave it out",
    "merge serve --into": "did you mean --target?",
    "merge submit --target": "did you mean --into?",
}
_LEAST, _ENOUGH = 3, 4
"""Letters that two words begin with: of one that is no longer, and of any."""


def option_hint(name: str, word: str, known: Iterable[str]) -> str:
    """What to write instead of an option that a command does not have."""
    if f"{name} {word}" in _INSTEAD:
        return _INSTEAD[f"{name} {word}"]
    bare, options = word.lstrip("-"), [each for each in known if each.startswith("--")]
    close = [each for each in options if _is_slip(bare, each[2:])]
    close += [each for each in options if _begin_alike(bare, each[2:])]
    return f"did you mean {close[0]}?" if close else ""


def time_hint(word: str, known: Iterable[Field]) -> str:
    """The options that a time without an option may belong to."""
    wanted = [field.option for field in known if field.kind == "duration" and _fits(field, word)]
    meant = [f"{each} {word.strip()}" for each in dict.fromkeys(wanted)]
    *others, last = meant or [""]
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if meant else ""


def _is_slip(word: str, meant: str) -> bool:
    """Whether one letter is wrong, too many or too few, or two of them are swapped."""
    same = len(commonprefix((word, meant)))
    one, two = word[same:], meant[same:]
    swapped = one[:2] == two[1::-1] and one[2:] == two[2:]
    slips = swapped or one[1:] == two[1:] or one[1:] == two or one == two[1:]
    return slips and len(word) > 1


def _begin_alike(word: str, meant: str) -> bool:
    same = len(commonprefix((word, meant)))
    return same >= _ENOUGH or same == min(len(word), len(meant)) >= _LEAST


def _fits(field: Field, word: str) -> bool:
    try:
        validate.wait_time(word) if field.forever else validate.duration(word)
    except BadDuration:
        return False
    return True


def own_grant(request: object, outcome: object, you: str) -> str:
    """A note for a caller that is refused because its own agent is the holder, else nothing.

    There is none for a fenced grant: its caller must not act for the next holder.
    """
    if you not in _holders(outcome) or isinstance(outcome, Fenced):
        return ""
    return f"{foreign(you)} is you{_remedy(request)}"


def _remedy(request: object) -> str:
    if not hasattr(request, "token"):
        return ": you have it already; continue with the --token of that grant, or release it first"
    if request.token is None:
        return (
            ": give the --token of that grant, which 'show' prints; only its own session needs none"
            " (agent join)"
        )
    return f", but {request.token} is not the token of that grant; give the one you got with it"


def _holders(outcome: Any) -> Iterator[str]:  # noqa: ANN401 - any outcome, each with its own fields
    """The agents that are the only holder of a refused thing."""
    yield getattr(outcome, "holder", "")
    holders = getattr(outcome, "holders", ())
    yield from holders if len(holders) == 1 else ()
    blocked = getattr(outcome, "blocked", ())
    for part in blocked if isinstance(blocked, tuple) else ():
        yield from _holders(part)
