"""The calls of reservations: arguments are validated, and the service carries them out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, cast, get_args

from interlock.core import validate
from interlock.errors import BadInput, TooLarge
from interlock.nouns.reservations import pattern
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.pattern_text import LONGEST
from interlock.nouns.reservations.repository import ReservedRepository, find
from interlock.runtime.attempt import DecideOp
from interlock.runtime.calls import Calls, D, call, grants, patiently
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.reservations.service import ReservationService


class ReservationCalls(Calls[D]):
    """Reservations of files, by path or glob.

    The repository is that of the working directory, unless a call names another.
    """

    @cached_property
    def _service(self) -> ReservationService:
        from interlock.nouns.reservations.service import ReservationService

        return ReservationService(self.context.runner, self.context.grants)

    @grants
    def reserve(
        self,
        *patterns: str,
        shared: bool = False,
        ttl: float | str | None = None,
        reason: str = "",
        on_conflict: str = "deny",
        wait: float | str = 0,
        worktree: str = "",
        repository: str = "",
    ) -> Op[r.ReserveOutcome]:
        """Reserve paths and globs: all of them, or nothing.

        If another agent has reserved a path that one of them covers, the outcome is
        ``ReservationConflict`` with such a path.  ``on_conflict`` may be ``queue``, for a place in
        the queue that stays (``ReservationQueued``), or ``warn``, to reserve it all the same.
        With ``wait`` the call queues and sleeps.  Two ``shared`` ones never conflict.  The same
        again is ``ReservationExtended``.  With ``worktree``, the root of a worktree, it does not
        concern reservations for other worktrees.
        """
        place = _place(repository)
        texts = pattern_texts(patterns, place)
        if on_conflict not in get_args(r.OnConflict):
            raise BadInput(f"on_conflict is deny, queue or warn, not {on_conflict!r:.40}")

        def attempt(left: float | str) -> Op[r.ReserveOutcome]:
            from interlock.nouns.reservations.service import ReserveOptions

            patience = self.context.checked_wait(left)
            lives, _ = self.context.terms({}, ttl, None)
            options = ReserveOptions(
                repository=place.name,
                patterns=texts,
                shared=validate.flag(shared, "shared"),
                ttl=lives,
                reason=validate.text(reason, "reason", validate.REASON_LIMIT).strip(),
                tree=validate.text(worktree, "worktree", LONGEST),
                fold=place.fold,
                on_conflict=cast("r.OnConflict", on_conflict),
                wait=patience,
            )
            return self._service.reserve(self.context.me(), options)

        return patiently(self.context, "a wait for files", attempt, wait)

    @call
    def unreserve(
        self,
        *patterns: str,
        token: int | None = None,
        all: bool = False,  # noqa: A002 - the word that people use
        holder: str | None = None,
        reason: str = "",
        repository: str = "",
    ) -> Op[r.UnreserveOutcome]:
        """End your reservations for exactly these patterns, with this token, or all of them.

        Waiters are served in the same commit.  With ``holder`` and a ``reason`` an operator ends
        those of another agent.
        """
        from interlock.nouns.reservations.views import unreserve

        place = _place(repository)
        texts = pattern_texts(patterns, place) if patterns else ()
        if not texts and validate.token(token) is None and not validate.flag(all, "all"):
            raise BadInput("what is to be released? give the patterns, a token, or all (--all)")
        other = "" if holder is None else _holder(holder)
        return unreserve(
            self._service,
            self.context.me().actor,
            place.name,
            texts,
            token,
            holder=other,
            reason=validate.reason(reason) if other else "",
        )

    @call
    def override(self, *paths: str, reason: str, repository: str = "") -> Op[r.Overridden]:
        """Record that paths are changed in spite of their reservations, and why.

        It changes no reservation: git hooks and other gates call it when a person, or an agent,
        overrides them.
        """
        from interlock.nouns.reservations.rules import override

        place, actor = _place(repository), self.context.me().actor
        id_, said = self.context.runner.new_id("rsv"), validate.reason(reason)

        def deciding() -> DecideOp[r.Overridden]:
            yield ()
            return override(id_, actor.agent, place.name, paths, said)

        return (yield from self.context.runner.change(deciding, actor)).outcome

    @call
    def list(
        self,
        *paths: str,
        holder: str | None = None,
        repository: str = "",
        all: bool = False,  # noqa: A002 - the word that people use
        limit: int = r.LISTED,
    ) -> Op[r.ReservationList]:
        """The reservations of the repository; those that overlap a path, or of one holder.

        With ``all`` those of every repository that agents of this store work in.
        """
        from interlock.nouns.reservations.views import list_reservations

        place = _place(repository)
        return list_reservations(
            self.context.runner,
            place,
            pattern_texts(paths, place) if paths else (),
            "" if holder is None else _holder(holder),
            validate.limit(limit),
            everywhere=validate.flag(all, "all"),
        )

    @call
    def conflicts(
        self,
        paths: Iterable[str],
        *,
        agent: str = "",
        worktree: str = "",
        repository: str = "",
    ) -> Op[tuple[r.ReservationOverlap, ...]]:
        """The living reservations of other agents that cover one of these paths.

        Paths are those of files from the root of the repository, as ``git diff --name-only`` prints
        them, and no globs.  ``agent`` is the agent that changed them, the caller if left out.
        Reservations that only wait do not count.
        """
        from interlock.nouns.reservations.views import conflicts

        place = _place(repository)
        if isinstance(paths, str):
            raise BadInput(f"'paths' takes a list of paths; put brackets around {paths!r:.60}")
        mine = validate.agent_name(agent) if agent else (self.context.agent or "")
        return conflicts(place, tuple(paths), mine, worktree)


def pattern_texts(texts: Iterable[str], place: ReservedRepository) -> tuple[str, ...]:
    """Patterns as a caller wrote them, each once."""
    found = tuple(dict.fromkeys(each for text in texts for each in place.patterns(text)))
    if not found:
        raise BadInput("no pattern was given; give a path or a glob, such as 'src/*.py'")
    if len(found) > r.PATTERNS:
        raise TooLarge(
            f"these are {len(found)} patterns; one reservation may have {r.PATTERNS}:"
            " reserve the folder, or use a glob"
        )
    return tuple(pattern.parse(text, fold=place.fold).text for text in found)


def _place(repository: str) -> ReservedRepository:
    place = find()
    if not repository:
        return place
    name = validate.name(repository, "name of the repository")
    return (
        place
        if name == place.name
        else ReservedRepository(name, place.root, place.fold, named=True)
    )


def _holder(text: str) -> str:
    """The name of the agent whose reservations are meant; no agent is called '' or ``all``."""
    name = validate.agent_name(text)
    return validate.own_agent_name(name, proven=name)
