"""Long lists at the command line: what a list prints as its next page can be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.faces.shell import Here

NAMES = ("b my task", "c'd", 'd"e', "$HOME", "a;b", "grün *", "plain", "x\\y", "build/1", "build/2")
PIPELINE = '[[pipeline.p.phase]]\nname = "one"\n'
BANK = ("--store", "bank.db", "--agent", "bob")


@pytest.fixture
def full(here: Here, tmp_path: Path) -> Here:
    """A store where each list has a thing for each of the names."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    here.run("pipeline", "define", "p.toml")
    here.exported["INTERLOCK_KEYS_DIR"] = str(tmp_path / "keys")
    prints = {}
    for name, more in (("shop", ()), ("bank", BANK)):
        prints[name] = here.run("key", "new", name, "-q").out.strip()
        here.run("swarm", "register", name, "--bus", "bus.db", "--key", name, *more)
    here.run("swarm", "allow", "bank", "--key", prints["bank"])
    here.run("swarm", "allow", "shop", "--key", prints["shop"], *BANK)
    for name in NAMES:
        for words in (
            ("task", "add", name),
            ("schedule", "add", name, "--every", "1h"),
            ("pipeline", "start", "p", "--id", name),
            ("request", "send", "bank", "can:audit", "1"),
        ):
            assert here.run(*words).status == 0, words
    here.run("maintain", *BANK)
    return here


@pytest.mark.parametrize(
    ("words", "things", "name"),
    [
        (("task", "list"), "tasks", "task"),
        (("schedule", "list"), "schedules", "schedule"),
        (("pipeline", "list"), "pipelines", "pipeline"),
        (("request", "list"), "requests", "request"),
        (("request", "list", "--received", *BANK), "requests", "request"),
    ],
    ids=lambda words: " ".join(words[:3]) if isinstance(words, tuple) else "",
)
def test_the_next_page_of_each_list_can_be_pasted(
    full: Here, words: tuple[str, ...], things: str, name: str
) -> None:
    pasted: list[str] = []
    found = []
    while True:
        page = (*words, "--limit", "1", *pasted)
        found += [each[name] for each in full.json(*page)[1][things]]
        *_, last = full.run(*page).out.splitlines()
        if not last.startswith("more: "):
            break
        pasted = shlex.split(last.removeprefix("more: "))
        assert pasted in (["--after", found[-1]], ["--after", f"{found[-1]}@shop"])
    assert len(found) == len(set(found)) == len(NAMES)


@pytest.mark.parametrize(
    ("words", "things", "name"),
    [
        (("task", "list"), "tasks", "task"),
        (("task", "tree"), "tasks", "task"),
        (("schedule", "list"), "schedules", "schedule"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_each_list_takes_the_same_beginnings_of_names(
    full: Here, words: tuple[str, ...], things: str, name: str
) -> None:
    for beginning, chosen in (
        ("build/", {"build/1", "build/2"}),
        ("build/1", {"build/1"}),
        ("b ", {"b my task"}),
        ("b", {"b my task", "build/1", "build/2"}),
        ("", set(NAMES)),
    ):
        listed = full.json(*words, "--prefix", beginning)[1][things]
        assert {each[name] for each in listed} == chosen, beginning
    for beginning in ("/", "a//", "\t", "n" * 201):
        done = full.run(*words, "--prefix", beginning)
        assert (done.status, done.out) == (2, ""), beginning


def test_watching_tasks_takes_the_same_beginnings_of_names(full: Here) -> None:
    for beginning in ("/", "a//"):
        done = full.run("task", "watch", "--prefix", beginning)
        assert done.status == 2
        assert f"no task id begins with '{beginning}'" in done.err
