"""Given grants: grants that must live when a call is committed, or nothing happens.

A proof names a grant by its id (``held.check()``), or by its token, as a shell does:
``lock/deploy=12``.  The grant is read by the same decision, so the commit checks that it is still
there and lives.  A holder that comes too late changes nothing; the outcome names the grant that
is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from interlock import registry
from interlock.core import validate
from interlock.core.decision import Proof
from interlock.core.outcomes import GivenFenced
from interlock.core.safe_text import foreign
from interlock.core.thing_names import key_of, split_things
from interlock.errors import BadInput, InterlockError
from interlock.steps import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.store import Item

T = TypeVar("T")
Given: TypeAlias = Sequence[Proof | str]
"""Proofs, or grants by their tokens."""
Liveness: TypeAlias = "Callable[[Item, Proof, int, str], tuple[str, ...] | None]"
"""The function of a noun that finds the liveness keys of a grant in its item."""

_KINDS = {"lock": "lock", "sem": "semaphore", "task": "task"}
_HOW = "'given' takes what held.check() returns, or a grant by its token: lock/deploy=12"


class GivenExpired(InterlockError):
    """A given grant is over."""

    code = "fenced"
    exit_status = 1

    def __init__(self, thing: str) -> None:
        super().__init__(
            f"{foreign(thing)}, which this relies on, is no longer yours; acquire it again"
        )
        self.thing = thing


def proofs(given: Given) -> tuple[Proof, ...]:
    """The validated proofs."""
    if given == ():
        return ()
    if isinstance(given, str | Proof):
        raise BadInput(f"{_HOW}; in a list")
    return tuple(map(_proof, validate.require_iterable(given, "'given'")))


def _proof(each: Proof | str) -> Proof:
    if isinstance(each, Proof):
        return each
    thing, equals, token = validate.require_text(each, "grant").rpartition("=")
    kind, slash, name = thing.partition("/")
    if not equals or not slash or kind not in _KINDS or not validate.digits(token):
        raise BadInput(f"{each!r:.60} names no grant; {_HOW}")
    named = (
        validate.task_id(name) if kind == "task" else validate.name(name, f"{_KINDS[kind]} name")
    )
    return Proof(thing=f"{kind}/{named}", grant="", token=int(token))


def holds(proof: Proof, base: int, agent: str = "") -> ReadOp[bool]:
    """Whether a grant still exists in all of its pools, and lives.

    ``agent`` is its holder: slots that one commit granted to several agents share a token.
    """
    wanted = {key_of(thing): thing for thing in split_things(proof.thing)}
    items = (yield tuple(wanted)).items
    lives = [
        None if (item := items[key]) is None else _liveness(thing)(item, proof, base, agent)
        for key, thing in wanted.items()
    ]
    if None in lives or not lives[0]:
        return False
    return None not in (yield lives[0]).items.values()


def _liveness(thing: str) -> Liveness:
    noun = registry.noun(thing.partition("/")[0])
    if noun is None or not noun.proof:
        raise BadInput(f"{thing!r:.60} names no grant; {_HOW}")
    liveness: Liveness = registry.load(noun.proof)
    return liveness


def relying(deciding: DecideOp[T], given: Iterable[Proof], base: int, agent: str) -> DecideOp[T]:
    """Decide, if all of these grants live; the same commit checks their keys."""
    for proof in given:
        if not (yield from holds(proof, base, agent)):
            raise GivenExpired(proof.thing)
    return (yield from deciding)


def fenced(op: Op[T], runner: Runner, actor: Actor) -> Op[T | GivenFenced]:
    """The outcome of a call, or the given grant that is over."""
    try:
        return (yield from op)
    except GivenExpired as over:
        from interlock.runtime.refusals import count

        yield from count(runner, actor, over.code)
        return GivenFenced(given=over.thing)
