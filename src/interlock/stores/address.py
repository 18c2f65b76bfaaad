"""The URL of a store across a network, taken apart.

    redis://[user][:password]@host[:port][/db][?ns=NAME]        rediss:// with TLS
    redis+unix:///path/to/socket[?ns=NAME&db=0]                  valkey:// and so on are the same
    etcd://[user:password@]host[:port][,host[:port]...][/NAME]   etcds:// with TLS

TLS reads its files from ``ca=``, ``cert=`` and ``key=``.  User, password and paths may be
percent-encoded.  ``shown`` is what messages say: it never holds the password.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from interlock.errors import BadInput, StoreUnsuitable
from interlock.stores import SCHEMES

NAMESPACE = "interlock"
_NAMESPACE = re.compile(r"[A-Za-z0-9._:@-]+(/[A-Za-z0-9._:@-]+)*", re.ASCII)
_LONGEST_NAMESPACE = 100
_PORTS = {"redis": 6379, "etcd": 2379}
_TLS = ("ca", "cert", "key")
_OPTIONS = {"redis": ("ns", "db", "log", *_TLS), "etcd": ("quota", *_TLS)}
_HIGHEST_PORT = 65535
_LIKE = "user:password@host:port, with / and ? in a password as %2F and %3F"


class Address(Struct, frozen=True, kw_only=True):
    """Where an engine is, and how to be let in."""

    engine: Literal["redis", "etcd"]
    hosts: tuple[tuple[str, int], ...] = ()
    socket: str = ""
    namespace: str = NAMESPACE
    db: int = 0
    user: str = ""
    password: str = ""
    tls: bool = False
    options: dict[str, str] = {}
    shown: str = ""


def parse(url: str) -> Address:
    """The parts of a URL; an error says what it should look like."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    engine, tls = SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, _, places = authority.rpartition("@")
    user, _, password = login.partition(":")
    unix = scheme.endswith("+unix")
    # Nothing of a URL is repeated before its hosts make sense: it may be a password.
    hosts = () if unix else tuple(_host(scheme, each) for each in places.split(","))
    shown = f"{scheme}://{places}{slash}{path}"
    options = _options(engine, query, shown)
    if ("cert" in options) != ("key" in options):
        raise BadInput(f"{shown} needs cert= and key= together, or none of them")
    if login and not password:
        raise BadInput(f"{shown} names a user without a password; write user:password@host")
    if unix and (places or not path):
        raise BadInput(f"{shown} is not like {scheme}:///path/to/socket")
    namespace = options.get("ns", NAMESPACE)
    if engine == "etcd":
        namespace = unquote(path) or NAMESPACE
    return Address(
        engine=engine,
        hosts=hosts,
        socket="/" + unquote(path) if unix else "",
        namespace=_namespace(namespace, shown),
        db=_number(options.get("db", "") or ("" if unix or engine == "etcd" else path), shown),
        user=unquote(user),
        password=unquote(password),
        tls=tls,
        options=options,
        shown=shown if engine == "etcd" or namespace == NAMESPACE else f"{shown}?ns={namespace}",
    )


def _options(engine: str, query: str, shown: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS[engine]))
    if unknown:
        known = ", ".join(_OPTIONS[engine])
        named = f"the option {unknown[0]!r}" if "@" not in query else "an option"
        raise BadInput(f"{shown} has {named}, which is none of: {known}; ? in a password is %3F")
    return options


def _host(scheme: str, place: str) -> tuple[str, int]:
    host, bracket, port = place.rpartition("]")
    if bracket:
        host, port = host.removeprefix("["), port.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    if not host:
        raise BadInput(f"this URL names no host; write it like {scheme}://{_LIKE}")
    if not port:
        return host, _PORTS[SCHEMES[scheme][0]]
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _HIGHEST_PORT):
        raise BadInput(
            f"the port in this URL is no number from 1 to {_HIGHEST_PORT};"
            f" write it like {scheme}://{_LIKE}"
        )
    return host, int(port)


def _number(text: str, shown: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise BadInput(f"{shown} has {text!r} where the number of a database belongs; see ?ns=")
    return int(text or "0")


def _namespace(name: str, shown: str) -> str:
    if _NAMESPACE.fullmatch(name) is None or len(name) > _LONGEST_NAMESPACE:
        raise StoreUnsuitable(
            f"{shown} has a namespace that cannot be; take up to {_LONGEST_NAMESPACE} ASCII"
            " letters, digits and ._:@- (and / between them)"
        )
    return name
