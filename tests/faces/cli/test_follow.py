"""Commands that wait for messages, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest
from tests.faces.shell import COMMAND, Here, Shell, until

from interlock.faces.cli.connect import staying
from interlock.faces.cli.parse import parse
from interlock.registry import find


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def follow(shell: Shell) -> subprocess.Popen[str]:
    return shell.start("subscribe", "build", "--follow", "--json", "--agent", "bob")


def alert(shell: Shell, number: int) -> None:
    assert shell.run("alert", "build", str(number)).status == 0


def unread(shell: Shell) -> list[Any]:
    found = shell.json("inbox", "--agent", "bob")[1].get("messages", [])
    return [each["data"] for each in found]


def test_a_wait_is_woken_by_what_is_sent(ada: Shell) -> None:
    waiter = ada.start("wait", "--json", "--agent", "bob")
    until(lambda: ada.run("send", "bob", "hello").status == 0, "bob's mailbox")
    came = line(waiter)
    assert (came["outcome"], came["messages"][0]["data"]) == ("arrived", "hello")
    assert waiter.wait(60) == 0
    assert unread(ada) == ["hello"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_alerts_are_followed_until_it_is_stopped(
    ada: Shell, number: signal.Signals, status: int
) -> None:
    ada.run("subscribe", "build", "--agent", "bob")
    ada.run("send", "bob", "mail is left for others")
    alert(ada, 1)
    follower = follow(ada)
    first = line(follower)
    assert (first["kind"], first["type"], first["from"], first["data"]) == (
        "alert", "build", "ada", 1,
    )  # fmt: skip
    alert(ada, 2)
    assert line(follower)["data"] == 2
    until(lambda: unread(ada) == ["mail is left for others"], "the acknowledgement")
    follower.send_signal(number)
    assert follower.communicate() == ("", "")
    assert follower.returncode == status


def test_what_was_written_is_acknowledged_though_the_next_cannot_be_written(ada: Shell) -> None:
    ada.run("subscribe", "build", "--agent", "bob")
    alert(ada, 1)
    large = "x" * 200_000  # more than a pipe takes
    assert ada.run("alert", "build", "-", input=json.dumps(large)).status == 0
    follower = follow(ada)
    until(lambda: unread(ada) == [large], "the acknowledgement of what was written")
    follower.kill()
    follower.communicate()


def test_a_follower_that_is_killed_misses_nothing(ada: Shell) -> None:
    ada.run("subscribe", "build", "--agent", "bob")
    seen: list[int] = []
    for number in range(1, 7):
        alert(ada, number)
        if number % 2:
            follower = follow(ada)
            seen.append(line(follower)["data"])
            follower.kill()
            assert follower.stdout is not None
            seen += [json.loads(each)["data"] for each in follower.stdout]
    follower = follow(ada)
    while 6 not in seen:
        seen.append(line(follower)["data"])
    assert set(seen) == set(range(1, 7))
    assert [seen.index(number) for number in range(1, 7)] == sorted(
        seen.index(number) for number in range(1, 7)
    )
    until(lambda: unread(ada) == [], "the acknowledgement")


def test_a_reader_that_goes_away_ends_it_and_what_it_did_not_take_is_kept(ada: Shell) -> None:
    ada.run("subscribe", "build", "--agent", "bob")
    follower = ada.start("subscribe", "build", "--follow", "--agent", "bob")
    assert follower.stdout is not None
    alert(ada, 1)
    assert "alert build from ada" in follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait(60) == 141
    alert(ada, 2)
    assert unread(ada)[-1] == 2


@pytest.mark.parametrize("words", [("inbox", "--ack"), ("subscribe", "build", "--follow")])
def test_what_could_not_be_shown_is_not_acknowledged(ada: Shell, words: tuple[str, ...]) -> None:
    ada.run("subscribe", "build", "--agent", "bob")
    alert(ada, 1)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*COMMAND, *words, "--agent", "bob"],
            cwd=ada.folder,
            env=ada.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 4
    assert unread(ada) == [1]


@pytest.mark.usefixtures("lively")
def test_a_session_lives_while_its_agent_waits(here: Here) -> None:
    session = here.json("agent", "join", "--ttl", "10s", "--agent", "bob")[1]["session"]
    with staying(parse(find("wait"), ["--session", session])):
        left: list[float] = []

        def renewed() -> bool:
            left.append(here.json("agent", "show", "bob")[1]["agents"][0]["expires_in"])
            return left[-1] > min(left)

        until(renewed, "a beat")


def test_a_wait_begins_no_session(here: Here) -> None:
    assert here.run("wait", "--timeout", "1ms", "--agent", "bob").status == 1
    assert here.json("agent", "show", "bob")[0] == 1
