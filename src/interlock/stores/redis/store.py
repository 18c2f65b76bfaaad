"""The store: one script for a commit, one for a read, both one round trip.

A namespace is one hash tag, so a cluster keeps all of it on one node:

    {ns}:items   hash     key -> item (see scripts.py)
    {ns}:index   zset     all keys, in order
    {ns}:live    zset     liveness keys by when they expire
    {ns}:log     stream   one entry for each recorded commit; its id is the revision
    {ns}:ids     hash     id of a transaction -> its revision in the log
    {ns}:meta    hash     rev, recorded, trimmed, loaded, born, format (or the mark, in its place)
    {ns}:refused zset     ids that were refused (0 in ids), by when their requests are too late
    {ns}:bell:*  channels of the keys that changed (see watch.py)
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec.structs import replace

from interlock.errors import (
    BadInput,
    StoreMoved,
    StoreRefused,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.steps import Op, drive_async
from interlock.store import (
    LOG,
    Answer,
    Capabilities,
    Committed,
    Conflict,
    Durability,
    Extent,
    Finding,
    Item,
    Ref,
    Scope,
    Snapshot,
    StoreMark,
    Txn,
    scopes,
)
from interlock.stores.address import Address
from interlock.stores.marks import decode_mark, encode_mark, not_filled_by, reached
from interlock.stores.network import (
    PATIENCE,
    NetworkStore,
    SendRequest,
    Unanswered,
    Unsent,
    driven,
)
from interlock.stores.redis import scripts
from interlock.stores.redis.errors import NoScript, RequestTooLate, denied
from interlock.stores.redis.scripts import (
    ERASE,
    LOAD,
    MARK,
    READ,
    RIGHTS,
    SWEEP,
    TRIM,
    CommitPacker,
    Script,
    pack,
    packed_commit,
)
from interlock.stores.redis.server import ServerFacts, caution, findings, info
from interlock.stores.redis.transport import RedisTransport
from interlock.stores.redis.watch import RedisWatch

LOG_BOUND = 200_000
"""Entries that the log keeps at least, unless the URL says otherwise."""
_KEYS = ("items", "index", "live", "log", "ids", "meta", "refused")
_AT_ONCE = 1000
_TRIMMED_AT_ONCE = 500
"""The server does nothing else at that time: a thousand took it mostly 8 ms."""
_TRIES = 4
_CLOCK_BEHIND = 2
SETTLING = 180_000_000
"""Microseconds for which an entry stays, since a request that it keeps out may still arrive;
commit.lua has the same."""


class RedisStore(NetworkStore):
    """A namespace of a Redis or Valkey server."""

    transport: RedisTransport
    server: ServerFacts | None = None
    """What the last new connection reached."""
    committed = 0
    """The latest revision that this object committed."""

    def __init__(self, address: Address, *, patience: float = PATIENCE) -> None:
        prefix = f"{{{address.namespace}}}:"
        self.keys = {name: (prefix + name).encode() for name in _KEYS}
        self.channel_prefix = (prefix + "bell:").encode()
        self.namespace = address.namespace
        self._address = address
        self.bound = _bound(address)
        self.settling = SETTLING
        transport = RedisTransport(address, self.keys["meta"], self._welcome)
        super().__init__(transport, address.shown, patience=patience)
        self.capabilities = _capabilities("none", self.bound)
        self._tail: tuple[scripts.Argument, ...] = (str(len(self.keys)), *self.keys.values())
        transport.commits = CommitPacker(self._tail, self.bound)
        self._reads = ("EVALSHA", READ.sha, *self._tail)

    def watch(self, scope: Scope, after: int) -> RedisWatch:
        """Every change in a scope, or in one of several, after a revision."""
        self.check()
        return RedisWatch(self, scopes(scope), after)

    @property
    def life(self) -> str:
        """Which start of which server answered last; empty before the first."""
        return "" if self.server is None else self.server.life

    @property
    def caution(self) -> str:
        """What to know before agents rely on the durability."""
        return "" if self.server is None else caution(self.server, self.where)

    @property
    def away(self) -> float | None:
        """Since when, by the monotonic clock, the engine does not answer."""
        return None if self._away is None else self._away[0]

    def note_outage(self, error: Exception, since: float | None = None) -> None:
        """Note that the engine did not answer, also for watches that only listen."""
        self.transport.doubted = time.monotonic()
        super().note_outage(error, since)

    def run(self, script: Script, args: Sequence[scripts.Argument]) -> Op[Any]:
        """The answer of a script that may run twice."""
        try:
            return (yield from self.request_with_retries(self._by_name(script, args)))
        except NoScript:
            return (yield from self.request_with_retries(self._in_full(script, args)))

    def once(self, script: Script, args: Sequence[scripts.Argument]) -> Op[Any]:
        """The answer of a script, without retries: the caller handles an outage."""
        try:
            return (yield SendRequest(self._by_name(script, args), self.reply_within()))
        except NoScript:
            return (yield SendRequest(self._in_full(script, args), self.reply_within()))

    def _by_name(self, script: Script, args: Sequence[scripts.Argument]) -> bytes:
        return pack(("EVALSHA", script.sha, *self._tail, *args))

    def _in_full(self, script: Script, args: Sequence[scripts.Argument]) -> bytes:
        return pack(("EVAL", script.body, *self._tail, *args))

    def _welcome(self, server: ServerFacts) -> None:
        """Take notice of what a new connection reached."""
        if server != self.server:
            self.server, self.made = server, server.made
            self.capabilities = _capabilities(server.durability, self.bound)

    def _open(self) -> Op[None]:
        lacking = yield from self._lacking()
        if lacking:
            raise denied(lacking, self._address)

    def _lacking(self) -> Op[tuple[str, ...]]:
        """The rights that this user lacks."""
        names: list[bytes] = yield from self.run(RIGHTS, (self.channel_prefix,))
        return tuple([each.decode() for each in names])

    def _read(
        self,
        refs: tuple[Ref, ...],
        *,
        times: bool,  # noqa: ARG002 - always there
        longest: int | None,
    ) -> Op[Snapshot]:
        args = scripts.read_arguments(refs, longest)
        try:
            answer = yield from self.request_with_retries(pack((*self._reads, *args)))
        except NoScript:
            answer = yield from self.request_with_retries(self._in_full(READ, args))
        revision, now, *found = answer
        return Snapshot(
            revision,
            {
                ref: None if raw is None else scripts.item(ref, raw, now)
                for ref, raw in zip(refs, found, strict=True)
                if isinstance(ref, str)
            },
            {
                ref: scripts.many(ref, raw, now)
                for ref, raw in zip(refs, found, strict=True)
                if not isinstance(ref, str)
            },
        )

    def _commit(self, txn: Txn) -> Op[Answer]:
        whole, transport = False, self.transport
        commits = (packed_commit(txn),)
        for _ in range(_TRIES):
            request = transport.commits.request(commits, transport.latest(), whole=whole)
            try:
                answer = yield from self.request_with_retries(request, txn.id)
            except NoScript:
                whole = True
            except RequestTooLate:
                pass  # the transport has learnt the time
            except StoreMoved as error:
                self.note_moved(error)
                raise
            except StoreRefused as error:  # by a script, which does not learn which right it lacks
                lacking = yield from self._lacking()
                raise (denied(lacking, self._address) if lacking else error) from None
            else:
                return self._answer(txn, answer)
        raise StoreTrouble(f"{self.where} has a clock that jumps all the time; see to it")

    def commit_async(self, txn: Txn) -> Awaitable[Answer]:
        """Commit in an event loop: all that commit in one iteration of it share a request."""
        self.check()
        return self._commit_with_others(txn)

    async def _commit_with_others(self, txn: Txn) -> Answer:
        pipeline = self.transport.pipeline()
        if pipeline is None or self._away is not None:
            return await drive_async(self._commit(txn), self.transport)
        sent = time.monotonic()
        try:
            answer = await pipeline.commit(packed_commit(txn))
        except Unanswered as error:
            raise self.unknown_outcome(error, txn.id, sent) from error
        except (Unsent, NoScript, RequestTooLate, StoreMoved, StoreRefused):
            return await drive_async(self._commit(txn), self.transport)  # nothing happened
        if self.away is not None:  # noted in the meantime
            self.note_answer()
        return self._answer(txn, answer)

    def _answer(self, txn: Txn, answer: Sequence[Any]) -> Answer:
        now = answer[1]
        if answer[0]:
            self.committed = max(self.committed, now)
            self.transport.learn(now)
            return Committed(now, scripts.items(txn.reads, answer[2:], now) if txn.reads else {})
        asked = (*(check.key for check in txn.checks), *txn.reads)
        items = scripts.items(asked, answer[3:], now)
        if not txn.quiet:
            own, standing = LOG + txn.id, answer[2]
            items[own] = None if standing is None else scripts.item(own, standing, now)
        return Conflict(items)

    @driven
    def sweep(self) -> Op[int]:
        """Delete expired liveness keys."""
        return (yield from self.run(SWEEP, (str(_AT_ONCE),)))  # type: ignore[no-any-return]

    @driven
    def trim(self, revision: int) -> Op[int]:
        """Delete the oldest entries up to a revision."""
        terms = (str(revision), str(_TRIMMED_AT_ONCE), str(self.settling))
        return (yield from self.run(TRIM, terms))  # type: ignore[no-any-return]

    @property
    def mark_at_opening(self) -> StoreMark | None:
        """The mark that the last new connection found."""
        text = "" if self.server is None else self.server.mark
        return decode_mark(text) if text else None

    def read_mark(self) -> Op[StoreMark | None]:
        """Read the mark; its revision is that of the store."""
        format_, revision = yield from self.request_with_retries(
            pack(("HMGET", self.keys["meta"], "format", "rev"))
        )
        if format_ is None or format_[:1] != b"{":
            return None
        return replace(decode_mark(format_), revision=int(revision or 0))

    @driven
    def mark(self) -> Op[StoreMark | None]:
        """Why it accepts no commits."""
        return self.read_mark()

    @driven
    def set_mark(self, new: StoreMark | None, old: StoreMark | None) -> Op[bool]:
        """Replace the mark, if it still is the old one."""
        known = ("", "") if old is None else (old.state, old.move)
        text, revision = ("", 0) if new is None else (encode_mark(new), new.revision)
        channels = re.sub(rb"([*?\\[\]])", rb"\\\1", self.channel_prefix)
        answer = yield from self.run(MARK, (*known, text, str(revision), channels))
        if answer[0] == _CLOCK_BEHIND:
            ahead = (revision - answer[1]) / 1e6
            raise StoreUnsuitable(
                f"the revisions of the other store are {ahead:.0f} s ahead of the clock of"
                f" {self.where}, by which it counts them and measures time; copy to another engine,"
                " or wait until then"
            )
        if answer[0]:
            return True
        return reached((yield from self.read_mark()), new)

    @driven
    def load(self, move: str, items: Sequence[Item]) -> Op[None]:
        """Write items and entries as they are in another store, with one script."""
        yield from self._filling(move, LOAD, scripts.load_arguments(move, items))

    @driven
    def erase(self, move: str) -> Op[int]:
        """Delete some of the loaded items."""
        return (yield from self._filling(move, ERASE, (move, str(_AT_ONCE))))

    def _filling(self, move: str, script: Script, args: Sequence[scripts.Argument]) -> Op[int]:
        answer = yield from self.run(script, args)
        if not isinstance(answer, int):
            raise not_filled_by(move, (yield from self.read_mark()), self.where)
        return answer

    @driven
    def extent(self) -> Op[Extent]:
        """How large the log is."""
        entries: int = yield from self.request_with_retries(pack(("XLEN", self.keys["log"])))
        trimmed: bytes | None = yield from self.request_with_retries(
            pack(("HGET", self.keys["meta"], "trimmed"))
        )
        return Extent(entries, int(trimmed or 0))

    @driven
    def wall(self) -> Op[float]:
        """What time it is by the server's clock."""
        answer = yield from self.run(READ, scripts.read_arguments(()))
        return answer[1] / 1e6  # type: ignore[no-any-return]

    @driven
    def info(self) -> Op[dict[str, object]]:
        """Facts about this store for a person."""
        return info(self)

    @driven
    def examine(self) -> Op[list[Finding]]:
        """What is well and what is not."""
        return findings(self)


def _bound(address: Address) -> int:
    text = address.options.get("log", "")
    if not text:
        return LOG_BOUND
    if not (text.isascii() and text.isdigit()):
        raise BadInput(f"{address.shown} has log={text}; write a number of entries")
    return int(text)


def _capabilities(durability: Durability, bound: int) -> Capabilities:
    return Capabilities(
        engine="redis",
        durability=durability,
        clock="server",
        push=True,
        transacts=False,
        one_machine=False,
        consecutive=False,
        latency=0.002,
        min_ttl=0.5,
        max_operations=10_000,
        max_value=5 * 256 * 1024,
        max_bytes=256 << 20,
        max_log=max(bound, 1),
        trims_after=SETTLING,
    )
