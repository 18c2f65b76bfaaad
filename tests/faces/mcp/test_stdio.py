"""``interlock mcp`` as a real process behind pipes, as hosts start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from tests.faces.mcp.host import Host, noisy
from tests.faces.shell import COMMAND, PATIENCE, Shell, until

from interlock.faces.mcp.stdio import LONGEST_LINE, lines

Start = Callable[..., Host]


@pytest.fixture
def start(ada: Shell) -> Iterator[Start]:
    """Starts servers for ada, and ends them."""
    hosts: list[Host] = []

    def begun(*options: str, **given: Callable[[], list[str]]) -> Host:
        hosts.append(Host(ada, *options, **given))
        return hosts[-1]

    yield begun
    for host in hosts:
        host.close()


def _holder(shell: Shell, lock: str) -> str:
    return str(shell.json("lock", "show", lock)[1]["holder"] or "")


def _agents(shell: Shell) -> list[str]:
    return [each["state"] for each in shell.json("agent", "list")[1]["agents"]]


def test_a_server_joins_at_the_first_call_and_leaves_at_the_end_of_its_input(
    ada: Shell, start: Start
) -> None:
    host = start()
    assert host.ask("initialize", protocolVersion="2025-06-18")["result"]["serverInfo"]
    assert len(host.ask("tools/list")["result"]["tools"]) == 10
    assert _agents(ada) == [], "a host may start a server that nobody uses"
    assert "acquired merge" in host.call("lock_acquire", lock="merge")
    assert _holder(ada, "merge") == "ada"
    assert host.end() == 0
    assert _holder(ada, "merge") == ""
    assert _agents(ada) == []
    assert not host.errors


def test_a_question_about_a_guard_looks_at_this_host(ada: Shell, start: Start) -> None:
    """The model runs here, as a command of its user would; over HTTP nothing is run."""
    ran = ada.folder / "ran"
    ada.exported["INTERLOCK_GUARDS_DIR"] = f"{ada.folder}/allowed"
    (ada.folder / "guards.toml").write_text(
        f"[guard.ran]\nwhen = {{ command = ['touch', '{ran}'] }}"
    )
    for verb in ("define", "allow"):
        assert ada.run("guard", verb, "guards.toml").status == 0
    assert "passed" in start("--tools", "guard").call("guard_check", name=["ran"])
    assert ran.exists()


def test_requests_that_come_before_the_end_of_the_input_are_answered(ada: Shell) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    asked["params"] = {"name": "task_add", "arguments": {"task": "t1"}}
    done = subprocess.run(
        [*COMMAND, "mcp"],
        input=json.dumps(asked).encode(),  # without a line break
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert b"published t1" in done.stdout


def test_a_waiting_call_holds_up_neither_ping_nor_cancel(ada: Shell, start: Start) -> None:
    one, two = start(), start("--agent", "bob")
    two.call("lock_acquire", lock="merge")
    waiting = one.begin_call("lock_acquire", lock="merge", wait="50s")
    until(lambda: ada.json("lock", "show", "merge")[1]["waiters"])
    assert one.ask("ping")["result"] == {}
    assert "published t1" in one.call("task_add", task="t1"), "nor other calls"
    one.say("notifications/cancelled", requestId=waiting, reason="the user gave up")
    until(lambda: not ada.json("lock", "show", "merge")[1]["waiters"])
    two.call("lock_release", lock="merge")
    assert _holder(ada, "merge") == ""


def test_a_wait_ends_with_the_input(ada: Shell, start: Start) -> None:
    one, two = start(), start("--agent", "bob")
    two.call("lock_acquire", lock="merge")
    one.begin_call("lock_acquire", lock="merge", wait="50s")
    until(lambda: ada.json("lock", "show", "merge")[1]["waiters"])
    assert one.end() == 0
    assert not ada.json("lock", "show", "merge")[1]["waiters"]


def test_a_cycle_through_two_calls_of_a_connection_is_found(ada: Shell, start: Start) -> None:
    """A thread has ``a`` and does nothing, another one waits for ``b``: they are one caller."""
    assert ada.run("lock", "acquire", "c", "--agent", "carol").status == 0
    one, two = start(), start("--agent", "bob")
    one.call("lock_acquire", lock="a")
    two.call("lock_acquire", lock="b")
    busy = one.begin_call("lock_acquire", lock="c", wait="50s")
    until(lambda: ada.json("lock", "show", "c")[1]["waiters"])
    waiting = one.begin_call("lock_acquire", lock="b", wait="50s")
    until(lambda: ada.json("lock", "show", "b")[1]["waiters"])
    assert ada.run("lock", "break", "c", "--reason", "x", "--agent", "maria").status == 0
    assert one.answer(busy)["result"]
    assert "deadlock a: waiting would never end" in two.call("lock_acquire", lock="a", wait="50s")
    two.call("lock_release", lock="b")
    assert "acquired b" in one.answer(waiting)["result"]["content"][0]["text"]


def test_two_servers_under_one_name_are_two_holders(ada: Shell, start: Start) -> None:
    one, two = start(), start()
    assert "acquired merge" in one.call("lock_acquire", lock="merge")
    assert "busy merge: held by ada" in two.call("lock_acquire", lock="merge")
    assert "not owner" in two.call("lock_release", lock="merge")
    assert one.end() == 0
    assert "acquired merge" in two.call("lock_acquire", lock="merge")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_session(ada: Shell, start: Start, signum: signal.Signals) -> None:
    host = start()
    host.call("lock_acquire", lock="merge")
    host.process.send_signal(signum)
    assert host.process.wait(PATIENCE) == 128 + signum
    assert _holder(ada, "merge") == ""


def test_the_session_of_a_killed_server_expires(ada: Shell, start: Start) -> None:
    host = start("--ttl", "1s")
    host.call("lock_acquire", lock="merge")
    assert "acquired" in host.call("lock_acquire", lock="other")
    host.process.kill()
    until(lambda: ada.run("lock", "acquire", "merge", "--agent", "bob").status == 0)


def test_a_server_beats_while_it_is_idle(ada: Shell, start: Start) -> None:
    host = start("--ttl", "1s")
    host.call("lock_acquire", lock="merge")
    busy = ada.run("lock", "acquire", "merge", "--wait", "1.5s", "--agent", "bob")
    assert busy.status == 1
    assert "ada is your own name" in host.call("lock_acquire", lock="merge")
    assert "released merge" in host.call("lock_release", lock="merge")


def test_nothing_but_messages_reaches_the_output(start: Start) -> None:
    host = start(command=noisy)
    assert "acquired merge" in host.call("lock_acquire", lock="merge")
    assert host.ask("ping")["result"] == {}
    assert host.end() == 0
    until(lambda: b"echoed\n" in host.errors)
    assert {b"printed\n", b"written\n", b"echoed\n"} == set(host.errors)


def test_a_host_that_writes_nonsense_is_answered_and_the_server_goes_on(start: Start) -> None:
    host = start()
    for data, code in (
        (b"GET / HTTP/1.1\n", -32700),
        (b"\x00\xff\xfe\n", -32700),
        (b'{"jsonrpc":' + b"[" * 1_000_000 + b"\n", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "' + b"x" * LONGEST_LINE, None),
        (b'"}\n', -32600),
    ):
        host.write(data)
        if code is not None:
            assert host.answer(None)["error"]["code"] == code
    host.write(b"\n \n\r\n")
    assert host.ask("tools/call", name="rm_rf")["error"]["code"] == -32602
    assert host.ask("ping")["result"] == {}


def test_a_reader_that_is_gone_is_no_crash(ada: Shell) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    asked["params"] = {"name": "lock_acquire", "arguments": {"lock": "merge"}}
    with subprocess.Popen(
        [*COMMAND, "mcp"],
        cwd=ada.folder,
        env=ada.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()
        assert b"acquired merge" in server.stdout.readline()
        server.stdout.close()
        assert server.communicate(b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')[1] == b""
    assert server.returncode == 0
    assert _holder(ada, "merge") == ""


def test_a_server_without_a_store_starts_and_says_what_to_do(bare: Shell) -> None:
    host = Host(bare)
    assert host.ask("tools/list")["result"]["tools"]
    assert "run 'interlock init'" in host.call("lock_acquire", lock="merge")
    assert bare.run("init").status == 0
    assert "acquired merge" in host.call("lock_acquire", lock="merge")
    host.close()


def test_wrong_options_are_told_before_the_server_starts(ada: Shell) -> None:
    for options, said in (
        (("--tools", "everything"), "there is no tool 'everything'"),
        (("--session", "ses_1"), "leave --session out"),
        (("--agent", "all"), "no agent can be called 'all'"),
        (("--ttl", "never"), "never"),
    ):
        done = ada.run("mcp", *options)
        assert done.status == 2
        assert said in done.err


def test_lines_are_split_wherever_reads_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"ab\ncd\n" + b"x" * 20 + b"\nef")
    os.close(writer)
    assert list(lines(reader, longest=10)) == [b"ab", b"cd", None, b"ef"]
    os.close(reader)
