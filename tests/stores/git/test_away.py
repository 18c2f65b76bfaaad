"""A remote that does not answer: one limit for a call, and no name of contention."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote

import interlock
from interlock.errors import OutcomeUnknown, StoreAway, StoreTrouble
from interlock.nouns.grants.lock import LockAcquired
from interlock.stores.git import GitStore

PATIENCE = 3.0
BUSY = 2.5
"""Seconds that a busy machine may add; settling with a time of its own takes longer."""
SSH = """#!/bin/sh
[ -e {away} ] && exit 255
while [ $# -gt 1 ]; do shift; done
exec sh -c "$1"
"""


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While there is a file at this place, the remote cannot be reached over ssh."""
    place, program = tmp_path / "away", tmp_path / "ssh"
    program.write_text(SSH.format(away=place))
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    return place


def _opened(host: Opens, remote: Remote) -> GitStore:
    return host(url=f"git+ssh://localhost{remote.path}", patience=PATIENCE)


def test_processes_of_a_host_that_queue_at_a_remote_that_is_away_meet_an_outage(
    remote: Remote, host: Opens, away: Path
) -> None:
    found: list[tuple[float, object]] = []

    def act(fleet: interlock.Fleet, name: str) -> None:
        began = time.monotonic()
        try:
            outcome: object = fleet.locks.acquire(name)
        except StoreTrouble as trouble:
            outcome = trouble
        found.append((time.monotonic() - began, outcome))

    stores = [_opened(host, remote) for _ in range(3)]
    fleets = [interlock.connect(store=each, agent=f"a{n}") for n, each in enumerate(stores)]
    for number, fleet in enumerate(fleets):
        assert fleet.locks.acquire(f"first-{number}")
    away.touch()
    threads = [threading.Thread(target=act, args=(each, f"x-{id(each)}")) for each in fleets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    away.unlink()
    assert len(found) == len(fleets)
    for took, outcome in found:
        assert isinstance(outcome, StoreAway | OutcomeUnknown), outcome
        assert "held" not in str(outcome)
        assert took < PATIENCE + BUSY, outcome
    for fleet in fleets:
        fleet.close()


def test_a_call_whose_settling_is_refused_for_a_busy_store_is_of_unknown_outcome(
    remote: Remote, host: Opens, away: Path
) -> None:
    """It is unknown, whatever kept the store from settling it."""
    with interlock.connect(store=_opened(host, remote), agent="ada") as fleet:
        assert fleet.locks.acquire("held")
        remote.cut(f"touch {away}")
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            fleet.locks.release("held")
        assert time.monotonic() - began < PATIENCE + BUSY
        away.unlink()
        assert isinstance(fleet.locks.acquire("other"), LockAcquired)
