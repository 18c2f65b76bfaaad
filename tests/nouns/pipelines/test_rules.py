"""What a checked guard means for a pipeline, for every action, result and count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import hindrance_of
from interlock.nouns.pipelines import pipeline, rules
from interlock.nouns.pipelines.definition import PhaseDefinition, PipelineDefinition
from interlock.nouns.pipelines.rules import GiveUp, Stay

LOCK = c.LockFree(lock="deploy")
FACTS: dict[str, c.Fact] = {
    "passed": c.LockFact(),
    "failed": c.LockFact(holder="ada", since=1.0),
    "unknown": c.NoFact(says="damaged"),
}
ACTIONS: list[g.FailureAction] = [
    g.BlockAction(),
    g.WarnAction(),
    g.RetryAction(delay=5.0, limit=2),
    g.FailAction(message="not today"),
]


def run(**fields: object) -> pipeline.PipelineRun:
    return pipeline.transition(rules.fresh("p", "d" * 64, "ada", 10.0), "block", **fields)


@given(
    action=st.sampled_from(ACTIONS),
    result=st.sampled_from(sorted(FACTS)),
    stage=st.sampled_from(["post", "pre"]),
    failures=st.integers(0, 4),
    retries=st.integers(0, 3),
    rests=st.booleans(),
    explicit=st.booleans(),
)
def test_a_guard_passes_waits_counts_or_fails_as_its_action_says(  # noqa: PLR0917
    action: g.FailureAction,
    result: str,
    stage: rules.Stage,
    failures: int,
    retries: int,
    rests: bool,
    explicit: bool,
) -> None:
    phase = PhaseDefinition(name="one", retries=retries)
    checked = g.check(
        g.Guard(name="calm", condition=LOCK, on_failure=action),
        {c.LockNeed("deploy"): FACTS[result]},
        2.0,
    )
    before = run(attempt=failures) if stage == "post" else run(entering=failures)
    found = rules.judge(before, phase, stage, checked, rests=rests, explicit=explicit)
    if result == "passed" or isinstance(action, g.WarnAction):
        assert found is None
        return
    assert found is not None
    assert found.hindrance.leaf == "lock-free=deploy"
    limit = None
    if result == "failed" and isinstance(action, g.RetryAction) and not rests:
        limit = action.limit
    if result == "failed" and isinstance(action, g.BlockAction) and stage == "post" and explicit:
        limit = retries or None
    if result == "failed" and isinstance(action, g.FailAction):
        assert isinstance(found, GiveUp)
        assert found.reason == "not today"
    elif limit is not None and failures == limit:
        assert isinstance(found, GiveUp)
        assert f"failed {limit + 1} times" in found.reason
    elif limit is None or failures < limit:
        assert isinstance(found, Stay)
        assert found.counted == (None if limit is None else stage)


def test_the_holder_of_a_lock_is_named_as_the_agent_that_can_clear_it() -> None:
    calm = g.Guard(name="calm", condition=LOCK)
    checked = g.check(calm, {c.LockNeed("deploy"): FACTS["failed"]}, 2.0)
    found = hindrance_of(calm, checked)
    assert (found.by, found.thing) == (("ada",), "lock/deploy")
    assert found.acts == ("ada releases lock deploy",)
    assert "since 1970-01-01" in found.stored


def test_steps_lead_from_the_start_through_each_phase_to_the_end() -> None:
    one, two = PhaseDefinition(name="one"), PhaseDefinition(name="two")
    whole = PipelineDefinition(name="p", phases=(one, two))
    steps = [rules.next_step(run(phase=phase), whole) for phase in ("", "one", "two")]
    assert [(step.leaving, step.entering) for step in steps] == [
        (None, one),
        (one, two),
        (two, None),
    ]


@pytest.mark.parametrize("state", ["complete", "failed", "cancelled"])
def test_a_pipeline_that_ended_never_moves_again(state: pipeline.PipelineState) -> None:
    act = {"complete": "complete", "failed": "fail", "cancelled": "cancel"}[state]
    ended = pipeline.transition(run(), act, by="bob", reason="so")
    refused = rules.overtaken("r1", ended, None)
    assert refused is not None
    assert (refused.state, refused.by, refused.reason) == (state, "bob", "so")
    for each in pipeline.TRANSITIONS:
        with pytest.raises(AssertionError):
            pipeline.transition(ended, each)


def test_a_caller_that_expects_another_phase_is_told_the_present_one() -> None:
    assert rules.overtaken("r1", run(phase="two"), "two") is None
    refused = rules.overtaken("r1", run(phase="two"), "one")
    assert refused is not None
    assert (refused.phase, refused.by) == ("two", "ada")
