"""Operations on the store itself."""

from typing import TYPE_CHECKING

from interlock.runtime.operation import Operation, Request

if TYPE_CHECKING:
    from interlock.client import Fleet


class StoreInfo(Request, frozen=True, kw_only=True):
    """Facts about the store."""


def _info(fleet: "Fleet", _request: StoreInfo) -> dict[str, object]:
    from interlock.drivers import drive
    from interlock.nouns.record.sealing import Sealing

    context = fleet.calls.context
    record = drive(Sealing(context.runner, context.settings).facts(), fleet.store)
    return {**fleet.store.info(), **record}


OPERATIONS = (
    Operation(
        name="store info",
        help="facts about the store: where, how large, how durable",
        request=StoreInfo,
        outcomes=(dict,),
        needs="store",
        act=_info,
    ),
)
