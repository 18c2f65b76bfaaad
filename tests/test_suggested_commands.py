"""Every command that a text suggests has the words of others as one word of a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "interlock"
GIT = "--git-dir|add|branch|checkout|commit|config|fetch|init|merge|push|read-tree|rebase|restore"
COMMAND = re.compile(rf"(?:^|[^\w./-])(?:interlock [a-z-]+|git (?:{GIT})\b)")
END = re.compile(r"[;,:()]|\. |\n")
"""What ends a command in a sentence."""
REVIEWED = {
    "faces/cli/completion.py": {"at", "name", "operation.name", "what", "_fish_text(text)"},
    "faces/cli/fleet.py": {"each"},  # the name of a schema
    "faces/hooks/doctor.py": {"host.name"},
    "faces/hooks/setup.py": {"own_command()"},  # quoted there
    "faces/tui/views/people.py": {"source.agent or 'NAME'"},
    "nouns/grants/rules.py": {"demand.capacity"},
    "nouns/merges/bounces.py": {"attempt.base[:12]", "attempt.tip[:12]"},  # commits
    "nouns/messages/text.py": {"more"},  # the next command
    "nouns/tasks/health.py": {"able"},  # quoted there
    "nouns/tasks/text.py": {"then"},  # the next line
    "stores/marks.py": {"here", "there"},  # quoted there
}
"""Values that need no quotes: words of Interlock, numbers, and what is quoted where it is made."""


def suggestions(tree: ast.AST) -> Iterator[tuple[ast.JoinedStr, ast.expr]]:
    """Each value that an f-string puts into a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            said = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    said += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    begins = [found.end() for found in COMMAND.finditer(said)]
                    if begins and not END.search(said[begins[-1] :]):
                        yield node, part.value
                    said += "X"


def joined_words(tree: ast.AST) -> Iterator[tuple[ast.BinOp, ast.expr]]:
    """Each value that is added to a text which ends with a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            text = node.left.value if isinstance(node.left, ast.Constant) else ""
            if isinstance(text, str) and text.endswith(" ") and COMMAND.search(text):
                yield node, node.right


def is_quoted(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
    return name == "quote"


def test_every_value_in_a_suggested_command_is_quoted() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if COMMAND.search(text := path.read_text()) is None:
            continue
        tree = ast.parse(text)
        for node, value in (*suggestions(tree), *joined_words(tree)):
            if not is_quoted(value) and ast.unparse(value) not in REVIEWED.get(where, ()):
                wrong.append(f"{where}:{node.lineno}: {ast.unparse(value)}")
    assert not wrong, "\n".join(wrong)
