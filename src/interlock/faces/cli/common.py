"""The options of every command."""

from typing import Annotated

from interlock.runtime.operation import Request, option


class Common(Request, frozen=True, kw_only=True):
    """The options of every command."""

    store: Annotated[
        str | None,
        option("text", "a path, redis://HOST or etcd://HOST (or INTERLOCK_STORE)"),
    ] = None
    agent: Annotated[str | None, option("name", "who you are (or INTERLOCK_AGENT)")] = None
    session: Annotated[
        str | None, option("name", "the session to act in (or INTERLOCK_SESSION)")
    ] = None
    trace: Annotated[
        str | None, option("name", "a trace id for the entries in the record (or INTERLOCK_TRACE)")
    ] = None
    no_retry: Annotated[
        bool, option("flag", "end a wait with an error when the store does not answer for 10 s")
    ] = False
    json: Annotated[bool, option("flag", "one JSON object on stdout, errors too")] = False
    quiet: Annotated[
        bool, option("flag", "print only the result: a token, an id, an answer, a list")
    ] = False
    verbose: Annotated[int, option("count", "log to stderr; twice for debug messages")] = 0
    help: Annotated[bool, option("flag", "this text")] = False
