"""Outcomes of keys and swarms, in words."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago, columns, joined, lasting, listed, table

if TYPE_CHECKING:
    from interlock.nouns.swarms import results
    from interlock.runtime.text import Paint, Text

_COLOURS = {
    "online": "green", "degraded": "yellow", "offline": "red", "unknown": "dim",
    "closed": "green", "half_open": "yellow", "open": "red",
}  # fmt: skip
_HOW = {
    "own": "own",
    "pinned": "pinned",
    "first_use": "trusted on first use",
    "rotated": "rotated",
}


# Keys.


def _made(outcome: results.KeyMade, paint: Paint) -> str:
    head = f"{paint('green', 'made')} {outcome.key}: {outcome.fingerprint}"
    return f"{head}\n{listed([('file', outcome.path), ('public', outcome.public_key)])}"


def _keys(outcome: results.KeyList, paint: Paint) -> str:
    if not outcome.keys:
        return f"no key in {outcome.folder}; make one: interlock key new NAME"
    titles = ("KEY", "FINGERPRINT", "AGE", "NOTE")
    rows = [
        (each.key, each.fingerprint or "-", lasting(each.age), _key_note(each, paint))
        for each in outcome.keys
    ]
    return table(titles, rows, paint)


def _key_note(each: results.KeyView, paint: Paint) -> str:
    if each.problem:
        return paint("red", each.problem)
    if each.retired:
        return paint("dim", "replaced")
    if each.overdue:
        return paint("yellow", f"due for rotation: interlock key rotate {quote(each.key)}")
    return ""


def _rotated(outcome: results.KeyRotated, paint: Paint) -> str:
    head = f"{paint('green', 'rotated')} {outcome.key}: {outcome.fingerprint}"
    lines = [f"{head}; the old key is {outcome.old}"]
    if outcome.swarm:
        until = f", and the old one counts until {_moment(outcome.until)}" if outcome.until else ""
        lines.append(f"it signs for {outcome.swarm}{until}")
    if outcome.version is not None:
        lines.append(f"entry {outcome.version} on the bus is signed by both")
    return "\n".join([*lines, *_trouble(outcome.trouble, paint)])


def _key_revoked(outcome: results.KeyRevoked, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    whose = f"{outcome.agent} in {outcome.swarm}" if outcome.agent else outcome.swarm
    lines = [f"{paint('green', 'revoked')} {outcome.fingerprint} of {whose}{before}"]
    if not outcome.current:
        lines.append(
            f"{outcome.swarm} has no key now, and peers refuse it until they pin another one:"
            f" interlock swarm register {quote(outcome.swarm)} --bus URL --key KEY"
        )
    return "\n".join([*lines, *_trouble(outcome.trouble, paint)])


# Swarms.


def _not_registered(_outcome: results.NotRegistered, paint: Paint) -> str:
    word = paint("yellow", "not registered")
    return f"{word}: this home is no swarm yet: interlock swarm register NAME --bus URL --key KEY"


def _taken(outcome: results.NameTaken, paint: Paint) -> str:
    word = paint("yellow", "exists")
    return f"{word} {outcome.swarm}: {outcome.reason}; choose another name"


def _registered(outcome: results.SwarmRegistered, paint: Paint) -> str:
    head = f"{paint('green', 'registered')} {outcome.swarm} on {outcome.bus}"
    entry = f"entry {outcome.version}, signed by {outcome.fingerprint}"
    hint = (
        f"others allow it: interlock swarm allow {quote(outcome.swarm)} --key"
        f" {quote(outcome.fingerprint)}"
    )
    alone = ["no other swarm is on this bus yet; others register with the same address"]
    first = alone if outcome.alone else []
    return "\n".join([f"{head}: {entry}", *first, hint, *_trouble(outcome.trouble, paint)])


def _list(outcome: results.SwarmList, paint: Paint) -> str:
    titles = ("SWARM", "ROLE", "STATUS", "ENTRY", "AGENTS", "KEY", "NOTE")
    rows = [
        (
            each.swarm,
            each.role,
            paint(_COLOURS[each.status], each.status),
            "-" if each.version is None else str(each.version),
            "-" if each.agents is None else str(each.agents),
            _key_of(each),
            _note(each, paint),
        )
        for each in outcome.swarms
    ]
    return "\n".join([table(titles, rows, paint), *_trouble(outcome.trouble, paint)])


def _key_of(each: results.SwarmView) -> str:
    if each.keys:
        more = f" and {len(each.keys) - 1} more" if len(each.keys) > 1 else ""
        return f"{each.keys[0].fingerprint} ({_HOW[each.keys[0].how]}){more}"
    if each.claims:
        return f"{each.claims} (claimed)"
    return "the first that is read" if each.first_use else "-"


def _note(each: results.SwarmView, paint: Paint) -> str:
    if each.last_refused:
        count = sum(each.refused.values())
        said = f"refused {count} times, last {ago(each.refused_at)}: {each.last_refused}"
        return paint("red", said)
    if each.role == "peer" and each.read_at is None:
        return "not read yet"
    if each.expires_at is not None and each.expires_at < time.time():
        return paint("yellow", f"its entry expired {ago(each.expires_at)}")
    return ""


def _discovered(outcome: results.Discovered, paint: Paint) -> str:
    trouble = _trouble(outcome.trouble, paint)
    if not outcome.agents:
        none = (
            f"no agent of a live peer is known to do {outcome.ability}; --fresh reads the bus now,"
            " and 'interlock swarm list' shows the peers"
        )
        return "\n".join([none, *trouble])
    rows = [(each.agent, each.swarm, f"{each.load} %") for each in outcome.agents]
    return "\n".join([table(("AGENT", "SWARM", "LOAD"), rows, paint), *trouble])


def _allowed(outcome: results.SwarmAllowed, paint: Paint) -> str:
    head = f"{paint('green', 'allowed')} {outcome.swarm}"
    if outcome.how == "pinned":
        lines = [f"{head}: only {outcome.fingerprint} and keys that it vouches for are trusted"]
    elif outcome.how == "unchanged":
        lines = [f"{head}: the trust in its keys is as it was"]
    elif outcome.fingerprint:
        said = "is trusted because it was read first; compare it with what its operator says"
        lines = [f"{head}: {outcome.fingerprint} {said}"]
    else:
        lines = [f"{head}: the key of the first entry that is read will be trusted"]
    if outcome.how == "unchanged":
        lines.append(f"limits: {_limits(outcome)}")
    if outcome.entry is not None:
        lines.append(f"its entry {outcome.entry} is valid")
    elif outcome.trouble:
        lines.append(f"{paint('yellow', 'no entry yet')}: {outcome.trouble}")
    return "\n".join(lines)


def _revoked_key(outcome: results.SwarmRevokedKey, paint: Paint) -> str:
    word = paint("red", "revoked key")
    who = outcome.swarm
    return f"{word} {outcome.fingerprint}: it is revoked, permanently; ask {who} for another one"


def _denied(outcome: results.SwarmDenied, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    return f"{paint('green', 'denied')} {outcome.swarm}{before}"


def _unknown(outcome: results.UnknownSwarm, paint: Paint) -> str:
    name = joined(outcome.unknown)
    word = paint("yellow", "unknown")
    return f"{word} {name}: it is no peer of this swarm; see 'interlock swarm list'"


def _trust(outcome: results.PeerTrustList, paint: Paint) -> str:
    if not outcome.peers:
        return "no peers yet; allow one: interlock swarm allow NAME --key FINGERPRINT"
    return "\n\n".join(_peer_trust(each, paint) for each in outcome.peers)


def _peer_trust(each: results.PeerTrust, paint: Paint) -> str:
    found, breaker = each.standing, each.breaker
    state = paint(_COLOURS[breaker.state], breaker.state.replace("_", " "))
    waits = f", retries in {lasting(breaker.retry_in)}" if breaker.retry_in else ""
    row = f" ({breaker.timeouts} timeouts in a row)" if breaker.timeouts else ""
    left = found.next_probe_in
    probed = f"the next probe in {lasting(left)}" if left else "the next request is a probe"
    probe = (
        f"for its {joined(found.blocked, ' and ')}; {probed}, {found.good_probes} answered in a"
        " row;"
        f" to clear it: interlock swarm trust {quote(each.swarm)} --forgive"
        if found.blocked
        else ""
    )
    facts = [
        ("swarm", each.swarm if each.allowed else f"{each.swarm} (denied)"),
        ("breaker", f"{state}{row}{waits}"),
        ("samples", str(found.samples)),
        ("conflicts", _rate(found.conflicts, found.conflict_rate, found.conflict_bound, "10 %")),
        ("timeouts", _rate(found.timeouts, found.timeout_rate, found.timeout_bound, "5 %")),
        ("blocked", paint("red", probe) if probe else ""),
        ("limits", _limits(each)),
    ]
    return listed(facts)


def _limits(each: results.PeerTrust | results.SwarmAllowed) -> str:
    rate = f"{each.rate} requests in {lasting(each.window)}" if each.rate else "any number"
    return f"{rate} for each agent, {each.queue} may wait, {each.marks} are remembered"


def _rate(count: int, rate: float, bound: float, limit: str) -> str:
    return f"{count} ({100 * rate:.1f} %, at least {100 * bound:.1f} % proven; limit {limit})"


def _forgiven(outcome: results.Forgiven, paint: Paint) -> str:
    cleared = f"{outcome.samples} outcomes are cleared, and its breaker is closed"
    return f"{paint('green', 'forgiven')} {outcome.swarm}: {cleared}"


def _synced(outcome: results.SwarmSynced, paint: Paint) -> str:
    lines = []
    if outcome.version:
        entry = f"entry {outcome.version}"
        done = " published" if outcome.published else " stands"
        if outcome.stated:
            both = f" and state {outcome.state} published"
            done = both if outcome.published else f"{done}, state {outcome.state} published"
        lines.append(f"{paint('green', 'synced')} {outcome.swarm}: {entry}{done}")
    else:
        lines.append(
            f"{paint('yellow', 'not synced')} {outcome.swarm}: its entry was not published"
        )
    if outcome.accepted:
        lines.append(f"read: {joined(outcome.accepted)}")
    if outcome.posted:
        values = "1 value" if outcome.posted == 1 else f"{outcome.posted} values"
        lines.append(f"posted: {values}; see 'interlock swarm shared'")
    lines += [
        f"{paint('yellow', 'undecided')}: see {command(f'interlock decision show {quote(each)}')}"
        for each in outcome.decisions
    ]
    return "\n".join([*lines, *_read_entries(outcome, paint), *_trouble(outcome.trouble, paint)])


def _not_synced(outcome: results.SwarmNotSynced, paint: Paint) -> str:
    lines = [f"{paint('yellow', 'not synced')} {outcome.swarm}: {outcome.trouble}"]
    if outcome.version:
        lines.append(f"entry {outcome.version} {'published' if outcome.published else 'stands'}")
    if outcome.accepted:
        lines.append(f"read: {joined(outcome.accepted)}")
    return "\n".join([*lines, *_read_entries(outcome, paint)])


def _read_entries(
    outcome: results.SwarmSynced | results.SwarmNotSynced, paint: Paint
) -> Iterable[str]:
    """The entries that were refused, and the keys that were revoked."""
    if outcome.refused:
        yield from columns(
            [
                (paint("red", "refused"), each.swarm, each.reason, each.detail)
                for each in outcome.refused
            ]
        )
    yield from [f"{paint('yellow', 'revoked')} {name}" for name in outcome.revoked]


def _trouble(said: str, paint: Paint) -> list[str]:
    return [f"{paint('yellow', 'trouble')}: {said}"] if said else []


def _moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


TEXTS: dict[str, Text] = {
    "KeyMade": _made,
    "KeyList": _keys,
    "KeyRotated": _rotated,
    "KeyRevoked": _key_revoked,
    "NotRegistered": _not_registered,
    "NameTaken": _taken,
    "SwarmRegistered": _registered,
    "SwarmList": _list,
    "Discovered": _discovered,
    "SwarmAllowed": _allowed,
    "SwarmRevokedKey": _revoked_key,
    "SwarmDenied": _denied,
    "UnknownSwarm": _unknown,
    "PeerTrustList": _trust,
    "Forgiven": _forgiven,
    "SwarmSynced": _synced,
    "SwarmNotSynced": _not_synced,
}
"""The text of each outcome, by the name of its class."""
