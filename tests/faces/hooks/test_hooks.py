"""Hooks, driven as the hosts document it: an event as JSON in, the host's JSON out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faces.hooks.hosts import (
    ONE,
    TWO,
    denied,
    edit,
    event,
    git,
    repository,
    said,
    send,
    shop,
)
from tests.faces.shell import Shell

import interlock
from interlock.faces.hooks import notices, writes
from interlock.faces.hooks.actions import IN_A_ROW
from interlock.faces.hooks.hosts import HOSTS
from interlock.faces.hooks.notices import MOST
from interlock.faces.hooks.primer import TOKENS, tokens

__all__ = ["shop"]
FIRST = "claude-55556666"
"""The agent of the first session."""


def fleet(root: Path, agent: str = "ada") -> interlock.client.Fleet:
    return interlock.connect(f"{root}/.interlock/store.db", agent=agent)


# Claude Code.


def test_an_edit_of_a_reserved_file_is_denied_with_all_that_the_model_needs(shop: Path) -> None:
    with fleet(shop) as ada:
        assert ada.reservations.reserve("src/*.py", ttl="10m", reason="new parser")
        reason = denied(send("claude", edit(shop, "src/a.py")))
        for word in ("src/a.py", "ada", "new parser", "ago", "--on-conflict queue", "query"):
            assert word in reason
        assert tokens(reason) <= 300
        assert send("claude", edit(shop, "docs/b.md"))[0] == {}
        ada.reservations.unreserve(all=True)
        assert send("claude", edit(shop, "src/a.py"))[0] == {}


def test_an_agent_whose_budget_is_used_up_edits_nothing_more(shop: Path) -> None:
    with fleet(shop, "lead") as lead:
        assert lead.budgets.set(f"agent/{FIRST}", tokens=100)
        assert not denied(send("claude", edit(shop, "src/a.py")))
        assert lead.budgets.count(agent=FIRST, output=150)
    assert "150 of 100 tokens are spent" in denied(send("claude", edit(shop, "src/a.py")))
    assert not denied(send("claude", edit(shop, "src/b.py", TWO)))


def test_the_first_agent_that_edits_a_file_has_it_until_it_stops(shop: Path) -> None:
    assert not denied(send("claude", edit(shop, "src/a.py")))
    assert not denied(send("claude", edit(shop, "src/a.py")))
    assert FIRST in denied(send("claude", edit(shop, "src/a.py", TWO)))
    assert send("claude", event(shop, "Stop", stop_hook_active=False))[0] == {}
    assert not denied(send("claude", edit(shop, "src/a.py", TWO)))


def test_an_agent_that_waits_for_a_file_learns_that_it_has_it(shop: Path) -> None:
    calls = [{"tool_name": "Bash", "tool_input": {"command": "ls"}}]
    with fleet(shop) as ada, fleet(shop, FIRST) as own:
        assert ada.reservations.reserve("src/*.py", ttl="10m")
        queued = own.reservations.reserve("src/a.py", ttl="10m", on_conflict="queue")
        assert isinstance(queued, interlock.ReservationQueued)
        assert not said(send("claude", event(shop, "PostToolBatch", tool_calls=calls)))
        ada.reservations.unreserve(all=True)
    told = said(send("claude", event(shop, "PostToolBatch", tool_calls=calls)))
    assert "reserved for you now for 10 min: src/a.py" in told
    assert not said(send("claude", event(shop, "PostToolBatch", tool_calls=calls)))


def test_a_sub_agent_is_an_agent_of_its_own(shop: Path) -> None:
    sub: dict[str, Any] = {"agent_id": "agent_01ABC", "agent_type": "code-reviewer"}
    send("claude", event(shop, "SubagentStart", **sub))
    send("claude", event(shop, "PostToolBatch", tool_calls=[], **sub))
    assert not denied(send("claude", edit(shop, "src/a.py", **sub)))
    reason = denied(send("claude", edit(shop, "src/a.py")))
    assert f"{FIRST}/code-reviewer-" in reason
    assert any((shop.parent / "cache/interlock/hooks").iterdir())
    send("claude", event(shop, "SubagentStop", stop_hook_active=False, **sub))
    assert not denied(send("claude", edit(shop, "src/a.py")))
    with fleet(shop) as ada:  # it is gone, and its file with it
        assert not [each for each in ada.agents.list() if "/code-reviewer-" in each.agent]
    assert not any((shop.parent / "cache/interlock/hooks").iterdir())


def test_what_counts_is_the_target_not_the_working_directory(shop: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "bank")
    with fleet(shop) as ada:
        ada.reservations.reserve("src", ttl=600)
        there = event(other, "PreToolUse", tool_name="Write", tool_use_id="t")
        assert denied(send("claude", there | {"tool_input": {"file_path": f"{shop}/src/new.py"}}))
        here = edit(shop, "x") | {"tool_input": {"file_path": f"{other}/src/a.py"}}
        assert not denied(send("claude", here))
        outside = edit(shop, "x") | {"tool_input": {"file_path": f"{tmp_path}/notes.md"}}
        assert not denied(send("claude", outside))


def test_a_file_has_one_name_whichever_link_leads_to_it(shop: Path, tmp_path: Path) -> None:
    (shop / "lib").symlink_to("src")
    (shop / "link.py").symlink_to("src/a.py")
    (tmp_path / "other").symlink_to(shop)
    (tmp_path / "far.py").symlink_to(shop / "src/a.py")
    assert not denied(send("claude", edit(shop, "lib/a.py")))
    for path in ("src/a.py", "lib/a.py", "link.py"):
        assert FIRST in denied(send("claude", edit(shop, path, TWO)))
        assert FIRST in denied(send("claude", edit(tmp_path / "other", path, TWO)))
    assert FIRST in denied(send("claude", edit(tmp_path, "far.py", TWO)))
    send("claude", event(shop, "Stop", stop_hook_active=False))
    assert not denied(send("claude", edit(shop, "link.py")))  # a tool may write it or its target
    for path in ("src/a.py", "link.py"):
        assert FIRST in denied(send("claude", edit(shop, path, TWO)))


def test_a_notebook_and_other_tools_are_known(shop: Path) -> None:
    with fleet(shop) as ada:
        ada.reservations.reserve("*.ipynb", ttl=600)
        call: dict[str, Any] = {
            "tool_name": "NotebookEdit",
            "tool_input": {"notebook_path": f"{shop}/n.ipynb"},
        }
        assert denied(send("claude", event(shop, "PreToolUse", **call)))
        bash: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
        assert send("claude", event(shop, "PreToolUse", **bash)) == ({}, "", 0)


def test_the_start_joins_and_primes(shop: Path) -> None:
    with fleet(shop) as ada:
        ada.tasks.publish("t1")
        ada.reservations.reserve("docs", ttl=600)
        text = said(send("claude", event(shop, "SessionStart", source="startup", model="m")))
        for word in (FIRST, "ada", "docs", "1 tasks ready", "interlock task next", "inbox"):
            assert word in text
        assert tokens(text) <= TOKENS
        assert FIRST in [each.agent for each in ada.agents.list()]
        send("claude", edit(shop, "src/a.py"))
        send("claude", event(shop, "SessionEnd", reason="exit"))
        assert FIRST not in [each.agent for each in ada.agents.list()]
        assert not [each for each in ada.reservations.list() if each.holder == FIRST]


def test_messages_arrive_after_a_batch_once_and_are_acknowledged_when_it_goes_on(
    shop: Path,
) -> None:
    batch = event(shop, "PostToolBatch", tool_calls=[{"tool_name": "Bash", "tool_input": {}}])
    with fleet(shop) as ada:
        send("claude", event(shop, "SessionStart", source="startup"))
        ada.messages.send([FIRST], "the base URL moved", subject="hello")
        text = said(send("claude", batch))
        assert "the base URL moved" in text
        assert "| " in text  # the text of another agent is marked as such
        assert "the base URL moved" not in said(send("claude", batch))
        ada.messages.stop(FIRST, "budget is spent")
        assert "STOP" in said(send("claude", batch))
        assert "budget is spent" in said(send("claude", batch))  # until the agent ends


def test_a_message_counts_as_read_only_if_all_of_it_was_shown(shop: Path) -> None:
    batch = event(shop, "PostToolBatch", tool_calls=[])
    with fleet(shop) as ada, fleet(shop, FIRST) as first:
        send("claude", event(shop, "SessionStart", source="startup"))
        ada.messages.send([FIRST], "long " * 1000, subject="one")
        for number in range(6):
            ada.messages.send([FIRST], f"body {number} " + "x" * 300, subject="more")
        texts = [said(send("claude", batch)) for _ in range(6)]
        assert all(len(text.encode()) <= MOST for text in texts)
        assert "cut; see 'interlock inbox'" in texts[0]
        for number in range(6):
            assert sum(f"body {number} " in text for text in texts) == 1
        assert texts[-1] == ""
        assert [each.subject for each in first.messages.inbox().messages] == ["one"]


def test_a_failure_loses_no_message_and_hides_none(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = event(shop, "PostToolBatch", tool_calls=[{"tool_name": "Bash", "tool_input": {}}])
    with fleet(shop) as ada, fleet(shop, FIRST) as first:
        send("claude", event(shop, "SessionStart", source="startup"))
        ada.reservations.reserve("docs", ttl=600)
        ada.messages.send([FIRST], "the base URL moved")
        with monkeypatch.context() as broken:
            broken.setattr(notices, "fitted", lambda _: 1 / 0)
            assert send("claude", batch)[2] == 1
        (shop / "new").write_text("x")
        with monkeypatch.context() as slow:
            slow.setattr(writes, "_PATIENCE", 0.0)
            out, err, status = send("claude", batch)
            assert "git status takes longer" in err
            assert "the base URL moved" in said((out, err, status))
        assert first.messages.inbox().messages
        send("claude", batch)
        assert not first.messages.inbox().messages


def test_waiting_mail_lets_the_agent_go_on_within_a_limit(shop: Path) -> None:
    with fleet(shop) as ada:
        send("claude", event(shop, "SessionStart", source="startup"))
        assert send("claude", event(shop, "Stop", stop_hook_active=False))[0] == {}
        ada.messages.send([FIRST], "please look at docs")
        out, _, _ = send("claude", event(shop, "Stop", stop_hook_active=False))
        assert out["decision"] == "block"
        assert "please look at docs" in out["reason"]
        assert send("claude", event(shop, "Stop", stop_hook_active=True))[0] == {}
        blocks = 0
        for _ in range(2 * IN_A_ROW):
            ada.messages.send([FIRST], "again")
            blocks += bool(send("claude", event(shop, "Stop", stop_hook_active=True))[0])
        assert 0 < blocks <= IN_A_ROW


def test_a_write_around_the_edit_tool_is_reported_once(shop: Path) -> None:
    bash = event(
        shop, "PostToolBatch", tool_calls=[{"tool_name": "Bash", "tool_input": {"command": "x"}}]
    )
    with fleet(shop) as ada:
        ada.reservations.reserve("src/a.py", ttl=600, reason="new parser")
        assert said(send("claude", bash)) == ""
        (shop / "src/a.py").write_text("a = 'by the shell'\n")
        text = said(send("claude", bash))
        assert "src/a.py" in text
        assert "ada" in text
        assert said(send("claude", bash)) == ""
        (shop / "src/a.py").write_text("a = 'once more'\n")
        assert "src/a.py" in said(send("claude", bash))


def test_every_write_around_the_edit_tool_is_reported_in_the_end(shop: Path) -> None:
    bash = event(shop, "PostToolBatch", tool_calls=[{"tool_name": "Bash", "tool_input": {}}])
    names = [f"src/{'long' * 20}{number}.py" for number in range(20)]
    with fleet(shop) as ada:
        ada.reservations.reserve("src", ttl=600)
        for name in names:
            (shop / name).write_text("x")
        texts = [said(send("claude", bash)) for _ in range(5)]
        assert texts[-1] == ""
        assert all(sum(f"{name}:" in text for text in texts) == 1 for name in names)


def test_an_edit_by_its_holder_is_not_reported(shop: Path) -> None:
    send("claude", edit(shop, "src/a.py"))
    (shop / "src/a.py").write_text("a = 'by the edit tool'\n")
    call = {"tool_name": "Edit", "tool_input": {"file_path": f"{shop}/src/a.py"}}
    send("claude", event(shop, "PostToolBatch", tool_calls=[call]))
    bash = {"tool_name": "Bash", "tool_input": {"command": "x"}}
    assert said(send("claude", event(shop, "PostToolBatch", TWO, tool_calls=[bash]))) == ""


def test_in_a_worktree_of_its_own_only_explicit_reservations_count(
    shop: Path, tmp_path: Path
) -> None:
    git(shop, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = tmp_path / "side"
    assert not denied(send("claude", edit(shop, "src/a.py")))
    assert not denied(send("claude", edit(side, "src/a.py", TWO)))
    with fleet(shop) as ada:
        ada.reservations.reserve("src/b.py", ttl=600)
        assert denied(send("claude", edit(side, "src/b.py", TWO)))


# Failures.


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"hook_event_name": "New"}'])
def test_input_that_is_no_event_is_refused_before_an_edit_and_reported_elsewhere(
    shop: Path, data: bytes
) -> None:
    out, err, status = send("claude", data, "PreToolUse")
    assert status == 2 or denied((out, err, status))
    assert "interlock" in err
    out, err, status = send("claude", data, "Stop")
    assert (out, status) == ({}, 0)
    assert err


@pytest.mark.parametrize("harm", ["not a database", "newer", "unreadable"])
def test_a_store_that_cannot_be_read_denies_edits_and_says_so(shop: Path, harm: str) -> None:
    store = shop / ".interlock/store.db"
    if harm == "not a database":
        store.write_bytes(b"x" * 8192)
    elif harm == "newer":
        Shell(shop).configure('store = "future://x"\n')
    else:
        store.unlink()
        store.mkdir()
    reason = denied(send("claude", edit(shop, "src/a.py")))
    if harm == "unreadable":  # another thing stands there, which a person has to look at
        assert "another file stands at" in reason
    else:
        assert "cannot check" in reason
        assert "INTERLOCK_HOOK=open" in reason
    out, err, status = send("claude", event(shop, "PostToolBatch", tool_calls=[]))
    assert (out, status) == ({}, 1)
    assert err.startswith("interlock hook:")


def test_a_server_that_is_away_denies_edits_in_time(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis")
    monkeypatch.setenv("INTERLOCK_STORE", "redis://127.0.0.1:1")
    begin = time.monotonic()
    assert "does not answer" in denied(send("claude", edit(shop, "src/a.py")))
    assert time.monotonic() - begin < 25


def test_the_user_may_choose_to_go_on_without_the_check(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / ".interlock/store.db").write_bytes(b"x" * 8192)
    monkeypatch.setenv("INTERLOCK_HOOK", "open")
    out, err, _ = send("claude", edit(shop, "src/a.py"))
    assert out == {}
    assert err


def test_without_a_store_nothing_is_refused_and_nothing_said(shop: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "src").mkdir(parents=True)
    for name in ("SessionStart", "PostToolBatch", "Stop", "SessionEnd"):
        assert send("claude", event(bare, name, tool_calls=[])) == ({}, "", 0)
    assert send("claude", edit(bare, "src/a.py")) == ({}, "", 0)


def test_an_edit_tool_without_a_known_path_is_refused(shop: Path) -> None:
    call: dict[str, Any] = {"tool_name": "Edit", "tool_input": {"where": "x"}}
    assert "names no file" in denied(send("claude", event(shop, "PreToolUse", **call)))


# Codex.


def patch(root: Path, text: str, session: str = ONE) -> dict[str, Any]:
    more = {"turn_id": "1", "model": "m", "tool_name": "apply_patch"}
    return event(root, "PreToolUse", session, **more, tool_input={"command": text})


def test_every_file_of_a_patch_counts(shop: Path) -> None:
    with fleet(shop) as ada:
        ada.reservations.reserve("docs/new.md", ttl=600)
        text = (
            "*** Begin Patch\n*** Update File: src/a.py\n*** Move to: docs/new.md\n@@\n-a\n+b\n"
            "*** Add File: x.py\n+x\n*** Delete File: src/old.py\n*** End Patch\n"
        )
        answer = send("codex", patch(shop, text))
        assert "docs/new.md" in denied(answer)
        # Codex takes an answer with any other key for invalid, and lets the edit through.
        assert set(answer[0]) == {"hookSpecificOutput"}
        assert set(answer[0]["hookSpecificOutput"]) == {
            "hookEventName", "permissionDecision", "permissionDecisionReason",
        }  # fmt: skip
        assert answer[0]["hookSpecificOutput"]["permissionDecisionReason"]
        held = [each.holder for each in ada.reservations.list()]
        assert held == ["ada"]  # all or none
        ada.reservations.unreserve(all=True)
        assert send("codex", patch(shop, text)) == ({}, "", 0)
        assert sum(len(each.patterns) for each in ada.reservations.list()) == 4


def test_codex_gets_context_after_a_tool_and_goes_on_at_stop(shop: Path) -> None:
    name = "codex-55556666"
    with fleet(shop) as ada:
        assert name in said(send("codex", event(shop, "SessionStart", source="startup")))
        ada.messages.send([name], "hello")
        call: dict[str, Any] = {
            "tool_name": "Bash",
            "tool_input": {"command": "ls"},
            "tool_response": "x",
        }
        answer = send("codex", event(shop, "PostToolUse", **call))
        assert "hello" in said(answer)
        assert set(answer[0]["hookSpecificOutput"]) == {"hookEventName", "additionalContext"}
        ada.messages.send([name], "more")
        assert send("codex", event(shop, "Stop", stop_hook_active=False))[0].keys() == {
            "decision", "reason",
        }  # fmt: skip


# The others, by the table.

PAYLOADS: dict[str, dict[str, Any]] = {
    "copilot": {
        "session_id": TWO, "cwd": "ROOT", "hook_event_name": "PreToolUse", "tool_name": "Edit",
        "tool_input": {"file_path": "ROOT/src/a.py"},
    },
    "cursor": {
        "conversation_id": TWO, "hook_event_name": "preToolUse", "workspace_roots": ["ROOT"],
        "tool_name": "Write", "tool_input": {"file_path": "ROOT/src/a.py"},
    },
    "gemini": {
        "session_id": TWO, "cwd": "ROOT", "hook_event_name": "BeforeTool",
        "tool_name": "write_file", "tool_input": {"file_path": "src/a.py"},
    },
    "opencode": {
        "session_id": TWO, "cwd": "ROOT", "hook_event_name": "PreToolUse", "tool_name": "edit",
        "tool_input": {"filePath": "ROOT/src/a.py"},
    },
}  # fmt: skip
DENIES = {
    "copilot": ("permissionDecision", "deny"), "cursor": ("permission", "deny"),
    "gemini": ("decision", "deny"), "opencode": ("deny", None),
}  # fmt: skip


@pytest.mark.parametrize("host", PAYLOADS)
def test_each_other_host_is_denied_where_a_commit_brought_settings(shop: Path, host: str) -> None:
    (shop / ".interlock/config.toml").write_text('store = "redis://127.0.0.1:1/stranger"\n')
    payload = json.loads(json.dumps(PAYLOADS[host]).replace("ROOT", str(shop)))
    out, _, status = send(host, payload)
    key, word = DENIES[host]
    assert status == 0
    assert out[key] == word or word is None
    assert "ask the person you work for" in json.dumps(out)


@pytest.mark.parametrize("host", PAYLOADS)
def test_each_other_host_is_denied_in_its_own_shape(shop: Path, host: str) -> None:
    payload = json.loads(json.dumps(PAYLOADS[host]).replace("ROOT", str(shop)))
    with fleet(shop) as ada:
        ada.reservations.reserve("src/a.py", ttl=600, reason="parser")
        out, _, status = send(host, payload)
        key, word = DENIES[host]
        assert status == 0
        assert out[key] == word or (word is None and "parser" in out[key])
        assert "ada" in json.dumps(out)
        ada.reservations.unreserve(all=True)
        assert send(host, payload) == ({}, "", 0)


def test_every_host_knows_its_events_and_has_one_before_an_edit() -> None:
    for host in HOSTS.values():
        means = list(host.events.values())
        assert means.count("before") == 1
        assert {"start", "after", "stop", "end"} <= set(means)
        assert host.edits


def test_the_command_answers_as_a_process(shop: Path) -> None:
    """The installed command, as a host starts it: JSON on stdin, from any folder."""
    with fleet(shop) as ada:
        ada.reservations.reserve("src/a.py", ttl=600, reason="größer")
    command = [os.path.join(os.path.dirname(sys.executable), "interlock"), "hook", "claude"]
    done = subprocess.run(
        [*command, "PreToolUse"],
        input=json.dumps(edit(shop, "src/a.py")),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},  # as on a host without a locale
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert denied((json.loads(done.stdout), "", 0))
    broken = subprocess.run(
        [*command, "PreToolUse"], input="{", capture_output=True, text=True, cwd="/", check=False
    )
    assert broken.returncode == 2
    assert "cannot check" in broken.stderr
