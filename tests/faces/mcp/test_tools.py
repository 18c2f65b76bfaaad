"""The tools are the declared operations, in the same words."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from interlock import registry
from interlock.errors import BadInput
from interlock.faces.mcp import tools, words
from interlock.faces.mcp.tools import DEFAULT, RARE, McpTool, ToolSet, in_argument_words, is_tool
from interlock.nouns.grants.lock_noun import LockAcquire
from interlock.nouns.messages.inbox_noun import MessageWait
from interlock.runtime.operation import fields

OPERATIONS = registry.operations()
FILES = {
    "guard define", "key list", "key new", "key revoke", "key rotate", "pipeline define",
    "merge submit", "rebase", "record anchor", "swarm register", "task import",
}  # fmt: skip
SHELL = {each.name for each in OPERATIONS if not (each.call or each.act)}


def listed(*names: str, local: bool = False) -> dict[str, Any]:
    return {each["name"]: each for each in ToolSet(names or ("default",), local=local).listed()}


def test_every_operation_is_a_tool_or_has_a_reason_not_to_be_one() -> None:
    every = {each.name for each in OPERATIONS}
    left_out = SHELL | tools.BY_CONNECTION
    assert set(listed("all", local=True)) == {tools.tool_name(name) for name in every - left_out}
    assert set(listed("all")) == {tools.tool_name(name) for name in every - left_out - FILES}
    assert left_out | FILES <= every, "a stale name"


@pytest.mark.parametrize("local", [False, True])
def test_a_tool_says_what_its_command_says(*, local: bool) -> None:
    found = listed("all", local=local)
    for operation in OPERATIONS:
        if (tool := found.get(tools.tool_name(operation.name))) is None:
            continue
        assert tool["description"] == in_argument_words(operation.help)
        own = [each for each in fields(operation.request) if each.name != "follow"]
        own = [each for each in own if local or each.kind != "path"]
        schema = tool["inputSchema"]
        said = {name: each["description"] for name, each in schema["properties"].items()}
        assert said == {each.name: in_argument_words(each.help) for each in own}
        assert schema.get("required", []) == [each.name for each in own if each.required]
        assert bool(tool.get("annotations")) == operation.reads


def test_no_tool_speaks_of_the_shell() -> None:
    text = str([listed("all"), words.INSTRUCTIONS])
    assert re.findall(r"stdin|@FILE|\s--[a-z]+|repeatable", text) == []


def test_the_default_set_is_small() -> None:
    found = listed()
    assert tuple(found) == tuple(map(tools.tool_name, DEFAULT))
    assert len(found) <= 10
    assert len(msgspec.json.encode(list(found.values()))) / 4 <= 2000
    assert len(words.INSTRUCTIONS) / 4 <= 150


def test_the_default_set_leaves_out_only_rare_arguments_and_accepts_them_all_the_same() -> None:
    for name, tool in listed().items():
        whole = listed(name)[name]["inputSchema"]["properties"]
        assert set(whole) - set(tool["inputSchema"]["properties"]) <= RARE
    request, _ = _tool("lock acquire", brief=True).request({"lock": "m", "token": 3}, 50.0)
    assert request == LockAcquire(lock="m", token=3)


def test_a_set_of_tools_is_named_by_words_of_the_command_line() -> None:
    assert set(listed("default", "pipeline")) > {"task_next", "pipeline_start"}
    assert set(listed("task list", "lock_show")) == {"task_list", "lock_show"}
    for wrong in ("tasks", "run", "key", "agent join", ""):
        with pytest.raises(BadInput, match="there is no tool"):
            ToolSet((wrong,))
    assert "key_list" in listed("key", local=True)


def test_no_argument_names_the_acting_agent() -> None:
    """Each command has --agent and --session; a tool has neither."""
    for name, tool in listed("all", local=True).items():
        assert not {"agent", "session"} & set(tool["inputSchema"]["properties"]), name


def _tool(name: str, *, brief: bool = False, local: bool = False) -> McpTool:
    operation = registry.find(name)
    assert is_tool(operation, local=local)
    return McpTool(operation, local=local, brief=brief)


def test_arguments_become_a_request() -> None:
    given = {"who": "bob", "body": "hi", "urgent": True, "subject": None}
    request, cut = _tool("send").request(given, 50.0)
    assert (request.who, request.body, request.urgent) == (("bob",), "hi", True)  # type: ignore[attr-defined]
    assert not cut
    limit, _ = _tool("inbox").request({"limit": "7"}, 50.0)
    assert limit.limit == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("lock acquire", {}, "lock_acquire needs lock"),
        ("lock acquire", {"lock": None}, "lock_acquire needs lock"),
        ("lock acquire", {"lock": "m", "agent": "eve"}, "no argument 'agent'; it takes lock, ttl"),
        ("lock acquire", {"lock": "m", "session": "ses_1"}, "no argument 'session'"),
        ("lock acquire", {"lock": 5}, "Expected `str`"),
        ("lock acquire", {"lock": ["m"]}, "Expected `str`"),
        ("lock acquire", {"lock": "m", "token": -1}, "token is out of bounds"),
        ("lock acquire", {"lock": "m", "token": 10**30}, "token is out of bounds"),
        ("lock acquire", {"lock": "m", "token": "9" * 5000}, "token is out of bounds"),
        ("lock acquire", {"lock": "m", "wait": "soon"}, "soon"),
        ("inbox", {"limit": 10**6}, "limit is out of bounds"),
        ("share", {"who": "b", "type": "t", "file": "/etc/passwd"}, "no argument 'file'"),
        ("record log", {"follow": True}, "no argument 'follow'"),
        ("lock list", {"x": 1}, "it takes none"),
    ],
)
def test_a_wrong_argument_is_named(tool: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        _tool(tool).request(arguments, 50.0)
    assert said in str(error.value)


def test_a_wait_is_cut_to_what_hosts_allow() -> None:
    acquire = _tool("lock acquire")
    for wait, kept, cut in (("forever", 50.0, True), ("2m", 50.0, True), ("5s", "5s", False)):
        request, was_cut = acquire.request({"lock": "m", "wait": wait}, 50.0)
        assert (request.wait, was_cut) == (kept, cut)  # type: ignore[attr-defined]
    assert acquire.request({"lock": "m"}, 50.0) == (LockAcquire(lock="m"), False)
    assert _tool("wait").request({}, 50.0) == (MessageWait(timeout=50.0), True)
    question, cut = _tool("query").request({"who": "bob", "text": "?", "timeout": "1h"}, 50.0)
    assert (question.timeout, cut) == (50.0, True)  # type: ignore[attr-defined]
    assert not _tool("query").request({"who": "bob", "text": "?"}, 50.0)[1]


def test_every_outcome_of_the_default_set_has_a_next_step() -> None:
    outcomes = {each.__name__ for name in DEFAULT for each in registry.find(name).outcomes}
    assert outcomes == set(words.NEXT)


def test_refusals_name_tools_and_arguments() -> None:
    text = "ask with --person; see 'interlock task list' or 'interlock init --store X'"
    assert words.in_tool_words(text, _tool("query"), {"task_list", "inbox"}) == (
        "ask with person; see 'task_list' or 'interlock init --store X'"
    )
