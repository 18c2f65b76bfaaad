"""A caller learns of its claim, or has none: no claim runs unknown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from interlock.core import keys
from interlock.errors import StoreAway
from interlock.nouns.tasks import claim_attempt, claim_service, task_outcomes
from interlock.nouns.tasks import task as core
from interlock.steps import Op
from interlock.store import Put, Ref, Snapshot, Txn
from interlock.testing.testbed import Client, Stepper, Testbed

WAYS: dict[str, Callable[[Client], Op[task_outcomes.ClaimOutcome]]] = {
    "by name": lambda client: client.tasks.claim("t1"),
    "by name, waiting": lambda client: client.tasks.claim("t1", wait=5),
    "the next": lambda client: client.tasks.next(),
    "the next, waiting": lambda client: client.tasks.next(wait=5),
}


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    client = stage.client("ada") if request.param == "near" else stage.remote("ada")
    client.run(client.tasks.publish("t1", {"x": 1}))
    return client


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Callable[[Client], Op[task_outcomes.ClaimOutcome]]:
    return WAYS[request.param]


def state(client: Client) -> str:
    return client.run(client.tasks.show("t1")).state


class Striking:
    """Raises KeyboardInterrupt at the n-th line of claiming, as a signal may at any."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename not in (claim_service.__file__, claim_attempt.__file__):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def struck(client: Client, op: Op[task_outcomes.ClaimOutcome], after: int) -> bool:
    """Whether it was interrupted before it could say what it claimed."""
    before = sys.gettrace()
    sys.settrace(Striking(after))
    try:
        client.run(op)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_claim_is_given_back_wherever_a_signal_strikes(
    ada: Client, ask: Callable[[Client], Op[task_outcomes.ClaimOutcome]]
) -> None:
    at = 1
    while struck(ada, ask(ada), at):
        assert state(ada) == "pending", f"struck at line {at}"
        at += 1
    assert state(ada) == "running"
    assert at > 20


def test_a_claim_is_given_back_when_nobody_drives_it_any_more(
    ada: Client, ask: Callable[[Client], Op[task_outcomes.ClaimOutcome]]
) -> None:
    at = 0
    while True:
        op = ask(ada)
        hand = Stepper(op, ada.store, ada.clock)
        for _ in range(at):
            hand.go()
        if hand.done:
            break
        op.close()
        ada.run(ada.context.keeper.beat())
        assert state(ada) == "pending"
        at += 1
    assert at > 0


def cut_after_a_lost_reply(client: Client) -> None:
    """The reply of the next commit is lost, and so is the read of the claimed task."""
    network = client.network
    read = network.read

    def cut(
        *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        if refs == (keys.data("t1"),):
            network.read = read  # type: ignore[method-assign]  # the connection is back
            raise StoreAway("the connection was cut")
        return read(*refs, times=times, fresh=fresh, longest=longest)

    network.read = cut  # type: ignore[method-assign]  # the network at its worst
    network.script(["lost reply"])


@pytest.mark.parametrize("way", ["by name", "the next"])
def test_a_claim_whose_data_cannot_be_read_is_given_back(stage: Testbed, way: str) -> None:
    ada = stage.remote("ada")
    ada.run(ada.tasks.publish("t1"))
    cut_after_a_lost_reply(ada)
    with pytest.raises(StoreAway):
        ada.run(WAYS[way](ada))
    assert state(ada) == "running"
    ada.run(ada.context.keeper.beat())
    assert state(ada) == "pending"


def test_a_call_that_could_not_even_look_owes_nothing(stage: Testbed) -> None:
    ada = stage.remote("ada")
    hand = Stepper(ada.tasks.next(), ada.store, ada.clock)
    with pytest.raises(StoreAway):
        hand.interrupt(StoreAway("cut off")).result()
    assert not ada.context.grants.pending


def test_what_is_owed_is_found_among_any_number_of_claims(stage: Testbed) -> None:
    ada = stage.client("ada")
    others = [Put(keys.claims(ada.session, f"a{n:04}"), b"[]") for n in range(1000)]
    stage.store.commit(Txn(id="txn_others", puts=tuple(others), quiet=True))
    ada.run(ada.tasks.publish("t1"))
    op = ada.tasks.next()
    answer = next(op).perform(stage.store)
    while state(ada) == "pending":
        answer = op.send(answer).perform(stage.store)
    op.close()
    ada.run(ada.context.keeper.beat())
    assert state(ada) == "pending"


class Contested(dict[str, core.Spec]):
    """A mapping that another thread changes during each iteration."""

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("dictionary changed size during iteration")


def test_threads_that_claim_at_once_do_not_trip_over_what_they_remember(stage: Testbed) -> None:
    ada = stage.remote("ada")
    ada.run(ada.tasks.publish("t1"))
    ada.context.tasks.claims.specs = Contested()
    assert isinstance(ada.run(ada.tasks.claim("t1")), task_outcomes.Claimed)
