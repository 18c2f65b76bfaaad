"""The answers about guards: verdicts of a check, outcomes of definitions, and views."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import item_outcomes
from interlock.core.decision import Success
from interlock.nouns.guards.condition import Verdict

CheckWord: TypeAlias = Literal["passed", "failed", "unknown"]
ActionWord: TypeAlias = Literal["", "block", "warn", "retry", "fail"]


class LeafVerdict(Struct, frozen=True, kw_only=True):
    """What the facts say about one leaf of a guard.

    A leaf under ``not`` is shown with its ``!``, and the verdict is that of the whole.
    """

    own_words = ("reason",)

    condition: str
    verdict: Verdict
    reason: str


class GuardVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check says about one guard; conditions of the caller have no name and no action."""

    outcome: CheckWord
    leaves: tuple[LeafVerdict, ...]
    acts: tuple[str, ...] = ()
    guard: str = ""
    action: ActionWord = ""
    message: str = ""


class GuardCheck(GuardVerdict, frozen=True, kw_only=True, omit_defaults=True):
    """Whether all guards of a check passed; it is true if they did.

    It describes the worst of them: one that failed, else one that is unknown.  ``guards`` has each,
    if there are several.  ``acts`` would clear it, and ``action`` says what its failure means to
    the things that it gates.
    """

    exit_statuses: ClassVar[str] = "0 or 1"
    exit_words: ClassVar[dict[int, tuple[str, ...]]] = {0: ("passed",), 1: ("failed", "unknown")}

    guards: tuple[GuardVerdict, ...] = ()

    def __bool__(self) -> bool:
        """Whether all passed; unknown is no pass."""
        return self.outcome == "passed"

    @property
    def exit_status(self) -> int:
        """0, or 1 if one of them failed or is unknown."""
        return int(not self)


class GuardsDefined(item_outcomes.Defined, frozen=True, kw_only=True, tag="defined"):
    """The guards are in the store: those that are new, that were changed, and that were so."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


class GuardDropped(item_outcomes.Dropped, frozen=True, kw_only=True, tag="dropped"):
    """The guard was deleted from the store.

    ``waiting`` are the first tasks of those that wait until a guard of this name is defined again.
    """

    guard: str
    waiting: tuple[str, ...] = ()


class GuardsLooked(Success, frozen=True, kw_only=True, tag="looked"):
    """What this host did for gates that wait for facts from outside.

    ``looks`` is how often it looked, ``guards`` are the names of the guards that it looked for, and
    ``changed`` those of them that there was news about: their gates were checked again.  Gates also
    wait for the guards ``not_allowed``, which this host does not allow.
    """

    looks: int
    guards: tuple[str, ...]
    changed: tuple[str, ...]
    not_allowed: tuple[str, ...] = ()


class LastObservation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a host last saw for a leaf; ``current`` if it is no older than the guard allows."""

    own_words = ("says",)

    condition: str
    value: bool | int | None
    says: str
    host: str
    at: float
    digest: str
    current: bool


class AllowingHost(Struct, frozen=True, kw_only=True):
    """A host that allows a guard.

    It is ``live`` if an agent has a live session there; ``looks`` says that a process there looks,
    again and again, for things that wait for the guard.
    """

    host: str
    live: bool
    looks: bool = False


class GuardView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A guard of the store.

    ``outside`` says whether it needs a host that looks at branches, files or commands; ``allowed``
    whether this host does that, below ``root``, and ``because`` why it does not; ``hosts`` are the
    other hosts that do.  ``definition`` is the lines of the guard in a definition file, ``stored``
    as the store has it.
    """

    own_words = ("definition",)

    guard: str
    condition: str
    action: ActionWord
    digest: str
    max_age: float
    outside: bool
    allowed: bool = False
    root: str = ""
    because: str = ""
    definition: tuple[str, ...] = ()
    stored: Any = None
    observations: tuple[LastObservation, ...] = ()
    hosts: tuple[AllowingHost, ...] = ()
