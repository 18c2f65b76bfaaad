"""What facts say about conditions, compared with an evaluator of a few lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import combinations, product

import msgspec
import pytest
from hypothesis import given
from tests.nouns.guards.random_conditions import built, facts, leaf, oracle, shapes

from interlock.nouns.guards import condition as c
from interlock.nouns.guards import rules, shell
from interlock.nouns.guards.rules import Evaluation

NUMBERS = {"true": 1.0, "false": 0.0, "unknown": 0.5}


def evaluated(shape: object) -> tuple[Evaluation, c.Condition, list[bool | None]]:
    condition, values = built(shape)
    return rules.evaluate(condition, facts(values)), condition, values


def number_of(found: Evaluation) -> int:
    assert isinstance(found.need, c.FileNeed)
    return int(found.need.path)


def wanted(condition: c.Condition, *, value: bool = True) -> dict[int, bool]:
    """The value that each leaf should have for the whole to be true."""
    match condition:
        case c.AllOf() | c.AnyOf():
            return {n: v for each in condition.of for n, v in wanted(each, value=value).items()}
        case c.Not():
            return wanted(condition.of, value=not value)
        case c.FileExists():
            return {int(condition.path): value}
        case _:
            raise AssertionError(condition)


@given(shapes())
def test_a_tree_has_the_verdict_of_the_oracle(shape: object) -> None:
    found, condition, values = evaluated(shape)
    assert NUMBERS[found.verdict] == oracle(condition, values)
    assert bool(found) is (found.verdict == "true")


@given(shapes())
def test_every_part_has_its_own_verdict_and_a_reason(shape: object) -> None:
    found, condition, values = evaluated(shape)

    def compare(part: Evaluation, of: c.Condition) -> None:
        assert NUMBERS[part.verdict] == oracle(of, values)
        assert part.reason
        assert part.text
        match of:
            case c.AllOf() | c.AnyOf():
                below = of.of
            case c.Not():
                below = (of.of,)
            case _:
                below = ()
                assert part.need == c.FileNeed(path=shell.text(of).removeprefix("file-exists="))
        for child, its in zip(part.children, below, strict=True):
            compare(child, its)

    compare(found, condition)


@given(shapes())
def test_the_opposite_has_the_opposite_verdict_and_unknown_stays_unknown(shape: object) -> None:
    found, condition, values = evaluated(shape)
    opposite = rules.evaluate(c.Not(of=condition), facts(values))
    assert NUMBERS[opposite.verdict] == 1 - NUMBERS[found.verdict]


@given(shapes())
def test_leaves_and_needs_are_those_of_the_tree_in_order(shape: object) -> None:
    found, condition, values = evaluated(shape)
    assert [number_of(each) for each in rules.leaves(found)] == list(range(len(values)))
    assert rules.needs(condition) == tuple(c.FileNeed(path=str(n)) for n in range(len(values)))


@given(shapes())
def test_a_condition_is_true_once_all_failing_leaves_are_cleared(shape: object) -> None:
    found, condition, values = evaluated(shape)
    failing = [number_of(each) for each in rules.failing(found)]
    assert (not failing) is bool(found)
    should = wanted(condition)
    assert all(values[n] is not should[n] for n in failing)
    assert oracle(condition, [should[n] if n in failing else v for n, v in enumerate(values)]) == 1


@given(shapes(most=6))
def test_no_smaller_number_of_leaves_clears_a_condition_than_clearing_names(shape: object) -> None:
    found, condition, values = evaluated(shape)
    clearing = [number_of(each) for each in rules.clearing(found)]
    should = wanted(condition)
    assert oracle(condition, [should[n] if n in clearing else v for n, v in enumerate(values)]) == 1
    assert len(clearing) == fewest(condition, values)
    assert set(clearing) <= {number_of(each) for each in rules.failing(found)}


def fewest(condition: c.Condition, values: list[bool | None]) -> int:
    """The least number of leaves that must change, by trying all."""
    for size in range(len(values) + 1):
        for chosen in combinations(range(len(values)), size):
            for changed in product((True, False), repeat=size):
                tried = list(values)
                for number, value in zip(chosen, changed, strict=True):
                    tried[number] = value
                if oracle(condition, tried) == 1:
                    return size
    raise AssertionError("nothing makes it true")


@given(shapes())
def test_an_evaluation_survives_json(shape: object) -> None:
    found, _, _ = evaluated(shape)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Evaluation) == found


def test_a_leaf_that_stands_twice_counts_twice_and_is_named_once() -> None:
    first, second = leaf(1), leaf(2)
    either = c.AnyOf(of=(c.AllOf(of=(first, first)), second))
    missing = facts([None, False, False])
    assert rules.acts(rules.evaluate(either, missing)) == ("create file 2",)
    both = rules.evaluate(c.AllOf(of=(first, first)), missing)
    assert len(rules.clearing(both)) == 2
    assert rules.acts(both) == ("create file 1",)


def test_each_fact_is_needed_once_in_the_order_of_the_leaves() -> None:
    words = (
        "lock-held=b,by=ada",
        "lock-free=a",
        "!lock-free=b",
        "pipeline-complete=p",
        "lock-free=a",
    )
    condition = c.AllOf(of=tuple(shell.parse(word) for word in words))
    assert rules.needs(condition) == (c.LockNeed("b"), c.LockNeed("a"), c.PipelineNeed("p"))


def test_unknown_never_passes_even_beside_true_and_under_not() -> None:
    known: dict[c.FactNeed, c.Fact] = {c.LockNeed("a"): c.LockFact()}
    free, unknown = shell.parse("lock-free=a"), shell.parse("lock-free=b")
    assert rules.evaluate(free & unknown, known).verdict == "unknown"
    assert rules.evaluate(~unknown, known).verdict == "unknown"
    assert rules.evaluate(free | unknown, known).verdict == "true"
    assert rules.evaluate(~free & unknown, known).verdict == "false"


@pytest.mark.parametrize("group", [c.AllOf(of=()), c.AnyOf(of=()), c.Not(of=c.AllOf(of=()))])
def test_a_group_of_nothing_is_unknown_and_says_so(group: c.Condition) -> None:
    found = rules.evaluate(group, {})
    assert found.verdict == "unknown"
    assert "of nothing" in found.reason
    assert len(rules.failing(found)) == 1
    assert "of nothing" in rules.acts(found)[0]
    assert rules.needs(group) == ()


@pytest.mark.parametrize(
    "kind", [c.Not, lambda of: c.AllOf(of=(of,)), lambda of: c.AnyOf(of=(of,))]
)
@pytest.mark.parametrize("levels", [33, 10_000])
def test_a_tree_that_is_nested_too_deeply_is_unknown_and_raises_nothing(
    kind: Callable[..., c.Condition], levels: int
) -> None:
    deep: c.Condition = leaf(1)
    for _ in range(levels - 1):
        deep = kind(of=deep)
    found = rules.evaluate(deep, {c.FileNeed("1"): c.Observation(value=True, says="")})
    assert found.verdict == "unknown"
    assert "nested deeper than 32" in rules.failing(found)[0].reason
    assert rules.needs(deep) == ()
    assert "..." in shell.text(deep)
    while isinstance(deep, c.Not | c.AllOf | c.AnyOf):  # freeing it at once needs deep recursion
        deep = deep.of if isinstance(deep, c.Not) else deep.of[0]


def test_a_tree_of_32_levels_is_evaluated() -> None:
    deep: c.Condition = leaf(1)
    for _ in range(31):
        deep = c.AllOf(of=(deep,))
    assert rules.evaluate(deep, {c.FileNeed("1"): c.Observation(value=True, says="")})
    assert rules.needs(deep) == (c.FileNeed("1"),)


def test_a_group_says_how_many_decide_it() -> None:
    three = c.AllOf(of=(leaf(0), leaf(1), leaf(2)))
    found = rules.evaluate(three, facts([False, True, False]))
    assert found.reason.startswith("2 of 3 are false; first: ")
    assert (
        rules.evaluate(three, facts([False, True, True])).reason == "the host says so (host here)"
    )


def test_a_thousand_leaves_take_five_milliseconds_at_most() -> None:
    """On a slower or busier machine, as many times its reference as 5 ms are on this one."""
    words = (
        "lock-free=a{0}", "!file-exists=b{0}", "lock-held=a{0},by=ada", "tasks-complete=t{0}.",
        "semaphore-available=s{0},slots=2", "branch-merged=x{0},into=main", "command=make {0}",
        "pipeline-in-phase=p{0},phase=test", "file-contains=f{0},text=1.2", "no-blocked-tasks=t{0}",
    )  # fmt: skip
    leaves = [shell.parse(words[n % 10].format(n)) for n in range(1000)]
    tens = [c.AnyOf(of=tuple(leaves[n : n + 10])) for n in range(0, 1000, 10)]
    tree = c.AllOf(of=tuple(tens))
    known: dict[c.FactNeed, c.Fact] = {}
    for need in rules.needs(tree):
        match need:
            case c.LockNeed():
                known[need] = c.LockFact(holder="bob", since=1.0)
            case c.SemaphoreNeed():
                known[need] = c.SemaphoreFact(capacity=3, available=1, holders=("ada", "bob"))
            case c.TasksNeed():
                known[need] = c.TasksFact(states={"dead": 1}, open=(("t1", "dead", ""),))
            case c.PipelineNeed():
                known[need] = c.PipelineFact(phase="build", state="running", since=1.0)
            case c.CommandNeed():
                known[need] = c.Observation(value=1, says="it failed", host="here", at=1.0)
            case _:
                exists = isinstance(need, c.FileNeed)
                known[need] = c.Observation(value=exists, says="as it is", host="here", at=1.0)

    def reference() -> None:  # what any evaluation costs: look at each leaf, and write a line
        for each in leaves:
            repr(each)

    work = partial(rules.evaluate, tree, known, 100.0)
    turns = [(elapsed(work), elapsed(reference)) for _ in range(30)]
    taken, floor = (min(some) for some in zip(*turns, strict=True))
    assert taken <= max(0.005, 17 * floor)  # 3.2 ms, where the reference takes 0.29 ms
    assert rules.evaluate(tree, known, 100.0).verdict == "false"


def elapsed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
