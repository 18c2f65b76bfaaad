"""Presence: which agents have a live session or a receiver, and which have an ability.

These checks are hints: they spare an asker a wait that would never end. A receiver announces itself
with a note (``serving/{agent}/{caller}``) while its liveness key exists. Then its agent is not
away, and the deadlock check knows that an asker waits for this caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from interlock.client_context import SESSION_TTL, Context
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.validate import ALL_ABILITIES, closest_names
from interlock.core.wait import caller_name
from interlock.errors import StoreDamaged, StoreTrouble
from interlock.nouns.agents.report_rules import CapableAgent
from interlock.nouns.agents.report_service import agents_able_to, decode_report
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.send_rules import MAILBOX
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.callers import LocalCaller
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.keeper import Lease
from interlock.runtime.reads import every, looked_up, outside, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

_STARTS_KEPT = 100
"""Dead receivers in a row whose start is remembered."""
_AGENTS_KNOWN = 1000
_LIVES_KNOWN = 4
"""How many agents a client remembers, and how many liveness keys of each."""


class ReceiverNote(Struct, frozen=True, omit_defaults=True):
    """A caller that receives messages for its agent while a liveness key exists.

    ``can`` are abilities that it has in addition to those in its session's report.

    ``hand`` counts the deliveries of its current messages, as of the commit that acknowledged the
    previous ones. So a message whose receiver is killed counts as delivered, without a commit of
    its own. A message delivered after a wait is in no note: if nothing in ``hand`` is unread any
    more, the receiver may have had the first unread message (``whole``: all unread ones). The same
    holds for receivers that died before it with an empty hand, if the message was sent before the
    next of them started: ``begun`` has the revisions at which they started. ``at`` is when the note
    was written; ``over`` means that maintenance has found the receiver dead and keeps the note for
    the next one.
    """

    session: str
    live: str
    can: tuple[str, ...] = ()
    hand: dict[str, int] = {}
    whole: bool = False
    begun: tuple[int, ...] = ()
    at: float = 0.0
    over: bool = False

    def deliveries(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """How often each unread message may have been delivered; ids with revisions, in order."""
        noted = {id_: self.hand[id_] for id_ in waiting if id_ in self.hand}
        if noted:
            return noted
        later = self.begun[1:]
        some = islice(waiting.items(), None if self.whole else 1)
        return {id_: 1 + sum(sent < revision for revision in later) for id_, sent in some}


class ReceiverNotes(Struct, frozen=True):
    """The notes of receivers that count, and the keys of dead ones.

    ``begun`` of each of these notes includes the receiver's own start.
    """

    current: tuple[ReceiverNote, ...]
    dead: tuple[str, ...]


_SERVING = codec.Decoder(ReceiverNote)


class KnownPresence:
    """The liveness keys by which agents were present before.

    Across a network the commit of a question checks one of them, which takes no read.  Elsewhere
    they are read together with the sessions of the agent, which mostly are the same ones, so that
    it takes one read instead of two.
    """

    def __init__(self) -> None:
        self._lives: dict[str, tuple[str, ...]] = {}

    def lives(self, agent: str) -> tuple[str, ...]:
        """The keys of this agent; none if it was not asked before."""
        return self._lives.get(agent, ())

    def live(self, agent: str) -> str:
        """One of these keys; empty if none is known."""
        return next(iter(self.lives(agent)), "")

    def drop(self, agent: str) -> None:
        """Drop the keys of this agent, since one of them is gone."""
        self._lives.pop(agent, None)

    def note(self, agent: str, lives: Iterable[str]) -> None:
        """Remember the keys of this agent."""
        if len(self._lives) >= _AGENTS_KNOWN:
            self._lives.clear()
        self._lives[agent] = tuple(islice(lives, _LIVES_KNOWN))


def can_answer(to: str, asker: str, known: KnownPresence | None = None) -> Op[bool]:
    """Whether an agent, or (``?ability``) another session than the asker's, may answer.

    An agent that never had a session may be a person at a shell, and counts as present; so does one
    whose state is unreadable.
    """
    try:
        if to.startswith(ABLE):
            return (yield from _is_ability_present(to.removeprefix(ABLE), asker))
        return (yield from _is_present(to, keys.joined(to), known))
    except StoreDamaged:
        return True


def is_running(to: str) -> Op[bool]:
    """Whether an agent has a live session, or a receive loop without one.

    An unknown agent counts as running, since the send itself refuses it; so does one whose state is
    unreadable.
    """
    try:
        return (yield from _is_present(to, keys.mailbox(to)))
    except StoreDamaged:
        return True


def _is_present(agent: str, mark: str, known: KnownPresence | None = None) -> Op[bool]:
    """Whether a session or receiver of this agent lives; true if the mark does not exist."""
    places = (Range(keys.agent_session(agent)), Range(keys.serving(agent)))
    before = () if known is None else known.lives(agent)
    snapshot: Snapshot = yield Read(mark, *places, *before)
    if snapshot[mark] is None or any(snapshot[key] is not None for key in before):
        return True
    items = [item for place in places for item in snapshot.ranges[place]]
    if len(items) >= places[0].limit:
        items = yield from every(*(place.prefix for place in places))
    lives = yield from looked_up(map(liveness_key, items))
    if known is not None:
        known.note(agent, [key for key, item in lives.items() if item is not None])
    return any(lives.values())


def _is_ability_present(ability: str, asker: str) -> Op[bool]:
    """Whether another session than the asker's has an ability, or receives for it."""
    found = (yield from outside(agents_able_to(ability))).values()
    others = [each.live for each in found if each.session != asker]
    if any((yield from looked_up(others)).values()):
        return True
    from interlock.nouns.agents.views import session_overview

    wanted = {ability, ALL_ABILITIES}
    said = (yield from session_overview()).able  # an older version writes it nowhere else
    if any(wanted & said[session] for session in said if session != asker):
        return True
    notes = [receiver_note(item) for item in (yield from every(keys.SERVING))]
    able = [each for each in notes if each.session != asker and not wanted.isdisjoint(each.can)]
    return any((yield from looked_up([each.live for each in able])).values())


