"""Heads: the fields that are signed, one struct for each kind of envelope.

A request, a result and a receipt go from one swarm to another.  A registry entry and a
revocation are for every reader.  Each kind has a payload type of its own, which is signed with it.

The bytes of a head are its JSON, fields in their order, without blanks.  A reader decodes a head
and encodes it again: it counts only if that gives the bytes that were signed.  So there is one text
for one head, a repeated or an unknown field included, without any rule for canonical JSON.

Times are milliseconds of the wall clock.  ``deadline`` never moves: the receiver remembers a
message until then, so a message that is signed again with a later ``expires`` is still the same.

The payload of a request or result (``body``) travels beside its envelope, bound by ``source_hash``
and ``source_size``.

A registry entry names the keys of its swarm, the current one first, and is signed by each of them:
one, or the new one and those that it replaced while a rotation lasts (these have an ``until``).  So
no swarm can name a key that it does not have.  The key of an agent comes with a signature of its
own for the same reason (``proof``), over the names of the swarm and the agent.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from interlock.core import codec, signing, validate
from interlock.core.safe_text import foreign
from interlock.core.signing import Signer
from interlock.errors import BadInput, BadName, TooLarge

ENVELOPE_LIMIT = 16 * 1024
REGISTRY_LIMIT = 256 * 1024
"""A registry entry names every agent of a swarm."""
BODY_LIMIT = 1024 * 1024
KEYS_LIMIT = 4
"""Keys that sign for a swarm at one time, those that were rotated included."""
AGENTS_LIMIT = 1000
AGENT_KEYS_LIMIT = 3
"""Keys of one agent at one time, those that were rotated included."""
TIMEOUT = 30.0
"""Seconds that an asker waits for a result, unless it says otherwise."""
DEADLINE = 24 * 3600.0
LONGEST_DEADLINE = 7 * DEADLINE
"""Seconds that a reader is ready to remember a message against replay."""
"""Seconds after which a request is never carried out, unless the asker says otherwise."""
ENTRY_EXPIRES = 15 * 60.0
"""Seconds that a registry entry is valid; one for longer would not protect from a frozen bus."""
PRIORITY = 5
ALL_AGENTS = "*"
ABILITY = "can:"

_TYPE = "application/vnd.interlock.{}.v1+json"
_PROOF_TYPE = _TYPE.format("agent-key")

Act: TypeAlias = Literal["request", "inform", "escalate"]
Status: TypeAlias = Literal["success", "error"]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=validate.NAME_LIMIT)]
Word: TypeAlias = Annotated[str, Meta(max_length=validate.NAME_LIMIT)]
Sha256: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Id: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z]{3}_[0-9a-f]{32}\Z")]
Fingerprint: TypeAlias = Annotated[str, Meta(pattern=r"\ASHA256:[A-Za-z0-9+/]{43}\Z")]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=validate.LARGEST)]
Counted: TypeAlias = Annotated[int, Meta(ge=1, le=validate.LARGEST)]
Confidence: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Citation: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]


class Head(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every head has: who signed it, with which key, and when."""

    payload_type: ClassVar[str] = ""
    limit: ClassVar[int] = ENVELOPE_LIMIT
    """Bytes of the whole envelope."""

    from_swarm: Name
    key: Fingerprint
    timestamp: Whole

    def fault(self) -> str:
        """What is wrong with it by itself; empty if nothing is."""
        return _not_a_name("from_swarm", self.from_swarm)

    def listed_keys(self) -> tuple[str, ...]:
        """The fingerprints that must have signed it, in order."""
        return (self.key,)


class BusHead(Head, frozen=True, kw_only=True):
    """A head that counts on one bus, until it expires."""

    expires: Whole
    bus: Name

    def fault(self) -> str:
        """What is wrong with it by itself."""
        if self.expires < self.timestamp:
            return "it expires before it was written"
        return super().fault()


