"""The declaration of servers, apart from the others: its start is what an agent waits for."""

from typing import Annotated

from msgspec import Struct, field

from interlock.core import keys
from interlock.core.decision import Success
from interlock.core.outcomes import Listing, Nothing
from interlock.runtime.noun import KeyKind, Noun
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
    longest_wait: Annotated[
        Duration, option("duration", "how long a call waits at most; proxies give up on long calls")
    ] = 50.0
    open_: Annotated[
        bool, option("flag", "want no token: every user and container of this machine may act")
    ] = field(default=False, name="open")
    require_token: Annotated[
        bool, option("flag", "accept the tokens of the store alone, not that of your user")
    ] = False
    allow_host: Annotated[
        tuple[str, ...], option("names", "another name by which callers reach this server")
    ] = ()
    watch_branch: Annotated[
        tuple[str, ...],
        option("names", "alert all agents when this branch of the repository here moves: main"),
    ] = ()
    token: Annotated[
        str | None,
        option("name", "make a token with this role (read, act, admin), print it once, and end"),
    ] = None
    list_tokens: Annotated[bool, option("flag", "list the tokens, and end")] = False
    revoke: Annotated[str | None, option("name", "revoke the token with this id, and end")] = None


class OpenRequest(Request, frozen=True, kw_only=True):
    """Find the page."""

    browser: Annotated[bool, option("flag", "show it in a browser")] = False


class Serving(Success, frozen=True, kw_only=True, tag="serving"):
    """The server listens; ``agent`` is the one that its page acts as.

    ``token`` is that of the user, unless the output is a file, or none is needed.
    """

    own_words = ("url",)

    url: str
    agent: str
    token: str = ""


class TokenMade(Success, frozen=True, kw_only=True, tag="token_made"):
    """The token, which is shown this once; the store has only its hash."""

    id: str
    role: str
    agent: str
    token: str


class TokenRevoked(Success, frozen=True, kw_only=True, tag="token_revoked"):
    """No server accepts the token any more, a few seconds from now at the latest."""

    id: str


class NoToken(Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is no token with this id."""

    id: str


class TokenView(Struct, frozen=True, kw_only=True):
    """A token, without its secret: the role, the agent that it speaks for, who made it and when."""

    id: str
    role: str
    agent: str
    by: str
    at: float


class TokenList(Listing[TokenView], frozen=True, kw_only=True):
    """All tokens of the servers of this store."""

    listed = "tokens"

    tokens: tuple[TokenView, ...]


class ServerAddress(Success, frozen=True, kw_only=True, tag="address"):
    """Where a server of this store runs; ``opened`` if a browser was asked to show its page.

    ``token`` is that of the user, if the user started the server.
    """

    own_words = ("url",)

    url: str
    host: str
    agent: str
    token: str = ""
    opened: bool = False


class NoServer(Nothing, frozen=True, kw_only=True, tag="nothing"):
    """No server of this store runs, as far as the store knows."""


class WarmRequest(Request, frozen=True, kw_only=True):
    """Keep a process warm, so that commands need not start Python's modules."""

    idle: Annotated[
        Duration, option("duration", "end after so long without a command", forever=True)
    ] = 3600.0
    stop: Annotated[bool, option("flag", "end the process that is warm now")] = False


NOUN = Noun(
    name="server",
    texts=("interlock.nouns.fleet.server_text",),
    keys=(
        KeyKind(
            prefix=keys.SERVER_TOKENS, read="interlock.nouns.fleet.server_service:decode_token"
        ),
    ),
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
            help="serve the page, the HTTP API, MCP and A2A; by default on this machine",
            request=UpRequest,
            outcomes=(
                Serving,
                TokenMade,
                TokenList,
                TokenRevoked,
                NoToken,
            ),
            needs="nothing",
            in_shell="interlock.faces.http.server:up",
            examples=(
                "interlock up",
                "interlock up --host 0.0.0.0 --port 7700",
                "interlock up --watch-branch main",
                "interlock up --token act --as ada",
            ),
        ),
        Operation(
            name="open",
            help="print the address of this store's page, or show it in a browser",
            request=OpenRequest,
            outcomes=(ServerAddress, NoServer),
            needs="store",
            reads=True,
            in_shell="interlock.faces.http.server:open_page",
            examples=("interlock open", "interlock open --browser"),
        ),
        Operation(
            name="warm",
            help="keep a process ready that makes other commands quicker",
            request=WarmRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.warm_server:serve",
            examples=("interlock warm &", "interlock warm --stop"),
        ),
    ),
)
