"""The calls of the record: read, explain, follow, verify, export, anchor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from interlock import registry
from interlock.client_context import Moment
from interlock.core import validate
from interlock.core.entry import RecordLine
from interlock.core.filter import RecordFilter
from interlock.errors import BadInput
from interlock.runtime.calls import Calls, D, call, stream
from interlock.runtime.history import LogFollowing, search
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.core.history import Story
    from interlock.nouns.record.noun import Anchored, Exported, Verified


class RecordCalls(Calls[D]):
    """What happened."""

    @call
    def log(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        last: bool = True,
        by: str | None = None,
        verb: str | None = None,
        thing: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        trace: str | None = None,
    ) -> Op[tuple[RecordLine, ...]]:
        """Entries in order: the last ones, or (``last=False``) the first after a revision.

        The other arguments filter: entries ``by`` or about an agent (or a session, by its id); a
        ``verb`` (``lock.acquire``) or its noun (``lock``); a ``thing``
        (``lock/merge``, ``sem/builds``, ``task/t1``, ``agent/ada``, ``alert/built``, the id of a
        message, a query or a decision; a plain name is a lock's);
        ``since`` and ``until`` a moment: a duration back from now (``2h``), or a time; a
        ``trace``.
        """
        most, begin = validate.limit(limit), validate.after(after)
        wanted = self.wanted(by=by, verb=verb, thing=thing, since=since, until=until, trace=trace)
        return search(wanted, after=begin, limit=most, last=validate.flag(last, "last"))

    def wanted(
        self,
        *,
        by: str | None = None,
        verb: str | None = None,
        thing: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        trace: str | None = None,
    ) -> RecordFilter:
        """Checked words as a filter."""
        now = self.context.runner.clock.wall()
        return RecordFilter(
            by="" if by is None else validate.agent_name(by),
            verb="" if verb is None else validate.name(verb, "verb"),
            thing="" if thing is None else _thing(thing),
            since=None if since is None else validate.moment(since, now, "'since'"),
            until=None if until is None else validate.moment(until, now, "'until'"),
            trace="" if trace is None else validate.name(trace, "trace"),
        )

    @call
    def explain(self, thing: str, *, limit: int = 100) -> Op[Story]:
        """What happened to a lock, a semaphore, a task, an agent or a session, in order.

        Also to a message, a query, a decision (by its id) or all alerts of a type.  A plain name is
        that of a task, a pipeline, a semaphore, a guard or a schedule, if there is one, else of a
        lock.
        """
        most, meant = validate.limit(limit), _thing(thing)
        return self._history(meant, most, plain=meant == f"lock/{thing}")

    def _history(self, thing: str, limit: int, *, plain: bool) -> Op[Story]:
        from interlock.nouns.fleet.plain_name import thing_named
        from interlock.runtime.history import history_of  # hardly any command needs it
        from interlock.runtime.reads import whole_thing

        if plain:
            thing = yield from thing_named(thing.partition("/")[2])
        else:
            thing = yield from whole_thing(thing)
        return (yield from history_of(self.context.runner, thing, limit))

    @stream
    def follow(self, after: int = 0) -> LogFollowing:
        """The entries after a revision, and all that come; close it when you have enough.

        A ``Resync`` among them says that history up to its revision is gone: read what is left
        with ``log``.
        """
        return LogFollowing(validate.after(after))

    @call
    def verify(self, *, anchors: Sequence[str] = (), against: str | None = None) -> Op[Verified]:
        """Read the whole record, and say whether anything was changed, is missing, or was cut.

        ``anchors`` are places where ``anchor`` kept marks: a file, or ``git:REF``.  ``against`` is
        an export to compare with: of this store, or of a copy that went on by itself.
        """
        if isinstance(anchors, str):
            raise BadInput("'anchors' takes a list of places; put brackets around it")
        from interlock.nouns.record.anchors import verify_with_anchors

        return verify_with_anchors(self.context.runner.capabilities, anchors, against or "")

    @call
    def export(self, to: str | Callable[[bytes], object], *, after: int = 0) -> Op[Exported]:
        """Export the record as JSON Lines, which can be checked without Interlock.

        ``to`` is a path, or a function that is given some lines at a time.
        """
        from interlock.nouns.record.export import export

        return export(self.context.runner.capabilities, to, validate.after(after))

    @call
    def anchor(self, place: str) -> Op[Anchored]:
        """Keep a mark of the record as it is now, in a file or a git ref (``git:REF``).

        Keep it where a person who can change the store cannot change it: then ``verify`` can prove
        that nothing up to there was changed or cut off.
        """
        from interlock.nouns.record.anchors import anchor

        return anchor(self.context.runner, place)


def _thing(text: str) -> str:
    """The name of a thing in the record, of any registered noun."""
    known = validate.thing(text)
    kind, _, name = text.partition("/")
    if known == text or not name:  # most calls: no other noun has to be imported
        return known
    own = any((noun.name == kind and noun.events) or kind in noun.why for noun in registry.nouns())
    return text if own else known