def is_able(actor: Actor, ability: str, can: Iterable[str]) -> ReadOp[bool]:
    """Whether an agent has an ability.

    By ``can``, by its session's report, or by the note of its receiver.
    """
    wanted = {ability, ALL_ABILITIES}
    if not wanted.isdisjoint(can):
        return True
    own, notes = keys.report(actor.session), Range(keys.serving(actor.agent))
    snapshot = yield Unchecked((own, notes))
    said_last = decode_report(snapshot[own])
    serving = [receiver_note(item) for item in snapshot.ranges[notes]]
    said = [each.can for each in serving if each.session == actor.session]
    said += [] if said_last is None else [said_last.can]
    return any(not wanted.isdisjoint(each) for each in said)


def receiver_note(item: Item) -> ReceiverNote:
    """The note of a receiver."""
    return _SERVING.read(item)


def liveness_key(item: Item) -> str:
    """The key that exists while a session or a receiver lives."""
    if item.key.startswith(keys.AGENTS):
        return keys.live(keys.id_of(item.key))
    return receiver_note(item).live


def ensure_mailbox(runner: Runner, identity: Identity) -> Op[bool]:
    """Give an agent that reads messages a mailbox; return whether it is new.

    An agent that reads without a session is at a shell, and from then on is not away because it has
    no session. If the agent has a live session, the reader may be a person on its behalf.
    """
    actor = identity.actor
    mailbox, joined = keys.mailbox(actor.agent), keys.joined(actor.agent)
    snapshot: Snapshot = yield Read(mailbox, joined)
    if snapshot[mailbox] is None:
        yield from runner.change(
            _agent_change("agent.mailbox", actor, (Write(mailbox, MAILBOX),)), actor
        )
    mark = None if identity.joined else snapshot[joined]
    if mark is not None and not (yield from _has_session(actor.agent)):
        yield from runner.change(lambda: _at_a_shell(actor, mark), actor)
    return snapshot[mailbox] is None


