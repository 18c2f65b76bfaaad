"""Which callers are accepted, and which requests are refused before anything is done for them.

A request is checked in this order, before anything is read from the store for it:

    Host              a name of this server: a foreign page whose name leads here (DNS rebinding)
                      is refused with 421
    Origin            that of this server, if a browser names one; else 403
    Sec-Fetch-Site    a request that another site caused is refused, but for a link to the page
    token             ``Authorization: Bearer``, or the cookie of the page; required as soon as the
                      server listens beyond loopback.  A token in the address of the API is refused,
                      since addresses end up in logs and histories

A role includes those before it: ``read`` looks, ``act`` works as an agent, ``admin`` also ends the
work of others and changes the fleet.  Without tokens, on loopback or a Unix socket, it is
``admin``: the owner could use the command line as well.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from interlock.core import codec
from interlock.errors import InterlockError
from interlock.nouns.fleet.server_service import ROLES, Role, find_token, token_id
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.faces.http.clients import Clients

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "interlock"
_IN_ADDRESS = frozenset({"token", "access_token", "authorization"})
_LONGEST_TOKEN = 200
REMEMBERED = 2.0
"""Seconds after which a token is looked up again: one that was revoked is refused by then."""
_MOST = 1000


class Caller(NamedTuple):
    """The caller of a request: its role, and the agent that it acts as without a session.

    ``token`` is the id of its token, empty for the owner.
    """

    role: Role
    agent: str
    token: str = ""

    def may(self, wanted: Role) -> bool:
        """Whether the role includes another one."""
        return ROLES.index(self.role) >= ROLES.index(wanted)

    def speaks_for(self, agent: str) -> bool:
        """Whether an agent is its own, or a sub-agent of that."""
        return agent == self.agent or agent.startswith(f"{self.agent}/")

    def share(self, agent: str = "") -> str:
        """Who uses places that all share: a token with all its agents; an agent of the owner."""
        return self.token or agent or self.agent


CODES = (
    "no_route", "stopped", "token_in_url", "too_many", "too_slow", "unauthorized", "wrong_agent",
    "wrong_host", "wrong_method", "wrong_origin", "wrong_role", "wrong_type",
)  # fmt: skip
"""The codes of errors of the server itself."""


class Refused(InterlockError):
    """A request that is refused before anything is done for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        assert code in CODES, code  # noqa: S101 - they are documented
        self.http_status = status  # type: ignore[misc]  # of this one
        self.code = code  # type: ignore[misc]


class Tokens(Protocol):
    """Knows the tokens."""

    def caller(self, token: str) -> Caller | None:
        """Whose token this is; None if there is none like it."""


class StoreTokens:
    """The tokens in the store; an answer is used again for a moment, a refusal is not."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._known: dict[str, tuple[float, Caller]] = {}

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""
        digest, now = codec.digest(token.encode("utf-8", "replace")), time.monotonic()
        known = self._known.get(digest)
        if known is not None and now - known[0] < REMEMBERED:
            return known[1]
        fleet = self._clients.reader()
        found = drive(find_token(token), fleet.store)
        if found is None:
            self._known.pop(digest, None)
            return None
        caller = Caller(found.role, found.agent, token_id(token))
        if len(self._known) > _MOST:
            self._known.clear()
        self._known[digest] = now, caller
        return caller


class Access:
    """Checks requests for one server."""

    def __init__(
        self,
        *,
        agent: str,
        hosts: Iterable[str] = (),
        open_: bool = True,
        tokens: Tokens,
        cookie: str = COOKIE,
    ) -> None:
        self.agent = agent
        self._owner = Caller("admin", agent)
        self.open = open_
        """Whether a request without a token is that of the owner."""
        self._hosts = LOOPBACK | {each.lower() for each in hosts}
        self._tokens = tokens
        self.cookie = cookie

    def check_address(self, host: str | None, headers: Headers, *, link: bool) -> None:
        """Refuse what a foreign page may have sent; ``link`` is a look at the page itself."""
        if host is None or not self._known(name := _host_name(host)):
            shown = "" if host is None else f" {name[:60]!r}"
            raise Refused(421, "wrong_host", f"this server has no name{shown}; use its address")
        origin = headers.get("origin")
        if origin is not None and _origin_host(origin) != host.lower():
            raise Refused(403, "wrong_origin", "a page of another site may not use this server")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not link:
            raise Refused(403, "wrong_origin", "a page of another site may not use this server")

    def check_query(self, names: Iterable[str]) -> None:
        """Refuse a token in the address of the API."""
        if any(name.lower() in _IN_ADDRESS for name in names):
            raise Refused(
                400, "token_in_url",
                "a token in an address ends up in logs; send it as 'Authorization: Bearer TOKEN',"
                " and make a new one",
            )  # fmt: skip

    def caller(self, authorization: str | None, cookie: str | None) -> Caller:
        """The caller of a request; Refused if a token is missing or wrong."""
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(" ")
            if scheme.lower() != "bearer":
                raise _unknown("send 'Authorization: Bearer TOKEN'")
            return self.of_token(token.strip())
        if cookie:
            try:
                return self.of_token(cookie)
            except Refused:  # any server of this machine can set it, and nothing needs it here
                if not self.open:
                    raise
        if self.open:
            return self._owner
        raise _unknown("this server wants a token: 'interlock up --token ROLE' makes one")

    def of_token(self, token: str) -> Caller:
        """Whose token it is."""
        found = self._tokens.caller(token) if 0 < len(token) <= _LONGEST_TOKEN else None
        if found is None:
            raise _unknown("this token is not known here; 'interlock up --token ROLE' makes one")
        return found

    def _known(self, name: str) -> bool:
        if name in self._hosts:
            return True
        return not self.open and _is_address(name)  # rebinding needs a name, not a number


class Headers(Protocol):
    """The headers of a request."""

    def get(self, key: str, /) -> str | None:
        """One of them."""


def require(caller: Caller, role: Role, what: str) -> None:
    """Refuse a caller whose role does not include this one."""
    if not caller.may(role):
        raise Refused(
            403, "wrong_role",
            f"{what} needs the role {role}, and this token has the role {caller.role}",
        )  # fmt: skip


def listening_names(host: str) -> set[str]:
    """The names by which a server on this address may be called."""
    names = {host.strip("[]").lower(), socket.gethostname().lower()}
    return names - {"", "0.0.0.0", "::"}  # noqa: S104 - they are no names


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _unknown(message: str) -> Refused:
    return Refused(401, "unauthorized", message)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _origin_host(origin: str) -> str:
    """The host and port of an origin; nothing fits ``null``."""
    scheme, _, rest = origin.lower().partition("://")
    return rest if scheme in ("http", "https") else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
