"""The calls on questions, answers and decisions."""

from __future__ import annotations

from collections.abc import Iterable

from interlock.core import keys, validate
from interlock.drivers import Op
from interlock.errors import BadInput
from interlock.nouns.messages import query_rules as queries
from interlock.nouns.messages import reading
from interlock.nouns.messages.common import MessageServices, named
from interlock.nouns.messages.human_decision import DecisionView, ResolveOutcome, UnknownDecision
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.query_rules import AskOutcome, CancelOutcome, ReplyOutcome
from interlock.nouns.messages.querying import AskOptions as AskTerms
from interlock.runtime import callers
from interlock.runtime.calls import D, call
from interlock.runtime.given import Given
from interlock.runtime.reads import by_prefix


class QueryCalls(MessageServices[D]):
    """The calls that ask, answer and decide."""

    @call
    def query(
        self,
        to: str,
        question: object,
        *,
        timeout: float | str | None = None,
        cached: float | str | None = None,
        hold: bool = False,
        person: bool = False,
        urgent: bool = False,
        type: str = "",  # noqa: A002
        id: str | None = None,  # noqa: A002
        given: Given = (),
    ) -> Op[AskOutcome]:
        """Ask an agent or an ability (``?ability``), and wait for the answer.

        An agent that had a session and has none now is ``away``, at once; with ``hold`` the
        question waits for it. An earlier answer to the same question is accepted up to the age
        ``cached``; it carries the id of the earlier question. With ``person`` a person is asked if
        no agent answers. Without a ``timeout`` it waits as configured for this ``type`` of
        question, for this recipient, or for all (``[query.timeouts]`` and ``[query."*"]``), else 30
        s. Asked again with the same ``id``, also by another process, it is the same question; a
        different question with that id is ``exists``.
        """
        identity = self._identity(given)
        recipient = _recipient(to)
        kind = validate.name(type, "type") if type else ""
        usual = self.context.settings.query(recipient, kind)
        wait = (
            (usual or queries.TIMEOUT) if timeout is None else validate.duration(timeout, "timeout")
        )
        asked = queries.Query(
            id=self._id(id, "qry"),
            agent=identity.actor.agent,
            session=identity.actor.session,
            to=recipient,
            question=self._body(question, "question"),
            at=self.context.runner.clock.wall(),
            timeout=wait,
            type=kind,
            urgent=validate.flag(urgent, "urgent"),
            person=validate.flag(person, "person"),
            trace=self.context.purpose or self.context.trace,
        )
        age = None if cached is None else validate.duration(cached, "age of an answer")
        terms = AskTerms(hold=validate.flag(hold, "hold"), cached=age, keep=id is not None)
        waits = callers.caller_terms(identity.caller, self.context.grants.current_caller())
        return self._fenced(identity, self.queries.query(identity, asked, terms, waits))

    @call
    def reply(
        self, query: str, answer: object, *, can: Iterable[str] = (), given: Given = ()
    ) -> Op[ReplyOutcome]:
        """Answer a question, which also acknowledges it.

        A question to an ability can be answered by an agent that has it: by its session's report
        (``pulse``), by the ``can`` of its receiver, or by ``can`` here.
        """
        id_, able = validate.name(query, "query id"), validate.abilities(can)
        said = self._body(answer, "answer")
        if id_.startswith("msg_"):
            return self._no_question(id_)
        identity = self._identity(given)
        return by_prefix(
            id_,
            lambda each: self._fenced(
                identity, self.queries.reply(identity.actor, each, said, able)
            ),
            keys.QUERIES,
        )

    def _no_question(self, id_: str) -> Op[ReplyOutcome]:
        """Say how to answer a message that is not a question."""
        found = yield from reading.find_message(self.context.me().actor.agent, id_)
        to = "AGENT" if found is None else found.sender
        how = f"interlock send {validate.quote(to)} --reply-to {id_} TEXT"
        raise BadInput(f"that is no question; answer with: {how}")

    @call
    def cancel(self, query: str, *, given: Given = ()) -> Op[CancelOutcome]:
        """Cancel our question."""
        identity, id_ = self._identity(given), validate.name(query, "query id")
        return by_prefix(
            id_,
            lambda each: self._fenced(identity, self.queries.cancel(identity.actor, each)),
            keys.QUERIES,
        )

    @call
    def resolve(self, decision: str, answer: object, *, given: Given = ()) -> Op[ResolveOutcome]:
        """Make a decision; the asker gets it as a message."""
        id_ = validate.name(decision, "decision id")
        identity, said = self._identity(given), self._body(answer, "answer")
        return by_prefix(
            id_,
            lambda each: self._fenced(identity, self.queries.resolve(identity.actor, each, said)),
            keys.DECISIONS,
        )

    @call
    def decisions(self) -> Op[tuple[DecisionView, ...]]:
        """Open decisions and recent ones."""
        return self.queries.decisions()

    @call
    def decision(self, decision: str) -> Op[DecisionView | UnknownDecision]:
        """One decision."""
        return by_prefix(
            validate.name(decision, "decision id"), self.queries.decision, keys.DECISIONS
        )


def _recipient(to: str) -> str:
    if validate.require_text(to, "agent name").startswith(ABLE):
        return ABLE + validate.name(to[len(ABLE) :], "ability")
    return named(to)
