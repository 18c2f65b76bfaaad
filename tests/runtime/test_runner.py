from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Mapping

import pytest

from interlock.core import codec
from interlock.core.decision import Decision, Write
from interlock.core.entry import Entry, decode
from interlock.errors import OutcomeUnknown, StoreBusy, TooLarge
from interlock.runtime.attempt import Chain, DecideOp, Draft, draft_transaction
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.runner import ATTEMPTS, Decided
from interlock.steps import Commit, Op, Read, Step
from interlock.store import LOG, VOID, Conflict, Item, Log, Put, Txn
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Stepper, Testbed


def add(key: str, *, quiet: bool = False) -> DecideOp[int]:
    """One more than what stands there."""
    item = (yield (key,))[key]
    value = 1 if item is None else int(item.value) + 1
    verb = "" if quiet else "count.add"
    return Decision(outcome=value, verb=verb, puts=(Write(key, value),), quiet=quiet)


def change(
    client: Client,
    key: str = "n",
    guess: Mapping[str, Item | None] | None = None,
    *,
    quiet: bool = False,
) -> Op[Decided[int]]:
    return client.runner.change(lambda: add(key, quiet=quiet), Actor("ada", "ses_a"), guess)


def kinds(hand: Stepper[Decided[int]]) -> list[type[Step]]:
    return [type(step) for step in hand.steps]


def entries(stage: Testbed) -> list[Entry]:
    ref = Log()
    return [decode(item.value) for item in stage.store.read(ref).ranges[ref] if item.value != VOID]


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def far(stage: Testbed) -> Client:
    return stage.remote("ada", ttl=None)


def test_a_good_guess_needs_one_commit_and_no_read(far: Client) -> None:
    hand = far.start(change(far, guess={"n": None}))
    assert hand.result().outcome == 1
    assert kinds(hand) == [Commit]


def test_an_uncontended_remote_acquire_is_one_round_trip(stage: Testbed) -> None:
    ada = stage.remote("ada")
    ada.run(ada.runner.base())
    hand = ada.start(ada.locks.acquire("merge"))
    assert [type(step) for step in hand.steps] == [Commit]


def test_a_wrong_guess_costs_a_commit_and_no_read(stage: Testbed, far: Client) -> None:
    far.run(change(far))
    hand = far.start(change(far, guess={"n": None}))
    assert hand.result().outcome == 2
    assert kinds(hand) == [Commit, Commit]


def test_a_conflict_costs_no_further_read(stage: Testbed, far: Client) -> None:
    other = stage.client("bob", ttl=None)
    hand = Stepper(change(far), far.store, stage.clock)
    hand.go()
    other.run(change(other))
    assert hand.run().result().outcome == 2
    assert kinds(hand) == [Read, Commit, Commit]


def test_a_decision_that_changes_nothing_commits_nothing(stage: Testbed, far: Client) -> None:
    def look() -> DecideOp[str]:
        yield ("n",)
        return Decision(outcome="seen")

    done = far.run(far.runner.change(look, Actor()))
    assert (done.outcome, done.revision) == ("seen", None)
    assert stage.store.read().revision == 0


@pytest.mark.parametrize("fault", ["conflict", "delay", "lost reply", "late arrival"])
def test_a_change_happens_once_whatever_the_network_does(
    stage: Testbed, far: Client, fault: Fault
) -> None:
    for number in range(1, 6):
        far.network.script([fault])
        assert far.run(change(far)).outcome == number
    far.network.deliver()
    item = stage.store.read("n")["n"]
    assert item is not None
    assert item.value == b"5"
    assert len(entries(stage)) == 5
    assert audit(stage.store) == []


def test_a_lost_reply_is_answered_by_the_entry_that_stands_in_the_log(
    stage: Testbed, far: Client
) -> None:
    far.network.script(["lost reply"])
    done = far.run(change(far))
    item = stage.store.read("n")["n"]
    assert item is not None
    assert done.revision == item.revision


def test_a_commit_that_arrives_after_its_void_conflicts_with_it(
    stage: Testbed, far: Client
) -> None:
    far.network.script(["late arrival"])
    hand = far.start(change(far))
    assert hand.result().outcome == 1
    far.network.deliver()
    (late, answer), *_ = far.network.arrived
    assert isinstance(answer, Conflict)
    item = answer.items[LOG + late]
    assert item is not None
    assert item.value == VOID


