"""Settling transactions whose outcome is unknown.

A commit may be sent and its answer lost.  Every recorded commit checks that its entry is absent
from the log, so the runner commits a void in the place of the entry.  If that succeeds, the
transaction never happened and never can.  If it conflicts, the entry in the log shows that the
transaction happened.  Reading would not be enough, since a late request may still arrive.

A store that does not answer cannot take the void.  Then the caller gets OutcomeUnknown, and the
transaction stays in ``unsettled``: its request may still arrive and commit.  The keeper places the
void as soon as the store answers, and this client sends no other recorded change before that.  So
the caller's next step, and every release by the keeper, happens when the old request can no longer
commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from interlock.clock import Clock
from interlock.errors import OutcomeUnknown, StoreAway, StoreBusy, StoreMoved
from interlock.runtime.attempt import Chain, Draft
from interlock.steps import CALL, Commit, Op, Pause, Read, restart_call
from interlock.store import LOG, VOID, Capabilities, Committed, Conflict, Item, void

ATTEMPTS = 8
PATIENCE = 10.0
LATEST = 120.0
"""Seconds after sending within which every store still knows the outcome; the process may have been
suspended in between."""


class Settling:
    """The transactions of one client whose outcome is unknown."""

    def __init__(
        self, chain: Chain, clock: Clock, capabilities: Capabilities, jitter: Callable[[int], float]
    ) -> None:
        self.unsettled: dict[str, Draft] = {}
        """Transactions whose outcome is unknown, by id: each may happen until its void stands."""
        self.on_unsettled: Callable[[], None] = lambda: None
        """Called when one is added."""
        self._chain = chain
        self._clock = clock
        self._capabilities = capabilities
        self._jitter = jitter

    def settle(self, draft: Draft, sent: float) -> Op[Committed | None]:
        """Find out whether a transaction happened, and make sure that the answer stays true.

        An interrupt has to wait until the void stands: the transaction may still happen.
        """
        if draft.txn.quiet:
            return None
        settled = False
        try:
            answer, interrupt = yield from self._place_void(draft.txn.id, sent)
            settled = True
        finally:
            if not settled:
                self.leave_unsettled(draft)
            restart_call()
        item = answer.items.get(LOG + draft.txn.id)
        happened = _happened(answer, item)
        (self._chain.advance if happened else self._chain.give_back)(draft)
        if interrupt is not None:
            raise interrupt
        return Committed(item.revision, answer.items) if happened and item else None

    def leave_unsettled(self, draft: Draft) -> None:
        """The outcome stays unknown for now: the void is placed later, before any other change."""
        self._chain.give_back(draft)
        if not draft.txn.quiet:
            self.unsettled[draft.txn.id] = draft
            self.on_unsettled()

    def settle_all(self) -> Op[None]:
        """Place the void of every transaction whose outcome is unknown.

        After this none of them can happen any more; raises StoreTrouble if that is not sure yet.
        """
        for txn, draft in tuple(self.unsettled.items()):
            answer: Committed | Conflict = yield Commit(void(txn))
            item = answer.items.get(LOG + txn)
            if isinstance(answer, Conflict) and item is None:
                raise StoreBusy("the store refused to settle an earlier request; try again")
            if self.unsettled.pop(txn, None) is not None and _happened(answer, item):
                self._chain.advance(draft)

    def settle_all_before(self, draft: Draft) -> Op[None]:
        """Settle every unknown outcome before this draft is sent; on failure it is never sent."""
        try:
            yield from self.settle_all()
        except BaseException as error:
            self._chain.give_back(draft)
            if not isinstance(error, OutcomeUnknown):
                raise
            raise StoreAway(
                "the store stopped answering, and an earlier request may still arrive;"
                " try again when it answers"
            ) from error

    def _place_void(
        self, txn: str, sent: float
    ) -> Op[tuple[Committed | Conflict, BaseException | None]]:
        """Commit a void in the place of an entry; the answer, and an interrupt that came."""
        ends = self._ends(sent)
        interrupt: BaseException | None = None
        for number in range(ATTEMPTS):
            now = self._clock.monotonic()
            if now > sent + LATEST or (number and now > ends):
                break
            try:
                answer: Committed | Conflict = yield Commit(void(txn))
            except OutcomeUnknown:
                interrupt = (yield from self._pause(number + 1)) or interrupt
                continue
            except (StoreAway, StoreBusy):
                break
            except StoreMoved:  # nothing can be committed there any more: a read settles it
                item = (yield Read(LOG + txn))[LOG + txn]
                if item is None:
                    return Committed(0, {}), interrupt
                return Conflict({LOG + txn: item}), interrupt
            except (Exception, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - raised again when all is settled
                interrupt = error
                continue
            if isinstance(answer, Committed) or answer.items.get(LOG + txn) is not None:
                return answer, interrupt
            # A conflict without an entry: the place is still free.
        raise interrupt or OutcomeUnknown(
            "the store stopped answering; look before you repeat this", txn
        )

    def _ends(self, sent: float) -> float:
        """When settling gives up: with the call, of which the request has used some time."""
        now = self._clock.monotonic()
        patience = max(0.0, sent + self._capabilities.allow(PATIENCE) - now)
        if (call := CALL.get()) is not None:
            call.ends = min(call.ends, time.monotonic() + patience)
            patience = min(patience, call.left())
        return now + patience

    def _pause(self, number: int) -> Op[BaseException | None]:
        """Wait for a moment; an interrupt is returned, not raised."""
        try:
            yield Pause(self._jitter(number))
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the caller raises it in time
            return error
        return None


def _happened(answer: Committed | Conflict, item: Item | None) -> bool:
    """Whether the answer to a void shows the entry of the transaction."""
    return isinstance(answer, Conflict) and item is not None and item.value != VOID
