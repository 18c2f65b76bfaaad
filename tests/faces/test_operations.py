from __future__ import annotations

import msgspec
import pytest

from interlock import aio
from interlock.aio_tasks import Tasks as AioTasks
from interlock.client import Agents, Locks, Semaphores
from interlock.client_tasks import Tasks
from interlock.faces.cli.help import one
from interlock.faces.cli.parse import split
from interlock.nouns import registry
from interlock.nouns.fleet import observe_operations
from interlock.nouns.messages import decision_noun, inbox_noun
from interlock.nouns.messages import noun as send_operations
from interlock.runtime.operation import Operation, fields
from interlock.runtime.text import RENDERERS, renderer

TABLE = registry.table()
every = pytest.mark.parametrize("operation", TABLE, ids=lambda operation: operation.name)


def test_the_index_names_each_operation_once() -> None:
    assert [operation.name for operation in TABLE] == list(registry.names())
    assert len(set(registry.names())) == len(TABLE)
    assert set(registry.INDEX) == {"", *registry.NOUNS}


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
        assert outcome.__name__ in RENDERERS
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
    kinds.pop("hold")  # what is held meanwhile, or that a message is held
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_what_is_in_the_table_alone_can_be_carried_out() -> None:
    alone = {operation.name for operation in TABLE if operation.act is None}
    assert alone == {
        "init", "demo", "run", "doctor", "schema", "bench", "lock run", "sem run", "selftest",
        "task watch",
    }  # fmt: skip


def test_every_operation_on_messages_has_an_example() -> None:
    of_messages = (
        inbox_noun.OPERATIONS,
        send_operations.OPERATIONS,
        decision_noun.OPERATIONS,
        observe_operations.OPERATIONS,
    )
    assert [each.name for some in of_messages for each in some if not each.examples] == []


def test_agent_always_means_who_speaks() -> None:
    """No operation has an option of its own under the name of who, where or how it answers."""
    ours = {"agent", "store", "session", "json", "quiet", "verbose", "help"}
    for operation in TABLE:
        options = {field.name for field in fields(operation.request) if not field.positional}
        assert options.isdisjoint(ours), operation.name


NOUNS = {"agent": "agents", "lock": "locks", "sem": "semaphores", "task": "tasks"}
"""How Python calls the nouns of the command line."""


@pytest.mark.parametrize("alias", registry.ALIASES)
def test_both_names_of_an_operation_are_good_in_both_faces(alias: str) -> None:
    first = registry.canonical(alias)
    assert first in registry.names()
    assert alias not in registry.names()
    assert split([*alias.split(), "x", "--json"]) == (first, ["x", "--json"])
    assert one(registry.find(first)).count(f"Also called: interlock {alias}") == 1
    noun, verb = alias.split()
    _, short = first.split()
    python = verb.replace("-", "_"), "import_" if short == "import" else short
    blocking = (Locks, Semaphores, Agents, Tasks)
    for nouns in (blocking, (aio.Locks, aio.Semaphores, aio.Agents, AioTasks)):
        home = next(each for each in nouns if each.__name__.lower() == NOUNS[noun])
        one_of, other = (getattr(home, name) for name in python)
        assert one_of is other


def test_every_word_of_the_command_line_about_tasks_is_one_of_python() -> None:
    for verb in registry.INDEX["task"]:
        assert hasattr(Tasks, "import_" if verb == "import" else verb)
        assert hasattr(AioTasks, "import_" if verb == "import" else verb)
