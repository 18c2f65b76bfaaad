from __future__ import annotations

import asyncio
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.for_each import for_each

import interlock
from interlock import aio, guard, registry
from interlock.errors import NotAllowed
from interlock.faces.cli.help import operation_help
from interlock.nouns.fleet.noun import InitRequest
from interlock.nouns.grants.lock_noun import LockAcquire
from interlock.nouns.grants.lock_operator_noun import LockRun
from interlock.nouns.guards.allowed import allow
from interlock.nouns.guards.guard import digest
from interlock.nouns.guards.noun import GuardsCheck, GuardsDefine
from interlock.nouns.messages.noun import MessageShare
from interlock.nouns.pipelines.noun import PipelineDefine
from interlock.nouns.record.noun import RecordAnchor, RecordExport
from interlock.nouns.tasks.publish_noun import TaskImport
from interlock.runtime.calls import Calls
from interlock.runtime.operation import Operation, Request, fields
from interlock.runtime.text import renderer

ROOT = Path(interlock.__file__).parent
TABLE = registry.operations()
ALIASES = {alias: operation.name for operation in TABLE for alias in operation.aliases}
every = for_each("operation", TABLE, lambda operation: operation.name)


def test_the_registry_names_each_operation_once() -> None:
    assert len(set(registry.names())) == len(TABLE)
    for operation in TABLE:
        word, _, verb = operation.name.rpartition(" ")
        assert registry.find(operation.name) is operation
        assert word in registry.words() if word else verb in registry.commands()


REFERENCE = re.compile(r'"(interlock\.[\w.]+):(\w+)"')


def test_every_reference_in_the_source_leads_somewhere() -> None:
    """Declarations name functions as text, which no type checker follows."""
    found = [pair for path in ROOT.rglob("*.py") for pair in REFERENCE.findall(path.read_text())]
    assert len(found) > 50
    for module, name in found:
        assert hasattr(import_module(module), name), f"{module}:{name}"


def test_every_reference_of_a_declaration_leads_somewhere() -> None:
    for noun in registry.nouns():
        for reference in (noun.calls, noun.blocking, noun.awaiting):
            assert not reference or issubclass(registry.load(reference), Calls)
        for module in noun.texts:
            assert registry.load(f"{module}:TEXTS")
        for operation in noun.operations:
            assert not operation.in_shell or callable(registry.load(operation.in_shell))


@every
def test_the_help_of_an_operation_is_one_short_line(operation: Operation) -> None:
    assert 0 < len(operation.help) <= 72
    assert "\n" not in operation.help
    assert operation.help[0].islower()
    assert operation.help[-1] != "."


@every
def test_every_field_of_a_request_says_what_it_means(operation: Operation) -> None:
    for field in fields(operation.request):
        assert field.help, field.name


@every
def test_every_outcome_has_a_text(operation: Operation) -> None:
    for outcome in operation.outcomes:
        assert callable(renderer(outcome))


@every
def test_a_request_has_a_schema_for_faces_that_speak_json(operation: Operation) -> None:
    schema = msgspec.json.schema(operation.request)
    found = next(iter(schema["$defs"].values()))
    assert set(found["properties"]) == {field.name for field in fields(operation.request)}


def test_an_option_means_the_same_kind_of_thing_wherever_it_is_taken() -> None:
    kinds: dict[str, set[str]] = {}
    for operation in TABLE:
        for field in fields(operation.request):
            if not field.positional:
                kinds.setdefault(field.name, set()).add(field.kind)
    kinds.pop("after")  # a place in an order: a revision, or an id
    kinds.pop("in")  # the folder to look in, or the time to begin in
    kinds.pop("token")  # that of a grant, or the role of a caller's
    kinds.pop("tokens")  # those of callers to list, or of a model to count
    kinds.pop("for")  # how long, or for which host
    kinds.pop("hold")  # what is held meanwhile, or that a message is held
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_what_is_in_the_table_alone_can_be_carried_out() -> None:
    alone = {each.name for each in TABLE if each.act is None and not each.call}
    assert alone == {
        "init", "allow", "demo", "run", "doctor", "schema", "bench", "lock run", "sem run",
        "selftest", "task watch", "guard allow", "guard deny", "guard permissions", "request serve",
        "task run",
        "store copy", "store backup", "store restore", "mcp", "up", "open", "merge serve",
        "hook", "prime", "setup", "wake", "warm", "top", "watch-branch", "completion",
    }  # fmt: skip


@every
def test_an_option_that_names_a_file_or_folder_is_a_path(operation: Operation) -> None:
    """Its kind tells a face that no other host may give it."""
    for field in fields(operation.request):
        names_file = re.search(r"\b(file|folder)s?\b", field.help) and field.kind == "text"
        assert not names_file, field.name


