"""What ``doctor`` looks at in an etcd, one look a function."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from interlock.drivers import Op
from interlock.errors import StoreTrouble
from interlock.store import Finding
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.probe import DirectRequest, get, history
from interlock.stores.etcd.quota import MOST, WARN, filled
from interlock.stores.etcd.transport import ALARM, STATUS
from interlock.stores.network import SendRequest

if TYPE_CHECKING:
    from interlock.stores.etcd.store import EtcdStore

_SLOW = 0.25
_LONG = 1_000_000
_MENDED = {(3, 4): 31, (3, 5): 13}
"""The first patch of each minor version whose former leader leaves renewed leases alone."""
_NUMBERS = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(-[0-9A-Za-z.-]+)?", re.ASCII)
_MAKE_ROOM = "compact and defragment it, or raise --quota-backend-bytes"


def findings(store: EtcdStore) -> Op[list[Finding]]:
    """Every look, in the order in which one builds on the other."""
    status = yield from store.asked((STATUS, rpc.StatusRequest()))
    found = [_server(store, status.version)]
    for number, target in enumerate(store.transport.targets):
        found.append((yield from _endpoint(number, target)))
    found.append(_leader(status))
    found.append((yield from _alarms(store)))
    most = yield from store.room.quota(store.transport.number)
    found.append(_size(status, most))
    found.append(
        _compaction(*(yield from store.asked(DirectRequest(history, store.transport.number))))
    )
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
        return Finding(verdict="ok", name="etcd", fact=version)
    return Finding(
        verdict="warn",
        name="etcd",
        fact=f"{version}: a former leader may end leases that were renewed, so renewals are writes",
        remedy=f"install {needed} or newer on every member",
    )


def _endpoint(number: int, target: str) -> Op[Finding]:
    started = time.monotonic()
    try:
        yield SendRequest(
            DirectRequest(lambda address, number: get(address, number, "/version"), number)
        )
    except (OSError, StoreTrouble) as error:
        return Finding(
            verdict="warn",
            name="endpoint",
            fact=f"{target} cannot be reached ({error})",
            remedy="start it, or take it out of the URL",
        )
    took = time.monotonic() - started
    fact = f"{target} answers within {took * 1000:.0f} ms"
    if took > _SLOW:
        remedy = "bring it closer, or look what keeps it busy"
        return Finding(verdict="warn", name="endpoint", fact=fact, remedy=remedy)
    return Finding(verdict="ok", name="endpoint", fact=fact)


def _leader(status: rpc.StatusResponse) -> Finding:
    if not status.leader:
        remedy = "see that most members run and reach each other"
        return Finding(verdict="bad", name="leader", fact="there is none", remedy=remedy)
    return Finding(verdict="ok", name="leader", fact="elected")


def _alarms(store: EtcdStore) -> Op[Finding]:
    answer = yield from store.asked((ALARM, rpc.AlarmRequest()))
    raised = {rpc.AlarmMember.Alarm.Name(each.alarm) for each in answer.alarms}
    if "CORRUPT" in raised:
        remedy = "stop all agents and restore a snapshot of etcd"
        return Finding(verdict="bad", name="alarms", fact="CORRUPT", remedy=remedy)
    if "NOSPACE" in raised:
        remedy = f"{_MAKE_ROOM}, then run 'etcdctl alarm disarm'"
        return Finding(verdict="bad", name="alarms", fact="NOSPACE", remedy=remedy)
    return Finding(verdict="ok", name="alarms", fact="none")


def _size(status: rpc.StatusResponse, most: int) -> Finding:
    fact = filled(status.db_size, most)
    if status.db_size >= MOST * most:
        fact += ": nothing new can be begun"
        return Finding(verdict="bad", name="room", fact=fact, remedy=_MAKE_ROOM)
    if status.db_size >= WARN * most:
        return Finding(verdict="warn", name="room", fact=fact, remedy=_MAKE_ROOM)
    return Finding(verdict="ok", name="room", fact=fact)


def _compaction(current: int, compacted: int) -> Finding:
    if not current:
        return Finding(verdict="ok", name="compaction", fact="this server does not say")
    fact = f"{current - compacted} revisions kept"
    if current - compacted < _LONG:
        return Finding(verdict="ok", name="compaction", fact=fact)
    remedy = "start etcd with --auto-compaction-retention; Interlock never compacts"
    return Finding(verdict="warn", name="compaction", fact=fact, remedy=remedy)
