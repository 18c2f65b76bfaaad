"""``interlock up``: sockets, start and shutdown.

The server ends within a second of SIGTERM or Ctrl-C, with the status 0: it first ends the streams
and waits, then lets the other requests finish, ends the sessions of models and closes the store.
While the store does not answer it takes longer, since calls to it cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from interlock import store_location
from interlock.core import validate
from interlock.errors import BadInput, NotAllowedYet, StoreGone
from interlock.faces.cli.command import answer, note
from interlock.faces.cli.connect import (
    CommandIdentity,
    hush,
    opened,
    person_name,
    proven_person,
    speak_up,
    tell_if_new,
    url_of,
)
from interlock.faces.http import user_token
from interlock.nouns.fleet.server_noun import NoServer, ServerAddress, Serving
from interlock.steps import drive
from interlock.stores import is_network

if TYPE_CHECKING:
    from types import FrameType

    from interlock.faces.cli.parse import Parsed
    from interlock.faces.http.access import Access, StoreTokens
    from interlock.faces.http.app import WebServer
    from interlock.faces.http.connections import Listener
    from interlock.nouns.fleet.server_noun import UpRequest
    from interlock.nouns.fleet.server_service import ServerPlace
    from interlock.steps import Op
    from interlock.store import Store

MISSING = (
    "'interlock up' needs two more packages; run:"
    " pip install 'interlock[web]' ('.[web]' in a clone)"
)
_PATIENCE = 2
"""Seconds that requests have to finish when the server ends."""
_UVICORN: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "lifespan": "off",
    "server_header": False,
    "date_header": True,
    "timeout_keep_alive": 30,
    "ws": "none",
    "timeout_graceful_shutdown": _PATIENCE,
    "h11_max_incomplete_event_size": 64 * 1024,
}


def up(parsed: Parsed) -> int:
    """Serve until a signal ends it."""
    request: UpRequest = parsed.request
    if request.token is not None or request.list_tokens or request.revoke is not None:
        return _tokens(parsed, request)
    try:
        import uvicorn  # noqa: F401
        from starlette import applications  # noqa: F401
    except ImportError:
        raise BadInput(MISSING) from None
    server = _server(parsed, request)
    bound = _bound_unix(request.socket) if request.socket else _bound(request.host, request.port)
    address = request.socket or _address(bound)
    if not request.socket:  # cookies of one host are shared by all ports
        server.access.cookie = f"interlock_{bound.getsockname()[1]}"
    _say_address(parsed, request, server, address)
    try:
        asyncio.run(_serve(server, bound, address))
    finally:
        server.close()
        if request.socket:
            with suppress(OSError):
                os.unlink(request.socket)
    return 0


def _say_address(parsed: Parsed, request: UpRequest, server: WebServer, address: str) -> None:
    """Print the address; the token with it, unless the output is a log that others may read."""
    own, agent = server.access.own, server.access.agent
    hidden = own is not None and not own.unkept and _is_log(1)
    answer(parsed, Serving(url=address, agent=agent, token=own.token if own and not hidden else ""))
    if hidden:
        note("the token is not written into a file; 'interlock open' prints the address with it")
    if own is not None and own.unkept:
        note(f"the token is for this run alone: {own.unkept}")
    if request.open_ and not request.socket:
        note(f"every user and container of this machine may do everything here, as {agent}")
    elif not server.access.open and own is None:
        note("every request needs a token; 'interlock up --token act --as NAME' makes one")


def _is_log(descriptor: int) -> bool:
    """Whether what is written is kept for others to read: in a file, or by the system's journal."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _server(parsed: Parsed, request: UpRequest) -> WebServer:
    """What all requests share, on the store that the command means."""
    from interlock.faces.http.access import StoreTokens
    from interlock.faces.http.app import WebServer
    from interlock.faces.http.clients import Clients
    from interlock.faces.http.judging import RecordJudging
    from interlock.faces.http.parts import branch_works

    identity = CommandIdentity(parsed.common, anew=True)
    agent = _page_name(request.name)
    place = _named(identity.store) or store_location.find_store()
    if is_network(place):
        hush()
    clients = Clients(lambda: _opened(place), key=identity.key or "")
    tell_if_new(clients.store)
    place = url_of(clients.store, place)  # the command may leave its folder
    speak_up()
    access = _access(request, agent, StoreTokens(clients))
    server = WebServer(clients, access, validate.duration(request.longest_wait, "longest wait"))
    server.works = {
        "record": RecordJudging(place).run,
        **branch_works(request.watch_branch, os.getcwd(), clients),
    }
    return server


def _page_name(given: str | None) -> str:
    """The agent that the page acts as: the person in front of it, unless a name is given."""
    return validate.own_agent_name(given, proven=proven_person()) if given else person_name()


