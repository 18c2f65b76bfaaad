"""``interlock health`` as a monitor runs it."""

from __future__ import annotations

import subprocess
import sys

from tests.faces.shell import Shell, until


def test_all_is_well_with_status_0(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    assert ada.json("health") == (
        0,
        {"healthy": True, "problems": [], "partial": False, "more": 0, "count": 0},
    )
    done = ada.run("health")
    assert (done.status, done.out, done.err) == (0, "healthy\n", "")


def test_each_problem_is_a_line_with_its_remedy_and_the_status_is_1(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge", "--ttl", "500ms")
    ada.run("sem", "acquire", "builds", "--capacity", "3")
    until(lambda: ada.run("health").status == 1)
    stale, stuck = ada.run("health", "--held", "0s").out.splitlines()
    assert stale.startswith("stale lock/merge: ada stopped renewing it")
    assert stale.endswith("run 'interlock maintain'")
    assert stuck.startswith("stuck sem/builds: ada has held it for ")
    status, answer = ada.json("health", "--held", "1s", "--waiting", "1h", "--dead-after", "5m")
    assert (status, answer["healthy"]) == (1, False)
    assert {each["kind"] for each in answer["problems"]} <= {"stale", "stuck"}
    assert set(answer["problems"][0]) == {
        "kind",
        "says",
        "remedy",
        "thing",
        "agent",
        "since",
        "since_iso",
        "cycle",
    }
    assert ada.run("maintain").status == 0
    assert ada.run("health").status == 0


def test_a_monitor_that_also_tidies_up_sees_every_death(ada: Shell) -> None:
    """A real worker is killed; the client that clears its session leaves a trace."""
    program = (
        "import interlock, os, signal\n"
        "fleet = interlock.connect(agent='bob', ttl=0.5)\n"
        "fleet.tasks.publish('t1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ada.folder, check=False)
    until(lambda: ada.json("maintain")[1]["reclaimed"] > 0)
    ada.run("agent", "join", "--agent", "human")  # it is here, and no worker
    status, answer = ada.json("health")
    told = {each["kind"]: each for each in answer["problems"]}
    assert (status, set(told)) == (1, {"dead", "unattended"})
    assert told["dead"]["agent"] == "bob"
    done = ada.run("agent", "ack", "bob")
    assert (done.status, done.out) == (0, "acknowledged the death of 1 session of bob\n")
    assert ada.json("agent", "ack", "bob") == (1, {"outcome": "nothing", "agent": "bob"})
    assert ada.run("task", "cancel", "t1").status == 0
    assert ada.run("health").status == 0


def test_trouble_with_the_store_has_its_own_status(bare: Shell) -> None:
    done = bare.run("health")
    assert (done.status, done.out) == (4, "")
    assert "interlock init" in done.err


def test_a_bad_duration_is_refused(ada: Shell) -> None:
    done = ada.run("health", "--waiting", "long")
    assert (done.status, "waiting" in done.err) == (2, True)
