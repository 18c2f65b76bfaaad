"""``/healthz``: a commit and a read, since a server is of use only while both work."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import InterlockError, StoreTrouble
from interlock.faces.http.judging import record_in_health
from interlock.runtime.identity import Actor
from interlock.steps import Op, Read, drive

if TYPE_CHECKING:
    from interlock.faces.http.clients import Clients
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.runner import Runner

FRESH = 1.0
"""Seconds for which an answer is used again: many may ask, and each commit costs a write."""
_lock = threading.Lock()
_last: tuple[float, dict[str, Any], int] = (float("-inf"), {}, 0)


def healthz(clients: Clients) -> tuple[dict[str, Any], int]:
    """The answer and its status: 200 if the store took a commit and showed it again, else 503."""
    global _last  # noqa: PLW0603 - of the one server of this process
    with _lock:
        if time.monotonic() - _last[0] > FRESH:
            _last = (time.monotonic(), *_checked(clients))
        return _last[1:]


def _checked(clients: Clients) -> tuple[dict[str, Any], int]:
    began = time.monotonic()
    try:
        fleet = clients.reader()
        revision = drive(_commit_and_read(fleet.context.runner), fleet.store)
    except InterlockError as error:
        about: dict[str, Any] = {"status": "failing", "error": error.code, "message": str(error)}
        return about, 503
    took = round((time.monotonic() - began) * 1000, 1)
    record = record_in_health(fleet)
    return {"status": "ok", "revision": revision, "commit_ms": took, "record": record}, 200


def _commit_and_read(runner: Runner) -> Op[int]:
    """Commit a key that expires, without an entry in the record, and read it again."""
    key = keys.live(runner.new_id("hlt"))

    def deciding() -> DecideOp[None]:
        yield (key,)
        put = Write(key, "healthz", runner.capabilities.min_ttl)
        return Decision(outcome=None, puts=(put,), quiet=True)

    yield from runner.change(deciding, Actor())
    snapshot = yield Read(key)
    if snapshot[key] is None:
        raise StoreTrouble("the store took a commit and does not show it; see 'interlock doctor'")
    return int(snapshot.revision)
