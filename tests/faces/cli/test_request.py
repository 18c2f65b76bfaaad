"""Requests as people and scripts use them: a fresh shell for each call, interrupts, odd values."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faces.shell import Shell, gone, until

import interlock


@pytest.fixture
def shop(bare: Shell, tmp_path: Path) -> Shell:
    """A shell of the shop, which trusts the bank and is trusted by it."""
    bare.exported |= {"INTERLOCK_KEYS_DIR": str(tmp_path / "keys"), "INTERLOCK_AGENT": "ada"}
    prints = {}
    for name in ("shop", "bank"):
        prints[name] = bare.run("key", "new", name, "-q").out.strip()
        store = ("--store", f"{name}.db")
        made = bare.run("swarm", "register", name, "--bus", "bus.db", "--key", name, *store)
        assert made.status == 0
    for name, other in (("shop", "bank"), ("bank", "shop")):
        store = ("--store", f"{name}.db")
        assert bare.run("swarm", "allow", other, "--key", prints[other], *store).status == 0
    bare.exported["INTERLOCK_STORE"] = str(tmp_path / "shop.db")
    return bare


def test_a_script_keeps_the_id_and_gets_the_bare_result(shop: Shell) -> None:
    sent = shop.run("request", "send", "bank", "bob", "[1]", "-q")
    assert (sent.status, sent.out[:4], sent.err) == (0, "req_", "")
    shop.run("maintain", "--store", "bank.db")
    words = ("--store", "bank.db", "--agent", "bob")
    claimed = shop.json("task", "next", "--can", "@bob", *words)[1]
    token = ("--token", str(claimed["token"]))
    shop.run("task", "complete", claimed["task"], "--result", '{"n": 1}', *token, *words)
    shop.run("maintain", "--store", "bank.db")
    shop.run("maintain")
    found = shop.run("request", "result", sent.out.strip(), "-q")
    assert (found.status, found.out) == (0, '{"n":1}\n')


def test_without_an_agent_every_command_that_acts_says_how_to_name_one(shop: Shell) -> None:
    del shop.exported["INTERLOCK_AGENT"]
    for words in (("send", "bank", "bob", "1"), ("result", "x"), ("serve", "--", "cat")):
        done = shop.run("request", *words)
        assert (done.status, "--agent NAME" in done.err) == (2, True)
    assert shop.run("request", "list").status == 0


def test_an_odd_value_is_refused_with_what_to_give(shop: Shell) -> None:
    for words, said in ODD:
        done = shop.run("request", "send", "bank", "bob", "1", *words)
        assert (done.status, said in done.err) == (2, True), done


ODD = [
    (("--timeout", "0"), "give 1 ms to 7 d"),
    (("--timeout", "0.0001"), "give 1 ms to 7 d"),
    (("--timeout", "8d"), "give 1 ms to 7 d"),
    (("--deadline", "2020-01-01"), "the deadline is over already"),
    (("--deadline", "8d"), "give 1 ms to 7 d"),
    (("--priority", "11"), "give 1 to 10"),
    (("--act", "x"), "request, inform, escalate"),
    (("--confidence", "2"), "from 0 to 1"),
]


def test_the_same_id_with_another_payload_is_refused_and_shows_no_result_of_the_first(
    shop: Shell,
) -> None:
    first = shop.run("request", "send", "bank", "bob", "[1]", "--id", "nightly", "-q").out.strip()
    again = shop.run("request", "send", "bank", "bob", "[1]", "--id", "nightly")
    assert (again.status, f"exists {first}: it is open" in again.out) == (1, True)
    for wait in ((), ("--wait", "5m")):
        other = shop.run("request", "send", "bank", "bob", "[2]", "--id", "nightly", *wait)
        assert (other.status, "another request was sent under this id" in other.out) == (1, True)
    assert shop.json("request", "list")[1]["count"] == 1
    by_prefix = shop.run("request", "cancel", first[:16])
    assert (by_prefix.status, first in by_prefix.out) == (0, True)


def test_a_request_to_a_swarm_that_is_misspelt_or_ones_own_says_what_to_do(shop: Shell) -> None:
    misspelt = shop.run("request", "send", "bnk", "bob", "1")
    assert (misspelt.status, "'interlock swarm list' has those that are" in misspelt.out) == (
        3,
        True,
    )
    own = shop.run("request", "send", "shop", "bob", "1")
    assert (own.status, "shop is this swarm itself" in own.err) == (2, True)


def test_a_worker_that_serves_is_found_by_its_ability_and_asked_if_any_swarm_will_do(
    shop: Shell,
) -> None:
    words = ("--can", "audit", "--store", "bank.db", "--agent", "bob", "--", "cat")
    with shop.start("request", "serve", *words) as serving:
        assert serving.stderr is not None
        assert "serving" in serving.stderr.readline()
        until(lambda: "can:audit" in shop.run("agent", "list", "--store", "bank.db").out)
        shop.run("swarm", "sync", "--store", "bank.db")
        found = shop.json("swarm", "discover", "audit", "--fresh")[1]
        assert [each["agent"] for each in found["agents"]] == ["bob"]
        asked = shop.run("request", "send", "*", "can:audit", "[1]", "--wait", "20s", "-q")
        serving.terminate()
        serving.communicate(timeout=20)
    assert (asked.status, asked.out) == (0, "[1]\n")


def test_serve_refuses_a_program_that_cannot_be_run_before_it_claims_anything(shop: Shell) -> None:
    done = shop.run("request", "serve", "--can", "audit", "--", "no-such-program")
    assert (done.status, done.err.count("\n")) == (127, 1)
    assert "check its name and PATH" in done.err


def test_bytes_that_are_no_text_are_an_error_and_never_a_changed_result(shop: Shell) -> None:
    words = ("--store", "bank.db", "--agent", "bob", "--", "printf", r"\377\000")
    with shop.start("request", "serve", *words) as serving:
        asked = shop.run("request", "send", "bank", "bob", "1", "--wait", "20s")
        serving.terminate()
        serving.communicate(timeout=20)
    assert (asked.status, "bytes that are no text" in asked.out) == (1, True)


def test_a_refused_key_says_how_to_allow_it_and_the_asker_hears_no_claim_of_intake(
    shop: Shell,
) -> None:
    shop.run("swarm", "deny", "shop", "--store", "bank.db")
    id_ = shop.run("request", "send", "bank", "bob", "1", "-q").out.strip()
    shop.run("maintain", "--store", "bank.db")
    kept = shop.json("quarantine", "list", "--store", "bank.db")[1]["messages"][0]
    said = shop.run("quarantine", "show", kept["id"], "--store", "bank.db").out
    assert f"interlock swarm allow NAME --key {kept['key']}" in said
    why = shop.run("why", id_).out
    assert "has taken it in, or has refused it" in why
    assert "ask its operator whether bank allows shop" in why


@pytest.mark.parametrize("wait", ["send", "result"])
def test_an_interrupted_wait_says_how_to_ask_for_the_result_later(shop: Shell, wait: str) -> None:
    words = ["send", "bank", "bob", "1", "--id", "nightly"]
    if wait == "result":
        shop.run("request", *words)
        words = ["result", "nightly"]
    process = shop.start("request", *words, "--wait", "60s")
    with interlock.connect(shop.folder / "shop.db") as fleet:
        until(lambda: len(fleet.requests.list()) == 1)
    until(lambda: _watches(process))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the request goes on; for its result: interlock request result" in errors


def _watches(process: subprocess.Popen[str]) -> bool:
    """Whether a command sleeps until something changes: it has opened the bus to watch it."""
    folder = f"/proc/{process.pid}/fd"
    opened = list[str]()
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed meanwhile
            opened.append(os.readlink(f"{folder}/{name}"))
    return any("bus.db" in each for each in opened) and _state(process.pid) == "S"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


TREE = "sleep 60 & echo $$ $! >&2; wait"


def test_a_second_signal_ends_the_programs_with_all_they_started_and_releases_the_claims(
    shop: Shell,
) -> None:
    shop.run("request", "send", "bank", "can:sleep", "1")
    shop.exported |= {"INTERLOCK_STORE": "bank.db", "INTERLOCK_AGENT": "bob"}
    process = shop.start("request", "serve", "--can", "sleep", "--", "sh", "-c", TREE)
    assert process.stderr is not None
    assert "serving as bob" in process.stderr.readline()
    pids = [int(word) for word in process.stderr.readline().split()]
    process.terminate()
    assert "a second signal releases them" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    until(lambda: all(map(gone, pids)))
    states = [each["state"] for each in shop.json("task", "list")[1]["tasks"]]
    assert states == ["pending"]
