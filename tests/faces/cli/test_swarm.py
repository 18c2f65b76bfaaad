"""Keys and swarms at the command line: each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.faces.shell import Here, Shell, until

from interlock.client_context import StoreOpener


@pytest.fixture
def keyed(here: Here, tmp_path: Path) -> Here:
    here.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "keys")
    return here


@pytest.fixture
def shop(keyed: Here) -> Here:
    """A home that is registered as the shop."""
    assert keyed.run("key", "new", "shop").status == 0
    assert keyed.run("swarm", "register", "shop", "--bus", "bus.db", "--key", "shop").status == 0
    return keyed


def register(shell: Shell, name: str) -> str:
    """Another home on the same bus; returns the fingerprint of its key."""
    print_ = shell.run("key", "new", name, "-q").out.strip()
    words = ("--bus", "bus.db", "--key", name, "--store", f"{name}.db")
    assert shell.run("swarm", "register", name, *words).status == 0
    return print_


def test_a_key_is_made_listed_and_rotated_without_a_store(bare: Shell, tmp_path: Path) -> None:
    bare.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "keys")
    made = bare.json("key", "new", "ops")[1]
    assert (made["outcome"], made["path"]) == ("made", str(tmp_path / "keys" / "ops"))
    assert bare.run("key", "new", "ops").status == 2
    rotated = bare.json("key", "rotate", "ops")[1]
    assert (rotated["outcome"], rotated["old_fingerprint"]) == ("rotated", made["fingerprint"])
    listed = bare.json("key", "list")[1]
    assert [(each["key"], each["retired"]) for each in listed["keys"]] == [
        ("ops", False),
        (rotated["old"], True),
    ]
    text = bare.run("key", "list").out
    assert made["fingerprint"] in text
    assert "replaced" in text


def test_an_old_key_is_due_for_rotation_and_doctor_says_so(keyed: Here, tmp_path: Path) -> None:
    keyed.run("key", "new", "ops")
    os.utime(tmp_path / "keys" / "ops", (1, 1))
    assert "interlock key rotate ops" in keyed.run("key", "list").out
    assert "warn keys: ops is" in keyed.run("doctor").out
    keyed.run("key", "rotate", "ops")
    assert "ok   keys: 1, none older than 90 days" in keyed.run("doctor").out


def test_a_home_that_is_no_swarm_says_how_to_become_one(keyed: Here) -> None:
    for words in (("list",), ("sync",), ("discover", "paint")):
        done = keyed.run("swarm", *words)
        assert (done.status, "swarm register" in done.out) == (1, True)
    assert keyed.json("key", "revoke", "SHA256:" + "A" * 43) == (1, {"outcome": "not_registered"})


def test_two_homes_meet(shop: Here) -> None:
    bank = register(shop, "bank")
    listed = shop.json("swarm", "list")[1]
    assert [(each["swarm"], each["role"]) for each in listed["swarms"]] == [
        ("shop", "own"),
        ("bank", "stranger"),
    ]
    status, allowed = shop.json("swarm", "allow", "bank", "--key", bank)
    assert (status, allowed["outcome"], allowed["entry"]) == (0, "allowed", 1)
    shop.run("agent", "join", "--agent", "bob", "--can", "paint", "--store", "bank.db")
    assert shop.json("swarm", "sync", "--store", "bank.db")[1]["published"]
    assert shop.json("swarm", "discover", "paint")[1]["agents"] == []
    found = shop.json("swarm", "discover", "paint", "--fresh")[1]
    assert found["agents"] == [{"swarm": "bank", "agent": "bob", "load": 0}]
    assert "bob" in shop.run("swarm", "discover", "paint").out
    assert shop.run("swarm", "deny", "bank", "no more").out == "denied bank\n"
    assert shop.run("swarm", "deny", "bank").out == "denied bank before\n"
    assert shop.json("swarm", "deny", "mafia")[0] == 1


def test_requests_are_explained_and_audited(shop: Here, tmp_path: Path) -> None:
    print_ = register(shop, "bank")
    assert shop.run("swarm", "allow", "bank", "--key", print_).status == 0
    sent = shop.json("request", "send", "bank", "can:sum", "[1]", "--citations", "doc:1")[1]
    assert shop.run("request", "send", "nobody", "bob").status == 3
    listed = shop.run("request", "list").out
    assert "attempt 2 of 4 is sent in" in listed
    status, why = shop.json("why", sent["request"])
    assert (status, why["state"], why["by"]) == (0, "open", "bank")
    assert "step 3 of 10" in why["because"]
    assert "posted" in shop.run("record", "explain", sent["request"]).out
    held = shop.run("request", "audit", "--action", "hold").out
    assert "swarm_not_authorized" in held
    assert shop.run("request", "audit", "--day", "someday").status == 2
    folder = tmp_path / "audit"
    assert shop.run("request", "audit", "--out", str(folder)).out.startswith("written 2 lines")
    (file,) = folder.glob("*.jsonl")
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["action"], first["citations"]) == ("SHARE", ["doc:1"])
    assert (second["action"], second["to_swarm"]) == ("HOLD", "nobody")
    counters = shop.run("observe", "--counts").out
    assert "requests_cross_swarm_posted_total         1" in counters
    assert "ok   requests: 1 open" in shop.run("doctor").out


def test_a_home_is_not_its_own_bus(keyed: Here) -> None:
    keyed.run("key", "new", "shop")
    words = ("--bus", "home.db", "--store", "home.db", "--key", "shop")
    refused = keyed.run("swarm", "register", "shop", *words)
    assert (refused.status, "the bus is this home itself" in refused.err) == (2, True)
    assert "not registered" in keyed.run("swarm", "sync", "--store", "home.db").out


def test_the_key_of_a_shared_value_is_another_than_the_key_that_signs(shop: Here) -> None:
    shop.run("key", "new", "ada")
    assert shop.json("swarm", "share", "prices", "3", "--key", "ada")[1]["key"] == "prices"
    assert shop.run("swarm", "shared", "prices", "-q").out == "3\n"


def test_first_use_says_that_the_key_is_to_be_compared(shop: Here) -> None:
    bank = register(shop, "bank")
    done = shop.run("swarm", "allow", "bank", "--first-use")
    assert done.out.startswith(f"allowed bank: {bank} is trusted because it was read first")
    assert shop.run("swarm", "allow", "bank").status == 2


def test_trust_shows_numbers_and_forgives(shop: Here) -> None:
    assert "no peers yet" in shop.run("swarm", "trust").out
    register(shop, "bank")
    shop.run("swarm", "allow", "bank", "--first-use")
    peer = shop.json("swarm", "trust", "bank")[1]["peers"][0]
    assert (peer["standing"]["samples"], peer["breaker"]["state"]) == (0, "closed")
    assert "limit 10 %" in shop.run("swarm", "trust").out
    assert shop.json("swarm", "trust", "bank", "--forgive")[1]["outcome"] == "forgiven"


def test_limits_of_a_peer_are_set_and_shown(shop: Here) -> None:
    print_ = register(shop, "bank")
    shop.run("swarm", "allow", "bank", "--key", print_)
    changed = shop.run("swarm", "allow", "bank", "--rate", "500/30m", "--queue", "4000")
    assert changed.status == 0
    assert "500 requests in 30 min for each agent, 4000 may wait" in changed.out
    assert "500 requests in 30 min" in shop.run("swarm", "trust", "bank").out
    wrong = shop.run("swarm", "allow", "bank", "--rate", "often")
    assert (wrong.status, "200/1h" in wrong.err) == (2, True)


def test_a_revoked_key_is_refused_with_exit_status_3(shop: Here) -> None:
    bank = register(shop, "bank")
    shop.run("swarm", "allow", "bank", "--key", bank)
    done = shop.run("key", "revoke", bank, "lost", "--store", "bank.db")
    assert "has no key now" in done.out
    assert shop.json("swarm", "sync", "--force")[1]["revoked"] == [bank]
    status, answer = shop.json("swarm", "allow", "bank", "--key", bank)
    assert (status, answer["outcome"]) == (3, "revoked_key")
    assert "pin its new key" in shop.run("health").out


def test_a_bus_that_is_gone_is_reported_and_the_home_works(shop: Here, tmp_path: Path) -> None:
    for path in tmp_path.glob("bus.db*"):
        if path.is_file():
            path.unlink()
    done = shop.run("swarm", "sync")
    assert done.status == 1
    assert "not synced shop: the bus does not answer" in done.out
    assert "warn swarm: the bus does not answer" in shop.run("doctor").out
    assert shop.run("lock", "acquire", "merge").status == 0
    other = shop.run("swarm", "register", "shop", "--bus", "nowhere/bus.db", "--key", "shop")
    assert other.status == 4


def test_the_password_of_a_bus_is_never_shown() -> None:
    place = StoreOpener.place("redis://user:secret@example.com/0?ns=bus")
    assert place == (
        "redis://user:secret@example.com/0?ns=bus",
        "redis://example.com/0?ns=bus",
    )


def test_a_link_stays_on_the_bus_until_it_is_stopped(ada: Shell, tmp_path: Path) -> None:
    ada.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "keys")
    ada.run("key", "new", "shop")
    ada.run("swarm", "register", "shop", "--bus", "bus.db", "--key", "shop")
    link = ada.start("swarm", "sync", "--follow", "--json")
    assert link.stdout is not None
    assert json.loads(link.stdout.readline())["version"] == 1
    ada.run("key", "rotate", "shop")
    ada.run("swarm", "allow", "bank", "--first-use")
    until(lambda: len(ada.json("swarm", "list")[1]["swarms"][0]["keys"]) == 2, "the rotation")
    link.send_signal(signal.SIGTERM)
    assert link.wait(60) == 143


def test_an_agent_on_a_host_without_the_key_of_the_swarm_signs_with_its_own(
    shop: Here, tmp_path: Path
) -> None:
    shop.run("swarm", "allow", "bank", "--key", register(shop, "bank"))
    print_ = shop.json("swarm", "list")[1]["swarms"][0]["keys"][0]["fingerprint"]
    shop.run("swarm", "allow", "shop", "--key", print_, "--store", "bank.db")
    operator = dict(shop.exported)
    shop.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "carl-keys")
    asks = ("request", "send", "bank", "can:audit", "[1]", "--agent", "carl")
    without = shop.run(*asks)
    assert (without.status, "interlock key new NAME" in without.err) == (3, True)
    shop.run("key", "new", "carl")
    joined = shop.run("agent", "join", "--agent", "carl", "--key", "carl")
    assert "INTERLOCK_KEY=carl" in joined.out
    shop.exported.update(operator)
    assert "published" in shop.run("swarm", "sync").out
    shop.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "carl-keys")
    assert shop.run(*asks, "--key", "carl").status == 0
    shop.run("maintain", "--store", "bank.db")
    listed = shop.json("request", "list", "--received", "--store", "bank.db")[1]
    assert [each["agent"] for each in listed["requests"]] == ["carl"]
    revoked = shop.json("key", "revoke", "carl", "--agent", "carl")[1]
    assert (revoked["outcome"], revoked["agent"]) == ("revoked", "carl")
    again = shop.run(*asks, "--key", "carl")
    assert (again.status, "revoked, permanently" in again.err) == (3, True)