def _has_session(agent: str) -> Op[bool]:
    sessions = yield from every(keys.agent_session(agent))
    return any((yield from looked_up(map(liveness_key, sessions))).values())


def _at_a_shell(actor: Actor, mark: Item) -> DecideOp[str]:
    """Delete the mark that the agent had sessions, unless it has joined since."""
    found = (yield (mark.key,))[mark.key]
    if found is None or found.revision != mark.revision:
        return Decision(outcome="done")
    thing = f"agent/{actor.agent}"
    return Decision(outcome="done", verb="agent.mailbox", thing=thing, deletes=(mark.key,))


def is_new(agent: str) -> Op[bool]:
    """Whether this agent is unknown: it never joined, read or was sent anything."""
    key = keys.mailbox(agent)
    return (yield Read(key))[key] is None


def mailboxes() -> Op[list[str]]:
    """The names of all agents with a mailbox."""
    return [keys.decode(keys.id_of(item.key)) for item in (yield from every(keys.MAILBOXES))]


def similar_names(names: Iterable[str]) -> Op[tuple[str, ...]]:
    """Agents with a mailbox whose names resemble these."""
    found = yield from mailboxes()
    return tuple(dict.fromkeys(each for name in names for each in closest_names(name, found)))


def receiver_notes(agent: str, own: str = "") -> Op[ReceiverNotes]:
    """The notes of an agent's receivers, without our own.

    Each receiver takes over the notes before it, so a note counts if it changed since the last
    receiver started.
    """
    items = [item for item in (yield from every(keys.serving(agent))) if item.key != own]
    found = {
        item.key: note for item in items if (note := readable(receiver_note, item)) is not None
    }
    lives = yield from looked_up([note.live for note in found.values()])
    last = max([item.created for item in items], default=0)
    return ReceiverNotes(
        current=tuple(
            [
                replace(note, begun=(*note.begun, item.created))
                for item in items
                if (note := found.get(item.key)) is not None and item.revision >= last
            ]
        ),
        dead=tuple([key for key, note in found.items() if lives[note.live] is None]),
    )


def inherited_note(others: Iterable[ReceiverNote]) -> ReceiverNote:
    """The deliveries of other receivers, for the note of the next one."""
    found, begun, whole = dict[str, int](), list[int](), False
    for each in others:
        found |= {id_: times + 1 for id_, times in each.hand.items()}
        begun += () if each.hand else each.begun
        whole = whole or each.whole
    return ReceiverNote("", "", hand=found, begun=tuple(sorted(begun)[-_STARTS_KEPT:]), whole=whole)


def announce_receiver(
    runner: Runner,
    actor: Actor,
    caller: str,
    ttl: float,
    note: ReceiverNote | None = None,
    *,
    dead: tuple[str, ...] = (),
) -> Op[Write]:
    """Announce that a caller receives messages; return the liveness key to renew.

    Its note replaces those of the ``dead`` receivers.
    """
    live = Write(keys.receiver_live(actor.session, caller), {"agent": actor.agent}, ttl)
    note = note or ReceiverNote(actor.session, live.key)
    said = Write(keys.serving(actor.agent, caller), note)
    mailbox = Write(keys.mailbox(actor.agent), MAILBOX)
    one = CapableAgent(actor.agent, actor.session, live.key)
    able = [Write(keys.able(each, caller), one) for each in note.can]
    yield from runner.change(
        _agent_change("agent.serve", actor, (said, live, mailbox, *able), dead), actor
    )
    return live


def withdraw_receiver(
    runner: Runner, actor: Actor, caller: str, can: tuple[str, ...] = ()
) -> Op[None]:
    """Withdraw a receiver's note, with those of dead receivers that it has taken over."""
    own = keys.serving(actor.agent, caller)
    dead = (yield from receiver_notes(actor.agent, own)).dead
    able = [keys.able(each, caller) for each in can]
    gone = (own, keys.receiver_live(actor.session, caller), *able, *dead)
    yield from runner.change(_agent_change("agent.retire", actor, (), gone), actor)


