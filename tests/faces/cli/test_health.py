"""``interlock health`` as a monitor runs it."""

from __future__ import annotations

from tests.faces.shell import Shell, until


def test_all_is_well_with_status_0(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    assert ada.json("health") == (0, {"healthy": True, "problems": []})
    done = ada.run("health")
    assert (done.status, done.out, done.err) == (0, "healthy\n", "")


def test_each_problem_is_a_line_with_its_remedy_and_the_status_is_1(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge", "--ttl", "500ms")
    ada.run("sem", "acquire", "builds", "--capacity", "3")
    until(lambda: ada.run("health").status == 1)
    stale, stuck = ada.run("health", "--held", "0s").out.splitlines()
    assert stale.startswith("stale lock/merge: ada stopped beating")
    assert stale.endswith("run 'interlock maintain'")
    assert stuck.startswith("stuck sem/builds: ada has held it for ")
    status, answer = ada.json("health", "--held", "1s", "--waiting", "1h", "--dead-after", "5m")
    assert (status, answer["healthy"]) == (1, False)
    assert {each["kind"] for each in answer["problems"]} <= {"stale", "stuck"}
    assert set(answer["problems"][0]) == {"kind", "says", "remedy", "thing", "agent", "since"}
    assert ada.run("maintain").status == 0
    assert ada.run("health").status == 0


def test_trouble_with_the_store_has_its_own_status(bare: Shell) -> None:
    done = bare.run("health")
    assert (done.status, done.out) == (4, "")
    assert "interlock init" in done.err


def test_a_bad_duration_is_refused(ada: Shell) -> None:
    done = ada.run("health", "--waiting", "long")
    assert (done.status, "waiting" in done.err) == (2, True)
