"""When a program is started again, and when it is over for good."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.errors import BadInput
from interlock.faces.cli import restart

Stop = Callable[[], None]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Counts the starts; each call is one."""
    before = [signal.getsignal(each) for each in SIGNALS]

    def count() -> int:
        with open(tmp_path / "starts", "ab") as file:
            file.write(b"x")
            return file.tell()

    yield count
    for signum, handler in zip(SIGNALS, before, strict=True):
        signal.signal(signum, handler)


def test_two_stop_messages_end_it_as_one_does(starts: Callable[[], int]) -> None:
    def run(stopped: Stop) -> int:
        for _ in range(starts() + 1):
            stopped()
        return 3

    assert restart.restarting("always", 0.001, run) == 3
    assert starts() == 2


def test_a_request_that_can_never_succeed_is_not_repeated(
    starts: Callable[[], int], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_stopped: Stop) -> int:
        starts()
        raise BadInput("who are you?")

    assert restart.restarting("always", 0.001, run) == 2
    assert starts() == 2
    assert capfd.readouterr().err == "interlock: who are you?\n"


def test_a_program_that_fails_with_status_2_itself_starts_again(starts: Callable[[], int]) -> None:
    assert restart.restarting("failure", 0.001, lambda _: 2 if starts() < 3 else 0) == 0


def test_a_signal_that_is_ignored_does_not_end_it(starts: Callable[[], int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def run(_stopped: Stop) -> int:
        os.kill(os.getppid(), signal.SIGHUP)
        return 0 if starts() > 1 else 1

    assert restart.restarting("failure", 0.001, run) == 0
    assert starts() == 3


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_reaches_the_program(
    starts: Callable[[], int], monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    monkeypatch.setattr(restart, "in_foreground", lambda: False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def run(_stopped: Stop) -> int:
        starts()
        os.kill(os.getppid(), signum)
        while True:
            signal.pause()

    assert restart.restarting("always", 0.001, run) == 128 + signum
    assert starts() == 2


def test_a_signal_before_the_program_exists_reaches_it(
    starts: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = os.fork
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def forked() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return fork()

    monkeypatch.setattr(os, "fork", forked)

    def run(_stopped: Stop) -> int:
        starts()
        while True:
            signal.pause()

    assert restart.restarting("always", 0.001, run) == 128 + signal.SIGTERM
