"""Posting: from the outbox of a home onto the bus (steps 2, 3 and 8 of ``exchange.py``).

The process that made an outbox entry posts it at once.  Entries that are made while it posts others
go with the next commit on the bus, one for all of them (``runtime/leader.py``).  If the bus does
not answer, the entries stay where they are: the outbox is the spool.  Any process of the swarm
drains it later, one process for each target (``live/outbox/{swarm}``), in the order of the commits
that made the entries, many with one commit on the bus and one at home.  A process that left
something in the outbox posts nothing past it.

An entry that the bus will never take, that has expired, or whose swarm is not allowed any more
leaves the line: it goes to quarantine, a person decides about its request, and the others go on.
Requests for a full queue stay where they are, and results are posted past them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Raw, Struct

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.errors import BusTrouble, TooLarge
from interlock.nouns.guards.gates import merged
from interlock.nouns.requests import send_rules
from interlock.nouns.requests.acknowledgements import UnacknowledgedMark
from interlock.nouns.requests.audit import AuditFacts
from interlock.nouns.requests.cleanup import Cleanup
from interlock.nouns.requests.exchange import (
    OutboxEntry,
    QuarantinedMessage,
    decode_outbox,
    decode_request,
)
from interlock.nouns.requests.request import OutgoingRequest
from interlock.nouns.swarms.envelope import SKEW
from interlock.nouns.swarms.limits import DEFAULT_LIMITS
from interlock.nouns.swarms.swarm import decode_peer
from interlock.runtime.attempt import BoundedRefs
from interlock.runtime.identity import Actor
from interlock.runtime.leader import GroupMember, LeaderGroup
from interlock.runtime.process_lease import ProcessLease
from interlock.runtime.reads import looked_up, outside, readable
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.runner import Runner

P = TypeVar("P", "Posting", "PostingMember")

AT_ONCE = 64
"""Envelopes in one commit on the bus, at most."""
_OPERATIONS = 6
"""Operations of one entry in a commit at home, at most; on the bus it has fewer."""
DRAINER_TTL = 10.0
"""Seconds after which another process drains the outbox of one that died."""
BYTES_AT_ONCE = 1024 * 1024
TARGETS_AT_ONCE = 1000


class Posting(Struct, frozen=True, kw_only=True):
    """An outbox entry with its body, ready to be posted."""

    key: str
    entry: OutboxEntry
    body: Raw

    @property
    def message(self) -> str:
        """The message that it is."""
        return keys.id_of(self.key)

    @property
    def size(self) -> int:
        """Its bytes on the bus."""
        return len(bytes(self.entry.envelope)) + len(bytes(self.body))

    def writes(self) -> Iterable[Write]:
        """What is put on the bus."""
        entry = self.entry
        match entry.kind:
            case "request":
                yield Write(keys.bus_request_body(entry.to, self.message), self.body)
                yield Write(keys.bus_request(entry.to, self.message), entry.envelope)
            case "result":
                yield Write(keys.bus_result_body(entry.to, entry.request), self.body)
                yield Write(keys.bus_result(entry.to, entry.request), entry.envelope)
            case "receipt":
                yield Write(keys.bus_receipt(entry.to, entry.request), entry.envelope)


class OutboxPage(Struct, frozen=True, kw_only=True):
    """Entries of the outbox in the order of posting, and the last key of the page; empty if none.

    A damaged entry is not among them, and ``doctor`` reports it.
    """

    postings: list[Posting]
    last: str


class PostingMember(GroupMember):
    """A caller that posts an entry, or clears one that is posted."""

    def __init__(self, own: OwnSwarm, posting: Posting) -> None:
        super().__init__()
        self.own = own
        self.posting = posting
        self.posted = Posted()
        """Where it stands on the bus, or why it has to wait."""
        self.error: TooLarge | None = None
        self.behind = False
        """Whether others to the same swarm wait in the outbox, so that it must not overtake."""

    @property
    def size(self) -> int:
        """The bytes of its entry on the bus."""
        return self.posting.size

    def end(self, posted: Posted) -> None:
        """It is posted, or has to wait."""
        self.posted = posted
        self.settle()


class Posted(Struct, frozen=True, kw_only=True):
    """An entry was posted, by the commit of this revision; or why it has to wait."""

    revision: int = 0
    reason: str = ""


class Outbox:
    """The outbox of one home; its methods are generators for a driver."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._group = LeaderGroup[PostingMember]()
        self._clearing = LeaderGroup[PostingMember]()
        self._at_once = home.at_once(AT_ONCE, _OPERATIONS)
        self._backlog: set[str] = set()
        """Targets for which this process left something in the outbox."""
        self.cleanup = Cleanup(home, self.clear)

    def post(
        self, actor: Actor, own: OwnSwarm, posting: Posting, *, clear_later: bool = False
    ) -> Op[Posted]:
        """Post an entry that was just made, and clear it; ``clear_later`` does so in background.

        The commit that made it relied on the trust in its swarm.  If that is denied by now, the
        entry leaves the outbox as any other one does (``drain``).
        """
        to = posting.entry.to
        member = PostingMember(own, posting)
        if to not in self._backlog and not self._home.denies(to):
            yield from self._group.attend(member, lambda: self._lead_posting(own))
            if member.error is not None:
                raise member.error
            if not member.behind:
                if clear_later and not member.posted.reason:
                    yield from self.cleanup.add(actor, own, posted=(posting,))
                elif not member.posted.reason:
                    clearing = PostingMember(own, posting)
                    lead = partial(self._lead_clearing, actor)
                    yield from self._clearing.attend(clearing, lead)
                return member.posted
        try:
            yield from self.drain(actor, own, to)
        except BusTrouble as trouble:
            self._backlog.add(to)
            return Posted(reason=str(trouble))
        if (yield from self._waits(posting)):  # another process drains, or the queue is full
            return Posted(
                reason=f"messages to {foreign(to)} that were made before are not posted yet"
            )
        return Posted()

    def _waits(self, posting: Posting) -> Op[bool]:
        """Whether an entry is still in the outbox."""
        item = (yield Read(posting.key))[posting.key]
        return item is not None and decode_outbox(item).envelope == posting.entry.envelope

    def _lead_posting(self, own: OwnSwarm) -> Op[None]:
        """Post the entries of all callers that wait for this, as far as one commit takes them."""
        wanted: list[PostingMember] = []
        for each in self._group.unsettled():
            if each.posting.entry.to in self._backlog:
                each.behind = True
                each.settle()
            elif each.own == own:
                wanted.append(each)
        for some in _portions(wanted[: self._at_once]):
            yield from self._post_members(own, some)

    def _lead_clearing(self, actor: Actor) -> Op[None]:
        """Clear the entries of all callers that wait for this, those to one swarm together."""
        wanted = self._clearing.unsettled()
        target = wanted[0].posting.entry.to
        some = [each for each in wanted if each.posting.entry.to == target][: self._at_once]
        yield from self._clear(actor, [each.posting for each in some])
        for each in some:
            each.settle()

    def _post_members(self, own: OwnSwarm, some: Sequence[PostingMember]) -> Op[None]:
        try:
            revision = yield from self._put(own, [each.posting for each in some])
        except BusTrouble as trouble:
            self._backlog.update(each.posting.entry.to for each in some)
            for each in some:
                each.end(Posted(reason=str(trouble)))
        except TooLarge as error:
            if len(some) == 1:
                some[0].error = error
                some[0].settle()
            else:
                for each in some:
                    yield from self._post_members(own, (each,))
        else:
            for each in some:
                each.end(Posted(revision=revision))

    def drain_all(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """Post all that waits; how many entries that was."""
        done = 0
        for target in (yield from self._targets()):
            done += yield from self.drain(actor, own, target)
        return done

    def drain(self, actor: Actor, own: OwnSwarm, target: str) -> Op[int]:
        """Post what waits for one swarm, in order, unless another process does so."""
        lease = self.lease(target)
        if not (yield from lease.take(actor)):
            return 0
        done, after = 0, ""
        try:
            yield from self.cleanup.clear_posted()
            while (page := (yield from self._page(target, after))).last:
                going = yield from self._going(actor, target, page.postings)
                if going:
                    yield from self._post_page(actor, own, going, lease)
                    asked = sum(each.entry.kind == "request" for each in going)
                    yield from self._home.queues.posted(own, target, asked)
                after = after if going else page.last
                done += len(going)
                if not (yield from lease.take(actor)):
                    return done
            if not after:
                self._backlog.discard(target)
        finally:
            yield from lease.leave(actor)
        return done

    def lease(self, target: str) -> ProcessLease:
        """The lease of a process that drains one target."""
        runner = self._home.runner
        return ProcessLease(runner, keys.outbox_lock(target), runner.new_id("drn"), DRAINER_TTL)

    def _going(self, actor: Actor, target: str, postings: Sequence[Posting]) -> Op[list[Posting]]:
        """The entries to post now: some are refused, and requests for a full queue wait."""
        peer, queue = keys.peer(target), keys.peer_queue(target)
        items = (yield Read(peer, queue)).items
        trusted = None if items[peer] is None else readable(decode_peer, items[peer])
        allowed = trusted is not None and trusted.allowed
        limits = DEFAULT_LIMITS if trusted is None else trusted.limits
        full = self._home.queues.check(target, items[queue], "promised", limits)
        found: list[Posting] = []
        for each in postings:
            if self.cleanup.is_posted(each.key):
                continue  # by this process, a moment ago
            late = self._home.now() - each.entry.expires
            if not allowed:
                yield from self._refuse(
                    actor, each, "not_allowed", f"{foreign(target)} is not allowed here"
                )
            elif each.entry.expires and late > SKEW:
                yield from self._refuse(actor, each, "expired", f"it expired {late:.0f} s ago")
            elif full is None or each.entry.kind != "request":
                found.append(each)
        return found

    def _post_page(
        self, actor: Actor, own: OwnSwarm, page: Sequence[Posting], lease: ProcessLease
    ) -> Op[None]:
        for some in _portions(page):
            try:
                yield from self._put(own, some)
            except TooLarge:
                for each in some:
                    yield from self._post_or_refuse(actor, own, each)
            else:
                yield from self._clear(actor, some, lease)

    def _post_or_refuse(self, actor: Actor, own: OwnSwarm, posting: Posting) -> Op[None]:
        try:
            yield from self._put(own, (posting,))
        except TooLarge as error:
            yield from self._refuse(actor, posting, "too_large", str(error))
        else:
            yield from self._clear(actor, (posting,))

    def _refuse(self, actor: Actor, posting: Posting, reason: str, said: str) -> Op[None]:
        """An entry leaves the line for quarantine; a person decides about the request."""
        runner, now = self._home.runner, self._home.now()
        id_, decision, entry = runner.new_id("qua"), runner.new_id("dec"), posting.entry
        kept = QuarantinedMessage(
            id=id_,
            kind=entry.kind,
            reason=reason,
            detail=said,
            at=now,
            message=posting.message,
            request=entry.request,
        )

        facts = AuditFacts(to_swarm=entry.to, reason=reason)

        def deciding() -> DecideOp[None]:
            request_key = keys.request(entry.request)
            items = (yield (posting.key, request_key)).items
            if items[posting.key] is None:
                return Decision(outcome=None)
            own = Decision[None](
                outcome=None,
                verb="outbox.refuse",
                thing=f"request/{entry.request}",
                puts=(*(yield from self._home.room.keep_own(kept)), *_unposted(posting)),
                deletes=(posting.key,),
                events=(Event("request:quarantined", "", details=facts.details()),),
            )
            request = decode_request(items[request_key]) if entry.kind == "request" else None
            if request is None or request.state != "open":
                return own
            least = runner.capabilities.min_ttl
            return merged(
                own,
                [send_rules.escalate(request, "message_refused", decision, now, least=least)],
            )

        yield from self._home.room.commit(deciding, actor)

    def withdraw(self, own: OwnSwarm, request: OutgoingRequest) -> Op[None]:
        """Delete the envelope of a request that is over, if its receiver has not taken it in.

        If the bus is away the envelope stays there, and its receiver may still do the work.
        """
        swarm, message = request.to_swarm, request.message
        wanted = keys.bus_request(swarm, message), keys.bus_request_body(swarm, message)

        def deleting() -> DecideOp[str]:
            items = (yield BoundedRefs.of(wanted)).items
            there = tuple([key for key in wanted if items[key] is not None])
            if not there:
                return Decision(outcome="")
            thing = f"swarm/{own.name}"
            return Decision(outcome="removed", verb="bus.remove", thing=thing, deletes=there)

        def work(runner: Runner) -> Op[None]:
            yield from runner.change(deleting, self._home.bus.actor(own), hopeful=False)

        with suppress(BusTrouble):
            yield from self._home.bus.on(own, work)

    def _put(self, own: OwnSwarm, some: Sequence[Posting]) -> Op[int]:
        """Step 2 or 8; the revision of the commit on the bus."""

        def putting() -> DecideOp[str]:
            yield from ()
            puts = tuple([write for each in some for write in each.writes()])
            thing = f"swarm/{some[0].entry.to}"
            return Decision(outcome="posted", verb="bus.post", thing=thing, puts=puts)

        def work(runner: Runner) -> Op[int]:
            done = yield from runner.change(putting, self._home.bus.actor(own))
            return done.revision or 0

        return (yield from self._home.bus.on(own, work))

    def clear(self, actor: Actor, posted: Sequence[Posting]) -> Op[None]:
        """Step 3 for many entries."""
        for start in range(0, len(posted), self._at_once):
            yield from self._clear(actor, posted[start : start + self._at_once])

    def _clear(
        self, actor: Actor, some: Sequence[Posting], lease: ProcessLease | None = None
    ) -> Op[None]:
        """Step 3: delete entries for one swarm from the outbox, unless others replaced them."""
        target = some[0].entry.to

        def clearing() -> DecideOp[int]:
            if lease is not None and not (yield from lease.held()):
                return Decision(outcome=0)
            found = yield from _with_requests(some)
            return send_rules.post(found, target, self._home.now())

        wanted = [key for each in some for key in (each.key, keys.request(each.entry.request))]
        guess = self._home.recalled(wanted)
        yield from self._home.runner.change(clearing, actor, guess, hopeful=lease is None)

    def _targets(self) -> Op[list[str]]:
        """The swarms for which something waits."""
        found: list[str] = []
        after = ""
        while len(found) < TARGETS_AT_ONCE:
            page = Range(keys.OUTBOX, after, 1)
            items = (yield Read(page)).ranges[page]
            if not items:
                break
            folder = items[0].key.rpartition("/")[0]
            found.append(keys.agent_of(items[0].key))
            after = f"{folder}0"  # behind all keys of this folder: 0 follows the slash
        return found

    def _page(self, target: str, after: str) -> Op[OutboxPage]:
        page = Range(keys.outbox(target), after, self._at_once)
        items = (yield Read(page)).ranges[page]
        ordered = sorted(items, key=lambda item: item.created)
        entries = [(item, entry) for item in ordered if (entry := readable(decode_outbox, item))]
        bodies = yield from looked_up(
            keys.request_body(entry.request) for _, entry in entries if entry.kind == "request"
        )
        found = [
            Posting(key=item.key, entry=entry, body=_body(entry, bodies)) for item, entry in entries
        ]
        return OutboxPage(postings=found, last=items[-1].key if items else "")


def _body(entry: OutboxEntry, bodies: dict[str, Item | None]) -> Raw:
    if entry.kind != "request":
        return entry.body
    item = bodies.get(keys.request_body(entry.request))
    return Raw(b"null") if item is None else Raw(item.value)


def _portions(page: Sequence[P]) -> Iterable[list[P]]:
    """Portions that one commit takes."""
    some: list[P] = []
    size = 0
    for each in page:
        if some and size + each.size > BYTES_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(each)
        size += each.size
    if some:
        yield some


def _with_requests(
    some: Sequence[Posting],
) -> ReadOp[list[tuple[str, OutgoingRequest | None]]]:
    """The entries that are still as they were posted, with the requests that they are."""
    asked = {each.key: keys.request(each.entry.request) for each in some}
    wanted = [
        key
        for each in some
        for key in (each.key, *((asked[each.key],) if each.entry.kind == "request" else ()))
    ]
    items = (yield tuple(dict.fromkeys(wanted))).items
    found = []
    for each in some:
        item = items[each.key]
        if item is not None and decode_outbox(item).envelope == each.entry.envelope:
            found.append((each.key, decode_request(items.get(asked[each.key]))))
    return found


def _unposted(posting: Posting) -> Iterable[Write]:
    """A result that will never be on the bus: its absence there says nothing."""
    if posting.entry.kind == "result":
        mark = UnacknowledgedMark(message=posting.message, until=0.0, refused=True)
        yield Write(keys.unacknowledged(posting.entry.to, posting.entry.request), mark)


def waiting(target: str) -> Op[int]:
    """How many entries wait for a swarm, up to a page."""

    def reading() -> ReadOp[int]:
        page = Range(keys.outbox(target))
        return len((yield (page,)).ranges[page])

    return outside(reading())
