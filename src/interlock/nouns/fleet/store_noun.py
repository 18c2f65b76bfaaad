"""The declaration of operations on the store itself."""

from typing import TYPE_CHECKING

from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


class StoreInfo(Request, frozen=True, kw_only=True):
    """Facts about the store."""


def _info(fleet: "FleetCalls", _request: StoreInfo) -> "Op[dict[str, object]]":
    from interlock.nouns.record.seal_service import Sealing

    context = fleet.context
    record = yield from Sealing(context.runner, context.settings).facts()
    return {**context.store.info(), **record}


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
    ),
)
