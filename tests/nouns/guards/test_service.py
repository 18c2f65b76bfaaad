"""Guards inside decisions, in the store, and as calls of both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import with_git
from tests.nouns.guards.outside import Repository

import interlock
from interlock import Fleet, aio, guard
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import BadInput, StoreDamaged
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.allowed import allow
from interlock.nouns.guards.condition import Condition
from interlock.nouns.guards.results import GuardCheck, GuardView
from interlock.nouns.guards.service import check_inside
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.integrity import unreadable
from interlock.runtime.runner import Runner
from interlock.steps import Commit, drive
from interlock.store import Put, Txn
from interlock.stores import open_store

CALM = guard.named("calm", guard.lock_free("deploy"), on_failure=guard.retry("30s", 5))


@pytest.fixture
def ada() -> Iterator[Fleet]:
    with interlock.connect("memory:", agent="ada") as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def _list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "list"))


def checked(fleet: Fleet, *what: Condition | g.Guard | str, root: Path | None = None) -> str:
    answer = fleet.guards.check(*what, root=root)
    assert isinstance(answer, GuardCheck)
    return answer.outcome


@pytest.mark.parametrize("engine", ["sqlite", "redis", "etcd"])
def test_a_commit_behind_a_guard_and_an_acquisition_cannot_both_succeed(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A lock that is acquired between the look and the commit is seen by the commit."""
    sqlite = engine == "sqlite"
    url = f"{tmp_path}/store.db" if sqlite else request.getfixturevalue(f"{engine}_url")
    store = open_store(url)
    runner = Runner(store)

    def deciding() -> DecideOp[str]:
        (result,) = yield from check_inside([CALM], {}, runner.clock.wall())
        puts = (Write("locks/x.gate", {}),) if result.allowed else ()
        return Decision(outcome=result.result, verb="lock.test", thing="lock/x", puts=puts)

    with interlock.connect(url, agent="bob") as bob:
        op = runner.change(deciding, Actor("ada"))
        step, commits, outcome = next(op), 0, ""
        try:
            while True:
                if isinstance(step, Commit) and not commits:
                    commits += 1
                    assert bob.locks.acquire("deploy")
                step = op.send(step.perform(store))
        except StopIteration as done:
            outcome = done.value.outcome
        assert (outcome, commits) == (("passed", 0) if sqlite else ("failed", 1))
        assert (store.read("locks/x.gate")["locks/x.gate"] is None) is not sqlite
    store.close()


def test_all_guards_of_a_decision_share_one_read() -> None:
    some = [guard.named(f"g{n}", guard.lock_free(f"l{n}") & guard.lock_free("x")) for n in range(9)]
    op = check_inside(some, {}, 0.0)
    assert sorted(map(str, next(op))) == sorted([*(f"locks/l{n}" for n in range(9)), "locks/x"])
    op.close()


