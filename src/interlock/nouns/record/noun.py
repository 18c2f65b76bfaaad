"""The declaration of the record, and the outcomes of its operations.

``record verify`` gives three verdicts, and a position for each finding:

integrity     no entry and no item was changed, moved or added
completeness  no entry is missing in between, and the record agrees with the state
truncation    no entry is missing at the end; only a mark that was kept elsewhere can prove that
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import outcomes
from interlock.core.decision import Success
from interlock.core.entry import RecordLine
from interlock.core.filter import RecordFilter
from interlock.core.history import Story
from interlock.errors import BadInput
from interlock.runtime.noun import Noun, Part
from interlock.runtime.operation import Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Aspect: TypeAlias = Literal["integrity", "completeness", "truncation"]
Word: TypeAlias = Literal["ok", "bad", "unproven"]


class RecordLog(Request, frozen=True, kw_only=True):
    """What happened, in order."""

    after: Annotated[
        int | None, option("int", "the first entries after this revision, not the last ones")
    ] = None
    limit: Annotated[int, option("int", "how many entries at most", least=1)] = 100
    by: Annotated[str | None, option("name", "entries by or about this agent or session")] = None
    verb: Annotated[
        str | None,
        option("name", "entries with this verb: lock.acquire, or all of a noun: lock, task"),
    ] = None
    thing: Annotated[
        str | None, option("name", "entries about lock/merge, or just merge; task/t1; agent/ada")
    ] = None
    since: Annotated[
        str | None, option("text", "a duration back from now: 2h; or a time: 2026-11-15T10:00")
    ] = None
    until: Annotated[
        str | None, option("text", "a duration back or a time; a time without Z is local")
    ] = None
    trace: Annotated[str | None, option("name", "entries with this trace id")] = None
    follow: Annotated[bool, option("flag", "show new entries as they arrive, until stopped")] = (
        False
    )


class RecordExplain(Request, frozen=True, kw_only=True):
    """The story of one thing."""

    thing: Annotated[
        str,
        option(
            "name",
            "task/t1, lock/merge, or just their names; agent/ada; alert/built; an id",
            positional=True,
        ),
    ]
    limit: Annotated[
        int, option("int", "how many events at most, counted from the last", least=1)
    ] = 100


class RecordVerify(Request, frozen=True, kw_only=True):
    """Whether the record is unchanged."""

    anchor: Annotated[str | None, option("path", "where anchors are kept: a file, or git:REF")] = (
        None
    )
    against: Annotated[
        str | None, option("path", "an export to compare with: an older one, or that of a copy")
    ] = None


class RecordExport(Request, frozen=True, kw_only=True):
    """The record as a file that others can check."""

    out: Annotated[str | None, option("path", "the file to write instead of stdout")] = None
    after: Annotated[int | None, option("int", "only the entries after this revision")] = None
    checker: Annotated[
        bool, option("flag", "print the checker instead: a script that needs only Python")
    ] = False


class RecordAnchor(Request, frozen=True, kw_only=True):
    """A mark of the record, kept outside of the store."""

    place: Annotated[
        str, option("path", "a file to add it to, or git:REF of this repository", positional=True)
    ]


class Gap(Struct, frozen=True, kw_only=True, tag_field="gap", tag="trimmed"):
    """Entries after a revision may be gone: the rest begins at ``begins``; 0 if none is left."""

    after: int
    begins: int


class Entries(outcomes.Listing[RecordLine], frozen=True, kw_only=True):
    """Entries in the order in which they happened."""

    listed = "entries"

    entries: tuple[RecordLine, ...]
    gap: Gap | None = None


class NoHistory(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """The record does not know this thing."""

    thing: str


class RecordFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding against the record: the verdict that it breaks, its position, and a sentence."""

    own_words = ("says",)

    verdict: Aspect
    says: str
    revision: int = 0
    key: str = ""


