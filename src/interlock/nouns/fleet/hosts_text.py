"""The outcomes of prime and setup in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.nouns.fleet import hosts_noun as h
    from interlock.runtime.text import Paint, Text


def _primed(outcome: h.Primed, _paint: Paint) -> str:
    return outcome.text


def _set_up(outcome: h.SetUp, paint: Paint) -> str:
    word = paint("green", "removed" if outcome.removed else "set up")
    files = [f"  {each}" for each in outcome.files] or ["  nothing had to be changed"]
    return "\n".join([f"{word} {outcome.host}", *files, *_notes(outcome.notes)])


def _shown(outcome: h.SetupShown, paint: Paint) -> str:
    if not outcome.files:
        return "\n".join(["nothing to change", *_notes(outcome.notes)])
    head = paint("yellow", "this would change; run it again with --yes to write it")
    return "\n".join([outcome.diff.rstrip("\n"), head, *_notes(outcome.notes)])


def _woken(outcome: h.Woken, paint: Paint) -> str:
    word = paint("green", outcome.state)
    return f"{word} to the inbox of {outcome.agent}; it is not known whether its model reads it"


def _not_woken(outcome: h.NotWoken, paint: Paint) -> str:
    return f"{paint('yellow', 'not woken')} {outcome.agent}: {outcome.reason}; {outcome.clear}"


def _notes(notes: tuple[str, ...]) -> list[str]:
    return [f"note: {each}" for each in notes]


TEXTS: dict[str, Text] = {
    "Primed": _primed,
    "SetUp": _set_up,
    "SetupShown": _shown,
    "Woken": _woken,
    "NotWoken": _not_woken,
}
