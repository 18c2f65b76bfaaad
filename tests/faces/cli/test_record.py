from __future__ import annotations

import json
import signal

from tests.faces.shell import Shell


def test_the_record_says_who_did_what(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge", "--trace", "t-1")
    ada.run("lock", "release", "merge", "--token", str(grant["token"]))
    _, log = ada.json("record", "log")
    said = [
        (line["agent"], line["verb"], line["outcome"], line["thing"]) for line in log["entries"]
    ]
    assert said == [
        ("ada", "lock.acquire", "acquired", "lock/merge"),
        ("ada", "lock.release", "released", "lock/merge"),
    ]
    assert log["entries"][0]["trace"] == "t-1"
    first = log["entries"][0]["revision"]
    assert len(ada.json("record", "log", "--after", str(first))[1]["entries"]) == 1
    assert len(ada.json("record", "log", "--limit", "1")[1]["entries"]) == 1
    lines = ada.run("record", "log").out.splitlines()
    assert len(lines) == 2
    assert "ada" in lines[0]
    assert "s ago" in lines[0]


def test_following_shows_what_happens_until_stopped(ada: Shell) -> None:
    ada.run("lock", "acquire", "first")
    follower = ada.start("record", "log", "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["thing"] == "lock/first"
    for name in ("second", "third"):
        ada.run("lock", "acquire", name)
        assert json.loads(follower.stdout.readline())["thing"] == f"lock/{name}"
    follower.send_signal(signal.SIGINT)
    assert follower.communicate() == ("", "")
    assert follower.returncode == 130