class Compared(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record beside an export of it, or of a copy of its store.

    ``same``, ours is ``longer`` or ``shorter``, or they ``parted``: after ``common``, the last
    revision that both have, ours goes on at revision ``ours`` and the export at ``theirs``.
    """

    record: Literal["same", "longer", "shorter", "parted"]
    common: int = 0
    ours: int = 0
    theirs: int = 0


class EntriesOfKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entries that one key signed, or none: how many, from where to where, and of which agents.

    ``key`` is its fingerprint.  At most 100 agents are named.
    """

    key: str = ""
    entries: int
    begins: int
    ends: int
    agents: tuple[str, ...] = ()


class Verified(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record proves: three verdicts, and how far each goes.

    ``begins`` and ``ends`` are the revisions of the first and the last entry; ``sealed`` entries
    were read from segments, ``dropped`` ones are proven by their digest alone; ``anchored`` is the
    revision of the last anchor that is met; ``since`` is where completeness begins if it is
    unproven before; ``more`` counts the findings that are not listed.
    ``signed`` are the entries by the key that signed them, ``unsigned`` those without a signature;
    ``store`` is the id of the store that signed entries name.
    """

    exit_statuses: ClassVar[str] = "0 or 1"

    integrity: Word
    completeness: Word
    truncation: Word
    entries: int
    begins: int = 0
    ends: int = 0
    sealed: int = 0
    dropped: int = 0
    anchored: int = 0
    since: int = 0
    against: Compared | None = None
    signed: tuple[EntriesOfKey, ...] = ()
    unsigned: EntriesOfKey | None = None
    store: str = ""
    findings: tuple[RecordFinding, ...] = ()
    more: int = 0

    def __bool__(self) -> bool:
        """Whether nothing is bad."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """1 if a verdict is bad; an unproven one is not."""
        return int("bad" in (self.integrity, self.completeness, self.truncation))


class Anchored(Success, frozen=True, kw_only=True, tag="anchored"):
    """The record up to here is anchored: a later change or cut of it can be detected."""

    place: str
    revision: int
    entries: int
    digest: str


class Exported(Success, frozen=True, kw_only=True, tag="exported"):
    """The record is in the file: entries from ``begins`` to ``ends``, and the stamps of items."""

    path: str = ""
    entries: int
    items: int
    begins: int
    ends: int
    digest: str


def filters(request: RecordLog) -> dict[str, str | None]:
    """What a request asks of entries, as ``fleet.record.log`` takes it."""
    return {name: getattr(request, name) for name in RecordFilter.__struct_fields__}


def _log(fleet: "FleetCalls", request: RecordLog) -> "Op[Entries]":
    last = request.after is None
    found = yield from fleet.record.log(
        after=request.after or 0, limit=request.limit, last=last, **filters(request)
    )
    return Entries(
        entries=found, gap=(yield from gap(fleet, request.after)) if request.after else None
    )


def gap(fleet: "FleetCalls", after: int) -> "Op[Gap | None]":
    """What is missing after a revision, as far as the record shows: its oldest entries go first."""
    oldest = yield from fleet.record.log(limit=1, last=False)
    begins = oldest[0].revision if oldest else 0
    return None if 0 < begins <= after else Gap(after=after, begins=begins)


def _explain(fleet: "FleetCalls", request: RecordExplain) -> "Op[Story | NoHistory]":
    story = yield from fleet.record.explain(request.thing, limit=request.limit)
    return story if story.happenings else NoHistory(thing=story.thing)


def _verify(fleet: "FleetCalls", request: RecordVerify) -> "Op[Verified]":
    places = () if request.anchor is None else (request.anchor,)
    return fleet.record.verify(anchors=places, against=request.against)


def _export(fleet: "FleetCalls", request: RecordExport) -> "Op[Exported]":
    if not request.out:
        raise BadInput("where to? give --out FILE")
    return fleet.record.export(request.out, after=request.after or 0)


NOUN = Noun(
    name="record",
    help="the tamper-evident record of all changes",
    calls="interlock.nouns.record.calls:RecordCalls",
    health=Part(90, "interlock.nouns.record.seal_service:health"),
    housekeeping=Part(30, "interlock.nouns.record.seal_service:RecordHousekeepingPart"),
    texts=("interlock.nouns.record.text",),
    operations=(
        Operation(
            name="record log",
            help="list entries of the record: the last ones, or those after a revision",
            request=RecordLog,
            outcomes=(Entries,),
            lines=(RecordLine, Gap),
            needs="store",
            reads=True,
            pages=True,
            in_shell="interlock.faces.cli.streams:record_log",
            act=_log,
            examples=(
                "interlock record log --limit 20",
                "interlock record log --thing merge --since 2h",
                "interlock record log --follow --json",
            ),
        ),
        Operation(
            name="record explain",
            help="show the history of a lock, a task, a message or an agent",
            request=RecordExplain,
            outcomes=(Story, NoHistory),
            needs="store",
            reads=True,
            in_shell="interlock.faces.cli.streams:record_explain",
            act=_explain,
            examples=(
                "interlock record explain merge",
                "interlock record explain task/t1",
                "interlock record explain agent/ada",
            ),
        ),
        Operation(
            name="record verify",
            help="check whether the record was changed, lacks entries or was cut off",
            request=RecordVerify,
            outcomes=(Verified,),
            needs="store",
            reads=True,
            act=_verify,
            examples=(
                "interlock record verify --anchor ~/anchors.jsonl",
                "interlock record verify --against old.jsonl --json",
            ),
        ),
        Operation(
            name="record export",
            help="write the record as JSON Lines that others can check",
            request=RecordExport,
            outcomes=(Exported,),
            needs="store",
            reads=True,
            in_shell="interlock.faces.cli.streams:record_export",
            act=_export,
            examples=(
                "interlock record export --out record.jsonl",
                "interlock record export --checker > check_record.py",
            ),
        ),
        Operation(
            name="record anchor",
            help="save a mark of the record outside of the store, as proof for verify",
            request=RecordAnchor,
            outcomes=(Anchored,),
            needs="store",
            call="record.anchor",
            examples=(
                "interlock record anchor ~/anchors.jsonl",
                "interlock record anchor git:anchors",
            ),
        ),
    ),
)