OUTSIDE = (
    "command=touch ran", "command-fails=touch ran", "file-exists=x", "file-contains=x,text=y",
    "branch-exists=x", "branch-clean=x", "branch-merged=x,into=y",
)  # fmt: skip
LOCAL = [
    *(GuardsCheck(condition=(f"{mark}{word}",)) for mark in ("", "!") for word in OUTSIDE),
    GuardsCheck(condition=("lock-free=x", "command=touch ran"), any=True),
    GuardsCheck(condition=("lock-free=x",), root="."),
    GuardsCheck(file="guards.toml"),
    GuardsDefine(file="guards.toml"),
    PipelineDefine(file="guards.toml"),
    TaskImport(file="-"),
    MessageShare(who="bob", type="report", file="guards.toml"),
    RecordAnchor(place="ran"),
    RecordExport(out="ran"),
]


@pytest.mark.parametrize("request_", LOCAL)
def test_a_request_of_another_host_uses_no_file_or_program_of_this_one(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        interlock.connect("memory:", agent="ada") as fleet,
        pytest.raises(NotAllowed, match="host"),
    ):
        fleet.act(request_, remote=True)

    async def with_the_other_client() -> None:
        async with await aio.connect("memory:", agent="ada") as fleet:
            with pytest.raises(NotAllowed, match="files or programs"):
                await fleet.act(request_, remote=True)

    asyncio.run(with_the_other_client())
    assert os.listdir(tmp_path) == []


def test_a_check_of_another_host_is_answered_by_the_store_and_by_what_this_host_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "list"))
    ran = guard.named("ran", guard.command(["touch", "ran"]))
    with interlock.connect("memory:", agent="ada") as fleet:
        assert fleet.act(GuardsCheck(condition=("lock-free=x",)), remote=True)
        fleet.guards.define(ran)
        assert not fleet.act(GuardsCheck(name=("ran",)), remote=True)
        assert not (tmp_path / "ran").exists()
        allow(digest(ran), tmp_path)
        assert fleet.act(GuardsCheck(name=("ran",)), remote=True)
        assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("other", [5, None, "lock acquire", LockAcquire])
def test_anything_but_a_request_is_refused_by_act(other: Any) -> None:
    with interlock.connect("memory://") as fleet, pytest.raises(TypeError, match="is no request"):
        fleet.act(other)


@pytest.mark.parametrize("request_", [InitRequest(), LockRun(lock="merge", command=("true",))])
def test_a_command_of_the_shell_alone_is_refused_by_act(request_: Request) -> None:
    with interlock.connect("memory://") as fleet, pytest.raises(TypeError, match="command line"):
        fleet.act(request_)

    async def with_the_other_client() -> None:
        async with await aio.connect("memory://") as fleet:
            with pytest.raises(TypeError, match="command line"):
                await fleet.act(request_)

    asyncio.run(with_the_other_client())


def test_every_operation_on_messages_has_an_example() -> None:
    of_messages = [
        noun for noun in registry.nouns() if noun.name in ("message", "inbox", "decision")
    ]
    for noun in of_messages:
        assert [each.name for each in noun.operations if not each.examples] == []


def test_agent_always_means_who_speaks() -> None:
    """No operation has an option of its own under the name of who, where or how it answers."""
    ours = {"agent", "store", "session", "json", "quiet", "verbose", "help"}
    for operation in TABLE:
        options = {field.name for field in fields(operation.request) if not field.positional}
        assert options.isdisjoint(ours), operation.name


ATTRIBUTES = {noun.name: name for name, noun in registry.attributes()}
"""How Python calls the nouns of the command line."""


@pytest.mark.parametrize("alias", ALIASES)
def test_both_names_of_an_operation_are_good_in_both_faces(alias: str) -> None:
    first = ALIASES[alias]
    assert alias not in registry.names()
    assert registry.find(alias) is registry.find(first)
    assert operation_help(registry.find(first)).count(f"Also called: interlock {alias}") == 1
    noun, verb = alias.split()
    _, short = first.split()
    python = verb.replace("-", "_"), "import_" if short == "import" else short
    declared = registry.with_attribute(ATTRIBUTES[noun])
    assert declared is not None
    for reference in (declared.blocking or declared.calls, declared.awaiting or declared.calls):
        one_of, other = (getattr(registry.load(reference), name) for name in python)
        assert one_of is other


def test_every_word_of_the_command_line_about_tasks_is_one_of_python() -> None:
    declared = registry.with_attribute("tasks")
    assert declared is not None
    for operation in registry.verbs("task"):
        verb = operation.name.rpartition(" ")[2]
        if verb == "run":  # a program: in Python that is a function, for ``serve``
            continue
        for reference in (declared.blocking, declared.awaiting):
            assert hasattr(registry.load(reference), "import_" if verb == "import" else verb)
