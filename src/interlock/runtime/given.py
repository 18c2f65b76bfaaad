"""Given grants: grants that must live when a call is committed, or nothing happens.

A proof names a grant by its id (``held.check()``), or by its token, as a shell does:
``lock/deploy=12``.  The grant is read by the same decision, so the commit checks that it is still
there and lives.  A holder that comes too late changes nothing; the outcome names the grant that
is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from interlock.core import validate
from interlock.core.decision import Proof
from interlock.core.outcomes import GivenFenced
from interlock.core.thing_names import key_of, split_things
from interlock.drivers import Op
from interlock.errors import BadInput, InterlockError
from interlock.nouns.grants.pool_reader import lives_by, lives_by_token

if TYPE_CHECKING:
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.store import Item

T = TypeVar("T")
Given: TypeAlias = Sequence[Proof | str]
"""Proofs, or grants by their tokens."""

_KINDS = {"lock": "lock", "sem": "semaphore", "task": "task"}
_HOW = "'given' takes what held.check() returns, or a grant by its token: lock/deploy=12"


class GivenExpired(InterlockError):
    """A given grant is over."""

    code = "fenced"
    exit_status = 1

    def __init__(self, thing: str) -> None:
        super().__init__(f"{thing}, which this relies on, is no longer yours; acquire it again")
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
    wanted = tuple([key_of(thing) for thing in split_things(proof.thing)])
    items = (yield wanted).items
    lives = [_lives_by(items[key], proof, base, agent) for key in wanted]
    if None in lives or not lives[0]:
        return False
    return None not in (yield lives[0]).items.values()


def _lives_by(item: Item | None, proof: Proof, base: int, agent: str) -> tuple[str, ...] | None:
    """The liveness keys of the grant; None if it does not exist."""
    if proof.grant or item is None:
        return lives_by(item, proof.grant)
    return lives_by_token(item, proof.token, base, agent)


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
