"""How large the source is, part by part, and how far one call goes down.

    tools/size.py            lines and files of each part; short, long and doubled things
    tools/size.py --calls    modules and frames below the face of one call on a warm client

A frame is below the face if it belongs to neither ``faces/`` nor a client module.
"""  # noqa: INP001 - a script

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

SOURCE = Path(__file__).parent.parent / "src" / "interlock"
SHORT, LONG, LONGEST = 60, 400, 600
NESTED = ("nouns", "stores")
"""Folders whose subfolders are parts of their own."""
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""No frames of their own from Python 3.12 on."""
FACES = ("interlock.faces", "interlock.client", "interlock.aio")
BELOW_FACES = ("interlock.client_context",)


def part(path: Path) -> str:
    """The part of the source that a file belongs to."""
    folder, *below = path.relative_to(SOURCE).parts
    if not below:
        return "clients" if folder.startswith(("client", "aio")) else "top level"
    return f"{folder}/{below[0]}" if folder in NESTED and below[1:] else folder


def sizes() -> dict[Path, int]:
    """The lines of each file, without generated ones."""
    files = (path for path in sorted(SOURCE.rglob("*.py")) if "_pb2" not in path.name)
    return {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}


def doubled_classes(files: dict[Path, int]) -> dict[str, list[str]]:
    """Names of public classes that several modules define, with those modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def report() -> Iterator[str]:
    """The sizes in lines of text."""
    files = sizes()
    lines, count = Counter[str](), Counter[str]()
    for path, size in files.items():
        lines[part(path)] += size
        count[part(path)] += 1
    yield f"{'part':20}{'lines':>8}{'files':>8}"
    for name in sorted(lines):
        yield f"{name:20}{lines[name]:8,}{count[name]:8}"
    yield f"{'total':20}{sum(lines.values()):8,}{len(files):8}"
    for what, chosen in (
        (f"under {SHORT} lines", [path for path, size in files.items() if size < SHORT]),
        (f"over {LONG} lines", [path for path, size in files.items() if size > LONG]),
        (f"over {LONGEST} lines", [path for path, size in files.items() if size > LONGEST]),
    ):
        yield f"{len(chosen)} files {what} ({len(chosen) / len(files):.0%})"
    doubled = doubled_classes(files)
    yield f"{len(doubled)} class names are defined more than once"
    for name, places in doubled.items():
        yield f"  {name}: {', '.join(places)}"


class CallPath:
    """The modules of Interlock that a call enters, and how deep its frames are."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.deepest: list[str] = []
        self._stack: list[str] = []

    def measure(self, call: Callable[[], object]) -> None:
        """Make the call under a profiler of this thread."""
        sys.setprofile(self._event)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        face = module.startswith(FACES) and module not in BELOW_FACES
        below = module.startswith("interlock.") and not face
        if not below or frame.f_code.co_name in INLINED:
            return
        if event == "call":
            self.modules.add(module)
            self._stack.append(f"{module}:{frame.f_code.co_name}")
            self.deepest = max(self.deepest, list(self._stack), key=len)
        elif event == "return" and self._stack:
            self._stack.pop()


def call_paths(*, verbose: bool) -> Iterator[str]:
    """The way of a few calls of the Python client, on a warm client and the store in memory."""
    import interlock

    with interlock.connect("memory://", agent="size") as fleet:
        for number in range(3):
            fleet.tasks.publish(f"task.{number}")
        fleet.tasks.next()
        fleet.locks.acquire("warm")
        calls: dict[str, Callable[[], object]] = {
            "tasks.next": fleet.tasks.next,
            "locks.acquire": lambda: fleet.locks.acquire("merge"),
        }
        yield f"{'call':20}{'modules':>8}{'frames':>8}"
        for name, call in calls.items():
            path = CallPath()
            path.measure(call)
            yield f"{name:20}{len(path.modules):8}{len(path.deepest):8}"
            if verbose:
                yield f"  modules: {', '.join(sorted(path.modules))}"
                yield from (f"  {'.' * depth}{frame}" for depth, frame in enumerate(path.deepest))


def main(words: list[str]) -> int:
    """Print what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", action="store_true", help="the way of one call, not the sizes")
    parser.add_argument("-v", "--verbose", action="store_true", help="each module and frame")
    chosen = parser.parse_args(words)
    for line in call_paths(verbose=chosen.verbose) if chosen.calls else report():
        print(line)  # noqa: T201 - the product
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
