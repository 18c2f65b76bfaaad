"""The declaration of swarms: their requests, operations, keys, and what they add to others."""

from typing import Annotated, Any, get_args

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.swarms.results import (
    AllowOutcome,
    DenyOutcome,
    DiscoverOutcome,
    NotRegistered,
    RegisterOutcome,
    SwarmList,
    SyncOutcome,
    TrustOutcome,
)
from interlock.nouns.swarms.sync_results import (
    ConflictList,
    SharedList,
    SharedOutcome,
    ShareOutcome,
    SwarmStateList,
)
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Operation, Request, option

_SHARED = "interlock.nouns.swarms.shared"
Swarm = Annotated[str, option("name", "the name of the swarm", positional=True)]


class SwarmRegister(Request, frozen=True, kw_only=True):
    """Make this home a swarm."""

    name: Annotated[str, option("name", "its name on the bus", positional=True)]
    bus: Annotated[
        str, option("text", "the store that carries envelopes: redis://HOST, etcd://HOST or a path")
    ]
    key: Annotated[
        str, option("text", "the key that signs for it: a name, a path, or a fingerprint")
    ]


class SwarmsList(Request, frozen=True, kw_only=True):
    """This swarm and its peers."""

    snapshots: Annotated[
        bool, option("flag", "their snapshots instead: agents, tasks, times, memory")
    ] = False


class SwarmDiscover(Request, frozen=True, kw_only=True):
    """Agents of other swarms."""

    ability: Annotated[str, option("name", "what they can do", positional=True)]
    swarm: Annotated[str | None, option("name", "only agents of this swarm")] = None
    fresh: Annotated[
        bool, option("flag", "read the bus now, though what is known counts for five minutes")
    ] = False


class SwarmAllow(Request, frozen=True, kw_only=True):
    """Let a swarm work with this one."""

    name: Swarm
    key: Annotated[
        str | None,
        option("text", "trust this key alone: the fingerprint that its operator gave you"),
    ] = None
    first_use: Annotated[
        bool, option("flag", "trust the key of the first entry that is read, once")
    ] = False
    rate: Annotated[
        str | None,
        option("text", "requests of one agent, like 200/1h; 0 for any number, 100/1h unless set"),
    ] = None
    queue: Annotated[
        int | None,
        option("int", "requests that may wait before no new one is made; 80000 unless set"),
    ] = None
    marks: Annotated[
        int | None,
        option("int", "messages that are remembered against replay; 300000 unless set"),
    ] = None


class SwarmDeny(Request, frozen=True, kw_only=True):
    """Stop working with a swarm."""

    name: Swarm
    reason: Annotated[str, option("text", "the reason, for the record", positional=True)] = ""
    key: Annotated[str | None, option("text", "revoke only this key of it, by its fingerprint")] = (
        None
    )


class SwarmTrust(Request, frozen=True, kw_only=True):
    """What our record says about peers."""

    name: Annotated[
        str | None, option("name", "only this swarm; else all peers", positional=True)
    ] = None
    forgive: Annotated[bool, option("flag", "clear its record, and close its breaker")] = False


class SwarmShare(Request, frozen=True, kw_only=True):
    """Write a value that other swarms read and write, too."""

    key: Annotated[str, option("name", "the key of the value", positional=True)]
    value: Annotated[Any, option("json", "the value: JSON, up to 64 KiB", positional=True)]
    base: Annotated[
        int | None,
        option("int", "the revision that you saw; 0 for none; else what this home last showed"),
    ] = None


class SwarmShared(Request, frozen=True, kw_only=True):
    """Read shared values."""

    key: Annotated[
        str | None, option("name", "the key of one value; else all of them", positional=True)
    ] = None
    conflicts: Annotated[
        bool, option("flag", "conflicts about values instead, with both values of each")
    ] = False
    accept: Annotated[
        bool, option("flag", "take what stands on the bus, though this home has read a later value")
    ] = False


class SwarmSync(Request, frozen=True, kw_only=True):
    """One pass of the link to the bus."""

    force: Annotated[
        bool, option("flag", "sign our entry again and read all peers, though nothing is due")
    ] = False
    follow: Annotated[
        bool, option("flag", "stay on the bus, one pass after the other, until stopped")
    ] = False


def _list(fleet: Any, request: SwarmsList) -> Any:  # noqa: ANN401
    return fleet.swarms.states() if request.snapshots else fleet.swarms.list()


def _shared(fleet: Any, request: SwarmShared) -> Any:  # noqa: ANN401
    if request.conflicts:
        return fleet.swarms.conflicts(request.key)
    if request.key is None:
        if request.accept:
            raise BadInput("--accept is about one value; name its key")
        return fleet.swarms.shared_list()
    return fleet.swarms.shared(request.key, accept=request.accept)


