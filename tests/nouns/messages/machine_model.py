"""A model of messages without a store: letters, and which agent has yet to read which.

A letter has a place: the number that it was sent as. A reader of a topic gets the letters after its
subscription that pass the filter; mail to all is for all but its sender. When a subscriber changes
its filter, earlier letters that pass both filters must still arrive; the others may or may not. A
question that has expired may or may not arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

ALL = "*"


class Letter(Struct, kw_only=True):
    """A message that was sent."""

    id: str
    kind: str
    sender: str
    to: tuple[str, ...] = ()
    topic: str = ""
    urgent: bool = False
    data: Any = None
    place: int = 0

    @property
    def order(self) -> tuple[bool, int]:
        return not self.urgent, self.place


class Hears(Struct, kw_only=True):
    """A subscription of an agent: from which place on; ``asked`` is when it was made."""

    first: int = 0
    asked: int = 0
    senders: tuple[str, ...] = ()
    where: Mapping[str, Any] = {}
    acked: set[str] = set()
    unsure: set[str] = set()

    def wants(self, letter: Letter) -> bool:
        known = letter.data if isinstance(letter.data, dict) else {}
        return (
            letter.place >= self.first
            and letter.sender in (self.senders or (letter.sender,))
            and all(known.get(name) == value for name, value in self.where.items())
        )


class Question(Struct, kw_only=True):
    """A query and its state."""

    id: str
    asker: str
    to: str
    ends: float
    timeout: float
    person: bool
    state: str = "open"
    by: str = ""
    answer: Any = None
    decision: str = ""


class Terms(Struct, frozen=True, kw_only=True):
    """The limits for all agents."""

    rate: int
    window: float
    depth: int
    open: int


class Model:
    """Everything that was sent, and its state."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.letters: dict[str, Letter] = {}
        self.known: set[str] = set()
        self.waiting: dict[str, set[str]] = {}
        self.read: dict[str, set[str]] = {}
        self.hears: dict[tuple[str, str], Hears] = {}
        self.turns: dict[str, list[float]] = {}
        self.paused: set[str] = set()
        self.questions: dict[str, Question] = {}

    # Sending.

    def refusal(self, sender: str, to: Iterable[str], now: float, *, hold: bool) -> str:
        """Why a message cannot be sent."""
        if sender in self.paused:
            return "paused"
        if not hold and not self.known.issuperset(to):
            return "unknown"
        if self.spent(sender, now) >= self.terms.rate:
            return "limited"
        full = any(len(self.waiting.get(each, ())) >= self.terms.depth for each in to)
        return "full" if full else ""

    def spent(self, sender: str, now: float) -> int:
        """The rate slots used within the last window."""
        return sum(now - self.terms.window < each <= now for each in self.turns.get(sender, ()))

    def send(self, letter: Letter, now: float, acks: Iterable[str] = ()) -> None:
        letter.place = len(self.letters) + 1
        self.letters[letter.id] = letter
        self.known |= {letter.sender, *letter.to} - {ALL}
        self.turns.setdefault(letter.sender, []).append(now)
        if not letter.topic:
            for each in letter.to:
                self.waiting.setdefault(each, set()).add(letter.id)
        for each in acks:
            self.acknowledge(letter.sender, each)

    # Reading.

    def topic(self, agent: str, name: str) -> Hears | None:
        """What an agent reads of a topic; all of mail to all, and of questions."""
        if not name.isalpha():
            return self.hears.setdefault((agent, name), Hears(acked=set(), unsure=set()))
        return self.hears.get((agent, name))

    def unread(
        self, agent: str, abilities: Iterable[str], now: float
    ) -> tuple[list[Letter], set[str]]:
        """The unread messages in order, and messages that may arrive or not."""
        over = {id_ for id_, each in self.questions.items() if each.ends <= now}
        waits = self.waiting.get(agent, set())
        own = [self.letters[each] for each in waits - over]
        able = {f"?{each}" for each in abilities}
        unsure = waits & over
        for letter in self.letters.values():
            if not letter.topic or (letter.topic[0] == "?" and letter.topic not in able):
                continue
            if letter.topic == ALL and letter.sender == agent:
                continue
            hears = self.topic(agent, letter.topic)
            if hears is None or letter.id in hears.acked or not hears.wants(letter):
                continue
            if letter.kind == "query" and self.questions[letter.id].state != "open":
                continue
            if letter.id in hears.unsure or letter.id in over:
                unsure.add(letter.id)
            else:
                own.append(letter)
        return sorted(own, key=lambda each: each.order), unsure

    def acknowledge(self, agent: str, id_: str) -> str:
        """The outcome of an acknowledgement: ``new``, ``already`` or ``unknown``."""
        letter = self.letters.get(id_)
        if letter is None:
            return "unknown"
        if not letter.topic:
            if id_ in self.waiting.get(agent, ()):
                self.waiting[agent].discard(id_)
                self.read.setdefault(agent, set()).add(id_)
                return "new"
            return "already" if id_ in self.read.get(agent, ()) else "unknown"
        hears = self.topic(agent, letter.topic)
        if hears is None:
            return "unknown"
        before = id_ in hears.acked
        hears.acked.add(id_)
        return "already" if before else "new"

    def subscribe(
        self, agent: str, topic: str, senders: tuple[str, ...], where: Mapping[str, Any], last: int
    ) -> None:
        self.known.add(agent)
        before, asked = self.hears.get((agent, topic)), len(self.letters) + 1
        new = Hears(asked=asked, senders=senders, where=where, acked=set(), unsure=set())
        earlier = [each for each in self.letters.values() if each.topic == topic]
        if before is None:
            fit = [each.place for each in earlier if new.wants(each)]
            new.first = min(fit[-last:]) if last and fit else asked
        else:
            if (before.senders, before.where) == (senders, where):
                return
            new.first, new.asked, new.acked = before.first, before.asked, before.acked
            both = {each.id for each in earlier if before.wants(each) and new.wants(each)}
            new.unsure = before.unsure | ({each.id for each in earlier} - both)
        self.hears[agent, topic] = new

    # Questions.

    def ask(self, question: Question, letter: Letter, now: float) -> None:
        self.send(letter, now)
        self.questions[question.id] = question

    def close(self, question: Question, state: str) -> None:
        """End a question: it waits for no answer."""
        question.state = state
        for some in self.waiting.values():
            some.discard(question.id)

    def open(self, agent: str = "") -> int:
        """The number of open questions, of one agent or of all."""
        return sum(
            each.state == "open" and agent in ("", each.asker) for each in self.questions.values()
        )

    def knotted(self, question: Question) -> bool:
        """Whether the waits for answers form a cycle."""
        asks: dict[str, set[str]] = {}
        for each in self.questions.values():
            if each.state == "open" or each is question:
                asks.setdefault(each.asker, set()).add(each.to)
        found, ahead = set(), {question.to}
        while ahead:
            found |= ahead
            ahead = {to for each in ahead for to in asks.get(each, ())} - found
        return question.asker in found
