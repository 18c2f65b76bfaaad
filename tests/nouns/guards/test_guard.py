"""Guards: their parts, their digest, and what a check of them says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from msgspec.structs import replace
from tests.nouns.guards.random_conditions import built, leaves, shapes

from interlock.core import codec
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.rules import Facts
from interlock.nouns.guards.shell import parse

CALM = g.guard("calm", parse("lock-free=deploy") & parse("!file-exists=STOP"))
ACTIONS: list[g.FailureAction] = [
    g.BlockAction(), g.WarnAction(), g.retry("30s", 5), g.fail("the build is broken"),
]  # fmt: skip


def known(*, holder: str = "", stop: bool | None = False, at: float = 990.0) -> Facts:
    return {
        c.LockNeed("deploy"): c.LockFact(holder=holder, since=940.0),
        c.FileNeed("STOP"): c.Observation(value=stop, says="the file", host="ci", at=at),
    }


def test_a_guard_passes_while_its_condition_is_true() -> None:
    found = g.check(CALM, known(), 1000.0)
    assert (found.result, found.allowed, found.leaf, found.acts) == ("passed", True, "", ())


def test_a_failure_reports_the_guard_the_leaf_and_the_action() -> None:
    found = g.check(replace(CALM, on_failure=ACTIONS[2]), known(holder="ada"), 1000.0)
    assert (found.guard, found.result, found.action) == ("calm", "failed", ACTIONS[2])
    assert (found.leaf, found.reason) == ("lock-free=deploy", "ada holds lock deploy, for 60 s")
    assert found.acts == ("ada releases lock deploy",)


def test_an_unknown_guard_names_the_leaf_that_is_unknown() -> None:
    found = g.check(CALM, known(stop=None), 1000.0)
    assert (found.result, found.leaf) == ("unknown", "file-exists=STOP")
    assert found.acts == ("host ci looks again (the file)",)


def test_a_failed_guard_names_a_leaf_that_is_known_before_one_that_is_not() -> None:
    both = g.guard("both", parse("!file-exists=STOP") & parse("lock-free=deploy"))
    found = g.check(both, known(holder="ada", stop=None), 1000.0)
    assert (found.result, found.leaf) == ("failed", "lock-free=deploy")


def test_an_unknown_guard_names_the_unknown_leaf_among_alternatives() -> None:
    either = g.guard("either", parse("lock-free=deploy") | parse("file-exists=STOP"))
    found = g.check(either, known(holder="ada", stop=None), 1000.0)
    assert (found.result, found.leaf) == ("unknown", "file-exists=STOP")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("facts", [known(holder="ada"), known(stop=None)])
def test_only_a_warning_allows_what_has_not_passed(action: g.FailureAction, facts: Facts) -> None:
    found = g.check(replace(CALM, on_failure=action), facts, 1000.0)
    assert found.result != "passed"
    assert found.allowed is isinstance(action, g.WarnAction)


@pytest.mark.parametrize(
    ("at", "result", "said"),
    [
        (940.0, "passed", ""),
        (939.0, "unknown", "it looked 61 s ago, 60 s are allowed (host ci)"),
        (1060.0, "passed", ""),
        (1061.0, "unknown", "its clock is 61 s ahead of this one (host ci)"),
        (0.0, "unknown", "it looked 16 min ago, 60 s are allowed (host ci)"),
    ],
)
def test_an_observation_that_is_too_old_counts_as_unknown(
    at: float, result: str, said: str
) -> None:
    found = g.check(CALM, known(at=at), 1000.0)
    assert (found.result, found.reason) == (result, said)


def test_a_guard_says_how_old_an_observation_may_be() -> None:
    patient = g.guard("patient", CALM.condition, max_age="5m")
    assert g.check(patient, known(at=700.0), 1000.0).result == "passed"
    assert g.check(patient, known(at=699.0), 1000.0).result == "unknown"


def test_facts_of_the_store_have_no_age() -> None:
    facts: Facts = {c.LockNeed("a"): c.LockFact(), c.LockNeed("b"): c.NoFact(says="away")}
    assert g.fresh(facts, 10.0**9, 1.0) == facts


@given(shapes())
def test_a_result_survives_json(shape: object) -> None:
    condition, _ = built(shape)
    found = g.check(g.guard("x", condition), {}, 1000.0)
    assert msgspec.json.decode(msgspec.json.encode(found), type=g.GuardResult) == found


@given(leaves())
def test_equal_guards_have_equal_digests_wherever_they_come_from(leaf: c.Condition) -> None:
    made = g.guard("x", leaf)
    stored = g.decode(codec.encode(made))
    assert stored == made
    assert g.digest(stored) == g.digest(made)


def test_a_value_that_equals_its_default_does_not_change_the_digest() -> None:
    one = g.Guard(name="x", condition=c.Command(run=("a",)))
    two = g.guard("x", c.Command(run=("a",), timeout=float("60"), env=()), max_age=60)
    assert (one, g.digest(one)) == (two, g.digest(two))


def test_every_part_of_a_guard_is_in_its_digest() -> None:
    condition = parse("command=make test")
    made = [
        g.guard("x", condition),
        g.guard("y", condition),
        g.guard("x", condition, max_age=61),
        *(g.guard("x", condition, action) for action in ACTIONS[1:]),
        g.guard("x", condition, g.retry("30s", 6)),
        g.guard("x", condition, g.fail("another message")),
        *(
            g.guard("x", parse(word))
            for word in (
                "!command=make test", "command-fails=make test", "command=make 'test'x",
                "command,shell,run=make test", "command,timeout=61s,run=make test",
                "command,env=PATH,run=make test", "command=make test ''", "file-exists=make",
            )
        ),
        g.guard("x", c.AllOf(of=(condition,))),
        g.guard("x", c.AnyOf(of=(condition,))),
        g.guard("x", c.AllOf(of=(condition, condition))),
    ]  # fmt: skip
    assert len({g.digest(each) for each in made}) == len(made)


def test_a_digest_stays_the_same_from_version_to_version() -> None:
    assert g.canonical(CALM) == (
        b'{"condition":{"all":[{"lock_free":{"lock":"deploy"}},'
        b'{"not":{"file_exists":{"path":"STOP"}}}]},'
        b'"max_age":60.0,"name":"calm","on_failure":{"do":"block"}}'
    )
    assert g.digest(CALM) == codec.digest(g.canonical(CALM))


@pytest.mark.parametrize(
    ("word", "outside"),
    [
        ("lock-free=a", False), ("lock-held=a", False), ("semaphore-available=a", False),
        ("tasks-complete", False), ("no-blocked-tasks", False), ("pipeline-complete=a", False),
        ("pipeline-in-phase=a,phase=b", False), ("branch-exists=a", True),
        ("branch-clean=a", True), ("branch-merged=a,into=b", True), ("!file-exists=a", True),
        ("file-contains=a,text=b", True), ("command=a", True),
    ],
)  # fmt: skip
def test_a_condition_that_needs_a_host_is_outside(word: str, outside: bool) -> None:
    assert g.outside(parse(word)) is outside
    assert g.outside(parse("lock-free=x") & (parse("lock-free=y") | parse(word))) is outside


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (g.guard, ("", CALM.condition), "the guard name is empty"),
        (g.guard, ("x", None), "None is none"),
        (g.guard, ("x", c.AllOf(of=())), "'all' of nothing"),
        (g.guard, ("x", CALM.condition, "block"), "block, warn, retry or fail, not 'block'"),
        (g.guard, ("x", CALM.condition, None, 0), "the max_age 0 is out of bounds"),
        (g.guard, ("x", CALM.condition, None, "2d"), "the max_age 2d is out of bounds"),
        (g.guard, ("x", CALM.condition, None, "soon"), "is not like 500ms"),
        (g.retry, (0, 5), "the delay of retry 0 is out of bounds"),
        (g.retry, ("1s", 0), "the limit of retry 0 is out of bounds"),
        (g.retry, ("1s", True), "the limit of retry is a whole number"),
        (g.fail, (" ",), "the message of fail is empty"),
        (g.fail, (3,), "the message of fail must be text"),
        (g.fail, ("x" * 2000,), "2000 bytes; 1024 are allowed"),
    ],
)
def test_a_guard_of_an_illegal_part_is_refused(
    make: Callable[..., Any], given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        make(*given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "this is no guard"),
        (b"[" * 100_000, "this is no guard|nested too deeply"),
        (b'{"name":"x","condition":{"if":"all","of":[]}}', "'all' of nothing"),
        (b'{"name":"x","condition":{"if":"lock_free","lock":""}}', "the lock name is empty"),
        (b'{"name":"x","condition":{"if":"lock_free","lock":"a"},"x":1}', "unknown field"),
        (
            b'{"name":"x","condition":{"if":"lock_free","lock":"a"},"on_failure":{"do":"explode"}}',
            "this is no guard",
        ),
        (
            b'{"name":"x","condition":{"if":"lock_free","lock":"a"},"max_age":-1}',
            "the max_age -1.0 is out of bounds",
        ),
    ],
)
def test_bytes_that_are_no_legal_guard_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        g.decode(data)


def test_a_stored_guard_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'{"if":"not","of":' * 5000 + b'{"if":"lock_free","lock":"a"}' + b"}" * 5000
    with pytest.raises(TooLarge, match="nested too deeply"):
        g.decode(b'{"name":"x","condition":' + deep + b"}")
