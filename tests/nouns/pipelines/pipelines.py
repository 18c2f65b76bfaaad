"""Pipelines for tests: definitions from text, and clients that move them."""

from __future__ import annotations

from typing import Any

from interlock.core import keys
from interlock.nouns.guards.definition import define
from interlock.nouns.guards.source import parse
from interlock.nouns.pipelines.calls import PipelineCalls
from interlock.nouns.pipelines.definition import PipelineDefinition
from interlock.nouns.pipelines.pipeline import PipelineRun
from interlock.nouns.pipelines.pipeline_reader import decode_run
from interlock.store import Store
from interlock.testing.testbed import Client

RELEASE = """
[[pipeline.release.phase]]
name = "build"
tasks = [{id = "build.a"}, {id = "build.b", needs = ["build.a"]}]

[[pipeline.release.phase]]
name = "test"
post = [{lock_free = "bugs"}]

[[pipeline.release.phase]]
name = "merge"
pre = [{lock_free = "freeze"}]
hold = ["lock/merge", "sem/builds=2"]

[[pipeline.release.phase]]
name = "deploy"
hold = ["lock/merge"]
"""


def definition(text: str) -> PipelineDefinition:
    """The one pipeline of a definition file with this text."""
    return next(iter(define([parse("release.toml", text.encode())]).pipelines.values()))


def phases(*bodies: str, name: str = "p") -> PipelineDefinition:
    """A pipeline p with phases one, two, three ... that have these fields."""
    words = ("one", "two", "three", "four", "five")
    text = "".join(
        f'[[pipeline.{name}.phase]]\nname = "{word}"\n{body}\n'
        for word, body in zip(words, bodies, strict=False)
    )
    return definition(text)


class Mover:
    """A client that moves pipelines, by short words."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls = PipelineCalls(client.context)

    def define(self, what: PipelineDefinition) -> Any:
        return self.client.run(self.calls.define(what))

    def start(self, name: str = "p", id_: str = "r1") -> Any:
        return self.client.run(self.calls.start(name, id=id_))

    def advance(self, id_: str = "r1", phase: str | None = None) -> Any:
        return self.client.run(self.calls.advance(id_, phase=phase))

    def cancel(self, id_: str = "r1", reason: str = "off") -> Any:
        return self.client.run(self.calls.cancel(id_, reason))

    def show(self, id_: str = "r1") -> Any:
        return self.client.run(self.calls.show(id_))

    def do_tasks(self, most: int = 100) -> list[str]:
        """Do every task that is ready, and those that become ready; or only this many."""
        done: list[str] = []
        while len(done) < most and (got := self.client.run(self.client.tasks.next(can=["*"]))):
            self.client.run(self.client.tasks.complete(got.task, token=got.token))
            done.append(got.task)
        return done

    def lock(self, name: str) -> int:
        """Acquire a lock; returns its token."""
        got = self.client.run(self.client.locks.acquire(name))
        assert got, got
        return int(got.token or 0)

    def unlock(self, name: str, token: int) -> None:
        assert self.client.run(self.client.locks.release(name, token=token))

    def holder(self, name: str) -> str:
        """The holder of a lock."""
        return str(self.client.run(self.client.locks.show(name)).holder)


def run_of(store: Store, id_: str = "r1") -> PipelineRun:
    """The item of a pipeline."""
    key = keys.pipeline(id_)
    found = decode_run(store.read(key)[key])
    assert found is not None
    return found
