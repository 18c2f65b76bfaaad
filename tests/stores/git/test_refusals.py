"""Refusals that are counted: on git a count of its own would be a push of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote

import interlock
from interlock.client import Fleet
from interlock.core import keys
from interlock.errors import StoreAway
from interlock.outcomes import LockNotOwner
from interlock.runtime import gathered
from interlock.runtime.refusals import refused
from interlock.runtime.runner import Runner


def counts(fleet: Fleet, agent: str) -> dict[str, int]:
    key = keys.refusal_counts(agent)
    return dict(refused(fleet.store.read(key)[key]).total)


def refuse(fleet: Fleet, times: int) -> None:
    for _ in range(times):
        assert isinstance(fleet.locks.release("deploy", token=999), LockNotOwner)


def test_refusals_are_counted_together_and_each_one_is(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        interlock.connect(store=host("a"), agent="ada") as ada,
        interlock.connect(store=host("a"), agent="bob") as bob,
        interlock.connect(store=host("b"), agent="eve") as eve,
    ):
        assert eve.locks.acquire("deploy")
        refuse(ada, 2)  # the first one is counted at once, and also has an entry
        assert counts(eve, "ada") == {"not_owner": 1}
        before = len(remote.subjects())
        refuse(ada, 3)
        refuse(bob, 3)
        assert len(remote.subjects()) == before + 1, "the entry of bob's first refusal"
        monkeypatch.setattr(gathered, "EVERY", 0.0)
        assert ada.tasks.publish("build")
        assert counts(eve, "ada") == {"not_owner": 5}
        assert counts(eve, "bob") == {"not_owner": 3}
        assert remote.subjects()[0] == "Write meta/refused/ada, and 1 more"


def test_refusals_that_could_not_be_written_are_written_later(
    host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        interlock.connect(store=host("a"), agent="ada") as ada,
        interlock.connect(store=host("b"), agent="eve") as eve,
    ):
        assert eve.locks.acquire("deploy")
        refuse(ada, 4)
        monkeypatch.setattr(gathered, "EVERY", 0.0)

        def away(*_: object) -> Iterator[None]:
            yield from ()
            raise StoreAway("away")

        with monkeypatch.context() as during:
            during.setattr(Runner, "change_alone", away)
            assert ada.tasks.publish("other")
        assert counts(eve, "ada") == {"not_owner": 1}
        assert ada.tasks.publish("build")
        assert counts(eve, "ada") == {"not_owner": 4}


@pytest.mark.parametrize("content", [b"garbage\nmore\n", b"\xff\x00", b"0\n{}\n"])
def test_a_damaged_file_of_refusals_loses_only_what_was_damaged(
    host: Opens, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    with (
        interlock.connect(store=host("a"), agent="ada") as ada,
        interlock.connect(store=host("b"), agent="eve") as eve,
    ):
        assert eve.locks.acquire("deploy")
        Path(ada.store.capabilities.gathered).write_bytes(content)
        refuse(ada, 3)
        monkeypatch.setattr(gathered, "EVERY", 0.0)
        assert ada.tasks.publish("build")
        assert counts(eve, "ada") == {"not_owner": 3}
