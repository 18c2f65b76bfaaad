"""Each refusal is counted for its caller, and every face shows the same number."""

from __future__ import annotations

import interlock
from interlock.nouns.fleet.metrics import metrics_to_text
from interlock.runtime.monitoring import Metrics
from interlock.runtime.refusals import RefusalCounts
from interlock.testing.testbed import Testbed


def test_metrics_counters_and_the_agent_say_the_same(url: str) -> None:
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
        interlock.connect(url, agent="eve") as eve,
    ):
        ada.locks.acquire("deploy")
        ada.tasks.publish("t1")
        ada.tasks.claim("t1")
        for number, client in ((5, bob), (2, eve)):
            for _ in range(number):
                assert not client.locks.release("deploy")
                assert not client.tasks.complete("t1")
        found = ada.counters(since="5m")
        assert (found.refusals, found.refused) == (14, {"bob": 10, "eve": 4})
        shown = {each.agent: sum(each.refusals.values()) for each in ada.agents.list()}
        assert shown == {"ada": 0, "bob": 10, "eve": 4}
        metrics = ada.metrics()
        assert isinstance(metrics, Metrics)
        read = [each for each in metrics.metrics if each.name == "interlock_refusals"]
        scraped = dict.fromkeys(("bob", "eve"), 0.0)
        for each in read:
            scraped[each.labels["agent"]] += each.value
        assert scraped == {"bob": 10, "eve": 4}
        assert 'interlock_refusals{agent="bob",outcome=' in metrics_to_text(metrics)


def test_the_agent_is_shown_with_its_refusals_by_outcome() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("deploy"))
    for _ in range(3):
        bob.run(bob.locks.release("deploy"))
    (shown,) = bob.run(bob.agents.show("bob"))
    assert shown.refusals == {"not_owner": 3}
    stage.clock.advance(3600)
    assert bob.run(bob.fleet.counters(since="5m")).refused == {}, "that was before"


def test_a_file_of_metrics_that_goes_on_has_each_refusal_once(tmp_path: object) -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("deploy"))
    bob.run(bob.locks.release("deploy"))
    for _ in range(2):
        ada.run(ada.fleet.metrics(file=f"{tmp_path}/metrics"))
    with open(f"{tmp_path}/metrics", encoding="utf-8") as file:
        lines = [line for line in file if line.startswith("interlock_refusals{")]
    assert lines == ['interlock_refusals{agent="bob",outcome="not_owner"} 1\n']


def test_counts_of_many_agents_are_few_numbers() -> None:
    from interlock.nouns.agents.metrics import _refusals
    from interlock.runtime.metrics import LABELLED, OTHERS

    many = {f"a{n}": RefusalCounts(total={"fenced": 1}) for n in range(LABELLED + 5)}
    found = _refusals(many)
    assert len(found) == LABELLED + 1
    assert (found[-1].labels["agent"], found[-1].value) == (OTHERS, 5)
