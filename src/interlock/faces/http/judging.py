"""Judges the record in the background, so that a monitor learns of tampering by itself.

A change of an old entry shows only to a reader of the whole record, so each time all of it is read.
A process of its own does that (``interlock record verify``), with the lowest priority: it holds up
no request, and its memory is given back.  The pace follows the cost: the next process starts after
a hundred times as long as the last one took, and after five minutes at the earliest.

One server of a store does it, and keeps the verdict in the store for the others, and for the next
one that starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import msgspec

from interlock.errors import InterlockError, StoreTrouble
from interlock.faces.http.parts import leased
from interlock.runtime.verdict import Verdict, keep_verdict, kept_verdict
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.client import Fleet

FIRST = 20.0
"""Seconds until a server judges a record that no server has judged."""
LEAST = 300.0
SHARE = 100
"""How many times as long as the last process took the record is left alone."""
_LOOK = 10.0
_LOWEST = 19
_SHOWN = 300
_COMMAND = (sys.executable, "-P", "-m", "interlock", "record", "verify", "--json")


class RecordJudging:
    """Judges the record of the store at a URL again and again; ``run`` is a part of a server."""

    def __init__(self, url: str, *, first: float = FIRST, least: float = LEAST) -> None:
        self._url = url
        self._first = first
        self._least = least
        self._begun = self._looked = time.monotonic()
        self._child: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._started = 0.0

    def run(self, fleet: Fleet, stopped: threading.Event) -> None:
        """Judge until the server ends, while no other server does."""
        try:
            leased(fleet, stopped, "record", lambda: self.step(fleet))
        finally:
            self._end()

    def step(self, fleet: Fleet) -> None:
        """Start a process if it is time, or keep the verdict of one that has ended."""
        if self._child is None:
            if self._is_due(fleet):
                self._start()
        elif self._child.poll() is not None:
            verdict = self._verdict(self._child.returncode)
            drive(keep_verdict(fleet.context.runner, verdict), fleet.store)

    def _is_due(self, fleet: Fleet) -> bool:
        now = time.monotonic()
        if now < self._looked:
            return False
        self._looked = now + min(_LOOK, self._least)
        before: Verdict | None = drive(kept_verdict(), fleet.store)
        if before is None:
            return now - self._begun >= self._first
        age = time.time() - before.at
        return age >= max(self._least, SHARE * before.took) or age < -self._least

    def _start(self) -> None:
        environment = {**os.environ, "INTERLOCK_STORE": self._url, "INTERLOCK_WARM": "off"}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        self._started = time.monotonic()
        self._child = subprocess.Popen(  # noqa: S603 - ourselves
            _COMMAND,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._child.pid, _LOWEST)

    def _verdict(self, status: int) -> Verdict:
        """What the process found; an error if it could not judge."""
        took = time.monotonic() - self._started
        said = self._end()
        try:
            found = msgspec.json.decode(said, type=dict[str, Any])
        except msgspec.DecodeError:
            found = {}
        if status not in (0, 1) or "integrity" not in found:
            self._looked = time.monotonic() + self._least
            raise StoreTrouble(
                f"the record could not be judged (exit {status}): {_line(said)}; see"
                " 'interlock record verify'"
            )
        return Verdict(
            at=round(time.time(), 3),
            intact=status == 0,
            took=round(took, 3),
            ends=found.get("ends", 0),
            says=_first_finding(found),
        )

    def _end(self) -> bytes:
        """End the process, and return what it said."""
        child, output = self._child, self._output
        self._child = self._output = None
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        if output is None:
            return b""
        with output:
            output.seek(0)
            return output.read()


def record_in_health(fleet: Fleet) -> dict[str, Any] | None:
    """The last verdict, for ``/healthz``; None if there is none."""
    try:
        verdict: Verdict | None = drive(kept_verdict(), fleet.store)
    except InterlockError:
        return None
    return None if verdict is None else {"intact": verdict.intact, "judged": verdict.at}


def _first_finding(found: Mapping[str, Any]) -> str:
    findings: Sequence[Mapping[str, str]] = found.get("findings") or ({},)
    return findings[0].get("says", "")[:_SHOWN]


def _line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:_SHOWN] if lines else "it said nothing"
