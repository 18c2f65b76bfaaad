"""The declaration of servers, apart from the others: its start is what an agent waits for."""

from typing import Annotated

from msgspec import field

from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Operation, Request, option


class McpRequest(Request, frozen=True, kw_only=True):
    """Serve tools to the model of an MCP host."""

    tools: Annotated[
        tuple[str, ...],
        option("names", "which tools: default, all, nouns such as task, or commands"),
    ] = ("default",)
    local: Annotated[
        bool, option("flag", "also tools and arguments that use files of this host")
    ] = False
    longest_wait: Annotated[
        Duration, option("duration", "how long a call waits at most; hosts give up on long calls")
    ] = 50.0
    ttl: Annotated[
        Duration, option("duration", "how long the session lives after its last heartbeat")
    ] = 30.0


class UpRequest(Request, frozen=True, kw_only=True):
    """Serve the page and the HTTP API."""

    port: Annotated[
        int, option("int", "the port to listen on; any free one with 0", most=65_535)
    ] = 7700
    host: Annotated[str, option("name", "the address to listen on")] = "127.0.0.1"
    socket: Annotated[
        str | None, option("path", "listen on this Unix socket, for its owner alone")
    ] = None
    name: Annotated[
        str | None, option("name", "the agent that the page acts as; person:USER unless set")
    ] = field(default=None, name="as")


NOUN = Noun(
    name="server",
    operations=(
        Operation(
            name="mcp",
            help="serve tools to a model, over standard input and output",
            request=McpRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.mcp.stdio:serve",
            examples=("interlock mcp --agent ada", "interlock mcp --tools default,pipeline"),
        ),
        Operation(
            name="up",
            help="serve the page and the HTTP API, on this machine unless told",
            request=UpRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.http.server:up",
            examples=("interlock up", "interlock up --port 0 --as maria"),
        ),
    ),
)
