"""The declaration of the message feed: what all agents write, for operators."""

from typing import TYPE_CHECKING, Annotated

from msgspec import field

from interlock.nouns.messages import message
from interlock.nouns.messages.message import MessageList
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


class MessagesList(Request, frozen=True, kw_only=True):
    """List the messages of all agents."""

    kind: Annotated[str | None, option("name", f"only these: {', '.join(message.KINDS)}")] = None
    senders: Annotated[tuple[str, ...], option("names", "only from these agents")] = field(
        name="from", default=()
    )
    to: Annotated[str, option("name", "only to this agent")] = ""
    type: Annotated[str, option("name", "only of this type")] = ""
    thread: Annotated[str, option("name", "only of this thread")] = ""
    search: Annotated[str, option("text", "only with this text in it")] = ""
    open: Annotated[bool, option("flag", "only questions that are still open")] = False
    before: Annotated[int | None, option("int", "only older ones than this 'seq'")] = None
    limit: Annotated[
        int, option("int", "how many to list at most", least=1, most=message.SHOWN_LIMIT)
    ] = 100


def _list(fleet: "FleetCalls", request: MessagesList) -> "Op[MessageList]":
    return fleet.messages.list(
        kind=request.kind,
        sender=request.senders,
        to=request.to,
        type=request.type,
        thread=request.thread,
        search=request.search,
        open=request.open,
        before=request.before,
        limit=request.limit,
    )


NOUN = Noun(
    name="feed",
    help="what all agents write to each other, for operators",
    group="messages",
    texts=("interlock.nouns.messages.text",),
    operations=(
        Operation(
            name="message list",
            help="list the messages of all agents, newest first",
            request=MessagesList,
            outcomes=(MessageList,),
            needs="store",
            reads=True,
            pages=True,
            act=_list,
            examples=(
                "interlock message list --thread plan",
                "interlock message list --kind query --open",
            ),
        ),
    ),
)
