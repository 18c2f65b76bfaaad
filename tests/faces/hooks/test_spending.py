"""Hooks count the transcripts of their hosts, once, and a limit refuses edits and claims."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.faces.hooks.hosts import ONE, TWO, denied, edit, event, send, shop

import interlock
from interlock.errors import NotAllowed
from interlock.faces.hooks.spending import PORTIONS
from interlock.nouns.budgets import transcripts

__all__ = ["shop"]
FIRST, SECOND = "claude-55556666", "claude-88889999"
"""The agents of both sessions."""


def user(text: str = "go on") -> str:
    line = {"type": "user", "sessionId": ONE, "message": {"role": "user", "content": text}}
    return json.dumps(line) + "\n"


def assistant(id_: str, output: int, cached: int = 1000) -> str:
    """A line as Claude Code writes it, once for each block of a message."""
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output,
        "service_tier": "standard",
    }
    message = {
        "id": f"msg_{id_}",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": 'the "usage" of a thing'}],
        "stop_reason": None,
        "usage": usage,
    }
    line = {
        "parentUuid": "u1",
        "isSidechain": False,
        "cwd": "/shop",
        "sessionId": ONE,
        "version": "2.1.240",
        "gitBranch": "main",
        "message": message,
        "requestId": "req_1",
        "type": "assistant",
        "uuid": f"uuid-{id_}",
        "timestamp": "2026-11-16T10:00:00.000Z",
    }
    return json.dumps(line) + "\n"


def token_count(total: int, last: int) -> str:
    """An event of a rollout as Codex writes it."""

    def usage(tokens: int) -> dict[str, int]:
        return {
            "input_tokens": tokens - 10,
            "cached_input_tokens": 20,
            "output_tokens": 10,
            "reasoning_output_tokens": 5,
            "total_tokens": tokens,
        }

    info = {
        "total_token_usage": usage(total),
        "last_token_usage": usage(last),
        "model_context_window": 272_000,
    }
    payload = {"type": "token_count", "info": info, "rate_limits": {"primary": None}}
    return json.dumps({"timestamp": "t", "type": "event_msg", "payload": payload}) + "\n"


def after(root: Path, session: str = ONE, **more: Any) -> tuple[Any, str, int]:
    calls = [{"tool_name": "Bash", "tool_input": {"command": "ls"}}]
    return send("claude", event(root, "PostToolBatch", session, tool_calls=calls, **more))


def stop(root: Path, session: str = ONE, **more: Any) -> tuple[Any, str, int]:
    return send("claude", event(root, "Stop", session, stop_hook_active=False, **more))


def limit(root: Path, thing: str, tokens: int) -> None:
    with interlock.connect(f"{root}/.interlock/store.db", agent="lead") as lead:
        assert lead.budgets.set(thing, tokens=tokens)


def spent(root: Path) -> dict[str, int]:
    with interlock.connect(f"{root}/.interlock/store.db") as fleet:
        return {each.thing: each.tokens for each in fleet.budgets.show()}


def test_a_limit_refuses_edits_and_claims_with_what_the_transcript_says(shop: Path) -> None:
    limit(shop, f"agent/{FIRST}", 3000)
    path = shop / "t.jsonl"
    path.write_text(user() + assistant("1", 1) + assistant("1", 50) + user())
    assert after(shop) == ({}, "", 0)
    assert spent(shop)[f"agent/{FIRST}"] == 1053  # a message with two blocks counts once
    assert not denied(send("claude", edit(shop, "src/a.py")))
    with path.open("a") as file:
        file.write(assistant("2", 500))
    assert not denied(send("claude", edit(shop, "src/a.py")))  # an edit counts nothing itself
    after(shop)
    assert not denied(send("claude", edit(shop, "src/a.py")))
    with path.open("a") as file:
        file.write(assistant("3", 0))
    stop(shop)
    assert "3,559 of 3,000 tokens are spent" in denied(send("claude", edit(shop, "src/a.py")))
    with interlock.connect(f"{shop}/.interlock/store.db", agent=FIRST) as agent:
        agent.tasks.publish("t")
        with pytest.raises(NotAllowed, match="3,559 of 3,000"):
            agent.tasks.next()


def test_sub_agents_spend_the_budget_of_their_session(shop: Path) -> None:
    limit(shop, "agent/*", 1500)
    folder = shop / "t/subagents"
    folder.mkdir(parents=True)
    (shop / "t.jsonl").write_text(user() + assistant("1", 1))
    (folder / "agent-abc.jsonl").write_text(user() + assistant("2", 2))
    (folder / "agent-end.jsonl").write_text(user() + assistant("3", 4))
    sub = {"agent_id": "abc", "agent_type": "tester"}
    after(shop)
    after(shop, **sub)
    assert spent(shop)["fleet"] == 2 * 1003 + 3
    ended = {"agent_id": "x", "agent_transcript_path": f"{folder}/agent-end.jsonl"}
    send("claude", event(shop, "SubagentStop", stop_hook_active=False, **ended))
    assert spent(shop) == {f"agent/{FIRST}": 3016, "fleet": 3016}
    assert "3,016 of 1,500" in denied(send("claude", edit(shop, "src/a.py", **sub)))
    assert not denied(send("claude", edit(shop, "src/b.py", TWO)))


def test_codex_counts_the_growth_of_its_total(shop: Path) -> None:
    path = shop / "rollout.jsonl"
    meta = json.dumps({"type": "session_meta", "payload": {"id": ONE}}) + "\n"
    empty = {"type": "event_msg", "payload": {"type": "token_count", "info": None}}
    path.write_text(meta + json.dumps(empty) + "\n" + token_count(300, 300))
    own = event(shop, "Stop", transcript_path=str(path), turn_id="1", model="m")
    assert send("codex", own) == ({}, "", 0)
    with path.open("a") as file:
        file.write(token_count(900, 600) + token_count(900, 600))
    send("codex", own)
    assert spent(shop)["fleet"] == 900


def test_what_is_missing_or_not_whole_yet_is_counted_later(shop: Path) -> None:
    path = shop / "t.jsonl"
    assert stop(shop) == ({}, "", 0)
    whole = user() + assistant("1", 5)
    path.write_text(whole[:20])
    assert stop(shop) == ({}, "", 0)
    path.write_text(whole[:-7])
    assert stop(shop) == ({}, "", 0)
    assert "fleet" not in spent(shop) or not spent(shop)["fleet"]
    path.write_text(whole + assistant("2", 5)[:-1])
    stop(shop)
    assert spent(shop)["fleet"] == 1008


def test_a_file_that_was_rotated_is_counted_from_its_beginning(shop: Path) -> None:
    path = shop / "t.jsonl"
    path.write_text(user("one") + assistant("1", 5))
    stop(shop)
    path.rename(shop / "t.jsonl.1")
    path.write_text(user("two") + assistant("2", 5) + assistant("3", 5))  # longer than the first
    stop(shop)
    assert spent(shop)["fleet"] == 3 * 1008


def test_a_transcript_that_two_sessions_name_is_counted_once(shop: Path) -> None:
    (shop / "t.jsonl").write_text(user() + assistant("1", 5))
    stop(shop)
    stop(shop, TWO)
    assert spent(shop) == {f"agent/{FIRST}": 1008, "fleet": 1008}


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_named_and_delays_nothing(shop: Path, kind: str) -> None:
    path = shop / "t.jsonl"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    _, err, status = stop(shop)
    assert status == 0
    assert "its spending is not counted" in err


def test_a_huge_transcript_is_counted_a_part_at_each_event(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "PORTION", 4096)
    path, number = shop / "t.jsonl", 200
    long = user("x" * 3 * 4096)  # a line that fits into no part
    lines = [assistant(str(n), 0) for n in range(number)]
    path.write_text("".join([user(), *lines[:100], long, *lines[100:]]))
    stop(shop)
    first = spent(shop)["fleet"]
    assert 0 < first <= PORTIONS * 4096 // len(assistant("1", 0)) * 1003 < number * 1003
    for _ in range(100):
        stop(shop)
    assert spent(shop)["fleet"] == number * 1003


def test_a_turn_counts_rarely_in_a_fleet_without_limits(shop: Path) -> None:
    path = shop / "t.jsonl"
    path.write_text(user() + assistant("1", 5))
    after(shop)
    path.write_text(user() + assistant("1", 5) + assistant("2", 5))
    after(shop)
    assert spent(shop)["fleet"] == 1008
    assert send("claude", event(shop, "SessionEnd", reason="clear")) == ({}, "", 0)
    assert spent(shop)["fleet"] == 2016


def test_it_is_booked_to_the_task_that_the_agent_works_on(shop: Path) -> None:
    with interlock.connect(f"{shop}/.interlock/store.db", agent=FIRST) as agent:
        agent.tasks.publish("t1")
        agent.tasks.publish("t2")
        claim = agent.tasks.claim("t1")
        assert claim
        (shop / "t.jsonl").write_text(user() + assistant("1", 5))
        stop(shop)
        assert spent(shop)["task/t1"] == 1008
        limit(shop, "task/t1", 1000)
        assert "task/t1 is used up" in denied(send("claude", edit(shop, "src/a.py")))


def test_a_fork_does_not_count_what_its_transcript_copies(shop: Path) -> None:
    path = shop / "t.jsonl"
    path.write_text(user() + assistant("1", 5))
    send("claude", event(shop, "SessionStart", source="fork"))
    stop(shop)
    with path.open("a") as file:
        file.write(assistant("1", 6) + assistant("2", 5))
    stop(shop)
    assert spent(shop)["fleet"] == 1008 + 1  # the message that grows counts by its growth
