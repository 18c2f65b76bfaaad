"""What an etcd server says of itself, and whether there is room for something new.

``probe`` says why an endpoint cannot be used, through a bare socket, since gRPC does not say: is
this etcd at all, does one side expect TLS and the other not, is it the certificate?  It is asked
only when opening a store fails; an endpoint that may just be away is left to the retries.

``Quota`` refuses new data when the database is nearly full.  An etcd that has reached its quota
refuses every write, releases too.  So creations stop at 80 %, while a commit that changes, ends or
deletes something is accepted (``Txn.ends``), even if it writes a result, a task that became ready
or an entry: a fleet that cannot begin can still end.  The operator frees space: Interlock neither
compacts nor defragments a shared etcd.

``findings`` is what ``doctor`` says, one look a function.
"""

from __future__ import annotations

import calendar
import json
import re
import socket
import ssl
import time
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.errors import BadInput, StoreFull, StoreRefused, StoreTrouble, StoreUnsuitable
from interlock.steps import Op
from interlock.store import LIVE, Finding, Txn, finding
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import ALARM, STATUS
from interlock.stores.etcd.errors import full
from interlock.stores.etcd.transport import DirectRequest
from interlock.stores.network import CONNECT, SendRequest

if TYPE_CHECKING:
    from interlock.stores.etcd.store import EtcdStore
    from interlock.stores.network import NetworkStore


_QUOTA = "etcd_server_quota_backend_bytes"
_CURRENT = "etcd_debugging_mvcc_current_revision"
_COMPACTED = "etcd_debugging_mvcc_compact_revision"
_ENOUGH = 1 << 24
_COMPLAINT = 0.3
_MOST = 0.8
_WARN = 0.6
_OFTEN = 5.0
_PARTS = 16
"""A client writes this part of the room at most before it looks again."""
_FASTEST = 1 << 25
"""Bytes that all clients together write in a second, at most."""
_SMALL = 8 << 20
"""Below this no quota that makes sense is near, and it need not be known."""
_DEFAULT = 2 << 30
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SLOW = 0.25
_LONG = 1_000_000
_MENDED = {(3, 4): 31, (3, 5): 13}
"""The first patch of each minor version whose former leader leaves renewed leases alone."""
_NUMBERS = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(-[0-9A-Za-z.-]+)?", re.ASCII)
_MAKE_ROOM = "compact and defragment it, or raise --quota-backend-bytes"


def probe(address: Address, number: int) -> None:
    """Raise if the endpoint is not an etcd server, or not one that lets us in."""
    try:
        answer = get(address, number, "/version")
    except ssl.SSLError as error:
        raise _tls_trouble(address, number, error) from None
    except (ConnectionResetError, BrokenPipeError):  # it hung up on what it did not understand
        answer = b""
    except OSError:
        return  # no server, or one that does not answer
    if _is_etcd(answer):
        return
    if address.tls and not answer and _speaks_plainly(address, number):
        raise _without_tls(address)
    web = answer.startswith(b"HTTP/1.") and b"HTTPS" not in answer  # Go says what it wanted
    if not address.tls and not web and _speaks_tls(*address.hosts[number]):
        raise StoreRefused(f"{address.shown} speaks TLS only; write etcds:// instead of etcd://")
    if answer:
        raise StoreUnsuitable(
            f"{address.shown} is not an etcd server (it answered {_shown(answer)});"
            " check host and port"
        )


def quota(address: Address, number: int) -> int:
    """How large the server lets its database become; 0 if it does not say."""
    return _gauges(address, number, _QUOTA)[0]


def history(address: Address, number: int) -> tuple[int, int]:
    """The revision at which the server is, and up to which it was compacted; 0 if unknown."""
    current, compacted = _gauges(address, number, _CURRENT, _COMPACTED)
    return current, compacted


def moment(address: Address, number: int) -> float | None:
    """What time it is by the clock of the server, in whole seconds; None if it does not say."""
    try:
        answer = get(address, number, "/version").decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^Date: (.+ GMT)\r?$", answer, re.MULTILINE)
    if found is None:
        return None
    try:
        return float(calendar.timegm(time.strptime(found[1], "%a, %d %b %Y %H:%M:%S GMT")))
    except ValueError:
        return None


def _gauges(address: Address, number: int, *names: str) -> list[int]:
    """Metrics of the server by these names; 0 for a missing one."""
    try:
        answer = get(address, number, "/metrics").decode(errors="replace")
    except OSError:
        return [0] * len(names)
    found = [re.search(rf"^{name} (-?[0-9.e+]+)\r?$", answer, re.MULTILINE) for name in names]
    return [0 if each is None else max(0, int(float(each[1]))) for each in found]


