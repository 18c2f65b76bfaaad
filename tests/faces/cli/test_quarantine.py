"""The quarantine at the command line: refused messages are listed, shown, released and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faces.shell import Here

BANK = ("--store", "bank.db", "--agent", "bob")


@pytest.fixture
def swarms(here: Here, tmp_path: Path) -> Here:
    """A shop, and a bank that takes one request of an agent in an hour; two were sent."""
    here.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "keys")
    prints = {}
    for name, more in (("shop", ()), ("bank", BANK)):
        prints[name] = here.run("key", "new", name, "-q").out.strip()
        words = ("swarm", "register", name, "--bus", "bus.db", "--key", name)
        assert here.run(*words, *more).status == 0
    assert here.run("swarm", "allow", "bank", "--key", prints["bank"]).status == 0
    limited = ("swarm", "allow", "shop", "--key", prints["shop"], "--rate", "1/1h")
    assert here.run(*limited, *BANK).status == 0
    for number in range(2):
        assert here.run("request", "send", "bank", "can:audit", str(number)).status == 0
    assert here.run("maintain", *BANK).status == 0
    return here


def test_a_refused_message_is_listed_and_shown_with_its_reason_and_payload(swarms: Here) -> None:
    listed = swarms.json("quarantine", "list", *BANK)[1]
    (kept,) = listed["messages"]
    assert (kept["reason"], kept["swarm"], kept["releasable"]) == ("limited", "shop", True)
    text = swarms.run("quarantine", "list", *BANK).out
    assert "limited" in text
    assert kept["id"] in text
    shown = swarms.json("quarantine", "show", kept["id"], *BANK)[1]
    assert (shown["payload"], shown["detail"]) == (1, kept["detail"])
    assert "made more requests than 1 in 3600 s" in shown["detail"]
    assert swarms.run("quarantine", "show", "qua_1", *BANK).status == 1


def test_a_released_message_becomes_a_task_and_leaves(swarms: Here) -> None:
    (kept,) = swarms.json("quarantine", "list", *BANK)[1]["messages"]
    status, done = swarms.json("quarantine", "release", kept["id"], *BANK)
    assert (status, done["outcome"], done["task"]) == (0, "released", f"{kept['request']}@shop")
    assert swarms.json("quarantine", "list", *BANK)[1]["messages"] == []
    tasks = swarms.json("task", "list", *BANK)[1]["tasks"]
    assert len(tasks) == 2
    again = swarms.run("quarantine", "release", kept["id"], *BANK)
    assert again.status == 1
    assert "unknown" in again.out + again.err


def test_a_dropped_message_is_gone_and_its_sender_hears_nothing(swarms: Here) -> None:
    (kept,) = swarms.json("quarantine", "list", *BANK)[1]["messages"]
    status, done = swarms.json("quarantine", "drop", kept["id"], *BANK)
    assert (status, done["dropped"]) == (0, [kept["id"]])
    assert swarms.json("quarantine", "list", *BANK)[1]["messages"] == []
    assert len(swarms.json("task", "list", *BANK)[1]["tasks"]) == 1
    assert swarms.run("quarantine", "drop", kept["id"], *BANK).status == 1
    assert swarms.run("quarantine", "drop", *BANK).status == 2


def test_health_says_that_messages_are_in_quarantine(swarms: Here) -> None:
    found = swarms.run("health", *BANK[:2])
    assert found.status == 1
    assert "quarantine: 1 messages of other swarms were refused (1 limited)" in found.out
