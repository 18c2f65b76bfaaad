"""``interlock up``: sockets, start and shutdown.

The server ends within a second of SIGTERM or Ctrl-C, with the status 0: it first ends the streams
and waits, then lets the other requests finish, then closes the store.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from interlock import store_location
from interlock.core import validate
from interlock.errors import BadInput
from interlock.faces.cli.command import write, write_json
from interlock.faces.cli.connect import CommandIdentity, hush, speak_up, url_of
from interlock.stores import is_network, open_store

if TYPE_CHECKING:
    from types import FrameType

    from interlock.faces.cli.parse import Parsed
    from interlock.faces.http.app import Server
    from interlock.nouns.fleet.server_noun import UpRequest
    from interlock.store import Store

MISSING = "'interlock up' needs two more packages; run: pip install 'interlock[web]'"
_PATIENCE = 2
"""Seconds that requests have to finish when the server ends."""


def up(parsed: Parsed) -> int:
    """Serve until a signal ends it."""
    request: UpRequest = parsed.request
    try:
        import uvicorn
        from starlette import applications  # noqa: F401
    except ImportError:
        raise BadInput(MISSING) from None
    from interlock.faces.http.access import Access, is_loopback, listening_names
    from interlock.faces.http.app import Server, make_app
    from interlock.faces.http.clients import Clients

    identity = CommandIdentity(parsed.common, anew=True)
    agent = validate.own_agent_name(request.name or f"person:{_user()}")
    place = identity.store or store_location.find_store()
    if is_network(place):
        hush()
    clients = Clients(lambda: _opened(place), key=identity.key or "")
    place = url_of(clients.store, place)  # the folder may not be ours for ever
    speak_up()
    open_ = request.socket is not None or is_loopback(request.host)
    if not open_:
        raise BadInput("beyond this machine a server needs tokens, which it does not have yet")
    access = Access(agent=agent, hosts=listening_names(request.host), open_=open_)
    server = Server(clients, access)
    bound = _bound_unix(request.socket) if request.socket else _bound(request.host, request.port)
    config = uvicorn.Config(
        make_app(server),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_PATIENCE,
        h11_max_incomplete_event_size=64 * 1024,
    )
    address = request.socket or _address(bound)
    if parsed.common.json:
        write_json({"url": address, "agent": agent})
    else:
        write(f"serving {address} as {agent}; stop with Ctrl-C\n".encode())
    try:
        asyncio.run(_serve(config, server, bound))
    finally:
        server.close()
        if request.socket:
            with suppress(OSError):
                os.unlink(request.socket)
    return 0


async def _serve(config: object, server: Server, bound: socket.socket) -> None:
    import uvicorn

    class Uvicorn(uvicorn.Server):
        """Ends the streams first; by itself uvicorn would wait for them for ever."""

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

    server.start()
    await Uvicorn(config).serve(sockets=[bound])  # type: ignore[arg-type]


def _opened(place: str) -> Store:
    return open_store(place, create=False)


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return str(os.getuid())


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, or an error that says what to do."""
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((name, port))
        bound.listen(2048)
    except (OSError, UnicodeError, OverflowError) as error:
        bound.close()
        said = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot listen at {host}:{port} ({said}); choose another --port") from None
    bound.set_inheritable(False)
    return bound


def _bound_unix(path: str) -> socket.socket:
    """A Unix socket that its owner alone may use; one that no server has is replaced."""
    if os.path.exists(path) and not _is_dead_socket(path):
        raise BadInput(f"{path} is in use, or is no socket; name another --socket")
    with suppress(FileNotFoundError):
        os.unlink(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(path)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        said = error.strerror or str(error)
        raise BadInput(f"cannot listen at {path} ({said}); name another --socket") from None
    finally:
        os.umask(mask)
    return bound


def _is_dead_socket(path: str) -> bool:
    import stat

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
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