NOUN = Noun(
    name="swarm",
    help="other fleets that this one works with, over a bus",
    calls="interlock.nouns.swarms.calls:SwarmCalls",
    texts=("interlock.nouns.swarms.text", "interlock.nouns.swarms.sync_text"),
    keys=(
        KeyKind(prefix=keys.SWARM, read="interlock.nouns.swarms.swarm:examine_own"),
        KeyKind(prefix=keys.AGENT_KEYS, read="interlock.nouns.swarms.swarm:decode_agent_keys"),
        KeyKind(prefix=keys.PEERS, read="interlock.nouns.swarms.swarm:decode_peer"),
        KeyKind(prefix=keys.FLOORS, read="interlock.nouns.swarms.swarm:decode_floor"),
        KeyKind(prefix=keys.BREAKERS, read="interlock.nouns.swarms.trust_service:decode_breaker"),
        KeyKind(
            prefix=keys.REPUTATIONS, read="interlock.nouns.swarms.trust_service:decode_reputation"
        ),
        KeyKind(prefix=keys.COPIES, read=f"{_SHARED}:decode_copy"),
        KeyKind(prefix=keys.SHARED_WRITES, read=f"{_SHARED}:decode_write"),
        KeyKind(prefix=keys.UNDECIDED, read=f"{_SHARED}:decode_undecided"),
        KeyKind(prefix=keys.CONFLICTS, read=f"{_SHARED}:decode_conflict"),
    ),
    why={"shared": "interlock.nouns.swarms.sync_views:why_shared"},
    decided={"shared": "interlock.nouns.swarms.shared_service:effect"},
    decided_then={"shared": "interlock.nouns.swarms.shared_service:then"},
    housekeeping=Part(26, "interlock.nouns.swarms.housekeeping:SwarmHousekeepingPart"),
    health=Part(45, "interlock.nouns.swarms.health:health"),
    gauges="interlock.nouns.swarms.metrics:swarm_gauges",
    events=True,
    operations=(
        Operation(
            name="swarm register",
            help="make this home a swarm, with a bus and a key",
            request=SwarmRegister,
            outcomes=get_args(RegisterOutcome),
            needs="agent",
            call="swarms.register",
            creates=True,
            local=lambda _request: True,  # the key, and often the bus, is a file
            examples=("interlock swarm register shop --bus ./bus.db --key ops --agent ada",),
        ),
        Operation(
            name="swarm list",
            help="list this swarm, its peers, and strangers on the bus",
            request=SwarmsList,
            outcomes=(SwarmList, SwarmStateList, NotRegistered),
            needs="store",
            reads=True,
            act=_list,
            examples=("interlock swarm list --snapshots",),
        ),
        Operation(
            name="swarm discover",
            help="find agents of peers by what they can do, least loaded first",
            request=SwarmDiscover,
            outcomes=get_args(DiscoverOutcome),
            needs="store",
            call="swarms.discover",
            examples=("interlock swarm discover translate",),
        ),
        Operation(
            name="swarm allow",
            help="let a swarm work with this one, and trust a key of it",
            request=SwarmAllow,
            outcomes=get_args(AllowOutcome),
            needs="agent",
            call="swarms.allow",
            examples=(
                "interlock swarm allow bank --key SHA256:... --agent ada",
                "interlock swarm allow bank --first-use --agent ada",
                "interlock swarm allow bank --first-use --rate 500/1h --agent ada",
            ),
        ),
        Operation(
            name="swarm deny",
            help="take nothing from a swarm and send nothing to it",
            request=SwarmDeny,
            outcomes=get_args(DenyOutcome),
            needs="agent",
            call="swarms.deny",
            takes=True,
            examples=("interlock swarm deny bank 'the contract has ended' --agent ada",),
        ),
        Operation(
            name="swarm trust",
            help="show the reputation and the circuit breaker of peers, or forgive one",
            request=SwarmTrust,
            outcomes=get_args(TrustOutcome),
            needs="store",
            reads=True,
            call="swarms.trust",
            examples=("interlock swarm trust bank", "interlock swarm trust bank --forgive"),
        ),
        Operation(
            name="swarm share",
            help="write a value that other swarms read and write, too",
            request=SwarmShare,
            outcomes=get_args(ShareOutcome),
            needs="agent",
            call="swarms.share",
            examples=(
                "interlock swarm share prices '{\"apple\": 3}' --agent ada",
                "interlock swarm share prices @prices.json --base 41 --agent ada",
            ),
        ),
        Operation(
            name="swarm shared",
            help="show a value that swarms share, all of them, or conflicts about them",
            request=SwarmShared,
            outcomes=(*get_args(SharedOutcome), SharedList, ConflictList),
            needs="store",
            act=_shared,
            examples=(
                "interlock swarm shared prices",
                "interlock swarm shared --conflicts",
            ),
        ),
        Operation(
            name="swarm sync",
            help="put this swarm's entry, state and values on the bus; read its peers",
            request=SwarmSync,
            outcomes=get_args(SyncOutcome),
            needs="store",
            act=lambda fleet, request: fleet.swarms.sync(force=request.force),
            in_shell="interlock.faces.cli.swarm:sync",
            examples=("interlock swarm sync", "interlock swarm sync --follow"),
        ),
    ),
)
