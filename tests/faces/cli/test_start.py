"""A command pays only for what it uses."""

from __future__ import annotations

import os
import resource
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faces.shell import Shell

HEAVY = {
    "argparse", "asyncio", "cryptography", "dataclasses", "difflib", "hashlib", "inspect", "json",
    "logging", "multiprocessing", "pathlib", "socket", "string", "subprocess", "tempfile",
    "tomllib",
}  # fmt: skip
UNUSED = {
    "bisect", "contextvars", "importlib", "math", "select", "weakref",
    "interlock.core.item_outcomes", "interlock.outcomes",
    "interlock.nouns.grants.semaphore_calls", "interlock.nouns.grants.several_calls",
    "interlock.runtime.housekeeping", "interlock.stores.sqlite.watch", "interlock.version",
}  # fmt: skip
"""What a command that acquires a lock and waits for nothing does without."""
MOST = 75
"""How many modules of ours it may import: each takes nearly a hundredth of a start of Python."""
OTHERS = ("logs", "message", "report", "several", "story", "uploader", "verify")

SPY = """
import sys
from interlock.faces.cli.main import import_msgspec
import_msgspec()
before = set(sys.modules)
from interlock.faces.cli.command import run
status = run(sys.argv[1:])
print(*sorted(set(sys.modules) - before), file=sys.stderr)
sys.exit(status)
"""


def test_acquiring_a_lock_imports_nothing_heavy(ada: Shell) -> None:
    imported = _imported_by(ada, "lock", "acquire", "merge")
    assert "interlock.stores.sqlite.store" in imported
    assert _about(imported, "task", "guard", "gate", *OTHERS) == set()
    assert imported & UNUSED == set()
    assert len([name for name in imported if name.startswith("interlock")]) <= MOST


COMPILED = """
import msgspec, re, sys
compiled, usual = [], re._compiler.compile
re._compiler.compile = lambda pattern, flags=0: compiled.append(pattern) or usual(pattern, flags)
from interlock.faces.cli.command import run
status = run(sys.argv[1:])
print(*compiled, file=sys.stderr)
sys.exit(status)
"""


def test_acquiring_a_lock_compiles_no_pattern(ada: Shell) -> None:
    assert _noted_by(ada, COMPILED, "lock", "acquire", "merge") == ""


EVALUATED = """
import builtins, sys
evaluated, usual = [], builtins.compile
def noting(source, *args, **kwargs):
    if isinstance(source, str):
        evaluated.append(source)
    return usual(source, *args, **kwargs)
builtins.compile = noting
from interlock.faces.cli.main import import_msgspec
import_msgspec()
from interlock.faces.cli.command import run
status = run(sys.argv[1:])
print(*evaluated, file=sys.stderr)
sys.exit(status)
"""


def test_no_annotation_is_compiled_for_locks_claims_and_alerts(ada: Shell) -> None:
    """The first one makes all classes of ``ast``, which takes a twentieth of a command."""
    assert ada.run("task", "add", "t1").status == 0
    held = _noted_by(ada, EVALUATED, "lock", "acquire", "merge")
    extended = _noted_by(ada, EVALUATED, "lock", "acquire", "merge", "--token", _token(ada, "lock"))
    released = _noted_by(ada, EVALUATED, "lock", "release", "merge", "--token", _token(ada, "lock"))
    claimed = _noted_by(ada, EVALUATED, "task", "next")
    done = _noted_by(ada, EVALUATED, "task", "complete", "t1", "--token", _token(ada, "task"))
    sent = _noted_by(ada, EVALUATED, "alert", "build", '{"at": 1}')
    assert [held, extended, released, claimed, done, sent] == [""] * 6


WITHOUT_RE = """
import sys
from interlock.faces.cli.main import import_msgspec
import_msgspec()
from interlock.faces.cli.command import run
status = run(sys.argv[1:])
print(*{"ast", "re._compiler"} & {*sys.modules}, file=sys.stderr)
sys.exit(status)
"""