class MessageHead(BusHead, frozen=True, kw_only=True):
    """A head from one swarm to another; ``message_id`` is new for each message."""

    message_id: Id
    request_id: Id
    from_agent: Name
    to_swarm: Name
    to_agent: Name
    correlation_id: Word
    deadline: Whole

    def fault(self) -> str:
        """What is wrong with it by itself."""
        if self.expires > self.deadline:
            return "it expires after its deadline"
        return (
            _not_a_name("from_agent", self.from_agent)
            or _not_a_name("to_swarm", self.to_swarm)
            or _not_an_address("to_agent", self.to_agent)
            or (self.correlation_id and _not_a_name("correlation_id", self.correlation_id))
            or super().fault()
        )


class BodyHead(MessageHead, frozen=True, kw_only=True):
    """A head with a body beside its envelope.

    ``confidence`` and ``citations`` are what the sender says of the body; they are only carried.
    """

    source_hash: Sha256
    source_size: Whole
    confidence: Confidence | None = None
    citations: Annotated[tuple[Citation, ...], Meta(max_length=64)] = ()


class RequestHead(BodyHead, frozen=True, kw_only=True):
    """A request: a task for an agent, for any agent with an ability (``can:X``), or for all."""

    payload_type: ClassVar[str] = _TYPE.format("request")

    act: Act
    task_type: Name
    priority: Annotated[int, Meta(ge=1, le=10)]
    request_timeout_ms: Counted
    reply_to: Word
    attempt: Annotated[int, Meta(ge=1, le=1000)]

    def fault(self) -> str:
        """What is wrong with it by itself; its result has to be addressed, too."""
        return (
            _not_a_name("task_type", self.task_type)
            or (self.reply_to and _not_an_address("reply_to", self.reply_to))
            or super().fault()
        )


class ResultHead(BodyHead, frozen=True, kw_only=True):
    """The result of a request; ``in_reply_to`` is the digest of the request's head."""

    payload_type: ClassVar[str] = _TYPE.format("result")

    in_reply_to: Sha256
    status: Status
    executed_by: Name
    executed_at: Whole

    def fault(self) -> str:
        """What is wrong with it by itself."""
        return _not_a_name("executed_by", self.executed_by) or super().fault()


class AckHead(MessageHead, frozen=True, kw_only=True):
    """A receipt: the receiver has a request, whose head has the digest ``in_reply_to``."""

    payload_type: ClassVar[str] = _TYPE.format("ack")

    in_reply_to: Sha256


class ListedKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key of a swarm in base64, and when it ends (ms) if another one has replaced it."""

    public: Annotated[str, Meta(max_length=44)]
    until: Whole = 0

    @property
    def fingerprint(self) -> str:
        """Its name; empty if it is no key."""
        key = usable_key(self.public)
        return "" if key is None else signing.fingerprint(key)


class AgentKey(ListedKey, frozen=True, kw_only=True):
    """A key of an agent; ``proof`` is its own signature that it belongs to that agent."""

    proof: Annotated[str, Meta(max_length=88)]


class RegisteredAgent(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An agent in a registry entry; ``keys`` if it signs for itself, the current one first.

    The load is a percentage: 0 is idle, 100 is busy, and more means that requests wait.  An agent
    that is ``away`` has no session, and is listed for what it signed before.
    """

    agent: Name
    can: Annotated[tuple[Name, ...], Meta(max_length=validate.CAN_LIMIT)] = ()
    load: Whole = 0
    keys: Annotated[tuple[AgentKey, ...], Meta(max_length=AGENT_KEYS_LIMIT)] = ()
    away: bool = False


