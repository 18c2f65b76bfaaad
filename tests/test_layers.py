from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.for_each import for_each

import interlock

ROOT = Path(interlock.__file__).parent

FOUNDATION = {
    "errors", "version", "clock", "steps", "threads", "thread_calls", "fork_imports", "descriptors",
    "git_command", "file_mark",
}  # fmt: skip
"""What anything may import."""
BELOW_CLIENTS = FOUNDATION | {
    "check_record", "client_context", "core", "nouns", "registry", "store_location", "runtime",
    "settings", "store", "stores", "work_tree", "work_tree_list",
}  # fmt: skip
CLIENTS = {
    "client_setup", "client", "client_blocks", "client_messages", "client_requests",
    "client_tasks", "client_threads", "client_worker", "client_worker_ends", "aio",
    "aio_ends_together", "aio_messages", "aio_requests", "aio_tasks", "aio_worker",
}  # fmt: skip
CLIENTS |= {"guard", "interlock", "outcomes"}
RULES_AND_SERVICES = {
    "registry", "runtime", "core", "store", "errors", "clock", "steps", "settings",
}  # fmt: skip

MAY_IMPORT = {
    "errors": set[str](),
    "version": set[str](),
    "clock": set[str](),
    "check_record": set[str](),
    "steps": {"descriptors", "store"},
    "threads": set[str](),
    "thread_calls": {"errors"},
    "descriptors": {"errors"},
    "fork_imports": set[str](),
    "git_command": set[str](),
    "file_mark": set[str](),
    "registry": {"descriptors", "runtime"},
    "guard": {"nouns"},
    "outcomes": {"core", "nouns", "runtime"},
    "core": {"core", "errors"},
    "store": set[str](),
    "stores": {"stores", "store"} | FOUNDATION,
    "nouns": RULES_AND_SERVICES
    | {
        "nouns",
        "client_context",
        "check_record",  # ``record verify`` judges with it
        "git_command",  # the git folders of a worktree
        "threads",  # looks at the outside side by side
        "testing",  # the type of an outcome of ``selftest``
        "thread_calls",  # whether a refusal is that of a handler inside of the call
    },
    "runtime": RULES_AND_SERVICES
    | {
        "aio",  # the types of streams
        "client_blocks",
        "client_context",  # the type of a client's context
        "git_command",  # the list of a user lies in no work tree
        "version",  # metrics name it
    },
    "settings": {"core", "errors"},
    "store_location": {"errors", "git_command", "settings", "store", "stores", "work_tree"},
    "work_tree": {"core", "errors", "file_mark", "git_command", "runtime"},
    "work_tree_list": {"core", "errors", "file_mark", "git_command", "runtime", "work_tree"},
    "client_context": BELOW_CLIENTS,
    "client_setup": BELOW_CLIENTS,
    "client": BELOW_CLIENTS
    | {"client_setup", "client_blocks", "client_messages", "client_requests", "client_tasks"},
    "client_blocks": BELOW_CLIENTS | {"client"},
    "client_messages": BELOW_CLIENTS | {"client"},
    "client_requests": BELOW_CLIENTS | {"client", "client_tasks"},
    "client_tasks": BELOW_CLIENTS | {"client", "client_blocks", "client_worker"},
    "client_worker": BELOW_CLIENTS
    | {"client", "client_tasks", "client_threads", "client_worker_ends"},
    "client_worker_ends": BELOW_CLIENTS | {"client", "client_tasks"},
    "client_threads": BELOW_CLIENTS | {"client", "client_tasks", "client_worker"},
    "aio": BELOW_CLIENTS | {"client_setup", "aio_messages", "aio_requests", "aio_tasks"},
    "aio_messages": BELOW_CLIENTS | {"aio"},
    "aio_requests": BELOW_CLIENTS | {"aio", "aio_tasks"},
    "aio_tasks": BELOW_CLIENTS | {"aio", "aio_worker"},
    "aio_worker": BELOW_CLIENTS | {"aio", "aio_ends_together", "aio_tasks"},
    "aio_ends_together": BELOW_CLIENTS,
    "interlock": BELOW_CLIENTS | CLIENTS | {"outcomes"},
    "bench": BELOW_CLIENTS | CLIENTS | {"bench"},
    "demo": BELOW_CLIENTS | CLIENTS | {"demo", "bench"},
    "faces": BELOW_CLIENTS | CLIENTS | {"faces", "bench", "demo", "testing", "check_record"},
    "__main__": {"faces"},
    "testing": BELOW_CLIENTS | CLIENTS | {"testing"},
}


def layer(module: str) -> str:
    """The file or folder right under the package; the package and its public names are clients."""
    parts = module.split(".")
    found = (ROOT / parts[1]).is_dir() or (ROOT / f"{parts[1]}.py").exists() if parts[1:] else False
    return parts[1] if found else "interlock"


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, lazily or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "interlock":
            yield from (f"interlock.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def own(path: Path) -> str:
    """The layer that a file belongs to."""
    name = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "interlock" if name == "__init__" else name


@for_each("path", sorted(ROOT.rglob("*.py")))
def test_imports_go_one_way(path: Path) -> None:
    found = {layer(name) for name in imports(path) if name.split(".")[0] == "interlock"}
    assert found <= MAY_IMPORT[own(path)]


def test_every_part_of_the_package_has_its_place() -> None:
    assert {own(path) for path in ROOT.rglob("*.py")} <= set(MAY_IMPORT)
