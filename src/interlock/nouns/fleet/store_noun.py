"""The declaration of operations on the store itself."""

from typing import TYPE_CHECKING, Annotated

from msgspec import field

from interlock.core.decision import Success
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


class StoreInfo(Request, frozen=True, kw_only=True):
    """Facts about the store."""


class StoreCopyRequest(Request, frozen=True, kw_only=True):
    """Move a whole store to another one."""

    source: Annotated[
        str, option("path", "the store to move: a file or a URL", positional=True)
    ] = field(name="from")
    target: Annotated[
        str, option("path", "an empty store: a new file, or a URL", positional=True)
    ] = field(name="to")
    abort: Annotated[
        bool, option("flag", "take an unfinished move back: use the old store again")
    ] = False
    lost: Annotated[
        bool,
        option("flag", "with --abort: the old store is lost for good, delete the incomplete copy"),
    ] = False
    damaged: Annotated[
        bool, option("flag", "also move a record that does not verify, as it is")
    ] = False


class StoreBackupRequest(Request, frozen=True, kw_only=True):
    """Back up a SQLite store while agents use it."""

    path: Annotated[str, option("path", "the file to write", positional=True)]
    force: Annotated[bool, option("flag", "replace this file if it exists")] = False


class StoreRestoreRequest(Request, frozen=True, kw_only=True):
    """Restore a SQLite store from a backup."""

    path: Annotated[str, option("path", "the backup", positional=True)]
    force: Annotated[
        bool, option("flag", "replace the store that is there; it is kept beside the new one")
    ] = False


class StoreCopied(Success, frozen=True, kw_only=True, tag="copied", omit_defaults=True):
    """A whole store is in another place, and the old one refuses all changes.

    ``digest`` is over all items, which were compared one by one; ``revision`` is that of the new
    store; ``resumed`` if an earlier run had begun it.
    """

    own_words = (
        "source",
        "target",
    )

    source: str
    target: str
    move: str
    items: int = 0
    entries: int = 0
    digest: str = ""
    revision: int = 0
    resumed: bool = False
    warning: str = ""
    seconds: float = 0.0


class CopyAborted(Success, frozen=True, kw_only=True, tag="aborted", omit_defaults=True):
    """A move was taken back: the source accepts changes again, if it was ``opened`` by this.

    ``lost`` if the caller said that there is no source any more.
    """

    own_words = (
        "source",
        "target",
        "left",
    )

    source: str
    target: str
    opened: bool = False
    lost: bool = False
    erased: int = 0
    left: str = ""


class StoreBackedUp(Success, frozen=True, kw_only=True, tag="backed_up"):
    """A consistent copy of the store at one revision is in a file."""

    own_words = (
        "store",
        "path",
    )

    store: str
    path: str
    revision: int
    items: int
    entries: int
    bytes: int


class StoreRestored(Success, frozen=True, kw_only=True, tag="restored", omit_defaults=True):
    """The store has the state of the backup; all sessions have ended.

    ``backup`` is the revision of the backup, ``lost`` how many revisions of the replaced store came
    after it, and ``revision`` where the store goes on: above every token that was ever granted.
    ``kept`` is where the replaced store is.
    """

    own_words = (
        "store",
        "path",
        "kept",
    )

    store: str
    path: str
    backup: int
    revision: int
    lost: int = 0
    kept: str = ""


def _info(fleet: "FleetCalls", _request: StoreInfo) -> "Op[dict[str, object]]":
    from interlock.core import codec, keys
    from interlock.nouns.record.seal_service import Sealing
    from interlock.steps import Read

    context = fleet.context
    record = yield from Sealing(context.runner, context.settings).facts()
    item = (yield Read(keys.STORE_ID))[keys.STORE_ID]
    named = {} if item is None else {"id": codec.Decoder(str).read(item)}
    return {**context.store.info(), **named, **record}


NOUN = Noun(
    name="store",
    help="the store that keeps the data",
    texts=("interlock.nouns.fleet.text",),
    operations=(
        Operation(
            name="store info",
            help="show facts about the store: location, size and durability",
            request=StoreInfo,
            outcomes=(dict,),
            needs="store",
            reads=True,
            act=_info,
        ),
        Operation(
            name="store copy",
            help="move a whole store to another engine or place, with its record",
            request=StoreCopyRequest,
            outcomes=(StoreCopied, CopyAborted),
            needs="nothing",
            in_shell="interlock.faces.cli.store:copy",
            examples=(
                "interlock store copy .interlock/store.db redis://localhost",
                "interlock store copy redis://localhost etcd://localhost/shop",
                "interlock store copy .interlock/store.db redis://localhost --abort",
            ),
        ),
        Operation(
            name="store backup",
            help="write a consistent copy of a SQLite store while agents use it",
            request=StoreBackupRequest,
            outcomes=(StoreBackedUp,),
            needs="nothing",
            in_shell="interlock.faces.cli.store:backup",
            examples=("interlock store backup /backups/store.backup",),
        ),
        Operation(
            name="store restore",
            help="replace a SQLite store by a backup, and fence everything granted since",
            request=StoreRestoreRequest,
            outcomes=(StoreRestored,),
            needs="nothing",
            in_shell="interlock.faces.cli.store:restore",
            examples=("interlock store restore /backups/store.backup --force",),
        ),
    ),
)