@with_git
def test_a_guard_on_every_engine_is_true_false_and_unknown(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada:
        ada.tasks.publish("build.1")
        free, slots = guard.lock_free("deploy"), guard.semaphore_available("builds")
        done = guard.tasks_complete("build.")
        ended = guard.pipeline_complete("r1")
        assert [checked(ada, each) for each in (free, slots, done, ended)] == [
            "passed", "unknown", "failed", "failed",
        ]  # fmt: skip
        ada.locks.acquire("deploy")
        ada.semaphores.acquire("builds", capacity=2)
        assert ada.tasks.claim("build.1")
        assert ada.tasks.complete("build.1")
        progress = b'{"state":"complete","phase":"ship"}'
        ada.store.commit(Txn(id="x", puts=(Put(keys.pipeline("r1"), progress),), quiet=True))
        assert [checked(ada, each) for each in (free, slots, done, ended)] == [
            "failed", "passed", "passed", "passed",
        ]  # fmt: skip


def test_conditions_of_a_program_are_looked_at_below_its_root(ada: Fleet, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "shop")
    repository.commit("notes.txt", "all is well")
    root = tmp_path / "shop"
    true = (
        guard.branch_exists("main") & guard.branch_clean("main") & guard.file_exists("notes.txt"),
        guard.file_contains("notes.txt", "well") & guard.command(["test", "-f", "notes.txt"]),
        guard.branch_merged("main", "main"),
    )
    assert checked(ada, *true, root=root) == "passed"
    false = (guard.branch_exists("x"), guard.file_exists("STOP"), guard.command("false"))
    assert [checked(ada, each, root=root) for each in false] == ["failed"] * 3
    assert checked(ada, *false, guard.lock_free("x"), root=root) == "failed"
    assert ada.guards.check(*false, guard.lock_free("x"), any_of=True, root=root)


def test_a_guard_of_a_program_needs_a_permission_as_any_definition_does(
    ada: Fleet, tmp_path: Path
) -> None:
    """Its program may have it from the store."""
    touch = guard.named("touch", guard.command(["touch", "ran"]))
    assert checked(ada, touch, root=tmp_path) == "unknown"
    assert not (tmp_path / "ran").exists()
    allow(g.digest(touch), tmp_path)
    assert checked(ada, touch) == "passed"
    assert (tmp_path / "ran").exists()


def test_the_worst_guard_decides_a_check(ada: Fleet) -> None:
    ada.locks.acquire("deploy")
    unknown = guard.named("slots", guard.semaphore_available("builds"))
    fine = guard.named("fine", guard.lock_free("x"))
    for some, worst in (((fine, unknown, CALM), "calm"), ((fine, unknown), "slots")):
        answer = ada.guards.check(*some)
        assert isinstance(answer, GuardCheck)
        assert (answer.guard, [each.guard for each in answer.guards]) == (
            worst,
            [each.name for each in some],
        )
    answer = ada.guards.check(CALM)
    assert isinstance(answer, GuardCheck)
    assert (answer.outcome, answer.action, answer.guards) == ("failed", "retry", ())
    assert answer.acts == ("ada releases lock deploy",)


def test_why_names_the_agent_that_can_clear_it(ada: Fleet) -> None:
    ada.semaphores.acquire("builds", capacity=1)
    ada.tasks.publish("build.1")
    ada.tasks.claim("build.1")
    ada.locks.acquire("deploy")
    for name, condition in {
        "slots": guard.semaphore_available("builds"),
        "tasks": guard.tasks_complete("build."),
        "lock": guard.lock_held("x") & guard.lock_free("deploy"),
    }.items():
        ada.guards.define(guard.named(name, condition))
        found = ada.why(f"guard/{name}")
        assert (found.blocked, found.by) == (True, "ada"), found
        assert "ada" in found.clear


def test_observers_see_definitions(ada: Fleet) -> None:
    with ada.observe(nouns=["guard"], after=0) as events:
        ada.guards.define(CALM, guard.named("x", guard.lock_free("x")))
        ada.guards.drop("calm")
        seen: list[tuple[str, str]] = []
        while len(seen) < 3:
            seen += [(event.event, event.thing) for event in events.take(5)]
    assert seen == [
        ("guard:defined", "guard/calm"),
        ("guard:defined", "guard/x"),
        ("guard:dropped", "guard/calm"),
    ]


def test_a_file_defines_its_guards(ada: Fleet, tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text('[guard.quiet]\nwhen = {lock_free = "x"}\n')
    assert ada.guards.define(CALM, tmp_path / "g.toml").new == ("calm", "quiet")
    assert ada.guards.define(str(tmp_path / "g.toml")).same == ("quiet",)
    with pytest.raises(BadInput, match="cannot be read"):
        ada.guards.define("calm")


def test_guards_are_kept_under_their_names(ada: Fleet) -> None:
    other = guard.named("other", guard.file_exists("x"), on_failure=guard.warn())
    defined = ada.guards.define(CALM, other)
    assert (defined.new, defined.changed, defined.same) == (("calm", "other"), (), ())
    assert ada.guards.define(CALM).same == ("calm",)
    assert ada.guards.define(guard.named("calm", guard.lock_free("x"))).changed == ("calm",)
    views = ada.guards.list()
    assert [(each.guard, each.action, each.outside) for each in views] == [
        ("calm", "block", False),
        ("other", "warn", True),
    ]
    shown = ada.guards.show("other")
    assert isinstance(shown, GuardView)
    assert (shown.digest, shown.allowed) == (g.digest(other), False)
    assert ada.guards.drop("other")
    assert ada.guards.drop("other") == interlock.NoGuard(guard="other")
    assert ada.guards.check("other") == interlock.NoGuard(guard="other")
    assert [line.verb for line in ada.record.log(verb="guard")] == [
        "guard.define", "guard.define", "guard.drop",
    ]  # fmt: skip


def test_both_clients_have_the_calls(tmp_path: Path) -> None:
    async def awaited() -> None:
        async with await aio.connect(f"{tmp_path}/store.db", agent="ada") as ada:
            await ada.guards.define(CALM)
            assert [each.guard for each in await ada.guards.list()] == ["calm"]
            assert await ada.guards.show("calm")
            assert await ada.guards.check("calm", guard.command("true"), root=tmp_path)
            assert await ada.guards.drop("calm")

    asyncio.run(awaited())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "nothing is to be checked"),
        ((None,), "made by interlock.guard.named"),
        (("",), "the guard name is empty"),
        ((g.Guard(name="", condition=guard.lock_free("x")),), "the guard name is empty"),
        ((guard.named("a", guard.lock_free("x")), guard.named("a", guard.lock_free("y"))), "two"),
    ],
)
def test_what_is_no_guard_is_refused(ada: Fleet, given: tuple[g.Guard, ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ada.guards.check(*given)


def test_any_of_nothing_and_a_root_that_is_no_folder_are_refused(ada: Fleet) -> None:
    with pytest.raises(BadInput, match="'any' is for conditions"):
        ada.guards.check(CALM, any_of=True)
    with pytest.raises(BadInput, match="is not a folder"):
        ada.guards.check(guard.lock_free("x"), root="nowhere")
    with pytest.raises(BadInput, match="which guards"):
        ada.guards.define()


@pytest.mark.parametrize(
    "stored",
    [
        b"[",
        b'{"name":"calm","condition":{"if":"all","of":[]}}',
        b'{"name":"other","condition":{"if":"lock_free","lock":"x"}}',
        b'{"name":"calm","condition":{"if":"file_exists","path":"../x"}}',
    ],
)
def test_a_damaged_guard_passes_nothing_and_can_be_defined_again(ada: Fleet, stored: bytes) -> None:
    ada.store.commit(Txn(id="x", puts=(Put(keys.guard("calm"), stored),), quiet=True))
    with pytest.raises(StoreDamaged, match="guards/calm does not read"):
        ada.guards.check("calm")
    assert ada.guards.list() == ()
    assert len(drive(unreadable(), ada.store)) == 1
    assert not ada.health().healthy
    assert ada.guards.define(CALM).changed == ("calm",)
    assert ada.guards.check("calm")