def get(address: Address, number: int, path: str) -> bytes:
    """What the server answers to a plain HTTP request, all of it."""
    host, port = address.hosts[number]
    # 1.0, so that the answer comes in one piece.
    request = f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    with socket.create_connection((host, port), CONNECT) as plain:
        if not address.tls:
            return _ask(plain, request)
        with _context(address).wrap_socket(plain, server_hostname=host) as secure:
            _hear(secure)
            return _ask(secure, request)


def _hear(secure: ssl.SSLSocket) -> None:
    """Let the server say that it wants a certificate: what is sent to it would drown that."""
    secure.settimeout(_COMPLAINT)
    with suppress(TimeoutError):
        secure.recv(1)
    secure.settimeout(CONNECT)


def _ask(connected: socket.socket, request: bytes) -> bytes:
    connected.sendall(request)
    found = bytearray()
    try:
        while len(found) < _ENOUGH and (data := connected.recv(65536)):
            found += data
    except (TimeoutError, ConnectionError):
        if not found:  # the first finding counts
            raise
    return bytes(found)


def _context(address: Address) -> ssl.SSLContext:
    options = address.options
    context = ssl.create_default_context(cafile=options.get("ca") or None)
    if options.get("cert"):
        context.load_cert_chain(options["cert"], options.get("key") or None)
    return context


def _speaks_tls(host: str, port: int) -> bool:
    """Whether it does a handshake, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), CONNECT) as plain:
            context.wrap_socket(plain).close()
    except OSError:
        return False
    return True


def _speaks_plainly(address: Address, number: int) -> bool:
    try:
        return _is_etcd(get(replace(address, tls=False), number, "/version"))
    except OSError:
        return False


def _tls_trouble(address: Address, number: int, error: ssl.SSLError) -> StoreTrouble:
    where = address.shown
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where} has a certificate that is not trusted ({error.verify_message});"
            " name its authority with ca="
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason and "certificate" in reason:
        return StoreRefused(f"{where} wants a client certificate; name it with cert= and key=")
    if _speaks_plainly(address, number):
        return _without_tls(address)
    return StoreRefused(f"{where} and we cannot agree on TLS ({reason}); check ca=, cert= and key=")


def _without_tls(address: Address) -> StoreTrouble:
    where = address.shown
    return StoreRefused(f"{where} does not speak TLS; write etcd:// instead of etcds://")


def _is_etcd(answer: bytes) -> bool:
    if not answer.startswith(b"HTTP/1."):
        return False
    try:
        return "etcdserver" in json.loads(answer.partition(b"\r\n\r\n")[2])
    except (ValueError, TypeError):
        return False


def _shown(answer: bytes) -> str:
    line = answer.splitlines()[0].decode("ascii", "replace")
    return repr(line[:40])


class Quota:
    """How full the database is, looked at now and then, and more often the less room there is.

    A look counts until this client has written a part of the room, or all clients together may have
    filled it.  What a client writes takes about twice its bytes.
    """

    def __init__(self, store: NetworkStore, address: Address) -> None:
        self._store = store
        self._limit = _bytes(address.options["quota"], address) if "quota" in address.options else 0
        self._looked = self._lasts = -inf
        self._written = self._allowed = 0
        self._full: StoreFull | None = None

    def check(self, txn: Txn) -> Op[None]:
        """Raise StoreFull if the transaction creates something and there is hardly any room."""
        self._written += len(txn.entry) + sum([len(put.value) for put in txn.puts])
        lasts = min(_OFTEN, self._lasts)
        recent = time.monotonic() - self._looked <= lasts and self._written <= self._allowed
        if (recent and self._full is None) or not _creates(txn):
            return
        if not recent:
            self._count_from_now(_SMALL)  # others need not look at the same time
            yield from self._look()
        if self._full is not None:
            raise self._full

    def limit(self) -> Op[int]:
        """How large the database may become."""
        if not self._limit:
            self._limit = (
                yield from self._store.request_with_retries(DirectRequest(quota))
            ) or _DEFAULT
        return self._limit

    def note_status(self, status: rpc.StatusResponse) -> None:
        """A status was read: if all is well, it counts for a while."""
        if status.db_size <= _SMALL and not status.errors:
            self._count_from_now(_SMALL)

    def _count_from_now(self, room: int, seconds: float = inf) -> None:
        """The last look says that there is so much room."""
        self._looked, self._lasts = time.monotonic(), seconds
        self._written, self._allowed = 0, room // _PARTS

    def _look(self) -> Op[None]:
        status = yield from self._store.request_with_retries((STATUS, rpc.StatusRequest()))
        where, self._full = self._store.where, None
        if any("NOSPACE" in error for error in status.errors):
            self._full = full(where, "it has raised a NOSPACE alarm")
        elif status.db_size > _SMALL:
            most = yield from self.limit()
            if (room := int(_MOST * most) - status.db_size) > 0:
                self._count_from_now(room, room / _FASTEST)
            else:
                self._full = full(where, _filled(status.db_size, most))


def _creates(txn: Txn) -> bool:
    """Whether it puts something that may not be there yet, and ends nothing by that.

    Liveness keys go by themselves.
    """
    if txn.ends:
        return False
    there = {check.key for check in txn.checks if check.kind != "absent"}
    return any(put.key not in there and not put.key.startswith(LIVE) for put in txn.puts)


def _filled(used: int, most: int) -> str:
    """How full, for a person."""
    return f"{used / (1 << 20):.0f} of {most / (1 << 20):.0f} MiB, {used / most:.0%}"


def _bytes(text: str, address: Address) -> int:
    """Bytes, as in 8589934592, 8GiB or 512MB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise BadInput(f"{address.shown} has quota={text!r}; write bytes, or a size like 8GiB")
    return int(match[1]) * _UNITS[match[2].lower()]


