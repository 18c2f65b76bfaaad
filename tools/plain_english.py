"""Counts words that make the prose of this project hard to read, and says what to write instead.

``python tools/plain_english.py``            prints the files with the most such words
``python tools/plain_english.py PATH...``    prints every such word of these files, with its line
``python tools/plain_english.py --write``    lowers the limits in tests/docs/plain_english.json

The prose is what a person reads: the pages without their code, and the docstrings, comments and
messages of Python files.  A file without a limit has the limit 0.  Limits only fall: ``--write``
never raises one.  A word that is right in its place can stay: the limit of its file is then 1, and
a reviewer sees the line that raised it.
"""  # noqa: INP001 - a script

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = ROOT / "tests" / "docs" / "plain_english.json"
READ = ("src", "docs", "examples", "tools", "*.md")

ACTOR = "the actor: holder, waiter, sender, receiver, worker, caller, store, operator"
INSTEAD = {
    "whoever|whomever|whom|somebody|someone|nobody|everybody|anybody": ACTOR,
    "those who|who waits|who holds|who asks|who writes|who reads|who is there": ACTOR,
    "of ours|in our hands|in its hands|at hand": ACTOR,
    "whatever|wherever|whenever|what was|what is over": "the thing by its name",
    "the same for|likewise|as well as|besides": "the fact itself, or nothing",
    "circles?": "cycle",
    "lapses?|lapsed": "expire",
    "let go|lets go|letting go|gives? way": "release, delete",
    "forgets?|forgotten|forgetting": "delete, lose",
    "tells?|told|telling": "report, notify, send, say",
    "hears?|heard|unheard": "receive, read, notice",
    "tries again|try again|comes? again|once more|anew": "retry, again",
    "mends?|mended|mending": "repair, fix",
    "tid(?:y|ies|ied|ying)": "clean up, delete",
    "for ever": "without limit",
    "of its own accord": "without a request",
    "seldom|beforehand|meanwhile": "rarely; before; while that runs",
    "heirs?|errands?|chores?|happenings?|tales?": "the word of the field",
}
_INSTEAD = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), say) for words, say in INSTEAD.items()]
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`\n]*`", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """A word of the list, and where it is."""

    line: int
    word: str
    instead: str


def _blank(code: re.Match[str]) -> str:
    return "\n" * code[0].count("\n")


def _pieces(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file, each piece with the line where it begins."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, _CODE.sub(_blank, text)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        # A string without a space is a name, a key or a field, not prose.
        if token.type in kinds and " " in token.string:
            yield token.start[0], _CODE.sub(_blank, token.string)


def read(path: Path) -> tuple[int, list[Found]]:
    """The number of words of prose in a file, and those of the list."""
    words, found = 0, []
    for begin, text in _pieces(path):
        words += len(re.findall(r"[A-Za-z']+", text))
        for pattern, say in _INSTEAD:
            for hit in pattern.finditer(text):
                line = begin + text.count("\n", 0, hit.start())
                found.append(Found(line, " ".join(hit[0].split()), say))
    return words, sorted(found, key=lambda each: each.line)


def files() -> Iterator[Path]:
    """Every file that is checked."""
    for where in READ:
        for found in ROOT.glob(where):
            inside = found.rglob("*") if found.is_dir() else (found,)
            prose = (each for each in inside if each.suffix in (".md", ".py"))
            yield from (each for each in prose if each != Path(__file__))  # it has the list


def limits() -> dict[str, int]:
    """The limits: a file, and how many words of the list it may have."""
    stored: dict[str, int] = json.loads(LIMITS.read_text(encoding="utf-8"))
    return stored


def counts(known: Iterable[str]) -> tuple[int, Counter[str]]:
    """The number of words of prose, and the words of the list in each file, and in known ones."""
    total, found = 0, Counter[str](dict.fromkeys(known, 0))
    for path in files():
        words, hits = read(path)
        total += words
        found[str(path.relative_to(ROOT))] += len(hits)
    return total, found


def write() -> None:
    """Lower each limit to the count; a file without words of the list needs no limit."""
    known = limits()
    _, found = counts(known)
    table = {place: min(known[place], found[place]) for place in sorted(known)}
    kept = {place: limit for place, limit in table.items() if limit}
    LIMITS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def show(paths: Iterable[Path]) -> None:
    """Print every word of the list that is in these files."""
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else (path,)
        for each in sorted(file for file in inside if file.suffix in (".md", ".py")):
            for found in read(each)[1]:
                sys.stdout.write(f"{each}:{found.line}: {found.word}  (instead: {found.instead})\n")


def main(arguments: list[str]) -> None:
    """Do what the head of this file says."""
    if arguments == ["--write"]:
        write()
    elif arguments:
        show(map(Path, arguments))
    else:
        total, found = counts(())
        for place, count in found.most_common(30):
            sys.stdout.write(f"{count:5} {place}\n")
        share = 1000 * found.total() / total
        sys.stdout.write(f"{found.total()} in {total} words: {share:.2f} in 1,000\n")


if __name__ == "__main__":
    main(sys.argv[1:])