def _agent_change(
    verb: str, actor: Actor, puts: tuple[Write, ...], deletes: tuple[str, ...] = ()
) -> Callable[[], DecideOp[str]]:
    def deciding() -> DecideOp[str]:
        yield ()
        return Decision(
            outcome="done", verb=verb, thing=f"agent/{actor.agent}", puts=puts, deletes=deletes
        )

    return deciding


class ReceiverPresence:
    """The announcement that one of our callers receives; the client's keeper renews it."""

    def __init__(self, context: Context, can: tuple[str, ...] = ()) -> None:
        self._context = context
        self._can = can
        self._caller = ""
        self._lease: Lease | None = None
        self._someone: LocalCaller | None = None
        self._note = ReceiverNote("", "")
        """The last note that we wrote."""
        self._announced = False
        """Whether others may see it: from before the announcement until its withdrawal."""

    @property
    def is_valid(self) -> bool:
        """Whether the announcement is still valid."""
        return self._lease is not None and not self._lease.lost

    def begin(self, *, whole: bool = False) -> Op[None]:
        """Announce, if needed; ``whole`` if we take all unread messages at once."""
        if self.is_valid:
            return
        self._release()
        context, identity = self._context, self._context.me()
        self._someone = someone = None if identity.caller else context.grants.current_caller()
        self._caller = self._caller or self._name(identity, someone)
        sent = context.runner.clock.monotonic()
        ttl = max(identity.session_ttl or SESSION_TTL, context.runner.capabilities.min_ttl)
        if someone is not None:
            someone.holds.add(self)  # its askers wait for what it waits for
        self._announced = True
        others = yield from receiver_notes(
            identity.actor.agent, keys.serving(identity.actor.agent, self._caller)
        )
        known = inherited_note(others.current)
        self._note = replace(
            known,
            session=identity.actor.session,
            live=keys.receiver_live(identity.actor.session, self._caller),
            can=self._can,
            hand=known.hand | self._note.hand,
            whole=whole or known.whole,
            at=round(context.runner.clock.wall(), 3),
        )
        write = yield from announce_receiver(
            context.runner, identity.actor, self._caller, ttl, self._note, dead=others.dead
        )
        if not self._announced:  # another thread ended it during the commit
            yield from self._withdraw()
            return
        self._lease = context.keeper.keep(write, sent)
        context.wake()

    def note_writes(self, hand: dict[str, int]) -> tuple[Write, ...]:
        """The write that notes these messages as delivered; none if they are noted already."""
        note = replace(self._note, hand=hand, begun=())
        if not self.is_valid or note == self._note:
            return ()
        return (Write(keys.serving(self._context.me().actor.agent, self._caller), note),)

    def note_committed(self, hand: dict[str, int]) -> None:
        """The note with these messages was committed."""
        self._note = replace(self._note, hand=hand, begun=())

    def end(self) -> Op[None]:
        """Withdraw the announcement; if the store is unreachable, it expires by itself."""
        said, self._announced = self._announced, False
        self._release()
        if said:
            yield from self._withdraw()

    def _withdraw(self) -> Op[None]:
        if not self._context.store.outage:
            with suppress(StoreTrouble):
                yield from withdraw_receiver(
                    self._context.runner, self._context.me().actor, self._caller, self._can
                )

    def _name(self, identity: Identity, someone: LocalCaller | None) -> str:
        """A task or thread has its own name.

        At a shell, each command has one: it waits for nothing else, unlike other commands of that
        shell.
        """
        if someone is not None:
            return someone.name
        own = self._context.runner.new_id("clr")
        inside = caller_name(identity.actor.agent, identity.actor.session, identity.caller)
        return f"{inside}/{own}" if inside else own

    def _release(self) -> None:
        if self._someone is not None:
            self._someone.holds.discard(self)
        if self._lease is not None:
            self._context.keeper.drop(self._lease)
            self._lease = None