def findings(store: EtcdStore) -> Op[list[Finding]]:
    """Every look, in the order in which one builds on the other."""
    status = yield from store.request_with_retries((STATUS, rpc.StatusRequest()))
    found = [_server(store, status.version)]
    for number, target in enumerate(store.transport.targets):
        found.append((yield from _endpoint(number, target)))
    leaderless = "" if status.leader else "see that most members run and reach each other"
    leader = "there is none" if leaderless else "elected"
    found.append(finding("leader", leader, leaderless, wrong="bad"))
    found.append((yield from _alarms(store)))
    found.append(_room(status.db_size, (yield from store.quota.limit())))
    found.append(_compaction(*(yield from store.request_with_retries(DirectRequest(history)))))
    return found


def fixed_in(version: str) -> str:
    """The version to install instead of one whose former leader revokes renewed leases; or "".

    A version before a release, such as 3.5.13-rc.1, counts as the one before it.
    """
    match = _NUMBERS.match(version)
    if match is None:
        return ""
    major, minor, patch = (int(part) for part in match.groups()[:3])
    least = _MENDED.get((major, minor))
    if least is None or patch > least or (patch == least and not match[4]):
        return ""
    return f"{major}.{minor}.{least}"


def _server(store: EtcdStore, version: str) -> Finding:
    needed = fixed_in(version) if store.caution else ""
    if not needed:
        return finding("etcd", version)
    fact = f"{version}: a former leader may end leases that were renewed, so renewals are writes"
    return finding("etcd", fact, f"install {needed} or newer on every member")


def _endpoint(number: int, target: str) -> Op[Finding]:
    started = time.monotonic()
    try:
        yield SendRequest(DirectRequest(partial(get, path="/version"), number))
    except (OSError, StoreTrouble) as error:
        fact = f"{target} cannot be reached ({error})"
        return finding("endpoint", fact, "start it, or take it out of the URL")
    took = time.monotonic() - started
    remedy = "bring it closer, or look what keeps it busy" if took > _SLOW else ""
    return finding("endpoint", f"{target} answers within {took * 1000:.0f} ms", remedy)


def _alarms(store: EtcdStore) -> Op[Finding]:
    answer = yield from store.request_with_retries((ALARM, rpc.AlarmRequest()))
    raised = {rpc.AlarmMember.Alarm.Name(each.alarm) for each in answer.alarms}
    if "CORRUPT" in raised:
        remedy = "stop all agents and restore a snapshot of etcd"
        return finding("alarms", "CORRUPT", remedy, wrong="bad")
    if "NOSPACE" in raised:
        remedy = f"{_MAKE_ROOM}, then run 'etcdctl alarm disarm'"
        return finding("alarms", "NOSPACE", remedy, wrong="bad")
    return finding("alarms", "none")


def _room(used: int, most: int) -> Finding:
    fact = _filled(used, most)
    if used >= _MOST * most:
        return finding("room", f"{fact}: nothing new can be begun", _MAKE_ROOM, wrong="bad")
    return finding("room", fact, _MAKE_ROOM if used >= _WARN * most else "")


def _compaction(current: int, compacted: int) -> Finding:
    if not current:
        return finding("compaction", "this server does not say")
    kept, remedy = current - compacted, ""
    if kept >= _LONG:
        remedy = "start etcd with --auto-compaction-retention; Interlock never compacts"
    return finding("compaction", f"{kept} revisions kept", remedy)
