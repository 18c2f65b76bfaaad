"""What two homes and the bus store for requests between them, and the way of one request.

    1  asker     the request, its outbox entry and its place in the rate, one commit at home
    2  bus       the envelope and its payload are put under ``req/{receiver}/``
    3  asker     the outbox entry is deleted: the request is posted
    4  receiver  verified, then one commit at home: the mark against replay, which is new; the
                 peer's trust, which is as it was verified with; and a task
    5  bus       the envelope is deleted
    6  receiver  a worker claims the task and does the work; one that waits in the process that
                 takes the request in has its claim with step 4
    7  receiver  the task is complete and its result is in the outbox, one commit
    8  bus       the result is put under ``res/{asker}/``
    9  asker     verified, then one commit at home: the finding, which is new; the end of the
                 request; the notice to the asker
    10 bus       the result is deleted, which acknowledges it

Each line is one commit.  A crash after any of them leaves something that the next process of the
same swarm finds: an outbox entry after 1 and 7, an envelope on the bus after 2, 4, 8 and 9, a claim
that expires after 6.  Doing a step twice is harmless: a message that was taken in before is known
by its mark, and a result that was accepted before by its digest.

**Many at once.**  1 and 7 are a commit for each request; the others are shared.  The callers of a
process post together (``posting.py``), one of them follows the bus and takes in for all that wait
(``result_waits.py``), and 3, 5 and 10 follow in the background (``cleanup.py``): on the way of an
asker there are 1, 2, 4, 7, 8 and 9.  The commit that ends a request deletes its outbox entry, too,
so the request of an asker that waits rarely needs 3.

Posting writes without a check.  An envelope under the same key is an earlier attempt of the same
message, or rubbish by a client of the bus, and in both cases the new one is better.

**Attempts.**  An asker without an answer signs and posts the same message again.  The receiver,
which has it already, answers each new attempt once: with a receipt while the task is not finished,
else with the result again.  So no receipt is sent in the ordinary case, and a slow worker is not
taken for a lost request.  A replay of an earlier attempt is answered by nothing.

**Quarantine.**  A message that is refused is deleted from the bus and kept here with the reason.
The number is bounded, in all and for each swarm; above a bound such messages are deleted, without a
commit.  Only a message with a valid signature has its payload kept, so that an operator can release
it.  Its id is made from that of the message, so a message is kept once however often it arrives.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from interlock.core import codec
from interlock.core.rate import RateLog
from interlock.nouns.requests.request import OutgoingRequest, RequestFinding, ResultStatus
from interlock.nouns.swarms.breaker import Breaker
from interlock.nouns.swarms.head import RequestHead
from interlock.nouns.swarms.limits import PeerCounts
from interlock.nouns.swarms.reputation import Reputation

EntryKind: TypeAlias = Literal["request", "result", "receipt"]

QUARANTINE_LIMIT = 1000
UNSIGNED_LIMIT = SIGNED_LIMIT = 200
"""Messages in quarantine: all, those whose signature says nothing, and those of one swarm."""
REQUEST_LABEL = "request"
"""The label of the tasks that are requests."""


class OutboxEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An envelope to be posted, until it expires; the body of a request is an item of its own."""

    kind: EntryKind
    to: str
    request: str
    envelope: Raw
    expires: float = 0.0
    body: Raw = Raw(b"")


class ReceivedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of another swarm, as its receiver stores it.

    ``digest`` is that of the head that was taken in, which the result binds; ``answered`` is when
    the result was stored in the outbox, and the others are those of the result, which is signed
    with the same values again if it has to be posted again.
    """

    head: RequestHead
    digest: str
    task: str
    at: float
    answered: float | None = None
    status: ResultStatus | None = None
    executed_by: str = ""
    executed_at: float = 0.0


class SeenMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was taken in; ``content`` is what stays the same in all of its attempts."""

    request: str
    content: str
    attempt: int
    until: float


class QuarantinedMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was refused; ``swarm`` and ``agent`` are verified, else empty.

    ``content`` says that its envelope and payload are kept, so that it can be released.
    """

    id: str
    kind: EntryKind
    reason: str
    detail: str
    at: float
    message: str = ""
    request: str = ""
    swarm: str = ""
    agent: str = ""
    key: str = ""
    content: bool = False

    @property
    def signed(self) -> bool:
        """Whether its signature was verified."""
        return bool(self.swarm)


class QuarantineContent(Struct, frozen=True, kw_only=True):
    """The envelope and the payload of a message in quarantine, as they were on the bus."""

    envelope: bytes
    body: bytes


class RequestName(Struct, frozen=True, kw_only=True):
    """The request that was sent under a name."""

    request: str
    at: float


def task_id(swarm: str, request: str) -> str:
    """The task for a request of another swarm; no other swarm can make a request with its id."""
    return f"{request}@{swarm}"


def requirement(to_agent: str) -> str:
    """What a worker must be able to do for a request: an ability, or to be the agent itself."""
    return to_agent if to_agent.startswith("can:") else f"@{to_agent}"


_OUTBOX = codec.Decoder(OutboxEntry)
_REQUEST = codec.Decoder(OutgoingRequest)
_RECEIVED = codec.Decoder(ReceivedRequest)
_SEEN = codec.Decoder(SeenMark)
_FINDING = codec.Decoder(RequestFinding)
_QUARANTINED = codec.Decoder(QuarantinedMessage)
_CONTENT = codec.Decoder(QuarantineContent)
_NAME = codec.Decoder(RequestName)
_RATE = codec.Decoder(RateLog)
_COUNTS = codec.Decoder(PeerCounts)
_BREAKER = codec.Decoder(Breaker)
_REPUTATION = codec.Decoder(Reputation)

decode_outbox = _OUTBOX.read
decode_request = _REQUEST.read_if_present
decode_received = _RECEIVED.read_if_present
decode_seen = _SEEN.read_if_present
decode_finding = _FINDING.read_if_present
decode_quarantined = _QUARANTINED.read_if_present
decode_content = _CONTENT.read_if_present
decode_name = _NAME.read_if_present
decode_rate = _RATE.read_if_present
decode_counts = _COUNTS.read_if_present
decode_breaker = _BREAKER.read_if_present
decode_reputation = _REPUTATION.read_if_present


def examine(item: object) -> None:
    """Any value will do: only the key matters, or what a sender put there."""
    del item