class RegistryHead(BusHead, frozen=True, kw_only=True):
    """What a swarm says of itself: its keys, agents, their abilities and load.

    ``version`` grows with every entry.  ``depth`` is the number of requests that wait at home.
    """

    payload_type: ClassVar[str] = _TYPE.format("registry")
    limit: ClassVar[int] = REGISTRY_LIMIT

    version: Counted
    keys: Annotated[tuple[ListedKey, ...], Meta(min_length=1, max_length=KEYS_LIMIT)]
    agents: Annotated[tuple[RegisteredAgent, ...], Meta(max_length=AGENTS_LIMIT)]
    depth: Whole

    def fault(self) -> str:
        """What is wrong with it by itself; the keys of agents are in ``agent_keys``."""
        public = [usable_key(key.public) for key in self.keys]
        if None in public or len(set(public)) < len(public):
            return "its keys are not Ed25519 public keys, or one is there twice"
        if self.listed_keys()[0] != self.key:
            return "it is not signed by the first of its keys"
        if self.keys[0].until or not all(key.until for key in self.keys[1:]):
            return "its first key must be the current one, and the others must end"
        if self.expires - self.timestamp > milliseconds(ENTRY_EXPIRES):
            return f"it is valid for longer than {ENTRY_EXPIRES:.0f} s"
        return self._wrong_agents() or super().fault()

    def _wrong_agents(self) -> str:
        names = [agent.agent for agent in self.agents]
        of_agents = [key.public for agent in self.agents for key in agent.keys]
        if len(set(names)) < len(names) or len(set(of_agents)) < len(of_agents):
            return "it names an agent, or the key of one, twice"
        wrong = (
            _not_a_name("agent", agent.agent)
            or next(filter(None, (_not_a_name("can", each) for each in agent.can)), "")
            or ("" if len(set(agent.can)) == len(agent.can) else "it repeats an ability")
            or self._unproven(agent)
            for agent in self.agents
        )
        return next(filter(None, wrong), "")

    def listed_keys(self) -> tuple[str, ...]:
        """The fingerprints of its keys, the current one first."""
        return tuple(self.public_keys())

    def public_keys(self) -> dict[str, bytes]:
        """Its keys by their fingerprints."""
        found = (usable_key(key.public) for key in self.keys)
        return {signing.fingerprint(key): key for key in found if key is not None}

    @property
    def here(self) -> int:
        """How many of its agents have a session."""
        return sum(not agent.away for agent in self.agents)

    def agent_keys(self) -> dict[str, tuple[str, AgentKey]]:
        """The keys of agents that sign for themselves, with their agents, by fingerprint."""
        found = [(each.agent, key) for each in self.agents for key in each.keys]
        return {key.fingerprint: (agent, key) for agent, key in found if key.fingerprint}

    def _unproven(self, agent: RegisteredAgent) -> str:
        own = [each.public for each in self.keys]
        for key in agent.keys:
            public, proof = usable_key(key.public), signing.from_base64(key.proof)
            if public is None or key.public in own or proof is None:
                return f"the key of agent {foreign(agent.agent)} is none, or that of its swarm"
            if not signing.fits(public, proof, _proof_bytes(self.from_swarm, agent.agent)):
                return f"the key of agent {foreign(agent.agent)} did not sign that it belongs to it"
        if not all(key.until for key in agent.keys[1:]):
            return f"agent {foreign(agent.agent)} has two keys that do not end"
        return ""


class RevocationHead(Head, frozen=True, kw_only=True):
    """A key that counts no more, for every reader: it has no bus and never expires."""

    payload_type: ClassVar[str] = _TYPE.format("revocation")

    revokes: Fingerprint
    reason: Annotated[str, Meta(max_length=validate.REASON_LIMIT)]


def encode(head: Head) -> bytes:
    """The bytes of a head: what is signed, hashed and sent."""
    return codec.encode(head)


def digest(head: Head) -> str:
    """The SHA-256 of a head, by which a result or a receipt names its request."""
    return sha256(encode(head)).hexdigest()


def fixed_digest(head: RequestHead) -> str:
    """The SHA-256 of all that stays the same when a request is signed again.

    Two requests with one id are the same request only if these are equal.
    """
    return digest(replace(head, timestamp=0, expires=0, attempt=1, key=""))


def milliseconds(seconds: float) -> int:
    """A time in seconds as heads have it."""
    return round(seconds * 1000)


# ---- heads to send ------------------------------------------------------------------------------