def _access(request: UpRequest, agent: str, tokens: StoreTokens) -> Access:
    """Which callers are accepted."""
    from interlock.faces.http.access import Access, is_loopback, listening_names

    local = is_loopback(request.host)
    if request.open_ and (request.require_token or not (request.socket or local)):
        raise BadInput("--open is for a server on this machine; leave out --host, --require-token")
    open_ = request.open_ or (request.socket is not None and not request.require_token)
    return Access(
        agent=agent,
        hosts={*request.allow_host, *listening_names(request.host)},
        open_=open_,
        tokens=tokens,
        own=None if open_ or not local or request.require_token else user_token.made(),
    )


def _tokens(parsed: Parsed, request: UpRequest) -> int:
    """Make, list or revoke tokens."""
    from interlock.faces.hooks.git import agent_here
    from interlock.nouns.fleet import server_service as service

    if sum((request.token is not None, request.list_tokens, request.revoke is not None)) > 1:
        raise BadInput("give one of --token, --list-tokens and --revoke")
    identity = CommandIdentity(parsed.common)
    agent = identity.agent or proven_person() or agent_here() or None
    with opened(identity.store, agent=agent, join=False, create=False) as fleet:
        runner, actor = fleet.context.runner, fleet.context.identity.actor
        op: Op[Any]
        if request.token is not None:
            op = service.make_token(runner, actor, request.token, request.name or "")
        elif request.revoke is not None:
            op = service.revoke_token(runner, actor, request.revoke)
        else:
            op = service.list_tokens()
        return answer(parsed, drive(op, fleet.store))


def open_page(parsed: Parsed) -> int:
    """Print the address of a server of this store, or show its page."""
    from interlock.faces.cli.connect import connected
    from interlock.nouns.fleet.server_service import running_servers

    with connected(parsed) as fleet:
        found = drive(running_servers(), fleet.store)
    here, token = os.uname().nodename, user_token.kept() or ""

    def own(place: ServerPlace) -> bool:
        proof = user_token.proof(token, place.url)
        return bool(token) and hmac.compare_digest(proof, place.proof)

    found.sort(key=lambda each: (each.host != here, not own(each)))
    if not found:
        return answer(parsed, NoServer())
    first = found[0]
    about = ServerAddress(
        url=first.url, host=first.host, agent=first.agent, token=token if own(first) else ""
    )
    shown = parsed.request.browser and _shown(about)
    return answer(parsed, msgspec.structs.replace(about, opened=shown))


def _shown(about: ServerAddress) -> bool:
    import webbrowser

    url = about.url
    if not url.startswith("http"):
        raise BadInput(f"a browser cannot show a Unix socket; start a server with --port: {url}")
    if about.token:
        url += f"?token={user_token.ticket(about.token, time.time())}"
    if webbrowser.open(url):
        return True
    note("there is no browser to show it; open the address yourself")
    return False


async def _serve(server: WebServer, bound: Listener, address: str) -> None:
    import uvicorn

    from interlock.faces.http.app import make_app
    from interlock.faces.http.connections import (
        BACKLOG,
        Connection,
        Connections,
        OnceAMinute,
        most_connections,
    )

    class Uvicorn(uvicorn.Server):
        """Ends the streams first; by itself uvicorn would wait for them without limit."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            server.stop()
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """A signal is an ordinary end, after which the process goes on to its own."""

            def end(signum: int, frame: FrameType | None) -> None:
                self.handle_exit(signum, frame)

            before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

    connections = Connections(most_connections())
    bound.exhausted = partial(connections.make_room, BACKLOG)
    OnceAMinute().attach()
    config = uvicorn.Config(
        make_app(server),
        http=partial(Connection, connections),  # type: ignore[arg-type]  # it makes protocols
        backlog=BACKLOG,
        **_UVICORN,
    )
    server.start(address)
    await Uvicorn(config).serve(sockets=[bound])


def _named(url: str | None) -> str:
    return store_location.named_store(url, create=False) if url else ""


def _opened(place: str) -> Store:
    try:
        return store_location.open_place(place)
    except NotAllowedYet as error:  # no caller of the server may do more than another
        raise StoreGone(str(error), error.path) from None


def _bound(host: str, port: int) -> Listener:
    """A socket that listens at an address, or an error that says what to do."""
    from interlock.faces.http.connections import BACKLOG, Listener

    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    # asyncio sends small writes at once (TCP_NODELAY) only if the socket names its protocol; else
    # each answer, which is two writes, would wait 40 ms for an acknowledgement.
    bound = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((name, port))
        bound.listen(BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        bound.close()
        said = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot listen at {host}:{port} ({said}); choose another --port") from None
    bound.set_inheritable(False)
    return bound


def _bound_unix(path: str) -> Listener:
    """A Unix socket that its owner alone may use; one that no server has is replaced."""
    from interlock.faces.http.connections import BACKLOG, Listener

    if os.path.exists(path) and not _is_dead_socket(path):
        raise BadInput(f"{path} is in use, or is no socket; name another --socket")
    with suppress(FileNotFoundError):
        os.unlink(path)
    bound = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(path)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        said = error.strerror or str(error)
        raise BadInput(f"cannot listen at {path} ({said}); name another --socket") from None
    finally:
        os.umask(mask)
    return bound


def _is_dead_socket(path: str) -> bool:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is no address for others
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
