"""Pushes until the outcome is known, and asks the remote until it answers.

A push that ends without an answer may take effect later, even after a read of the branch said that
it did not.  To settle it, an empty commit is pushed on the same old head.  If that lands, the first
push never can.  If it is lost, the branch has moved, and the own batch is in it or is not.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from interlock.errors import StoreAway, StoreBusy, StoreFull, StoreRefused, StoreTrouble
from interlock.steps import CALL, restart_call
from interlock.stores.git.repository import (
    NO_ROOM,
    PushAnswer,
    RefMove,
    RemoteAway,
    Repository,
    one_of_a_kind,
)
from interlock.stores.network import pauses

T = TypeVar("T")

_LEAST = 4
"""The part of the time for an answer that a request has at the end of its call."""
_LATELY, _LONGEST_NOTE = 30.0, 1000
_SETTLE = "Settle a push without an answer"
_log = logging.getLogger("interlock")


class PushUnknown(StoreAway):
    """A push may still take effect, and the remote does not answer."""


class MoveRefused(StoreRefused):
    """The remote does not take what a push would do to a ref; it may take another push."""


class PushResult(Struct, frozen=True):
    """Whether a push landed, and where the branch is if it was fetched since."""

    landed: bool
    head: str = ""


class Publisher:
    """Asks and pushes with patience; knows whether the remote answers."""

    def __init__(self, repository: Repository, reply: float, note: str) -> None:
        self._repository = repository
        self._reply = reply
        self._note = note
        """The file in which the processes of this host note an outage for each other."""
        self._began = 0.0
        """When the last request began."""
        self._away: tuple[float, str] | None = None

    @property
    def outage(self) -> str:
        """Why the remote does not answer, and since when; empty while it does."""
        away = self._away
        if away is None:
            return ""
        where = self._repository.shown
        return f"{where} does not answer for {time.monotonic() - away[0]:.0f} s ({away[1]})"

    @property
    def trouble(self) -> StoreAway | None:
        """The error of a call that did not come to its request, if the remote does not answer."""
        away = self._away or self._noted()
        return None if away is None else RemoteAway(self._repository.shown, away[1])

    def gives_up(self, patience: float) -> float:
        """When the call that is being driven gives up, if it began to ask at this moment."""
        now, call = time.monotonic(), CALL.get()
        if (away := self._away) is None or call is None:
            restart_call()
            return now + patience
        return min(now + patience, call.gives_up(away[0], patience))

    def look(self, ends: float) -> dict[str, str]:
        """Where the refs of the remote are."""
        return self._reach(lambda: self._repository.look(self._limit(ends)), ends)

    def fetch(self, ends: float, *, shallow: bool = False, seen: str | None = None) -> str:
        """Bring the news of the branch; returns the commit that it is at."""
        return self._reach(
            lambda: self._repository.fetch(self._limit(ends), shallow=shallow, seen=seen), ends
        )

    def peek(self, base: str) -> str:
        """Where the branch may be now, if that is known at little cost; else empty."""
        found = self._repository.glance(base, self._reply / 4)
        return found.get(self._repository.address.ref, "")

    def push_once(self, *moves: RefMove) -> PushAnswer:
        """Move refs, all or none, without a retry."""
        self._began = time.monotonic()
        answer = self._repository.push(*moves, atomic=True, limit=self._reply)
        if answer.kind in ("unsent", "unknown"):
            self._note_outage(answer.said)
        else:
            self._note_answer()
        return answer

    def publish(
        self, moves: Sequence[RefMove], holds: Callable[[str], bool], ends: float
    ) -> PushResult:
        """Push until it is known whether the refs moved; ``holds`` finds the own batch."""
        delays, again = pauses(), False
        while True:
            self._began = time.monotonic()
            answer = self._repository.push(*moves, limit=self._limit(ends))
            match answer.kind:
                case "lost" | "unknown" if again or answer.kind == "unknown":
                    # Also lost to the own push, perhaps: git may not know that it was sent.
                    return self._settle(answer, moves[0], holds, ends)
                case "landed" | "there" | "lost":
                    self._note_answer()
                    return PushResult(answer.kind != "lost")
                case "refused":
                    raise self.refusal(answer)
                case "unsent":
                    self._note_outage(answer.said)
                case "full":
                    return self._settle(answer, moves[0], holds, ends)
                case "locked":
                    head = self.fetch(ends, seen="")
                    if len(moves) > 1 or head != moves[0].old:
                        return PushResult(holds(head), head)
            again = True
            if not _pause(delays, ends):
                raise self.given_up(answer, *[move.ref for move in moves])

    def given_up(self, answer: PushAnswer, *refs: str) -> StoreTrouble:
        """The error of a push for which the patience is over."""
        if answer.kind in ("unsent", "unknown"):
            return self._repository.trouble(answer.said)
        return StoreBusy(
            f"{self._repository.shown} cannot move the branch ({answer.said});"
            f" {self._repository.left_locks.way(refs)}"
        )

    def _settle(
        self, answer: PushAnswer, branch: RefMove, holds: Callable[[str], bool], ends: float
    ) -> PushResult:
        """Find out whether a push without an answer took effect, and see that it never will.

        An error in between leaves it unknown: else the works would run a second time.
        """
        try:
            if answer.kind == "full" and self.look(ends).get(branch.ref) == branch.old:
                full = self.refusal(answer)  # git has ended, so that is where the branch stays
            else:
                return self._void(answer, branch, holds, ends)
        except PushUnknown:
            raise
        except (StoreTrouble, OSError) as error:
            raise PushUnknown(f"a push ended without an answer, and then: {error}") from error
        raise full

    def _void(
        self, answer: PushAnswer, branch: RefMove, holds: Callable[[str], bool], ends: float
    ) -> PushResult:
        """Push an empty commit in the place of a push without an answer."""
        repository, delays, said = self._repository, pauses(), answer.said
        tree = repository.root_id(branch.old)
        while True:
            self._note_outage(said)
            void = repository.write_commit(tree, branch.old, one_of_a_kind(_SETTLE))
            limit = self._limit(ends)
            found = repository.push(RefMove(branch.ref, branch.old, void), limit=limit)
            if found.kind in ("landed", "there"):
                self._note_answer()
                return PushResult(landed=False)
            if found.kind in ("lost", "locked") and (head := self._head()) not in ("", branch.old):
                self._note_answer()
                return PushResult(landed=holds(head), head=head)
            said = found.said or said
            if not _pause(delays, ends):
                raise PushUnknown(
                    str(self.given_up(found, branch.ref))
                    if found.kind == "locked"
                    else f"{repository.shown} did not answer ({said}); see that it can be reached"
                )

    def _head(self) -> str:
        try:
            return self._repository.fetch(self._reply)
        except StoreAway:
            return ""

    def refusal(self, answer: PushAnswer) -> StoreTrouble:
        """The error of a push that the remote does not take."""
        where = self._repository.shown
        if NO_ROOM.search(answer.said):
            return StoreFull(f"{where} has no room ({answer.said}); free some space there")
        kind = MoveRefused if answer.of_ref else StoreRefused
        return kind(
            f"{where} refuses the push ({answer.said}); let this user push to the branch,"
            " or name another branch: ?branch="
        )

    def _reach(self, ask: Callable[[], T], ends: float) -> T:
        """Ask until there is an answer, at least once, at most until a moment."""
        delays = pauses()
        while True:
            self._began = time.monotonic()
            try:
                answer = ask()
            except RemoteAway as error:
                self._note_outage(error.said)
                if not _pause(delays, ends):
                    raise
            else:
                self._note_answer()
                return answer

    def _limit(self, ends: float) -> float:
        """Seconds for a request: in an outage not beyond the time of its call, but some."""
        if self._away is None:
            return self._reply
        return min(self._reply, max(self._reply / _LEAST, ends - time.monotonic()))

    def _noted(self) -> tuple[float, str] | None:
        """Since when and why the remote does not answer, as a process of this host noted lately."""
        try:
            with open(self._note, encoding="utf-8") as file:
                since, last, said = file.read(_LONGEST_NOTE).split(" ", 2)
            recent = 0 <= time.monotonic() - float(last) <= _LATELY
            return (float(since), said) if recent else None
        except (OSError, ValueError):
            return None

    def _note_outage(self, said: str) -> None:
        if (away := self._away) is None:
            noted = self._noted()
            away = (self._began if noted is None else min(noted[0], self._began), said)
            self._away = away
            _log.warning("%s does not answer (%s); trying again", self._repository.shown, said)
        with suppress(OSError), open(self._note, "w", encoding="utf-8") as file:
            file.write(f"{away[0]} {time.monotonic()} {said}")

    def _note_answer(self) -> None:
        if self._away is not None:
            seconds = time.monotonic() - self._away[0]
            self._away = None
            with suppress(OSError):
                os.unlink(self._note)
            _log.warning("%s answers again after %.1f s", self._repository.shown, seconds)


def _pause(delays: Iterator[float], ends: float) -> bool:
    """Wait for the next attempt; False if the time would be over."""
    delay = next(delays)
    if time.monotonic() + delay > ends:
        return False
    time.sleep(delay)
    return True