def test_acquiring_a_lock_and_sending_an_alert_does_without_re(ada: Shell) -> None:
    assert _noted_by(ada, WITHOUT_RE, "lock", "acquire", "merge") == ""
    assert ada.run("subscribe", "build", "--agent", "bob").status == 0
    assert _noted_by(ada, WITHOUT_RE, "alert", "build", '{"at": 1}') == ""


def _token(shell: Shell, kind: str) -> str:
    """The token of the lock ``merge``, or of the task ``t1``."""
    _, shown = shell.json(kind, "show", {"lock": "merge", "task": "t1"}[kind])
    return str(shown["token"])


HANDED = """
import os, sys
before = set(sys.modules)
from interlock.faces.cli import main
main.hand_over = lambda argv: print(*set(sys.modules) - before, flush=True) or 0
main.main()
"""


def test_a_command_that_is_handed_over_imports_only_what_is_built_into_python() -> None:
    words = [sys.executable, "-I", "-S", "-c", _without_site(HANDED), "lock", "list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    package = "interlock", "interlock.faces", "interlock.faces.cli"
    ours = {*package, "interlock.faces.cli.main", "interlock.faces.cli.warm"}
    assert set(done.stdout.split()) == {*ours, "__future__"}


def test_the_installed_command_is_the_script_of_the_package() -> None:
    """An entry point would let the installer write it, and old ones import much there."""
    installed = Path(sys.executable).with_name("interlock")
    script = Path(__file__).parents[3] / "scripts" / "interlock"
    assert installed.read_text().splitlines()[1:] == script.read_text().splitlines()[1:]
    assert os.access(installed, os.X_OK)
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("interlock ")


LAZY = """
import sys
from interlock.faces.cli.main import LazyModule, import_msgspec
import_msgspec()
import msgspec, platform
import re
lazy = sys.modules["msgspec.inspect"], sys.modules["msgspec._json_schema"], platform, re
assert all(isinstance(each, LazyModule) for each in lazy)
assert msgspec.json.schema(int) == {"type": "integer"}
assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType()
assert platform.python_version() == sys.version.split()[0]
assert re.compile("a+", re.ASCII).fullmatch("aa")[0] == "aa"
assert not any(isinstance(sys.modules[each.__name__], LazyModule) for each in lazy)
assert vars(re)["sub"] is sys.modules["re"].sub  # the next use need not look for it
"""


def test_a_part_of_msgspec_that_was_left_out_is_imported_when_it_is_used() -> None:

    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


PATTERNS = """
import sys
from interlock.faces.cli.main import LazyModule, import_msgspec
import_msgspec()
import msgspec, threading, typing
assert isinstance(sys.modules["re"], LazyModule)
Name = typing.Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
assert msgspec.json.decode(b'"ada"', type=Name) == "ada"
try:
    msgspec.json.decode(b'"Ada"', type=Name)
except msgspec.ValidationError:
    pass
else:
    raise AssertionError("the pattern was ignored")
import re
assert not isinstance(re, LazyModule)
assert typing.Pattern[str].__origin__ is re.Pattern and typing.Match[str].__origin__ is re.Match
found, begin = [], threading.Barrier(8)
later = LazyModule("colorsys")
threads = [
    threading.Thread(target=lambda: begin.wait() and 0 or found.append(later.rgb_to_hsv))
    for _ in range(8)
]
[each.start() for each in threads]
[each.join() for each in threads]
assert found == [sys.modules["colorsys"].rgb_to_hsv] * 8
"""


def test_patterns_work_although_re_is_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", PATTERNS], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


RESTORED = """
import pickle, sys, typing
from interlock.faces.cli.main import import_msgspec
import_msgspec()
import datetime, msgspec
class Event(msgspec.Struct):
    at: "datetime.datetime"
    after: "Event | None" = None
now = datetime.datetime.now(datetime.UTC)
event = Event(now, Event(now))
assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event
assert typing.get_type_hints(Event)["after"] == Event | None
assert pickle.loads(pickle.dumps(now)) == now
day = datetime.datetime.strptime("2031-02-03", "%Y-%m-%d")
assert day.date() == datetime.date(2031, 2, 3)
assert "typing_extensions" not in sys.modules or sys.modules["typing_extensions"] is not None
"""


def test_annotations_and_times_work_after_the_import_of_msgspec() -> None:
    done = subprocess.run([sys.executable, "-c", RESTORED], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_claiming_a_task_imports_only_what_it_takes(ada: Shell) -> None:
    assert ada.run("task", "add", "t1").status == 0
    imported = _imported_by(ada, "task", "claim", "t1")
    assert "interlock.nouns.tasks.claim_service" in imported
    assert _about(imported, "seen", "plan", "semaphore", *OTHERS) == set()


def test_sending_a_message_imports_only_what_it_takes(ada: Shell) -> None:
    assert ada.run("inbox", "--agent", "bob").status == 0
    imported = _imported_by(ada, "send", "bob", "hello")
    assert "interlock.nouns.messages.send_service" in imported
    others = ("task", "semaphore", "several", "plan", "logs", "story", "verify")
    assert _about(imported, *others) == set()


def test_verifying_the_record_imports_only_what_it_takes(ada: Shell) -> None:
    imported = _imported_by(ada, "record", "verify", needed=frozenset({"hashlib"}))
    assert "interlock.nouns.record.verify" in imported
    assert _about(imported, "guards", "messages", "tasks") == set()


@pytest.mark.parametrize("thing", ["guard/calm", "lock/deploy", "task/build.1"])
def test_why_takes_at_most_eight_times_a_bare_python(ada: Shell, thing: str) -> None:
    """The best of a few turns: a busy machine slows single ones down."""
    calm = '[guard.calm]\nwhen = [{lock_free = "deploy"}, {tasks_complete = "build."}]\n'
    (ada.folder / "guards.toml").write_text(calm)
    for words in ("guard define guards.toml", "lock acquire deploy", "task add build.1"):
        assert ada.run(*words.split()).status == 0
    bare = why = float("inf")
    for _ in range(20):
        bare = min(bare, _seconds(ada, "-c", "pass"))
        why = min(why, _seconds(ada, "-m", "interlock", "why", thing))
        if why <= 8 * bare:
            return
    raise AssertionError(f"{why / bare:.1f} times a bare Python")


def _seconds(shell: Shell, *words: str) -> float:
    """The processor time of a command, which other work on the machine hardly changes."""
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words],
        cwd=shell.folder,
        env=shell.environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


def _about(imported: set[str], *words: str) -> set[str]:
    """Modules of ours that are about one of these."""
    return {name for name in imported if {*name.split(".")} & {*words} and "interlock" in name}


def _imported_by(shell: Shell, *words: str, needed: frozenset[str] = frozenset()) -> set[str]:
    """What a command imports; none of it is heavy but what it needs."""
    imported = set(_noted_by(shell, SPY, *words).split())
    # msgspec takes what typing_extensions, a tool of developers, brings along.
    brought = {"inspect"} if "typing_extensions" in imported else set()
    assert imported & HEAVY - brought == needed
    return imported


def _noted_by(shell: Shell, script: str, *words: str) -> str:
    """What a script that carries out a command writes to stderr."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _without_site(script), *words],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.strip()


def _without_site(script: str) -> str:
    """Site packages may import things of their own accord when Python starts."""
    return f"import sys; sys.path[:] = {sys.path!r}\n{script}"


def test_a_process_that_imports_the_script_carries_out_no_command() -> None:
    """``multiprocessing`` imports the main file of its parent under another name."""
    script = Path(__file__).parents[3] / "scripts" / "interlock"
    assert "main" in runpy.run_path(str(script), run_name="__mp_main__")
