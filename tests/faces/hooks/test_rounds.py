"""Two agents edit one repository through the hooks, with the edit tool and with the shell.

The edit tool reads a file, asks the hook, and writes the file with a line added: the act of an
agent that does not know about the other.  The other agent acts between any two of these steps.  No
line that went through the edit tool is ever lost; a write by the shell is reported at the next call
of a tool, and cannot be committed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.hooks.hosts import ONE, TWO, denied, edit, event, git, said, send, shop

__all__ = ["shop"]
FILES = ("src/a.py", "src/b.py", "docs/c.md")
NAMES = {ONE: "claude-55556666", TWO: "claude-88889999"}


class Agent:
    """An agent that works in small steps."""

    def __init__(self, root: Path, session: str, chance: random.Random) -> None:
        self.root = root
        self.session = session
        self.chance = chance
        self.written: dict[str, list[str]] = {name: [] for name in FILES}
        self.refused = self.reported = self.by_shell = 0
        self.number = 0

    def turn(self) -> Iterator[None]:
        """A turn: some edits and shell commands, then it stops."""
        for _ in range(self.chance.randrange(1, 4)):
            name = self.chance.choice(FILES)
            if self.chance.random() < 0.15:
                yield from self.shell(name)
            else:
                yield from self.edit(name)
        send("claude", event(self.root, "Stop", self.session, stop_hook_active=False))

    def edit(self, name: str) -> Iterator[None]:
        if denied(send("claude", edit(self.root, name, self.session))):
            self.refused += 1
            return
        yield
        text = (self.root / name).read_text()
        yield
        self.number += 1
        line = f"{self.session[:4]} {self.number}"
        (self.root / name).write_text(f"{text}{line}\n")
        self.written[name].append(line)
        yield
        call = {"tool_name": "Edit", "tool_input": {"file_path": f"{self.root}/{name}"}}
        send("claude", event(self.root, "PostToolBatch", self.session, tool_calls=[call]))

    def shell(self, name: str) -> Iterator[None]:
        """A command that appends to another file, whoever has it."""
        yield
        with (self.root / name).open("a") as file:
            file.write(f"shell {self.session[:4]}\n")
        self.by_shell += 1
        call = {"tool_name": "Bash", "tool_input": {"command": f"echo >> {name}"}}
        answer = send("claude", event(self.root, "PostToolBatch", self.session, tool_calls=[call]))
        self.reported += name in said(answer)


def rounds(root: Path, number: int) -> tuple[Agent, Agent]:
    chance = random.Random(20)
    for name in FILES:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "files")
    agents = Agent(root, ONE, chance), Agent(root, TWO, chance)
    running: dict[int, Iterator[None]] = {}
    done = 0
    while done < number:
        which = chance.randrange(2)
        turn = running.setdefault(which, agents[which].turn())
        try:
            next(turn)
        except StopIteration:
            del running[which]
            done += 1
    for turn in running.values():
        list(turn)
    return agents


def check(root: Path, agents: tuple[Agent, Agent]) -> None:
    for name in FILES:
        lines = (root / name).read_text().splitlines()
        for agent in agents:
            mine = [line for line in lines if line.startswith(agent.session[:4])]
            assert mine == agent.written[name], name
    assert sum(agent.refused for agent in agents) > 0
    assert sum(agent.reported for agent in agents) > 0


def test_two_agents_lose_no_change_that_goes_through_the_edit_tool(shop: Path) -> None:
    check(shop, rounds(shop, 60))


@pytest.mark.proof
def test_two_agents_lose_no_change_in_five_hundred_rounds(shop: Path) -> None:
    check(shop, rounds(shop, 500))