def request_head(
    *,
    message_id: str,
    request_id: str,
    from_swarm: str,
    from_agent: str,
    to_swarm: str,
    to_agent: str,
    task_type: str,
    body: bytes,
    key: str,
    bus: str,
    now: float,
    act: Act = "request",
    priority: int = PRIORITY,
    timeout: float = TIMEOUT,
    deadline: float = DEADLINE,
    expires: float | None = None,
    correlation_id: str = "",
    reply_to: str = "",
    confidence: float | None = None,
    citations: tuple[str, ...] = (),
) -> RequestHead:
    """The head of a new request; ``timeout``, ``deadline`` and ``expires`` are seconds from now.

    It expires with its deadline unless something else is said.
    """
    return RequestHead(
        message_id=message_id,
        request_id=request_id,
        act=act,
        from_swarm=from_swarm,
        from_agent=from_agent,
        to_swarm=to_swarm,
        to_agent=to_agent,
        task_type=task_type,
        priority=priority,
        request_timeout_ms=milliseconds(timeout),
        correlation_id=correlation_id or request_id,
        reply_to=reply_to or from_agent,
        timestamp=milliseconds(now),
        expires=milliseconds(now + (deadline if expires is None else min(expires, deadline))),
        deadline=milliseconds(now + deadline),
        attempt=1,
        source_hash=sha256(require_body(body)).hexdigest(),
        source_size=len(body),
        confidence=None if confidence is None else float(confidence),
        citations=citations,
        key=key,
        bus=bus,
    )


def next_attempt(
    head: RequestHead, *, key: str, now: float, expires: float | None = None
) -> RequestHead:
    """The same request to be signed and sent again; its id and its deadline stay."""
    until = head.deadline if expires is None else min(milliseconds(now + expires), head.deadline)
    return replace(
        head, timestamp=milliseconds(now), expires=until, attempt=head.attempt + 1, key=key
    )


def result_head(
    request: RequestHead,
    *,
    message_id: str,
    status: Status,
    executed_by: str,
    executed_at: float,
    body: bytes,
    key: str,
    now: float,
    deadline: float = DEADLINE,
    confidence: float | None = None,
    citations: tuple[str, ...] = (),
) -> ResultHead:
    """The head of the result of a request, back to its asker on the same bus."""
    until = milliseconds(now + deadline)
    return ResultHead(
        message_id=message_id,
        request_id=request.request_id,
        from_swarm=request.to_swarm,
        from_agent=executed_by,
        to_swarm=request.from_swarm,
        to_agent=request.reply_to or request.from_agent,
        correlation_id=request.correlation_id,
        in_reply_to=digest(request),
        status=status,
        executed_by=executed_by,
        executed_at=milliseconds(executed_at),
        timestamp=milliseconds(now),
        expires=until,
        deadline=until,
        source_hash=sha256(require_body(body)).hexdigest(),
        source_size=len(body),
        confidence=None if confidence is None else float(confidence),
        citations=citations,
        key=key,
        bus=request.bus,
    )


def registered_agent(
    agent: str,
    can: tuple[str, ...] = (),
    load: int = 0,
    *,
    swarm: str = "",
    signer: Signer | None = None,
) -> RegisteredAgent:
    """An agent for a registry entry; with a signer it may sign for itself, as one of ``swarm``."""
    keys = () if signer is None else (agent_key(swarm, agent, signer),)
    return RegisteredAgent(agent=agent, can=can, load=load, keys=keys)


def agent_key(swarm: str, agent: str, signer: Signer) -> AgentKey:
    """The key of an agent for a registry entry, with its proof; its owner makes it."""
    proof = signing.to_base64(signer.sign(_proof_bytes(swarm, agent)))
    return AgentKey(public=signing.to_base64(signer.public_key), proof=proof)


def require_body(body: bytes) -> bytes:
    """Return the body of a message if it is not too large."""
    if len(body) > BODY_LIMIT:
        raise TooLarge(
            f"the payload has {len(body)} bytes; {BODY_LIMIT} are allowed:"
            " keep it elsewhere, and pass on where"
        )
    return body


def usable_key(text: str) -> bytes | None:
    """The public key that this base64 is; None if it is none that counts."""
    try:
        return signing.require_public_key(signing.from_base64(text) or b"")
    except BadInput:
        return None


def _proof_bytes(swarm: str, agent: str) -> bytes:
    return signing.signed_bytes(_PROOF_TYPE, codec.encode([swarm, agent]))


def _not_an_address(field: str, text: str) -> str:
    """What is wrong with an addressee: an agent, an ability, or all agents."""
    return "" if text == ALL_AGENTS else _not_a_name(field, text.removeprefix(ABILITY))


def _not_a_name(field: str, text: str) -> str:
    """What is wrong with a name of a head, which may end up in keys and on terminals."""
    try:
        if validate.name(text, field) == text:
            return ""
    except BadName as error:
        return str(error)
    return f"the {field} is not in NFC"
