"""The mark of a store that accepts no commits: how an engine keeps it, and the error of a client.

Each engine keeps the mark as one line of JSON in something that every commit reads in any case, in
the place of a number.  So it costs nothing, and a version that knows no marks does not find its
number there and commits nothing either.
"""

from __future__ import annotations

from functools import cache

import msgspec

from interlock.errors import StoreDamaged, StoreMoved, StoreMoving, StoreTrouble
from interlock.store import StoreMark


@cache
def _decoder() -> msgspec.json.Decoder[StoreMark]:
    """Made when it is first used: few stores have a mark."""
    return msgspec.json.Decoder(StoreMark)


def encode_mark(mark: StoreMark) -> str:
    """The mark as an engine keeps it: in ASCII, since it is also part of error messages."""
    import json

    return json.dumps(msgspec.to_builtins(mark))


def decode_mark(text: str | bytes) -> StoreMark:
    """The mark that was kept."""
    try:
        return _decoder().decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreDamaged(
            f"the store has a mark that cannot be read ({error}); restore a copy"
        ) from None


def refusal(mark: StoreMark, where: str) -> StoreTrouble:
    """The error of a client of a marked store; ``where`` is the store."""
    import shlex

    here, there = shlex.quote(where), shlex.quote(mark.place)
    match mark.state:
        case "moved":
            return StoreMoved(
                f"{where} was moved to {mark.place}, and accepts no changes; use that one:"
                f" --store {there}, or INTERLOCK_STORE={there}",
                mark.place,
            )
        case "moving":
            copy = f"interlock store copy {here} {there}"
            return StoreMoving(
                f"{where} is being copied to {mark.place}, and accepts no changes until that is"
                f" complete; wait, or continue it: {copy}; or take it back: {copy} --abort"
            )
        case "filling":
            copy = f"interlock store copy {there} {here}"
            return StoreMoving(
                f"{where} is being filled from {mark.place}, and accepts no changes until that is"
                f" complete; wait, or continue it: {copy}; or, if {mark.place} is lost for good,"
                f" delete the incomplete copy: {copy} --abort --lost"
            )
        case "backup":
            return StoreMoved(
                f"{where} is a backup of {mark.place}, and accepts no changes; restore it:"
                f" interlock store restore {here}",
                mark.place,
            )


def replaceable(found: StoreMark | None, old: StoreMark | None) -> bool:
    """Whether a mark is still the one that the caller knows."""
    return found is None if old is None else old.same(found)


def reached(found: StoreMark | None, new: StoreMark | None) -> bool:
    """Whether a mark is the new one already: an earlier request, without an answer, set it."""
    return found is None if new is None else new.same(found)


def needs_empty(new: StoreMark | None, old: StoreMark | None) -> bool:
    """Whether a mark is for an empty store only: everything in it would pass for a copy."""
    return old is None and new is not None and new.state == "filling"


def mark_facts(mark: StoreMark | None) -> dict[str, object]:
    """What ``store info`` says of a mark; nothing without one."""
    return {} if mark is None else {"mark": mark.words}


def not_filled_by(move: str, mark: StoreMark | None, where: str) -> StoreMoving:
    """The error of a load for a move that does not fill the store any more."""
    found = "no move" if mark is None else f"a move from {mark.place} ({mark.state})"
    return StoreMoving(
        f"{where} is no longer filled by this move ({move}) but has {found}; another process took"
        " it back or completed it: look with 'interlock store info'"
    )
