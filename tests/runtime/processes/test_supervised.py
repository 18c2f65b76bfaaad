"""Commands below a supervisor: what they wrote, and how they are stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.faces.shell import PATIENCE, gone, until

from interlock.runtime.processes import supervised
from interlock.runtime.processes.supervised import KEPT, Ended, Supervision


def run(supervision: Supervision, script: str, folder: Path, **options: Any) -> Ended:
    environment = {"PATH": os.environ["PATH"]}
    return supervision.run(
        ("sh", "-c", script), folder=str(folder), environment=environment, seconds=60.0, **options
    )


def number(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_output_and_errors_are_one_or_two(tmp_path: Path) -> None:
    with Supervision() as supervision:
        joined = run(supervision, "echo a; echo b >&2; echo c", tmp_path)
        apart = run(supervision, "echo a; echo b >&2; echo c", tmp_path, joined=False)
    assert (joined.out.head, joined.err.head) == (b"a\nb\nc\n", b"")
    assert (apart.out.head, apart.err.head) == (b"a\nc\n", b"b\n")


def test_the_beginning_and_the_end_of_a_long_output_are_kept(tmp_path: Path) -> None:
    data = b"".join(b"%07d\n" % line for line in range(100_000))
    (tmp_path / "data").write_bytes(data)
    with Supervision() as supervision:
        out = run(supervision, "cat data", tmp_path).out
        whole = run(supervision, "cat data", tmp_path, kept=len(data)).out
    assert (out.size, out.head, out.tail) == (len(data), data[:KEPT], data[-KEPT:])
    assert (whole.head, whole.tail) == (data, b"")
    assert out.digest == whole.digest == sha256(data).hexdigest()


def test_the_end_of_an_output_that_is_not_twice_as_long_is_kept(tmp_path: Path) -> None:
    with Supervision() as supervision:
        out = run(supervision, "printf 0123456789", tmp_path, kept=8).out
    assert (out.head, out.tail) == (b"01234567", b"89")


def test_the_end_of_the_block_ends_what_runs(tmp_path: Path) -> None:
    ended: list[Ended] = []
    with Supervision() as supervision:
        script = "echo $$ > new; mv new pid; trap '' TERM; while :; do sleep 1000; done"
        thread = threading.Thread(target=lambda: ended.append(run(supervision, script, tmp_path)))
        thread.start()
        pid = number(tmp_path / "pid")
    thread.join(PATIENCE)
    assert [one.how for one in ended] == ["stopped"]
    assert gone(pid)
    assert run(supervision, "touch ran", tmp_path).how == "stopped"
    assert not (tmp_path / "ran").exists()


def test_a_helper_that_is_killed_takes_the_command_with_it(tmp_path: Path) -> None:
    with Supervision() as supervision:
        ended = run(supervision, "echo $$ > pid; kill -9 $PPID; exec sleep 1000", tmp_path)
    assert (ended.how, ended.says) == ("stopped", "its helper process ended")
    until(lambda: gone(number(tmp_path / "pid")), "the end of the command")


def test_a_helper_that_is_asked_to_end_ends_the_command(tmp_path: Path) -> None:
    with Supervision() as supervision:
        ended = run(supervision, "echo $$ > pid; kill $PPID; exec sleep 1000", tmp_path)
    assert ended.how == "stopped"
    assert gone(number(tmp_path / "pid"))


def test_a_command_that_signals_its_group_does_not_reach_its_helper(tmp_path: Path) -> None:
    with Supervision() as supervision:
        ended = run(supervision, "kill -9 0", tmp_path)
    assert (ended.how, ended.status, ended.signal) == ("ended", 137, signal.SIGKILL)


def test_a_thread_that_blocks_signals_does_not_block_them_for_the_command() -> None:
    ended: list[Ended] = []
    words = ("grep", "SigBlk", "/proc/self/status")

    def blocked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with Supervision() as supervision:
            environment = {"PATH": os.environ["PATH"]}
            ended.append(supervision.run(words, folder="/", environment=environment, seconds=60.0))

    thread = threading.Thread(target=blocked)
    thread.start()
    thread.join(PATIENCE)
    assert [int(one.out.head.split()[1], 16) for one in ended] == [0]


def test_orphans_of_the_program_that_asks_are_not_adopted(tmp_path: Path) -> None:
    """The program is no subreaper: what it did not start stays none of its business."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with Supervision() as supervision:
        run(supervision, "setsid sleep 1000 &", tmp_path)
    new = set(children.read_text().split()) - before
    assert "sleep" not in [Path(f"/proc/{child}/comm").read_text().strip() for child in new]


def test_without_an_interpreter_there_is_no_helper(tmp_path: Path) -> None:
    before, sys.executable = sys.executable, ""
    try:
        with Supervision() as supervision:
            ended = run(supervision, "true", tmp_path)
    finally:
        sys.executable = before
    assert ended.how == "not started"
    assert "the Python interpreter is unknown" in ended.says


def test_a_helper_imports_nothing_of_the_rest_of_the_package() -> None:
    """It would cost each command more time than Python itself."""
    with Supervision() as supervision:
        probe = "import sys; import processes.supervisor; print(*sorted(sys.modules))"
        start = f"import sys; sys.path.append({supervised.__file__!r}.rsplit('/', 2)[0]); {probe}"
        ended = supervision.run(
            (sys.executable, "-I", "-S", "-c", start), folder="/", environment={}, seconds=60.0
        )
    names = ended.out.head.decode().split()
    assert "processes.supervisor" in names
    assert not {"interlock", "typing", "msgspec", "subprocess", "threading", "hashlib"} & {*names}
