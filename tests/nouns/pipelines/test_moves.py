"""Pipelines go from phase to phase: what lets them pass, what keeps them, and what ends them."""

from __future__ import annotations

import pytest
from tests.nouns.pipelines.pipelines import RELEASE, Mover, definition, phases, run_of

from interlock.core import keys
from interlock.errors import BadInput, StoreDamaged, TooLarge
from interlock.nouns.pipelines import pipeline as core
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

FREE = 'post = [{lock_free = "deploy"}]'


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


def client(bed: Testbed, where: str, name: str) -> Client:
    return bed.client(name) if where == "local" else bed.remote(name)


@pytest.fixture(params=["local", "remote"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Mover:
    return Mover(client(bed, request.param, "ada"))


@pytest.fixture
def bob(bed: Testbed) -> Mover:
    return Mover(bed.remote("bob"))


def test_a_pipeline_goes_through_its_phases_and_is_complete(ada: Mover) -> None:
    ada.define(phases("", "", ""))
    assert ada.start() == core.PipelineStarted(pipeline="r1", definition="p", phase="one")
    assert ada.advance() == core.PipelineAdvanced(pipeline="r1", phase="two")
    assert ada.advance() == core.PipelineAdvanced(pipeline="r1", phase="three")
    assert ada.advance() == core.PipelineCompleted(pipeline="r1")
    assert isinstance(ada.advance(), core.Overtaken)


def test_an_id_is_used_once_and_a_name_must_be_defined(ada: Mover) -> None:
    assert ada.start() == core.UnknownDefinition(unknown=("p",))
    ada.define(phases("", ""))
    assert ada.start()
    assert ada.start() == core.PipelineExists(
        pipeline="r1", definition="p", state="running", phase="one"
    )
    assert ada.advance("other") == core.UnknownPipeline(unknown=("other",))
    assert ada.cancel("other") == core.UnknownPipeline(unknown=("other",))
    assert ada.show("other") == core.UnknownPipeline(unknown=("other",))


def test_a_running_pipeline_keeps_the_definition_that_it_was_started_with(ada: Mover) -> None:
    ada.define(phases("", ""))
    ada.start()
    ada.define(phases("hold = ['lock/x']"))
    ada.start(id_="r2")
    assert ada.advance().phase == "two"
    assert ada.show("r1").phases == ("one", "two")
    assert ada.show("r2").phases == ("one",)


def test_a_definition_that_is_current_already_is_not_written_again(
    bed: Testbed, ada: Mover
) -> None:
    assert not ada.define(phases("", "")).pipelines[0].already
    before = bed.store.read().revision
    assert ada.define(phases("", "")).pipelines[0].already
    assert bed.store.read().revision == before


def test_a_guard_that_blocks_keeps_the_pipeline_and_names_leaf_holder_and_act(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(FREE, ""))
    ada.start()
    token = bob.lock("deploy")
    blocked = ada.advance()
    assert (blocked.guard, blocked.leaf) == ("p/one/post", "lock-free=deploy")
    assert blocked.reason.startswith("bob holds lock deploy")
    assert blocked.acts == ("bob releases lock deploy",)
    run = run_of(bed.store)
    assert (run.phase, run.asked, run.attempt) == ("one", True, 0)
    assert run.blocked_by is not None
    before = bed.store.read().revision
    assert not ada.advance()
    assert bed.store.read().revision == before
    bob.unlock("deploy", token)
    after = run_of(bed.store)
    assert (after.phase, after.by) == ("two", "ada")
    assert (after.blocked_by, after.asked) == (None, False)


def test_a_guard_before_the_first_phase_lets_it_start_and_wait(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases('pre = [{lock_free = "deploy"}]'))
    token = bob.lock("deploy")
    started = ada.start()
    assert started
    assert (started.phase, started.leaf) == ("", "lock-free=deploy")
    assert run_of(bed.store).asked
    assert ada.advance().phase == ""
    bob.unlock("deploy", token)
    assert run_of(bed.store).phase == "one"


def test_of_two_that_advance_one_is_told_who_moved_it(ada: Mover, bob: Mover) -> None:
    ada.define(phases("", "", ""))
    ada.start()
    assert ada.advance(phase="one")
    late = bob.advance(phase="one")
    assert (late.phase, late.state, late.by) == ("two", "running", "ada")


def test_without_a_phase_the_one_that_was_read_first_is_expected(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases("", "", ""))
    ada.start()
    late = Stepper(bob.calls.advance("r1"), bob.client.store, bob.client.clock)
    late.go()  # it has read the phase
    assert ada.advance()
    refused = late.run().result()
    assert isinstance(refused, core.Overtaken)
    assert (refused.by, refused.phase) == ("ada", "two")
    assert run_of(bed.store).phase == "two"


def test_a_phase_that_does_not_exist_is_bad_input_with_those_that_do(ada: Mover) -> None:
    ada.define(phases("", ""))
    ada.start()
    with pytest.raises(BadInput, match="has no phase 'tow'; its phases: one, two"):
        ada.advance(phase="tow")


def test_a_warning_lets_it_pass_and_is_recorded(bed: Testbed, ada: Mover, bob: Mover) -> None:
    ada.define(phases(f'{FREE}\non_failure = "warn"', ""))
    ada.start()
    bob.lock("deploy")
    advanced = ada.advance()
    assert (advanced.phase, advanced.warned) == ("two", ("p/one/post",))
    story = ada.client.run(ada.client.record.explain("pipeline/r1"))
    assert [each.what for each in story.happenings] == ["started", "advanced", "warned", "advanced"]


def test_a_retry_counts_after_each_delay_and_fails_beyond_its_limit(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(f'{FREE}\non_failure = {{retry = "10s", limit = 2}}', ""))
    ada.start()
    bob.lock("deploy")
    first = ada.advance()
    assert (first.attempts, first.retry_in) == (1, 10.0)
    assert ada.advance().attempts == 1  # within the delay
    assert run_of(bed.store).attempt == 1
    bed.clock.advance(11)
    ada.client.run(ada.client.agents.beat())
    bob.client.run(bob.client.agents.beat())
    assert ada.advance().attempts == 2
    bed.clock.advance(11)
    bob.client.run(bob.client.agents.beat())
    failed = ada.advance()
    assert isinstance(failed, core.PipelineFailed)
    assert "p/one/post failed 3 times" in failed.reason
    assert run_of(bed.store).state == "failed"


def test_within_the_delay_a_guard_that_passes_lets_it_go_on(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(f'{FREE}\non_failure = {{retry = "10s", limit = 2}}', ""))
    ada.start()
    token = bob.lock("deploy")
    ada.advance()
    rest = keys.pipeline_rest("r1", "post")
    assert bed.store.read(rest)[rest] is not None
    bob.unlock("deploy", token)
    assert run_of(bed.store).phase == "two"
    assert bed.store.read(rest)[rest] is None


def test_the_guard_of_the_next_phase_counts_although_that_of_this_one_rests(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    retry = 'on_failure = {retry = "10s", limit = 2}'
    ada.define(phases(f"{FREE}\n{retry}", f'pre = [{{lock_free = "freeze"}}]\n{retry}'))
    ada.start()
    token = bob.lock("deploy")
    bob.lock("freeze")
    assert ada.advance().attempts == 1
    bob.unlock("deploy", token)  # the post guard passes, within its delay
    assert (run_of(bed.store).attempt, run_of(bed.store).entering) == (1, 1)
    waiting = keys.pipeline_rest("r1", "pre")
    assert bed.store.read(waiting)[waiting] is not None


def test_maintain_takes_the_step_that_no_commit_opened(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(FREE, ""))
    ada.start()
    bob.client.run(bob.client.locks.acquire("deploy", ttl=5))
    assert not ada.advance()
    bed.clock.advance(6)
    assert run_of(bed.store).phase == "one"
    bob.client.run(bob.client.fleet.maintain())
    assert run_of(bed.store).phase == "two"


def test_a_phase_with_retries_counts_each_call_that_finds_its_guard_false(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(f"{FREE}\nretries = 1", ""))
    ada.start()
    bob.lock("deploy")
    assert ada.advance().attempts == 1
    bob.client.run(bob.client.fleet.maintain())  # it looks, and counts nothing
    assert run_of(bed.store).attempt == 1
    assert isinstance(ada.advance(), core.PipelineFailed)


def test_the_action_fail_ends_it_with_its_message(bed: Testbed, ada: Mover, bob: Mover) -> None:
    ada.define(phases(f'{FREE}\non_failure = {{fail = "no deploys today"}}', ""))
    ada.start()
    bob.lock("deploy")
    failed = ada.advance()
    assert (failed.reason, failed.leaf, bool(failed)) == (
        "no deploys today",
        "lock-free=deploy",
        False,
    )
    assert isinstance(ada.advance(), core.Overtaken)


def test_an_unknown_guard_blocks_and_is_never_counted(bed: Testbed, ada: Mover) -> None:
    guard = 'post = [{semaphore_available = "nowhere"}]'
    ada.define(phases(f'{guard}\non_failure = {{fail = "never"}}', ""))
    ada.start()
    blocked = ada.advance()
    assert isinstance(blocked, core.PipelineBlocked)
    assert blocked.attempts == 0
    assert run_of(bed.store).state == "running"


def test_guards_from_outside_stay_unknown_where_the_host_does_not_allow_them(
    bed: Testbed, ada: Mover, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", f"{tmp_path}/guards")
    defined = ada.define(phases('post = [{file_exists = "ready"}]', ""))
    assert (defined.outside, defined.allowed) == (("p/one/post",), ())
    assert defined.host
    ada.start()
    blocked = ada.advance()
    assert "does not allow it" in blocked.reason


def test_an_allowed_guard_is_looked_at_and_the_record_names_host_and_digest(
    bed: Testbed, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    from interlock.nouns.guards import allowed
    from interlock.nouns.guards.guard import digest
    from interlock.runtime.identity import host_name

    root = Path(str(tmp_path))
    (root / "work").mkdir()
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", f"{root}/guards")
    ada = Mover(bed.client("ada"))
    made = phases('post = [{file_exists = "ready"}]\nmax_age = "1d"', "")
    assert made.phases[0].post is not None
    allowed.allow(digest(made.phases[0].post), root / "work")
    assert ada.define(made).allowed == ("p/one/post",)
    ada.start()
    blocked = ada.advance()
    assert not blocked
    why = ada.client.run(ada.client.fleet.why("pipeline/r1"))
    assert blocked.reason in why.because  # as the host saw it, though it does not look again
    (root / "work" / "ready").write_text("yes")
    assert ada.advance().phase == "two"
    story = ada.client.run(ada.client.record.explain("pipeline/r1"))
    assert "file-exists=ready" in story.happenings[-2].says
    assert f"file-exists=ready seen by {host_name()}" in story.happenings[-1].says


def test_maintain_and_why_never_look_at_the_outside(
    bed: Testbed, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    from interlock.nouns.guards import allowed
    from interlock.nouns.guards.guard import digest

    root = Path(str(tmp_path))
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", f"{root}/guards")
    ada = Mover(bed.client("ada"))
    made = phases('post = [{command = {run = ["touch", "looked"], expect = 7}}]', "")
    assert made.phases[0].post is not None
    allowed.allow(digest(made.phases[0].post), root)
    ada.define(made)
    ada.start()
    assert not ada.advance()
    (root / "looked").unlink()
    ada.client.run(ada.client.fleet.maintain())
    ada.client.run(ada.client.fleet.why("pipeline/r1"))
    assert not (root / "looked").exists()


def test_a_damaged_definition_stops_neither_other_pipelines_nor_maintain(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(FREE, "", name="a"))
    ada.define(phases(FREE, ""))
    ada.start("a", "a1")
    ada.start()
    token = bob.lock("deploy")
    ada.advance("a1")
    ada.advance()
    key = keys.definition("a", run_of(bed.store, "a1").digest)
    bed.store.commit(Txn(id="txn_damage", puts=(Put(key, b"{"),), quiet=True))
    bob.unlock("deploy", token)
    assert run_of(bed.store).phase == "two"
    ada.client.run(ada.client.fleet.maintain())
    with pytest.raises(StoreDamaged):
        ada.advance("a1")
    assert ada.cancel("a1")


def test_cancelling_ends_it_once_and_says_why(bed: Testbed, ada: Mover, bob: Mover) -> None:
    ada.define(phases("", ""))
    ada.start()
    assert ada.cancel(reason="the release is off") == core.PipelineCancelled(
        pipeline="r1", phase="one", reason="the release is off"
    )
    again = bob.cancel(reason="me too")
    assert (again.already, again.reason) == (True, "the release is off")
    refused = bob.advance()
    assert (refused.state, refused.by, refused.reason) == ("cancelled", "ada", "the release is off")


def test_a_complete_pipeline_cannot_be_cancelled(ada: Mover) -> None:
    ada.define(phases(""))
    ada.start()
    ada.advance()
    refused = ada.cancel()
    assert (type(refused), refused.state) == (core.Overtaken, "complete")


def test_another_pipeline_may_wait_for_a_phase_and_for_the_end(bed: Testbed, ada: Mover) -> None:
    ada.define(phases("", ""))
    ada.define(
        phases(
            'pre = [{pipeline_in_phase = {pipeline = "r1", phase = "two"}}]',
            'pre = [{pipeline_complete = "r1"}]',
            name="q",
        )
    )
    ada.start()
    assert ada.start("q", "q1").phase == ""
    ada.advance()
    assert run_of(bed.store, "q1").phase == "one"
    assert not ada.advance("q1")
    ada.advance()
    assert run_of(bed.store, "q1").phase == "two"


def test_why_names_the_leaf_the_holder_and_the_chain(bed: Testbed, ada: Mover, bob: Mover) -> None:
    ada.define(phases(FREE, ""))
    ada.start()
    why = ada.client.run(ada.client.fleet.why("pipeline/r1"))
    assert (why.blocked, why.clear) == (False, "interlock pipeline advance r1 --agent NAME")
    bob.lock("deploy")
    ada.advance()
    bed.clock.advance(5)
    why = ada.client.run(ada.client.fleet.why("pipeline/r1"))
    assert (why.blocked, why.by, why.since) == (True, "bob", bed.clock.wall() - 5)
    assert "p/one/post: lock-free=deploy: bob holds lock deploy" in why.because
    assert why.clear == "bob releases lock deploy"
    assert (why.guard, why.leaf) == ("p/one/post", "lock-free=deploy")
    assert [(each.thing, each.by) for each in why.chain] == [("lock/deploy", "bob")]
    assert ada.client.run(ada.client.fleet.why("pipeline/none")).state == "unknown"


def test_health_names_pipelines_that_wait_for_long_and_those_that_failed(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(FREE))
    ada.define(phases(f'{FREE}\non_failure = {{fail = "no"}}', name="q"))
    ada.start()
    ada.start("q", "q1")
    bob.client.run(bob.client.locks.acquire("deploy", ttl=30000))
    ada.advance()
    ada.advance("q1")
    bed.clock.advance(20)
    assert _problems(ada) == [("failed", "pipeline/q1")]
    bed.clock.advance(4000)
    assert _problems(ada) == [("failed", "pipeline/q1"), ("blocked", "pipeline/r1")]


def _problems(ada: Mover) -> list[tuple[str, str]]:
    found = ada.client.run(ada.client.fleet.health()).problems
    return [(each.kind, each.thing) for each in found if each.thing.startswith("pipeline/")]


def test_maintain_deletes_ended_pipelines_and_unused_definitions_after_the_retention(
    bed: Testbed, ada: Mover
) -> None:
    ada.define(phases("", ""))
    ada.start()
    ada.define(phases(""))
    ada.start(id_="r2")
    ada.advance("r2")
    ada.client.run(ada.client.fleet.maintain())
    assert ada.show("r2")
    assert _definitions(bed) == 3
    bed.clock.advance(91 * 86400)
    ada = Mover(bed.client("zoe"))
    ada.client.run(ada.client.fleet.maintain())
    assert isinstance(ada.show("r2"), core.UnknownPipeline)
    assert ada.show("r1").phases == ("one", "two")
    ada.cancel()
    bed.clock.advance(91 * 86400)
    ada = Mover(bed.client("zoe"))
    for _ in range(2):
        ada.client.run(ada.client.fleet.maintain())
    assert isinstance(ada.show("r1"), core.UnknownPipeline)
    assert _definitions(bed) == 2
    assert audit(bed.store) == []


def _definitions(bed: Testbed) -> int:
    everything = Range(keys.DEFINITIONS)
    return len(bed.store.read(everything).ranges[everything])


def test_list_pages_and_selects_by_state(ada: Mover) -> None:
    ada.define(phases(""))
    for number in range(5):
        ada.start(id_=f"r{number}")
    ada.advance("r3")
    calls = ada.calls
    page = ada.client.run(calls.list(limit=2))
    assert ([each.pipeline for each in page], page.more) == (["r0", "r1"], "r1")
    rest = ada.client.run(calls.list(limit=9, after="r1"))
    assert ([each.pipeline for each in rest], rest.more) == (["r2", "r3", "r4"], None)
    done = ada.client.run(calls.list(state=["complete"]))
    assert [each.pipeline for each in done] == ["r3"]
    with pytest.raises(BadInput, match="no pipeline is 'done'"):
        ada.client.run(calls.list(state=["done"]))


def test_odd_ids_and_definitions_are_refused(ada: Mover) -> None:
    ada.define(phases(""))
    for bad in ("", "a//b", "pipeline/r1", "*", "-x", "x" * 5000):
        with pytest.raises(BadInput):
            ada.start(id_=bad)
    for odd in ("a/b", "ü", "x" * 100, "r 1"):
        assert ada.start(id_=odd)
        assert ada.show(odd).pipeline == odd
        assert ada.advance(odd)
    with pytest.raises(BadInput):
        ada.define(3)  # type: ignore[arg-type]


def test_the_whole_release_runs(bed: Testbed, ada: Mover) -> None:
    ada.define(definition(RELEASE))
    ada.client.run(ada.client.semaphores.resize("builds", 3))
    assert ada.start("release").phase == "build"
    assert ada.do_tasks() == ["r1.build.a", "r1.build.b"]
    assert ada.advance(phase="test").phase == "merge"
    assert ada.advance().phase == "deploy"
    assert ada.advance() == core.PipelineCompleted(pipeline="r1")
    assert audit(bed.store) == []


def test_a_phase_with_more_tasks_than_one_commit_takes_is_refused_when_defined(
    bed: Testbed,
) -> None:
    from msgspec.structs import replace

    ada = Mover(bed.remote("ada"))
    limits = ada.client.runner.capabilities
    ada.client.runner.capabilities = replace(limits, max_operations=126)
    many = ", ".join(f'{{id = "t{n}"}}' for n in range(20))
    with pytest.raises(TooLarge, match="publishes 20 tasks; this store takes 11 in one commit"):
        ada.define(phases(f"tasks = [{many}]"))
    some = ", ".join(f'{{id = "t{n}", requires = ["q{n}"]}}' for n in range(11))
    ada.define(phases(f"tasks = [{some}]"))
    assert ada.start()
