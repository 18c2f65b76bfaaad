"""Requests: attempts until an answer or an escalation, and only the answer that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw
from msgspec.structs import replace
from tests.hypothesis_settings import bounds, budget, run

from interlock.errors import BadInput
from interlock.nouns.messages.decision_rules import chosen, expire
from interlock.nouns.requests import rules
from interlock.nouns.requests.request import (
    DEADLINE,
    TRANSITIONS,
    ArrivedResult,
    OutgoingRequest,
    RequestFinding,
    task_priority,
)
from interlock.nouns.requests.rules import (
    DECIDE_IN,
    RequestStep,
    ResultAccepted,
    ResultRefused,
    ResultRepeated,
    accept_result,
    due_step,
    next_step,
)
from interlock.nouns.swarms.results import SwarmStatus
from interlock.nouns.tasks import task

NOW = 1_700_000_000.0
REQUEST = OutgoingRequest(
    id="req_1",
    message="msg_1",
    agent="ada",
    to_swarm="bank",
    to_agent="can:search",
    task_type="search",
    made=NOW,
    deadline=NOW + DEADLINE,
    sent=NOW,
    heads=("head-1",),
    source_hash="aa",
    source_size=2,
)
RESULT = ArrivedResult(
    request="req_1",
    signer="bank",
    in_reply_to="head-1",
    status="success",
    source_hash="bb",
    executed_by="bob",
    executed_at=NOW + 5,
    posted_at=NOW + 6,
    result=Raw(b'{"found":3}'),
)


# Attempts.


def until_escalated(request: OutgoingRequest, *, posts: bool) -> list[tuple[str, float]]:
    """The steps that come due, with their seconds after the request was made."""
    found: list[tuple[str, float]] = []
    while (step := next_step(request)) is not None:
        if posts:
            request = rules.post(request, request.sent)
            step = next_step(request) or step
        found.append((step.kind, step.at - NOW))
        match step.kind:
            case "time_out":
                request = rules.time_out(request)
            case "retry":
                request = rules.retry(request, f"head-{request.attempt + 1}", step.at)
            case "escalate":
                request, _ = rules.escalate(request, "task_unclaimed", "dec_1", step.at)
    return found


def test_an_unclaimed_request_is_retried_after_60_120_and_240_seconds_and_then_escalated() -> None:
    assert until_escalated(REQUEST, posts=True) == [
        ("time_out", 30),
        ("retry", 60),
        ("time_out", 90),
        ("retry", 180),
        ("time_out", 210),
        ("retry", 420),
        ("time_out", 450),
        ("escalate", 480),
    ]


def test_a_request_in_the_outbox_is_neither_repeated_nor_escalated_before_its_deadline() -> None:
    assert until_escalated(REQUEST, posts=False) == [("escalate", DEADLINE)]


def test_the_attempts_are_counted_from_the_time_at_which_the_request_reached_the_bus() -> None:
    late = rules.time_out(rules.post(REQUEST, NOW + 3600))
    assert next_step(late) == RequestStep(kind="retry", at=NOW + 3660)


def test_a_timeout_longer_than_the_pause_counts_before_the_next_attempt() -> None:
    patient = replace(REQUEST, timeout=600.0)
    steps = until_escalated(patient, posts=True)
    assert steps[:2] == [("time_out", 60), ("retry", 60)]
    assert steps[-2:] == [("time_out", 1020), ("escalate", 1020)]


def test_a_request_that_was_taken_in_waits_until_its_deadline() -> None:
    taken = rules.take(rules.post(REQUEST, NOW), NOW + 1)
    assert next_step(taken) == RequestStep(kind="time_out", at=NOW + DEADLINE)
    counted = rules.time_out(taken)
    assert next_step(counted) == RequestStep(kind="escalate", at=NOW + DEADLINE)
    assert due_step(taken, NOW - 9999) is None


def test_a_short_deadline_escalates_before_the_attempts_end() -> None:
    hurried = replace(REQUEST, deadline=NOW + 100)
    steps = until_escalated(hurried, posts=True)
    assert steps == [("time_out", 30), ("retry", 60), ("time_out", 90), ("escalate", 100)]


def test_a_process_that_comes_after_the_deadline_asks_a_person_instead_of_repeating() -> None:
    late = rules.time_out(rules.post(replace(REQUEST, deadline=NOW + 100), NOW))
    assert due_step(late, NOW + 99) == "retry"
    assert due_step(late, NOW + 100) == "escalate"
    assert due_step(late, NOW + 9999) == "escalate"


def test_all_attempts_have_one_id_and_each_has_its_head() -> None:
    again = rules.retry(rules.post(REQUEST, NOW + 1), "head-2", NOW + 60)
    assert (again.id, again.message, again.attempt) == ("req_1", "msg_1", 2)
    assert again.heads == ("head-1", "head-2")
    assert (again.posted, again.timed_out, again.sent) == (None, False, NOW + 60)


def test_a_clock_that_was_set_back_does_not_stop_the_attempts() -> None:
    posted = rules.time_out(rules.post(REQUEST, NOW))
    assert due_step(posted, NOW - 10) is None
    assert due_step(posted, NOW - 3600) == "retry"
    assert due_step(REQUEST, NOW - 3600) is None


@pytest.mark.parametrize("kind", ["answered", "cancelled", "escalated"])
def test_only_an_open_request_has_a_next_step(kind: str) -> None:
    assert next_step(replace(REQUEST, state=kind)) is None


# Escalation.


def test_an_escalation_names_the_fallbacks_and_waits_on_if_no_person_decides() -> None:
    request, asked = rules.escalate(REQUEST, "task_unclaimed", "dec_1", NOW + 480)
    assert (request.state, request.decision) == ("escalated", "dec_1")
    names = ["local_execution", "queue_for_later", "alternative_swarm"]
    assert [each.name for each in asked.options] == names
    assert (asked.about, asked.agent) == ("request/req_1", "ada")
    question = msgspec.json.decode(asked.question)
    assert question["type"] == "task_unclaimed"
    assert question["fallback_options"] == names
    assert asked.deadline == NOW + 480 + DECIDE_IN
    ended = expire(asked, asked.deadline, alive=False).puts[0].value
    option = chosen(ended)  # type: ignore[arg-type]  # a decision
    assert option is not None
    assert (option.name, option.acts) == ("queue_for_later", False)


@pytest.mark.parametrize(
    ("reason", "at"),
    [("deadline_passed", NOW + DEADLINE), ("task_unclaimed", NOW + DEADLINE - 3600)],
)
def test_at_the_deadline_there_is_no_later_and_a_day_after_the_request_ends(
    reason: rules.EscalationReason, at: float
) -> None:
    _, asked = rules.escalate(REQUEST, reason, "dec_1", at)
    names = ["local_execution", "give_up", "alternative_swarm"]
    assert [each.name for each in asked.options] == names
    assert (asked.default, asked.deadline) == ("give_up", at + 86400)
    assert not any(each.acts for each in asked.options if each.name == "give_up")


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        ("online", "task_unclaimed", "took the request in"),
        ("degraded", "task_unclaimed", "the swarm is degraded"),
        ("offline", "swarm_unavailable", "all agents of the swarm are offline"),
    ],
)
def test_the_reason_of_an_escalation_says_whether_the_swarm_is_there(
    status: SwarmStatus, reason: str, says: str
) -> None:
    found = rules.escalation_reason(REQUEST, NOW, status)
    assert found == reason
    _, asked = rules.escalate(REQUEST, found, "dec_1", NOW + 480, status)
    question = msgspec.json.decode(asked.question)
    assert (question["type"], question["swarm_status"]) == (reason, status)
    assert says in question["reason"]
    late = rules.escalation_reason(REQUEST, NOW + DEADLINE, status)
    assert late == "deadline_passed"


def test_a_person_is_asked_again_about_an_option_that_has_no_effect() -> None:
    waited, _ = rules.escalate(REQUEST, "swarm_unavailable", "dec_1", NOW + 480)
    again, asked = rules.ask_again(waited, "dec_2", "east is not allowed here", NOW + 500)
    assert (again.state, again.decision, again.reason) == (
        "escalated",
        "dec_2",
        "swarm_unavailable",
    )
    assert "east is not allowed here" in msgspec.json.decode(asked.question)["reason"]


def test_queue_for_later_starts_the_attempts_again_with_the_same_id() -> None:
    waited, _ = rules.escalate(replace(REQUEST, attempt=4), "task_unclaimed", "dec_1", NOW + 480)
    again = rules.resume(waited, "head-5", NOW + 4000)
    assert (again.state, again.id, again.attempt, again.decision) == ("open", "req_1", 5, "")
    assert next_step(rules.time_out(rules.post(again, NOW + 4000))) == RequestStep(
        kind="retry", at=NOW + 4060
    )
    third = rules.retry(rules.retry(rules.retry(again, "h", NOW), "i", NOW), "j", NOW)
    step = next_step(rules.time_out(rules.post(third, NOW)))
    assert step is not None
    assert step.kind == "escalate"


def test_a_fallback_that_does_the_work_instead_ends_the_request() -> None:
    waited, _ = rules.escalate(REQUEST, "task_unclaimed", "dec_1", NOW + 480)
    ended = rules.cancel(waited, "local_execution", NOW + 500, "task/t1")
    assert (ended.state, ended.replaced_by, ended.ended) == ("cancelled", "task/t1", NOW + 500)


# Results.


def accepted(request: OutgoingRequest, result: ArrivedResult = RESULT) -> ResultAccepted:
    found = accept_result(request, result, NOW + 7)
    assert isinstance(found, ResultAccepted)
    return found


def refused(request: OutgoingRequest | None, result: ArrivedResult) -> str:
    found = accept_result(request, result, NOW + 7)
    assert isinstance(found, ResultRefused)
    assert found.conflict == (found.reason == "equivocation")
    return found.reason


def test_the_result_of_the_swarm_that_was_asked_ends_the_request() -> None:
    done = accepted(REQUEST)
    assert (done.request.state, done.request.ended) == ("answered", NOW + 7)
    assert done.finding == RequestFinding(
        request="req_1",
        from_swarm="bank",
        status="success",
        executed_by="bob",
        executed_at=NOW + 5,
        result_posted_at=NOW + 6,
        result=Raw(b'{"found":3}'),
    )


def test_an_error_is_a_result_too_with_the_error_and_nothing_else() -> None:
    failed = replace(RESULT, status="error", error="no such index", confidence=0.3)
    finding = accepted(REQUEST, failed).finding
    assert (finding.status, finding.error, bytes(finding.result)) == (
        "error",
        "no such index",
        b"null",
    )
    assert finding.confidence == 0.3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: replace(r, request="req_2"), "unknown_request"),
        (lambda r: replace(r, signer="thief"), "wrong_swarm"),
        (lambda r: replace(r, in_reply_to="head-of-another"), "wrong_head"),
    ],
)
def test_no_other_result_counts(
    change: Callable[[ArrivedResult], ArrivedResult], reason: str
) -> None:
    assert refused(REQUEST, change(RESULT)) == reason
    assert refused(accepted(REQUEST).request, change(RESULT)) == reason


def test_a_result_without_a_request_is_refused() -> None:
    assert refused(None, RESULT) == "unknown_request"


def test_a_late_answer_to_any_attempt_counts_also_after_the_escalation() -> None:
    second = rules.retry(REQUEST, "head-2", NOW + 60)
    assert accepted(second).request.state == "answered"
    assert accepted(second, replace(RESULT, in_reply_to="head-2")).request.state == "answered"
    waited, _ = rules.escalate(second, "task_unclaimed", "dec_1", NOW + 480)
    done = accepted(waited).request
    assert (done.state, done.decision) == ("answered", "dec_1")


def test_the_same_result_twice_changes_nothing_also_if_it_was_signed_again() -> None:
    done = accepted(REQUEST).request
    again = replace(RESULT, posted_at=NOW + 99)
    assert isinstance(accept_result(done, again, NOW + 100), ResultRepeated)


@pytest.mark.parametrize(
    "change",
    [
        {"source_hash": "cc"},
        {"status": "error"},
        {"executed_by": "eve"},
        {"executed_at": NOW + 6},
    ],
)
def test_a_second_result_with_other_content_is_an_equivocation(change: dict[str, object]) -> None:
    done = accepted(REQUEST).request
    assert refused(done, replace(RESULT, **change)) == "equivocation"


def test_the_result_of_a_cancelled_request_does_not_count_and_is_no_conflict() -> None:
    assert refused(rules.cancel(REQUEST, "not needed", NOW), RESULT) == "cancelled"


# Priorities.


def test_the_default_priority_of_a_request_is_the_default_of_a_task() -> None:
    assert task_priority(5) == task.PRIORITY == 5


@given(one=st.integers(1, 10), other=st.integers(1, 10))
def test_the_more_urgent_request_is_the_earlier_task(one: int, other: int) -> None:
    assert (one > other) == (task_priority(one) < task_priority(other))


@pytest.mark.parametrize("priority", [0, 11, -1])
def test_a_priority_out_of_bounds_is_refused(priority: int) -> None:
    with pytest.raises(BadInput, match="give 1 to 10"):
        task_priority(priority)


# In any order.


class Model(RuleBasedStateMachine):
    """A request, in any order of attempts, answers, receipts, clocks and decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.request, self.now, self.heads = REQUEST, NOW, 1
        self.answered: ArrivedResult | None = None

    def _head(self) -> str:
        self.heads += 1
        return f"head-{self.heads}"

    @rule(seconds=st.sampled_from([1.0, 29.0, 61.0, 250.0, 4000.0, 90_000.0, -7200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def post(self) -> None:
        self.request = rules.post(self.request, self.now)

    @precondition(lambda self: self.request.posted)
    @rule()
    def take(self) -> None:
        self.request = rules.take(self.request, self.now)

    @rule()
    def step(self) -> None:
        match due_step(self.request, self.now):
            case "time_out":
                assert not self.request.timed_out
                self.request = rules.time_out(self.request)
            case "retry":
                assert self.request.taken is None
                self.request = rules.retry(self.request, self._head(), self.now)
            case "escalate":
                self.request, asked = rules.escalate(
                    self.request, "task_unclaimed", "dec_1", self.now
                )
                assert asked.default in ("queue_for_later", "give_up")
            case None:
                pass

    @precondition(lambda self: self.request.state == "escalated")
    @rule()
    def resume(self) -> None:
        self.request = rules.resume(self.request, self._head(), self.now)

    @precondition(lambda self: self.request.state in TRANSITIONS["cancel"][0])
    @rule()
    def cancel(self) -> None:
        self.request = rules.cancel(self.request, "not needed", self.now)

    @rule(head=st.integers(1, 9), by=st.sampled_from(["bank", "thief"]), said=st.sampled_from("bc"))
    def result(self, head: int, by: str, said: str) -> None:
        arrived = replace(RESULT, in_reply_to=f"head-{head}", signer=by, source_hash=said)
        before = self.request
        found = accept_result(before, arrived, self.now)
        if isinstance(found, ResultAccepted):
            assert self.answered is None
            assert by == "bank"
            assert head <= self.heads
            self.answered, self.request = arrived, found.request
        elif isinstance(found, ResultRepeated):
            assert self.answered is not None
            assert self.answered.source_hash == said

    @invariant()
    def an_end_is_an_end(self) -> None:
        assert (self.request.state == "answered") == (self.answered is not None)
        assert (self.request.id, self.request.deadline) == ("req_1", NOW + DEADLINE)
        assert len(self.request.heads) == self.heads
        assert 0 <= self.request.attempt - self.request.first <= 3
        if self.request.state == "open":
            assert next_step(self.request) is not None


def test_in_any_order_a_request_has_one_end_and_an_open_one_always_a_next_step() -> None:
    run(Model, bounds(budget(40), 40))