def test_a_settling_that_fails_too_is_repeated(stage: Testbed, far: Client) -> None:
    far.network.script(["lost reply", "late arrival", "lost reply", "conflict", "late arrival"])
    assert far.run(change(far)).outcome == 1
    far.network.deliver()
    assert len(entries(stage)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_void_that_is_refused_for_no_reason_is_tried_again(
    stage: Testbed, far: Client, seed: int
) -> None:
    far.network.sow(seed)
    far.network.script(["late arrival", "conflict"])
    assert far.run(change(far)).outcome == 1
    far.network.deliver()
    item = stage.store.read("n")["n"]
    assert item is not None
    assert item.value == b"1"
    assert len(entries(stage)) == 1


def test_settling_is_bounded_and_names_the_transaction(far: Client) -> None:
    late: list[Fault] = ["late arrival"]
    far.network.script(late * 100)
    with pytest.raises(OutcomeUnknown) as raised:
        far.run(change(far))
    assert raised.value.txn == far.network.drawn[0].txn


def test_retries_are_bounded(far: Client) -> None:
    conflict: list[Fault] = ["conflict"]
    far.network.script(conflict * 2 * ATTEMPTS)
    hand = far.start(change(far))
    with pytest.raises(StoreBusy):
        hand.result()
    assert kinds(hand).count(Commit) == ATTEMPTS


def test_two_writers_that_name_the_store_at_once_agree(stage: Testbed, far: Client) -> None:
    other = stage.remote("bob", ttl=None)
    hand = Stepper(far.runner.store_id(), far.store, stage.clock)
    hand.go()
    name = other.run(other.runner.store_id())
    assert hand.run().result() == name
    assert name.startswith("sto_")
    assert not entries(stage)


def test_a_quiet_change_of_unknown_outcome_is_simply_repeated(stage: Testbed, far: Client) -> None:
    far.network.script(["lost reply"])
    hand = far.start(far.runner.change(lambda: _touch("c"), Actor()))
    assert hand.result().outcome == "touched"
    assert entries(stage) == []


def _touch(key: str) -> DecideOp[str]:
    yield (key,)
    return Decision(outcome="touched", puts=(Write(key, 1),), quiet=True)


@pytest.mark.parametrize(("fault", "happened"), [("crash before", False), ("crash after", True)])
def test_a_crash_leaves_all_or_nothing(
    stage: Testbed, far: Client, fault: Fault, happened: bool
) -> None:
    far.network.script([fault])
    with pytest.raises(Crash):
        far.run(change(far))
    with pytest.raises(Crash):
        far.network.read("n")
    assert (stage.store.read("n")["n"] is not None) is happened
    assert len(entries(stage)) == happened
    far.network.revive()
    assert far.network.read("n").items == stage.store.read("n").items


def test_an_interrupted_commit_is_settled_before_the_interruption_goes_on(
    stage: Testbed, far: Client
) -> None:
    hand = Stepper(change(far), far.store, stage.clock)
    hand.go()
    hand.interrupt(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        hand.result()
    (item,) = stage.store.read(Log()).ranges[Log()]
    assert item.value == VOID


def test_a_commit_that_was_interrupted_too_late_is_linked_all_the_same(
    stage: Testbed, far: Client
) -> None:
    """The interruption strikes when the commit has happened and its answer is on the way."""
    committed: list[Txn] = []

    def interrupts(txn: Txn) -> object:
        far.network.commit = commit  # type: ignore[method-assign]
        committed.append(txn)
        commit(txn)
        raise KeyboardInterrupt

    commit = far.network.commit
    far.network.commit = interrupts  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        far.run(change(far))
    far.run(change(far))
    assert entries(stage)[-1].after == (committed[0].hash,)


@pytest.mark.parametrize("where", ["near", "far"])
def test_every_entry_of_a_writer_but_the_last_is_linked(stage: Testbed, where: str) -> None:
    client = stage.client("ada", ttl=None) if where == "near" else stage.remote("ada", ttl=None)
    for _ in range(3):
        client.run(change(client))
        client.run(change(client, quiet=True))
    first, second, third = entries(stage)
    hashes = [item.hash for item in stage.store.read(Log()).ranges[Log()]]
    assert first.after == ()
    assert second.after == (hashes[0],)
    assert third.after == (hashes[1],)


def test_entries_under_way_together_are_both_linked_by_the_next(
    stage: Testbed, far: Client
) -> None:
    far.run(change(far, "start"))
    hands = [Stepper(change(far, key), far.store, stage.clock) for key in ("a", "b")]
    for _ in range(2):
        for hand in hands:
            hand.go()
    far.run(change(far, "c"))
    start, a, b, _ = (item.hash for item in stage.store.read(Log()).ranges[Log()])
    after = [set(entry.after) for entry in entries(stage)]
    assert after == [set(), {start}, {start}, {a, b}]


def test_what_an_unsuccessful_attempt_linked_is_linked_by_the_next(
    stage: Testbed, far: Client
) -> None:
    faults: tuple[Fault, Fault] = ("conflict", "late arrival")
    for fault in faults:
        far.network.script([None, fault])
        far.run(change(far))
        far.run(change(far))
    far.network.deliver()
    assert audit(stage.store) == []
    assert all(entry.after for entry in entries(stage)[1:])


def test_saw_names_the_entry_that_wrote_what_was_seen(stage: Testbed, far: Client) -> None:
    near = stage.client("bob", ttl=None)
    near.run(change(near))
    far.run(change(far))
    near.run(change(near))
    hashes = [item.hash for item in stage.store.read(Log()).ranges[Log()]]
    assert [entry.saw for entry in entries(stage)] == [
        {"n": None},
        {"n": hashes[0]},
        {"n": hashes[1]},
    ]


def test_saw_says_blind_for_what_no_entry_wrote(stage: Testbed, far: Client) -> None:
    stage.store.commit(Txn(id="q", puts=(Put("n", b"4"),), quiet=True))
    far.run(change(far))
    assert entries(stage)[0].saw == {"n": "blind"}


def test_put_holds_the_digest_of_the_payload_and_nothing_of_liveness(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge", ttl=60, metadata={"secret": "s3cret"}))
    joined, acquired = entries(stage)
    item = stage.store.read("locks/merge")["locks/merge"]
    assert item is not None
    assert acquired.put == {"locks/merge": codec.digest(item.value)}
    name = f"agents/ada/{ada.session}"
    assert list(joined.put) == [f"sessions/{ada.session}", name, "joined/ada", "mailboxes/ada"]
    raw = stage.store.read(Log()).ranges[Log()][1].value
    assert b"s3cret" not in raw


def test_the_stamp_of_an_item_is_the_hash_of_its_entrys_bytes(stage: Testbed, far: Client) -> None:
    far.run(change(far))
    (entry,) = stage.store.read(Log()).ranges[Log()]
    item = stage.store.read("n")["n"]
    assert item is not None
    assert item.hash == entry.hash == codec.digest(entry.value)
    assert LOG + item.entry == entry.key


def test_an_entry_says_who_and_what_and_by_which_trace(stage: Testbed, far: Client) -> None:
    token = TRACE.set("trc_of_the_context")
    try:
        far.run(far.runner.change(lambda: add("n"), Actor("ada", "ses_a", "trc_of_the_call")))
    finally:
        TRACE.reset(token)
    far.run(far.runner.change(lambda: add("n"), Actor("ada", "ses_a", "trc_of_the_call")))
    first, second = entries(stage)
    assert (first.trace, second.trace) == ("trc_of_the_context", "trc_of_the_call")
    assert (first.agent, first.session, first.verb, first.outcome) == (
        "ada",
        "ses_a",
        "count.add",
        "1",
    )
    assert first.writer == far.runner.chain.writer
    assert first.at == stage.clock.wall()


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_value_above_the_stores_limit_is_refused_and_nothing_happens(
    stage: Testbed, where: str
) -> None:
    client = stage.client("ada", ttl=None) if where == "near" else stage.remote("ada", ttl=None)

    def large() -> DecideOp[None]:
        yield ("n",)
        return Decision(outcome=None, verb="x", puts=(Write("n", "x" * 2_000_000),))

    with pytest.raises(TooLarge, match="n would have 2000002 bytes"):
        client.run(client.runner.change(large, Actor()))
    assert stage.store.read().revision == 0


def test_drafts_that_linked_the_same_give_it_back_once() -> None:
    chain = Chain("wrt_1")
    chain.advance(Draft(Txn(id="txn_1", entry=b"{}", hash="one"), ()))
    drafts = [Draft(Txn(id="txn_2"), chain.take()) for _ in range(3)]
    for draft in drafts:
        chain.give_back(draft)
    assert chain.take() == ("one",)


def test_threads_that_commit_together_leave_no_entry_unlinked() -> None:
    """Each commit takes links and becomes one, in several threads that are often interrupted."""
    chain, linked = Chain("wrt_1"), list[tuple[str, ...]]()
    names = [[f"{thread}.{number}" for number in range(2000)] for thread in range(4)]

    def commit(hashes: list[str]) -> None:
        for each in hashes:
            draft = Draft(Txn(id="txn_1", entry=b"{}", hash=each), chain.take())
            linked.append(draft.after)
            chain.advance(draft)

    threads = [threading.Thread(target=commit, args=(hashes,)) for hashes in names]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    linked.append(chain.take())
    assert {each for after in linked for each in after} == {each for some in names for each in some}


def test_ids_and_entries_say_the_moment_of_the_wall_clock(stage: Testbed, far: Client) -> None:
    moments = []
    for _ in range(3):
        far.run(change(far))
        moments.append(int(stage.clock.wall() * 1000))
        stage.clock.advance(0.25)
    found = entries(stage)
    assert [int(entry.id.removeprefix("txn_")[:12], 16) for entry in found] == moments
    assert [entry.at for entry in found] == [moment / 1000 for moment in moments]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="later compilers have other limits")
def test_no_call_of_a_commit_packs_its_keywords_into_a_dict() -> None:
    """Python does so with more than 15 of them, and an entry then takes four times as long."""
    used = {each.opname for each in dis.get_instructions(draft_transaction)}
    assert "CALL_FUNCTION_EX" not in used
